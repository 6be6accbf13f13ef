"""Queue administration and budgets, and operations on a full server."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py.testing import RespClient, RespError, ServerProcess
from tests.lua import wire_support
from tests.lua.wire_support import GROUP, START, WireQueue, load

wire = wire_support.wire_fixture


def test_pause_and_resume(wire: WireQueue) -> None:
    for function, flag in (("pause", "1"), ("pause", "1"), ("resume", "0")):
        assert wire.call(function, ["meta", "events"]) == 1
        assert wire.redis("HGET", "meta", "paused") == flag
    assert wire.event_names("0") == ["paused", "paused", "resumed"]


def test_rate_limit(wire: WireQueue) -> None:
    def fetch(maximum: int, window: int = 1000) -> int:
        return int(wire.call("rateLimit", ["rate", "meta"], maximum, window, wire.now))

    assert fetch(0) == 0
    assert wire.redis("EXISTS", "rate") == 0
    assert [fetch(2), fetch(2)] == [0, 0]
    wire.now += 400
    assert fetch(2) == 600
    wire.now += 600
    assert fetch(2) == 0
    wire.redis("HSET", "meta", "rateLimitMax", 1, "rateLimitDuration", 50)
    wire.now += 50
    assert [fetch(0), fetch(0)] == [0, 50]


def test_remove_deletes_all_keys_of_a_job(wire: WireQueue) -> None:
    """W30: its place too."""
    stream, lifo, delayed, urgent = wire.add(), wire.add(lifo=1), wire.add(delay=5), wire.add(priority=1)
    wire.promote()
    for job_id in (stream, lifo, delayed, urgent):
        for kind in ("log", "signals"):
            wire.redis("RPUSH", f"{kind}:{job_id}", "x")
        wire.redis("SADD", f"parents:{job_id}", "x")
        wire.redis("XADD", f"jstream:{job_id}", "*", "a", "b")
        assert wire.remove(job_id) == 1
        assert wire.event_names(job_id)[-1] == "removed"
    assert wire.remove("nobody") == 0
    assert wire.has_keys() - {"stream"} == {"id", "events"}
    assert wire.entries() == []


def test_remove_an_active_list_job(wire: WireQueue) -> None:
    job_id = wire.add(lifo=1)
    wire.activate(wire.pop()[0], "")
    assert wire.remove(job_id) == 1
    assert wire.list_active() == 0
    wire.complete(job_id, "")
    assert wire.redis("EXISTS", "completed", wire.key(f"job:{job_id}")) == 0


def test_clean(wire: WireQueue) -> None:
    for _ in range(3):
        wire.complete(*wire.add_and_take())
        wire.now += 10
    keys = ["completed", "events", "id"]
    assert wire.call("clean", keys, wire.now, 0) == []
    assert wire.call("clean", keys, START - 1, 10) == []
    assert wire.call("clean", keys, START + 10, 10) == ["1", "2"]
    assert wire.scores("completed").keys() == {"3"}
    assert wire.redis("EXISTS", "job:1") == 0
    assert wire.events()[-1] == {"event": "cleaned", "jobId": "2"}


def test_drain(wire: WireQueue) -> None:
    keys = ["stream", "scheduled", "events", "id", "lifo", "priority"]
    active, waiting, lifo, delayed = wire.add(), wire.add(), wire.add(lifo=1), wire.add(delay=9)
    wire.redis("RPUSH", f"log:{waiting}", "x")
    _, entry = wire.take_id()
    assert wire.call("drain", keys, "0", GROUP) == 2
    assert (wire.pending(), wire.queued()) == ([entry], [active])
    assert wire.redis("EXISTS", f"job:{waiting}", wire.key(f"log:{waiting}"), wire.key(f"job:{lifo}")) == 0
    assert wire.events()[-1] == {"event": "drained", "jobId": "2"}
    assert wire.call("drain", keys, "1", GROUP) == 1
    assert wire.redis("EXISTS", f"job:{delayed}", wire.key("scheduled")) == 0
    events = len(wire.events())
    assert (wire.call("drain", keys, "1", GROUP), len(wire.events())) == (0, events)
    assert wire.complete(active, entry) == 1


def test_retry_jobs(wire: WireQueue) -> None:
    keys = ["failed", "scheduled", "events", "id"]
    jobs = []
    for _ in range(3):
        job_id, entry = wire.add_and_take(attempts=1)
        wire.fail(job_id, entry)
        jobs.append(job_id)
        wire.now += 1
    wire.redis("HSET", f"job:{jobs[0]}", "revoked", "1", "stalledCount", "1")
    wire.redis("DEL", f"job:{jobs[1]}")
    with pytest.raises(RespError, match="invalid timestamp"):
        wire.call("retryJobs", keys, 0)
    assert wire.call("retryJobs", keys, 2, wire.now) == 1
    assert wire.scores("failed").keys() == {jobs[2]}
    job = wire.job(jobs[0])
    assert (job["state"], job["attemptsMade"], job["failedReason"], job["finishedOn"]) == ("delayed", "0", "", "")
    assert not {"revoked", "stalledCount"} & job.keys()  # W41
    assert wire.events()[-1] == {"event": "retried", "jobId": "1"}
    assert wire.call("retryJobs", keys, 0, wire.now) == 1
    assert wire.promote() == 2
    assert wire.queued() == [jobs[0], jobs[2]]


def test_revoke(wire: WireQueue) -> None:
    waiting, delayed, urgent = wire.add(), wire.add(delay=5), wire.add(priority=1)
    for job_id in (waiting, delayed, urgent):
        assert wire.revoke(job_id) == "revoked"
        job = wire.job(job_id)
        assert (job["state"], job["failedReason"], job["revoked"]) == ("failed", "revoked", "1")
        assert wire.event_names(job_id) == ["added", "revoked"]
    assert (wire.entries(), wire.scores("scheduled"), len(wire.scores("failed"))) == ([], {}, 3)
    active, entry = wire.add_and_take()
    assert [wire.revoke(active), wire.state(active)] == ["flagged", "active"]
    wire.complete(active, entry)
    assert [wire.revoke(active), wire.state(active)] == ["flagged", "completed"]
    assert wire.revoke("nobody") == "not_found"
    assert wire.redis("EXISTS", "job:nobody", wire.key("metrics:failed")) == 0


def test_revoked_list_job_leaves_list_active(wire: WireQueue) -> None:
    job_id = wire.add(lifo=1)
    assert wire.pop() == [job_id]
    assert wire.revoke(job_id) == "revoked"
    assert wire.activate(job_id, "") == "REVOKED"
    assert wire.fail(job_id, "", "revoked") == "failed"
    assert (wire.list_active(), wire.event_names(job_id)) == (0, ["added", "revoked"])


def test_revoke_removes_list_copies(wire: WireQueue) -> None:
    """A copy left in the list would be counted as waiting."""
    jobs = [wire.add(lifo=1), wire.add(priority=1)]
    wire.promote()
    assert [wire.revoke(job_id) for job_id in jobs] == ["revoked", "revoked"]
    assert (wire.redis("LLEN", "lifo"), wire.redis("LLEN", "priority")) == (0, 0)
    assert (wire.pop(), wire.list_active()) == ([], 0)


def test_search_by_name(wire: WireQueue) -> None:
    jobs = [wire.add(name=name) for name in ("a", "b", "a")]
    delayed = wire.add(name="a", delay=9)
    prefix = wire.base + ":"
    assert wire.call("searchByName", ["stream"], "stream", "a", 100, prefix) == [jobs[0], jobs[2]]
    assert wire.call("searchByName", ["stream"], "stream", "a", 1, prefix) == [jobs[0]]
    assert wire.call("searchByName", ["scheduled"], "zset", "a", 100, prefix) == [delayed]
    assert wire.call("searchByName", ["stream"], "list", "a", 100, prefix) == []


# -- budgets -----------------------------------------------------------------------------------------------


def record(wire: WireQueue, tokens: Any, costs: Any, total: float, cost: float, *caps: Any) -> str:
    texts = [text if isinstance(text, str) else json.dumps(text) for text in (tokens, costs)]
    limits = [json.dumps(cap) for cap in caps] + ["{}"] * (2 - len(caps))
    return str(wire.call("recordUsageAndCheckBudget", ["budget:1"], *texts, total, cost, *limits))


def check(wire: WireQueue) -> str:
    return str(wire.call("checkBudget", ["budget:1"]))


def test_no_budget(wire: WireQueue) -> None:
    assert (check(wire), record(wire, {"input": 1}, {}, 1, 0)) == ("no_budget", "no_budget")
    assert wire.has_keys() == set()


@pytest.mark.parametrize(
    ("caps", "limits", "outcome"),
    [({"maxTotalTokens": 30}, (), "ok"), ({"maxTotalTokens": 29}, (), "exceeded"),
     ({"maxTotalCost": 0.2}, (), "exceeded"), ({}, ({"input": 9},), "exceeded"), ({}, ({"input": 10},), "ok"),
     ({}, ({}, {"output": 0.1}), "exceeded"),
     ({"maxTotalTokens": 0}, (), "ok")],
)  # fmt: skip
def test_budget(wire: WireQueue, caps: dict[str, float], limits: tuple[Any, ...], outcome: str) -> None:
    pairs = (str(item) for pair in caps.items() for item in pair)
    wire.redis("HSET", "budget:1", "usedTokens", 0, "usedCost", 0, "exceeded", 0, *pairs)
    assert check(wire) == "ok"
    assert record(wire, {"input": 10, "output": 0}, {"output": 0.25}, 30, 0.25, *limits) == outcome
    used = wire.resp.hash(wire.key("budget:1"))
    assert (used["usedTokens"], used["usedTokens:input"], used["usedCost:output"]) == ("30", "10", "0.25")
    assert "usedTokens:output" not in used
    assert check(wire) == outcome


def test_invalid_json_counts_as_none(wire: WireQueue) -> None:
    wire.redis("HSET", "budget:1", "usedTokens", 0)
    assert record(wire, "{oops", "[", 5, 0) == "ok"
    assert wire.redis("HGET", "budget:1", "usedTokens") == "5"


# -- a full server -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["valkey-9.1", "redis"])
def test_a_full_server_can_be_drained(private_server: Callable[..., ServerProcess], name: str) -> None:
    """W101: adding is refused; finishing, reading and cleaning up are not."""
    with RespClient.from_url(private_server(name).url) as resp:
        load(resp)
        wire = WireQueue(resp, "full")
        job_id, entry = wire.add_and_take()
        other = wire.add()
        resp.execute("CONFIG", "SET", "maxmemory", "1")
        for refused in (wire.add, lambda: wire.dedup("d", "simple")):
            with pytest.raises(RespError, match="OOM"):
                refused()
        assert wire.call("version", []) == "93"
        assert wire.call("nextDue", ["scheduled", "ratelimited"]) == -1
        assert wire.call("checkConcurrency", ["meta", "stream", "list-active"], GROUP) == -1
        assert wire.complete(job_id, entry) == 1
        assert wire.remove(other) == 1
        assert wire.call("clean", ["completed", "events", "id"], wire.now, 10) == [job_id]


def test_read_functions_run_read_only(wire: WireQueue) -> None:
    assert wire.resp.execute("FCALL_RO", "glidemq_checkBudget", 1, wire.key("budget:1")) == "no_budget"
    assert wire.resp.execute("FCALL_RO", "glidemq_nextDue", 2, *wire.keys_of("scheduled", "ratelimited")) == -1
