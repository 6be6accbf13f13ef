"""After a call that failed: wait for the server, hand in again, and ask for the jobs that a lost reply may have held.

A part of the exchange loop, in a file of its own; it works on the loop's state.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import Context

from glidemq_py._core.calls import working
from glidemq_py._core.logs import get_logger
from glidemq_py._worker.exchange_replies import ExchangeReplies
from glidemq_py._worker.exchange_state import ExchangeState
from glidemq_py._worker.finished import FinishedAttempt
from glidemq_py.errors import ClosedError, GlideMQConnectionError, GlideMQError, ScriptError

__all__ = ["Reconnection"]

_log = get_logger(__name__)

ROWS = 100
"""Most rows handed in again, or jobs handed back, by one call."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 5.0
_MAX_REFUSALS = 5


class Reconnection:
    """Recovers one exchange loop.

    Args:
        state: of the loop. answers: what does what an answer says.
        forget_ahead: takes back what may have been sent ahead, and regains. Raises GlideMQError.
        context: the variables that recovery runs with.
    """

    def __init__(
        self,
        state: ExchangeState,
        answers: ExchangeReplies,
        forget_ahead: Callable[[], Awaitable[None]],
        context: Context,
    ) -> None:
        self._state = state
        self._answers = answers
        self._forget_ahead = forget_ahead
        self._context = context

    def failed(self, batch: list[FinishedAttempt], error: GlideMQError) -> None:
        """A call with ``batch`` failed; it may have arrived."""
        x = self._state
        _log.warning("queue %r: exchange failed: %s", x.link.keys.name, error)
        x.listeners.tell("error", error)
        self.keep(batch, error)
        if x.recovering is None:
            x.recovering = x.loop.create_task(self.run(), name="glidemq-recover", context=self._context)

    def give_up(self, error: ClosedError) -> None:
        """Somebody closed our connection, an injected client most likely. There is no way back."""
        x = self._state
        x.disconnected = True
        _log.error(
            "queue %r: the worker's connection was closed under it; it takes no more jobs, and the outcomes of %d "
            "are left to recovery", x.link.keys.name, len(x.finished),
        )  # fmt: skip
        x.listeners.tell("error", error)

    def keep(self, batch: list[FinishedAttempt], error: GlideMQError) -> None:
        """Fencing makes handing in twice harmless, so what may have arrived is simply sent again."""
        x = self._state
        if isinstance(error, ScriptError):
            batch = [finished for finished in batch if self._may_try_again(finished, error)]
        for finished in batch:
            finished.sent = True
        x.return_unsent(batch)

    def _may_try_again(self, finished: FinishedAttempt, error: GlideMQError) -> bool:
        finished.refusals += 1
        if finished.refusals < _MAX_REFUSALS:
            return True
        _log.error(
            "job %s: reporting its result failed repeatedly; it will be recovered as stalled: %s",
            finished.run.job.id,
            error,
        )
        return False

    async def run(self) -> None:
        """Wait for the server with growing, scattered pauses; then ask for what a lost reply may have held."""
        x = self._state
        while True:
            pause = min(_FIRST_PAUSE_S * 2 ** min(self._answers.failures, 10), _LAST_PAUSE_S)
            self._answers.failures += 1
            await asyncio.sleep(pause * (0.5 + random.random()))
            while x.under_way:
                x.changed.clear()
                await x.changed.wait()
            try:
                await self._report_again()
                await self._forget_ahead()
            except ClosedError as error:
                self.give_up(error)
                break
            except GlideMQConnectionError as error:
                _log.warning("queue %r: reconnecting failed, will be retried: %s", x.link.keys.name, error)
            except Exception:
                _log.exception("queue %r: reattaching to jobs of a lost reply failed", x.link.keys.name)
                break
            else:
                break
        x.recovering = None
        x.request_jobs()

    async def _report_again(self) -> None:
        """What was lost on its way must be settled before anything is regained: a job whose failure was in the lost
        call may have been taken for us anew by that very call, and would count as known by its old row."""
        x = self._state
        while x.finished and x.finished[0].sent and not x.finished[0].refusals:
            batch = x.next_finished(ROWS)
            rows = [finished.row for finished in batch]
            x.under_way += 1
            try:
                reply = await x.link.transport.call(x.source.exchange(0, rows, charges=x.charges(batch)))
            except GlideMQError as error:
                self.keep(batch, error)
                if not isinstance(error, ScriptError):
                    raise
                return
            finally:
                x.under_way -= 1
            self._answers.evaluate(reply, batch, 0, x.wake_count)

    async def reattach(self) -> None:
        """Start what pends for us without our knowing, or hand it back where we take nothing. Raises GlideMQError."""
        x = self._state
        assert x.runner is not None
        cursor = ""
        while True:
            runs = [*x.runner.running, *(finished.run for finished in x.finished)]
            known = [run.attempt.entry for run in runs if run.attempt.entry]
            known_ids = [run.job.id for run in runs if not run.attempt.entry]
            want = max(0, x.free) if x.taking else ROWS
            reply = await x.link.transport.call(x.source.reattach(known, want, cursor, known_ids))
            if x.taking:
                self._answers.start_jobs(reply.jobs, reply.now, reply.budgets, [])
            else:
                self.hand_back(reply.jobs, reply.now)
            if reply.dropped:
                x.failure_log.dropped(reply.dropped)
            cursor = reply.cursor
            if not cursor:
                return

    def hand_back(self, jobs: list[working.FetchedJob], now: int) -> None:
        """We take no jobs any more: let others have them."""
        x = self._state
        for taken in jobs:
            run = x.source.run_type(x.link, taken, now, None)
            token = run.attempt.entry, *run.attempt.token
            x.finished.append(FinishedAttempt(working.released(run.job.id, *token), run, None, None))
