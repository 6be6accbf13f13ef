"""The exchange loop: when to call the server, and what to do with its answers.

Finished jobs gather while a call is under way and leave with the next one, together with the wish for as many new
jobs as there are free slots (performance.md, "coal"). With many slots two calls may be under way, each for half
of them. There is no timer: an idle worker is woken (wake.py), a due time sets one timer.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from glidemq_py.errors import ClosedError, GlideMQError, ScriptError, StaleAttemptError
from glidemq_py.job.link import QueueLink
from glidemq_py.options.worker import WorkerOptions
from glidemq_py.wire.calls import Call, working
from glidemq_py.wire.calls.working import AttemptStatus, ExchangeFlags, ExchangeReply
from glidemq_py.worker.finished import Finished, lost_answer
from glidemq_py.worker.listeners import Listeners
from glidemq_py.worker.recovering import Recovery
from glidemq_py.worker.run import Run
from glidemq_py.worker.runner import Runner
from glidemq_py.worker.throttle import Throttle

__all__ = ["ExchangeLoop"]

_log = logging.getLogger(__name__)

MAX_ROWS = 100
"""Most jobs handed in, and taken, by one call: about a millisecond of the server's time."""
TWO_CALLS_FROM = 16
"""Slots from which on two calls may be under way."""


class ExchangeLoop:
    """Decides on, makes and evaluates exchange calls.

    Args:
        link: the queue. consumer: this worker's name in the consumer group.
        options: of the worker.
        listeners: who is told.
        context: what the lifespan yielded, for the jobs.
    """

    def __init__(
        self, *, link: QueueLink, consumer: str, options: WorkerOptions, listeners: Listeners, context: Any
    ) -> None:
        self._link = link
        self._consumer = consumer
        self._options = options
        self._listeners = listeners
        self._context = context
        self._loop = asyncio.get_running_loop()
        # Looks are asked for by handlers' tasks; what comes of them must not inherit those tasks' variables.
        self._context_vars = contextvars.copy_context()
        self._runner: Runner | None = None
        self._finished: deque[Finished] = deque()
        self._limit = 2 if options.concurrency >= TWO_CALLS_FROM else 1
        self._second_at = max(2, options.concurrency // 3)
        self._most = max(1, min(MAX_ROWS, -(-options.concurrency // self._limit)))
        self._under_way = 0
        self._asked = 0
        self._hungry = True
        self._looks = 0
        self._failures = 0
        self._aheads = 0
        self._ahead = 0
        self._busy = False
        self._poked = False
        self._cut_off = False
        self._throttle = Throttle(options, self.look_for_jobs)
        self._due_timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._calls: set[asyncio.Task[None]] = set()
        self._recovering: asyncio.Task[None] | None = None
        self._recovery = Recovery(self)
        self._changed = asyncio.Event()
        self.taking = False
        self.short_lock: Callable[[int], None] | None = None
        """Told the lock duration of a taken job that has one of its own."""
        self.owes: Callable[[], None] | None = None
        """Told that a call put something into the outbox."""
        self.idle = asyncio.Event()
        """Set while there are free slots and nothing was ready: the time to wait for a wake-up."""
        self._last_reply = self._loop.time()
        self._unanswered: float | None = None
        self.jobs_taken = 0
        self.jobs_ended = 0

    def attach(self, runner: Runner) -> None:
        """Tell the loop who runs what it takes."""
        self._runner = runner

    # -- what others call -----------------------------------------------------------------------------------

    def hand_in(self, row: list[object], run: Run, result: Any, error: BaseException | None) -> None:
        """See `HandIn`."""
        self._finished.append(Finished(row, run, result, error))
        if self._runner is not None and not self._runner.running:
            self._pump()  # nothing else runs, so nothing else will end in this turn of the event loop
        else:
            self.poke()

    def rate_limit(self, milliseconds: int) -> None:
        """See `HandIn`."""
        self._throttle.hold(milliseconds)

    def poke(self) -> None:
        """See `HandIn`. Whatever happens in one turn of the event loop leads to one look."""
        if not self._poked:
            self._poked = True
            self._loop.call_soon(self._pump, context=self._context_vars)

    def look_for_jobs(self) -> None:
        """There may be ready jobs: ask for them as soon as a slot is free."""
        self._hungry = True
        self._looks += 1
        self.idle.clear()
        self._pump()

    @property
    def may_take(self) -> bool:
        """False while this worker is paused, by its user or by a limit."""
        return self.taking and not self._throttle.holding

    @property
    def free(self) -> int:
        """Slots that neither run a job nor wait for one that was asked for."""
        running = 0 if self._runner is None else len(self._runner.running)
        return self._options.concurrency - running - self._asked

    @property
    def silence(self) -> float:
        """Seconds for which the server owes an answer, or for which nobody asked although slots are free.

        0 while there is nothing to ask for: every slot runs a job, or the worker takes none. Read by a thread too.
        """
        if not self.may_take or self.free + self._asked <= 0:
            return 0.0
        # After a long time without a free slot the last reply is old, but the question is fresh.
        since = self._last_reply if self._unanswered is None else self._unanswered
        return max(0.0, self._loop.time() - since)

    async def settled(self) -> None:
        """Wait until `is_settled`."""
        await self._until(lambda: self.is_settled)

    async def handed_in(self) -> None:
        """Wait until every outcome so far has been taken by the server; handlers may still run."""
        await self._until(lambda: self._is_handed_in)

    async def recovered(self) -> None:
        """Wait until it is known what a lost reply held, if one was lost."""
        await self._until(lambda: self._recovering is None and self._is_handed_in)

    async def _until(self, reached: Callable[[], bool]) -> None:
        self.poke()
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    @property
    def _is_handed_in(self) -> bool:
        return not self._under_way and (self._cut_off or not self._finished)

    @property
    def is_settled(self) -> bool:
        """True when nothing runs, nothing waits to be handed in and no call is under way."""
        return self._runner is None or (not self._runner.running and self._is_handed_in)

    # -- waiting for work -------------------------------------------------------------------------------------

    def ask_ahead(self) -> tuple[Call[ExchangeReply], int] | None:
        """A call to send behind a blocking read, for all the slots that are free; they are spoken for until
        `answered_ahead`. With it its number. None where this worker's own limits have a say in what is taken.
        """
        options = self._options
        if options.limiter is not None or options.token_limiter is not None or self._throttle.holding:
            return None
        want = min(self.free, MAX_ROWS)
        if not self.taking or want <= 0 or self._recovering is not None or self._cut_off:
            return None
        self._asked += want
        self._ahead = want
        call = working.idle_exchange(
            self._link.keys.meta, self._consumer, want, not options.events, not options.metrics, self._ahead_token
        )
        return call, self._aheads

    def answered_ahead(self, number: int, reply: ExchangeReply | None) -> None:
        """The answer to the call of that number; None where there was none."""
        if number != self._aheads:
            return  # forgotten: what it had taken has come to us by other ways
        want, self._ahead = self._ahead, 0
        self._asked -= want
        if reply is None:
            return
        if self.may_take:
            self._evaluate(reply, [], want, self._looks)
        else:
            # Paused meanwhile: others may have them.
            self._recovery.hand_back(reply.jobs, reply.now)
            self.poke()

    def lost_ahead(self, error: GlideMQError) -> None:
        """Nobody knows whether it took jobs."""
        self._failed([], error)

    async def forget_ahead(self) -> None:
        """Calls that were sent ahead take nothing from now on, and what one has taken without our knowing comes to
        us, or back to the queue if we take nothing any more. Raises GlideMQError.
        """
        await self._link.transport.call(working.retire(self._link.keys.meta, self._ahead_token))
        self._aheads += 1
        self._asked -= self._ahead
        self._ahead = 0
        await self._recovery.regain()
        self.poke()

    @property
    def _ahead_token(self) -> str:
        return f"{self._consumer}:{self._aheads}"

    # -- deciding -------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._poked = False
        self._changed.set()
        while self._should_call():
            self._start_call()

    def _should_call(self) -> bool:
        if self._recovering is not None or self._under_way >= self._limit or self._cut_off:
            return False
        wanted = self.free if self._hungry and self.may_take else 0
        if self._under_way == 0:
            return bool(self._finished) or wanted > 0
        return len(self._finished) >= self._second_at or wanted >= self._second_at

    def _start_call(self) -> None:
        batch = [self._finished.popleft() for _ in range(min(MAX_ROWS, len(self._finished)))]
        if batch and batch[0].refusals:
            # One of these made the function fail; alone, it shows which.
            self._finished.extendleft(reversed(batch[1:]))
            batch = batch[:1]
        tokens = self._throttle.tokens(batch)  # which may have been the last of this window
        want = max(0, min(self.free, self._most)) if self.may_take else 0
        self._asked += want
        self._under_way += 1
        if self._unanswered is None:
            self._unanswered = self._loop.time()
        self.idle.clear()
        call = self._loop.create_task(self._call(batch, want, tokens), context=self._context_vars)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, batch: list[Finished], want: int, tokens: working.Tokens | None) -> None:
        rows = [finished.row for finished in batch]
        options, looks = self._options, self._looks
        request = working.exchange(
            self._link.keys.meta, self._consumer, want, rows, not options.events, not options.metrics,
            self._throttle.limiter, tokens,
        )  # fmt: skip
        try:
            reply = await self._link.transport.call(request)
        except ClosedError as error:
            self._finished.extendleft(reversed(batch))
            self._lose_connection(error)
        except GlideMQError as error:
            self._failed(batch, error)
        except Exception as error:
            # A fault of ours; whatever it is, the other jobs go on.
            _log.exception("queue %r: exchange", self._link.keys.name)
            self._failed(batch, ScriptError(repr(error)))
        else:
            self._asked -= want
            self._under_way -= 1
            self._evaluate(reply, batch, want, looks)
            return
        self._asked -= want
        self._under_way -= 1
        self._changed.set()

    # -- evaluating -----------------------------------------------------------------------------------------

    def _evaluate(self, reply: ExchangeReply, batch: list[Finished], want: int, looks: int) -> None:
        self._failures = 0
        self._last_reply = self._loop.time()
        self._unanswered = None
        self._start_jobs(reply.jobs, reply.now)
        for finished, status in zip(batch, reply.statuses, strict=True):
            self._settle(finished, status)
        if reply.dropped:
            self._report(reply.dropped)
        flags = reply.flags
        if flags & ExchangeFlags.OWES:
            flags -= ExchangeFlags.OWES
            if self.owes is not None:
                self.owes()
        if want:
            # A wake-up that came while the call was under way may be about a job pushed after it.
            self._hungry = not flags or looks != self._looks
        if reply.next_due >= 0:
            self._set_due(reply.next_due)
        self._changed.set()
        if not self._hungry and self.taking and self.free > 0:
            self.idle.set()
            if self._busy and flags & ExchangeFlags.EXHAUSTED and self.is_settled:
                self._busy = False
                self._listeners.tell("drained")
        self._pump_if_needed()

    def _pump_if_needed(self) -> None:
        if self._finished or self._hungry:
            self.poke()

    def _start_jobs(self, jobs: list[working.TakenJob], now: int) -> None:
        if not jobs:
            return
        self._busy = True
        self.jobs_taken += len(jobs)
        start, link, context = self._runner.start, self._link, self._context  # type: ignore[union-attr]
        for taken in jobs:
            run = Run(link, taken, now, context)
            if run.options.lock_duration is not None and self.short_lock is not None:
                self.short_lock(run.options.lock_duration)
            start(run)

    def _settle(self, finished: Finished, status: int) -> None:
        self.jobs_ended += 1
        listeners, job = self._listeners, finished.run.job
        if finished.sent:
            status = lost_answer(finished, status)
        if status == AttemptStatus.OK:
            if listeners.wanted("completed"):
                listeners.tell("completed", job, finished.result)
        elif status == AttemptStatus.FAILED:
            listeners.tell("failed", job, finished.error)
        elif status == AttemptStatus.RETRYING:
            listeners.tell("retrying", job, finished.error)
        elif status in (AttemptStatus.DELAYED, AttemptStatus.LIMITED):
            listeners.tell("delayed", job, finished.error)
        elif status in (AttemptStatus.STALE, AttemptStatus.GONE, AttemptStatus.ALREADY):
            # ALREADY to what was never sent before: another job bears that id now, all data having been flushed.
            what = "is gone" if status == AttemptStatus.GONE else "was given to another worker"
            _log.warning("job %s of queue %r %s: its outcome is dropped", job.id, self._link.keys.name, what)
            listeners.tell("error", StaleAttemptError(job.id))

    def _report(self, dropped: list[list[str]]) -> None:
        for entry, job_id, reason in dropped:
            _log.warning(
                "queue %r: set aside job %r (stream entry %r): %s", self._link.keys.name, job_id, entry, reason
            )

    def _set_due(self, milliseconds: int) -> None:
        at = self._loop.time() + milliseconds / 1000
        if self._due_timer is not None:
            if self._due_at <= at:
                return
            self._due_timer.cancel()
        self._due_at = at
        self._due_timer = self._loop.call_at(at, self._due)

    def _due(self) -> None:
        self._due_timer = None
        self._hungry = True
        if (self.free <= 0 or self._throttle.holding) and not self._under_way and self._recovering is None:
            # No slot of ours is free: promote all the same, so that an idle worker is woken.
            self._start_call()
        else:
            self.look_for_jobs()

    # -- when a call fails ----------------------------------------------------------------------------------

    def _lose_connection(self, error: ClosedError) -> None:
        """Somebody closed our connection, an injected client most likely. There is no way back."""
        self._cut_off = True
        _log.error(
            "queue %r: the worker's connection was closed under it; it takes no more jobs, and the outcomes of %d "
            "are left to recovery", self._link.keys.name, len(self._finished),
        )  # fmt: skip
        self._listeners.tell("error", error)

    def _failed(self, batch: list[Finished], error: GlideMQError) -> None:
        _log.warning("queue %r: exchange failed: %s", self._link.keys.name, error)
        self._listeners.tell("error", error)
        self._recovery.keep(batch, error)
        if self._recovering is None:
            self._recovering = self._loop.create_task(
                self._recovery.run(), name="glidemq-recover", context=self._context_vars
            )

    async def close(self) -> None:
        """Stop timers and give up on calls that are under way."""
        if self._due_timer is not None:
            self._due_timer.cancel()
        self._throttle.close()
        tasks = [*self._calls, *([self._recovering] if self._recovering is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
