"""Test the recording of a job's changes of state."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_py._core.calls import administration, working
from glidemq_py._features.timeline.timeline import Transition, read_timeline, set_call
from tests.lua.own_support import START, OwnQueue


def states(q: OwnQueue, job_id: str = "1") -> list[str]:
    return [transition.state.value for transition in timeline(q, job_id)]


def timeline(q: OwnQueue, job_id: str = "1") -> list[Transition]:
    return read_timeline(q.job(job_id).get("timeline", ""))


def turn_on(q: OwnQueue, sample: int = 1_000_000, entries: int = 50) -> None:
    q.run(set_call(q.meta, f"{sample}|{entries}"))


def test_off_by_default(q: OwnQueue) -> None:
    q.add_job()
    q.finish(q.take_one().completed())
    assert "timeline" not in q.job("1")


@pytest.mark.parametrize(
    ("options", "before"),
    [
        ({}, ["waiting"]), ({"lifo": True}, ["waiting"]), ({"priority": 3}, ["prioritized"]),
        ({"delay": 10}, ["delayed", "waiting"]),
    ],
)  # fmt: skip
def test_a_job_from_add_to_end(q: OwnQueue, options: dict[str, Any], before: list[str]) -> None:
    turn_on(q)
    q.add_job(**options)
    q.advance(10)
    job = q.take_one("py-7")
    q.advance(5)
    q.exchange(0, [job.completed()], consumer="py-7")
    assert states(q) == [*before, "active", "completed"]
    assert timeline(q)[-2:] == [("active", START + 10, "py-7"), ("completed", START + 15, "py-7")]
    assert timeline(q)[0] == (states(q)[0], START, "")
    assert len(q.job("1")["timeline"]) < 64


def test_retry_failure_and_requeue(q: OwnQueue) -> None:
    turn_on(q)
    q.add_job()
    q.finish(q.take_one().failed(limit=2))
    q.finish(q.take_one().failed(limit=2))
    q.run(administration.requeue_job(q.meta, "1"))
    q.finish(q.take_one().released())
    assert states(q) == ["waiting", "active", "delayed", "waiting", "active", "failed", "waiting", "active", "waiting"]


def test_recovery_expiry_and_revocation(q: OwnQueue) -> None:
    turn_on(q)
    q.add_job()
    job = q.take_one()
    q.let_idle(job.entry, 30_000)
    q.run(working.recover_stalled(q.meta, "py-9", 1_000, 30_000, 1, False, ""))
    assert states(q) == ["waiting", "active", "waiting"]
    q.run(administration.revoke(q.meta, "1"))
    assert states(q)[-1] == "failed"
    q.add_job(ttl=5)
    q.advance(6)
    assert q.fetch() == []
    assert states(q, "2") == ["waiting", "failed"]


def test_removed_job_leaves_nothing(q: OwnQueue) -> None:
    turn_on(q)
    q.add_job()
    q.finish(q.take_one().completed(keep=1))
    assert q.job("1") == {}


def test_bounded(q: OwnQueue) -> None:
    turn_on(q, entries=3)
    q.add_job()
    for _ in range(4):
        q.finish(q.take_one().failed(limit=9))
    assert states(q) == ["active", "delayed", "waiting"]


def test_sampled(q: OwnQueue) -> None:
    turn_on(q, sample=300_000)
    for _ in range(300):
        q.add_job()
    while jobs := q.fetch(100):
        q.finish(*(job.completed() for job in jobs))
    lengths = [len(timeline(q, str(number))) for number in range(1, 301)]
    assert set(lengths) == {0, 3}
    assert 50 < lengths.count(3) < 130


@pytest.mark.parametrize("junk", ["x", "0|5", "1000000|0", "-1|5"])
def test_malformed_setting_and_field(q: OwnQueue, junk: str) -> None:
    q.redis("HSET", "meta", "timeline", junk)
    q.add_job()
    q.redis("HSET", "job:1", "timeline", "\n" * 5_000)
    q.finish(q.take_one().completed())
    assert q.state("1") == "completed"


def test_several_workers(q: OwnQueue) -> None:
    turn_on(q, entries=4)
    q.add_job()
    for worker in ("py-7", "py-8"):
        job = q.take_one(worker)
        q.exchange(0, [job.failed(limit=9)], consumer=worker)
        q.advance(100_000)
    assert [(item.state.value, item.worker) for item in timeline(q)][-3:] == [
        ("active", "py-8"), ("delayed", "py-8"), ("waiting", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("junk", ["x", "|", "fffffffffffffff|\na1", "1|py-7", "zz|\nw0"])
def test_malformed_field_is_replaced(q: OwnQueue, junk: str) -> None:
    turn_on(q)
    q.add_job()
    q.redis("HSET", "job:1", "timeline", junk)
    q.finish(q.take_one().completed())
    assert states(q) == ["active", "completed"]
