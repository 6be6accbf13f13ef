"""Test the stalled-job policy of a queue, and which policy a job gets."""

from typing import Any

import pytest

from tests.inside import heartbeat, leave, set_settings
from tests.lua.own_support import NODE_CONSUMER, OwnQueue
from tests.lua.test_own_leases import lease, leasing

LOCK = 30_000
DAY = 86_400_000


def register(q: OwnQueue, policy: str, consumer: str = "py-1"):
    info = '{"lockDuration":30000' + (f',"stalledPolicy":"{policy}"' if policy else "") + "}"
    q.run(heartbeat(q.meta, consumer, info, 60_000, []))


def stall(q: OwnQueue, consumer: str = "py-1", idle: int = 90_000, **options: Any) -> str:
    """Add a job, fetch it and let its lock expire. Return its id."""
    q.add_job(**options)
    job = q.take_one(consumer=consumer)
    if job.entry:
        q.let_idle(job.entry, idle, consumer)
    q.advance(idle)
    return str(job.id)


def outcome(reply: Any, job_id: str) -> str:
    return "recovered" if job_id in reply.recovered else "failed" if job_id in reply.failed else "active"


@pytest.mark.parametrize("place", [{}, {"lifo": True}])
@pytest.mark.parametrize(
    ("worker", "queue", "caller", "expected"),
    [
        ("", None, 1, "recovered"),
        ("", None, 0, "failed"),
        ("", 0, 5, "failed"),
        ("", 5, 0, "recovered"),
        ("0|", 5, 5, "failed"),
        ("3|", 0, 0, "recovered"),
        ("|100", 0, 5, "failed"),
    ],
)
def test_worker_then_queue_then_caller_decides(
    q: OwnQueue, worker: str, queue: int | None, caller: int, expected: str, place: Any
):
    register(q, worker)
    if queue is not None:
        q.run(set_settings(q.meta, maxStalledCount=str(queue)))
    job_id = stall(q, **place)
    assert outcome(q.recover_stalled(caller), job_id) == expected


def test_policy_of_a_dead_worker_outlives_its_registration(q: OwnQueue):
    register(q, "0|")
    job_id = stall(q)
    q.redis("DEL", "w:py-1")
    assert q.recover_stalled().failed == [job_id]


@pytest.mark.parametrize("place", [{}, {"lifo": True}])
@pytest.mark.parametrize(("worker", "queue", "caller"), [("|60000", 0, 0), ("", 60_000, 0), ("", -1, 60_000)])
def test_grace_delays_the_recovery(q: OwnQueue, worker: str, queue: int, caller: int, place: Any):
    register(q, worker)
    q.run(set_settings(q.meta, stalledGrace=None if queue < 0 else str(queue)))
    job_id = stall(q, idle=LOCK + 59_000, **place)
    assert outcome(q.recover_stalled(grace=caller), job_id) == "active"
    q.advance(2_000)
    if not place:
        (pending,) = q.pending()
        q.let_idle(pending[0], LOCK + 61_000, "py-1")
    assert outcome(q.recover_stalled(grace=caller), job_id) == "recovered"


def test_grace_of_the_queue_holds_for_jobs_of_peers(q: OwnQueue):
    q.run(set_settings(q.meta, maxStalledCount="0", stalledGrace="60000"))
    job_id = stall(q, NODE_CONSUMER, idle=LOCK + 61_000)
    assert outcome(q.recover_stalled(), job_id) == "active"  # seen for the first time
    q.advance(LOCK + 59_000)
    assert outcome(q.recover_stalled(), job_id) == "active"
    q.advance(1_000)
    assert outcome(q.recover_stalled(), job_id) == "failed"


def test_interval_of_the_queue_is_in_the_reply_and_limits_the_lock(q: OwnQueue):
    assert q.recover_stalled().interval == 0
    q.redis("DEL", "lock:recover")
    q.run(set_settings(q.meta, stalledInterval="5000"))
    assert q.recover_stalled(hold=60_000).interval == 5_000
    assert 0 < q.redis("PTTL", "lock:recover") <= 4_000
    other = q.recover_stalled(holder="py-8")
    assert (other.held, other.interval) == (0, 5_000)


@pytest.mark.parametrize("value", ["", "x", "-1", "1e99", "nan"])
def test_invalid_stored_policy_counts_as_not_set(q: OwnQueue, value: str):
    q.redis("HSET", "meta", "stalledInterval", value, "maxStalledCount", value, "stalledGrace", value)
    q.redis("HSET", "stalled-policies", "py-1", value)
    job_id = stall(q)
    reply = q.recover_stalled()
    assert (reply.recovered, reply.interval) == ([job_id], 0)


def test_foreign_key_in_place_of_the_policies_is_ignored(q: OwnQueue):
    q.redis("SET", "stalled-policies", "foreign")
    job_id = stall(q)
    assert q.recover_stalled().recovered == [job_id]


def test_leaving_worker_with_active_jobs_leaves_its_policy(q: OwnQueue):
    register(q, "0|")
    job_id = stall(q)
    q.run(leave(q.meta, "py-1"))
    assert q.recover_stalled().failed == [job_id]


def test_policies_of_workers_that_died_long_ago_are_deleted(q: OwnQueue):
    register(q, "3|", "py-old")
    q.advance(3 * DAY)
    register(q, "3|", "py-new")
    q.redis("DEL", "w:py-old")
    q.redis("DEL", "w:py-new")
    q.recover_stalled()
    assert q.redis("HKEYS", "stalled-policies") == ["py-new"]


def test_expired_lease_gets_the_policy_of_the_queue_in_a_fetch(q: OwnQueue):
    q.run(set_settings(q.meta, maxStalledCount="0"))
    job_id = q.add_job()
    lease(q)
    q.advance(60_000)
    assert leasing(q)[1] == []
    assert q.job(job_id)["state"] == "failed"


def test_a_key_of_another_type_does_not_stop_heartbeats(q: OwnQueue):
    q.redis("SET", "stalled-policies", "text")
    register(q, "5|")
    assert q.redis("HKEYS", "stalled-policies") == ["py-1"]


def test_a_process_that_checks_more_often_takes_the_turn(q: OwnQueue):
    assert q.recover_stalled(holder="py-1", hold=60_000).held
    assert not q.recover_stalled(holder="py-2", hold=60_000).held
    assert q.recover_stalled(holder="py-3", hold=800).held  # py-1 may have stopped
    assert not q.recover_stalled(holder="py-1", hold=60_000).held
    assert q.recover_stalled(holder="py-3", hold=800).held


def test_the_turn_of_an_older_version_is_respected(q: OwnQueue):
    q.redis("SET", "lock:recover", "py-1", "PX", "60000")
    assert not q.recover_stalled(holder="py-2", hold=800).held
    assert q.recover_stalled(holder="py-1", hold=60_000).held
