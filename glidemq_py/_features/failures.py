"""Failures of a queue: failed attempts of a job, and failed jobs by reason and name (``lua/features/failures``)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from glidemq_py._core.calls import declared
from glidemq_py._core.calls.administration import set_settings
from glidemq_py._core.calls.declaration import call
from glidemq_py._core.checks import check_choice, check_int
from glidemq_py._core.job_states import JobState
from glidemq_py._core.names import parse_job_id, validate_job_name
from glidemq_py._core.times import MAX_EPOCH_MS, epoch_ms, to_instant
from glidemq_py._job.link import ConnectedQueue, QueueLink
from glidemq_py.errors import GlideMQValidationError, JobRevokedError

if TYPE_CHECKING:
    from glidemq_py._job.job import Job
    from glidemq_py._job.job_twin import BlockingJob

FIELD: Final = "failedAttempts"
_ITEMS: Final = 8
_RECOVERED: Final = "the lock of the job was not renewed"
"""Error of an attempt whose job was recovered to run again; the server writes it (F.stalled)."""


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


async def get_failed_attempts(self: Job[Any, Any, Any]) -> list[FailedAttempt]:
    """Return the failed attempts of the job, oldest first, also those before a requeue.

    By default the last 20 are kept (`Queue.set_attempt_history`). Attempts that a Node worker ran are not recorded.

    Returns:
        The attempts; an empty list if none has failed or the job does not exist.
    """
    text = await self._link.command("HGET", self._link.keys.job(self._stored_id), FIELD)
    return read_failed_attempts(text.decode("utf-8", "replace")) if text else []


# -- what the attempts show about the job -----------------------------------------------------------------


def last_start(job: Job[Any, Any, Any] | BlockingJob[Any, Any], attempts: Sequence[FailedAttempt]) -> int | None:
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


def last_run_time(job: Job[Any, Any, Any] | BlockingJob[Any, Any], attempts: Sequence[FailedAttempt]) -> int | None:
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


Filter = tuple[Sequence[str], str | bool, int | bool, int | bool]
"""Reasons (empty = all), name, and the first and last time of the failure, epoch ms; False = any."""


@declared("failure")
class FailureRow(NamedTuple):
    """A failed job in the reply of `failures_page`."""

    id: str
    name: str
    reason: str
    error: str
    failed_type: str
    failed_at: int
    attempts: int
    retries: int
    next_retry: int | bool
    expires: int | bool


class PageReply(NamedTuple):
    """Reply of `failures_page`."""

    rows: list[list[Any]]
    cursor: str


class ChangeReply(NamedTuple):
    """Reply of `failures_change`."""

    changed: int
    cursor: str
    high: int
    """Last time of a failure to include, for the next call."""


class StatsReply(NamedTuple):
    """Reply of `failure_stats`."""

    kept: int
    oldest: int
    newest: int
    retries: int
    counts: list[str]


@call("failures_page", repeatable=True)
def failures_page(
    reasons: Sequence[str], name: str | bool, low: int | bool, high: int | bool, cursor: str, count: int
) -> PageReply:
    """Return failed jobs of a `Filter` after ``cursor`` ('' = the first), oldest first; ``count`` of them are read."""
    ...


@call("failures_change")
def failures_change(
    action: str, reasons: Sequence[str], name: str | bool, low: int | bool, high: int | bool, cursor: str, count: int,
    total: int,
) -> ChangeReply:  # fmt: skip
    """Requeue ('retry') or delete ('purge') failed jobs of a `Filter`; the event has ``total`` of the calls before."""
    ...


@call("failure_stats", repeatable=True)
def failure_stats() -> StatsReply:
    """Return the numbers of failed jobs."""
    ...


_PAGE: Final = 100
"""Jobs changed per call: one or two milliseconds of server time."""
_LISTED: Final = 50
"""Jobs listed per call, about a millisecond."""
_REASONS: Final = tuple(map(str, FailureReason))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed job of a queue.

    Attributes:
        job_id: Id of the job; `Queue.get_job` returns the job.
        name: Name of the job.
        reason: Why it failed.
        error: Message of the last error.
        error_type: Name of the exception's type; '' if the handler raised none.
        failed_at: When it failed, epoch ms.
        attempts_made: Number of failed attempts since it was added or requeued.
        auto_retries: How often the failure policy has requeued it since it was added or requeued by hand.
        next_retry_at: When the failure policy will requeue it, epoch ms; None = not.
        expires_at: When the failure policy will delete it for its age, epoch ms; None = not.
    """

    job_id: str
    name: str
    reason: FailureReason
    error: str
    error_type: str
    failed_at: int
    attempts_made: int
    auto_retries: int
    next_retry_at: int | None
    expires_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStats:
    """How many jobs of a queue have failed.

    Attributes:
        kept: Number of failed jobs that the queue keeps now.
        oldest: When the first of them failed, epoch ms; None without one.
        newest: When the last of them failed, epoch ms; None without one.
        awaiting_retry: Number of jobs that the failure policy will requeue, as of its last round.
        since: Start of the counters below, epoch ms; None if no job has failed.
        total: Number of jobs that have failed since then, the deleted and requeued ones included.
        by_reason: The same by reason.
        by_name: The same by job name. Beyond 1,000 pairs of reason and name, jobs of further names have the name ''.
        counts: The same by reason and name.
    """

    kept: int
    oldest: int | None
    newest: int | None
    awaiting_retry: int
    since: int | None
    total: int
    by_reason: dict[FailureReason, int]
    by_name: dict[str, int]
    counts: dict[tuple[FailureReason, str], int]


def _filter(
    reason: str | Iterable[str] | None, name: str | None, since: int | datetime | None, until: int | datetime | None
) -> Filter:
    given = () if reason is None else (reason,) if isinstance(reason, str) else reason
    if not isinstance(given, Collection):
        raise GlideMQValidationError("reason", given, "must be a FailureReason or a collection of them")
    reasons = [str(check_choice("reason", each, _REASONS)) for each in given]
    if reason is not None and not reasons:
        raise GlideMQValidationError("reason", given, "must not be empty")
    low = False if since is None else _time("since", since)
    high = False if until is None else _time("until", until)
    if since is not None and until is not None and low > high:
        raise GlideMQValidationError("until", until, "must not be before 'since'")
    return reasons, False if name is None else validate_job_name(name), low, high


def _time(option: str, value: int | datetime) -> int:
    if not isinstance(value, datetime):
        return check_int(option, value, 0, MAX_EPOCH_MS, unit=" (epoch ms) or a datetime")
    return epoch_ms(to_instant(option, value))


def _failure(row: FailureRow) -> Failure:
    return Failure(
        job_id=row.id, name=row.name, reason=reason_named(row.reason), error=row.error, error_type=row.failed_type,
        failed_at=int(row.failed_at), attempts_made=int(row.attempts), auto_retries=int(row.retries),
        next_retry_at=int(row.next_retry) or None, expires_at=int(row.expires) or None,
    )  # fmt: skip


async def iter_failures(
    self: ConnectedQueue,
    *,
    reason: FailureReason | str | Iterable[FailureReason | str] | None = None,
    name: str | None = None,
    since: int | datetime | None = None,
    until: int | datetime | None = None,
) -> AsyncIterator[Failure]:
    """Iterate over the failed jobs of the queue, oldest failure first.

    A job that stays failed is returned exactly once.

    Args:
        reason: only these reasons: one `FailureReason` or several; None = all.
        name: only jobs with this name.
        since: only jobs that failed at this time or later, epoch ms or datetime.
        until: only jobs that failed at this time or before, epoch ms or datetime.

    Raises:
        GlideMQValidationError: an argument is invalid.
    """
    wanted = _filter(reason, name, since, until)
    link, cursor = await self._connected(), ""
    seen_at, seen = -1, set[str]()
    while True:
        reply = await link.call(failures_page, *wanted, cursor, _LISTED)
        for row in reply.rows:
            failure = _failure(FailureRow(*row))
            # Only neighbors that failed at the same time can be repeated.
            if failure.failed_at != seen_at:
                seen_at, seen = failure.failed_at, set[str]()
            if failure.job_id not in seen:
                seen.add(failure.job_id)
                yield failure
        cursor = reply.cursor
        if not cursor:
            return


async def get_failures(
    self: ConnectedQueue,
    *,
    reason: FailureReason | str | Iterable[FailureReason | str] | None = None,
    name: str | None = None,
    since: int | datetime | None = None,
    until: int | datetime | None = None,
    limit: int = 100,
) -> list[Failure]:
    """Return the first ``limit`` failed jobs that match all given criteria, oldest failure first.

    Args:
        reason: only these reasons: one `FailureReason` or several; None = all.
        name: only jobs with this name.
        since: only jobs that failed at this time or later, epoch ms or datetime.
        until: only jobs that failed at this time or before, epoch ms or datetime.
        limit: maximum number of jobs, >= 1.

    Raises:
        GlideMQValidationError: an argument is invalid.
    """
    most = check_int("limit", limit, 1, 2**31)
    found: list[Failure] = []
    async for failure in iter_failures(self, reason=reason, name=name, since=since, until=until):
        found.append(failure)
        if len(found) == most:
            break
    return found


async def get_failure_stats(self: ConnectedQueue) -> FailureStats:
    """Return how many jobs have failed, by reason and by job name. Reads counters, no jobs.

    Failures of Node workers are in ``kept``, but not in the counters.
    """
    link = await self._connected()
    reply = await link.call(failure_stats)
    since: int | None = None
    counts: dict[tuple[FailureReason, str], int] = {}
    for field, text in zip(reply.counts[::2], reply.counts[1::2], strict=True):
        number = int(text) if text.isdecimal() and len(text) <= 15 else 0
        reason, separator, name = field.partition("|")
        if field == "since":
            since = number
        elif separator and number:
            key = reason_named(reason), name
            counts[key] = counts.get(key, 0) + number
    by_reason: dict[FailureReason, int] = {}
    by_name: dict[str, int] = {}
    for (why, name), number in counts.items():
        by_reason[why] = by_reason.get(why, 0) + number
        by_name[name] = by_name.get(name, 0) + number
    return FailureStats(
        kept=reply.kept, oldest=_known(reply.oldest), newest=_known(reply.newest), awaiting_retry=reply.retries,
        since=since, total=sum(counts.values()), by_reason=by_reason, by_name=by_name, counts=counts,
    )  # fmt: skip


def _known(time: float) -> int | None:
    return None if time < 0 else int(time)


async def reset_failure_stats(self: ConnectedQueue) -> None:
    """Set the counters of `get_failure_stats` to 0. The failed jobs stay."""
    link = await self._connected()
    await link.call(set_settings, failureCounts=None)


async def purge_failures(
    self: ConnectedQueue,
    *,
    reason: FailureReason | str | Iterable[FailureReason | str] | None = None,
    name: str | None = None,
    since: int | datetime | None = None,
    until: int | datetime | None = None,
) -> int:
    """Delete the failed jobs that match all given criteria, in several short calls.

    An interrupted operation is continued by calling it again.

    Args:
        reason: only these reasons: one `FailureReason` or several; None = all.
        name: only jobs with this name.
        since: only jobs that failed at this time or later, epoch ms or datetime.
        until: only jobs that failed at this time or before, epoch ms or datetime.

    Returns:
        The number of deleted jobs.

    Raises:
        GlideMQValidationError: an argument is invalid.
    """
    return await _change(self, "purge", _filter(reason, name, since, until))


async def retry_failures(
    self: ConnectedQueue,
    *,
    reason: FailureReason | str | Iterable[FailureReason | str] | None = None,
    name: str | None = None,
    since: int | datetime | None = None,
    until: int | datetime | None = None,
) -> int:
    """Requeue the failed jobs that match all given criteria, with all their attempts, oldest failure first.

    Cancelled jobs are requeued only if ``reason`` has `FailureReason.CANCELLED`. A job stays failed while another
    job that has not ended has its deduplication id.

    Args:
        reason: only these reasons: one `FailureReason` or several; None = all.
        name: only jobs with this name.
        since: only jobs that failed at this time or later, epoch ms or datetime.
        until: only jobs that failed at this time or before, epoch ms or datetime.

    Returns:
        The number of requeued jobs.

    Raises:
        GlideMQValidationError: an argument is invalid.
    """
    return await _change(self, "retry", _filter(reason, name, since, until))


async def _change(queue: ConnectedQueue, action: str, wanted: Filter) -> int:
    return sum([number async for number, _ in _pieces(await queue._connected(), action, wanted)])


async def change_failures_in_pieces(
    link: QueueLink, action: Literal["retry", "purge"], *, reason: Iterable[FailureReason | str] | None = None,
    name: str | None = None, since: int | None = None, until: int | None = None, position: str = "",
) -> AsyncGenerator[tuple[int, str]]:  # fmt: skip
    """Requeue or delete failed jobs, a hundred per call. Yield their number, and where to continue ('' = end)."""
    async for piece in _pieces(link, action, _filter(reason, name, since, until), position):
        yield piece


async def _pieces(link: QueueLink, action: str, wanted: Filter, position: str = "") -> AsyncGenerator[tuple[int, str]]:
    changed, high, cursor = 0, wanted[3], ""
    if position:  # the first call has limited the change to the jobs that had failed by then
        high_text, _, cursor = position.partition(" ")
        high = int(high_text)
    while True:
        reply = await link.call(failures_change, action, *wanted[:3], high, cursor, _PAGE, changed)
        changed, cursor, high = changed + reply.changed, reply.cursor, reply.high
        yield reply.changed, f"{high} {cursor}" if cursor else ""
        if not cursor:
            return


async def get_job_attempts(self: ConnectedQueue, job_id: str) -> list[FailedAttempt]:
    """Return the failed attempts of a job, oldest first; see `Job.get_failed_attempts`.

    Args:
        job_id: Id of the job.
    """
    link = await self._connected()
    text = await link.command("HGET", link.keys.job(parse_job_id(job_id)), FIELD)
    return read_failed_attempts(text.decode("utf-8", "replace")) if text else []
