"""Deleting old jobs that have not ended, by state and age.

The server's side is in lua/features/retention; completed and failed jobs have an index by age there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from glidemq_py._core.calls import administration
from glidemq_py._core.calls.administration import Condition, page
from glidemq_py._core.record import JobState
from glidemq_py._partitions.link import QueueLink, server_time

CLEANABLE: Final = tuple(state for state in JobState if state is not JobState.ACTIVE)

_PIECE: Final = 100
"""Jobs per call: one or two milliseconds of server time."""

_RECORDED: Final = {JobState.PRIORITIZED: f"{JobState.PRIORITIZED} {JobState.DELAYED}"}
"""States in the records of the jobs listed under a state: a job that is due keeps its own until it is fetched."""


async def clean_unfinished(
    link: QueueLink, state: JobState, grace: int, limit: int, listed: str | None = None
) -> list[str]:  # fmt: skip
    """Delete at most ``limit`` jobs in a state that were added at least ``grace`` ms ago, and return their ids.

    ``listed`` selects a part of them: a state of ``lua/core/functions/page.lua``.
    """
    before, allowed = await server_time(link) - grace, _RECORDED.get(state, state)
    where = [Condition("timestamp", False, False, before)]
    deleted: list[str] = []
    kept, cursor = "", ""
    while len(deleted) < limit:
        found = await link.call(page, listed or state, cursor, _PIECE, ("state",), where=where)
        cursor = found.cursor
        ids = list(dict.fromkeys([kept] * bool(kept) + [job_id for job_id, _, _ in found.rows]))
        # The cursor names the last job: it is deleted after the next page, so that the position is found again.
        kept = ids.pop() if cursor and ids else ""
        ids = ids[: limit - len(deleted)]
        if ids:
            deleted += await link.call(administration.clean_jobs, ids, allowed, before, len(deleted), False)
        if not cursor:
            break
    if deleted:
        await link.call(administration.clean_jobs, [], allowed, before, len(deleted), True)
    return deleted


async def delete_jobs(link: QueueLink, ids: Sequence[str], state: str | None) -> list[str]:
    """Delete these jobs if they are in a state (None: in any), a hundred per call; return the ids of those deleted."""
    before = await server_time(link)
    allowed = _RECORDED.get(JobState(state), state) if state else " ".join(JobState)
    deleted: list[str] = []
    for first in range(0, len(ids), _PIECE):
        piece, is_last = ids[first : first + _PIECE], first + _PIECE >= len(ids)
        deleted += await link.call(administration.clean_jobs, piece, allowed, before, len(deleted), is_last)
    return deleted
