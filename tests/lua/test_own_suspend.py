"""Suspending, signals, time-outs: the rows and functions one by one."""

from tests.inside import AttemptStatus as S
from tests.inside import remove, row
from tests.inside import suspend as suspending
from tests.lua.own_support import START, Fetched, OwnQueue


def suspend(q: OwnQueue, job: Fetched, reason: str = "", timeout: int = 0) -> int:
    (status,) = q.finish(suspending.suspended(*job.token, reason, timeout))
    return status


def signal(q: OwnQueue, job_id: str, name: str = "go", data: str = "") -> str:
    return str(q.run(suspending.deliver_signal(q.meta, job_id, name, data)))


def deadlines(q: OwnQueue) -> dict[str, int]:
    flat = q.redis("ZRANGE", "suspended", 0, -1, "WITHSCORES")
    return {job_id: int(score) for job_id, score in zip(flat[::2], flat[1::2], strict=True)}


def test_suspension_clears_earlier_reason_and_timeout(q: OwnQueue):
    q.add_job()
    suspend(q, q.take_one(), "first", 100)
    signal(q, "1")
    suspend(q, q.take_one())
    assert "suspendReason" not in q.job("1")
    assert "suspendTimeout" not in q.job("1")


def test_signals_are_bounded(q: OwnQueue):
    q.add_job()
    for _ in range(1000):
        assert signal(q, "1") == "kept"
    assert signal(q, "1") == "full"
    assert q.redis("LLEN", "signals:1") == 1000
    q.add_job()
    assert signal(q, "2", data="x" * 1_000_000) == "kept"
    assert signal(q, "2", data="x" * 100_000) == "full"


def test_time_outs(q: OwnQueue):
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


def test_sweep_is_bounded_and_respects_peer_lock(q: OwnQueue):
    q.add(*[row("a", "", "{}") for _ in range(150)], quiet=True)
    q.finish(*[suspending.suspended(*job.token, "", 5) for job in q.fetch(150)])
    q.advance(5)
    q.redis("SET", "suspended:lock:__sweep__", "node", "PX", 60_000)
    assert q.run(suspending.sweep(q.meta)) == ([], 0, 0, 0)
    q.redis("DEL", "suspended:lock:__sweep__")
    first = q.run(suspending.sweep(q.meta))
    assert (len(first.failed), first.more) == (100, 1)
    assert len(q.run(suspending.sweep(q.meta)).failed) == 50


def test_sweep_removes_members_that_are_not_suspended(q: OwnQueue):
    q.add_job()
    q.redis("ZADD", "suspended", START, "1", START, "gone")
    assert q.run(suspending.sweep(q.meta)) == ([], -1, 0, 1)
    assert q.state("1") == "waiting"


def test_repeated_suspend_is_already_and_late_one_is_stale(q: OwnQueue):
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


def test_signals_of_peer_are_delivered_unchanged(q: OwnQueue):
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


def test_invalid_stored_signals_do_not_block(q: OwnQueue):
    q.add_job()
    job = q.take_one()
    q.redis("RPUSH", "signals:1", "no json")
    q.redis("HSET", "job:1", "signals", "neither")
    assert suspend(q, job) == S.SUSPENDED
    assert (q.state("1"), q.events("1")[-1]["signal"]) == ("waiting", "")
