"""The failed attempts of a job, which the server records (lua/features/failures/functions/_attempts.lua)."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from glidemq_py._job.job import Job

__all__ = ["FIELD", "FailedAttempt", "FailureReason", "get_failed_attempts", "read_failed_attempts"]

FIELD: Final = "failedAttempts"
_ITEMS: Final = 8


class FailureReason(StrEnum):
    """Why an attempt or a job failed."""

    EXPLICIT_FAIL = "explicit_fail"
    """The handler raised an error, or the job was revoked. Of a job: it was not retried, whatever its attempts."""
    MAX_ATTEMPTS_EXCEEDED = "max_attempts_exceeded"
    """The handler raised an error, and no attempt was left."""
    TIMEOUT = "timeout"
    """The attempt ran longer than the job's ``timeout``, or a suspended job got no signal in time."""
    STALLED = "stalled"
    """The lock of the job was not renewed while its worker was alive. Of a job: it stalled too often."""
    TTL_EXPIRED = "ttl_expired"
    """The job's ``ttl`` ended before it started."""
    WORKER_LOST = "worker_lost"
    """The worker died, or the process of a sandboxed handler did."""
    UNKNOWN = "unknown"
    """Another reason, such as a failed child; the error describes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """One failed attempt of a job.

    Attributes:
        number: Number of the attempt, counted like `Job.attempts_made`: from 1 again after a requeue. A stalled attempt
            is not counted, so the next one has the same number. 0 if the job failed before its first attempt.
        started_at: When it started, epoch ms; None if the job failed while no attempt was running.
        failed_at: When it failed, epoch ms.
        worker: Id of the worker; '' if none is known. Of a lease it is ``leases`` or ''.
        reason: Why it failed.
        error: Message of the error, at most 1,024 bytes.
        error_type: Name of the exception's type; '' if the handler raised none.
        traceback: The end of the traceback; '' without one.
    """

    number: int
    started_at: int | None
    failed_at: int
    worker: str
    reason: FailureReason
    error: str
    error_type: str = ""
    traceback: str = ""

    @property
    def duration(self) -> int | None:
        """Milliseconds from the start to the failure; None if no attempt was running."""
        return None if self.started_at is None else max(0, self.failed_at - self.started_at)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def reason_named(text: Any) -> FailureReason:
    """Return the reason with this name; UNKNOWN for names of later versions."""
    try:
        return FailureReason(text)
    except ValueError:
        return FailureReason.UNKNOWN


def read_failed_attempts(text: str) -> list[FailedAttempt]:
    """Return the attempts of the record's field, oldest first. Malformed lines are skipped."""
    found: list[FailedAttempt] = []
    for line in text.split("\n"):
        attempt = _attempt_of(line)
        if attempt is not None:
            found.append(attempt)
    return found


def _attempt_of(line: str) -> FailedAttempt | None:
    try:
        items: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(items, list):
        return None
    parts: list[Any] = items  # pyright: ignore[reportUnknownVariableType]
    if len(parts) < _ITEMS:
        return None
    number, started, ended, worker, reason, error, kind, trace = parts[:_ITEMS]
    times = [_count(value) for value in (number, started, ended)]
    texts = (worker, error, kind, trace)
    if None in times or not all(isinstance(value, str) for value in texts):
        return None
    return FailedAttempt(
        number=times[0] or 0, started_at=times[1] or None, failed_at=times[2] or 0, worker=worker,
        reason=reason_named(reason), error=error, error_type=kind, traceback=trace,
    )  # fmt: skip


def _count(value: Any) -> int | None:
    """Return a whole number; None for anything else. The server writes large numbers as 1.7e+12."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**53:
        return None
    return int(value)


async def get_failed_attempts(self: Job[Any, Any, Any]) -> list[FailedAttempt]:
    """Return the failed attempts of the job, oldest first, also those before a requeue.

    By default the last 20 are kept (`Queue.set_attempt_history`). Attempts that a Node worker ran are not recorded.

    Returns:
        The attempts; an empty list if none has failed or the job does not exist.
    """
    text = await self._link.transport.command("HGET", self._link.keys.job(self._stored_id), FIELD)
    return read_failed_attempts(text.decode("utf-8", "replace")) if text else []
