"""promote_jobs, discard, clean_jobs, revoke_jobs, and the states allowed by remove and revoke."""

from collections.abc import Iterator

import pytest

from glidemq_py.testing import RespClient
from tests.inside import administration
from tests.lua.own_support import OwnQueue

TIES_MAX = 1_000
"""Jobs with one due time that are promoted together."""


@pytest.fixture
def q(resp: RespClient, queue_name: str) -> Iterator[OwnQueue]:
    queue = OwnQueue(resp, queue_name)
    yield queue
    queue.delete_everything()


def promote_all(q: OwnQueue, *, batch: int = 100, want: int = 0, name: str = "") -> int:
    promoted, cursor = 0, ""
    for _ in range(1_000):
        piece = q.run(administration.promote_jobs(q.meta, batch, want and want - promoted, cursor, name))
        assert piece.promoted < batch + TIES_MAX
        promoted, cursor = promoted + piece.promoted, piece.cursor
        if not cursor:
            return promoted
    raise AssertionError("a promotion without end")


# -- promote_jobs ------------------------------------------------------------------------------------------


def test_promotion_crosses_more_priorities_than_a_call_reads(q: OwnQueue):
    ids = [q.add_job(delay=50, priority=priority) for priority in range(1, 700)]
    first = q.run(administration.promote_jobs(q.meta, 10_000, 0, "", ""))
    assert first.promoted < len(ids)
    assert first.cursor
    assert promote_all(q, batch=10_000) == len(ids) - first.promoted
    assert q.counts()["delayed"] == 0


def test_members_without_a_delayed_job_stay(q: OwnQueue):
    """A retry of a broadcast message, a job without a record, and one that is active."""
    q.put_job("3", state="active")
    for member in ("1||group", "2", "3"):
        q.redis("ZADD", "scheduled", q.now + 50, member)
    q.redis("SET", "job:4", "foreign")
    q.redis("ZADD", "scheduled", q.now + 60, "4")
    job_id = q.add_job(delay=70)
    assert promote_all(q, batch=2) == 1
    assert q.state(job_id) == "waiting"
    assert q.redis("ZCARD", "scheduled") == 4


# -- states ------------------------------------------------------------------------------------------------


def test_revoke_and_remove_only_in_given_states(q: OwnQueue):
    waiting, delayed = q.add_job(), q.add_job(delay=50)
    before = q.job(delayed)
    assert q.run(administration.revoke(q.meta, delayed, "waiting active")) == "delayed"
    assert q.fcall("remove", q.meta, delayed, "waiting active") == "delayed"
    assert q.job(delayed) == before
    assert q.run(administration.revoke(q.meta, waiting, "waiting active")) == "revoked"
    assert q.run(administration.revoke(q.meta, waiting, "waiting active")) == "revoked"  # after a lost reply
    assert q.run(administration.remove(q.meta, delayed, "group-waiting delayed")) is True
    assert q.run(administration.remove(q.meta, delayed, "delayed")) is False
    parked = q.put_job("9", state="group-waiting")
    assert q.fcall("remove", q.meta, parked, "waiting") == "group-waiting"


# -- clean_jobs --------------------------------------------------------------------------------------------


def test_jobs_are_cleaned_if_state_and_age_still_hold(q: OwnQueue):
    old, active, delayed = q.add_job(), q.add_job(), q.add_job(delay=500)
    q.put_job("foreign")
    assert [job.id for job in q.fetch(1)] == [old]
    q.advance(100)
    young = q.add_job()
    call = administration.clean_jobs(q.meta, [old, active, delayed, young, "none"], "waiting", q.now - 50, 3, True)
    assert q.run(call) == [active]
    assert {q.state(job_id) for job_id in (old, delayed, young)} == {"active", "delayed", "waiting"}
    assert q.events()[-1] == {"event": "cleaned", "jobId": "4"}
    assert [job.id for job in q.fetch(5)] == [young]


# -- revoke_jobs -------------------------------------------------------------------------------------------


def test_searches_for_jobs_are_limited_per_call(q: OwnQueue):
    ids = [f"peer-{n}" for n in range(5)]
    for job_id in ids:
        q.put_job(job_id)
    assert q.run(administration.revoke_jobs(q.meta, ids)) == ["flagged", "flagged"]
    assert q.run(administration.revoke_jobs(q.meta, ids[2:])) == ["flagged", "flagged"]
    listed = [q.add_job(lifo=True) for _ in range(5)]
    assert q.run(administration.revoke_jobs(q.meta, listed)) == ["revoked"] * 5
