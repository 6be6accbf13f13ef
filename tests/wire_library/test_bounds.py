"""What transcripts cannot say of the wire library: its names, bounds of calls, several queues, and a full server."""

from collections.abc import Callable

import pytest

from glidemq_py.testing import RespClient, RespError, ServerProcess
from tests.wire_library.support import CONSUMER, GROUP, START, WireQueue, as_dict, library, load

DOCUMENTED = {
    "version", "tryLock", "unlock", "renewLock", "addJob", "dedup", "addFlow", "completeChild", "registerParent",
    "promote", "nextDue", "promoteRateLimited", "promoteJob", "changeDelay", "changePriority", "moveToActive",
    "completeAndFetchNext", "checkConcurrency", "rpopAndReserve", "popLists", "deferActive", "complete", "fail",
    "moveActiveToDelayed", "moveToWaitingChildren", "suspend", "signal", "sweepSuspended", "rateLimitGroup",
    "rateLimitGroupExternal", "reclaimStalled", "reclaimStalledListJobs", "healListActive", "getActiveListJobIds",
    "pause", "resume", "rateLimit", "removeJob", "clean", "drain", "retryJobs", "revoke", "searchByName",
    "checkBudget", "recordUsageAndCheckBudget",
}  # fmt: skip


def test_all_documented_functions_exist():
    assert len(DOCUMENTED) == 45
    assert library().functions == DOCUMENTED
    assert library().name == "glidemq"


@pytest.mark.parametrize("renewed", [False, True])
def test_lock_without_ttl_lasts_a_second(wire: WireQueue, renewed: bool):
    for _ in range(50):
        assert wire.call("tryLock", ["lock"], "a", *([60_000] if renewed else [])) == 1
        assert not renewed or wire.call("renewLock", ["lock"], "a") == 1
        left = wire.redis("PTTL", "lock")
        if left != -2:  # on a slow machine it expires before it is read
            break
    assert 0 < left <= 1000


# -- bounds ------------------------------------------------------------------------------------------------


def test_promote_is_bounded_per_call(wire: WireQueue):
    for i in range(1001):
        wire.add(delay=5, id=f"j{i}", ttl=1 if i < 3 else 0, quiet=1)
    wire.now += 5
    assert [wire.promote(), wire.promote(), wire.promote()] == [1000, 1, 0]
    assert len(wire.scores("failed")) == 3
    assert wire.redis("XLEN", "stream") == 998


def test_limited_groups_are_bounded_per_call(wire: WireQueue):
    for i in range(101):
        job_id = wire.add(ordering=f"k{i}")
        wire.redis("ZADD", f"groupq:k{i}", 1, job_id)
        wire.redis("HSET", f"job:{job_id}", "state", "group-waiting")
        wire.redis("ZADD", "ratelimited", START, f"k{i}")
    assert wire.call("promoteRateLimited", ["ratelimited", "stream"], wire.now) == 100
    assert wire.call("promoteRateLimited", ["ratelimited", "stream"], wire.now) == 1


def test_suspend_sweep_is_bounded_per_call(wire: WireQueue):
    for i in range(101):
        wire.add(id=f"j{i}", quiet=1)
        wire.redis("HSET", f"job:j{i}", "state", "suspended")
        wire.redis("ZADD", "suspended", START, f"j{i}")
    keys = ["suspended", "events", "failed", "metrics:failed"]
    assert [wire.call("sweepSuspended", keys, wire.now, wire.base + ":") for _ in range(3)] == [100, 1, 0]


def test_search_returns_100_by_default(wire: WireQueue):
    for i in range(101):
        wire.add(id=f"j{i}", name="a", quiet=1)
    assert len(wire.call("searchByName", ["stream"], "stream", "a", "", wire.base + ":")) == 100


def test_healthy_jobs_stay_with_their_worker(wire: WireQueue):
    """W35: they are not claimed, and a page of them does not hide a stalled one."""
    jobs = [wire.add() for _ in range(120)]
    for entry, fields in wire.read(120):
        wire.activate(fields["jobId"], entry)
    wire.now += 1000
    for job_id in jobs[:-1]:
        wire.redis("HSET", f"job:{job_id}", "lastActive", wire.now)
    args = (GROUP, "worker-2", 0, 1, wire.now, wire.key("failed"), 0, 500)
    assert wire.call("reclaimStalled", ["stream", "events"], *args) == 120
    assert wire.state(jobs[-1]) == "waiting"
    pending = wire.resp.execute("XPENDING", wire.key("stream"), GROUP, "-", "+", 200)
    assert ({row[1] for row in pending}, len(pending)) == ({CONSUMER}, 119)


def test_fetch_next_omits_the_marks_of_very_many_children(wire: WireQueue):
    """W50: a record has a field per ended child, which no worker reads."""
    wire.add()
    job_id, entry = wire.take_id()
    big = wire.add(lifo=1)
    for i in range(0, 9000, 1000):
        wire.redis("HSET", f"job:{big}", *(text for j in range(i, i + 1000) for text in (f"depdone:{j}", "1")))
    fields = as_dict(wire.complete_and_fetch(job_id, entry)[4:])
    assert {"id", "name", "data", "opts", "timestamp", "state", "processedOn"} <= fields.keys()
    assert not any(field.startswith("depdone:") for field in fields)


# -- several queues ----------------------------------------------------------------------------------------


def take_from_list(wire: WireQueue) -> str:
    job_id = wire.add(lifo=1)
    assert wire.pop() == [job_id]
    assert isinstance(wire.activate(job_id, ""), dict)
    return job_id


def test_active_list_jobs_are_paged(wire: WireQueue):
    jobs = {take_from_list(wire) for _ in range(3)}
    (one,) = wire.call("getActiveListJobIds", ["id"], 1, 1)
    assert one in jobs


def test_glob_in_queue_name_is_escaped(wire: WireQueue):
    """W93."""
    wild = WireQueue(wire.resp, wire.name[:-1] + "*")
    take_from_list(wire)
    wire.redis("DEL", "list-active-ids")  # as if another library had activated it
    wild.redis("SET", "list-active", 1)
    wild.now += 60_000
    assert wild.recover_list_jobs() == 0
    assert wild.call("getActiveListJobIds", ["id"]) == []
    wild.delete_everything()


def test_parent_in_another_queue_is_notified(wire: WireQueue):
    """W45. In a cluster it stays untouched, and the completion succeeds all the same."""
    other = WireQueue(wire.resp, wire.name + "-other")
    other.redis("HSET", "job:5", "id", "5", "name", "p", "state", "waiting-children")
    other.redis("SADD", "deps:5", wire.key("1"))
    wire.add()
    wire.redis("SADD", "parents:1", other.key("5"))
    assert wire.complete(*wire.take_id()) == 1
    assert (wire.state("1"), other.state("5")) == ("completed", "waiting")
    other.delete_everything()


# -- a full server -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["valkey-9.1", "redis"])
def test_a_full_server_can_be_drained(private_server: Callable[..., ServerProcess], name: str):
    """W101: adding is refused; finishing, reading and cleaning up are not."""
    with RespClient.from_url(private_server(name).url) as resp:
        load(resp)
        wire = WireQueue(resp, "full")
        wire.add()
        job_id, entry = wire.take_id()
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


@pytest.mark.parametrize(
    ("function", "keys", "reply"), [("checkBudget", ["budget:1"], "no_budget"), ("nextDue", ["scheduled", "r"], -1)]
)
def test_read_functions_run_read_only(wire: WireQueue, function: str, keys: list[str], reply: object):
    assert wire.resp.execute("FCALL_RO", f"glidemq_{function}", len(keys), *map(wire.key, keys)) == reply
