"""The ledger of a simulation: what was acknowledged, what ended, and what is wrong with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextvars import ContextVar
from dataclasses import dataclass, field

from tests.simulation.feature_rules import judge_features

__all__ = ["BEGAN", "Batch", "Ledger", "Verdict"]

BEGAN: ContextVar[float] = ContextVar("BEGAN")
"""When the present add began, simulated seconds."""

ENDS = ("completed", "failed", "expired")
MAY_FAIL = {"failing", "failing_flow", "ttl", "suspended", "timeout", "cancelled"}
"""Kinds of jobs that may fail."""


CALLBACKS = ("complete-of-", "success-of-", "failure-of-")
"""Prefixes of the names of the jobs that batches add."""


@dataclass(slots=True)
class Verdict:
    """The result of a run. ``problems`` is empty if it is good."""

    seed: int
    jobs: int = 0
    acknowledged: int = 0
    completed: int = 0
    failed: int = 0
    runs: int = 0
    excused: int = 0
    """Acknowledged adds that a failover may have lost."""
    messages: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    trace: str = ""
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    """Processor time of the run, by `runs.run_seed`."""
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Batch:
    """A job batch.

    Attributes:
        members: ids of the jobs that may join.
        closed_at: when `JobBatch.close` was acknowledged.
        is_lost: a failover has lost some of it.
        has_failed: one of its jobs has failed at some time.
        exists: False if a failover has lost it, or its producer was killed before it was created.
        is_torn: a failover has lost the first calls of an add, not the last one: a job is in no batch.
    """

    members: set[str]
    closed_at: float | None = None
    is_lost: bool = False
    has_failed: bool = False
    exists: bool = True
    is_torn: bool = False


class Ledger:
    """What the producers and handlers did, and the events that the server wrote.

    The log of the server's events is cut back together with the server's state, so what a failover has lost does not
    count as done.
    """

    def __init__(self):
        self.attempted: dict[str, str] = {}
        """Kind of each job whose add was attempted, by id."""
        self.acknowledged: dict[str, float] = {}
        self.excused: set[str] = set()
        self.durable: set[str] = set()
        """Jobs whose adds were durable: no failover excuses their loss."""
        self.may_stall_out = False
        """True if a job may fail because two of its leases expired."""
        self.published: dict[str, float] = {}
        """When each message of the broadcast was acknowledged."""
        self.runs = 0
        self.names: dict[str, str] = {}
        """Names of the jobs."""
        self.groups: dict[str, str] = {}
        """Ordering group of jobs that are added once, by id."""
        self.log: list[dict[bytes, bytes]] = []
        self.schedulers: dict[str, tuple[int, int]] = {}
        """Least and greatest number of runs of each scheduler, by name."""
        self.scheduled_at: dict[str, float] = {}
        """When each scheduler was acknowledged."""
        self.may_retry_failed = False
        """True if the failure policy requeues failed jobs."""
        self.failovers = 0
        self._lost: list[tuple[float, float]] = []
        self.holds_leases = self.loses_workers = self.loses_messages = False
        """True if some jobs are fetched without a worker; if workers are killed or closed; if messages may be lost."""
        self.steps_clock = False
        """True if the server's clock steps."""
        self.batches: dict[str, Batch] = {}
        self.replacing: dict[str, str] = {}
        """Deduplication id of each job that replaces others, by id."""
        self.rejected_adds = 0
        """Number of adds that the maximum backlog has rejected."""
        self.promotions: dict[str, float | None] = {}
        """When `Queue.jobs.promote_delayed` was acknowledged, by the name of the jobs."""
        self.requeues: list[tuple[float, int]] = []
        """When `Queue.jobs.requeue_completed` was acknowledged, and how many jobs it has requeued."""
        self.exclusive: set[str] = set()
        """Names of schedulers whose jobs must not overlap."""
        self.cancelled: set[str] = set()
        """Jobs whose worker has confirmed that it cancels them."""
        self.started: Counter[str] = Counter()
        """Number of runs that each worker has started, by its id."""
        self.effects: dict[tuple[str, str], list[int]] = defaultdict(list)
        """Effects of the steps of jobs, by job and step."""
        self.results: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
        """The results of steps that handlers have got, each with the number of failovers before."""
        self.carried = 0
        """Number of runs that got a context variable of the producer."""
        self.found: list[str] = []
        """Problems that handlers and producers have found."""
        self.unsure: set[str] = set()
        """Deduplicated jobs that need not exist: their add was repeated, or another one replaced them."""

    def acknowledge(self, job_id: str, at: float):
        """Record that an add has returned. A failover before that may have lost what the add had written."""
        self.acknowledged.setdefault(job_id, at)
        if job_id not in self.durable and self.may_be_lost(at):
            self.excused.add(job_id)

    def may_be_lost(self, at: float) -> bool:
        """Return whether a failover may have lost what an add has written that has returned at this time."""
        began = BEGAN.get(at)
        return any(began <= last and at >= first for first, last in self._lost)

    def lost_since(self, first: float, last: float):
        """A failover lost the writes of this time."""
        self.failovers += 1
        self._lost.append((first, last))
        for job_id, at in (self.acknowledged | self.published).items():
            if first <= at <= last and job_id not in self.durable:
                self.excused.add(job_id)
        for name, at in self.scheduled_at.items():
            if first <= at <= last:
                self.schedulers.pop(name, None)
        for batch in self.batches.values():
            batch.is_lost = batch.is_lost or (batch.closed_at is not None and first <= batch.closed_at <= last)
        for name, promoted in self.promotions.items():
            if promoted is not None and first <= promoted <= last:
                self.promotions[name] = None
        self.requeues = [(at, count) for at, count in self.requeues if not first <= at <= last]

    def events(self) -> dict[str, list[str]]:
        """Return the names of the events of each job, in order."""
        found: dict[str, list[str]] = defaultdict(list)
        for event in self.log:
            # The event of a bulk requeue has the number of jobs as its id.
            is_bulk = event[b"event"] == b"retried" and event[b"queue"] == b"again"
            if b"jobId" in event and event[b"event"] != b"state" and not is_bulk:
                found[event[b"jobId"].decode()].append(event[b"event"].decode())
        return found

    def judge(self, verdict: Verdict, present: set[str]):
        """Fill in the verdict. ``present``: ids of the jobs that are stored and have not ended."""
        problems = verdict.problems
        events = self.events()
        for event in self.log:
            if event[b"event"] == b"added":
                self.names[event[b"jobId"].decode()] = event[b"name"].decode()
        ends = {job_id: [each for each in names if each in ENDS] for job_id, names in events.items()}
        verdict.jobs, verdict.acknowledged, verdict.runs = len(self.attempted), len(self.acknowledged), self.runs
        verdict.completed = sum(names.count("completed") for names in ends.values())
        verdict.failed = sum(names.count("failed") for names in ends.values())
        verdict.excused = len(self.excused)
        for job_id in self.acknowledged:
            if not ends.get(job_id) and job_id not in self.excused | self.unsure | self.replacing.keys():
                what = "is stuck" if job_id in present else "is lost"
                problems.append(f"job {job_id} ({self.attempted[job_id]}) {what}: {events.get(job_id, [])}")
        for job_id, found in ends.items():
            kind = self.attempted.get(job_id)
            if kind is None and not self.names.get(job_id, "").startswith(("scheduler", *CALLBACKS)):
                problems.append(f"unexpected job {job_id}: {events[job_id]}")
            most = max(1, events[job_id].count("added"))  # a removed job may be added again
            if self.may_retry_failed and (kind in MAY_FAIL or self.has_stalled_out(job_id)):
                most += events[job_id].count("retried")
            if kind == "requeued":
                most = len(found)  # feature_rules counts them
            if len(found) > most:
                problems.append(f"job {job_id} ({kind}) ended {len(found)} times: {events[job_id]}")
            if set(found) - {"completed"} and kind not in MAY_FAIL and not self.has_stalled_out(job_id):
                problems.append(f"job {job_id} ({kind}) failed: {self.last(job_id)}")
            if "completed" in found and kind == "failing":
                problems.append(f"job {job_id} must fail, but completed")
        self._judge_attempts(problems)
        self._judge_groups(problems)
        self._judge_dependencies(problems)
        self._judge_schedulers(problems, ends)
        judge_features(self, problems)

    def has_stalled_out(self, job_id: str) -> bool:
        """Return True if the job has failed because two of its leases expired."""
        wanted = job_id.encode()
        return self.may_stall_out and any(
            b"stalled more than" in event.get(b"failedReason", b"")
            for event in self.log if event.get(b"jobId") == wanted
        )  # fmt: skip

    def last(self, job_id: str) -> dict[bytes, bytes]:
        """Return the last event of a job."""
        wanted = job_id.encode()
        return next(each for each in reversed(self.log) if each.get(b"jobId") == wanted and each[b"event"] != b"state")

    def _judge_attempts(self, problems: list[str]):
        """A job must be completed by its last attempt; the handlers return the fencing token, which counts attempts."""
        last: dict[bytes, bytes] = {}
        for event in self.log:
            job_id, name = event.get(b"jobId", b""), event[b"event"]
            if name == b"activated":
                last[job_id] = event[b"fence"]
            elif name == b"completed" and event[b"returnvalue"] != b'"%s"' % last.get(job_id, b""):
                result, token = event[b"returnvalue"].decode(), last.get(job_id, b"").decode()
                problems.append(f"job {job_id.decode()} completed by attempt {result}, but its last one is {token}")

    def _judge_groups(self, problems: list[str]):
        """Jobs of a group must become active for the first time in the order in which they were added."""
        added: dict[str, list[str]] = defaultdict(list)
        active: dict[str, dict[str, None]] = defaultdict(dict)
        for event in self.log:
            job_id = event.get(b"jobId", b"").decode()
            group = self.groups.get(job_id)
            if group is not None and event[b"event"] == b"added":
                added[group].append(job_id)
            elif group is not None and event[b"event"] == b"activated":
                active[group].setdefault(job_id)
        for group, all_ids in added.items():
            ids = [job_id for job_id, count in Counter(all_ids).items() if count == 1]  # not added again after removal
            started = [job_id for job_id in active[group] if job_id in set(ids)]
            expected = [job_id for job_id in ids if job_id in active[group]]
            if started != expected:
                at = next(n for n, (a, b) in enumerate(zip(started, expected, strict=True)) if a != b)
                problems.append(f"group {group}: {started[at]} started before {expected[at]}, which was added earlier")

    def _judge_dependencies(self, problems: list[str]):
        """The last job of three must become active after the two others have ended."""
        ended: set[str] = set()
        for event in self.log:
            job_id = event.get(b"jobId", b"").decode()
            if self.attempted.get(job_id) != "dependent":
                continue
            if event[b"event"].decode() in ENDS:
                ended.add(job_id)
            others = {job_id[:-1] + n for n in "01"}
            if event[b"event"] == b"activated" and job_id.endswith("-2") and not others <= ended:
                problems.append(f"job {job_id} started before its dependencies {sorted(others - ended)} had ended")

    def _judge_schedulers(self, problems: list[str], ends: dict[str, list[str]]):
        counts: Counter[str] = Counter(
            name for job_id, name in self.names.items() if name.startswith("scheduler") and ends.get(job_id)
        )
        for name, (least, most) in self.schedulers.items():
            if not least <= counts[name] <= most:
                problems.append(f"{name} must add {least} to {most} jobs; {counts[name]} ended")
