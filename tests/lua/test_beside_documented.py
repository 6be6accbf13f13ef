"""Our workers beside peers whose library is not ours: the functions of documented.lua, with the documented faults.

Our guarantees must hold beside them: no job runs twice at a time, none is lost, no group exceeds its concurrency, and
all jobs end once the peers are gone. The consistency check finds and repairs the faults that we cannot prevent (a
sequence that a peer consumed without a job, a slot that it never freed).
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py.testing import RespClient
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.inside import administration, row, working
from tests.lua.check_support import check
from tests.lua.own_support import Fetched, OwnQueue
from tests.wire_library.support import GROUP, WireQueue

SOURCE = (Path(__file__).parent / "documented.lua").read_text(encoding="utf-8")
LOCK = 30_000
SKEW = 7_200_000
KEYS = ("one", "wide")
WIDTHS = {"one": 1, "wide": 3}


class Peer(WireQueue):
    """A peer with its own library."""

    library = "documented_"


class Fleet:
    """Two workers of ours, one peer, all at random."""

    def __init__(self, resp: RespClient, name: str, seed: int, rude: bool):
        self.own, self.peer = OwnQueue(resp, name), Peer(resp, name)
        self.random, self.rude = random.Random(seed), rude
        self.jobs: list[str] = []
        self.ours: dict[str, Fetched] = {}
        self.theirs: dict[str, str] = {}
        self.ended: list[str] = []
        self.tainted: set[str] = set()
        """Jobs that a peer has removed or reordered."""

    def set_time(self, ms: int):
        self.own.advance(ms)
        self.peer.now = self.own.now

    # -- producers ----------------------------------------------------------------------------------------

    def add(self):
        options = self.random.choice(({}, {"delay": 30}, {"priority": 2}, {"lifo": 1}))
        # The documented way of fetching the next job ignores the group of a LIFO job.
        key = self.random.choice((None, *KEYS)) if self.rude or "lifo" not in options else None
        if self.random.random() < 0.5:
            group = {"ordering": key, "concurrency": WIDTHS[key]} if key else {}
            self.jobs.append(self.peer.add(**options, **group))
            return
        given: Any = {**options, "lifo": bool(options.get("lifo"))}
        ordering = [key, WIDTHS[key], 0, 0, 0, 0, 0] if key else None
        self.jobs += self.own.add(row("task", "{}", "{}", ordering=ordering, **given))

    # -- workers ------------------------------------------------------------------------------------------

    def fetch(self):
        reply = self.own.exchange(self.random.randrange(4))
        for job in reply.jobs:
            fetched = Fetched(job, reply.now)
            assert fetched.id not in self.ours
            assert fetched.id not in self.theirs, "two workers have one job"
            self.ours[fetched.id] = fetched

    def finish(self):
        if not self.ours:
            return
        job = self.ours.pop(self.random.choice(list(self.ours)))
        way = self.random.randrange(8)
        finished: working.Finished
        if way < 4:
            finished, expected = job.completed(), 0
        elif way == 4:
            finished, expected = job.failed(limit=100, backoff=20), 4
        elif way == 5:
            finished, expected = job.released(), 6
        elif way == 6:
            finished, expected = working.delayed(*job.token, 25), 8
        else:
            finished, expected = job.failed(), 5
        status = self.own.finish(finished)
        assert status == [expected] or job.id in self.tainted, (job.id, status)

    def peer_takes(self):
        found = [(fields["jobId"], entry) for entry, fields in self.peer.read(2)]
        found += [(job_id, "") for job_id in self.peer.pop(1)]
        for job_id, entry in found:
            self._peer_begins(job_id, entry, self.peer.activate(job_id, entry))

    def _peer_begins(self, job_id: str, entry: str, reply: Any):
        if isinstance(reply, dict):
            assert job_id not in self.ours or job_id in self.tainted, "two workers have one job"
            self.theirs[job_id] = entry
        elif reply == "REVOKED":
            self.peer.fail(job_id, entry, "revoked")
        elif reply == "":
            self.peer.redis("XACK", "stream", GROUP, entry) if entry else None
        if not isinstance(reply, dict) and not entry:
            self.peer.redis("DECR", "list-active")

    def peer_finishes(self):
        if not self.theirs:
            return
        job_id = self.random.choice(list(self.theirs))
        entry, way = self.theirs.pop(job_id), self.random.randrange(6)
        if way < 2:
            self.peer.complete(job_id, entry)
        elif way == 2:
            self.peer.fail(job_id, entry, limit=100, backoff=20)
        elif way == 3:
            keys = [f"job:{job_id}", "stream", "scheduled", "events"]
            until = self.peer.now + 25
            self.peer.call("moveActiveToDelayed", keys, job_id, entry, self.peer.now, until, GROUP, "", 0)
        else:
            word, _, *following = self.peer.complete_and_fetch(job_id, entry)
            if word == "NEXT_HASH":
                self._peer_begins(following[0], following[1], {"state": "active"})
            elif word == "NEXT_REVOKED":
                self.peer.fail(following[0], following[1], "revoked")

    # -- time, deaths and recovery ------------------------------------------------------------------------

    def tick(self):
        self.set_time(self.random.choice((1, 10, 40)))
        self.peer.promote()
        self.peer.call("promoteRateLimited", ["ratelimited", "stream"], self.peer.now)

    def beat(self):
        self.own.run(working.heartbeat(self.own.meta, "py-1", "{}", 60_000, [job.token for job in self.ours.values()]))
        for job_id in self.theirs:
            if self.peer.redis("EXISTS", f"job:{job_id}"):
                self.peer.redis("HSET", f"job:{job_id}", "lastActive", self.peer.now)

    def recover(self):
        """Advance by a lock duration, renew the locks of live workers, and recover on both sides."""
        self.set_time(LOCK)
        self.own.make_group()
        for entry, consumer in self.own.pending():
            self.own.let_idle(entry, LOCK + 1, consumer)
        self.beat()
        living = set(self.ours) | set(self.theirs)
        for look in (
            (self._we_look, self._they_look) if self.random.random() < 0.5 else (self._they_look, self._we_look)
        ):
            look()
        for job_id in living - self.tainted:
            assert self.own.state(job_id) == "active", "a healthy job was fetched from its worker"
        self.peer.call("healListActive", ["id"])

    def _they_look(self):
        self.peer.recover_stalled(LOCK, 1000)
        self.peer.recover_list_jobs(LOCK, 1000)

    def _we_look(self):
        cursor = ""
        while True:
            reply = self.own.run(working.recover_stalled(self.own.meta, "py-1", 1, LOCK, 1000, False, cursor))
            cursor = reply.cursor
            if not cursor:
                return

    def die(self):
        if self.random.random() < 0.5:
            if self.ours:
                self.ours.popitem()
        elif self.theirs:
            self.theirs.popitem()

    # -- operators ----------------------------------------------------------------------------------------

    def operate(self):
        if not self.jobs:
            return
        job_id = self.random.choice(self.jobs[-10:])
        h = self.own.job(job_id)
        # What a peer's library writes about a job that is gone, and that it forgets a revoked one out of a list, are
        # faults of its own.
        if not self.rude and (h.get("state") == "active" or "lifo" in h or h.get("priority", "0") != "0"):
            return
        self.random.choice((
            lambda: self.own.run(administration.remove(self.own.meta, job_id)),
            lambda: self.own.run(administration.revoke(self.own.meta, job_id)),
            lambda: self.own.run(administration.change_priority(self.own.meta, job_id, 1)),
            lambda: self.own.run(administration.change_delay(self.own.meta, job_id, 20)),
        ))()  # fmt: skip
        self.tainted.add(job_id)

    def be_rude(self):
        """Damage groups like the peer's library when it removes their jobs."""
        if not self.rude or not self.jobs:
            return
        job_id = self.random.choice(self.jobs[-10:])
        self.tainted.add(job_id)
        way = self.random.randrange(5)
        if way < 2:
            self.peer.remove(job_id)
        elif way < 4:
            self.peer.revoke(job_id)
        else:
            self.tainted |= set(self.jobs)
            self.peer.call("drain", ["stream", "scheduled", "events", "id", "lifo", "priority"], 0, GROUP)

    def is_no_wider(self):
        active = [h for h in map(self.own.job, self.jobs) if h.get("state") == "active"]
        for key, width in WIDTHS.items():
            assert sum(h.get("groupKey") == key for h in active) <= width, [
                h for h in active if h.get("groupKey") == key
            ]

    def settle(self):
        """Stop the peer, and process until no job is left."""
        for job_id, entry in self.theirs.items():
            self.peer.complete(job_id, entry)
        self.theirs.clear()
        for _ in range(200):
            self.beat()
            reply = self.own.exchange(50, [job.completed() for job in self.ours.values()])
            self.ours = {fetched.id: fetched for fetched in (Fetched(job, reply.now) for job in reply.jobs)}
            if not self.ours and not self.open():
                return
            self.set_time(20)

    def open(self) -> list[str]:
        return [job_id for job_id in self.jobs if self.own.state(job_id) not in ("completed", "failed", None)]


@pytest.fixture(name="resp", params=("server", pytest.param("cluster", marks=pytest.mark.slow)))
def resp_fixture(request: pytest.FixtureRequest) -> Iterator[RespClient]:
    place: GlideMQServer = request.getfixturevalue(request.param)
    with RespClient.from_url(place.url) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("rude", [False, True], ids=["polite", "rude"])
@pytest.mark.parametrize("seed", range(3))
def test_random_operations_of_both_libraries(resp: RespClient, queue_name: str, seed: int, rude: bool):
    resp.execute_everywhere("FUNCTION", "LOAD", "REPLACE", SOURCE)
    fleet = Fleet(resp, queue_name, seed, rude)
    steps: tuple[Callable[[], None], ...] = (
        fleet.add, fleet.fetch, fleet.finish, fleet.peer_takes, fleet.peer_finishes, fleet.tick, fleet.beat,
        fleet.recover, fleet.die, fleet.operate, fleet.be_rude,
    )  # fmt: skip
    weights = (5, 5, 5, 4, 4, 3, 1, 1, 1, 1, 1)
    fleet.peer.make_group()
    for _ in range(400):
        fleet.random.choices(steps, weights)[0]()
        if not rude:
            fleet.is_no_wider()
    for _ in range(3):
        fleet.recover()
    fleet.settle()
    if rude:
        check(fleet.own, repair=True)
        fleet.settle()
    left = {job_id: fleet.own.job(job_id) for job_id in fleet.open()}
    assert not left, str(check(fleet.own))
    found = check(fleet.own)
    assert found.ok, str(found)
    fleet.own.delete_everything()
