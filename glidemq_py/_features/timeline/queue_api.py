"""The methods of `Queue` that set and read timelines."""

from __future__ import annotations

from glidemq_py._core.names import parse_job_id
from glidemq_py._features.timeline.timeline import (
    TimelineEntry,
    TimelineSetting,
    check_entries,
    check_sample,
    read_job_timeline,
    read_timeline_setting,
    set_call,
)
from glidemq_py._job.link import ConnectedQueue
from glidemq_py.errors import GlideMQValidationError

__all__ = ["get_job_timeline", "get_timeline_setting", "set_timeline"]


async def set_timeline(self: ConnectedQueue, sample: float = 1.0, *, max_entries: int | None = None) -> None:
    """Record every change of the jobs' states, with time and worker, or stop recording.

    Off by default. Timelines that exist are kept.

    Args:
        sample: fraction of the jobs that have a timeline, 0.0 to 1.0; 0 = off. Jobs are chosen by their id.
        max_entries: number of newest transitions that a job keeps, 1..1_000; None = 50. Requires a ``sample`` > 0.

    Raises:
        GlideMQValidationError: an argument is invalid or has no effect.
    """
    share = check_sample(sample)
    entries = TimelineSetting().max_entries if max_entries is None else check_entries(max_entries)
    if max_entries is not None and not share:
        raise GlideMQValidationError("max_entries", max_entries, "requires a 'sample' > 0: no timelines are recorded")
    link = await self._connected()
    await link.transport.call(set_call(link.keys.meta, f"{share}|{entries}" if share else None))


async def get_timeline_setting(self: ConnectedQueue) -> TimelineSetting:
    """Return whether and how the queue records timelines."""
    link = await self._connected()
    return read_timeline_setting(await link.transport.command("HGET", link.keys.meta, "timeline"))


async def get_job_timeline(self: ConnectedQueue, job_id: str) -> list[TimelineEntry]:
    """Return the changes of a job's state, oldest first; see `Job.get_timeline`.

    Args:
        job_id: Id of the job.
    """
    return await read_job_timeline(await self._connected(), parse_job_id(job_id))
