"""The fetch loop of a lane: makes the calls that the fetch engine decides on, and processes their replies.

All decisions are made by `fetch_engine` and `slot_pool`; this module does the I/O. After each change, the other lanes
of the worker may fetch. `wake` waits for wake-ups while no jobs are ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from glidemq_py._client.failures import repeated_level
from glidemq_py._core.calls import Call, working
from glidemq_py._core.calls.working import (
    FETCHED_JOB,
    ExchangeFlags,
    ExchangeReply,
    FetchedJob,
    Finished,
    ReattachReply,
    WakeChannel,
)
from glidemq_py._core.limits import RateLimit
from glidemq_py._core.logs import ForeignFailures, RepeatedFailure, get_logger, show_id
from glidemq_py._job.run import FinishedAttempt, Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.failure_log import FailureLog
from glidemq_py._worker.fetch_calls import Exchange, Failure, Invalidate, Pipelined, QueueSource, Reattach
from glidemq_py._worker.fetch_engine import FetchEngine
from glidemq_py._worker.opening import WorkerComponents
from glidemq_py._worker.queue_lanes import QueueLanes
from glidemq_py._worker.results import MetricsSender, OutcomeReporting
from glidemq_py._worker.runner import AttemptRunner, BudgetGate
from glidemq_py._worker.slot_pool import SlotPool
from glidemq_py.errors import (
    ClosedError,
    GlideMQConnectionError,
    GlideMQError,
    ScriptError,
    ServerNotReadyError,
    UnsupportedFeatureError,
)

_log = get_logger(__name__)

_row: Final = attrgetter("row")
_PRIORITY: Final = FETCHED_JOB.index("priority")


class FetchLoop:
    """Fetches jobs for a runner and reports their results.

    Args:
        opening: The worker.
        link: The queue.
        source: Builds the calls that fetch and report jobs.
        context: Value yielded by the lifespan, for the jobs.
        pool: The slots of the worker.
        queue: State shared by the lanes of the queue.
        position: Position of the lane in the worker's list.
        weight: Weight of the lane.
    """

    def __init__(
        self,
        *,
        opening: WorkerComponents,
        link: QueueLink,
        source: QueueSource,
        context: Any,
        pool: SlotPool,
        queue: QueueLanes,
        position: int,
        weight: int,
    ) -> None:
        options, listeners, consumer = opening.options, opening.listeners, opening.consumer
        self._close_worker = opening.failed
        self._link = link
        self._reconnecting = RepeatedFailure(_log, f"queue {link.label}: reconnecting")
        self._fetch_failures = RepeatedFailure(_log, f"queue {link.label}: fetching jobs")
        self._report_failures = RepeatedFailure(_log, f"queue {link.label}: reporting results")
        self._foreign = ForeignFailures(_log)
        self._source = source
        self._consumer = consumer
        self._listeners = listeners
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._name = self.name = link.queue_name
        self._has_batches = options.batch is not None
        """True if results of several lanes arrive together: their calls fetch when all slots are free."""
        self._limiter: tuple[int, int] | None = None
        if options.limiter is not None:
            self.limit(options.limiter)
        self._exchange_call = source.exchange_builder()
        self._budgets = BudgetGate(link, listeners)
        # Handlers' tasks schedule the pump; the calls it makes must not inherit those tasks' context variables.
        self._context_vars = contextvars.copy_context()
        self._calls: set[asyncio.Task[None]] = set()
        self._reporting: set[Exchange] = set()
        """The calls in flight that report results."""
        self._recovery_call: asyncio.Task[None] | None = None
        """The last `Invalidate` or `Reattach` call."""
        self._pump_scheduled = False
        self._refused = False
        self._timer: asyncio.Handle | None = None
        self._timer_at: float | None = None
        """Time of the timer. (uvloop returns a handle without `when` for a time that is almost now.)"""
        self._runner: AttemptRunner | None = None
        self.queue = queue
        self.engine = FetchEngine(
            pool, self._loop.time(), random.random, queue.throttle, position=position, weight=weight,
            pump=self.schedule_pump, one_call=options.batch is not None,
            may_pipeline=not (options.limiter or options.token_limiter or options.batch),
            drained_is_wanted=partial(listeners.wanted, "drained"),
        )  # fmt: skip
        queue.engines.append(self.engine)
        self.server_now = 0
        """Server time of the last exchange that found fewer jobs than requested, epoch ms; 0 before the first."""
        self.idle = asyncio.Event()
        """Set while slots are free and no jobs are ready: the wake-up reader waits for a wake-up then."""
        self._changed = asyncio.Event()
        self.failure_log = FailureLog(
            link, worker_id=consumer, options=options.log_failures, source=source.label
        )  # fmt: skip
        self._report = OutcomeReporting(self._name, listeners, self.failure_log, self._job_failed).report
        self.by_name = MetricsSender(self._loop, self._request_call)
        """Figures per job name that the calls carry."""
        self.started: Callable[[], None] | None = None
        """Called when jobs were fetched."""
        self.due_in: Callable[[int], None] = self._due_in
        """Called with the number of ms until a job is due."""
        self.short_lock: Callable[[int], None] | None = None
        """Called with the lock duration (ms) of a fetched job that has its own."""
        self.outbox_pending: Callable[[], None] | None = None
        """Called when a reply reports that the outbox has entries."""
        self.job_failed: Callable[[], None] | None = None
        """Called after a job of the queue has failed permanently."""
        self.schedulers: Callable[[int], None] | None = None
        """Called with the revision of the schedulers for every reply of a queue that has schedulers."""

    def attach(self, runner: AttemptRunner) -> None:
        """Set the runner of the fetched jobs."""
        self._runner = runner

    # -- interface to the other components --------------------------------------------------------------------

    def job_ended(self, row: Finished, run: Run, result: Any, error: BaseException | None) -> None:
        """See `ResultSink`."""
        engine = self.engine
        engine.job_ended(FinishedAttempt(row, run, result, error))
        if engine.running or self._has_batches:
            self.schedule_pump()
        else:
            self._pump()  # no other job runs, so no other result can join this call

    def attempt_ended(self, row: Finished, run: Run, result: Any, error: BaseException | None) -> None:
        """See `ResultSink`."""
        self.engine.attempt_ended(FinishedAttempt(row, run, result, error))
        self.schedule_pump()

    def free_slot(self, run: Run) -> None:
        """See `ResultSink`."""
        self.engine.free_slot(run)
        self.schedule_pump()

    def rate_limit(self, milliseconds: int) -> None:
        """See `ResultSink`."""
        self.engine.throttle.hold(milliseconds, self._loop.time())
        self._set_timer()

    def limit(self, limiter: RateLimit) -> None:
        """Set the rate limit of this worker, or the share of this part in it."""
        self._limiter = (limiter.max, limiter.duration)

    def wake_by(self, channel: WakeChannel) -> None:
        """Let calls that leave the queue idle register this channel."""
        self._exchange_call = partial(self._source.exchange_builder(), channel=channel)

    def pause(self) -> None:
        """Stop fetching jobs; other lanes may use the slots. Any thread may call this."""
        self.engine.accepting = False
        if self.engine.pool.is_shared:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._pump_others, self.engine)

    def resume(self) -> None:
        """Fetch jobs."""
        self.accept()
        self._pump()

    def accept(self) -> None:
        """Accept jobs; the next call of `SlotPool.pump` fetches some."""
        self.engine.accepting = True
        self.engine.wake()
        self.idle.clear()

    def leave(self) -> None:
        """Use no slots from now on, and be no lane of the queue."""
        self.engine.leave()
        self.queue.engines.remove(self.engine)

    def request_jobs(self) -> None:
        """Fetch jobs as soon as a slot is free: there may be ready ones."""
        self.engine.wake()
        self.idle.clear()
        self._pump()

    @property
    def unresponsive_seconds(self) -> float:
        """See `FetchEngine.unresponsive_seconds`. Also read from a thread."""
        return self.engine.unresponsive_seconds(self._loop.time())

    @property
    def paused_ms(self) -> float:
        """Remaining milliseconds of the pause of this worker; 0 if there is none."""
        return self.engine.throttle.left(self._loop.time())

    @property
    def unreported(self) -> list[FinishedAttempt]:
        """The results that the server has not confirmed, those of calls in flight included."""
        return [finished for call in self._reporting for finished in call.batch] + list(self.engine.finished)

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last reply to a call that fetches or reports."""
        return self._loop.time() - self.engine.answered_at

    def _job_failed(self) -> None:
        if self.job_failed is not None:
            self.job_failed()

    def _request_call(self) -> None:
        self.engine.request_call()
        self.schedule_pump()

    async def send_metrics(self) -> None:
        """Send the figures per job name that are not sent yet, while the calls succeed."""
        if not self.by_name.is_empty:
            self.by_name.flush()
            await self.until(lambda: self.by_name.is_empty or self.engine.step is not None or self.engine.disconnected)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until ``reached`` returns True; it is called after every change."""
        self.schedule_pump()
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    # -- calls ------------------------------------------------------------------------------------------------

    def schedule_pump(self) -> None:
        """Make the next calls soon. Several requests in one iteration of the event loop run the pump once."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump, context=self._context_vars)

    def _pump(self, now: float | None = None) -> None:
        self._pump_scheduled = False
        self._changed.set()
        engine, now = self.engine, self._loop.time() if now is None else now
        while (call := engine.next_call(now)) is not None:
            self.idle.clear()
            task = self._loop.create_task(self._make(call), context=self._context_vars.copy())
            self._calls.add(task)
            if not isinstance(call, Exchange):
                self._recovery_call = task
            task.add_done_callback(self._calls.discard)
            if engine.throttle.holding:
                self._set_timer()  # the call's tokens may have started a pause
        if engine.pool.is_shared or engine.pool.changed is not None:
            self._pump_others(engine)

    def _pump_others(self, caller: FetchEngine | None) -> None:
        pool = self.engine.pool
        if pool.is_shared:
            pool.pump(caller)
            if pool.kept_free and not pool.waits_for_late:
                pool.waits_for_late = True
                self._loop.call_later(pool.late_s, self._on_late, context=self._context_vars)
        if pool.changed is not None:
            pool.changed()

    def _on_late(self) -> None:
        """Let other lanes use the slots that are kept free if a reply is late."""
        pool = self.engine.pool
        pool.waits_for_late = False
        pool.now = self._loop.time()
        self._pump_others(None)

    async def _make(self, call: Exchange | Invalidate | Reattach) -> None:
        if not isinstance(call, Exchange):
            await self._make_step(call)
            return
        batch, budgets = call.batch, self._budgets
        if batch:
            self._reporting.add(call)
        report = self.by_name.take() if self.by_name.is_due else None
        try:
            request = self._exchange_call(
                call.want, list(map(_row, batch)), limiter=self._limiter, tokens=call.tokens,
                charges=budgets.charges(batch) if budgets.met else None, held=call.held,
                by_name=report,
            )  # fmt: skip
            reply = await self._link.transport.call(request)
            runs = self._runs(reply.jobs, reply.now) if reply.jobs else ()
        except Exception as error:
            self._reporting.discard(call)
            if report is not None:
                self.by_name.failed()
            self._failed(call, error)
        else:
            self._reporting.discard(call)
            if report is not None:
                self.by_name.replied()
            self._replied(call, reply, runs)

    async def _make_step(self, call: Invalidate | Reattach) -> None:
        """Make a call that follows a failed one."""
        source, transport = self._source, self._link.transport
        try:
            if isinstance(call, Invalidate):
                await transport.call(working.invalidate(self._link.keys.meta, f"{self._consumer}:{call.number}"))
                reply, runs = None, list[Run]()
            else:
                entries = [run.attempt.entry for run in call.known if run.attempt.entry]
                ids = [run.job._stored_id for run in call.known if not run.attempt.entry]
                reply = await transport.call(source.reattach(entries, call.want, call.cursor, ids))
                runs = self._runs(reply.jobs, reply.now)
        except Exception as error:
            self._failed(call, error)
            return
        self._reconnecting.succeeded()
        if reply is None:
            self.engine.invalidated()
        else:
            self._reattached(reply, runs)
        self._pump()

    def _runs(self, jobs: list[FetchedJob], now: int) -> list[Run]:
        run_type, link, context = self._source.run_type, self._link, self._context
        runs: list[Run] = []
        for fetched in jobs:
            run = run_type(link, fetched, now, context)
            runs.append(run)
            if run.options.lock_duration is not None and self.short_lock is not None:
                self.short_lock(run.options.lock_duration)
        recent = self._source.recent_keys
        if recent is not None:
            recent.add([run.options.fair_key for run in runs])
        return runs

    # -- replies ----------------------------------------------------------------------------------------------

    def _replied(self, call: Exchange, reply: ExchangeReply, runs: list[Run] | tuple[()]) -> None:
        flags, engine, batch = reply.flags, self.engine, call.batch
        # Every exchange comes here: the attributes save a call.
        if self._fetch_failures.since is not None or self._report_failures.since is not None:
            self._succeeded(call)
        if flags >= ExchangeFlags.OUTBOX_PENDING:
            flags = self._forward(flags)
        elif self.by_name.is_on:
            self.by_name.switch(is_on=False)
        self.server_now = reply.now if flags and call.want else self.server_now
        drained = engine.replied(call, runs, flags, bool(flags & ExchangeFlags.EXHAUSTED), self._loop.time())
        if runs or reply.budgets is not None:
            self._start(runs, reply.budgets, batch)
            if self.started is not None or engine.pool.is_shared:
                self._fetched(reply)
        if batch and self.by_name.is_on:
            self.by_name.record(batch, reply.statuses, reply.now)
        report = self._report
        for finished, status in zip(batch, reply.statuses, strict=True):
            try:
                report(finished, status)
            except BaseException as raised:  # by an error of the application, or a meter
                text = "queue %r: job %s: logging its outcome failed"
                self._foreign.log("", raised, text, self._name, show_id(finished.run.job.id))
        if reply.dropped or reply.next_due >= 0:
            self._noted(reply)
        self._changed.set()
        if engine.idle:
            self.idle.set()
        if drained or self.queue.was_busy:
            self.queue.check_drained(drained)
        if engine.step is not None:
            self._set_timer()  # the pause after a failed call begins when no call is in flight
            self._pump()
        elif engine.finished or (engine.jobs_may_be_ready and engine.pool.free > 0):
            self.schedule_pump()
        if engine.pool.is_shared or engine.pool.changed is not None:
            self._pump_others(engine)

    def _noted(self, reply: ExchangeReply) -> None:
        if reply.dropped:
            self.failure_log.dropped(reply.dropped)
        if reply.next_due >= 0:
            self.due_in(reply.next_due)

    def _succeeded(self, call: Exchange) -> None:
        if call.want:
            self._fetch_failures.succeeded()
        if call.batch:
            self._report_failures.succeeded()

    def _fetched(self, reply: ExchangeReply) -> None:
        self.queue.rounds += 1
        if self.started is not None:
            self.started()
        if self._link.partition is not None and any(map(_has_priority, reply.jobs)):
            self.engine.pool.found_priority(self._loop.time())

    def _forward(self, flags: int) -> int:
        """Call the callbacks of set flags; return the flags that explain why no more jobs were fetched."""
        if flags >= working.SCHEDULER_REVISION:
            if self.schedulers is not None:
                self.schedulers(flags // working.SCHEDULER_REVISION)
            flags %= working.SCHEDULER_REVISION
        if flags & ExchangeFlags.OUTBOX_PENDING:
            flags -= ExchangeFlags.OUTBOX_PENDING
            if self.outbox_pending is not None:
                self.outbox_pending()
        by_name = self.by_name
        if by_name.is_on != bool(flags & ExchangeFlags.BY_NAME):
            by_name.switch(is_on=not by_name.is_on)
        return flags & ExchangeFlags.FEWER

    def _start(self, runs: list[Run] | tuple[()], budgets: list[Any] | None, batch: list[FinishedAttempt]) -> None:
        """Start the fetched jobs that their budgets allow."""
        runner = self._runner
        assert runner is not None
        start = runner.start if budgets is None else self._budgets.starter(runner, budgets, batch)
        for run in runs:
            start(run)

    def _reattached(self, reply: ReattachReply, runs: list[Run]) -> None:
        self.queue.rounds += bool(runs)
        if self.engine.reattached(runs, reply.cursor):
            self._start(runs, reply.budgets, [])
        else:
            self._release(runs)
        if reply.dropped:
            self.failure_log.dropped(reply.dropped)

    def _release(self, runs: list[Run]) -> None:
        """Release fetched jobs unstarted, because this worker no longer fetches."""
        for run in runs:
            token = run.attempt.entry, *run.attempt.token
            self.engine.attempt_ended(FinishedAttempt(working.released(run.job._stored_id, *token), run, None, None))

    def _failed(self, call: Exchange | Invalidate | Reattach, error: Exception) -> None:
        """Process a failed call; the server may have executed it."""
        engine = self.engine
        for finished in engine.failed(call, _failure_of(error, call), self._loop.time()):
            _log.error(
                "queue %r: reporting the result of job %s failed repeatedly; the job will be recovered as stalled: %s",
                self._name, finished.run.job.id, error,
            )  # fmt: skip
        if isinstance(error, UnsupportedFeatureError):
            self.refuse(error)
        elif isinstance(error, ClosedError):
            _log.error(
                "queue %r: the worker's connection was closed by its owner; fetching stopped, and %d pending results "
                "are not reported (their jobs will stall and be recovered)", self._name, len(engine.finished),
            )  # fmt: skip
            self._listeners.emit("error", error)
        elif not isinstance(error, GlideMQError):
            # A bug of ours must not stop the other jobs.
            _log.error("queue %s: %s failed", self._link.label, type(call).__name__.lower(), exc_info=error)
            self._listeners.emit("error", ScriptError(repr(error)))
        elif engine.is_step(call):
            self._reconnecting.failed(error, repeated_level(self._link.transport, error))
        else:
            failing = self._report_failures if isinstance(call, Exchange) and call.batch else self._fetch_failures
            failing.failed(error, repeated_level(self._link.transport, error))
            self._listeners.emit("error", error)
        self._set_timer()
        self._pump()

    def refuse(self, error: UnsupportedFeatureError) -> None:
        """Make no more calls and close the worker: every call would be rejected. Idempotent."""
        if self._refused:
            return
        self._refused = True
        self.engine.disconnect()
        _log.critical(
            "%s; the worker closes, and %d pending results are not reported (their jobs will stall and be recovered by "
            "newer workers)", error, len(self.engine.finished),
        )  # fmt: skip
        self._listeners.emit("error", error)
        if self._close_worker is not None:
            self._close_worker(error)

    # -- pipelined calls --------------------------------------------------------------------------------------

    def next_pipelined(self) -> tuple[Pipelined, Call[ExchangeReply]] | None:
        """Return a call to send behind a blocking read, or None; see `FetchEngine.next_pipelined`."""
        call = self.engine.next_pipelined()
        if call is None:
            return None
        return call, self._source.idle_exchange(call.want, f"{self._consumer}:{call.number}", call.held)

    def pipelined_replied(self, call: Pipelined, reply: ExchangeReply) -> None:
        """Process the reply to a pipelined call."""
        if self.engine.pipelined is not call:
            return  # it was invalidated, and its jobs were found
        try:
            runs = self._runs(reply.jobs, reply.now)
        except Exception as error:
            self.pipelined_failed(call, ScriptError(repr(error)), closing=False)
            return
        exchange = self.engine.pipelined_replied(call)
        if exchange is None:
            self._release(runs)
            self.schedule_pump()
        else:
            self._replied(exchange, reply, runs)

    def pipelined_failed(self, call: Pipelined, error: BaseException, *, closing: bool) -> None:
        """Process a failed pipelined call; with ``closing``, its jobs will be found by `invalidate_pipelined`."""
        self.engine.pipelined_ended(call)
        if isinstance(error, UnsupportedFeatureError):
            self.refuse(error)
            return
        # A call that was not executed has fetched no jobs: nothing to recover.
        if isinstance(error, Exception) and not isinstance(error, ServerNotReadyError) and not closing:
            if isinstance(error, GlideMQError):
                self._fetch_failures.failed(error, repeated_level(self._link.transport, error))
            else:  # a bug of ours, such as a reply that cannot be decoded
                _log.error("queue %s: fetching jobs failed", self._link.label, exc_info=error)
                error = ScriptError(repr(error))
            self._listeners.emit("error", error)
            self.find_lost()

    def find_lost(self) -> None:
        """Find the jobs that a call without a reply may have fetched."""
        self.engine.pipelined_lost(self._loop.time())
        self._set_timer()
        self.schedule_pump()

    async def invalidate_pipelined(self) -> None:
        """Make the server ignore pipelined calls, and release the jobs that one of them has fetched.

        If this is cancelled, the calls in flight for it are cancelled too, so that nothing waits for their replies.
        """
        self.engine.invalidate_pipelined()
        try:
            await self.until(lambda: self.engine.step is None)
        except asyncio.CancelledError:
            if self._recovery_call is not None:
                self._recovery_call.cancel()
            self.engine.abandon_recovery()
            self._set_timer()
            self.schedule_pump()
            raise

    # -- time -------------------------------------------------------------------------------------------------

    def _due_in(self, milliseconds: int) -> None:
        self.engine.due_in(milliseconds, self._loop.time())
        self._set_timer()

    def advance(self, milliseconds: float) -> None:
        """Shorten the pause of this worker by so many ms, for tests that move the time."""
        self.engine.throttle.passed(milliseconds)
        self._tick(self._loop.time())

    def _set_timer(self) -> None:
        wake_at = self.engine.wake_at
        if self._timer is not None:
            if self._timer_at == wake_at:
                return
            self._timer.cancel()
            self._timer = None
        self._timer_at = wake_at
        if wake_at is not None:
            self._timer = self._loop.call_at(wake_at, self._on_timer, wake_at, context=self._context_vars)

    def _on_timer(self, wake_at: float) -> None:
        self._timer = None
        # The event loop may run a timer early by the resolution of its clock.
        self._tick(max(wake_at, self._loop.time()))

    def _tick(self, now: float) -> None:
        self.engine.tick(now)
        if not self.engine.idle:
            self.idle.clear()
        self._pump(now)
        self._set_timer()

    async def close(self) -> None:
        """Stop the timer and cancel calls in flight."""
        if self._timer is not None:
            self._timer.cancel()
        self.by_name.close()
        calls = list(self._calls)
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        self.failure_log.close()


def _has_priority(row: Sequence[Any]) -> bool:
    """Return whether a fetched job has a priority or rank. Rows of plain jobs are shorter."""
    return len(row) > _PRIORITY and row[_PRIORITY] not in ("0", False)


def _failure_of(error: Exception, call: Exchange | Invalidate | Reattach) -> Failure:
    if isinstance(error, (ClosedError, UnsupportedFeatureError)):
        return Failure.CLOSED
    if isinstance(error, ScriptError) or (isinstance(call, Exchange) and not isinstance(error, GlideMQError)):
        return Failure.REJECTED
    return Failure.LOST if isinstance(error, GlideMQConnectionError) else Failure.BROKEN
