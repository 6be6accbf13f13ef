"""Test the recording of a job's changes of state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from glidemq_py._core.calls import administration, working
from glidemq_py._features.timeline.timeline import TimelineEntry, read_timeline, set_call
from tests.lua.own_support import START, OwnQueue


def states(q: OwnQueue, job_id: str = "1") -> list[str]:
    return [transition.state.value for transition in timeline(q, job_id)]


def timeline(q: OwnQueue, job_id: str = "1") -> list[TimelineEntry]:
    return read_timeline(q.job(job_id).get("timeline", ""), int(q.job(job_id).get("timestamp", 0)))


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
def test_malformed_field_is_survived(q: OwnQueue, junk: str) -> None:
    turn_on(q)
    q.add_job()
    q.redis("HSET", "job:1", "timeline", junk)
    q.finish(q.take_one().completed())
    assert states(q)[-2:] == ["active", "completed"]


def test_huge_malformed_field_is_replaced(q: OwnQueue) -> None:
    turn_on(q)
    q.add_job()
    q.redis("HSET", "job:1", "timeline", "x" * 1_000_000)
    q.finish(q.take_one().completed())
    assert len(q.job("1")["timeline"]) < 64


def test_oldest_entry_keeps_its_worker(q: OwnQueue) -> None:
    turn_on(q, entries=1)
    q.add_job()
    q.finish(q.take_one("py-7").completed())
    assert timeline(q) == [("completed", START, "py-7")]


def test_job_of_a_peer_is_recorded_from_its_start(q: OwnQueue) -> None:
    turn_on(q)
    q.redis("XADD", "stream", "*", "jobId", q.put_job("7"), "name", "task")
    q.finish(q.take_one().completed())
    assert states(q, "7") == ["active", "completed"]


def test_ordered_jobs(q: OwnQueue) -> None:
    turn_on(q)
    first, second = (q.add_job(ordering=("k", 1, 0, 0, 0, 0, 0)) for _ in range(2))
    jobs = q.fetch(2)
    assert [job.id for job in jobs] == [first]
    q.finish(jobs[0].completed())
    q.finish(q.take_one().completed())
    assert states(q, first) == ["waiting", "active", "completed"]
    assert states(q, second) == ["waiting", "group-waiting", "waiting", "active", "completed"]


def test_lease_names_its_owner(q: OwnQueue) -> None:
    turn_on(q)
    q.add_job()
    leasing = working.Leasing("owner", 5_000, working.Expiry.FAILED_ATTEMPT, [])
    assert len(q.run(working.exchange(q.meta, "owner", 1, (), False, False, leasing=leasing)).jobs) == 1
    assert timeline(q)[-1] == ("active", START, "owner")


LUA = Path(__file__).parents[2] / "lua"
UNRECORDED = {
    # A message has a state per subscription, and no timeline.
    "features/broadcast",
    # Records of writes, not of jobs.
    "features/staged_writes",
    # A restored job has the timeline of the backup.
    "features/backup",
}


def test_every_change_of_state_is_recorded() -> None:
    changes = [
        path for folder in ("core", "features") for path in sorted((LUA / folder).rglob("*.lua"))
        if re.search(r"'HSET', [^\n]*'state', ", path.read_text())
        and "/".join(path.relative_to(LUA).parts[:2]) not in UNRECORDED
    ]  # fmt: skip
    assert len(changes) > 12
    assert [
        path.name for path in changes if "timeline" not in path.read_text() and "G.note_" not in path.read_text()
    ] == []
