"""What a worker does for flows with budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from glidemq_py._core.calls.working import BudgetCharge, BudgetVerdicts
from glidemq_py._core.keys import split_budget_key
from glidemq_py._core.logs import get_logger
from glidemq_py._features.usage import check_budget
from glidemq_py._job.run import FinishedAttempt, Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.runner import AttemptRunner
from glidemq_py.errors import BudgetExceededError, DelayedError, GlideMQError

_log = get_logger(__name__)

PAUSE_MS: Final = 86_400_000
"""How long a job is delayed if its flow is paused by its budget."""
_UNKNOWN_MS: Final = 1_000
"""How long a job is delayed if its budget, which is in another queue, could not be read."""


class BudgetGate:
    """Checks and charges the budgets of the jobs of one exchange loop.

    Args:
        link: the queue.
        listeners: receive the event ``budget_exceeded``.
    """

    def __init__(self, link: QueueLink, listeners: Listeners) -> None:
        self._link = link
        self._listeners = listeners
        self.met = False
        """True once a job with a budget has been fetched."""

    def starter(self, runner: AttemptRunner, reply: list[Any], batch: list[FinishedAttempt]) -> Callable[[Run], None]:
        """Return the function that starts the jobs of a reply, in place of ``runner.start``.

        Args:
            runner: starts the jobs.
            reply: verdicts by job id, and the rows of ``batch`` (from 1) that exceeded a limit.
            batch: the reported attempts.
        """
        verdicts: dict[str, list[str]]
        exceeding: list[int]
        verdicts, exceeding = BudgetVerdicts(*reply)
        for row in exceeding:
            self._notify(batch[row - 1].run)
        if not verdicts:
            return runner.start
        self.met = True

        def start(run: Run) -> None:
            key, verdict = verdicts.get(run.job._stored_id, ("", ""))
            if key:
                run.job._budget_key = key
            if verdict == "ask":
                run.task = asyncio.get_running_loop().create_task(self._check(runner, run, key))
            else:
                self._apply(runner, run, verdict)

        return start

    async def _check(self, runner: AttemptRunner, run: Run, key: str) -> None:
        try:
            meta, flow_id = split_budget_key(key)
        except ValueError:
            verdict = ""  # not a budget key
        else:
            try:
                verdict = await self._link.transport.call(check_budget(meta, flow_id))
            except asyncio.CancelledError as error:
                runner.refuse(run, error)  # the attempt was cancelled from outside: its slot is free
                return
            except GlideMQError as error:
                _log.warning("queue %r: job %s delayed by %d ms: reading its budget failed: %s", self._link.queue_name,
                             run.job.id, _UNKNOWN_MS, error)  # fmt: skip
                runner.refuse(run, DelayedError(_UNKNOWN_MS))
                return
        run.task = None
        if run.attempt.ended:
            runner.refuse(run, BudgetExceededError(run.job.id))  # already ended: this only frees the slot
        else:
            self._apply(runner, run, verdict)

    def _apply(self, runner: AttemptRunner, run: Run, verdict: str) -> None:
        if not verdict:
            runner.start(run)
            return
        self._notify(run)
        runner.refuse(run, DelayedError(PAUSE_MS) if verdict == "pause" else BudgetExceededError(run.job.id))

    def _notify(self, run: Run) -> None:
        self._listeners.emit("budget_exceeded", run.job)

    def charges(self, batch: Iterable[FinishedAttempt]) -> list[BudgetCharge]:
        """Return the charges of the reported attempts, for `exchange`."""
        charges: list[BudgetCharge] = []
        for row, finished in enumerate(batch, 1):
            job = finished.run.job
            key, usage = job._budget_key, job._usage
            if key is None:
                continue
            if usage is not None:
                charges.append((row, key, (usage.tokens, usage.costs, usage.total_tokens, usage.total_cost)))
            elif key == self._link.keys.budget(job._stored_id):
                charges.append((row, key, False))  # the root job: its end starts the expiry of the budget
        return charges
