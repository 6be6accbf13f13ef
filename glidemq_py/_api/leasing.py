"""The methods of `Queue` that fetch and report leases."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from glidemq_py._api import lease_exchange as exchanging
from glidemq_py._api.lease import DEFAULTS, Lease, extend_all, leases_of, lock_ms, next_fetch, report_all
from glidemq_py._api.lease_exchange import (
    Exchanged,
    FetchOptions,
    LeaseOutcome,
    Report,
    completed_row,
    exchange,
    failed_rows,
    released_row,
)
from glidemq_py._core.calls.working import Expiry
from glidemq_py._core.checks import check_bool, check_int, check_text
from glidemq_py._core.misuse import known_methods
from glidemq_py._core.times import Milliseconds, monotonic, to_ms
from glidemq_py._features.leases import queue_names
from glidemq_py._features.leases import release_leases as release_call
from glidemq_py._job.middleware import enter_run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import Area, ConnectedQueue
from glidemq_py.errors import GlideMQError, GlideMQValidationError, JobSignal, LeaseLostError
from glidemq_py.telemetry.spans import observing
from glidemq_py.telemetry.state import TELEMETRY

MAX_WAIT_MS = 3_600_000
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 0.5
"""Shortest and longest time between two looks at several parts while a fetch waits."""
_OWNER_CHARS = 256
_INTERRUPTIONS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Errors that say nothing about the job of a block."""


LeaseT = TypeVar("LeaseT")


class LeaseHandle(Protocol):
    """A `Lease` of either API."""

    @property
    def id(self) -> str:
        """Id of the job."""
        ...

    @property
    def token(self) -> str:
        """See `Lease.token`."""
        ...


class LeaseReport(NamedTuple, Generic[LeaseT]):
    """Result of a report of many leases."""

    outcomes: list[LeaseOutcome]
    """One per lease, in their order."""
    leases: list[LeaseT]
    """The leases fetched by ``fetch_next``."""


async def fetch(
    self: ConnectedQueue,
    count: int = 1,
    *,
    lock_duration: Milliseconds = 30_000,
    wait: Milliseconds = 0,
    owner: str | None = None,
    count_expiry: bool = False,
) -> list[Lease[Any, Any]]:
    """Fetch jobs without a worker. Each is leased until its lock expires: report or extend it before.

    Limits, ordering groups, priorities and pauses of the queue apply as they do for workers. If the reply is lost,
    or the process dies, the jobs are ready again when their locks expire. A cancelled fetch releases its jobs.

    Args:
        count: Maximum number of jobs, 1..500.
        lock_duration: How long no other client gets the jobs, 1_000 ms to 12 hours; see `Lease.extend`.
        wait: How long to wait if no job is ready, 0 ms to one hour. Fewer jobs than ``count`` are returned at once.
        owner: Name of the caller for `leases.release_owner`, 1..256 characters; None is a name of this object's own.
        count_expiry: If True, the expiry of the lock counts as a failed attempt; if False, the job has stalled.

    Returns:
        The leases; empty if no job is ready.

    Raises:
        GlideMQValidationError: If an argument is invalid.
        AmbiguousResultError: If the reply was lost. The fetched jobs are ready again when their locks expire.
        GlideMQConnectionError: If the server cannot be reached.
        ClosedError: If the queue is closed.
    """
    options = _fetch_options(self, count, lock_duration, owner, count_expiry)
    patience = to_ms("wait", wait, maximum=MAX_WAIT_MS) / 1_000
    until, pause = monotonic() + patience, _FIRST_PAUSE_S
    while True:
        leases, next_due = await _fetch_in_turn(self, options)
        left = until - monotonic()
        if leases or left <= 0:
            return leases
        parts = self._parts
        if len(parts) == 1:
            due = None if next_due < 0 else next_due / 1_000
            await self._runtime.there((await parts[0]._wake_ups()).wait(left, due))
        else:
            await self._runtime.there(asyncio.sleep(min(pause, left)))
            pause = min(2 * pause, _LAST_PAUSE_S)


async def _fetch_in_turn(queue: ConnectedQueue, options: FetchOptions) -> tuple[list[Lease[Any, Any]], int]:
    """Fetch from the parts, beginning with the one whose turn it is. Return the leases, and when the next is due."""
    await queue._first()
    parts, first = queue._parts, queue._next_part()
    found = Exchanged([], [], -1, 0)
    leases: list[Lease[Any, Any]] = []
    try:
        for part in (*parts[first:], *parts[:first]):
            wanted = replace(options, count=options.count - len(leases)) if leases else options
            found = await exchange(part, (), wanted)
            leases += leases_of(part, options, found.runs)
            if len(leases) >= options.count:
                break
    except BaseException:
        for lease in leases:  # the call has failed: its caller does not get them
            with contextlib.suppress(GlideMQError):
                await lease.release()
        raise
    return leases, found.next_due


def _fetch_options(
    queue: ConnectedQueue, count: int, lock_duration: Milliseconds, owner: str | None, count_expiry: bool
) -> FetchOptions:
    expiry = Expiry.FAILED_ATTEMPT if check_bool("count_expiry", count_expiry) else Expiry.STALL
    return FetchOptions(
        check_int("count", count, 1, exchanging.ROWS_PER_CALL), lock_ms("lock_duration", lock_duration),
        queue._lease_owner if owner is None else _check_owner(owner), expiry,
    )  # fmt: skip


def _check_owner(owner: object) -> str:
    return check_text("owner", owner, maximum=_OWNER_CHARS)


class LeaseContext:
    """The context of `Queue.lease`: ``async with queue.lease() as lease``."""

    __slots__ = ("_around", "_fetched", "_lease", "_queue")

    def __init__(self, queue: ConnectedQueue, fetched: Any) -> None:
        """Create a context; for queues only."""
        self._queue = queue
        self._fetched = fetched
        self._lease: Lease[Any, Any] | None = None
        self._around: AsyncExitStack[bool | None] | None = None
        """The span of the block and the queue's middleware."""

    async def __aenter__(self) -> Lease[Any, Any] | None:
        """Fetch a job, and enter the middleware of the queue; None if no job was ready in time."""
        found: list[Lease[Any, Any]] = await self._fetched()
        self._lease = lease = found[0] if found else None
        if lease is None or not (self._queue._middleware or TELEMETRY.on):
            return lease
        self._around = stack = AsyncExitStack()
        if TELEMETRY.on:
            stack.enter_context(observing((lease.job,), False))
        blocking = self._queue._runtime.is_blocking
        try:
            await enter_run(stack, self._queue._middleware, lease.job, blocking=blocking)
        except BaseException as error:
            # The block does not run: an error that another middleware suppresses propagates nevertheless.
            try:
                await stack.__aexit__(type(error), error, error.__traceback__)
            finally:
                await _report_quietly(lease, error)
            raise
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Leave the middleware and the span, and report the lease, unless the block has done so.

        Returns:
            True if the error ends here: a signal, or an error that a middleware suppresses.
        """
        if self._around is None:
            return await self._report(error)
        try:
            suppressed = await self._around.__aexit__(kind, error, trace)
        except BaseException as other:
            if not await self._report(other):
                raise
            return True
        return await self._report(None if suppressed else error) or bool(suppressed)

    async def _report(self, error: BaseException | None) -> bool:
        """Report the lease with the error of the block. Return True if the error ends here."""
        lease = self._lease
        kind = type(error)  # isinstance() would use a __class__ of the application
        if lease is None or lease.ended or issubclass(kind, LeaseLostError):
            return False
        if error is None:
            await lease.complete()
        elif issubclass(kind, JobSignal):
            await lease.fail(error)
            return True
        else:
            await _report_quietly(lease, error)
        return False


async def _report_quietly(lease: Lease[Any, Any], error: BaseException) -> None:
    """Fail or release a lease while an exception propagates, which must not be replaced."""
    try:
        await (lease.release() if issubclass(type(error), _INTERRUPTIONS) else lease.fail(error))
    except Exception as failure:
        with contextlib.suppress(BaseException):
            error.add_note(f"glidemq_py: reporting job {lease.id!r} failed: {failure}")


def lease(
    self: ConnectedQueue,
    *,
    lock_duration: Milliseconds = 30_000,
    wait: Milliseconds = 0,
    owner: str | None = None,
    count_expiry: bool = False,
) -> LeaseContext:
    """Fetch one job for a block: ``async with queue.lease() as lease``.

    ``lease`` is None if no job was ready in time. At the end of the block the job is completed without a result,
    unless the block has reported it. An exception fails it and propagates; a cancellation, KeyboardInterrupt and
    SystemExit release it. A
    `JobSignal`, such as `DelayedError`, has the same effect as in a handler, and ends with the block. The block
    runs within `Middleware.run` of the queue's ``middleware``.

    Args:
        lock_duration: See `fetch`.
        wait: See `fetch`.
        owner: See `fetch`.
        count_expiry: See `fetch`.

    Raises:
        GlideMQValidationError: If an argument is invalid.
    """
    _fetch_options(self, 1, lock_duration, owner, count_expiry)
    to_ms("wait", wait, maximum=MAX_WAIT_MS)

    async def fetched() -> list[Lease[Any, Any]]:
        return await fetch(
            self, 1, lock_duration=lock_duration, wait=wait, owner=owner, count_expiry=count_expiry
        )  # fmt: skip

    return LeaseContext(self, fetched)


def _divided(queue: ConnectedQueue, leases: Sequence[Lease[Any, Any]]) -> list[tuple[ConnectedQueue, list[int]]]:
    """Return the parts with the positions of their leases."""
    parts = {part.name: part for part in queue._parts}
    positions: dict[str, list[int]] = {}
    for at, lease in enumerate(leases):
        positions.setdefault(lease._queue.name, []).append(at)
    return [(parts[name], mine) for name, mine in positions.items()]


async def _report_many(
    queue: ConnectedQueue, leases: list[Lease[Any, Any]], reports: list[Report], fetch_next: int
) -> LeaseReport[Lease[Any, Any]]:
    following = next_fetch(queue, leases[0]._options if leases else DEFAULTS, fetch_next)
    if not reports and following is None:
        return LeaseReport([], [])
    if len(queue._parts) == 1:
        return LeaseReport(*await report_all(queue, leases, reports, following))
    outcomes = [LeaseOutcome.LOST] * len(reports)
    for part, positions in _divided(queue, leases):
        found, _ = await report_all(part, [leases[at] for at in positions], [reports[at] for at in positions], None)
        for at, outcome in zip(positions, found, strict=True):
            outcomes[at] = outcome
    fetched = [] if following is None else (await _fetch_in_turn(queue, following))[0]
    return LeaseReport(outcomes, fetched)


_LEASE: type[Any] = Lease


def _items(option: str, given: Any, what: str) -> list[Any]:
    if not hasattr(given, "__iter__"):
        raise GlideMQValidationError(option, given, f"must be an iterable of {what}, not {type(given).__name__}")
    return list(given)


def _check_queue(queue: ConnectedQueue, option: str, lease: Lease[Any, Any]) -> None:
    """Reject a lease of another queue: its id and token may be those of a job of this one."""
    mine, its = (queue.options.prefix, queue.name), (lease._queue.options.prefix, lease._queue.name)
    if its not in {(part.options.prefix, part.name) for part in queue._parts}:
        wanted, given = queue_names(*mine, *its)
        raise GlideMQValidationError(option, lease, f"is a lease of queue {given}; must be one of queue {wanted}")


def check_distinct(option: str, given: Iterable[Any]) -> None:
    """Reject a lease that is reported twice in one call: only the first report would be applied."""
    first: dict[tuple[str, int, int], int] = {}
    for number, each in enumerate(given):
        lease = getattr(each, "_core", each)  # a blocking lease
        if not isinstance(lease, _LEASE):
            continue  # rejected by others
        facts = lease._facts
        earlier = first.setdefault((lease.id, facts.fence, facts.processed_on), number)
        if earlier != number:
            problem = f"is the lease of {option}[{earlier}]; each lease must be given once"
            raise GlideMQValidationError(f"{option}[{number}]", each, problem)


def _leases(queue: ConnectedQueue, option: str, given: object) -> list[Lease[Any, Any]]:
    found: list[Lease[Any, Any]] = []
    for number, each in enumerate(_items(option, given, "leases")):
        lease = getattr(each, "_core", each)  # a blocking lease
        if not isinstance(lease, _LEASE):
            raise GlideMQValidationError(f"{option}[{number}]", each, f"must be a lease, not {type(each).__name__}")
        if lease._queue is not queue:
            _check_queue(queue, f"{option}[{number}]", lease)
        found.append(lease)
    return found


def _pairs(queue: ConnectedQueue, option: str, given: object) -> list[tuple[Lease[Any, Any], Any]]:
    found: list[tuple[Lease[Any, Any], Any]] = []
    for number, each in enumerate(_items(option, given, "pairs")):
        first: Any
        value: Any
        try:
            first, value = each
        except (TypeError, ValueError):
            first = value = None
        lease: Any = first if type(first) is _LEASE else getattr(first, "_core", first)
        if not isinstance(lease, _LEASE):
            raise GlideMQValidationError(f"{option}[{number}]", each, "must be a pair of a lease and a value")
        if lease._queue is not queue:
            _check_queue(queue, f"{option}[{number}]", lease)
        found.append((lease, value))
    return found


@known_methods
class Leases(Area):
    """``queue.leases``: many leases in one call. `Queue.fetch` and `Queue.lease` return them."""

    __slots__ = ()

    async def complete(
        self, results: Iterable[tuple[LeaseHandle, Any]], *, fetch_next: int = 0
    ) -> LeaseReport[Lease[Any, Any]]:
        """Complete many leases in few calls, at most 500 per call.

        A lost lease is an outcome here (`LeaseOutcome.applied` is False), and does not affect the others.

        Args:
            results: Pairs of a lease and its result, one per lease.
            fetch_next: Number of jobs to fetch in the same call, as the first lease was fetched, or with the
                defaults of `fetch` if there is none; 0..500.

        Raises:
            GlideMQValidationError: If an argument is invalid. Nothing was sent.
            SerializationError: If a result cannot be serialized. Nothing was sent.
            PayloadTooLargeError: If a serialized result exceeds 1 MiB. Nothing was sent.
            AmbiguousResultError: If a reply was lost; repeating the call is safe.
            GlideMQConnectionError: If the server cannot be reached.
        """
        serializer = (await self._queue._first()).serializer
        pairs = _pairs(self._queue, "results", results)
        check_distinct("results", (lease for lease, _ in pairs))
        reports = [
            Report(completed_row(serializer, lease._facts, result, lease._run), lease._facts.limit, lease._run)
            for lease, result in pairs
        ]
        return await _report_many(self._queue, [lease for lease, _ in pairs], reports, fetch_next)

    async def fail(
        self, failures: Iterable[tuple[LeaseHandle, Any]], *, retry: bool = True, fetch_next: int = 0
    ) -> LeaseReport[Lease[Any, Any]]:
        """Fail many leases in few calls, at most 500 per call. See `leases.complete`.

        Args:
            failures: Pairs of a lease and its error: an exception, or a message. One per lease.
            retry: If False, the jobs fail permanently.
            fetch_next: See `leases.complete`.

        Raises:
            GlideMQValidationError: If an argument is invalid. Nothing was sent.
            AmbiguousResultError: If a reply was lost; repeating the call is safe.
            GlideMQConnectionError: If the server cannot be reached.
        """
        link = await self._queue._first()
        pairs, retried = _pairs(self._queue, "failures", failures), check_bool("retry", retry)
        check_distinct("failures", (lease for lease, _ in pairs))
        rows = await failed_rows(link, [(lease._facts, lease._run, error) for lease, error in pairs], retried)
        reports = [
            Report(row, lease._facts.limit, lease._run, error) for row, (lease, error) in zip(rows, pairs, strict=True)
        ]
        return await _report_many(self._queue, [lease for lease, _ in pairs], reports, fetch_next)

    async def release(self, leases: Iterable[LeaseHandle]) -> list[LeaseOutcome]:
        """Give many jobs back in few calls, at most 500 per call: they are ready again, and no attempt is counted.

        Args:
            leases: The leases, each once.

        Returns:
            One outcome per lease, in their order.

        Raises:
            GlideMQValidationError: If an item is not a lease of this queue, or is given twice. Nothing was sent.
            GlideMQConnectionError: If the server cannot be reached.
        """
        await self._queue._first()
        given = _leases(self._queue, "leases", leases)
        check_distinct("leases", given)
        reports = [Report(released_row(each._facts), each._facts.limit, each._run) for each in given]
        return (await _report_many(self._queue, given, reports, 0)).outcomes

    async def extend(self, leases: Iterable[LeaseHandle], duration: Milliseconds) -> list[LeaseOutcome]:
        """Extend many leases in few calls, at most 500 per call.

        Args:
            leases: The leases; their `Lease.expires_at` is updated.
            duration: The locks expire this long from now; see `Lease.extend`.

        Returns:
            One outcome per lease, in their order: extended, revoked (extended, but the job was revoked), lost or gone.

        Raises:
            GlideMQValidationError: If an argument is invalid. Nothing was sent.
            GlideMQConnectionError: If the server cannot be reached.
        """
        await self._queue._first()
        given = _leases(self._queue, "leases", leases)
        outcomes = [LeaseOutcome.LOST] * len(given)
        for part, positions in _divided(self._queue, given):
            found = await extend_all(part._first_connected, [given[at] for at in positions], duration)
            for at, (outcome, _) in zip(positions, found, strict=True):
                outcomes[at] = outcome
        return outcomes

    async def release_owner(self, owner: str | None = None) -> int:
        """Release all leases of an owner, for example of a client that has disconnected.

        It reads all leases of the queue, 500 per call. An interrupted call is continued by calling again.

        Args:
            owner: The ``owner`` of the fetches; None is this object's own name.

        Returns:
            The number of released jobs.

        Raises:
            GlideMQValidationError: If the owner is invalid.
            GlideMQConnectionError: If the server cannot be reached.
        """
        name = self._queue._lease_owner if owner is None else _check_owner(owner)

        async def release(link: QueueLink) -> int:
            released, cursor = 0, ""
            while True:
                reply = await link.call(release_call, name, cursor, not self._queue.options.events)
                released, cursor = released + reply.released, reply.cursor
                if not cursor:
                    return released

        return sum(await self._queue._each(release, fresh=True))
