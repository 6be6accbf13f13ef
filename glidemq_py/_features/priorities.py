"""Priorities and ranks: changing those of a job that has not started, and counting ready jobs per rank.

The job options `priority`, `rank` and `lifo` are in `glidemq_py._core.job_options`; docs/design/ready-sources.md lists
the options that they combine with. The server's side is in lua/features/priorities, ranks and lifo.
"""

from __future__ import annotations

from typing import NamedTuple

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import Argument, administration, call
from glidemq_py._core.checks import check_int
from glidemq_py._core.job_options import MAX_PRIORITY, MAX_RANK
from glidemq_py._partitions.link import QueueLink, change_job
from glidemq_py.errors import GlideMQValidationError


class RankCounts(NamedTuple):
    """One page of the counts per rank."""

    cursor: str
    """'' = the end."""
    counts: list[int]
    """Rank and jobs by turns."""


@call("count_ranks", repeatable=True)
def count_ranks_page(cursor: Argument[str]) -> RankCounts:
    """Count the ready jobs of some ranks, the highest first."""
    ...


async def count_ranks(link: QueueLink[JobTransport]) -> dict[int, int]:
    """Return the number of ready jobs of each rank that has any, highest rank first."""
    counts: dict[int, int] = {}
    cursor = ""
    while True:
        page = await link.call(count_ranks_page, cursor)
        counts.update(zip(page.counts[::2], page.counts[1::2], strict=True))
        cursor = page.cursor
        if not cursor:
            return counts


async def change_job_rank(link: QueueLink[JobTransport], job_id: str, rank: int, *, lifo: bool = False) -> int:
    """Change the rank of a job that has not started, and return the validated value.

    With ``lifo``, it becomes a LIFO job too: the first one of its rank.
    """
    value = check_int("rank", rank, -MAX_RANK, MAX_RANK)
    call = administration.change_rank(link.keys.meta, job_id, value, lifo=lifo)
    await change_job(link, job_id, call, "change the rank of")
    return value


async def change_job_priority(
    link: QueueLink[JobTransport], job_id: str, priority: int | None, rank: int | None
) -> tuple[int, int | None]:
    """Change the priority or the rank of a job that has not started.

    Returns:
        Its priority, and its rank if that is not the one of the priority.
    """
    if (priority is None) == (rank is None):
        raise GlideMQValidationError("priority", priority, "give either 'priority' or 'rank'")
    if rank is not None:
        value = await change_job_rank(link, job_id, rank)
        return (MAX_PRIORITY + 1 - value, None) if 0 < value <= MAX_PRIORITY else (0, value)
    value = check_int("priority", priority, 0, MAX_PRIORITY)
    call = administration.change_priority(link.keys.meta, job_id, value)
    await change_job(link, job_id, call, "change the priority of")
    return value, None
