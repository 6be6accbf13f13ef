"""The failed attempts of a job, which the server records (lua/features/failures/functions/_attempts.lua)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, Protocol

from glidemq_py._core.record import JobState
from glidemq_py.errors import JobRevokedError

FIELD: Final = "failedAttempts"
_ITEMS: Final = 8
_RECOVERED: Final = "the lock of the job was not renewed"
"""Error of an attempt whose job was recovered to run again; the server writes it (F.stalled)."""


class RunJob(Protocol):
    """A `Job` or `BlockingJob`, as `last_start` and `last_run_time` read it."""

    @property
    def state(self) -> JobState | None: ...

    @property
    def attempts_made(self) -> int: ...

    @property
    def processed_on(self) -> int | None: ...

    @property
    def finished_on(self) -> int | None: ...


class FailureReason(StrEnum):
    """Why an attempt or a job failed."""

    EXPLICIT_FAIL = "explicit_fail"
    """The handler raised an error. Of a job: it was not retried, even if attempts are left."""
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
    CHILD_FAILED = "child_failed"
    """A child of the job failed, and its policy fails its parents."""
    CANCELLED = "cancelled"
    """The job was cancelled (revoked)."""
    UNKNOWN = "unknown"
    """Another reason; the error describes it."""

    @property
    def words(self) -> str:
        """The reason as pages and commands show it, with plain words for an error of a handler."""
        return _WORDS.get(self, self.value)


_WORDS: Final = {
    FailureReason.EXPLICIT_FAIL: "error", FailureReason.MAX_ATTEMPTS_EXCEEDED: "error, last attempt",
}  # fmt: skip


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


def is_cancelled(failed_reason: str | None, failed_type: str | None) -> bool:
    """Return True if these fields of a failed job are those of a cancelled one, whichever library cancelled it."""
    return failed_reason == "revoked" and failed_type in (None, "", JobRevokedError.__name__)


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


# -- what the attempts show about the job -----------------------------------------------------------------


def last_start(job: RunJob, attempts: Sequence[FailedAttempt]) -> int | None:
    """Return when the last attempt of a job started, epoch ms; None before the first, or if it is unknown.

    A failure overwrites `processedOn` with its own time, as glide-mq does. Then only the record of the attempt has the
    start. A job that a Node worker failed has no such record.

    Args:
        job: The job, with its record.
        attempts: Its failed attempts, oldest first; empty if they were not read.
    """
    at = job.processed_on
    if at is None or job.state in (JobState.ACTIVE, JobState.COMPLETED):
        return at
    for attempt in reversed(attempts):
        if attempt.failed_at == at:
            return attempt.started_at
    if any(attempt.started_at == at for attempt in attempts):
        return at
    # Otherwise it is a start only if the last failure that the job counts is among the attempts.
    is_complete = not job.attempts_made or (attempts and _failures_up_to(attempts[-1]) == job.attempts_made)
    return at if is_complete and at != job.finished_on else None


def last_run_time(job: RunJob, attempts: Sequence[FailedAttempt]) -> int | None:
    """Return how many ms the attempt ran that ended the job; None if the job has not ended or this is unknown."""
    ended = job.finished_on
    if not ended:
        return None
    if job.state is JobState.COMPLETED:
        return None if job.processed_on is None else max(0, ended - job.processed_on)
    return next((attempt.duration for attempt in reversed(attempts) if attempt.failed_at == ended), None)


def requeues(state: JobState | None, attempts_made: int, attempts: Sequence[FailedAttempt]) -> frozenset[int]:
    """Return the indexes of the attempts before which the job was requeued, by hand or by the failure policy.

    A requeue leaves no entry of its own. It shows because the numbers of the attempts start again, or because an
    attempt follows the end of the job. The number of attempts is included if the job was requeued after the last one.

    Args:
        state: State of the job.
        attempts_made: Its number of failed attempts since the last requeue.
        attempts: Its failed attempts, oldest first.
    """
    found = {
        index
        for index, (before, attempt) in enumerate(pairwise(attempts), 1)
        if _is_end(before) or _failures_before(attempt) < _failures_up_to(before)
    }
    # A revoked attempt is recorded, but not counted, so the numbers of a failed job show nothing.
    if attempts and state is not JobState.FAILED:
        last = attempts[-1]
        if _is_end(last) or attempts_made < _failures_up_to(last):
            found.add(len(attempts))
    return frozenset(found)


def _is_recovered(attempt: FailedAttempt) -> bool:
    return attempt.error == _RECOVERED and not attempt.error_type


def _is_end(attempt: FailedAttempt) -> bool:
    """Return True if the job failed while no attempt was running."""
    return attempt.started_at is None and not _is_recovered(attempt)


def _failures_before(attempt: FailedAttempt) -> int:
    """Return how many failed attempts the job counted before this one."""
    return attempt.number if _is_end(attempt) else attempt.number - 1


def _failures_up_to(attempt: FailedAttempt) -> int:
    """Return how many failed attempts the job counted after this one, which does not count if the job was recovered."""
    return attempt.number - 1 if _is_recovered(attempt) else attempt.number
