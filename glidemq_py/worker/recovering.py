"""After a call that failed: wait for the server, hand in again, and ask for the jobs that a lost reply may have held.

A part of the exchange loop, in a file of its own; it works on the loop's state.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from glidemq_py.errors import ClosedError, GlideMQConnectionError, GlideMQError, ScriptError
from glidemq_py.wire.calls import working
from glidemq_py.worker.finished import Finished
from glidemq_py.worker.settling import report_dropped

if TYPE_CHECKING:
    from glidemq_py.worker.exchange import ExchangeLoop

__all__ = ["Recovery"]

_log = logging.getLogger(__name__)

ROWS = 100
"""Most rows handed in again, or jobs handed back, by one call."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 5.0
_MAX_REFUSALS = 5


class Recovery:
    """Recovers one exchange loop.

    Args:
        exchange: the loop.
    """

    def __init__(self, exchange: ExchangeLoop) -> None:
        self._exchange = exchange

    def failed(self, batch: list[Finished], error: GlideMQError) -> None:
        """A call with ``batch`` failed; it may have arrived."""
        x = self._exchange
        _log.warning("queue %r: exchange failed: %s", x._link.keys.name, error)
        x._listeners.tell("error", error)
        self.keep(batch, error)
        if x._recovering is None:
            x._recovering = x._loop.create_task(self.run(), name="glidemq-recover", context=x._context_vars)

    def give_up(self, error: ClosedError) -> None:
        """Somebody closed our connection, an injected client most likely. There is no way back."""
        x = self._exchange
        x._cut_off = True
        _log.error(
            "queue %r: the worker's connection was closed under it; it takes no more jobs, and the outcomes of %d "
            "are left to recovery", x._link.keys.name, len(x._finished),
        )  # fmt: skip
        x._listeners.tell("error", error)

    def keep(self, batch: list[Finished], error: GlideMQError) -> None:
        """Fencing makes handing in twice harmless, so what may have arrived is simply sent again."""
        x = self._exchange
        if isinstance(error, ScriptError):
            batch = [finished for finished in batch if self._may_try_again(finished, error)]
        for finished in batch:
            finished.sent = True
        x._finished.extendleft(reversed(batch))

    def _may_try_again(self, finished: Finished, error: GlideMQError) -> bool:
        finished.refusals += 1
        if finished.refusals < _MAX_REFUSALS:
            return True
        _log.error("job %s: its outcome cannot be handed in and is left to recovery: %s", finished.run.job.id, error)
        return False

    async def run(self) -> None:
        """Wait for the server with growing, scattered pauses; then ask for what a lost reply may have held."""
        x = self._exchange
        while True:
            pause = min(_FIRST_PAUSE_S * 2 ** min(x._failures, 10), _LAST_PAUSE_S)
            x._failures += 1
            await asyncio.sleep(pause * (0.5 + random.random()))
            while x._under_way:
                x._changed.clear()
                await x._changed.wait()
            try:
                await self._hand_in_again()
                await x.ahead.forget()
            except ClosedError as error:
                self.give_up(error)
                break
            except GlideMQConnectionError as error:
                _log.warning("queue %r: still no connection: %s", x._link.keys.name, error)
            except Exception:
                _log.exception("queue %r: asking for what a lost reply held", x._link.keys.name)
                break
            else:
                break
        x._recovering = None
        x.look_for_jobs()

    async def _hand_in_again(self) -> None:
        """What was lost on its way must be settled before anything is regained: a job whose failure was in the lost
        call may have been taken for us anew by that very call, and would count as known by its old row."""
        x = self._exchange
        while x._finished and x._finished[0].sent and not x._finished[0].refusals:
            batch = [x._finished.popleft() for _ in range(min(ROWS, len(x._finished)))]
            rows = [finished.row for finished in batch]
            charges = x._budgets.charges(batch) if x._budgets.met else None
            x._under_way += 1
            try:
                reply = await x._link.transport.call(x._source.exchange(0, rows, charges=charges))
            except GlideMQError as error:
                self.keep(batch, error)
                if not isinstance(error, ScriptError):
                    raise
                return
            finally:
                x._under_way -= 1
            x._evaluate(reply, batch, 0, x._looks)

    async def regain(self) -> None:
        """Start what pends for us without our knowing, or hand it back where we take nothing. Raises GlideMQError."""
        x = self._exchange
        assert x._runner is not None
        cursor = ""
        while True:
            runs = [*x._runner.running, *(finished.run for finished in x._finished)]
            known = [run.attempt.entry for run in runs if run.attempt.entry]
            known_ids = [run.job.id for run in runs if not run.attempt.entry]
            want = max(0, x.free) if x.taking else ROWS
            reply = await x._link.transport.call(x._source.regain(known, want, cursor, known_ids))
            if x.taking:
                x._start_jobs(reply.jobs, reply.now, reply.budgets, [])
            else:
                self.hand_back(reply.jobs, reply.now)
            if reply.dropped:
                report_dropped(x._link.keys.name, reply.dropped)
            cursor = reply.cursor
            if not cursor:
                return

    def hand_back(self, jobs: list[working.TakenJob], now: int) -> None:
        """We take no jobs any more: let others have them."""
        x = self._exchange
        for taken in jobs:
            run = x._source.run_type(x._link, taken, now, None)
            token = run.attempt.entry, *run.attempt.token
            x._finished.append(Finished(working.released(run.job.id, *token), run, None, None))
