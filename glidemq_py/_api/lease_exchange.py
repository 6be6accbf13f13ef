"""Fetches and reports leases: builds the rows of an exchange, and processes its reply."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from glidemq_py._client.runtime import uncancelled
from glidemq_py._core.calls import Call, administration, pieces, working
from glidemq_py._core.calls.working import (
    AttemptStatus,
    BudgetVerdicts,
    ExchangeFlags,
    ExchangeReply,
    Expiry,
    Finished,
    Leasing,
    WakeChannel,
)
from glidemq_py._core.job_options import read_stored_options
from glidemq_py._core.logs import get_logger, show_id
from glidemq_py._core.option_values import is_retried, kept, retry_delay
from glidemq_py._core.payload import PAYLOAD_LIMIT, encode_result
from glidemq_py._core.queue_options import Serializer
from glidemq_py._core.times import to_ms
from glidemq_py._features.leases import CONSUMER, LeaseFacts
from glidemq_py._features.outbox import Outbox
from glidemq_py._job.attempt import stored_text, unstored_error
from glidemq_py._job.job import Job
from glidemq_py._job.reports import (
    StoredFacts,
    budget_charges,
    budget_elsewhere,
    failed_row,
    refusal,
    signal_row,
    stored_facts,
    token_of,
)
from glidemq_py._job.run import Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import ConnectedQueue
from glidemq_py.errors import (
    AmbiguousResultError,
    GlideMQError,
    GlideMQValidationError,
    JobRevokedError,
    JobSignal,
)
from glidemq_py.telemetry.state import TELEMETRY

_log = get_logger(__name__)
_failures = get_logger("glidemq_py.failures")

ROWS_PER_CALL: Final = 500
_MESSAGE_CHARS: Final = 300
_OK: Final = int(AttemptStatus.OK)
_OUTBOX_PENDING: Final = int(ExchangeFlags.OUTBOX_PENDING)


class LeaseOutcome(StrEnum):
    """The effect of a report or extension of a lease."""

    COMPLETED = "completed"
    RETRYING = "retrying"
    """The attempt failed, and the job will be retried."""
    FAILED = "failed"
    RELEASED = "released"
    DELAYED = "delayed"
    SUSPENDED = "suspended"
    WAITING_CHILDREN = "waiting-children"
    EXTENDED = "extended"
    REVOKED = "revoked"
    """The lease is extended, but the job was revoked: end it with ``fail(JobRevokedError())``."""
    LOST = "lost"
    """Nothing was changed: the lease expired, or its timeout passed."""
    GONE = "gone"
    """Nothing was changed: the job does not exist any more."""

    @property
    def applied(self) -> bool:
        """False if nothing was changed: the lease was lost, or its job removed."""
        return self not in (LeaseOutcome.LOST, LeaseOutcome.GONE)


_OUTCOMES: Final[dict[int, LeaseOutcome]] = {
    AttemptStatus.OK: LeaseOutcome.COMPLETED,
    AttemptStatus.RETRYING: LeaseOutcome.RETRYING,
    AttemptStatus.FAILED: LeaseOutcome.FAILED,
    AttemptStatus.RELEASED: LeaseOutcome.RELEASED,
    AttemptStatus.DELAYED: LeaseOutcome.DELAYED,
    AttemptStatus.LIMITED: LeaseOutcome.DELAYED,
    AttemptStatus.SUSPENDED: LeaseOutcome.SUSPENDED,
    AttemptStatus.WAITING_CHILDREN: LeaseOutcome.WAITING_CHILDREN,
    AttemptStatus.GONE: LeaseOutcome.GONE,
}


@dataclass(slots=True)  # not frozen: that takes as long to create as several other steps of a fetch
class FetchOptions:
    """Validated arguments of a fetch."""

    count: int
    lock_duration: int
    owner: str
    expiry: Expiry


class Report(NamedTuple):
    """A row to report."""

    row: Finished
    limit: int
    """When the timeout of the job ends, epoch ms; 0 = none."""
    run: Run | None
    error: object = None

    @property
    def job(self) -> Job | None:
        """The job, unless the lease was made from a token."""
        return None if self.run is None else self.run.job

    @property
    def attempts_made(self) -> int:
        """Failed attempts before this one, as far as known."""
        return 0 if self.run is None else self.run.job.attempts_made


# -- rows ------------------------------------------------------------------------------------------------------


def completed_row(
    serializer: Serializer, facts: LeaseFacts, result: Any, run: Run | None = None, limit: int = PAYLOAD_LIMIT
) -> working.Completed:
    """Return the row of a completed lease.

    Args:
        serializer: Serializes the result.
        facts: What identifies the lease.
        result: The result.
        run: The job, unless the lease was made from a token.
        limit: Maximum size of the result, bytes.

    Raises:
        SerializationError: If the result cannot be serialized.
        PayloadTooLargeError: If the result is too large.
    """
    text = "null" if result is None else encode_result(result, serializer, limit)
    job_id, entry, fence, processed_on, _, keep = facts
    kind = facts.completion if run is None else run.completion
    return working.Completed(kind, job_id, entry, fence, processed_on, text, keep)


def released_row(facts: LeaseFacts) -> Finished:
    """Return the row of a released lease."""
    return working.released(facts.id, facts.entry, facts.fence, facts.processed_on)


def returned_row(facts: LeaseFacts) -> Finished:
    """Return the row of a lease that no client has got: its job returns to the front of the queue."""
    return working.returned(facts.id, facts.entry, facts.fence, facts.processed_on)


async def failed_rows(
    link: QueueLink, failures: Sequence[tuple[LeaseFacts, Run | None, Any]], retry: bool
) -> list[Finished]:  # fmt: skip
    """Return the rows of failed leases, from their facts, runs and errors.

    Jobs of leases that were made from a token, which have no run, are read first.

    Raises:
        GlideMQValidationError: If an error is neither an exception nor a string.
    """
    unknown = [facts.id for facts, run, _ in failures if run is None]
    known = await _read_stored(link, unknown) if unknown else {}
    rows: list[Finished] = []
    for facts, run, error in failures:
        stored = known.get(facts.id) if run is None else stored_facts(run)
        try:
            row = _failed_row(link, facts, run, stored, error, retry)
        except GlideMQError:
            raise
        except BaseException as raised:  # by the error, which is an object of the application
            unstored = unstored_error("error of the lease", raised)
            row = _failed_row(link, facts, run, stored, unstored, retry)
        rows.append(row)
    return rows


async def _read_stored(link: QueueLink, ids: list[str]) -> dict[str, StoredFacts]:
    fields = ("opts", "attemptsMade", "stacktrace")
    found: dict[str, StoredFacts] = {}
    for piece in pieces(ids, ROWS_PER_CALL):
        for job_id, (opts, made, stacktrace) in await link.call(administration.records, piece, fields):
            text = opts if isinstance(opts, str) else "{}"
            count = int(made) if isinstance(made, str) and made.isdecimal() else 0
            found[job_id] = StoredFacts(read_stored_options(text), text, count, stacktrace)
    return found


def _failed_row(
    link: QueueLink, facts: LeaseFacts, run: Run | None, stored: StoredFacts | None, error: object, retry: bool
) -> Finished:
    if isinstance(error, JobSignal):
        if run is None:
            raise GlideMQValidationError("error", error, "a signal needs a lease that this process has fetched")
        return signal_row(link, run, error, 1_000, kept(run.options.remove_on_fail))
    if not isinstance(error, (str, BaseException)):
        raise GlideMQValidationError("error", error, f"must be an exception or a string, not {type(error).__name__}")
    stored = stored or StoredFacts(read_stored_options("{}"), "{}", 0, None)
    options = stored.options
    failure = error if isinstance(error, BaseException) else GlideMQError(stored_text(error))
    discarded = run is not None and run.attempt.discarded
    delay = None
    if retry and not discarded and is_retried(failure, None, ()):
        delay = retry_delay(options.backoff, stored.attempts_made + 1, failure, None) if options.attempts else 0
    return failed_row(facts[:4], stored, error, delay, kept(options.remove_on_fail))


# -- the call --------------------------------------------------------------------------------------------------


class Exchanged(NamedTuple):
    """Result of `exchange`."""

    outcomes: list[LeaseOutcome]
    """One per report."""
    runs: list[Run]
    """The jobs that were fetched."""
    next_due: int
    """In how many ms the next job is due; -1 = unknown."""
    now: int
    """Time of the server, epoch ms."""


async def exchange(
    queue: ConnectedQueue, reports: Sequence[Report], fetch: FetchOptions | None = None,
    channel: WakeChannel | None = None,
) -> Exchanged:  # fmt: skip
    """Report leases, and fetch others with the last call.

    Args:
        queue: The queue; with reports, those of a queue that has partitions by now are for its first one.
        reports: Any number; at most `ROWS_PER_CALL` per call.
        fetch: What to fetch, or None.
        channel: Is registered if no further job is ready: the next push publishes a message there.

    Raises:
        AmbiguousResultError: If the reply was lost twice.
    """
    link = await queue._first_connected()
    outcomes: list[LeaseOutcome] = []
    found = Exchanged([], [], -1, 0)
    for start in range(0, max(1, len(reports)), ROWS_PER_CALL):
        piece = reports[start : start + ROWS_PER_CALL]
        is_last = start + ROWS_PER_CALL >= len(reports)
        found = await _call(queue, link, piece, fetch if is_last else None, channel)
        outcomes += found.outcomes
    return found._replace(outcomes=outcomes)


async def _call(
    queue: ConnectedQueue, link: QueueLink, reports: Sequence[Report], fetch: FetchOptions | None,
    channel: WakeChannel | None,
) -> Exchanged:  # fmt: skip
    reply, outcomes = await exchange_rows(queue, link, reports, fetch, channel)
    runs = _runs_of(link, reply)
    if reply.budgets is not None:
        within = within_budgets(queue, link, runs, reply.budgets)
        runs = await link.runtime.there(uncancelled(within, lambda late: _release_runs(queue, late)))
    return Exchanged(outcomes, runs, reply.next_due, reply.now)


def exchange_call(
    queue: ConnectedQueue, link: QueueLink, reports: Sequence[Report], fetch: FetchOptions | None,
    channel: WakeChannel | None,
) -> Call[ExchangeReply]:  # fmt: skip
    """Return the call that reports at most `ROWS_PER_CALL` leases and fetches others."""
    limits = [report.limit for report in reports]
    want, owner, lock, expiry = (0, "", 0, Expiry.STALL) if fetch is None else (
        fetch.count, fetch.owner, fetch.lock_duration, fetch.expiry
    )  # fmt: skip
    return working.exchange(
        link.keys.meta, CONSUMER, want, [report.row for report in reports], not queue.options.events, False,
        charges=budget_charges(link, (report.job for report in reports)) or None,
        leasing=Leasing(owner, lock, expiry, limits if any(limits) else ()), channel=channel if want else None,
    )  # fmt: skip


def outcomes_of(
    link: QueueLink, reports: Sequence[Report], reply: ExchangeReply, *, is_repeated: bool = False
) -> list[LeaseOutcome]:
    """Return the outcome of each report. ``is_repeated``: the reply of an earlier call with them was lost."""
    statuses = reply.statuses
    if not TELEMETRY.on and len(statuses) == len(reports) == statuses.count(_OK):
        return [LeaseOutcome.COMPLETED] * len(reports)  # the usual case, at no cost
    return [_outcome(link, *pair, is_repeated) for pair in zip(reports, statuses, strict=True)]


async def exchange_rows(
    queue: ConnectedQueue, link: QueueLink, reports: Sequence[Report], fetch: FetchOptions | None,
    channel: WakeChannel | None,
) -> tuple[ExchangeReply, list[LeaseOutcome]]:  # fmt: skip
    """Report at most `ROWS_PER_CALL` leases and fetch others in one call; return its reply and one outcome per report.

    Jobs of flows with a budget need `within_budgets`. If the caller is cancelled, the fetched jobs are released.

    Raises:
        AmbiguousResultError: If the reply was lost twice, or did not arrive within the request timeout.
    """
    call = exchange_call(queue, link, reports, fetch, channel)
    call.unclaimed = partial(_release_unclaimed, queue, link)
    sent = False
    try:
        reply = await link.transport.call(call)
    except AmbiguousResultError as lost:
        if not reports or lost.timed_out:
            raise
        sent = True  # the fencing tokens make a second report harmless
        reply = await link.transport.call(call)
    outcomes = outcomes_of(link, reports, reply, is_repeated=sent)
    if reply.flags & _OUTBOX_PENDING:
        await link.runtime.there(uncancelled(deliver(link), lambda _: _release_unclaimed(queue, link, reply)))
    return reply, outcomes


def _outcome(link: QueueLink, report: Report, status: int, sent: bool) -> LeaseOutcome:
    if sent or status == AttemptStatus.ALREADY:
        status = working.status_after_lost_reply(report.row, report.attempts_made, status)
    outcome = _OUTCOMES.get(status, LeaseOutcome.LOST)
    row, name = report.row, link.queue_name
    is_cancelled = isinstance(row, working.Failed) and row.failed_type == JobRevokedError.__name__
    if TELEMETRY.on:
        counted = "stale" if not outcome.applied else "cancelled" if is_cancelled else str(outcome)
        for meter in TELEMETRY.meters:
            meter.job_reported(name, "", counted)
    shown = row.id if link.partition is None else link.partition.id_of(row.id)
    if not outcome.applied:
        log_attempt(logging.WARNING, name, shown, "discarded", "discarded the report of a lost lease")
    elif isinstance(row, working.Failed) and outcome is LeaseOutcome.RETRYING:
        what = f"{row.failed_type}: {row.reason[:_MESSAGE_CHARS]}"
        log_attempt(logging.WARNING, name, shown, "retrying", f"failed ({what}); retried in {row.backoff} ms")
    elif is_cancelled:
        log_attempt(logging.INFO, name, shown, "revoked", "revoked")
    elif isinstance(row, working.Failed):
        what = f"{row.failed_type}: {row.reason[:_MESSAGE_CHARS]}"
        log_attempt(logging.ERROR, name, shown, "failed", f"failed ({what}); {_end_of(row)}")
    return outcome


def _end_of(row: working.Failed) -> str:
    return "not retried" if row.permanent else "no attempts are left"


def log_attempt(level: int, queue: str, job_id: str, outcome: str, what: str) -> None:
    """Log a failed or discarded attempt, with the record attributes of the failure log of workers."""
    if not _failures.isEnabledFor(level):
        return
    with contextlib.suppress(Exception):  # a filter or handler of the application may raise
        record = _failures.makeRecord(
            _failures.name, level, __file__, 0, "queue %r: job %s: %s", (queue, show_id(job_id), what), None
        )
        record.__dict__.update(job_id=job_id, queue_name=queue, job_outcome=outcome)
        _failures.handle(record)


async def within_budgets(queue: ConnectedQueue, link: QueueLink, runs: list[Run], budgets: list[Any]) -> list[Run]:
    """Return the jobs that may start. The others fail or are delayed, as a worker does it."""
    verdicts: dict[str, list[str]] = BudgetVerdicts(*budgets).verdicts or {}
    allowed: list[Run] = []
    refused: list[Report] = []
    for run in runs:
        key, verdict = verdicts.get(run.job._stored_id, ("", ""))
        if key:
            run.job._budget_key = key
        if verdict == "ask":
            verdict = await budget_elsewhere(link, run, key)
        error = refusal(run, verdict)
        if error is None:
            allowed.append(run)
        elif isinstance(error, JobSignal):
            refused.append(Report(signal_row(link, run, error, 0, 0), 0, run))
        else:
            keep = kept(run.options.remove_on_fail)
            refused.append(Report(failed_row(token_of(run), stored_facts(run), error, None, keep), 0, run))
    if refused:
        await exchange(queue, refused)
    return allowed


async def deliver(link: QueueLink) -> None:
    """Deliver results to parents in other queues, and dead letters: there may be no worker."""
    try:
        await Outbox(link).deliver()
    except GlideMQError as error:
        _log.debug("queue %s: outbox left to the next report or worker: %s", link.label, error)


# -- cancelled fetches -----------------------------------------------------------------------------------------


def _runs_of(link: QueueLink, reply: ExchangeReply) -> list[Run]:
    return [Run(link, job, reply.now, None) for job in reply.jobs]


def _release_unclaimed(queue: ConnectedQueue, link: QueueLink, reply: ExchangeReply) -> None:
    """Release the jobs of a fetch that was cancelled."""
    _release_runs(queue, _runs_of(link, reply))


def _release_runs(queue: ConnectedQueue, runs: list[Run]) -> None:
    if runs:
        task = asyncio.ensure_future(_release(queue, runs))
        _releasing.add(task)
        task.add_done_callback(_releasing.discard)


_releasing: set[asyncio.Task[None]] = set()


async def release_runs(queue: ConnectedQueue, runs: list[Run]) -> None:
    """Release the leases of jobs that were fetched and nobody gets."""
    if runs:
        await exchange(queue, [Report(released_row(facts_of(each)), 0, None) for each in runs])


async def _release(queue: ConnectedQueue, runs: list[Run]) -> None:
    try:
        await release_runs(queue, runs)
    except GlideMQError as error:
        _log.debug("queue %r: leases of a cancelled fetch will expire: %s", queue.name, error)


def facts_of(run: Run) -> LeaseFacts:
    """Return the facts of a fetched lease."""
    attempt, options = run.attempt, run.options
    timeout, remove = options.timeout, options.remove_on_complete
    limit = attempt.processed_on + to_ms("timeout", timeout) if timeout else 0
    keep = 0 if remove is None else kept(remove)
    return LeaseFacts(run.job._stored_id, attempt.entry, attempt.fence, attempt.processed_on, limit, keep)
