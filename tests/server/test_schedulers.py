"""Schedulers with a clock set by the test: due times, added jobs, and the choice of the firing worker."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glidemq_py.errors import ServerNotReadyError
from glidemq_py.testing import RespClient
from tests.inside import area, firing
from tests.inside import entry as schedule_entry
from tests.server.schedules_support import Clockwork

pytestmark = pytest.mark.usefixtures("key_leaks")


@pytest.fixture
def clock(resp: RespClient, queue_name: str) -> Iterator[Clockwork]:
    work = Clockwork(resp, queue_name)
    yield work
    work.own.delete_everything()


def entry(clock: Clockwork, name: str, home: str = "schedulers") -> dict[str, Any]:
    return dict(json.loads(clock.own.redis("HGET", home, name)))


# -- pausing ----------------------------------------------------------------------------------------------------


async def test_index_of_a_paused_scheduler_is_restored(clock: Clockwork):
    """A version that cannot pause reads the entries too: it must not find one that is due."""
    await clock.queue.schedulers.upsert("s", every=60_000)
    await clock.queue.schedulers.pause("s")
    clock.own.redis("DEL", "schedulers-due")
    clock.own.advance(600_000)
    await clock.fire()
    assert int(clock.own.redis("ZSCORE", "schedulers-due", "s")) == schedule_entry.PAUSED
    assert entry(clock, "s", "schedulers-own")["nextRun"] == schedule_entry.PAUSED
    assert (await clock.queue.get_job_counts()).waiting == 0


# -- many processes ---------------------------------------------------------------------------------------------


async def test_concurrent_processes_fire_once(clock: Clockwork):
    """All workers read, compute and fire concurrently, in every order: exactly one adds the job."""
    for name in ("a", "b", "c"):
        await clock.queue.schedulers.upsert(name, every=1_000, misfire="fire_all")
    await clock.fire()
    holders = [str(n) for n in range(10)]
    for _ in range(20):
        clock.own.advance(1_000)
        for holder, reply in [(holder, _due(clock, holder)) for holder in holders]:
            _fire(clock, holder, reply)
    assert len(clock.jobs()) == 60
    assert len(set(zip([job["name"] for job in clock.jobs()], clock.instants(), strict=True))) == 60


def _due(clock: Clockwork, holder: str):
    clock.own.redis("DEL", "lock:schedules")  # which only spares work
    return clock.own.run(schedule_entry.schedulers_due(clock.own.meta, holder))


def _fire(clock: Clockwork, holder: str, reply: Any):
    rows = [firing.plan(clock.link(), row, reply.now) for row in reply.rows]
    return clock.own.run(schedule_entry.schedulers_fire(clock.own.meta, holder, rows, False))


async def test_two_processes_that_fire_at_once_decide_in_the_call(clock: Clockwork):
    """Both planned while the job was unfinished; it ends before the first call."""
    await clock.queue.schedulers.upsert("tick", every=1_000, overlap="skip")
    await clock.until(clock.now + 1_500)
    clock.own.advance(1_000)
    due = _due(clock, "first")
    rows = [firing.plan(clock.link(), row, due.now) for row in due.rows]
    clock.own.finish(clock.own.take_one().completed())
    fired = clock.own.run(schedule_entry.schedulers_fire(clock.own.meta, "first", rows, False))
    again = clock.own.run(schedule_entry.schedulers_fire(clock.own.meta, "second", rows, False))
    assert len(fired.outcomes[0]) == 1
    assert again.outcomes == ["changed"]
    assert len(clock.jobs()) == 2


async def test_leader_fires_and_others_stand_by(clock: Clockwork):
    await clock.queue.schedulers.upsert("tick", every=1_000)
    first, second = clock.another_duty(), clock.another_duty()
    clock.own.advance(1_000)
    await clock.fire(first)
    await clock.fire(second)
    assert [each._leads for each in (first, second)] == [True, False]


# -- beside a Node peer -------------------------------------------------------------------------------------------


class NodeTick:
    """A peer's tick: under its lock it reads all entries, and adds and writes back in one MULTI."""

    def __init__(self, clock: Clockwork):
        self.clock = clock
        self.read: dict[str, dict[str, Any]] = {}

    def lock(self) -> bool:
        lock = self.clock.own.redis("SET", "schedulers:lock:__tick__", "0123456789abcdef", "NX", "PX", 5_000)
        return lock == "OK"

    def begin(self):
        self.read = {k: json.loads(v) for k, v in self.clock.own.resp.hash(self.clock.own.key("schedulers")).items()}

    def commit(self):
        run, now = self.clock.own.redis, self.clock.now
        for name, found in self.read.items():
            if 0 < found["nextRun"] <= now:
                job_id = self.clock.own.put_job(
                    str(run("INCR", "id")), name=name, by="node", scheduledFor=found["nextRun"]
                )
                self.clock.own.push_entry(job_id, name)
                late = (now - found["nextRun"]) // found["every"] + 1
                again = {"nextRun": found["nextRun"] + late * found["every"], "lastRun": now}
                run(
                    "HSET",
                    "schedulers",
                    name,
                    json.dumps(found | again | {"iterationCount": found["iterationCount"] + 1}),
                )

    def unlock(self):
        self.clock.own.redis("DEL", "schedulers:lock:__tick__")


async def test_nothing_is_fired_while_a_node_client_holds_the_lock(clock: Clockwork):
    await clock.queue.schedulers.upsert("tick", every=1_000)
    node = NodeTick(clock)
    clock.own.advance(1_000)
    assert node.lock()
    node.begin()
    assert await clock.duty.fire() < 100
    assert clock.jobs() == []
    node.commit()
    assert await clock.duty.fire() < 100
    node.unlock()
    await clock.fire()
    assert len(clock.jobs()) == 1


async def test_node_client_takes_the_lock_between_read_and_fire(clock: Clockwork):
    await clock.queue.schedulers.upsert("tick", every=1_000)
    clock.own.advance(1_000)
    reply = _due(clock, "ours")
    node = NodeTick(clock)
    node.lock()
    node.begin()
    assert _fire(clock, "ours", reply).outcomes == ["busy"]
    node.commit()
    node.unlock()
    assert _fire(clock, "ours", reply).outcomes == ["changed"]
    assert len(clock.jobs()) == 1


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["ours", "lock", "begin", "commit", "unlock", "time"]), min_size=20, max_size=60))
def test_python_and_node_clients_fire_once_in_any_order(clock: Clockwork, steps: list[str]):
    asyncio.run(_both(clock, steps))


async def _both(clock: Clockwork, steps: list[str]):
    clock.own.delete_everything()
    clock.own.set_time(1_800_000_000_000)
    await clock.queue.schedulers.upsert("tick", every=1_000)
    node, state = NodeTick(clock), "unlock"
    following = {"unlock": "lock", "lock": "begin", "begin": "commit", "commit": "unlock"}
    for step in steps:
        if step == "time":
            clock.own.advance(700)
        elif step == "ours":
            await clock.duty.fire()
        elif following[state] == step:
            getattr(node, step)()
            state = step
    instants = clock.instants()
    assert len(instants) == len(set(instants))


async def test_held_lock_raises_scheduler_busy_error(clock: Clockwork, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(area, "_TRIES", 3)
    clock.own.redis("SET", "schedulers:lock:__tick__", "theirs", "PX", 60_000)
    busy = "scheduler 'tick' was not changed: another client holds the scheduler lock; try again"
    with pytest.raises(ServerNotReadyError, match=busy):
        await clock.queue.schedulers.upsert("tick", every=1_000)
    clock.own.redis("HSET", "schedulers", "tick", json.dumps({"every": 5, "nextRun": 1}))
    with pytest.raises(ServerNotReadyError, match=busy):
        await clock.queue.schedulers.remove("tick")
    clock.own.redis("DEL", "schedulers:lock:__tick__")


# -- nothing is left ----------------------------------------------------------------------------------------------


async def test_queue_without_schedulers_has_no_keys(clock: Clockwork):
    assert await clock.fire() == 5_000
    assert clock.own.key_names() <= {"meta"}
