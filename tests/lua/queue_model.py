"""Model the expected state of a queue in Python: its jobs, the active ones, and the start order within groups. The
model has no keys and functions; see test_state_machine.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ENDED = ("completed", "failed")


@dataclass
class Job:
    """A job. state: ready (to run now or later), active, suspended, waiting (for its children),
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
    """Requeued after its end: it has no turn in its group."""
    revoked: bool = False
    deaths: int = 0
    limit: int = 0
    """Limit of a suspect: number of suspects that may run at one worker; 0 = no suspect."""
    early: bool = False
    """It has a signal that its handler has not received."""
    deadline: int | None = None
    parent: Job | None = None
    policy: str | None = None
    """Policy for its parent if it fails; empty if not set."""
    children: dict[str, str] = field(default_factory=dict[str, str])
    """Its children: open, completed, failed, ignored."""
    child_failed: bool = False
    """True if a child has failed that fails this job."""
    group: Group | None = field(default=None, repr=False)
    cost: int = 1_000
    """Millitokens charged to its group's bucket."""
    untouched: str = ""
    """plain, lifo or priority: nobody has touched it since it was added, so it existing where it was put."""
    order: int = 0
    """Number of the job in the order of adds."""
    removes: bool = False
    """True if its options remove it when it fails."""
    on_change: Callable[[Job, str], None] | None = field(default=None, repr=False)

    def __setattr__(self, name: str, value: Any):
        before = self.__dict__.get("state")
        super().__setattr__(name, value)
        if name == "deaths" and value == 0:
            self.limit = 0
        if name == "state" and value != before and self.__dict__.get("on_change"):
            assert self.on_change is not None
            self.on_change(self, str(before))

    def open_children(self) -> list[str]:
        """Return the pending children."""
        return [child for child, how in self.children.items() if how == "open"]

    def is_overdue(self, now: int) -> bool:
        """Return True if its suspension has timed out."""
        return self.deadline is not None and now >= self.deadline

    def may_have_failed(self, now: int) -> bool:
        """Return True if it may fail without running."""
        too_costly = self.group is not None and 0 < self.group.capacity < self.cost
        return self.revoked or too_costly or (self.expire_at is not None and now > self.expire_at)


@dataclass(slots=True)
class Window:
    """A rate limit: at most ``most`` jobs start in a window, which begins with the first of them. 0 = no limit."""

    most: int = 0
    duration: int = 0
    start: int = 0
    count: int = 0

    def left(self, now: int) -> int | None:
        if not self.most:
            return None
        return self.most - (self.count if now - self.start < self.duration else 0)

    def spend(self, now: int, number: int = 1):
        if not self.most or not number:
            return
        if now - self.start >= self.duration:
            self.start, self.count = now, 0
        self.count += number
        assert self.count <= self.most, f"{self.count} began in a window of {self.most}"


@dataclass(slots=True)
class Group:
    """A group, configured by its members' options, its peers and its operators."""

    concurrency: int = 1
    window: Window = field(default_factory=Window)
    capacity: int = 0
    refill: int = 0
    tokens: float | None = None
    filled_at: int = 0
    fastest: int = 0
    """Highest rate since the last refill: a changed rate applies from then on."""
    limited_until: int = 0
    added: int = 0

    def set_rate_limit(self, most: int, duration: int):
        if not most:
            self.window.start = self.window.count = 0
        self.window.most, self.window.duration = most, duration

    def set_bucket(self, capacity: int, refill: int):
        if not capacity:
            self.tokens = None
        elif self.tokens is None:
            self.tokens, self.fastest = capacity, refill
        self.capacity, self.refill, self.fastest = capacity, refill, max(self.fastest, refill)

    def max_tokens_at(self, now: int) -> float:
        """Return the maximum number of tokens in the bucket."""
        return min(self.capacity, (self.tokens or 0) + (now - self.filled_at) * self.fastest / 1_000)

    def min_tokens_at(self, now: int) -> float:
        """Return the minimum number of tokens in the bucket."""
        slowest = min(self.fastest, self.refill)
        return min(self.capacity, (self.tokens or 0) + (now - self.filled_at) * slowest / 1_000) - 1

    def charge(self, cost: int, now: int):
        self.window.spend(now)
        if not self.capacity:
            return
        self.tokens = self.max_tokens_at(now)
        self.filled_at, self.fastest = now, self.refill
        assert self.tokens >= cost, f"{cost} were charged to {self.tokens}"
        self.tokens -= cost


class Model:
    """All jobs of the queue."""

    def __init__(self):
        self.jobs: dict[str, Job] = {}
        self.groups: dict[str, Group] = {}
        self.paused = False
        self.by_peer = False
        """True if a peer's library executes the current operation."""
        self.dead_letters: list[str] | None = None
        """Pending dead-letter entries of our jobs, if the queue has a dead letter queue."""
        self.added = 0

    def of(self, *states: str) -> list[Job]:
        """Jobs in one of the states, oldest first."""
        return [job for job in self.jobs.values() if job.state in states]

    def holders(self, key: str, now: int) -> int:
        """Return the number of jobs that hold a slot: active jobs, and jobs between two attempts."""
        held = [job for job in self.of("active", "ready", "suspended", "waiting") if job.key == key and job.holds]
        return sum(job.state != "ready" or not job.may_have_failed(now) for job in held)

    def add(self, job_id: str, key: str | None = None, due: int = 0, expire_at: int | None = None) -> Job:
        assert job_id not in self.jobs or self.jobs[job_id].state == "gone", f"{job_id} was issued twice"
        self.added += 1
        job = self.jobs[job_id] = Job(id=job_id, key=key, due=due, expire_at=expire_at, order=self.added)
        job.on_change = self._changed
        if key is not None:
            job.group = self.group(key)
            job.group.added += 1
            job.number = job.group.added
        return job

    def group(self, key: str) -> Group:
        return self.groups.setdefault(key, Group())

    # -- families -----------------------------------------------------------------------------------------

    def depth(self, job: Job) -> int:
        """Return the number of ancestors, the job included."""
        return 1 + self.depth(job.parent) if job.parent else 0

    def _changed(self, job: Job, before: str):
        if job.state != "ready":
            job.untouched = ""
        if job.state == "failed" and self.dead_letters is not None and not self.by_peer:
            self.dead_letters.append(job.id)
        policy = job.policy or ("" if self.by_peer else "fail_parent")
        if job.state == "gone" and before not in ENDED:
            self.notify_parent(job, "removed", policy)
        elif job.state in ENDED:
            self.notify_parent(job, job.state, policy)
            if job.state == "failed" and job.removes and not self.by_peer:
                job.state = "gone"
        elif before == "failed" and job.state == "ready" and not self.by_peer:
            self.notify_parent(job, "again", policy)
            job.child_failed = False
            if job.open_children():
                job.state = "waiting"

    def notify_parent(self, child: Job, how: str, policy: str):
        """Update the child's parent with the child's outcome."""
        parent = child.parent
        if parent is None or parent.state == "gone":
            return
        children = parent.children
        if how == "again":
            if children[child.id] == "failed":
                children[child.id] = "open"
            return
        if (how != "completed" and not policy) or children[child.id] != "open":
            return
        children[child.id] = "completed" if how == "completed" else "ignored" if policy == "remove" else "failed"
        if how != "completed" and policy == "fail_parent":
            if parent.state == "waiting":
                parent.state = "failed"
            elif parent.state not in ENDED:
                parent.child_failed = True
        elif parent.state == "waiting" and not parent.open_children():
            parent.state, parent.due = "ready", 0

    def begin(self, job_id: str, now: int):
        """Record that a worker fetched the job; assert that the job was next."""
        job = self.jobs[job_id]
        assert job.state == "ready", f"{job} was fetched while it is {job.state}"
        assert job.due <= now, f"{job} was fetched {job.due - now} ms early"
        assert not job.may_have_failed(now), f"{job} was fetched although it was revoked or had expired"
        if not self.by_peer:
            self._check_order(job, now)
        job.state = "active"
        if job.group is None:
            return
        group, key = job.group, str(job.key)
        assert group.limited_until <= now, (
            f"{job} began while its group was limited until {group.limited_until}, at {now}"
        )
        if not job.holds:
            assert self.holders(key, now) < group.concurrency, f"{job} makes {key} wider than {group.concurrency}"
        job.holds = True
        if not job.begun and not job.exempt:
            late = [o for o in self.jobs.values() if o.key == key and o.number < job.number]
            late = [
                o for o in late if o.state == "ready" and not o.begun and not o.exempt and not o.may_have_failed(now)
            ]
            assert not late, f"{job} began before {late}"
        job.begun = True
        group.charge(job.cost, now)

    def _check_order(self, job: Job, now: int):
        """Check the order: priorities, then LIFO jobs (newest first), then the others (oldest first)."""
        if not job.untouched:
            return
        ranks = {"priority": (0, 1), "lifo": (1, -1), "plain": (2, 1)}
        rank, sign = ranks[job.untouched]
        for other in self.of("ready"):
            if not other.untouched or other.may_have_failed(now):
                continue
            mine, its = (rank, sign * job.order), (ranks[other.untouched][0], sign * other.order)
            assert mine <= its, f"{job} began before {other}"

    def must_be_fetched(self, job: Job, now: int) -> bool:
        """Return True if a worker with a free slot must get the job; False if that is uncertain."""
        if job.limit or job.state != "ready" or job.due > now or job.may_have_failed(now):
            return False
        if job.group is None:
            return True
        return job.group.limited_until <= now and self._has_tokens(job, now) and self._has_its_turn(job)

    def _has_tokens(self, job: Job, now: int) -> bool:
        group = job.group
        assert group is not None
        left = group.window.left(now)
        return left != 0 and (not group.capacity or group.min_tokens_at(now) >= job.cost)

    def _has_its_turn(self, job: Job) -> bool:
        if job.begun:
            return job.holds
        members = [other for other in self.of("ready", "active", "suspended", "waiting") if other.key == job.key]
        ready = [other for other in members if other.state == "ready" and other is not job]
        if job.exempt or any(other.exempt or other.begun or other.number < job.number for other in ready):
            return False
        assert job.group is not None
        return sum(other.holds for other in members) < job.group.concurrency

    def reconcile(self, job: Job, state: str | None, now: int):
        """Compare with the state on the server, ready jobs may have failed by themselves."""
        if job.state == "ready" and state in ("failed", None) and job.may_have_failed(now):
            job.state = "failed"
        expected = {
            "ready": ("waiting", "delayed", "prioritized", "group-waiting"),
            "gone": (None,),
            "waiting": ("waiting-children",),
        }.get(job.state, (job.state,))
        assert state in expected, f"{job} is {state}"
