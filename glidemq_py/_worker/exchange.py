"""The exchange loop: when to call the server.

Results that arrive while a call is in flight are reported by the next one, which also requests as many new jobs as
there are free slots. With many slots two calls may be in flight, each for half of them. There is no polling timer: an
idle worker is woken up (wake.py), and a due time sets one timer (due.py). The state is in exchange_state.py; replies
are processed by exchange_replies.py, failed calls by reconnecting.py; ahead.py sends calls behind a blocking read.
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
"""Maximum number of jobs reported, and fetched, by one call: about a millisecond of server time."""
TWO_CALLS_FROM = 6
"""Minimum number of slots for two calls in flight."""


class ExchangeLoop(ExchangeState):
    """Decides when to make exchange calls, and makes them.

    Args:
        link: The queue.
        source: Builds the calls that fetch and report jobs.
        consumer: This worker's name in the consumer group.
        options: Options of the worker.
        listeners: Get the worker events.
        context: Value yielded by the lifespan, for the jobs.
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
        # Handlers' tasks schedule the pump; the calls it makes must not inherit those tasks' context variables.
        self._context_vars = contextvars.copy_context()
        # Replies to two calls may arrive in any order, but the jobs of a batch must be in order.
        self._limit = 2 if self.slots >= TWO_CALLS_FROM and options.batch is None else 1
        self._second_at = max(2, self.slots // 3)
        self._most = max(1, min(MAX_ROWS, -(-self.slots // self._limit)))
        self._pump_scheduled = False
        self._calls: set[asyncio.Task[None]] = set()
        self.answers = ExchangeReplies(self, context, self._due)
        self.recovery = Reconnection(self, self.answers, self._forget_ahead, self._context_vars)
        self.ahead = PipelinedExchanges(self, self.answers, self.recovery)
        """Sends calls behind a blocking read."""

    def attach(self, runner: AttemptRunner) -> None:
        """Set the runner of the fetched jobs."""
        self.runner = runner

    async def _forget_ahead(self) -> None:
        await self.ahead.forget()

    # -- interface to the other components --------------------------------------------------------------------

    def report_result(self, row: list[object], run: Run, result: Any, error: BaseException | None) -> None:
        """See `ResultSink`."""
        self.finished.append(FinishedAttempt(row, run, result, error))
        if self.runner is not None and not self.runner.running:
            self._pump()  # no other job runs, so no other result can join this call
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
        """See `ResultSink`. Several requests in one iteration of the event loop run the pump once."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self.loop.call_soon(self._pump, context=self._context_vars)

    def request_jobs(self) -> None:
        """See `ExchangeState`."""
        self.jobs_may_be_ready = True
        self.wake_count += 1
        self.idle.clear()
        self._pump()

    # -- deciding -------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._pump_scheduled = False
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
            # One of these rows made the function fail. Sent alone, the failing one is identified.
            self.return_unsent(batch[1:])
            batch = batch[:1]
        tokens = self.throttle.tokens(batch)  # may start a pause, so before `may_fetch` is read
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
            # A bug of ours must not stop the other jobs.
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
            # No slot is free here, but the call also promotes due jobs, which wakes up an idle worker.
            self._start_call()
        else:
            self.request_jobs()

    async def close(self) -> None:
        """Stop timers and cancel calls in flight."""
        self.answers.due_timer.cancel()
        self.throttle.close()
        tasks = [*self._calls, *([self.recovering] if self.recovering is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.failure_log.close()
