"""Test the recording of failed attempts, the reasons and counters of failed jobs, and the failure policy."""

import json
from typing import Any

import pytest

from tests.inside import (
    FailedAttempt,
    FailureReason,
    FailureRow,
    PolicyReply,
    administration,
    failure_stats,
    failures_page,
    read_failed_attempts,
    run_failure_policy,
    set_settings,
    working,
)
from tests.lua.own_support import START, Fetched, OwnQueue

LOCK = 30_000
EVERYTHING: Any = ((), False, False, False)
R = FailureReason


def attempts(q: OwnQueue, job_id: str) -> list[FailedAttempt]:
    return read_failed_attempts(q.job(job_id).get("failedAttempts", ""))


def fail(q: OwnQueue, limit: int = 0, kind: str = "ValueError", trace: str = '["t"]', permanent: bool = False) -> str:
    job = q.take_one()
    q.finish(working.failed(*job.token, "boom", kind, trace, limit, 0, permanent=permanent))
    return job.id


def failed_job(q: OwnQueue, name: str = "task", kind: str = "ValueError") -> str:
    q.add_job(name)
    return fail(q, kind=kind)


def recover(q: OwnQueue, job: Fetched, max_stalled: int = 1, consumer: str = "py-1"):
    q.let_idle(job.entry, LOCK, consumer)
    q.redis("UNLINK", "lock:recover")
    return q.recover_stalled(max_stalled)


def page(q: OwnQueue, wanted: Any = EVERYTHING, cursor: str = "", count: int = 100) -> tuple[list[FailureRow], str]:
    reasons, name, low, high = wanted
    reply = q.run(failures_page(q.meta, reasons, name, low, high, cursor, count))
    return [FailureRow(*row) for row in reply.rows], reply.cursor


def set_policy(q: OwnQueue, interval: int = 0, retries: int = 3, age: int = 0, entries: int = 0):
    q.run(set_settings(q.meta, failurePolicy=f"{interval}|{retries}|{age}|{entries}"))


def policy_round(q: OwnQueue) -> PolicyReply:
    """Run the policy until it has no more to do; the sums, and the last wait."""
    retried = deleted = 0
    for number in range(100):
        reply = q.run(run_failure_policy(q.meta, number == 0))
        retried, deleted = retried + reply.retried, deleted + reply.deleted
        if not reply.more:
            return PolicyReply(retried, deleted, 0, reply.wait)
    raise AssertionError("the policy does not end")


# -- attempts ------------------------------------------------------------------------------------------


def test_history_is_bounded_by_count(q: OwnQueue):
    q.run(set_settings(q.meta, attemptHistory="3|10|4096"))
    q.add_job()
    for _ in range(5):
        fail(q, limit=9, trace=json.dumps(["é" * 20]))
    found = attempts(q, "1")
    assert [attempt.number for attempt in found] == [3, 4, 5]
    assert {attempt.traceback for attempt in found} == {"é" * 5}


def test_history_is_bounded_by_bytes(q: OwnQueue):
    q.run(set_settings(q.meta, attemptHistory="20|2000|4096"))
    q.add_job()
    for number in range(6):
        fail(q, limit=9, trace=json.dumps([f"{number}" * 1_900]))
    assert [attempt.number for attempt in attempts(q, "1")] == [5, 6]
    assert len(q.job("1")["failedAttempts"]) <= 4096


@pytest.mark.parametrize("junk", ["", "[", "\n" * 5_000, "x" * 200_000, "[1,2]\nnull"])
@pytest.mark.parametrize("trace", ["", "[]", '["a', '[",","b"]', "[1]", '["\\u00'])
def test_malformed_history_and_tracebacks_do_no_harm(q: OwnQueue, junk: str, trace: str):
    q.add_job()
    q.redis("HSET", "job:1", "failedAttempts", junk)
    q.redis("HSET", "meta", "attemptHistory", "junk")
    fail(q, trace=trace)
    assert [attempt.error for attempt in attempts(q, "1")] == ["boom"]
    assert len(q.job("1")["failedAttempts"]) < 70_000


# -- failed jobs ---------------------------------------------------------------------------------------


def test_pages_continue_among_equal_times(q: OwnQueue):
    ids = [failed_job(q) for _ in range(7)]
    found, cursor = page(q, count=3)
    rest, cursor = page(q, cursor=cursor, count=3)
    last, cursor = page(q, cursor=cursor, count=3)
    assert ([row.id for row in found + rest + last], cursor) == (ids, "")


@pytest.mark.slow
def test_counters_are_bounded(q: OwnQueue):
    for number in range(1_010):
        failed_job(q, f"name-{number}")
    assert q.redis("HLEN", "failure-counts") == 1_002
    assert q.redis("HGET", "failure-counts", "max_attempts_exceeded|") == "10"


@pytest.mark.parametrize("command", [("SET", "text"), ("HSET", "max_attempts_exceeded|task", "junk")])
def test_foreign_counters_do_no_harm(q: OwnQueue, command: tuple[str, ...]):
    q.redis(command[0], "failure-counts", *command[1:])
    assert q.state(failed_job(q)) == "failed"
    assert q.run(failure_stats(q.meta)).kept == 1


def test_reason_of_a_failure_of_a_peer(q: OwnQueue):
    job_id = failed_job(q, kind="JobTimeoutError")
    q.redis("HSET", f"job:{job_id}", "finishedOn", START + 1, "failedReason", "boom")
    assert [row.reason for row in page(q)[0]] == [R.UNKNOWN]
    q.redis("HSET", f"job:{job_id}", "failedReason", "job stalled more than maxStalledCount")
    assert [row.reason for row in page(q)[0]] == [R.STALLED]
    q.redis("HSET", f"job:{job_id}", "failedReason", "child glide:{q}:7 failed: boom")
    assert [row.reason for row in page(q)[0]] == [R.CHILD_FAILED]


# -- the policy ----------------------------------------------------------------------------------------


def test_policy_requeues_with_growing_intervals(q: OwnQueue):
    set_policy(q, interval=1_000, retries=4)
    q.add_job()
    for wait in (1_000, 1_000, 2_000, 4_000):
        fail(q)
        (row,) = page(q)[0]
        assert row.next_retry == q.now + wait
        assert policy_round(q)[:4] == (0, 0, 0, wait)
        q.advance(wait - 1)
        assert policy_round(q).retried == 0
        q.advance(1)
        assert policy_round(q)[:4] == (1, 0, 0, -1)
        assert q.state("1") == "waiting"
    fail(q)
    assert page(q)[0][0].next_retry is False
    q.advance(1_000_000)
    assert policy_round(q)[:4] == (0, 0, 0, -1)
    assert (q.state("1"), len(attempts(q, "1"))) == ("failed", 5)
    q.run(administration.requeue_job(q.meta, "1"))
    fail(q)
    assert policy_round(q).wait == 1_000


def test_policy_finds_earlier_failures_and_those_of_peers(q: OwnQueue):
    for _ in range(450):
        failed_job(q)
    set_policy(q, interval=1_000)
    assert policy_round(q).wait == 1_000
    q.put_job("peer", state="failed", finishedOn=q.now - 5_000, failedReason="x")
    q.redis("ZADD", "failed", q.now - 5_000, "peer")
    assert policy_round(q).retried == 1
    assert q.state("peer") == "waiting"
    q.advance(1_000)
    assert policy_round(q).retried == 450
    assert not {"failure-retries", "failed"} & q.key_names()


def test_policy_does_not_requeue_expired_jobs(q: OwnQueue):
    set_policy(q, interval=1_000)
    q.add_job(ttl=10)
    q.advance(11)
    assert q.fetch() == []
    q.advance(10_000)
    assert (policy_round(q).retried, q.state("1")) == (0, "failed")


def test_policy_deletes_old_jobs(q: OwnQueue):
    set_policy(q, age=5_000, entries=300)
    for _ in range(210):
        failed_job(q)
    assert page(q)[0][0].expires == START + 5_000
    q.advance(3_000)
    for _ in range(310):
        failed_job(q)
    assert policy_round(q).deleted == 220
    q.advance(5_000)
    assert policy_round(q).deleted == 300
    assert {name for name in q.key_names() if name.startswith("job:")} == set()


def test_recovery_reports_that_the_policy_has_work(q: OwnQueue):
    def reported() -> int:
        q.redis("UNLINK", "lock:recover")
        return int(q.recover_stalled().policy)

    failed_job(q)
    assert reported() == 0
    set_policy(q, entries=5)
    assert reported() == 1
    q.run(administration.remove(q.meta, "1"))
    assert reported() == 0
