"""Handles failed calls: reconnects, reports pending results again, and reattaches to jobs of a lost reply.

A component of the exchange loop; it works on the loop's state.
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
from glidemq_py.errors import ClosedError, GlideMQConnectionError, GlideMQError, ScriptError, UnsupportedFeatureError

__all__ = ["Reconnection"]

_log = get_logger(__name__)

ROWS = 100
"""Maximum number of rows reported again, or jobs released, by one call."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 5.0
_MAX_REFUSALS = 5


class Reconnection:
    """Reconnects one exchange loop.

    Args:
        state: State of the loop.
        answers: Processes replies.
        forget_ahead: Cancels a call that was sent ahead, and reattaches. Raises GlideMQError.
        context: Context variables of the reconnect task.
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
        """Handle a failed call that reported ``batch``; the server may have executed it."""
        x = self._state
        if isinstance(error, UnsupportedFeatureError):
            x.return_unsent(batch)
            self.refuse(error)
            return
        _log.warning("queue %r: exchange failed: %s", x.link.keys.name, error)
        x.listeners.tell("error", error)
        self.keep(batch, error)
        if x.recovering is None:
            x.recovering = x.loop.create_task(self.run(), name="glidemq-recover", context=self._context)

    def give_up(self, error: ClosedError) -> None:
        """Stop fetching: the connection (most likely an injected client) was closed by its owner."""
        x = self._state
        x.disconnected = True
        _log.error(
            "queue %r: the worker's connection was closed by its owner; fetching stopped, and %d pending results are "
            "not reported (their jobs will stall and be recovered)", x.link.keys.name, len(x.finished),
        )  # fmt: skip
        x.listeners.tell("error", error)

    def refuse(self, error: UnsupportedFeatureError) -> None:
        """Stop every call about the queue and close the worker: every call would be rejected. Idempotent."""
        x = self._state
        if x.disconnected:
            return
        x.disconnected = True
        _log.critical(
            "%s; the worker closes, and %d pending results are not reported (their jobs will stall and be recovered by "
            "newer workers)", error, len(x.finished),
        )  # fmt: skip
        x.listeners.tell("error", error)
        x.on_unsupported(error)

    def keep(self, batch: list[FinishedAttempt], error: GlideMQError) -> None:
        """Keep results to report again. The fencing token makes a second report harmless."""
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
        """Retry with growing, jittered pauses until the server replies; then reattach to jobs of a lost reply."""
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
            except UnsupportedFeatureError as error:
                self.refuse(error)
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
        """Report results of failed calls again, before reattaching.

        A lost call may have reported a job's failure and fetched the same job for its retry. Its pending row would make
        `reattach` treat the new attempt as known.
        """
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
        """Start the jobs that a lost reply contained, or release them if the worker does not fetch.

        Raises:
            GlideMQError: If a call fails.
        """
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
                self.release(reply.jobs, reply.now)
            if reply.dropped:
                x.failure_log.dropped(reply.dropped)
            cursor = reply.cursor
            if not cursor:
                return

    def release(self, jobs: list[working.FetchedJob], now: int) -> None:
        """Release fetched jobs unstarted, because this worker no longer fetches."""
        x = self._state
        for taken in jobs:
            run = x.source.run_type(x.link, taken, now, None)
            token = run.attempt.entry, *run.attempt.token
            x.finished.append(FinishedAttempt(working.released(run.job.id, *token), run, None, None))
