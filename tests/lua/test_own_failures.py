"""Test the recording of failed attempts, the reasons and counters of failed jobs, and the failure policy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from glidemq_py._core.calls import administration, working
from glidemq_py._features.failures.attempts import FailedAttempt, FailureReason, read_failed_attempts
from glidemq_py._features.failures.calls import (
    FailureRow,
    PolicyReply,
    failure_stats,
    failures_change,
    failures_page,
    run_failure_policy,
    set_failure_setting,
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


def recover(q: OwnQueue, job: Fetched, max_stalled: int = 1, consumer: str = "py-1") -> Any:
    q.let_idle(job.entry, LOCK, consumer)
    q.redis("UNLINK", "lock:recover")
    return q.run(working.recover_stalled(q.meta, "py-9", 1_000, LOCK, max_stalled, False, ""))


def page(q: OwnQueue, wanted: Any = EVERYTHING, cursor: str = "", count: int = 100) -> tuple[list[FailureRow], str]:
    reply = q.run(failures_page(q.meta, wanted, cursor, count))
    return [FailureRow(*row) for row in reply.rows], reply.cursor


def set_policy(q: OwnQueue, interval: int = 0, retries: int = 3, age: int = 0, entries: int = 0) -> None:
    q.run(set_failure_setting(q.meta, "failurePolicy", f"{interval}|{retries}|{age}|{entries}"))


def policy_round(q: OwnQueue) -> PolicyReply:
    """Run the policy until it has no more to do; the sums, and the last wait."""
    retried = deleted = 0
    for number in range(100):
        reply = q.run(run_failure_policy(q.meta, number == 0))
        retried, deleted = retried + reply.retried, deleted + reply.deleted
        if not reply.more:
            return PolicyReply(retried, deleted, 0, reply.wait, reply.keyed)
    raise AssertionError("the policy does not end")


# -- attempts ------------------------------------------------------------------------------------------


def test_first_successful_attempt_writes_nothing(q: OwnQueue) -> None:
    q.add_job()
    q.finish(q.take_one().completed())
    assert not {"failedAttempts", "failureReason"} & q.job("1").keys()
    assert not q.redis("EXISTS", "failure-counts")


def test_each_failed_attempt_is_recorded(q: OwnQueue) -> None:
    q.add_job()
    first = q.take_one("py-7")
    q.advance(5)
    row = working.failed(*first.token, "a/b", "OSError", json.dumps(["old", "new\nline"]), 2, 10)
    assert q.exchange(0, [row], consumer="py-7").statuses == [working.AttemptStatus.RETRYING]
    q.advance(10)
    fail(q, limit=2)
    assert attempts(q, "1") == [
        FailedAttempt(
            number=1, started_at=START, failed_at=START + 5, worker="py-7", reason=R.EXPLICIT_FAIL, error="a/b",
            error_type="OSError", traceback="new\nline",
        ),
        FailedAttempt(
            number=2, started_at=START + 15, failed_at=START + 15, worker="py-1", reason=R.MAX_ATTEMPTS_EXCEEDED,
            error="boom", error_type="ValueError", traceback="t",
        ),
    ]  # fmt: skip
    assert q.job("1")["failureReason"] == f"max_attempts_exceeded|{START + 15}"


@pytest.mark.parametrize(
    ("kind", "permanent", "reason"),
    [
        ("ValueError", False, R.MAX_ATTEMPTS_EXCEEDED), ("ValueError", True, R.EXPLICIT_FAIL),
        ("JobTimeoutError", False, R.TIMEOUT), ("SandboxCrashError", False, R.WORKER_LOST),
        ("JobRevokedError", True, R.EXPLICIT_FAIL), ("ChildFailedError", True, R.CHILD_FAILED),
    ],
)  # fmt: skip
def test_reason_of_a_failed_job(q: OwnQueue, kind: str, permanent: bool, reason: FailureReason) -> None:
    q.add_job()
    fail(q, kind=kind, permanent=permanent)
    assert [attempt.reason for attempt in attempts(q, "1")] == [reason]
    assert [row.reason for row in page(q)[0]] == [reason]


@pytest.mark.parametrize(("registered", "reason"), [(True, R.STALLED), (False, R.WORKER_LOST)])
def test_stalled_attempts_are_recorded(q: OwnQueue, registered: bool, reason: FailureReason) -> None:
    q.add_job()
    job = q.take_one()
    if registered:
        q.redis("SET", "w:py-1", "{}")
    q.advance(LOCK)
    assert recover(q, job).recovered == ["1"]
    (attempt,) = attempts(q, "1")
    assert (attempt.number, attempt.started_at, attempt.duration) == (1, START, LOCK)
    assert (attempt.worker, attempt.reason) == ("py-1", reason)
    assert recover(q, q.take_one()).failed == ["1"]
    assert [each.reason for each in attempts(q, "1")] == [reason, reason]
    assert [row.reason for row in page(q)[0]] == [R.STALLED]


def test_expired_and_revoked_jobs_have_an_entry_without_start(q: OwnQueue) -> None:
    q.add_job(ttl=10)
    q.add_job(delay=100)
    q.advance(11)
    assert q.fetch() == []
    q.run(administration.revoke(q.meta, "2"))
    assert [(each.number, each.started_at, each.reason) for each in attempts(q, "1")] == [(0, None, R.TTL_EXPIRED)]
    assert [(each.number, each.started_at, each.reason) for each in attempts(q, "2")] == [(0, None, R.EXPLICIT_FAIL)]


def test_history_is_bounded_by_count(q: OwnQueue) -> None:
    q.run(set_failure_setting(q.meta, "attemptHistory", "3|10|4096"))
    q.add_job()
    for _ in range(5):
        fail(q, limit=9, trace=json.dumps(["é" * 20]))
    found = attempts(q, "1")
    assert [attempt.number for attempt in found] == [3, 4, 5]
    assert {attempt.traceback for attempt in found} == {"é" * 5}


def test_history_is_bounded_by_bytes(q: OwnQueue) -> None:
    q.run(set_failure_setting(q.meta, "attemptHistory", "20|2000|4096"))
    q.add_job()
    for number in range(6):
        fail(q, limit=9, trace=json.dumps([f"{number}" * 1_900]))
    assert [attempt.number for attempt in attempts(q, "1")] == [5, 6]
    assert len(q.job("1")["failedAttempts"]) <= 4096


def test_history_can_be_turned_off(q: OwnQueue) -> None:
    q.run(set_failure_setting(q.meta, "attemptHistory", "0|0|4096"))
    q.add_job()
    fail(q)
    assert "failedAttempts" not in q.job("1")
    assert q.job("1")["failureReason"] == f"max_attempts_exceeded|{START}"


@pytest.mark.parametrize("junk", ["", "[", "\n" * 5_000, "x" * 200_000, "[1,2]\nnull"])
@pytest.mark.parametrize("trace", ["", "[]", '["a', '[",","b"]', "[1]", '["\\u00'])
def test_malformed_history_and_tracebacks_do_no_harm(q: OwnQueue, junk: str, trace: str) -> None:
    q.add_job()
    q.redis("HSET", "job:1", "failedAttempts", junk)
    q.redis("HSET", "meta", "attemptHistory", "junk")
    fail(q, trace=trace)
    assert [attempt.error for attempt in attempts(q, "1")] == ["boom"]
    assert len(q.job("1")["failedAttempts"]) < 70_000


def test_requeue_keeps_the_history_and_resets_the_rest(q: OwnQueue) -> None:
    q.add_job()
    fail(q)
    q.redis("HSET", "job:1", "autoRetries", "2")
    assert q.run(administration.requeue_job(q.meta, "1")) == "ok"
    record = q.job("1")
    assert not {"failureReason", "autoRetries"} & record.keys()
    assert (record["attemptsMade"], len(attempts(q, "1"))) == ("0", 1)


def test_history_is_in_the_dead_letter_entry(q: OwnQueue) -> None:
    q.redis("HSET", "meta", "deadLetterQueueName", "dead")
    q.add_job()
    job = q.take_one()
    q.finish(job.failed(keep=1))
    ((_, flat),) = q.redis("XRANGE", "outbox", "-", "+")
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    assert [attempt.error for attempt in read_failed_attempts(fields["failedAttempts"])] == ["boom"]
    assert q.state("1") is None


# -- failed jobs ---------------------------------------------------------------------------------------


def test_pages_filter_by_reason_name_and_time(q: OwnQueue) -> None:
    for number in range(6):
        q.advance(10)
        failed_job(q, "abc"[number % 3], "JobTimeoutError" if number < 2 else "ValueError")
    assert [row.id for row in page(q)[0]] == ["1", "2", "3", "4", "5", "6"]
    assert [row.id for row in page(q, (["timeout"], False, False, False))[0]] == ["1", "2"]
    assert [row.id for row in page(q, ((), "a", False, False))[0]] == ["1", "4"]
    assert [row.id for row in page(q, ((), False, START + 20, START + 40))[0]] == ["2", "3", "4"]
    assert page(q, (["stalled"], False, False, False))[0] == []


def test_pages_continue_among_equal_times(q: OwnQueue) -> None:
    ids = [failed_job(q) for _ in range(7)]
    found, cursor = page(q, count=3)
    rest, cursor = page(q, cursor=cursor, count=3)
    last, cursor = page(q, cursor=cursor, count=3)
    assert ([row.id for row in found + rest + last], cursor) == (ids, "")


def test_purge_deletes_what_matches(q: OwnQueue) -> None:
    for number in range(6):
        failed_job(q, "ab"[number % 2])
    cursor, total = "", 0
    for _ in range(10):
        reply = q.run(failures_change(q.meta, "purge", ((), "a", False, False), cursor, 2, total))
        total, cursor = total + reply.changed, reply.cursor
        if not cursor:
            break
    assert (total, cursor, q.counts()["failed"]) == (3, "", 3)
    assert [q.state(str(number)) for number in range(1, 7)] == [None, "failed"] * 3
    assert q.events()[-1] == {"event": "cleaned", "jobId": "3"}


def test_retry_requeues_what_matches(q: OwnQueue) -> None:
    failed_job(q, "a")
    failed_job(q, "b")
    reply = q.run(failures_change(q.meta, "retry", ((), "b", False, False), "", 10, 0))
    assert (reply.changed, reply.cursor, reply.high) == (1, "", START)
    assert (q.state("1"), q.state("2"), q.job("2")["attemptsMade"]) == ("failed", "waiting", "0")


def test_counters_by_reason_and_name(q: OwnQueue) -> None:
    for name, kind in (("a", "ValueError"), ("a", "JobTimeoutError"), ("b", "ValueError"), ("a", "ValueError")):
        failed_job(q, name, kind)
    reply = q.run(failure_stats(q.meta))
    assert dict(zip(reply.counts[::2], reply.counts[1::2], strict=True)) == {
        "max_attempts_exceeded|a": "2", "max_attempts_exceeded|b": "1", "timeout|a": "1", "since": str(START),
    }  # fmt: skip
    assert (reply.kept, reply.oldest, reply.newest) == (4, START, START)


@pytest.mark.slow
def test_counters_are_bounded(q: OwnQueue) -> None:
    for number in range(1_010):
        failed_job(q, f"name-{number}")
    assert q.redis("HLEN", "failure-counts") == 1_002
    assert q.redis("HGET", "failure-counts", "max_attempts_exceeded|") == "10"


@pytest.mark.parametrize("command", [("SET", "text"), ("HSET", "max_attempts_exceeded|task", "junk")])
def test_foreign_counters_do_no_harm(q: OwnQueue, command: tuple[str, ...]) -> None:
    q.redis(command[0], "failure-counts", *command[1:])
    assert q.state(failed_job(q)) == "failed"
    assert q.run(failure_stats(q.meta)).kept == 1


def test_reason_of_a_failure_of_a_peer(q: OwnQueue) -> None:
    job_id = failed_job(q, kind="JobTimeoutError")
    q.redis("HSET", f"job:{job_id}", "finishedOn", START + 1, "failedReason", "boom")
    assert [row.reason for row in page(q)[0]] == [R.UNKNOWN]
    q.redis("HSET", f"job:{job_id}", "failedReason", "job stalled more than maxStalledCount")
    assert [row.reason for row in page(q)[0]] == [R.STALLED]
    q.redis("HSET", f"job:{job_id}", "failedReason", "child glide:{q}:7 failed: boom")
    assert [row.reason for row in page(q)[0]] == [R.CHILD_FAILED]


# -- the policy ----------------------------------------------------------------------------------------


def test_policy_requeues_with_growing_intervals(q: OwnQueue) -> None:
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


def test_policy_finds_earlier_failures_and_those_of_peers(q: OwnQueue) -> None:
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


def test_policy_does_not_requeue_revoked_and_expired_jobs(q: OwnQueue) -> None:
    set_policy(q, interval=1_000)
    q.add_job(ttl=10)
    q.add_job(delay=100)
    q.advance(11)
    assert q.fetch() == []
    q.run(administration.revoke(q.meta, "2"))
    q.advance(10_000)
    assert policy_round(q)[:4] == (0, 0, 0, -1)
    assert (q.state("1"), q.state("2")) == ("failed", "failed")


def test_policy_waits_again_after_a_manual_requeue(q: OwnQueue) -> None:
    set_policy(q, interval=10_000)
    failed_job(q)
    policy_round(q)
    q.advance(9_000)
    q.run(administration.requeue_job(q.meta, "1"))
    fail(q)
    q.advance(1_000)
    assert policy_round(q)[:4] == (0, 0, 0, 9_000)


def test_policy_deletes_old_jobs(q: OwnQueue) -> None:
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


def test_recovery_reports_that_the_policy_has_work(q: OwnQueue) -> None:
    def reported() -> int:
        q.redis("UNLINK", "lock:recover")
        return int(q.run(working.recover_stalled(q.meta, "py-9", 1_000, LOCK, 1, False, "")).policy)

    failed_job(q)
    assert reported() == 0
    set_policy(q, entries=5)
    assert reported() == 1
    q.run(administration.remove(q.meta, "1"))
    assert reported() == 0


def test_obliterate_deletes_the_keys(q: OwnQueue) -> None:
    set_policy(q, interval=1_000)
    failed_job(q)
    policy_round(q)
    assert {"failure-counts", "failure-retries"} <= q.key_names()
    q.obliterate()
    assert q.key_names() == set()
