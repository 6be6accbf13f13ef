"""Iterate over the finished jobs of a queue from the newest on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from glidemq_py._core.calls import pieces
from glidemq_py._core.job_states import JobState
from glidemq_py._features.failures import Failure
from glidemq_py._job.job import Job
from glidemq_py._job.reading import ROWS_A_CALL, read_jobs
from glidemq_py._operate.conversion import score_of, summary_of
from glidemq_py._operate.operating import JobFilter, Operator
from glidemq_py._operate.snapshots import JobSummary
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQValidationError

_FINISHED: Final = (JobState.COMPLETED, JobState.FAILED)


async def iter_newest_jobs(operator: Operator, queue: str, wanted: JobFilter) -> AsyncIterator[JobSummary]:
    """Iterate over the jobs that match a filter, the last one that finished first.

    Raises:
        GlideMQValidationError: The state of the filter is not completed or failed.
    """
    state = wanted.state
    if state is None or state not in _FINISHED:
        raise GlideMQValidationError("state", state, "must be 'completed' or 'failed' to list the newest jobs")
    links = await operator.links(queue)
    async for low, high in _windows(links, state):
        found: list[Job[Any, Any]] = []
        for link in links:
            key = _key(link, state)
            ids: Any = await link.command("ZRANGE", key, str(high), str(low), "BYSCORE", "REV")
            names = [each.decode() if isinstance(each, bytes) else str(each) for each in ids]
            for piece in pieces(names, ROWS_A_CALL):
                found += await read_jobs(link, piece)
        matching = [job for job in found if job.state == state and wanted.matches(job)]
        for job in sorted(matching, key=lambda each: -(each.finished_on or 0)):
            yield summary_of(job)


async def iter_newest_failures(operator: Operator, queue: str, **criteria: Any) -> AsyncIterator[Failure]:
    """Iterate over the failed jobs of a queue, the last failure first.

    ``criteria`` are those of `Queue.failures.iter`; ``since`` and ``until`` are epoch ms.
    """
    since, until = criteria.pop("since", None), criteria.pop("until", None)
    links = await operator.links(queue)
    async for low, high in _windows(links, JobState.FAILED, since or 0, until):
        until_ms = high if isinstance(high, int) else None
        of = [each async for each in operator.iter_failures(queue, since=low, until=until_ms, **criteria)]
        of.sort(key=lambda each: each.failed_at)
        for failure in reversed(of):
            yield failure


async def _windows(
    links: list[QueueLink], state: str, since: int = 0, until: int | None = None
) -> AsyncIterator[tuple[int, int | str]]:
    """Yield periods in which about `ROWS_A_CALL` jobs finished, at least 10 per partition, the latest first.

    A period is (first, last) in epoch ms, both included; the last of the latest one is "+inf". Jobs that finish
    meanwhile may be missing.
    """
    high: int | str = "+inf" if until is None else until
    count = max(10, ROWS_A_CALL // len(links))
    while True:
        low = since
        for link in links:
            limit = ("LIMIT", str(count - 1), "1", "WITHSCORES")
            command = ("ZRANGE", _key(link, state), str(high), str(since), "BYSCORE", "REV", *limit)
            oldest: Any = await link.command(*command)
            if oldest:
                low = max(low, score_of(oldest))
        yield low, high
        if low <= since:
            return
        high = low - 1


def _key(link: QueueLink, state: str) -> str:
    return link.keys.completed if state == JobState.COMPLETED else link.keys.failed
