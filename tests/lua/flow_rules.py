"""Rules for parents and children in one queue, for test_state_machine.py: the effect of each outcome of a child."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.inside import calls as flows
from tests.inside import row, working
from tests.lua.own_support import Fetched, OwnQueue
from tests.lua.queue_model import ENDED, Job, Model

WAITING_CHILDREN, FAILED = 10, 5
MAX_DEPTH = 5
"""Number of generations of parents that are failed in one step."""
PICK = st.integers(0, 10_000)


class FlowRules:
    """A part of the machine."""

    q: OwnQueue
    model: Model
    run: Any
    active_jobs: dict[str, Fetched]

    def _any_job(self, pick: int) -> Job:
        raise NotImplementedError

    def _notice_failures(self):
        raise NotImplementedError

    @precondition(lambda self: self.model.jobs)
    @rule(
        pick=PICK, policy=st.sampled_from((None, "fail_parent", "ignore", "remove")), count=st.integers(1, 3),
        timed=st.sampled_from(({}, {}, {}, {"delay": 30}, {"priority": 1}, {"ttl": 60}, {"lifo": True})),
        at_work=st.booleans(),
    )  # fmt: skip
    def add_children(self, pick: int, policy: str | None, count: int, timed: Any, at_work: bool):
        active = self.model.of("active", "waiting")
        parent = active[pick % len(active)] if at_work and active else self._any_job(pick)
        if self.model.depth(parent) >= MAX_DEPTH:
            return
        self._add_children(parent, policy, count, timed)

    def _add_children(self, parent: Job, policy: str | None, count: int, timed: Any):
        name = self.q.name
        opts = f'{{"onFailure":"{policy}"}}' if policy else "{}"
        added = self.q.add(*(row("child", "{}", opts, parent=[parent.id, name], **timed) for _ in range(count)))
        now, ttl = self.q.now, timed.get("ttl")
        for child in added:
            if parent.state == "gone":
                assert child == ["parent", "gone"]
            elif parent.state in ENDED:
                assert child == ["parent", parent.state]
            else:
                job = self.model.add(child, due=now + timed.get("delay", 0), expire_at=now + ttl if ttl else None)
                job.parent, job.policy = parent, policy
                parent.children[job.id] = "open"

    @precondition(lambda self: self.active_jobs)
    @rule(
        pick=PICK, policies=st.lists(st.sampled_from((None, "fail_parent", "ignore", "remove")), min_size=1, max_size=3)
    )
    def add_and_wait_for_children(self, pick: int, policies: list[str | None]):
        """Add children and wait for them, as most handlers do."""
        job_id = list(self.active_jobs)[pick % len(self.active_jobs)]
        job = self.model.jobs[job_id]
        if self.model.depth(job) >= MAX_DEPTH:
            return
        for policy in policies:
            self._add_children(job, policy, 1, {})
        finished, status = self._wait_for_children(self.active_jobs.pop(job_id), job)
        assert self.q.finish(finished) == [status]

    @precondition(lambda self: any(job.parent for job in self.model.of("active") if job.id in self.active_jobs))
    @rule(pick=PICK, fail=st.booleans())
    def end_child(self, pick: int, fail: bool):
        children = [job_id for job_id in self.active_jobs if self.model.jobs[job_id].parent]
        job = self.model.jobs[children[pick % len(children)]]
        fetched = self.active_jobs.pop(job.id)
        assert self.q.finish(fetched.failed() if fail else fetched.completed()) == [FAILED if fail else 0]
        job.state = "failed" if fail else "completed"

    def _wait_for_children(self, fetched: Fetched, job: Job) -> tuple[Any, int]:
        finished = working.waiting_children(*fetched.token)
        if job.revoked or job.child_failed:
            job.state = "failed"
            return finished, FAILED
        job.due = 0
        job.state = "waiting" if job.open_children() else "ready"
        return finished, WAITING_CHILDREN

    @rule()
    def watch(self):
        """Find children that a peer failed without notifying their parents."""
        ends: list[flows.ChildOutcome] = []
        more = 1
        while more:
            rows, more, *_ = self.run(flows.watch_children(self.q.meta, 0, 0, 0, 0))
            for parent, members in rows:
                ids = [member.rpartition(":")[2] for member in members]
                assert set(ids) == set(self.model.jobs[parent].open_children()), parent
                reply = self.run(flows.child_outcomes(self.q.meta, ids))
                assert bool(reply.outbox_pending) == bool(self.q.redis("XLEN", "outbox"))
                ends += [
                    flows.ChildOutcome(parent, member, *outcome)
                    for member, outcome in zip(members, reply.rows, strict=True)
                    if not isinstance(outcome, bool)
                ]
        unnotified = {
            (parent.id, child)
            for parent in self.model.of("waiting")
            for child in parent.open_children()
            if self.model.jobs[child].state in (*ENDED, "gone")
        }
        assert {(end.parent, end.member.rpartition(":")[2]) for end in ends} == unnotified
        self.run(flows.children_ended(self.q.meta, ends))
        for end in ends:
            self.model.notify_parent(self.model.jobs[end.member.rpartition(":")[2]], end.how, end.policy)
