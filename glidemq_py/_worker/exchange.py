"""The exchange loop: when to call the server.

Finished jobs gather while a call is under way and leave with the next one, together with the wish for as many new
jobs as there are free slots (performance.md, "coal"). With many slots two calls may be under way, each for half
of them. There is no timer: an idle worker is woken (wake.py), a due time sets one timer (due.py). What is known
stands in exchange_state.py; what an answer says is done by answers.py, calls that failed are recovered by
recovering.py, and ahead.py makes calls that stand behind a blocking read.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

from glidemq_py._core.calls import working
from glidemq_py._core.logs import get_logger
from glidemq_py._job.link import QueueLink
from glidemq_py._worker.ahead import PipelinedExchanges
from glidemq_py._worker.ending import AttemptRunner
from glidemq_py._worker.exchange_replies import ExchangeReplies
from glidemq_py._worker.exchange_state import ExchangeState
from glidemq_py._worker.finished import FinishedAttempt
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.reconnecting import Reconnection
from glidemq_py._worker.run import Run
from glidemq_py._worker.source import QueueSource
from glidemq_py.errors import ClosedError, GlideMQError, ScriptError

__all__ = ["ExchangeLoop"]

_log = get_logger(__name__)

MAX_ROWS = 100
"""Most jobs handed in, and taken, by one call: about a millisecond of the server's time."""
TWO_CALLS_FROM = 6
"""Slots from which on two calls may be under way."""


class ExchangeLoop(ExchangeState):
    """Decides on exchange calls and makes them.

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
        super().__init__(link=link, source=source, consumer=consumer, options=options, listeners=listeners)
        # Looks are asked for by handlers' tasks; what comes of them must not inherit those tasks' variables.
        self._context_vars = contextvars.copy_context()
        # Two calls may be answered in any order, and a batch is in the order of its jobs.
        self._limit = 2 if self.slots >= TWO_CALLS_FROM and options.batch is None else 1
        self._second_at = max(2, self.slots // 3)
        self._most = max(1, min(MAX_ROWS, -(-self.slots // self._limit)))
        self._poked = False
        self._calls: set[asyncio.Task[None]] = set()
        self.answers = ExchangeReplies(self, context, self._due)
        self.recovery = Reconnection(self, self.answers, self._forget_ahead, self._context_vars)
        self.ahead = PipelinedExchanges(self, self.answers, self.recovery)
        """Calls that are sent behind a blocking read."""

    def attach(self, runner: AttemptRunner) -> None:
        """Tell the loop who runs what it takes."""
        self.runner = runner

    async def _forget_ahead(self) -> None:
        await self.ahead.forget()

    # -- what others call -----------------------------------------------------------------------------------

    def report_result(self, row: list[object], run: Run, result: Any, error: BaseException | None) -> None:
        """See `ResultSink`."""
        self.finished.append(FinishedAttempt(row, run, result, error))
        if self.runner is not None and not self.runner.running:
            self._pump()  # nothing else runs, so nothing else will end in this turn of the event loop
        else:
            self.schedule_pump()

    def rate_limit(self, milliseconds: int) -> None:
        """See `ResultSink`."""
        self.throttle.hold(milliseconds)

    def withhold(self, slots: int) -> None:
        """See `ResultSink`."""
        self.slots -= slots

    async def caught_up(self, patient: bool) -> None:
        """See `ResultSink`."""
        await self.until(lambda: not (self.requested_slots or (patient and self.will_request)))

    def schedule_pump(self) -> None:
        """See `ResultSink`. Whatever happens in one turn of the event loop leads to one look."""
        if not self._poked:
            self._poked = True
            self.loop.call_soon(self._pump, context=self._context_vars)

    def request_jobs(self) -> None:
        """See `ExchangeState`."""
        self.jobs_may_be_ready = True
        self.wake_count += 1
        self.idle.clear()
        self._pump()

    # -- deciding -------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._poked = False
        self.changed.set()
        while self._should_call():
            self._start_call()

    def _should_call(self) -> bool:
        if self.recovering is not None or self.under_way >= self._limit or self.disconnected:
            return False
        wanted = self.free if self.jobs_may_be_ready and self.may_fetch else 0
        if self.under_way == 0:
            return bool(self.finished) or wanted > 0
        return len(self.finished) >= self._second_at or wanted >= self._second_at

    def _start_call(self) -> None:
        batch = self.next_finished(MAX_ROWS)
        if batch and batch[0].refusals:
            # One of these made the function fail; alone, it shows which.
            self.return_unsent(batch[1:])
            batch = batch[:1]
        tokens = self.throttle.tokens(batch)  # which may have been the last of this window
        want = max(0, min(self.free, self._most)) if self.may_fetch else 0
        held = self.held() if want else None
        if held is not None:
            self.suspects_requested = True
        self.requested_slots += want
        self.under_way += 1
        if self.unanswered_since is None:
            self.unanswered_since = self.loop.time()
        self.idle.clear()
        call = self.loop.create_task(self._call(batch, want, tokens, held), context=self._context_vars)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(
        self, batch: list[FinishedAttempt], want: int, tokens: working.Tokens | None, held: working.Held | None
    ) -> None:
        rows = [finished.row for finished in batch]
        wake_count = self.wake_count
        request = self.source.exchange(want, rows, self.throttle.limiter, tokens, self.charges(batch), held)
        try:
            reply = await self.link.transport.call(request)
        except ClosedError as error:
            self.return_unsent(batch)
            self.recovery.give_up(error)
        except GlideMQError as error:
            self.recovery.failed(batch, error)
        except Exception as error:
            # A fault of ours; whatever it is, the other jobs go on.
            _log.exception("queue %r: exchange failed", self.link.keys.name)
            self.recovery.failed(batch, ScriptError(repr(error)))
        else:
            self._ended(want, held)
            self.answers.evaluate(reply, batch, want, wake_count)
            return
        self._ended(want, held)
        self.changed.set()

    def _ended(self, want: int, held: working.Held | None) -> None:
        self.requested_slots -= want
        self.under_way -= 1
        if held is not None:
            self.suspects_requested = False

    def _due(self) -> None:
        self.jobs_may_be_ready = True
        if (self.free <= 0 or self.throttle.holding) and not self.under_way and self.recovering is None:
            # No slot of ours is free: promote all the same, so that an idle worker is woken.
            self._start_call()
        else:
            self.request_jobs()

    async def close(self) -> None:
        """Stop timers and give up on calls that are under way."""
        self.answers.due_timer.cancel()
        self.throttle.close()
        tasks = [*self._calls, *([self.recovering] if self.recovering is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.failure_log.close()
