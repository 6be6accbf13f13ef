"""The exchange loop: when to call the server, and what to do with its answers.

Finished jobs gather while a call is under way and leave with the next one, together with the wish for as many new
jobs as there are free slots (performance.md, "coal"). With many slots two calls may be under way, each for half
of them. There is no timer: an idle worker is woken (wake.py), a due time sets one timer (due.py). Beside it stand
calls sent ahead (ahead.py), what an answer means for a job (settling.py) and calls that failed (recovering.py).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from glidemq_py.errors import ClosedError, GlideMQError, ScriptError
from glidemq_py.job.link import QueueLink
from glidemq_py.options.worker import WorkerOptions
from glidemq_py.wire.calls import working
from glidemq_py.wire.calls.working import ExchangeFlags, ExchangeReply
from glidemq_py.worker.ahead import AheadCalls
from glidemq_py.worker.budgets import BudgetGate
from glidemq_py.worker.due import DueTimer
from glidemq_py.worker.ending import Endings
from glidemq_py.worker.finished import Finished
from glidemq_py.worker.listeners import Listeners
from glidemq_py.worker.recovering import Recovery
from glidemq_py.worker.run import Run
from glidemq_py.worker.settling import Settling, report_dropped
from glidemq_py.worker.source import QueueSource
from glidemq_py.worker.throttle import Throttle

__all__ = ["ExchangeLoop"]

_log = logging.getLogger(__name__)

MAX_ROWS = 100
"""Most jobs handed in, and taken, by one call: about a millisecond of the server's time."""
TWO_CALLS_FROM = 6
"""Slots from which on two calls may be under way."""


class ExchangeLoop:
    """Decides on, makes and evaluates exchange calls.

    Args:
        link: the queue. source: the calls by which its jobs come and go.
        consumer: this worker's name in the consumer group.
        options: of the worker.
        listeners: who is told.
        context: what the lifespan yielded, for the jobs.
    """

    def __init__(
        self,
        *,
        link: QueueLink,
        source: QueueSource,
        consumer: str,
        options: WorkerOptions,
        listeners: Listeners,
        context: Any,
    ) -> None:
        self._link = link
        self._source = source
        self._consumer = consumer
        self._options = options
        self._listeners = listeners
        self._context = context
        self._loop = asyncio.get_running_loop()
        # Looks are asked for by handlers' tasks; what comes of them must not inherit those tasks' variables.
        self._context_vars = contextvars.copy_context()
        self._runner: Endings | None = None
        self._finished: deque[Finished] = deque()
        slots = self._slots = options.slots
        # Two calls may be answered in any order, and a batch is in the order of its jobs.
        self._limit = 2 if slots >= TWO_CALLS_FROM and options.batch is None else 1
        self._second_at = max(2, slots // 3)
        self._most = max(1, min(MAX_ROWS, -(-slots // self._limit)))
        self._under_way = 0
        self._asked = 0
        self._hungry = True
        self._looks = 0
        self._failures = 0
        self._busy = False
        self._poked = False
        self._cut_off = False
        self._throttle = Throttle(options, self.look_for_jobs)
        self._due_timer = DueTimer(self._due)
        self._budgets = BudgetGate(link, listeners)
        self._settle = Settling(link.keys.name, listeners).settle
        self._calls: set[asyncio.Task[None]] = set()
        self._recovering: asyncio.Task[None] | None = None
        self._recovery = Recovery(self)
        self.ahead = AheadCalls(self)
        """Calls that are sent behind a blocking read."""
        self._changed = asyncio.Event()
        self.taking = False
        self.short_lock: Callable[[int], None] | None = None
        """Told the lock duration of a taken job that has one of its own."""
        self.owes: Callable[[], None] | None = None
        """Told that a call put something into the outbox."""
        self.schedules: Callable[[int], None] | None = None
        """Told the revision of the schedulers by every answer of a queue that has any."""
        self.idle = asyncio.Event()
        """Set while there are free slots and nothing was ready: the time to wait for a wake-up."""
        self._last_reply = self._loop.time()
        self._unanswered: float | None = None
        self.jobs_ended = 0

    def attach(self, runner: Endings) -> None:
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

    def withhold(self, slots: int) -> None:
        """See `HandIn`."""
        self._slots -= slots

    async def caught_up(self, patient: bool) -> None:
        """See `HandIn`."""
        await self.until(lambda: not (self._asked or (patient and self._will_ask)))

    @property
    def _will_ask(self) -> bool:
        return self._hungry and self.may_take and self._recovering is None and not self._cut_off and self.free > 0

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
        return self._slots - running - self._asked

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

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until ``reached`` says so; it is asked whenever something has changed."""
        self.poke()
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    @property
    def is_handed_in(self) -> bool:
        """True when the server has taken every outcome so far; handlers may still run."""
        return not self._under_way and (self._cut_off or not self._finished)

    @property
    def is_recovered(self) -> bool:
        """`is_handed_in`, and it is known what a lost reply held, if one was lost."""
        return self._recovering is None and self.is_handed_in

    @property
    def is_settled(self) -> bool:
        """True when nothing runs, nothing waits to be handed in and no call is under way."""
        return self._runner is None or (not self._runner.running and self.is_handed_in)

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
        looks = self._looks
        request = self._source.exchange(
            want, rows, self._throttle.limiter, tokens, self._budgets.charges(batch) if self._budgets.met else None
        )
        try:
            reply = await self._link.transport.call(request)
        except ClosedError as error:
            self._finished.extendleft(reversed(batch))
            self._recovery.give_up(error)
        except GlideMQError as error:
            self._recovery.failed(batch, error)
        except Exception as error:
            # A fault of ours; whatever it is, the other jobs go on.
            _log.exception("queue %r: exchange", self._link.keys.name)
            self._recovery.failed(batch, ScriptError(repr(error)))
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
        self._start_jobs(reply.jobs, reply.now, reply.budgets, batch)
        self.jobs_ended += len(batch)
        settle = self._settle
        for finished, status in zip(batch, reply.statuses, strict=True):
            settle(finished, status)
        if reply.dropped:
            report_dropped(self._link.keys.name, reply.dropped)
        flags = reply.flags
        if flags >= working.SCHEDULES:
            if self.schedules is not None:
                self.schedules(flags // working.SCHEDULES)
            flags %= working.SCHEDULES
        if flags & ExchangeFlags.OWES:
            flags -= ExchangeFlags.OWES
            if self.owes is not None:
                self.owes()
        if want:
            # A wake-up that came while the call was under way may be about a job pushed after it.
            self._hungry = not flags or looks != self._looks
        if reply.next_due >= 0:
            self._due_timer.set(reply.next_due)
        self._changed.set()
        if not self._hungry and self.taking and self.free > 0:
            self.idle.set()
            if self._busy and flags & ExchangeFlags.EXHAUSTED and self.is_settled:
                self._busy = False
                self._listeners.tell("drained")
        if self._finished or self._hungry:
            self.poke()

    def _start_jobs(
        self, jobs: list[working.TakenJob], now: int, budgets: list[Any] | None, batch: list[Finished]
    ) -> None:
        start = self._runner.start  # type: ignore[union-attr]
        if budgets is not None:
            start = self._budgets.starter(self._runner, budgets, batch)  # type: ignore[arg-type]
        if not jobs:
            return
        self._busy = True
        link, context, run_type = self._link, self._context, self._source.run_type
        for taken in jobs:
            run = run_type(link, taken, now, context)
            if run.options.lock_duration is not None and self.short_lock is not None:
                self.short_lock(run.options.lock_duration)
            start(run)

    def _due(self) -> None:
        self._hungry = True
        if (self.free <= 0 or self._throttle.holding) and not self._under_way and self._recovering is None:
            # No slot of ours is free: promote all the same, so that an idle worker is woken.
            self._start_call()
        else:
            self.look_for_jobs()

    async def close(self) -> None:
        """Stop timers and give up on calls that are under way."""
        self._due_timer.cancel()
        self._throttle.close()
        tasks = [*self._calls, *([self._recovering] if self._recovering is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
