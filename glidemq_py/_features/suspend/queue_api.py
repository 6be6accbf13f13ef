"""Sending signals to jobs, and reading suspended jobs."""

from __future__ import annotations

from typing import Any

from glidemq_py._core.checks import check_bool, check_text
from glidemq_py._core.job_states import JobState
from glidemq_py._core.names import parse_job_id
from glidemq_py._core.payload import encode_json
from glidemq_py._core.record import JobRecord
from glidemq_py._features.suspend import job_api as suspending
from glidemq_py._features.suspend.job_api import MAX_SIGNAL_NAME, SuspendInfo, parse_signals
from glidemq_py._job import reading
from glidemq_py._job.job import Job
from glidemq_py._job.link import ConnectedQueue
from glidemq_py.errors import JobStateError

_FIELDS = ("state", "suspendReason", "suspendedAt", "suspendTimeout")


async def signal(self: ConnectedQueue, job_id: str, name: str, data: Any = None) -> bool:
    """Send a signal to a job, which resumes it if it is suspended.

    If the job has not ended and is not suspended, the signal is stored and resumes the job as soon as it is
    suspended.

    Args:
        job_id: id of the job.
        name: name of the signal, at most 256 characters.
        data: any JSON value (the serializer of the queue is not used); None = no data.

    Returns:
        True if the job received the signal; False if the job does not exist or has ended.

    Raises:
        JobStateError: the job already stores 1,000 signals, or 1 MiB of them.
        PayloadTooLargeError: ``data`` is too large; nothing was sent.
        SerializationError: ``data`` is not JSON; nothing was sent.
        GlideMQValidationError: ``job_id`` or ``name`` is invalid; nothing was sent.
        AmbiguousResultError: the reply was lost. If you send the signal again, the job may receive it twice.
    """
    return await send_signal(self, job_id, name, data) in ("resumed", "kept")


async def send_signal(queue: ConnectedQueue, job_id: str, name: str, data: Any) -> str:
    """Send a signal and return 'resumed', 'kept', 'ended' or 'gone'; see `signal` for the errors."""
    key = parse_job_id(job_id)
    check_text("name", name, maximum=MAX_SIGNAL_NAME)
    text = "" if data is None else encode_json("data", data)
    link = await queue._connected()
    outcome = await link.call(suspending.signal, key, name, text)
    if outcome == "full":
        raise JobStateError(key, "at its limit of 1,000 signals or 1 MiB", "signal")
    return outcome


async def get_suspended_jobs(
    self: ConnectedQueue, start: int = 0, end: int = -1, *, exclude_data: bool = False
) -> list[Job[Any, Any]]:
    """Return suspended jobs, earliest timeout first. The arguments are those of `Queue.get_jobs`."""
    bare = check_bool("exclude_data", exclude_data)
    return await reading.get_slice(await self._connected(), JobState.SUSPENDED, start, end, bare=bare)


async def get_suspend_info(self: ConnectedQueue, job_id: str) -> SuspendInfo | None:
    """Return details of a suspended job; None if the job does not exist or is not suspended."""
    link, key = await self._connected(), parse_job_id(job_id)
    values = await link.command("HMGET", link.keys.job(key), *_FIELDS)
    fields = {
        name: None if value is None else value.decode("utf-8", "replace")
        for name, value in zip(_FIELDS, values, strict=True)
    }
    record = JobRecord.parse(key, fields)
    if record.state is not JobState.SUSPENDED:
        return None
    entries = await link.command("LRANGE", link.keys.signals(key), "0", "-1")
    return SuspendInfo(
        reason=record.suspend_reason, suspended_at=record.suspended_at or 0, timeout=record.suspend_timeout,
        signals=parse_signals(entry.decode("utf-8", "replace") for entry in entries),
    )  # fmt: skip
