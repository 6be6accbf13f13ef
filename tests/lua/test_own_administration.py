"""Test pause, remove, retry, update_job, locks and obliterate."""

import re
from pathlib import Path

import pytest

from glidemq_py._features.limits import limit_group
from glidemq_py._features.streams.job_api import _append as chunk
from glidemq_py.testing import RespError
from tests.inside import AttemptStatus as S
from tests.inside import administration, create_budget, row, working
from tests.lua.own_support import BAND, NODE_CONSUMER, Fetched, OwnQueue

LUA = Path(__file__).parents[2] / "lua"


# -- events ------------------------------------------------------------------------------------------------


def work(q: OwnQueue, jobs: int):
    """Two events a job, added one by one and completed five at a time, as time goes by."""
    for n in range(1, jobs + 1):
        q.advance(n % 3)
        q.add_job()
        if n % 5 == 0:
            q.finish(*(job.completed() for job in q.fetch(5)))


@pytest.mark.slow
def test_event_retention_can_be_raised(q: OwnQueue):
    assert q.run(administration.set_settings(q.meta, maxLenEvents="3000")) == 1
    q.add(*[row("task", "{}", "{}") for _ in range(900)])
    work(q, 1_500)
    for _ in range(100):
        q.add_job(priority=1)
        q.finish(q.take_one().failed("boom"))
    assert 3_000 <= q.redis("XLEN", "events") <= 3_300
    assert q.run(administration.set_settings(q.meta, maxLenEvents=None)) == 1
    assert q.redis("HGET", "meta", "maxLenEvents") is None
    q.run(administration.pause(q.meta))
    assert q.redis("XLEN", "events") <= 1_100


@pytest.mark.parametrize("junk", ["many", "-5", "1e3", ""])
def test_invalid_events_limit_uses_default(q: OwnQueue, junk: str):
    q.redis("HSET", "meta", "maxLenEvents", junk)
    q.run(administration.pause(q.meta))
    assert [event["event"] for event in q.events("0")] == ["paused"]


# -- remove ------------------------------------------------------------------------------------------------


def active(q: OwnQueue) -> str:
    q.add_job()
    return q.take_one().id


def completed(q: OwnQueue) -> str:
    q.add_job()
    job = q.take_one()
    q.finish(job.completed())
    return job.id


def failed(q: OwnQueue) -> str:
    q.add_job()
    job = q.take_one()
    q.finish(job.failed())
    return job.id


def test_removing_a_job_that_node_added(q: OwnQueue):
    q.push_entry(q.put_job("7"))
    assert q.run(administration.remove(q.meta, "7")) is True
    assert q.entries() == []
    assert q.exchange(1).dropped == []


def test_remove_of_missing_job(q: OwnQueue):
    q.redis("SET", "job:7", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.run(administration.remove(q.meta, "7"))
    assert q.key_names() == {"job:7"}


# -- retry -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"notBefore": "9999999999999"}])
def test_requeued_parent_is_ready_when_its_children_have_ended(q: OwnQueue, fields: dict[str, str]):
    """It has waited for its delay before, or was revoked during it: requeued jobs are not delayed."""
    parent = q.add_job(delay=45)
    for name, value in fields.items():
        q.redis("HSET", f"job:{parent}", name, value)
    child = q.add_job(parent=[parent, q.name])
    assert q.run(administration.revoke(q.meta, parent)) == "revoked"
    assert q.run(administration.requeue_job(q.meta, parent)) == "ok"
    assert q.state(parent) == "waiting-children"
    first = q.take_one()
    assert (first.id, q.finish(first.completed())) == (child, [S.OK])
    assert q.state(parent) == "waiting"
    assert q.take_one().id == parent


def test_job_that_cannot_be_requeued_stays_failed(q: OwnQueue):
    job_id = failed(q)
    q.redis("DEL", "stream")
    q.redis("SET", "stream", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.run(administration.requeue_job(q.meta, job_id))
    assert (q.state(job_id), q.redis("ZRANGE", "failed", 0, -1)) == ("failed", [job_id])


# -- note --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["log", "jstream"])
def test_numbered_append_is_made_once_in_any_order(q: OwnQueue, kind: str):
    q.add_job()

    def append(job: Fetched, number: int) -> S:
        token = (job.fence, job.processed_on)
        if kind == "log":
            return q.run(administration.append_job_log(q.meta, "1", str(number), 0, token, str(number)))
        status, entry = q.run(chunk(q.meta, "1", *token, 0, ["n", str(number)], str(number)))
        if status in (S.OK, S.ALREADY) and str(number) not in old:
            assert q.redis("XRANGE", "jstream:1", entry, entry) == [[entry, ["n", str(number)]]]
        return status

    def appended() -> list[int]:
        if kind == "log":
            return [int(each) for each in q.redis("LRANGE", "log:1", 0, -1)]
        return [int(fields[1]) for _, fields in q.redis("XRANGE", "jstream:1", "-", "+")]

    first = q.take_one()
    sent = [1, *range(65, 1, -1), 70, 68, 100]  # 65 - 2 < 64: all may be in flight together
    old = {"1", *(str(number) for number in range(62, 66))}  # no longer among the newest 64 chunks
    assert {append(first, number) for number in sent} == {S.OK}
    assert {append(first, number) for number in sent} == {S.ALREADY}
    assert append(first, 67) == S.OK  # lost at first
    assert append(first, 67) == S.ALREADY
    assert len(q.job("1")["appended"]) < 300
    q.finish(first.released())
    assert append(first, 101) == S.STALE
    assert append(q.take_one(), 1) == S.OK  # another attempt counts anew
    assert appended() == [*sent, 67, 1]


# -- locks -------------------------------------------------------------------------------------------------


def test_a_lock(q: OwnQueue):
    key = q.key("lock:x")
    assert q.run(administration.lock(key, "a", 60_000)) is True
    assert q.run(administration.lock(key, "b", 60_000)) is False
    assert q.run(administration.renew(key, "b", 90_000)) is False
    assert q.run(administration.renew(key, "a", 90_000)) is True
    assert 60_000 < q.redis("PTTL", "lock:x") <= 90_000
    assert q.run(administration.unlock(key, "b")) is False
    assert q.run(administration.unlock(key, "a")) is True
    assert q.run(administration.unlock(key, "a")) is False
    assert q.run(administration.lock(key, "b", 60_000)) is True


# -- obliterate --------------------------------------------------------------------------------------------


def test_obliterate_deletes_every_key_even_of_a_foreign_type(q: OwnQueue):
    names = (LUA / "core" / "queue.lua").read_text(encoding="utf-8").partition("SUFFIXES = ")[2].partition("\n\n")[0]
    suffixes = set(re.sub(r"' *\n? *\.\. '|'", "", names).split()) - {"meta"}
    assert len(suffixes) > 50
    for suffix in suffixes:
        q.redis("SET", suffix, "foreign")
    assert q.obliterate()[-1] == ("done", 0)
    assert q.key_names() == set()


def test_obliterate_finds_jobs_that_no_index_names(q: OwnQueue):
    """Node's library keeps waiting parents, active jobs of lists and keys of removed jobs in no index."""
    q.put_job("1", state="waiting-children")
    for i in range(1_500):
        q.redis("SADD", "deps:1", q.key(str(i + 2)))  # in this queue; most are gone
    q.put_job("root", state="waiting-children")
    q.redis("SADD", "deps:root", q.key("named"))
    q.put_job("named", state="waiting", parentId="root", parentQueue=q.base[7:-1])
    q.push_entry("named")
    q.put_job("listed", state="active", lifo=1)
    q.redis("SET", "list-active", 1)
    q.redis("XADD", "events", "*", "event", "added", "jobId", "listed")
    q.redis("RPUSH", "log:2500", "of a removed job")
    q.redis("HSET", "budget:4000", "usedTokens", 1)
    q.redis("SET", "id", 500_000)
    q.put_job("499000", state="waiting-children")
    q.put_job("dag", state="waiting")
    q.push_entry("dag")
    q.redis("SADD", "parents:dag", q.key("several"))
    q.put_job("several", state="waiting-children")
    replies = q.obliterate(force=True, batch=100)
    assert sum(deleted for _, deleted in replies) == 7
    assert q.key_names() == set()
    assert len(replies) < 50


def test_obliterate_finds_keys_that_expire(q: OwnQueue):
    q.run(create_budget(q.meta, "1", ["maxTotalTokens", "9"]))
    q.add_job()
    job = q.take_one()
    charge = (1, q.key("budget:1"), False)
    tokens = (10, 60_000, [3])
    q.run(working.exchange(q.meta, "py-1", 0, [job.completed(keep=1)], False, False, tokens=tokens, charges=[charge]))
    q.run(limit_group(q.meta, "unused", 2, False, False))
    names = q.key_names()
    assert {"budget:1", "group:unused"} <= names
    assert any(name.startswith("tpm:") for name in names)
    assert q.redis("PTTL", "temporary") > 0
    q.obliterate()
    assert q.key_names() == set()


def test_obliterate_deletes_foreign_entries(q: OwnQueue):
    q.redis("XADD", "stream", "*", "foreign", "entry")
    q.read_as(NODE_CONSUMER)
    assert q.obliterate(force=True) == [("more", 0), ("done", 0)]
    assert q.key_names() == set()


def test_priority_above_our_maximum(q: OwnQueue):
    q.put_job("7", priority=2048, state="prioritized")
    q.redis("ZADD", "scheduled", 2048 * BAND, "7")
    assert q.take_one().id == "7"
    q.add(row("a", "", "{}"))
    assert q.run(administration.remove(q.meta, "7")) is True


def test_removed_grouped_job_leaves_list_active(q: OwnQueue):
    """It came from no list, and without a stream entry."""
    ordering: list[object] = ["k", 1, 0, 0, 0, 0, 0]
    q.add(*(row("task", "{}", "{}", ordering=ordering) for _ in range(2)))
    first = q.take_one()
    q.fetch(1)
    (second,) = (Fetched(job, q.now) for job in q.exchange(1, [first.completed()]).jobs)
    assert second.entry == ""
    assert q.redis("GET", "list-active") == "1"
    assert q.run(administration.remove(q.meta, second.id)) == 1
    assert q.redis("GET", "list-active") == "0"
