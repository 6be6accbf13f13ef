"""Run random operations on a group: it never exceeds its concurrency, and finally no job is left."""

import random

import pytest

from tests.lua import wire_support
from tests.lua.wire_support import GROUP, WireQueue

wire = wire_support.wire_fixture

OPEN_STATES = {"waiting", "active", "delayed", "prioritized", "group-waiting", "suspended"}


class Driver:
    """Random calls of producers, workers and operators, remembered as a worker would."""

    def __init__(self, wire: WireQueue, seed: int, width: int, limits: dict[str, int]) -> None:
        self.wire = wire
        self.random = random.Random(seed)
        self.width = width
        self.limits = limits
        self.jobs: list[str] = []
        self.running: list[tuple[str, str]] = []

    def add(self) -> None:
        options = self.random.choice(({}, {"delay": 30}, {"priority": 2}, {"lifo": 1}, {"ttl": 60}))
        self.jobs.append(self.wire.add(ordering="k", concurrency=self.width, **self.limits, **options))

    def fetch(self) -> None:
        for entry, fields in self.wire.read(2):
            self._activate(fields["jobId"], entry)
        for job_id in self.wire.pop(1):
            self._activate(job_id, "")

    def _activate(self, job_id: str, entry: str) -> None:
        reply = self.wire.activate(job_id, entry)
        if isinstance(reply, dict):
            self.running.append((job_id, entry))
        elif reply == "REVOKED":
            self.wire.fail(job_id, entry, "revoked")
        elif entry == "":
            self.wire.redis("DECR", "list-active")

    def end(self) -> None:
        if not self.running:
            return
        job_id, entry = self.running.pop(self.random.randrange(len(self.running)))
        wire, keys = self.wire, [f"job:{job_id}", "stream", "scheduled", "events"]
        way = self.random.randrange(7)
        if way < 2:
            wire.complete(job_id, entry)
        elif way == 2:
            wire.fail(job_id, entry, limit=3, backoff=20)
        elif way == 3:
            wire.fail(job_id, entry)
        elif way == 4:
            wire.call("moveActiveToDelayed", keys, job_id, entry, wire.now, wire.now + 25, GROUP, "", 0)
        elif way == 5:
            wire.call("rateLimitGroup", keys[:2], job_id, entry, GROUP, 15, wire.now, 0, "requeue", "front", "max")
        else:
            wire.call("suspend", [*keys[:2], "events", "suspended"], job_id, entry, GROUP, wire.now, "", 40, 0)

    def disturb(self) -> None:
        job_id = self.random.choice(self.jobs)
        way = self.random.randrange(4)
        if way == 0:
            self.wire.remove(job_id)
        elif way == 1:
            self.wire.revoke(job_id)
        elif way == 2:
            self.wire.call("retryJobs", ["failed", "scheduled", "events", "id"], 1, self.wire.now)
        elif self.running:
            self.running.pop()  # a worker dies
            self.wire.now += 40
            self.tick()

    def tick(self) -> None:
        wire = self.wire
        wire.now += 10
        wire.promote()
        wire.call("promoteRateLimited", ["ratelimited", "stream"], wire.now)
        keys = ["suspended", "events", "failed", "metrics:failed"]
        wire.call("sweepSuspended", keys, wire.now, wire.base + ":")
        for job_id, _ in self.running:
            if wire.state(job_id) == "active":
                wire.redis("HSET", f"job:{job_id}", "lastActive", wire.now)
        wire.recover_stalled(min_idle=0, max_stalled=1) if self.random.random() < 0.3 else None
        wire.recover_list_jobs(min_idle=35)

    def check(self) -> None:
        states = [self.wire.state(job_id) for job_id in self.jobs]
        assert states.count("active") <= self.width

    def settle(self) -> None:
        """Stop disturbing, and process until every job has ended."""
        for _ in range(400):
            self.tick()
            self.fetch()
            while self.running:
                self.wire.complete(*self.running.pop())
            if not any(self.wire.state(job_id) in OPEN_STATES for job_id in self.jobs):
                return
        left = {job_id: self.wire.job(job_id) for job_id in self.jobs if self.wire.state(job_id) in OPEN_STATES}
        raise AssertionError(
            f"not finished: {left}, group {self.wire.group('k')}, parked {self.wire.scores('groupq:k')}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{}, {"rate_max": 2, "rate_duration": 25}, {"capacity": 2000, "refill": 100_000}])
@pytest.mark.parametrize("seed", range(4))
def test_random_group_operations_keep_invariants(wire: WireQueue, seed: int, limits: dict[str, int]) -> None:
    driver = Driver(wire, seed, width=1 + seed % 3, limits=limits)
    driver.add()
    for _ in range(150):
        step = driver.random.choices(
            (driver.add, driver.fetch, driver.end, driver.disturb, driver.tick), (3, 4, 4, 1, 2)
        )
        step[0]()
        driver.check()
    driver.settle()
    group = wire.group("k")
    assert group["active"] == "0"
    assert wire.scores("groupq:k") == {}
    assert wire.entries() == []
    assert wire.list_active() == 0
    assert not wire.has_keys() & {"list-popped", "list-taken"}
    assert int(group["nextSeq"]) == int(wire.redis("HGET", "ordering", "k")) + 1
    assert not [field for field in group if field.startswith("skip:")]
