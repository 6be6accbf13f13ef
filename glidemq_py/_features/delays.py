"""Delays: changing when a job that has not started becomes due.

The job options `delay` and `run_at` are in `glidemq_py._core.job_options`.
The server's side is in lua/features/delays; lua/core/enqueue.lua places new jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import administration, call
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._partitions.link import QueueLink, change_job


@call("due_times", repeatable=True)
def due_times(ids: Sequence[str]) -> list[int]:
    """Return when each of at most 1,000 jobs is due, epoch ms; 0 if it is not delayed."""
    ...


async def change_job_delay(link: QueueLink[JobTransport], job_id: str, delay: Milliseconds) -> int:
    """Change the delay of a job that has not started, and return it in ms."""
    value = to_ms("delay", delay)
    await change_job(link, job_id, administration.change_delay(link.keys.meta, job_id, value), "change the delay of")
    return value


async def promote_job(link: QueueLink[JobTransport], job_id: str) -> None:
    """Make a delayed job ready to run."""
    await change_job(link, job_id, administration.promote(link.keys.meta, job_id), "promote")
