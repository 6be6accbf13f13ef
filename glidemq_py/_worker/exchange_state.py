"""What the parts of the exchange loop know together: slots, outcomes that wait, calls under way.

`exchange` decides when to call, `answers` does what an answer says, `recovering` and `ahead` stand beside them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from glidemq_py._core.calls.working import BudgetCharge, Held
from glidemq_py._features.budgets.worker import BudgetGate
from glidemq_py._job.link import QueueLink
from glidemq_py._worker.ending import AttemptRunner
from glidemq_py._worker.failure_log import FailureLog
from glidemq_py._worker.finished import FinishedAttempt
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.source import QueueSource
from glidemq_py._worker.throttle import Throttle

__all__ = ["ExchangeState"]


class ExchangeState:
    """The state of one worker's exchange; `ExchangeLoop` is the one that acts on it.

    Args:
        link: the queue. source: the calls by which its jobs come and go.
        consumer: this worker's name in the consumer group.
        options: of the worker.
        listeners: who is told.
    """

    def __init__(
        self,
        *,
        link: QueueLink,
        source: QueueSource,
        consumer: str,
        options: WorkerOptions,
        listeners: Listeners,
    ) -> None:
        self.link = link
        self.source = source
        self.consumer = consumer
        self.options = options
        self.listeners = listeners
        self.loop = asyncio.get_running_loop()
        self.throttle = Throttle(options, self.request_jobs)
        self.budgets = BudgetGate(link, listeners)
        self.failure_log = FailureLog(
            source=source.label, queue=link.keys.name, worker_id=consumer, options=options.log_failures
        )
        self.runner: AttemptRunner | None = None
        """Who runs what is taken."""
        self.taking = False
        """False while this worker is paused by its user, and when it closes."""
        self.slots: int = options.slots
        self.requested_slots: int = 0
        """Slots that a call under way, or sent ahead, may fill."""
        self.finished: deque[FinishedAttempt] = deque()
        """Outcomes that no call has handed in yet."""
        self.under_way: int = 0
        """Calls, but for one sent ahead."""
        self.jobs_may_be_ready = True
        """There may be ready jobs."""
        self.wake_count: int = 0
        """How often somebody has said so."""
        self.idle = asyncio.Event()
        """Set while there are free slots and nothing was ready: the time to wait for a wake-up."""
        self.suspects_requested = False
        """A call under way, or sent ahead, may bring suspects: no other may."""
        self.has_suspects = False
        """One of the jobs in hand may be a suspect."""
        self.recovering: asyncio.Task[None] | None = None
        self.disconnected = False
        """The connection was closed under us."""
        self.changed = asyncio.Event()
        """Set whenever a look was taken or an answer has come."""
        self.answered_at = self.loop.time()
        """Of the last answer, seconds of the loop's clock."""
        self.unanswered_since: float | None = None
        """When the call was made that the server owes an answer to."""

    def request_jobs(self) -> None:
        """There may be ready jobs: ask for them as soon as a slot is free."""
        raise NotImplementedError

    def schedule_pump(self) -> None:
        """Something has changed: see whether there is anything to do."""
        raise NotImplementedError

    @property
    def may_fetch(self) -> bool:
        """False while this worker is paused, by its user or by a limit."""
        return self.taking and not self.throttle.holding

    @property
    def free(self) -> int:
        """Slots that neither run a job nor wait for one that was asked for."""
        running = 0 if self.runner is None else len(self.runner.running)
        return self.slots - running - self.requested_slots

    @property
    def unresponsive_seconds(self) -> float:
        """Seconds for which the server owes an answer, or for which nobody asked although slots are free.

        0 while there is nothing to ask for: every slot runs a job, or the worker takes none. Read by a thread too.
        """
        if not self.may_fetch or self.free + self.requested_slots <= 0:
            return 0.0
        # After a long time without a free slot the last answer is old, but the question is fresh.
        since = self.answered_at if self.unanswered_since is None else self.unanswered_since
        return max(0.0, self.loop.time() - since)

    @property
    def will_request(self) -> bool:
        """Whether the next look asks for jobs."""
        return (
            self.jobs_may_be_ready
            and self.may_fetch
            and self.recovering is None
            and not self.disconnected
            and self.free > 0
        )

    @property
    def all_reported(self) -> bool:
        """True when the server has taken every outcome so far; handlers may still run."""
        return not self.under_way and (self.disconnected or not self.finished)

    @property
    def is_recovered(self) -> bool:
        """`all_reported`, and it is known what a lost reply held, if one was lost."""
        return self.recovering is None and self.all_reported

    @property
    def is_drained(self) -> bool:
        """True when nothing runs, nothing waits to be handed in and no call is under way."""
        return self.runner is None or (not self.runner.running and self.all_reported)

    def next_finished(self, most: int) -> list[FinishedAttempt]:
        """Outcomes to hand in, oldest first; the caller gives back what did not arrive."""
        return [self.finished.popleft() for _ in range(min(most, len(self.finished)))]

    def return_unsent(self, batch: list[FinishedAttempt]) -> None:
        """They go first next time."""
        self.finished.extendleft(reversed(batch))

    def held(self) -> Held | None:
        """What is in hand, with what other calls may bring; None if one of these may bring suspects."""
        if self.suspects_requested or self.runner is None:
            return None
        running = self.runner.running
        count = len(running) + len(self.finished) + self.requested_slots
        if not self.has_suspects:
            return count, 0, 0
        limits = [run.suspect_limit for run in running if run.suspect_limit]
        limits += [finished.run.suspect_limit for finished in self.finished if finished.run.suspect_limit]
        self.has_suspects = bool(limits)
        return count, len(limits), min(limits, default=0)

    def charges(self, batch: list[FinishedAttempt]) -> list[BudgetCharge] | None:
        """What these have used of their flows' budgets, where the queue has any."""
        return self.budgets.charges(batch) if self.budgets.met else None

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until ``reached`` says so; it is asked whenever something has changed."""
        self.schedule_pump()
        while not reached():
            self.changed.clear()
            await self.changed.wait()
