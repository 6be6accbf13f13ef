"""Suspensions, for the machine of test_state_machine.py: signals early and late, time-outs, and what revokes them."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.inside import suspend as suspending
from tests.inside import working
from tests.lua.own_support import Fetched, OwnQueue
from tests.lua.queue_model import ENDED, Job, Model

SUSPENDED, FAILED = 11, 5
SUSPEND_TIMEOUT = 45
PICK = st.integers(0, 10_000)


class SuspensionRules:
    """A part of the machine."""

    q: OwnQueue
    model: Model
    run: Any

    def _any_job(self, pick: int) -> Job:
        raise NotImplementedError

    def _suspend(self, fetched: Fetched, job: Job, timeout: int) -> tuple[Any, int]:
        row = working.suspended(*fetched.token, "", timeout)
        if job.revoked:
            job.state = "failed"
            return row, FAILED
        job.state, job.due = "ready", 0
        if not job.early:
            job.state = "suspended"
            job.deadline = self.q.now + timeout if timeout else None
        job.early = False
        return row, SUSPENDED

    @precondition(lambda self: self.model.jobs)
    @rule(pick=PICK, among=st.booleans())
    def signal(self, pick: int, among: bool):
        suspended = self.model.of("suspended")
        job = suspended[pick % len(suspended)] if among and suspended else self._any_job(pick)
        answer = self.run(suspending.deliver_signal(self.q.meta, job.id, "go", ""))
        if job.state == "gone":
            assert answer == "gone"
        elif job.state in ENDED:
            assert answer == "ended"
        elif job.state != "suspended":
            assert answer == "kept"
            job.early = True
        elif job.is_overdue(self.q.now):
            assert answer == "ended"
            job.state = "failed"
        else:
            assert answer == "resumed"
            job.state, job.due = "ready", 0

    @rule()
    def sweep_suspended(self):
        overdue = [job for job in self.model.of("suspended") if job.is_overdue(self.q.now)]
        swept = self.run(suspending.sweep(self.q.meta))
        assert sorted(swept.failed) == sorted(job.id for job in overdue)
        for job in overdue:
            job.state = "failed"
        deadlines = [job.deadline for job in self.model.of("suspended") if job.deadline is not None]
        assert swept.next_due == (min(deadlines) - self.q.now if deadlines else -1)
