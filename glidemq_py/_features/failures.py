"""Failures of a queue: failed attempts of a job, and failed jobs by reason and name (``lua/features/failures``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypedDict, Unpack

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import call, declared
from glidemq_py._core.calls.administration import set_settings
from glidemq_py._core.checks import check_choice, check_int, lists_options
from glidemq_py._core.keys import validate_job_name
from glidemq_py._core.misuse import check_keywords, known_methods
from glidemq_py._core.times import MAX_EPOCH_MS, epoch_ms, to_instant
from glidemq_py._features.failed_attempts import FIELD, FailedAttempt, FailureReason, read_failed_attempts, reason_named
from glidemq_py._features.failure_policy import FailurePolicies
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import ConnectedQueue, added, known
from glidemq_py.errors import GlideMQValidationError

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


class FailureCriteriaDict(TypedDict, total=False):
    """Which failed jobs: those that match all given criteria.

    Attributes:
        reason: only these reasons: one `FailureReason` or several; None = all.
        name: only jobs with this name.
        since: only jobs that failed at this time or later, epoch ms or datetime.
        until: only jobs that failed at this time or before, epoch ms or datetime.
    """

    reason: FailureReason | str | Iterable[FailureReason | str] | None
    name: str | None
    since: int | datetime | None
    until: int | datetime | None


_CRITERIA: Final = frozenset(FailureCriteriaDict.__annotations__)


def _filter(criteria: FailureCriteriaDict) -> Filter:
    check_keywords(criteria, _CRITERIA)
    reason, name = criteria.get("reason"), criteria.get("name")
    since, until = criteria.get("since"), criteria.get("until")
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


def _failure(link: QueueLink, row: FailureRow) -> Failure:
    return Failure(
        job_id=link.shown_id(row.id), name=row.name, reason=reason_named(row.reason), error=row.error,
        error_type=row.failed_type, failed_at=int(row.failed_at), attempts_made=int(row.attempts),
        auto_retries=int(row.retries), next_retry_at=int(row.next_retry) or None, expires_at=int(row.expires) or None,
    )  # fmt: skip


async def _failures(link: QueueLink, wanted: Filter) -> AsyncIterator[Failure]:
    cursor = ""
    seen_at, seen = -1, set[str]()
    while True:
        reply = await link.call(failures_page, *wanted, cursor, _LISTED)
        for row in reply.rows:
            failure = _failure(link, FailureRow(*row))
            # Only neighbors that failed at the same time can be repeated.
            if failure.failed_at != seen_at:
                seen_at, seen = failure.failed_at, set[str]()
            if failure.job_id not in seen:
                seen.add(failure.job_id)
                yield failure
        cursor = reply.cursor
        if not cursor:
            return


async def _stats(link: QueueLink) -> FailureStats:
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


async def _change(queue: ConnectedQueue, action: str, wanted: Filter) -> int:
    async def change(link: QueueLink) -> int:
        return sum([number async for number, _ in _pieces(link, action, wanted)])

    return sum(await queue._each(change, fresh=True))


async def change_failures_in_pieces(
    link: QueueLink, action: Literal["retry", "purge"], *, position: str = "", **criteria: Unpack[FailureCriteriaDict]
) -> AsyncGenerator[tuple[int, str]]:
    """Requeue or delete failed jobs, a hundred per call. Yield their number, and where to continue ('' = end)."""
    async for piece in _pieces(link, action, _filter(criteria), position):
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


async def read_attempts_of(link: QueueLink[JobTransport], job_id: str) -> list[FailedAttempt]:
    """Return the failed attempts of a job, oldest first; an empty list if none has failed or it does not exist."""
    text = await link.command("HGET", link.keys.job(job_id), FIELD)
    return read_failed_attempts(text.decode("utf-8", "replace")) if text else []


@known_methods
class Failures(FailurePolicies):
    """``queue.failures``: failed jobs by reason, and what happens to them."""

    __slots__ = ()

    async def get_attempts(self, job_id: str) -> list[FailedAttempt]:
        """Return the failed attempts of a job, oldest first, also those before a requeue.

        Args:
            job_id: Id of the job.
        """
        return await self._queue._of(job_id, read_attempts_of)

    @lists_options(FailureCriteriaDict, FailureCriteriaDict)
    def iter(self, **options: Unpack[FailureCriteriaDict]) -> AsyncIterator[Failure]:
        """Iterate over the failed jobs of the queue, oldest failure first.

        A job that stays failed is returned exactly once.

        Args:
            **options: which jobs, see `FailureCriteriaDict`.

        Raises:
            GlideMQValidationError: an argument is invalid.
        """
        wanted = _filter(options)
        return self._queue._in_turn(lambda link: _failures(link, wanted))

    @lists_options(FailureCriteriaDict, FailureCriteriaDict)
    async def get_all(self, *, limit: int = 100, **options: Unpack[FailureCriteriaDict]) -> list[Failure]:
        """Return the first ``limit`` failed jobs that match all given criteria, oldest failure first.

        Args:
            limit: maximum number of jobs, >= 1.
            **options: which jobs, see `FailureCriteriaDict`.

        Raises:
            GlideMQValidationError: an argument is invalid.
        """
        most = check_int("limit", limit, 1, 2**31)
        found: list[Failure] = []
        async for failure in self.iter(**options):
            found.append(failure)
            if len(found) == most:
                break
        return found

    async def get_stats(self) -> FailureStats:
        """Return how many jobs have failed, by reason and by job name. Reads counters, no jobs.

        Failures of Node workers are in ``kept``, but not in the counters.
        """
        found = await self._queue._each(_stats)
        return FailureStats(
            kept=sum(each.kept for each in found), oldest=min(known(each.oldest for each in found), default=None),
            newest=max(known(each.newest for each in found), default=None),
            awaiting_retry=sum(each.awaiting_retry for each in found),
            since=min(known(each.since for each in found), default=None), total=sum(each.total for each in found),
            by_reason=added(each.by_reason for each in found), by_name=added(each.by_name for each in found),
            counts=added(each.counts for each in found),
        )  # fmt: skip

    async def reset_stats(self) -> None:
        """Set the counters of `failures.get_stats` to 0. The failed jobs stay."""
        await self._queue._change(lambda link: link.call(set_settings, failureCounts=None))

    @lists_options(FailureCriteriaDict, FailureCriteriaDict)
    async def purge(self, **options: Unpack[FailureCriteriaDict]) -> int:
        """Delete the failed jobs that match all given criteria, in several short calls.

        An interrupted operation is continued by calling it again.

        Args:
            **options: which jobs, see `FailureCriteriaDict`.

        Returns:
            The number of deleted jobs.

        Raises:
            GlideMQValidationError: an argument is invalid.
        """
        return await _change(self._queue, "purge", _filter(options))

    @lists_options(FailureCriteriaDict, FailureCriteriaDict)
    async def retry(self, **options: Unpack[FailureCriteriaDict]) -> int:
        """Requeue the failed jobs that match all given criteria, with all their attempts, oldest failure first.

        Cancelled jobs are requeued only if ``reason`` has `FailureReason.CANCELLED`. A job stays failed while another
        job that has not ended has its deduplication id.

        Args:
            **options: which jobs, see `FailureCriteriaDict`.

        Returns:
            The number of requeued jobs.

        Raises:
            GlideMQValidationError: an argument is invalid.
        """
        return await _change(self._queue, "retry", _filter(options))
