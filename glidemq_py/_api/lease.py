"""`Lease`: a job that was fetched without a worker, and the right to report it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, NamedTuple, Self

from typing_extensions import TypeVar

from glidemq_py._api import lease_exchange as exchanging
from glidemq_py._api.lease_exchange import (
    FetchOptions,
    LeaseOutcome,
    Report,
    completed_row,
    deliver,
    exchange,
    failed_rows,
    log_attempt,
    release_runs,
    released_row,
)
from glidemq_py._core.calls import pieces
from glidemq_py._core.calls.working import Expiry
from glidemq_py._core.checks import check_bool, check_int
from glidemq_py._core.misuse import Connected
from glidemq_py._core.times import DAY_MS, SECOND_MS, Milliseconds, to_ms
from glidemq_py._features.leases import Leased, LeaseFacts, decode_token, encode_token, end_leases, extend_leases
from glidemq_py._job.job import Job
from glidemq_py._job.run import Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import ConnectedQueue
from glidemq_py.errors import GlideMQValidationError, JobNotLoadedError, JobRevokedError, LeaseLostError
from glidemq_py.telemetry.state import TELEMETRY

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)

MAX_LOCK_MS = DAY_MS // 2
"""Longest lock of a lease: a library of another client takes a time more than a day ahead for an invalid one."""
DEFAULTS = FetchOptions(1, 30_000, "", Expiry.STALL)
"""Arguments of a fetch that follows no other."""


class Lease(Connected, Generic[DataT, ResultT]):
    """A job that was fetched without a worker, and the right to report its result.

    `Queue.fetch` and `Queue.lease` return leases. A lease ends with its report, or when its lock expires. Every call
    contains the attempt's fencing token, so that a late report cannot overwrite the result of a later attempt.

    Attributes:
        id: Id of the job.
        expires_at: When the lock expires, epoch ms of the server's clock; 0 if unknown (a lease made from a token).
    """

    __slots__ = ("_facts", "_options", "_queue", "_run", "ended", "expires_at", "id")

    id: str
    expires_at: int
    ended: bool
    """True once a report of this object was applied."""

    def __init__(
        self, queue: ConnectedQueue, facts: LeaseFacts, options: FetchOptions, run: Run | None = None
    ) -> None:  # fmt: skip
        """Create a lease; for queues only."""
        self._queue = queue
        self._facts = facts
        self._options = options
        self._run = run
        partition = queue._partition
        self.id = facts.id if partition is None else partition.id_of(facts.id)
        self.ended = False
        self.expires_at = 0
        if run is not None:
            own = run.options.lock_duration
            lock = options.lock_duration if own is None else min(own, options.lock_duration)
            expiry = facts.processed_on + lock
            self.expires_at = min(expiry, facts.limit) if facts.limit else expiry

    @classmethod
    def from_token(cls, queue: Any, token: str) -> Self:
        """Return the lease of a token, in any process that can reach the queue's server. Nothing is sent.

        Args:
            queue: The queue from which the job was fetched; one with partitions must be connected, unless the job was
                fetched before it had them.
            token: The `token` of the lease.

        Raises:
            GlideMQValidationError: If the token is malformed, or of another queue, or ``queue`` is not a queue.
        """
        if not hasattr(queue, "_lease_owner"):
            kind = f"{type(queue).__module__}.{type(queue).__name__}"
            raise GlideMQValidationError("queue", queue, f"must be a glidemq_py.Queue, not {kind}")
        error: Any = None
        for part in queue._parts:
            try:
                return cls(part, decode_token(part.options.prefix, part.name, token), DEFAULTS)
            except GlideMQValidationError as mismatch:
                error = error or mismatch
        raise error

    @property
    def token(self) -> str:
        """Text from which `from_token` makes this lease again, in any process or machine. Treat it as opaque."""
        return encode_token(self._queue.options.prefix, self._queue.name, self._facts)

    @property
    def job(self) -> Job[DataT, ResultT]:
        """The job. Its methods, such as `Job.update_progress`, contain the fencing token of this attempt.

        Raises:
            JobNotLoadedError: If the lease was made from a token; `Queue.get_job` reads the job.
        """
        if self._run is None:
            raise JobNotLoadedError("job")
        return self._run.job

    @property
    def name(self) -> str:
        """Name of the job. Raises the errors of `job`."""
        return self.job.name

    @property
    def data(self) -> DataT:
        """Data of the job. Raises the errors of `job`, and `SerializationError` if the data cannot be decoded."""
        return self.job.data

    def __repr__(self) -> str:
        return f"<Lease of job {self.id!r} of queue {self._queue._shown_name!r}>"

    async def complete(self, result: ResultT | None = None, *, fetch_next: int = 0) -> list[Lease[Any, Any]]:
        """Complete the job with its result.

        Args:
            result: Any value that the serializer accepts.
            fetch_next: Number of jobs to fetch in the same call, with the arguments of the fetch of this lease; 0..500.

        Returns:
            The fetched leases.

        Raises:
            LeaseLostError: If the lease is lost. The result was not stored, and the fetched jobs are released.
            SerializationError: If the result cannot be serialized.
            PayloadTooLargeError: If the serialized result exceeds 1 MiB.
            AmbiguousResultError: If the reply was lost; repeating the call is safe.
            GlideMQConnectionError: If the server cannot be reached.
        """
        link = await self._queue._first_connected()
        row = completed_row(link.serializer, self._facts, result, self._run)
        return await self._report(Report(row, self._facts.limit, self._run), fetch_next)

    async def fail(self, error: Any, *, retry: bool = True, fetch_next: int = 0) -> list[Lease[Any, Any]]:
        """Fail the attempt: the job is retried after its backoff if it has attempts left.

        Args:
            error: An exception, or its message. A signal such as `DelayedError` has the same effect as in a handler.
            retry: If False, the job fails permanently.
            fetch_next: See `complete`.

        Returns:
            The fetched leases.

        Raises:
            LeaseLostError: If the lease is lost. The failure was not counted, and the fetched jobs are released.
            GlideMQValidationError: If an argument is invalid.
            AmbiguousResultError: If the reply was lost; repeating the call is safe.
            GlideMQConnectionError: If the server cannot be reached.
        """
        retried = check_bool("retry", retry)
        link = await self._queue._first_connected()
        (row,) = await failed_rows(link, [(self._facts, self._run, error)], retried)
        return await self._report(Report(row, self._facts.limit, self._run, error), fetch_next)

    async def release(self) -> None:
        """Give the job back: it is ready again, and no attempt is counted.

        Raises:
            LeaseLostError: If the lease is lost.
            GlideMQConnectionError: If the server cannot be reached.
        """
        await self._report(Report(released_row(self._facts), self._facts.limit, self._run), 0)

    async def extend(self, duration: Milliseconds) -> int:
        """Extend the lock: it expires ``duration`` from now, but never after the job's timeout.

        If the job has a shorter `lock_duration`, it counts.

        Args:
            duration: 1_000 ms to 12 hours, in ms or as a timedelta.

        Returns:
            When the lock expires, epoch ms of the server's clock.

        Raises:
            LeaseLostError: If the lease is lost.
            JobRevokedError: If the job was revoked. The lock was extended; pass the error to `fail`.
            GlideMQConnectionError: If the server cannot be reached.
        """
        ((outcome, deadline),) = await extend_all(self._queue._first_connected, [self], duration)
        if not outcome.applied:
            raise LeaseLostError(self.id)
        if outcome is LeaseOutcome.REVOKED:
            raise JobRevokedError(f"job {self.id!r} was revoked")
        return deadline

    async def _report(self, report: Report, fetch_next: int) -> list[Lease[Any, Any]]:
        fetch = next_fetch(self._queue, self._options, fetch_next)
        found = await exchange(self._queue, [report], fetch)
        if not found.outcomes[0].applied:
            await release_runs(self._queue, found.runs)
            raise LeaseLostError(self.id)
        self.ended = True
        if self._run is not None:
            self._run.attempt.end()
        return leases_of(self._queue, fetch, found.runs)


def lock_ms(option: str, value: Milliseconds) -> int:
    """Return a valid lock duration."""
    return to_ms(option, value, minimum=SECOND_MS, maximum=MAX_LOCK_MS)


def next_fetch(queue: ConnectedQueue, options: FetchOptions, count: Any) -> FetchOptions | None:
    """Return the fetch of ``fetch_next``; None if it is 0."""
    if not check_int("fetch_next", count, 0, exchanging.ROWS_PER_CALL):
        return None
    return FetchOptions(count, options.lock_duration, options.owner or queue._lease_owner, options.expiry)


def leases_of(queue: ConnectedQueue, options: FetchOptions | None, runs: Iterable[Run]) -> list[Lease[Any, Any]]:
    """Return the leases of jobs that were fetched with these options."""
    return [Lease(queue, exchanging.facts_of(run), options or DEFAULTS, run) for run in runs]


async def report_all(
    queue: ConnectedQueue, leases: list[Lease[Any, Any]], reports: list[Report], fetch: FetchOptions | None
) -> tuple[list[LeaseOutcome], list[Lease[Any, Any]]]:
    """Report leases, and fetch others; return the outcomes and the fetched leases."""
    found = await exchange(queue, reports, fetch)
    for lease, outcome in zip(leases, found.outcomes, strict=True):
        if outcome is LeaseOutcome.COMPLETED or outcome.applied:
            lease.ended = True
    return found.outcomes, leases_of(queue, fetch, found.runs)


async def extend_all(
    connect: Callable[[], Awaitable[QueueLink]], leases: list[Lease[Any, Any]], duration: Milliseconds
) -> list[tuple[LeaseOutcome, int]]:
    """Extend leases of the queue to which ``connect`` returns the link; return the outcome and new deadline of each."""
    ms = lock_ms("duration", duration)
    link = await connect()
    found: list[tuple[LeaseOutcome, int]] = []
    for piece in pieces(leases, exchanging.ROWS_PER_CALL):
        reply = await link.call(extend_leases, ms, [Leased(*each._facts[:5]) for each in piece])
        for lease, status, deadline in zip(piece, reply.statuses, reply.deadlines, strict=True):
            lease.expires_at = deadline or lease.expires_at
            found.append((_EXTENDED.get(status, LeaseOutcome.LOST), deadline))
    return found


_EXTENDED = {0: LeaseOutcome.EXTENDED, 2: LeaseOutcome.GONE, 7: LeaseOutcome.REVOKED}


# -- ending leases that are over ----------------------------------------------------------------------------


class Ended(NamedTuple):
    """Result of `end_expired`."""

    leases: int
    """Leases that were ended."""
    wait_s: float | None
    """When the next lease is over, seconds from now; None without one."""


async def end_expired(link: QueueLink, *, quiet: bool) -> Ended:
    """End the leases of a queue that are over, of all clients, and log each.

    Args:
        link: The queue.
        quiet: If True, no events are written.

    Raises:
        GlideMQError: If a call fails.
    """
    count = 0
    while True:
        reply = await link.call(end_leases, quiet)
        if TELEMETRY.on and (reply.recovered or reply.failed):
            for meter in TELEMETRY.meters:
                meter.stalled(link.keys.name, len(reply.recovered), len(reply.failed))
        for job_id in reply.recovered:
            _log(link, logging.WARNING, job_id, "stalled", "stalled (its lock or timeout expired); it will run again")
        for job_id in reply.failed:
            what = "failed (its lock or timeout expired, and its maximum of stalls or attempts is reached)"
            _log(link, logging.ERROR, job_id, "stalled-out", what)
        if reply.outbox_pending:
            await link.runtime.there(deliver(link))
        ended = len(reply.recovered) + len(reply.failed)
        count += ended
        if not ended or reply.wait != 0:
            return Ended(count, None if reply.wait < 0 else reply.wait / 1_000)


def _log(link: QueueLink, level: int, job_id: str, outcome: str, what: str) -> None:
    shown = job_id if link.partition is None else link.partition.id_of(job_id)
    log_attempt(level, link.queue_name, shown, outcome, what)
