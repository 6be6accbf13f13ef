"""The shared state of the exchange loop's components: slots, pending results, calls in flight.

`exchange` decides when to call, `exchange_replies` processes replies, `reconnecting` handles failed calls, and `ahead`
sends calls behind a blocking read.
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
from glidemq_py.errors import UnsupportedFeatureError

__all__ = ["ExchangeState"]


def _ignore(_: UnsupportedFeatureError) -> None:
    pass


class ExchangeState:
    """The state of one worker's exchange; `ExchangeLoop` acts on it.

    Args:
        link: The queue.
        source: Builds the calls that fetch and report jobs.
        consumer: This worker's name in the consumer group.
        options: Options of the worker.
        listeners: Get the worker events.
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
        """Runs the fetched jobs."""
        self.taking = False
        """False before the start, while the worker is paused, and when it closes."""
        self.slots: int = options.slots
        self.requested_slots: int = 0
        """Slots that a call in flight, or sent ahead, may fill."""
        self.finished: deque[FinishedAttempt] = deque()
        """Results that are not reported yet."""
        self.under_way: int = 0
        """Number of calls in flight, without one sent ahead."""
        self.jobs_may_be_ready = True
        """False once a call has found no more ready jobs, until the next wake-up."""
        self.wake_count: int = 0
        """Number of wake-ups so far."""
        self.idle = asyncio.Event()
        """Set while slots are free and no jobs are ready: the wake-up reader waits for a wake-up then."""
        self.suspects_requested = False
        """True if a call in flight, or sent ahead, may fetch suspects. Only one such call is made at a time."""
        self.has_suspects = False
        """True if one of this worker's jobs may be a suspect."""
        self.recovering: asyncio.Task[None] | None = None
        self.disconnected = False
        """True once the connection was closed by something other than this worker, or the queue cannot be used."""
        self.on_unsupported: Callable[[UnsupportedFeatureError], None] = _ignore
        """Closes the worker: the queue uses a feature that this version does not have."""
        self.changed = asyncio.Event()
        """Set whenever the pump ran or a reply was processed."""
        self.answered_at = self.loop.time()
        """Time of the last reply, in seconds of the loop's clock."""
        self.unanswered_since: float | None = None
        """Time of the oldest call without a reply since the last reply; None if there is none."""

    def request_jobs(self) -> None:
        """Fetch jobs as soon as a slot is free: there may be ready ones."""
        raise NotImplementedError

    def schedule_pump(self) -> None:
        """Run the pump soon: the state has changed and a call may be due."""
        raise NotImplementedError

    @property
    def may_fetch(self) -> bool:
        """True unless this worker is paused or rate limited."""
        return self.taking and not self.throttle.holding

    @property
    def free(self) -> int:
        """Number of slots that neither run a job nor may be filled by a call in flight."""
        running = 0 if self.runner is None else len(self.runner.running)
        return self.slots - running - self.requested_slots

    @property
    def unresponsive_seconds(self) -> float:
        """Seconds since the oldest unanswered call, or since the last reply if no call is in flight.

        0 while no call is expected: every slot runs a job, or the worker does not fetch. Also read from a thread.
        """
        if not self.may_fetch or self.free + self.requested_slots <= 0:
            return 0.0
        # After a long time without a free slot the last reply is old, so the time of the call counts.
        since = self.answered_at if self.unanswered_since is None else self.unanswered_since
        return max(0.0, self.loop.time() - since)

    @property
    def will_request(self) -> bool:
        """True if the next run of the pump requests jobs."""
        return (
            self.jobs_may_be_ready
            and self.may_fetch
            and self.recovering is None
            and not self.disconnected
            and self.free > 0
        )

    @property
    def all_reported(self) -> bool:
        """True when every result so far is reported; handlers may still run."""
        return not self.under_way and (self.disconnected or not self.finished)

    @property
    def is_recovered(self) -> bool:
        """True when `all_reported`, and the jobs of lost replies have been found."""
        return self.recovering is None and self.all_reported

    @property
    def is_drained(self) -> bool:
        """True when no handler runs, no result is pending and no call is in flight."""
        return self.runner is None or (not self.runner.running and self.all_reported)

    def next_finished(self, most: int) -> list[FinishedAttempt]:
        """Take results to report, oldest first. The caller passes those that did not arrive to `return_unsent`."""
        return [self.finished.popleft() for _ in range(min(most, len(self.finished)))]

    def return_unsent(self, batch: list[FinishedAttempt]) -> None:
        """Put results back at the front, to be reported by the next call."""
        self.finished.extendleft(reversed(batch))

    def held(self) -> Held | None:
        """Return the counts of this worker's jobs and suspects; None if another call may already fetch suspects."""
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
        """Return the usage to charge to the flows' budgets; None if no job with a budget was seen."""
        return self.budgets.charges(batch) if self.budgets.met else None

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until ``reached`` returns True; it is called after every change."""
        self.schedule_pump()
        while not reached():
            self.changed.clear()
            await self.changed.wait()
