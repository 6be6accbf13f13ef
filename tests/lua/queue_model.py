"""What a queue should look like, as a model in Python: which jobs there are, which are at work, and in which order
those of a group begin. It knows nothing of keys and functions; see test_state_machine.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ENDED = ("completed", "failed")


@dataclass
class Job:
    """A job as its owner sees it. state: ready (to run now or later), active, suspended, waiting (for its children),
    completed, failed, gone."""

    id: str
    key: str | None = None
    number: int = 0
    due: int = 0
    expire_at: int | None = None
    state: str = "ready"
    begun: bool = False
    holds: bool = False
    exempt: bool = False
    """It was brought back after its end: its turn is over."""
    revoked: bool = False
    deaths: int = 0
    early: bool = False
    """It has a signal that its handler has not been told of."""
    deadline: int | None = None
    parent: Job | None = None
    policy: str | None = None
    """What its failure means for its parent, where it says so."""
    family: dict[str, str] = field(default_factory=dict[str, str])
    """Its children: open, completed, failed, forgotten."""
    doomed: bool = False
    """A child has failed that takes it along."""
    on_change: Callable[[Job, str], None] | None = field(default=None, repr=False)

    def __setattr__(self, name: str, value: Any) -> None:
        before = self.__dict__.get("state")
        super().__setattr__(name, value)
        if name == "state" and value != before and self.__dict__.get("on_change"):
            assert self.on_change is not None
            self.on_change(self, str(before))

    def open_children(self) -> list[str]:
        """Those that it still waits for."""
        return [child for child, how in self.family.items() if how == "open"]

    def is_overdue(self, now: int) -> bool:
        """Whether it has been suspended for too long."""
        return self.deadline is not None and now >= self.deadline

    def may_have_failed(self, now: int) -> bool:
        """Whether it may fail without being run."""
        return self.revoked or (self.expire_at is not None and now > self.expire_at)


@dataclass(slots=True)
class Group:
    """A group as its members' options say."""

    width: int = 1
    rate: int = 0
    duration: int = 0
    held_until: int = 0
    began: list[int] = field(default_factory=list[int])
    added: int = 0


class Model:
    """All jobs of the queue."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.groups: dict[str, Group] = {}
        self.paused = False
        self.by_peer = False
        """Whether it is a peer's library that does what is done now."""

    def of(self, *states: str) -> list[Job]:
        """Jobs in one of the states, oldest first."""
        return [job for job in self.jobs.values() if job.state in states]

    def holders(self, key: str, now: int) -> int:
        """Jobs that run, or have begun and wait for their next attempt: each keeps its slot."""
        held = [job for job in self.of("active", "ready", "suspended", "waiting") if job.key == key and job.holds]
        return sum(job.state != "ready" or not job.may_have_failed(now) for job in held)

    def add(self, job_id: str, key: str | None = None, due: int = 0, expire_at: int | None = None) -> Job:
        assert job_id not in self.jobs or self.jobs[job_id].state == "gone", f"{job_id} was given out twice"
        job = self.jobs[job_id] = Job(id=job_id, key=key, due=due, expire_at=expire_at)
        job.on_change = self._changed
        if key is not None:
            group = self.groups.setdefault(key, Group())
            group.added += 1
            job.number = group.added
        return job

    # -- families -----------------------------------------------------------------------------------------

    def generation(self, job: Job) -> int:
        """Of how many parents in a row it is the last."""
        return 1 + self.generation(job.parent) if job.parent else 0

    def _changed(self, job: Job, before: str) -> None:
        policy = job.policy or ("" if self.by_peer else "fail_parent")
        if job.state == "gone" and before not in ENDED:
            self.tell(job, "removed", policy)
        elif job.state in ENDED:
            self.tell(job, job.state, policy)
        elif before == "failed" and job.state == "ready":
            self.tell(job, "again", policy)
            job.doomed = False
            if job.open_children():
                job.state = "waiting"

    def tell(self, child: Job, how: str, policy: str) -> None:
        """The child's parent hears how it ended."""
        parent = child.parent
        if parent is None or parent.state == "gone":
            return
        family = parent.family
        if how == "again":
            if family[child.id] == "failed":
                family[child.id] = "open"
            return
        if (how != "completed" and not policy) or family[child.id] != "open":
            return
        family[child.id] = "completed" if how == "completed" else "forgotten" if policy == "remove" else "failed"
        if how != "completed" and policy == "fail_parent":
            if parent.state == "waiting":
                parent.state = "failed"
            elif parent.state not in ENDED:
                parent.doomed = True
        elif parent.state == "waiting" and not parent.open_children():
            parent.state, parent.due = "ready", 0

    def begin(self, job_id: str, now: int) -> None:
        """The job was handed to a worker: it had to be its turn."""
        job = self.jobs[job_id]
        assert job.state == "ready", f"{job} was handed out while it is {job.state}"
        assert job.due <= now, f"{job} was handed out {job.due - now} ms early"
        assert not job.may_have_failed(now), f"{job} was handed out though it was revoked or had expired"
        job.state = "active"
        if job.key is None:
            return
        group = self.groups[job.key]
        assert group.held_until <= now, f"{job} began while its group was held until {group.held_until} (now {now})"
        if not job.holds:
            assert self.holders(job.key, now) < group.width, f"{job} makes {job.key} wider than {group.width}"
        job.holds = True
        if not job.begun and not job.exempt:
            late = [o for o in self.jobs.values() if o.key == job.key and o.number < job.number]
            late = [
                o for o in late if o.state == "ready" and not o.begun and not o.exempt and not o.may_have_failed(now)
            ]
            assert not late, f"{job} began before {late}"
        job.begun = True
        if group.rate:
            group.began.append(now)
            recent = [at for at in group.began if at > now - group.duration]
            assert len(recent) <= 2 * group.rate, f"{job.key} began {recent} at {now}"

    def reconcile(self, job: Job, state: str | None, now: int) -> None:
        """Compare with the state on the server, ready jobs may have failed by themselves."""
        if job.state == "ready" and state == "failed" and job.may_have_failed(now):
            job.state = "failed"
        expected = {
            "ready": ("waiting", "delayed", "prioritized", "group-waiting"),
            "gone": (None,),
            "waiting": ("waiting-children",),
        }.get(job.state, (job.state,))
        assert state in expected, f"{job} is {state}"
