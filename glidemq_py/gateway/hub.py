"""`Hub`: the fetches and reports of one queue that the clients of this process have in flight.

They leave together, in at most `MOST_CALLS` exchanges at a time. There is no timer: a lone one leaves at once, and
those that arrive meanwhile leave when a call has returned. While jobs are ready, fetches leave ahead of the reports of
the same turn, so that a client gets its next jobs while the server stores its reports; a fetch that finds none is sent
again behind them. Calls with reports also fetch the jobs that clients are likely to fetch next (`Prefetch`).

A queue without ready jobs is known to be empty until a client of this process changes it, a message on the process's
wake-up channel tells of a push, its next delayed job is due, or `STALE_S` have passed. Until then long polls sleep, and
other polls are answered from memory after the first `FIRST_LOOKS`, so that a lone poll always looks.

A timer on the earliest deadline of the fetched jobs enforces their locks and timeouts: its call ends all leases of the
queue that are over, and returns when the next one is. Those of a process that died are left to the maintenance.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.lease import Lease, end_expired
from glidemq_py._api.lease_exchange import (
    ROWS_PER_CALL,
    FetchOptions,
    LeaseOutcome,
    Report,
    completed_row,
    exchange_rows,
    failed_rows,
    returned_row,
    within_budgets,
)
from glidemq_py._client.failures import repeated_level
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import working
from glidemq_py._core.calls.working import ExchangeFlags, ExchangeReply, Failed, Finished, WakeChannel
from glidemq_py._core.logs import get_logger
from glidemq_py._features.leases import LeaseFacts
from glidemq_py._job.run import Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.wake_channel import WakeChannels
from glidemq_py.errors import AmbiguousResultError, ClosedError, GlideMQConnectionError, GlideMQError
from glidemq_py.gateway.deadlines import WAIT_MARGIN_S
from glidemq_py.gateway.fetched import Fetched, fetched_of
from glidemq_py.gateway.prefetch import Prefetch

_log = get_logger(__name__)

MOST_CALLS: Final = 2
"""Exchanges of a queue in flight."""
MOST_FETCHED: Final = 500
"""Jobs and reports of a call."""
_MOST_CHARS: Final = 4 * 1_048_576
"""Size of the results of a call, unless it is that of one."""
STALE_S: Final = 5.0
"""How long an empty queue is believed to be empty. Clients of other libraries may add jobs without a message."""
FIRST_LOOKS: Final = 3
"""Looks at an empty queue before polls are answered from memory."""
_UNHEARD_S: Final = 0.05
"""The same if no messages arrive."""
_PASS_S: Final = 0.1
"""How long a message waits for a poll that fetches the job, before another process is woken."""
_FEWER: Final = int(ExchangeFlags.FEWER)
_HAS_RATE: Final = int(ExchangeFlags.HAS_RATE)
_TURN_S: Final = 0.0015
"""How long a client needs between a reply and its next command."""
_ENDING_S: Final = 0.25
"""Least interval of the calls that end expired leases."""
_ENDING_RETRY_S: Final = 5.0
"""When such a call is made again that has failed."""
_DEADLINE_MARGIN_S: Final = 0.002
"""A lease is over when the server's clock, which counts milliseconds, has reached its deadline."""
_RETRY_S: Final = 0.5
"""How long a fetch that waits for a job waits after a call that failed because the server was gone."""
_FORGOTTEN_S: Final = 60.0
"""The hub stops listening if no client has polled for so long."""


NO_REPLY: Final = "no reply of the server within the timeout of the command; jobs that it fetches are released"
"""Error of a fetch that waits."""


def _check_texts(row: Finished) -> None:
    """Check that a row can be sent: the rows of other clients leave with it.

    Raises:
        UnicodeEncodeError: If a text has half of a surrogate pair.
    """
    for value in row:
        if isinstance(value, str) and not value.isascii():
            value.encode()


class Fetching:
    """A fetch of a client.

    Attributes:
        future: Its jobs.
    """

    __slots__ = ("count", "failure", "future", "is_sent", "jobs", "lock_ms", "timer")

    def __init__(self, count: int, lock_ms: int, future: asyncio.Future[list[Fetched]]) -> None:
        self.count = count
        self.lock_ms = lock_ms
        self.future = future
        self.jobs: Sequence[Fetched] = ()
        """Jobs that it has already; ``count`` is the number of those that it still wants."""
        self.timer: asyncio.TimerHandle | None = None
        """Ends the wait for a job; None if it does not wait any more."""
        self.is_sent = False
        self.failure: Exception | None = None
        """Why its last call failed, while it waits for the server to come back."""

    def end(self, jobs: list[Fetched]) -> None:
        """Return these jobs."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            self.future.set_result([*self.jobs, *jobs] if self.jobs else jobs)

    def fail(self, error: Exception) -> None:
        """Raise this error, unless it has jobs already."""
        if self.jobs:
            self.end([])
            return
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            self.future.set_exception(error)


_Reported = tuple[Sequence[Report], asyncio.Future[list[LeaseOutcome]], int]
"""Reports, their outcomes, and the length of the results."""


class _Exchange(NamedTuple):
    """What one call reports and fetches."""

    reported: list[_Reported]
    fetches: list[Fetching]
    is_ahead: bool
    """Whether reports of the same turn follow it."""
    reports: list[Report]
    options: FetchOptions | None
    channel: WakeChannel | None
    messages: int
    """Number of messages that had arrived before it."""
    prefetched: int
    """Jobs that it fetches for no client yet."""


class Hub:
    """Fetches and reports of one queue.

    Args:
        queue: The queue.
        link: Its connection.
        owner: Owner of the leases.
        channels: Wake-ups of the process.
        transport: Connection of the process.
        max_completed: Number of completed jobs to keep, of those without a rule of their own; None = all.
    """

    def __init__(
        self, queue: Queue, link: QueueLink, owner: str, channels: WakeChannels, transport: Transport,
        max_completed: int | None = None,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._link = link
        self._owner = owner
        self._channels = channels
        self._max_completed = max_completed
        self._loop = asyncio.get_running_loop()
        self._reports: deque[_Reported] = deque()
        self._fetches: deque[Fetching] = deque()
        self._sleeping: dict[Fetching, None] = {}
        self._in_flight: dict[asyncio.Task[None], _Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._returning: set[asyncio.Task[None]] = set()
        """Those that return prefetched jobs."""
        self._is_scheduled = False
        self._is_listening = False
        self._is_closed = False
        self._empty_until = 0.0
        self._empty_at = 0
        self._empty_looks = 0
        self._messages = 0
        self._is_woken = False
        self._has_more = False
        """Whether the last fetch has found as many jobs as it wanted."""
        self.prefetch = Prefetch(self._return_jobs)
        self._polled_at = 0.0
        self._called_at = 0.0
        self._due: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        """Ends expired leases."""
        self._ended_at = -_ENDING_S
        self._on_ready: Callable[[], None] | None = None
        """Of a partition: wakes the fetches from the whole queue."""
        self.partitions: object = None
        """Always None; see `PartitionHubs.partitions`."""
        self.number = channels.next_number()
        self.keys = link.keys
        self.transport = transport

    # -- commands --------------------------------------------------------------------------------------------

    async def fetch(self, count: int, lock_ms: int, wait: float) -> list[Fetched]:
        """Fetch jobs.

        Args:
            count: Maximum number, up to `MOST_FETCHED`.
            lock_ms: Duration of their locks.
            wait: How long to wait if no job is ready, seconds.

        Returns:
            The jobs. If the caller is cancelled, they are released.

        Raises:
            ClosedError: If the hub is closed.
            GlideMQError: If the call failed. A fetch that waits tries again while the server is gone, until its time
                is over.
        """
        self._check_open()
        self._polled_at = self._loop.time()
        if not self._is_listening:
            self._listen()
        is_empty = self._polled_at < self._empty_until
        jobs = self.prefetch.take(count, lock_ms)
        if is_empty and wait <= 0 and self._empty_looks >= FIRST_LOOKS and not jobs:
            return []
        fetch = Fetching(count - len(jobs), lock_ms, self._loop.create_future())
        fetch.jobs = jobs
        if jobs and (is_empty or not fetch.count):
            return jobs
        if wait > 0 and not jobs:
            fetch.timer = self._loop.call_later(wait, self._give_up, fetch)
        if is_empty and fetch.timer is not None:
            self._sleep(fetch)
        else:
            self._fetches.append(fetch)
            if not self.prefetch.awaits(fetch.count, lock_ms):
                self._schedule()
        try:
            return await fetch.future
        except asyncio.CancelledError:
            self._withdraw(fetch)
            raise

    def _withdraw(self, fetch: Fetching) -> None:
        """End a fetch whose client has left; its jobs are released."""
        if fetch.timer is not None:
            fetch.timer.cancel()
        self._sleeping.pop(fetch, None)
        if not fetch.future.done() or fetch.future.cancelled():
            self.release(fetch.jobs)
        elif fetch.future.exception() is None:
            self.release(fetch.future.result())

    def is_known_empty(self, *, waits: bool) -> bool:
        """Return whether a fetch would be answered from memory, or would wait if it may wait."""
        self._polled_at = self._loop.time()
        if not self._is_listening:
            self._listen()
        return self._polled_at < self._empty_until and (waits or self._empty_looks >= FIRST_LOOKS)

    @property
    def empty_until(self) -> float:
        """Until when it is known to be empty, by the clock of the event loop."""
        return self._empty_until

    @property
    def polled_at(self) -> float:
        """When a client has last fetched, by the clock of the event loop."""
        return self._polled_at

    @property
    def problem(self) -> str:
        """See `Reachability.problem`."""
        return self.transport.interruptions.server.problem

    def join(self, on_ready: Callable[[], None]) -> None:
        """Be the hub of a partition from now on: fetches that wait for a job end, and no others come.

        Args:
            on_ready: Called when the partition may have a job.
        """
        self._on_ready = on_ready
        self._return_jobs(self.prefetch.discard())
        for fetch in tuple(self._sleeping):
            fetch.end([])  # it asks the other partitions
        self._sleeping.clear()

    def leave(self) -> None:
        """Be the hub of a partition no longer."""
        self._on_ready = None

    def use(self, queue: Queue, link: QueueLink) -> None:
        """Use another object of the same queue: the queue has been partitioned, and this is its partition 0."""
        self._queue, self._link = queue, link

    @property
    def is_in_use(self) -> bool:
        """Whether commands of clients wait for it."""
        return bool(self._sleeping or self._fetches or self._reports or self._in_flight)

    @property
    def is_serving(self) -> bool:
        """Whether a client's next call is likely: one that fetches or reports jobs is in flight, or has just ended."""
        is_calling = self._fetches or self._reports or self._in_flight
        return bool(is_calling) or self._loop.time() - self._called_at < _TURN_S

    async def complete(self, results: Sequence[tuple[LeaseFacts, Any]]) -> list[LeaseOutcome]:
        """Complete leases with their results; return the outcome of each.

        Raises:
            SerializationError: If a result cannot be serialized. Nothing was sent.
            PayloadTooLargeError: If a serialized result is too large. Nothing was sent.
            GlideMQError: If the call failed.
        """
        reports: list[Report] = []
        outcomes: list[LeaseOutcome] = []
        size = 0
        for facts, result in results:
            report, chars = self._completion(facts, result)
            size += chars
            if size > _MOST_CHARS and reports:
                outcomes += await self._report(reports, size - chars)
                reports, size = [], chars
            reports.append(report)
        last = await self._report(reports, size) if reports else []
        return [*outcomes, *last] if outcomes else last

    def _completion(self, facts: LeaseFacts, result: Any) -> tuple[Report, int]:
        """Return the report of a completed lease, and the length of its result. Raises those of `completed_row`."""
        row = completed_row(self._link.serializer, facts, result, limit=self._link.payload_limit)
        if not (row.id.isascii() and row.entry.isascii() and row.returnvalue.isascii()):
            _check_texts(row)
        return Report(row, facts.limit, None), len(row.returnvalue)

    async def fail(
        self, lease: Lease[Any, Any], error: Exception, *, retry: bool, remove: bool = False
    ) -> LeaseOutcome:  # fmt: skip
        """Fail the attempt of a lease; see `Lease.fail`. ``remove``: delete the job if this was its last attempt.

        Raises:
            GlideMQError: If the call failed.
        """
        rows = await failed_rows(self._link, [(lease._facts, lease._run, error)], retry)
        if remove:
            rows = [row._replace(keep=1) if isinstance(row, Failed) else row for row in rows]
        for row in rows:
            _check_texts(row)
        (outcome,) = await self._report([Report(row, lease._facts.limit, None, error) for row in rows], 0)
        return outcome

    def _report(self, reports: Sequence[Report], chars: int) -> asyncio.Future[list[LeaseOutcome]]:
        """Report leases; return a future of the outcome of each, which raises GlideMQError.

        Raises:
            ClosedError: If the hub is closed.
        """
        self._check_open()
        self.prefetch.reported(len(reports))
        future: asyncio.Future[list[LeaseOutcome]] = self._loop.create_future()
        self._reports.append((reports, future, chars))
        self._schedule()
        return future

    # -- calls -----------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Send the calls of this turn of the event loop at its end."""
        if not self._is_scheduled and len(self._in_flight) < MOST_CALLS:
            self._is_scheduled = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_scheduled = False
        if self._has_more and not self._in_flight and self._reports and self._fetches:
            # While jobs are ready, a client has its next ones before its reports are stored.
            self._start_exchange([], self._next_fetches(), is_ahead=True)
        while len(self._in_flight) < MOST_CALLS and (self._reports or self._fetches):
            self._start_exchange(self._next_reports(), self._next_fetches())

    def _start_exchange(self, reported: list[_Reported], fetches: list[Fetching], *, is_ahead: bool = False) -> None:
        if not reported and not fetches:
            return
        options = channel = None
        lock_ms, prefetched = fetches[0].lock_ms if fetches else self.prefetch.lock_ms, 0
        if reported and self._has_more and self._prefetches:
            prefetched = self.prefetch.request(lock_ms)
        if fetches or prefetched:
            wanted = sum([fetch.count for fetch in fetches]) + prefetched
            options = FetchOptions(wanted, lock_ms, self._owner, working.Expiry.STALLED_ATTEMPT)
            if self._channels.hears:
                channel = self._channels.channel(self.number, cluster=self.transport.is_cluster)
        reports = [report for some, _, _ in reported for report in some]
        if self._max_completed is not None:
            self._limit_completed(reports, self._max_completed)
        exchange = _Exchange(reported, fetches, is_ahead, reports, options, channel, self._messages, prefetched)
        task = self._loop.create_task(self._exchange(exchange))
        self._in_flight[task] = exchange
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        exchange = self._in_flight.pop(task, None)
        if exchange is not None and task.cancelled():  # maybe before its first step
            self._fail(exchange, ClosedError("the gateway is closing"))
        self._after_call()

    def _after_call(self) -> None:
        self._called_at = self._loop.time()
        if self._reports or self._fetches:
            self._schedule()

    def _next_reports(self) -> list[_Reported]:
        some: list[_Reported] = []
        rows = size = 0
        while self._reports:
            reports, _, chars = self._reports[0]
            rows += len(reports)
            size += chars
            if some and (rows > MOST_FETCHED or size > _MOST_CHARS):
                break
            some.append(self._reports.popleft())
        return some

    def _next_fetches(self) -> list[Fetching]:
        """Return the next fetches with equal locks."""
        some: list[Fetching] = []
        jobs = 0
        while self._fetches:
            fetch = self._fetches[0]
            if some and (jobs + fetch.count > MOST_FETCHED or fetch.lock_ms != some[0].lock_ms):
                break
            self._fetches.popleft()
            fetch.is_sent = True
            if not fetch.future.done():
                some.append(fetch)
                jobs += fetch.count
        return some

    async def _exchange(self, exchange: _Exchange) -> None:
        try:
            reply, outcomes, jobs = await self._call(exchange)
            self._receive(exchange, reply, outcomes, jobs)
        except BaseException as error:
            self._fail(exchange, error if isinstance(error, Exception) else ClosedError("the gateway is closing"))
            if not isinstance(error, Exception):
                raise

    def _fail(self, exchange: _Exchange, failure: Exception) -> None:
        self.prefetch.ended(exchange.prefetched)
        for _, future, _ in exchange.reported:
            if not future.done():
                future.set_exception(failure)
        for fetch in exchange.fetches:
            if isinstance(failure, GlideMQConnectionError) and fetch.timer is not None and not self._is_closed:
                self._try_again(fetch, failure)
            else:
                fetch.fail(failure)

    def _receive(
        self, exchange: _Exchange, reply: ExchangeReply, outcomes: list[LeaseOutcome], jobs: list[Fetched]
    ) -> None:  # fmt: skip
        if jobs:
            has_rate = reply.flags & _HAS_RATE
            self.prefetch.is_suitable = not has_rate and False not in [job.is_simple for job in jobs]
            self.expect_end((min([job.expires_at for job in jobs]) - reply.now) / 1_000)
        done = 0
        for some, future, _ in exchange.reported:
            if not future.done():
                future.set_result(outcomes[done : done + len(some)])
            done += len(some)
        is_silent = exchange.messages == self._messages
        self._note(reply, bool(outcomes), bool(jobs), exchange.options is not None, is_silent)
        rest = self._distribute(exchange.fetches, jobs, exchange.is_ahead)
        if exchange.prefetched:
            self._use_prefetched(exchange, rest)
            self.prefetch.ended(exchange.prefetched)
        else:
            self.release(rest)  # of clients that have left

    @staticmethod
    def _limit_completed(reports: list[Report], count: int) -> None:
        """Let one of the reports apply the rule: it deletes more jobs than a call completes."""
        for number, report in enumerate(reports):
            row = report.row
            if isinstance(row, working.Completed) and row.keep == 0:
                reports[number] = report._replace(row=row._replace(keep=(count, 0)))
                return

    async def _call(self, exchange: _Exchange) -> tuple[ExchangeReply, list[LeaseOutcome], list[Fetched]]:
        """Report, and fetch with the last call; more than `ROWS_PER_CALL` reports need several calls."""
        queue, link, outcomes = self._queue, self._link, list[LeaseOutcome]()
        reports, options, channel = exchange.reports, exchange.options, exchange.channel
        while len(reports) > ROWS_PER_CALL:
            outcomes += (await exchange_rows(queue, link, reports[:ROWS_PER_CALL], None, None))[1]
            reports = reports[ROWS_PER_CALL:]
        reply, last = await exchange_rows(queue, link, reports, options, channel)
        outcomes = [*outcomes, *last] if outcomes else last
        if options is None or reply.budgets is None:
            return reply, outcomes, self._fetched(reply, options)
        runs = [Run(link, row, reply.now, None) for row in reply.jobs]
        allowed = await within_budgets(queue, link, runs, reply.budgets)
        return reply, outcomes, [Fetched.of_run(queue, run, options) for run in allowed]

    def _fetched(self, reply: ExchangeReply, options: FetchOptions | None) -> list[Fetched]:
        if options is None:
            return []
        return [fetched_of(self._queue, self._link, row, reply.now, options) for row in reply.jobs]

    def _note(self, reply: ExchangeReply, reported: bool, found: bool, fetched: bool, is_silent: bool) -> None:
        """Note whether the queue is empty.

        Args:
            reply: Reply of an exchange.
            reported: Whether it has reported jobs.
            found: Whether it has fetched any.
            fetched: Whether it was to fetch some.
            is_silent: Whether no message arrived during the call.
        """
        now = self._loop.time()
        if reported:
            self._empty_until = 0.0  # a slot of a limit may be free, or a job retried
        if found:
            self._empty_looks = 0
        has_fewer = reply.flags & _FEWER
        if fetched:
            self._has_more = not has_fewer
        if fetched and has_fewer:
            self._is_woken = False
            self._empty_looks += not found
            if is_silent:
                self._empty_at = reply.now
                self._empty_until = now + (STALE_S if self._channels.hears else _UNHEARD_S)
        elif fetched:
            self._empty_until = 0.0
            if self._is_woken:
                self._loop.call_later(_PASS_S, self._pass_on)
        if reply.next_due >= 0:
            self._empty_until = min(self._empty_until, now + reply.next_due / 1_000)
        if self._sleeping:
            self._set_timer()

    def _use_prefetched(self, exchange: _Exchange, jobs: list[Fetched]) -> None:
        """Give prefetched jobs to the clients that wait for them, and keep the others."""
        if not self._prefetches:
            self._return_jobs(jobs)
        elif jobs and exchange.options is not None:
            self.prefetch.keep(jobs, exchange.options.lock_duration)
        while self._fetches:
            fetch = self._fetches[0]
            if not fetch.future.done():
                mine = self.prefetch.take_more(fetch.count, fetch.lock_ms)
                if not mine:
                    return
                fetch.end(mine)
            self._fetches.popleft()

    def _distribute(self, fetches: Sequence[Fetching], jobs: list[Fetched], is_ahead: bool) -> list[Fetched]:
        """Give clients their jobs; return those that are left."""
        start = 0
        for fetch in fetches:
            if fetch.future.done():
                continue
            fetch.is_sent, fetch.failure = False, None
            mine = jobs[start : start + fetch.count]
            start += len(mine)
            if is_ahead and not mine and not fetch.jobs:
                self._fetches.append(fetch)  # the reports behind it may have made jobs ready
                self._schedule()
            elif mine or fetch.jobs or fetch.timer is None:
                fetch.end(mine)
            elif self._loop.time() < self._empty_until:
                self._sleep(fetch)
            else:
                self._fetches.append(fetch)
        return jobs[start:]

    def release(self, jobs: Sequence[Fetched]) -> None:
        """Release jobs of clients that have left."""
        if jobs:
            self._start(self._release_all(jobs))

    async def _release_all(self, jobs: Sequence[Fetched]) -> None:
        try:
            await self._queue.leases.release([each.lease for each in jobs])
        except GlideMQError as error:
            _log.warning("gateway: queue %r: jobs of a lost connection stay locked: %s", self._queue.name, error)

    def _return_jobs(self, jobs: Sequence[Fetched]) -> None:
        """Return prefetched jobs to the front of the queue."""
        if jobs:
            task = self._start(self._return_all(jobs))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _return_all(self, jobs: Sequence[Fetched]) -> None:
        # The last one first: each is put before those that are there.
        reports = [Report(returned_row(job.facts), 0, None) for job in reversed(jobs)]
        try:
            await exchange_rows(self._queue, self._link, reports, None, None)
        except GlideMQError as error:
            level = repeated_level(self.transport, error)
            what = "prefetched jobs did not return, and stay locked until their locks expire"
            _log.log(level, "gateway: queue %r: %s: %s", self._queue.name, what, error)

    @property
    def _prefetches(self) -> bool:
        """Whether it may prefetch jobs: not if it is the hub of a partition, since a fetch goes to several of them."""
        return self._on_ready is None and not self._is_closed

    async def prefetched_returned(self) -> None:
        """Wait until the prefetched jobs have returned to the queue; prefetching must be stopped.

        If the caller is cancelled, they return nevertheless.
        """
        while True:
            self._return_jobs(self.prefetch.discard())
            calls = [call for call, exchange in self._in_flight.items() if exchange.prefetched]
            if not calls and not self._returning:
                return
            await asyncio.wait([*calls, *self._returning])

    # -- expiry ----------------------------------------------------------------------------------------------

    def expect_end(self, wait: float) -> None:
        """End expired leases of the queue in this many seconds at the latest."""
        if self._is_closed:
            return
        at = max(self._loop.time() + wait + _DEADLINE_MARGIN_S, self._ended_at + _ENDING_S)
        if self._ending is not None:
            if self._ending.when() <= at:
                return
            self._ending.cancel()
        self._ending = self._loop.call_at(at, self._end)

    def _end(self) -> None:
        self._ending = None
        self._ended_at = self._loop.time()
        self._start(self._end_expired())

    async def _end_expired(self) -> None:
        try:
            ended = await end_expired(self._link, quiet=not self._queue.options.events)
        except ClosedError:
            return
        except GlideMQError as error:
            _log.debug("gateway: queue %r: ending expired locks failed: %s", self._queue.name, error)
            self.expect_end(_ENDING_RETRY_S)
            return
        if ended.wait_s is not None:
            self.expect_end(ended.wait_s)
        if ended.leases:
            self.look()

    # -- waiting ---------------------------------------------------------------------------------------------

    def _sleep(self, fetch: Fetching) -> None:
        if self._on_ready is not None:
            fetch.end([])
            return
        self._sleeping[fetch] = None
        if self._due is None:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = self._loop.call_at(self._empty_until, self._look)

    def expect_job(self) -> None:
        """Send the fetches that wait right behind the call that adds a job, made in this turn of the event loop.

        Most connections keep the order of calls. If the fetch is first, it waits for `look`.
        """
        if (self._sleeping or self._on_ready is not None) and not self._in_flight:
            self._loop.call_soon(self.look)

    def look(self) -> None:
        """Believe no longer that the queue is empty: a client of this process has changed it."""
        self._messages += 1
        self._empty_until = 0.0
        self._look()

    def _look(self) -> None:
        """Send the sleeping fetches: the queue may have jobs."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._on_ready is not None:
            self._on_ready()
        elif self._sleeping:
            self._fetches.extend(self._sleeping)
            self._sleeping.clear()
            self._schedule()

    def _try_again(self, fetch: Fetching, failure: Exception) -> None:
        """Let a fetch that may still wait look again soon: the server may be back."""
        if fetch.future.done():
            return
        fetch.is_sent, fetch.failure = False, failure
        self._sleeping[fetch] = None
        self._loop.call_later(_RETRY_S, self._look)

    def _give_up(self, fetch: Fetching) -> None:
        fetch.timer = None
        if fetch.failure is not None:
            self._sleeping.pop(fetch, None)
            fetch.fail(fetch.failure)
        elif not fetch.is_sent:
            self._sleeping.pop(fetch, None)
            if problem := self.problem:
                fetch.fail(GlideMQConnectionError(problem))
            else:
                fetch.end([])
        else:  # it gets the jobs of its call, unless the server does not reply
            self._loop.call_later(WAIT_MARGIN_S, fetch.fail, AmbiguousResultError(NO_REPLY))

    def _listen(self) -> None:
        self._is_listening = True
        self._start(self._channels.add(self))

    async def _stop_listening(self) -> None:
        self._is_listening = False
        self._empty_until = 0.0
        await self._channels.remove(self)

    @property
    def position(self) -> str:
        """See `Sleeper.position`."""
        return "0" if self._empty_at == 0 else f"{self._empty_at - 1}-18446744073709551615"

    def woken(self) -> None:
        """See `Sleeper.woken`."""
        self._messages += 1
        self._is_woken = True
        self._empty_until = 0.0
        if not self._sleeping and not self._fetches:
            self._loop.call_later(_PASS_S, self._pass_on)
        self._look()

    def called(self) -> None:
        """See `Sleeper.called`. The gateway registers no worker with this channel."""

    def found(self) -> None:
        """See `Sleeper.found`."""
        if not self._forget_unpolled():
            self._empty_until = 0.0
            self._look()

    def checked(self, exists: bool) -> None:
        """See `Sleeper.checked`."""
        self._forget_unpolled()

    def _forget_unpolled(self) -> bool:
        """Stop listening if no client has polled for long; return whether this is so."""
        is_unpolled = self._loop.time() - self._polled_at > _FORGOTTEN_S and not self._sleeping
        if is_unpolled:
            self._start(self._stop_listening())
        return is_unpolled

    def _pass_on(self) -> None:
        """Wake another process, unless this one has found that no job is left."""
        if not self._is_woken or self._is_closed:
            return
        if self._in_flight:
            self._loop.call_later(_PASS_S, self._pass_on)
            return
        self._is_woken = False
        self._start(self._wake_another())

    async def _wake_another(self) -> None:
        try:
            await self.transport.call(working.pass_wake_up(self.keys.meta))
        except GlideMQError as error:
            _log.debug("gateway: queue %r: waking another process failed: %s", self._queue.name, error)

    # -- closing ---------------------------------------------------------------------------------------------

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the gateway is closed")

    def abort(self) -> None:
        """Cancel the calls in flight."""
        for task in (*self._in_flight, *self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Wait for the calls in flight, and end the fetches that wait. Idempotent."""
        self._is_closed = True
        for fetch in (*self._sleeping, *self._fetches):
            fetch.end([])
        self._sleeping.clear()
        self._fetches.clear()
        for timer in (self._due, self._ending):
            if timer is not None:
                timer.cancel()
        self._return_jobs(self.prefetch.discard())
        while self._in_flight or self._tasks:
            await asyncio.wait((*self._in_flight, *self._tasks))
        await self._channels.remove(self)
