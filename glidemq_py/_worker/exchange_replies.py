"""Processes the replies of exchange calls: starts jobs, settles results, evaluates flags.

A component of the exchange loop; it works on the loop's state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glidemq_py._core.calls import working
from glidemq_py._core.calls.working import ExchangeFlags, ExchangeReply
from glidemq_py._worker.due import DueTimer
from glidemq_py._worker.exchange_state import ExchangeState
from glidemq_py._worker.finished import FinishedAttempt
from glidemq_py._worker.settling import OutcomeReporting

__all__ = ["ExchangeReplies"]


class ExchangeReplies:
    """Processes the replies to one loop's calls.

    Args:
        state: State of the loop.
        context: Value yielded by the lifespan, for the jobs.
        due: Called when a job of the queue is due.
    """

    def __init__(self, state: ExchangeState, context: Any, due: Callable[[], None]) -> None:
        self._state = state
        self._context = context
        self.due_timer = DueTimer(due)
        self._settle = OutcomeReporting(state.link.keys.name, state.listeners, state.failure_log).settle
        self._busy = False
        self.failures = 0
        """Number of attempts to reconnect since the last reply."""
        self.jobs_ended = 0
        self.short_lock: Callable[[int], None] | None = None
        """Called with the lock duration (ms) of a fetched job that has its own."""
        self.outbox_pending: Callable[[], None] | None = None
        """Called when a reply reports that the outbox has entries."""
        self.schedules: Callable[[int], None] | None = None
        """Called with the revision of the schedulers for every reply of a queue that has schedulers."""

    def evaluate(self, reply: ExchangeReply, batch: list[FinishedAttempt], want: int, wake_count: int) -> None:
        """Process the reply to a call.

        Args:
            reply: The reply.
            batch: The results that the call reported.
            want: Number of jobs that it requested.
            wake_count: The loop's `wake_count` when the call was made.
        """
        x = self._state
        self.failures = 0
        x.answered_at = x.loop.time()
        x.unanswered_since = None
        self.start_jobs(reply.jobs, reply.now, reply.budgets, batch)
        self.jobs_ended += len(batch)
        settle = self._settle
        for finished, status in zip(batch, reply.statuses, strict=True):
            settle(finished, status)
        if reply.dropped:
            x.failure_log.dropped(reply.dropped)
        flags = self._forward(reply.flags)
        if want:
            # A wake-up during the call may be for a job that was added after the server ran the call.
            x.jobs_may_be_ready = not flags or wake_count != x.wake_count
        if reply.next_due >= 0:
            self.due_timer.set(reply.next_due)
        x.changed.set()
        if not x.jobs_may_be_ready and x.taking and x.free > 0:
            x.idle.set()
            if self._busy and flags & ExchangeFlags.EXHAUSTED and x.is_drained:
                self._busy = False
                x.listeners.tell("drained")
        if x.finished or x.jobs_may_be_ready:
            x.schedule_pump()

    def _forward(self, flags: int) -> int:
        """Call the callbacks of set flags; return the flags that explain why no more jobs were fetched."""
        if flags >= working.SCHEDULES:
            if self.schedules is not None:
                self.schedules(flags // working.SCHEDULES)
            flags %= working.SCHEDULES
        if flags & ExchangeFlags.OUTBOX_PENDING:
            flags -= ExchangeFlags.OUTBOX_PENDING
            if self.outbox_pending is not None:
                self.outbox_pending()
        return flags

    def start_jobs(
        self, jobs: list[working.FetchedJob], now: int, budgets: list[Any] | None, batch: list[FinishedAttempt]
    ) -> None:
        """Start the fetched jobs that their budgets allow."""
        x = self._state
        runner = x.runner
        assert runner is not None
        start = runner.start if budgets is None else x.budgets.starter(runner, budgets, batch)
        if not jobs:
            return
        self._busy = True
        link, context, run_type = x.link, self._context, x.source.run_type
        for taken in jobs:
            run = run_type(link, taken, now, context)
            if run.suspect_limit:
                x.has_suspects = True
            if run.options.lock_duration is not None and self.short_lock is not None:
                self.short_lock(run.options.lock_duration)
            start(run)
