"""promote_jobs, discard, clean_jobs, revoke_jobs, and the states allowed by remove and revoke."""

from collections.abc import Iterator

import pytest

from glidemq_py._core.calls import administration
from glidemq_py.testing import RespClient
from tests.lua.own_support import OwnQueue


@pytest.fixture
def q(resp: RespClient, queue_name: str) -> Iterator[OwnQueue]:
    queue = OwnQueue(resp, queue_name)
    yield queue
    queue.delete_everything()


def promote_all(q: OwnQueue, *, batch: int = 100, want: int = 0, name: str = "") -> int:
    promoted, cursor = 0, ""
    for _ in range(1_000):
        piece = q.run(administration.promote_jobs(q.meta, batch, want and want - promoted, cursor, name))
        assert piece.promoted <= batch
        promoted, cursor = promoted + piece.promoted, piece.cursor
        if not cursor:
            return promoted
    raise AssertionError("a promotion without end")


# -- promote_jobs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_jobs_of_every_set_are_promoted(q: OwnQueue, batch: int) -> None:
    plain = [q.add_job(delay=50 + n) for n in range(3)]
    urgent = [q.add_job(delay=90, priority=priority) for priority in (1, 1, 7)]
    ranked = [q.add_job(delay=70, rank=rank) for rank in (5_000, -3)]
    fair = [q.add_job(delay=60, fair_key=key) for key in ("a", "b", "a")]
    ready = q.add_job(priority=7)
    assert promote_all(q, batch=batch) == 11
    assert {q.state(job_id) for job_id in plain + fair} == {"waiting"}
    assert {q.state(job_id) for job_id in urgent + ranked} == {"prioritized"}
    assert (q.counts()["delayed"], q.state(ready)) == (0, "prioritized")
    assert q.event_names().count("promoted") == 11
    fetched = [job.id for job in q.fetch(20)]
    assert len(fetched) == 12
    assert fetched[:5] == [ranked[0], *urgent[:2], ready, urgent[2]]
    assert promote_all(q) == 0


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_only_jobs_of_a_name_are_promoted(q: OwnQueue, batch: int) -> None:
    for _ in range(6):
        q.add_job("kept", delay=50)
        q.add_job("wanted", delay=50)
        q.add_job("kept", delay=50, priority=4)
        q.add_job("wanted", delay=50, priority=4)
        q.add_job("kept", delay=50, rank=-1)
        q.add_job("wanted", delay=50, fair_key="k")
    assert promote_all(q, batch=batch, name="wanted") == 18
    assert q.counts()["delayed"] == 18
    assert promote_all(q, batch=batch, name="none") == 0


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_promotion_by_count_takes_the_earliest(q: OwnQueue, batch: int) -> None:
    ids = [q.add_job(delay=90 - n) for n in range(6)]
    assert promote_all(q, batch=batch, want=4) == 4
    assert [q.state(job_id) for job_id in ids] == ["delayed"] * 2 + ["waiting"] * 4
    assert [job.id for job in q.fetch(6)] == ids[:1:-1]


def test_promotion_crosses_more_priorities_than_a_call_reads(q: OwnQueue) -> None:
    ids = [q.add_job(delay=50, priority=priority) for priority in range(1, 700)]
    first = q.run(administration.promote_jobs(q.meta, 10_000, 0, "", ""))
    assert first.promoted < len(ids)
    assert first.cursor
    assert promote_all(q, batch=10_000) == len(ids) - first.promoted
    assert q.counts()["delayed"] == 0


def test_members_without_a_delayed_job_stay(q: OwnQueue) -> None:
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


def test_revoke_and_remove_only_in_given_states(q: OwnQueue) -> None:
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


# -- discard -----------------------------------------------------------------------------------------------


def test_discarded_job_fails_with_its_attempt(q: OwnQueue) -> None:
    job_id = q.add_job(attempts=5)
    assert q.run(administration.discard(q.meta, job_id)) == "waiting"
    job = q.take_one()
    assert q.run(administration.discard(q.meta, job_id)) == "ok"
    q.finish(job.failed(limit=5, backoff=10))
    assert q.state(job_id) == "failed"
    assert q.job(job_id)["failureReason"].startswith("explicit_fail|")
    assert q.run(administration.discard(q.meta, job_id)) == "failed"
    assert q.run(administration.discard(q.meta, "none")) == "gone"
    assert q.run(administration.requeue_job(q.meta, job_id)) == "ok"
    q.finish(q.take_one().failed(limit=5, backoff=10))
    assert q.state(job_id) == "delayed"


def test_discarded_job_may_complete(q: OwnQueue) -> None:
    job_id = q.add_job(attempts=5)
    job = q.take_one()
    q.run(administration.discard(q.meta, job_id))
    q.finish(job.completed())
    assert q.state(job_id) == "completed"


# -- clean_jobs --------------------------------------------------------------------------------------------


def test_jobs_are_cleaned_if_state_and_age_still_hold(q: OwnQueue) -> None:
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


def test_many_jobs_are_cancelled_in_one_call(q: OwnQueue) -> None:
    waiting, delayed, first = q.add_job(lifo=True), q.add_job(delay=500), q.add_job(priority=1)
    active = q.fetch(1)[0].id
    assert active == first
    done = q.add_job(priority=1)
    q.finish(q.take_one().completed())
    call = administration.revoke_jobs(q.meta, [waiting, delayed, active, done, "none"], "waiting delayed active")
    assert q.run(call) == ["revoked", "revoked", "flagged", "completed", "not_found"]
    assert [q.state(job_id) for job_id in (waiting, delayed, active)] == ["failed", "failed", "active"]
    assert q.run(call) == ["revoked", "revoked", "flagged", "completed", "not_found"]  # the reply was lost
    assert q.fetch(5) == []


def test_searches_for_jobs_are_limited_per_call(q: OwnQueue) -> None:
    ids = [f"peer-{n}" for n in range(5)]
    for job_id in ids:
        q.put_job(job_id)
    assert q.run(administration.revoke_jobs(q.meta, ids)) == ["flagged", "flagged"]
    assert q.run(administration.revoke_jobs(q.meta, ids[2:])) == ["flagged", "flagged"]
    listed = [q.add_job(lifo=True) for _ in range(5)]
    assert q.run(administration.revoke_jobs(q.meta, listed)) == ["revoked"] * 5
