"""Suspending, signals, time-outs: the rows and functions one by one."""

import json
from typing import Any

import pytest

from glidemq_py._core.calls.adding import row
from glidemq_py._core.calls.administration import remove, revoke
from glidemq_py._core.calls.working import AttemptStatus as S
from glidemq_py._features.outbox import outbox
from glidemq_py._features.suspend import job_api as suspending
from tests.lua.own_support import BAND, START, Fetched, OwnQueue

NEVER = 9_999_999_999_999


def suspend(q: OwnQueue, job: Fetched, reason: str = "", timeout: int = 0) -> int:
    (status,) = q.finish(suspending.suspended(*job.token, reason, timeout))
    return status


def signal(q: OwnQueue, job_id: str, name: str = "go", data: str = "") -> str:
    return str(q.run(suspending.signal(q.meta, job_id, name, data)))


def deadlines(q: OwnQueue) -> dict[str, int]:
    flat = q.redis("ZRANGE", "suspended", 0, -1, "WITHSCORES")
    return {job_id: int(score) for job_id, score in zip(flat[::2], flat[1::2], strict=True)}


SOURCES = [{}, {"lifo": True}, {"priority": 3}, {"lifo": True, "delay": 5}]


@pytest.mark.parametrize("options", SOURCES)
def test_job_of_every_source_can_suspend_and_resume(q: OwnQueue, options: dict[str, Any]) -> None:
    """W25: jobs from lists and from the scheduled set too; they return to their source."""
    q.add_job(**options)
    q.advance(10)
    job = q.take_one()
    q.advance(40)
    assert suspend(q, job, "approval", 500) == S.SUSPENDED
    record = q.job("1")
    assert (record["state"], record["suspendedAt"]) == ("suspended", str(START + 50))
    assert (record["suspendReason"], record["suspendTimeout"], record["attemptsMade"]) == ("approval", "500", "0")
    assert deadlines(q) == {"1": START + 550}
    assert (q.entries(), q.redis("ZCARD", "list-active-ids")) == ([], 0)
    assert q.counts()["active"] == 0
    assert q.counts()["suspended"] == 1
    assert signal(q, "1", "approved", '{"by":"eve"}') == "resumed"
    assert deadlines(q) == {}
    entry = {"name": "approved", "data": '{"by":"eve"}', "receivedAt": START + 50}
    assert json.loads(q.job("1")["signals"]) == [entry]
    assert [json.loads(text) for text in q.redis("LRANGE", "signals:1", 0, -1)] == [entry]
    again = q.take_one()
    assert json.loads(again.fields["signals"]) == [entry]
    assert again.fields["priority"] == str(options.get("priority", 0))
    assert q.finish(again.completed()) == [S.OK]
    recorded = [event for event in q.event_names("1") if event in ("suspended", "resumed", "completed")]
    assert recorded == ["suspended", "resumed", "completed"]
    assert {"event": "resumed", "jobId": "1", "signal": "approved"} in q.events("1")


def test_first_run_returns_no_retry_fields(q: OwnQueue) -> None:
    q.add_job(ttl=5_000)  # not a plain job, whose row is shorter
    (job,) = q.exchange(1).jobs
    assert len(job) == 12


def test_suspension_without_timeout_never_expires(q: OwnQueue) -> None:
    q.add_job()
    suspend(q, q.take_one())
    assert deadlines(q) == {"1": NEVER}
    assert "suspendReason" not in q.job("1")
    q.advance(10**9)
    assert q.run(suspending.sweep(q.meta)) == ([], -1, 0, 1)
    assert signal(q, "1") == "resumed"


def test_suspension_clears_earlier_reason_and_timeout(q: OwnQueue) -> None:
    q.add_job()
    suspend(q, q.take_one(), "first", 100)
    signal(q, "1")
    suspend(q, q.take_one())
    assert "suspendReason" not in q.job("1")
    assert "suspendTimeout" not in q.job("1")


def test_early_signals_resume_job_immediately(q: OwnQueue) -> None:
    """W42: the original answers `not_suspended` and forgets them."""
    q.add_job()
    assert signal(q, "1", "first") == "kept"
    job = q.take_one()
    assert signal(q, "1", "second") == "kept"
    assert suspend(q, job, "", 100) == S.SUSPENDED
    assert (q.state("1"), deadlines(q)) == ("waiting", {})
    assert [each["name"] for each in json.loads(q.job("1")["signals"])] == ["first", "second"]
    assert q.events("1")[-1] == {"event": "resumed", "jobId": "1", "signal": "first"}
    # EventRecorder once: the next suspension waits for another one.
    assert suspend(q, q.take_one()) == S.SUSPENDED
    assert q.state("1") == "suspended"
    assert signal(q, "1", "third") == "resumed"
    assert q.events("1")[-1]["signal"] == "third"


def test_early_signal_resumes_job_in_same_call(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    signal(q, "1")
    reply = q.exchange(1, [suspending.suspended(*job.token, "", 0)])
    assert (list(reply.statuses), [each[0] for each in reply.jobs]) == ([S.SUSPENDED], ["1"])


def test_signal_to_missing_or_ended_job(q: OwnQueue) -> None:
    assert signal(q, "7") == "gone"
    q.add_job()
    q.finish(q.take_one().completed())
    assert signal(q, "1") == "ended"
    assert "signals:1" not in q.key_names()
    q.add_job()
    q.finish(q.take_one().failed())
    assert signal(q, "2") == "ended"


def test_signals_are_bounded(q: OwnQueue) -> None:
    q.add_job()
    for _ in range(1000):
        assert signal(q, "1") == "kept"
    assert signal(q, "1") == "full"
    assert q.redis("LLEN", "signals:1") == 1000
    q.add_job()
    assert signal(q, "2", data="x" * 1_000_000) == "kept"
    assert signal(q, "2", data="x" * 100_000) == "full"


def test_signals_are_deleted_with_the_job(q: OwnQueue) -> None:
    q.add_job()
    signal(q, "1")
    assert "signals:1" in q.key_names()
    q.finish(q.take_one().completed(keep=1))
    assert not {"signals:1", "job:1"} & q.key_names()


def test_time_outs(q: OwnQueue) -> None:
    for _ in range(3):
        q.add_job(opts='{"removeOnFail":{"count":1,"age":0}}')
    q.advance(20)
    for job, timeout in zip(q.fetch(3), (100, 50, 0), strict=True):
        suspend(q, job, "", timeout)
    assert q.run(suspending.sweep(q.meta)) == ([], 50, 0, 1)
    q.advance(99)
    assert q.run(suspending.sweep(q.meta)) == (["2"], 1, 0, 1)
    record = q.job("2")
    assert (record["state"], record["failedReason"]) == ("failed", "Suspend timeout exceeded")
    assert record["finishedOn"] == str(q.now)
    assert q.events("2")[-1] == {"event": "failed", "jobId": "2", "failedReason": "Suspend timeout exceeded"}
    assert q.metric("failed")["c"] == 1
    q.advance(1)
    assert q.run(suspending.sweep(q.meta)) == (["1"], -1, 0, 1)
    assert q.redis("ZRANGE", "failed", 0, -1) == ["1"]  # retention, by the job's own rule
    assert "job:2" not in q.key_names()
    assert signal(q, "1") == "ended"


def test_late_signal_does_not_resume(q: OwnQueue) -> None:
    q.add_job()
    suspend(q, q.take_one(), "", 50)
    q.advance(50)
    assert signal(q, "1") == "ended"
    assert (q.state("1"), deadlines(q)) == ("failed", {})


def test_timeout_creates_dead_letter_entry(q: OwnQueue) -> None:
    q.redis("HSET", "meta", "deadLetterQueueName", "dead")
    q.add_job()
    suspend(q, q.take_one(), "", 50)
    q.advance(50)
    q.run(suspending.sweep(q.meta))
    (entry,) = q.run(outbox(q.meta, "me", 100, "", ())).entries
    assert (entry.fields["id"], entry.fields["reason"]) == ("1", "Suspend timeout exceeded")


def test_sweep_is_bounded_and_respects_peer_lock(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}") for _ in range(150)], quiet=True)
    q.finish(*[suspending.suspended(*job.token, "", 5) for job in q.fetch(150)])
    q.advance(5)
    q.redis("SET", "suspended:lock:__sweep__", "node", "PX", 60_000)
    assert q.run(suspending.sweep(q.meta)) == ([], 0, 0, 0)
    q.redis("DEL", "suspended:lock:__sweep__")
    first = q.run(suspending.sweep(q.meta))
    assert (len(first.failed), first.more) == (100, 1)
    assert len(q.run(suspending.sweep(q.meta)).failed) == 50


def test_sweep_removes_members_that_are_not_suspended(q: OwnQueue) -> None:
    q.add_job()
    q.redis("ZADD", "suspended", START, "1", START, "gone")
    assert q.run(suspending.sweep(q.meta)) == ([], -1, 0, 1)
    assert q.state("1") == "waiting"


def test_repeated_suspend_is_already_and_late_one_is_stale(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    suspend(q, job, "", 50)
    assert suspend(q, job, "other", 70) == S.ALREADY
    assert deadlines(q) == {"1": START + 50}
    signal(q, "1")
    assert suspend(q, job) == S.ALREADY
    q.take_one()
    assert suspend(q, job) == S.STALE
    q.run(remove(q.meta, "1"))
    assert suspend(q, job) == S.GONE


def test_revoked_job_fails_instead_of_suspending(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    assert q.run(revoke(q.meta, "1")) == "flagged"
    assert suspend(q, job) == S.FAILED
    assert (q.state("1"), q.job("1")["failedReason"], deadlines(q)) == ("failed", "revoked", {})


def test_revoking_and_removing_a_suspended_job(q: OwnQueue) -> None:
    for _ in range(2):
        q.add_job()
    for job in q.fetch(2):
        suspend(q, job)
    assert q.run(revoke(q.meta, "1")) == "revoked"
    assert (q.state("1"), list(deadlines(q))) == ("failed", ["2"])
    assert q.events("1")[-1]["event"] == "revoked"
    signal(q, "2")
    suspend(q, q.take_one())
    assert q.run(remove(q.meta, "2")) == 1
    assert deadlines(q) == {}
    assert not {"job:2", "signals:2"} & q.key_names()


ENDS = ["timeout", "revoke", "remove"]


@pytest.mark.parametrize("end", ENDS)
def test_slot_is_freed_when_suspended_job_ends(q: OwnQueue, end: str) -> None:
    """W92: the job keeps its slot while it is suspended, and frees it when it ends."""
    for _ in range(2):
        q.add(row("a", "", "{}", ordering=["k", 1, 0, 0, 0, 0, 0]))
    (job,) = q.fetch(2)
    suspend(q, job, "", 50)
    assert q.fetch(1) == []
    q.advance(50)
    if end == "timeout":
        q.run(suspending.sweep(q.meta))
    else:
        q.run((revoke if end == "revoke" else remove)(q.meta, "1"))
    assert [each.id for each in q.fetch(1)] == ["2"]


def test_resumed_ordered_job_keeps_its_slot(q: OwnQueue) -> None:
    for _ in range(2):
        q.add(row("a", "", "{}", ordering=["k", 1, 0, 0, 0, 0, 0]))
    suspend(q, q.take_one())
    signal(q, "1")
    job = q.take_one()
    assert job.id == "1"
    q.finish(job.completed())
    assert q.take_one().id == "2"


def test_obliterate_deletes_suspended_jobs(q: OwnQueue) -> None:
    q.add_job()
    suspend(q, q.take_one())
    q.redis("RPUSH", "signals:1", "{}")
    assert q.obliterate() == [("more", 1), ("done", 0)]
    assert q.key_names() == set()


def test_signals_of_peer_are_delivered_unchanged(q: OwnQueue) -> None:
    """A Node peer resumes by its own function; list and field agree then, and nothing is early."""
    q.add_job()
    suspend(q, q.take_one())
    text = '{"name":"go","data":"","receivedAt":1}'
    q.redis("RPUSH", "signals:1", text)
    q.redis("HSET", "job:1", "signals", f"[{text}]", "state", "waiting")
    q.redis("ZREM", "suspended", "1")
    q.push_entry("1")
    job = q.take_one()
    assert job.fields["signals"] == f"[{text}]"
    assert suspend(q, job) == S.SUSPENDED
    assert q.state("1") == "suspended"


def test_invalid_stored_signals_do_not_block(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.redis("RPUSH", "signals:1", "no json")
    q.redis("HSET", "job:1", "signals", "neither")
    assert suspend(q, job) == S.SUSPENDED
    assert (q.state("1"), q.events("1")[-1]["signal"]) == ("waiting", "")


def test_resumed_priority_job_keeps_its_priority(q: OwnQueue) -> None:
    q.add_job(priority=2)
    suspend(q, q.take_one())
    signal(q, "1")
    assert q.state("1") == "prioritized"
    assert int(q.redis("ZSCORE", "scheduled", "1")) // BAND == 2


def test_fallback_index_is_incremented_by_retry(q: OwnQueue) -> None:
    q.add_job(opts='{"fallbacks":[]}')
    for expected in (1, 2):
        job = q.take_one()
        q.finish(job.failed(limit=3)._replace(next_fallback=1))
        assert q.job("1")["fallbackIndex"] == str(expected)
    job = q.take_one()
    assert job.fields["fallbackIndex"] == "2"
    q.finish(job.failed(limit=3)._replace(next_fallback=1))
    assert (q.state("1"), q.job("1")["fallbackIndex"]) == ("failed", "2")
