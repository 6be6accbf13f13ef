"""Test the recording of a job's changes of state."""

import re
from pathlib import Path

import pytest

from glidemq_py._features.timeline import TimelineEntry, read_timeline
from tests.inside import administration, set_settings, working
from tests.lua.own_support import START, OwnQueue


def states(q: OwnQueue, job_id: str = "1") -> list[str]:
    return [transition.state.value for transition in timeline(q, job_id)]


def timeline(q: OwnQueue, job_id: str = "1") -> list[TimelineEntry]:
    return read_timeline(q.job(job_id).get("timeline", ""), int(q.job(job_id).get("timestamp", 0)))


def turn_on(q: OwnQueue, sample: int = 1_000_000, entries: int = 50):
    q.run(set_settings(q.meta, timeline=f"{sample}|{entries}"))


def test_retry_failure_and_requeue(q: OwnQueue):
    turn_on(q)
    q.add_job()
    q.finish(q.take_one().failed(limit=2))
    q.finish(q.take_one().failed(limit=2))
    q.run(administration.requeue_job(q.meta, "1"))
    q.finish(q.take_one().released())
    assert states(q) == ["waiting", "active", "delayed", "waiting", "active", "failed", "waiting", "active", "waiting"]


def test_bounded(q: OwnQueue):
    turn_on(q, entries=3)
    q.add_job()
    for _ in range(4):
        q.finish(q.take_one().failed(limit=9))
    assert states(q) == ["active", "delayed", "waiting"]


def test_sampled(q: OwnQueue):
    turn_on(q, sample=300_000)
    for _ in range(300):
        q.add_job()
    while jobs := q.fetch(100):
        q.finish(*(job.completed() for job in jobs))
    lengths = [len(timeline(q, str(number))) for number in range(1, 301)]
    assert set(lengths) == {0, 3}
    assert 50 < lengths.count(3) < 130


@pytest.mark.parametrize("junk", ["x", "0|5", "1000000|0", "-1|5"])
def test_malformed_setting_and_field(q: OwnQueue, junk: str):
    q.redis("HSET", "meta", "timeline", junk)
    q.add_job()
    q.redis("HSET", "job:1", "timeline", "\n" * 5_000)
    q.finish(q.take_one().completed())
    assert q.state("1") == "completed"


@pytest.mark.parametrize("junk", ["x", "|", "fffffffffffffff|\na1", "1|py-7", "zz|\nw0"])
def test_malformed_field_is_survived(q: OwnQueue, junk: str):
    turn_on(q)
    q.add_job()
    q.redis("HSET", "job:1", "timeline", junk)
    q.finish(q.take_one().completed())
    assert states(q)[-2:] == ["active", "completed"]


def test_huge_malformed_field_is_replaced(q: OwnQueue):
    turn_on(q)
    q.add_job()
    q.redis("HSET", "job:1", "timeline", "x" * 1_000_000)
    q.finish(q.take_one().completed())
    assert len(q.job("1")["timeline"]) < 64


def test_oldest_entry_keeps_its_worker(q: OwnQueue):
    turn_on(q, entries=1)
    q.add_job()
    q.finish(q.take_one("py-7").completed())
    assert timeline(q) == [("completed", START, "py-7")]


def test_job_of_a_peer_is_recorded_from_its_start(q: OwnQueue):
    turn_on(q)
    q.redis("XADD", "stream", "*", "jobId", q.put_job("7"), "name", "task")
    q.finish(q.take_one().completed())
    assert states(q, "7") == ["active", "completed"]


def test_lease_names_its_owner(q: OwnQueue):
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


def test_every_change_of_state_is_recorded():
    changes = [
        path for folder in ("core", "features") for path in sorted((LUA / folder).rglob("*.lua"))
        if re.search(r"(?:'HSET', |G\.set\()[^\n]*'state', ", path.read_text())
        and "/".join(path.relative_to(LUA).parts[:2]) not in UNRECORDED
    ]  # fmt: skip
    assert len(changes) > 12
    assert [
        path.name for path in changes if "timeline" not in path.read_text() and "G.note_" not in path.read_text()
    ] == []


def test_recovery_expiry_and_revocation(q: OwnQueue):
    turn_on(q)
    q.add_job()
    job = q.take_one()
    q.let_idle(job.entry, 30_000)
    q.recover_stalled()
    assert states(q) == ["waiting", "active", "waiting"]
    q.run(administration.revoke(q.meta, "1"))
    assert states(q)[-1] == "failed"
    q.add_job(ttl=5)
    q.advance(6)
    assert q.fetch() == []
    assert states(q, "2") == ["waiting", "failed"]
