"""Budgets of flows at a worker: no job begins where the budget is used up, and what attempts have used is counted
when they end. A worker that never meets such a job does nothing of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from glidemq_py._core.calls.working import BudgetCharge
from glidemq_py._core.keys import split_budget_key
from glidemq_py._core.logs import get_logger
from glidemq_py._features.usage.calls import check_budget
from glidemq_py._job.link import QueueLink
from glidemq_py._worker.ending import AttemptRunner
from glidemq_py._worker.finished import FinishedAttempt
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.run import Run
from glidemq_py.errors import BudgetExceededError, DelayedError, GlideMQError

__all__ = ["BudgetGate"]

_log = get_logger(__name__)

PAUSE_MS: Final = 86_400_000
"""How long a job waits whose flow is paused by its budget (api.md section 12)."""
_UNKNOWN_MS: Final = 1_000
"""How long it waits where the budget, which is in another queue, could not be asked for."""


class BudgetGate:
    """What one exchange loop does about budgets.

    Args:
        link: the queue. listeners: who is told.
    """

    def __init__(self, link: QueueLink, listeners: Listeners) -> None:
        self._link = link
        self._listeners = listeners
        self.met = False
        """A job with a budget has been taken."""

    def starter(self, runner: AttemptRunner, told: list[Any], batch: list[FinishedAttempt]) -> Callable[[Run], None]:
        """What starts the jobs of a reply in place of ``runner.start``.

        Args:
            told: of the reply: verdicts by job id, and which rows of ``batch`` (from 1) passed a limit.
            batch: what was handed in.
        """
        verdicts: dict[str, list[str]] = told[0] or {}
        passed: list[int] = told[1]
        for row in passed:
            self._tell(batch[row - 1].run)
        if not verdicts:
            return runner.start
        self.met = True

        def start(run: Run) -> None:
            key, verdict = verdicts.get(run.job.id, ("", ""))
            if key:
                run.job._budget_key = key
            if verdict == "ask":
                runner.running.add(run)
                run.task = asyncio.get_running_loop().create_task(self._ask(runner, run, key))
            else:
                self._heed(runner, run, verdict)

        return start

    async def _ask(self, runner: AttemptRunner, run: Run, key: str) -> None:
        try:
            meta, flow_id = split_budget_key(key)
        except ValueError:
            verdict = ""  # written by nobody who keeps budgets
        else:
            try:
                verdict = await self._link.transport.call(check_budget(meta, flow_id))
            except asyncio.CancelledError as error:
                runner.refuse(run, error)  # its attempt has been ended from outside: its slot is free
                return
            except GlideMQError as error:
                _log.warning("job %s of queue %r: reading its budget failed: %s", run.job.id, self._link.keys.name,
                             error)  # fmt: skip
                runner.refuse(run, DelayedError(_UNKNOWN_MS))
                return
        run.task = None
        if run.attempt.ended:
            runner.refuse(run, BudgetExceededError(run.job.id))  # it ended meanwhile: only its slot is given back
        else:
            self._heed(runner, run, verdict)

    def _heed(self, runner: AttemptRunner, run: Run, verdict: str) -> None:
        if not verdict:
            runner.start(run)
            return
        self._tell(run)
        runner.refuse(run, DelayedError(PAUSE_MS) if verdict == "pause" else BudgetExceededError(run.job.id))

    def _tell(self, run: Run) -> None:
        self._listeners.tell("budget_exceeded", run.job)

    def charges(self, batch: Iterable[FinishedAttempt]) -> list[BudgetCharge]:
        """What the attempts of a call have used of their budgets, for `exchange`."""
        charges: list[BudgetCharge] = []
        for row, finished in enumerate(batch, 1):
            job = finished.run.job
            key, usage = job._budget_key, job._usage
            if key is None:
                continue
            if usage is not None:
                charges.append((row, key, (usage.tokens, usage.costs, usage.total_tokens, usage.total_cost)))
            elif key == self._link.keys.budget(job.id):
                charges.append((row, key, False))  # the root: its end is the budget's
        return charges
