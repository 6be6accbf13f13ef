"""Test pause, remove, retry, update_job, locks and obliterate."""

from typing import Any

import pytest

from glidemq_py._core.calls import administration, working
from glidemq_py._core.calls.adding import row
from glidemq_py._core.calls.reading import version
from glidemq_py._core.calls.working import AttemptStatus as S
from glidemq_py._core.calls.working import heartbeat, recover_stalled
from glidemq_py._features.limits.queue_api import limit_group
from glidemq_py._features.usage.calls import create_budget
from glidemq_py.testing import RespError
from tests.lua.job_places import (
    BOOKKEEPING,
    delayed,
    give_satellites,
    in_nodes_priority_list,
    lifo,
    prioritized,
    promoted,
    waiting,
    waiting_for_retry,
)
from tests.lua.own_support import BAND, NODE_CONSUMER, START, Fetched, OwnQueue, library

# -- pause -------------------------------------------------------------------------------------------------


def test_pause_and_resume_return_whether_state_changed(q: OwnQueue) -> None:
    calls = (
        administration.resume,
        administration.pause,
        administration.pause,
        administration.resume,
        administration.resume,
    )
    assert [q.run(call(q.meta)) for call in calls] == [False, True, False, True, False]
    assert [event["event"] for event in q.events("0")] == ["resumed", "paused", "paused", "resumed", "resumed"]
    assert q.redis("HGET", "meta", "paused") == "0"


# -- events ------------------------------------------------------------------------------------------------


def work(q: OwnQueue, jobs: int) -> None:
    """Two events a job, added one by one and completed five at a time, as time goes by."""
    for n in range(1, jobs + 1):
        q.advance(n % 3)
        q.add_job()
        if n % 5 == 0:
            q.finish(*(job.completed() for job in q.fetch(5)))


@pytest.mark.slow
def test_about_a_thousand_events_are_kept(q: OwnQueue) -> None:
    work(q, 1_500)
    assert 1_000 <= q.redis("XLEN", "events") <= 1_300
    q.add(*[row("task", "{}", "{}") for _ in range(2_000)])
    assert 1_000 <= q.redis("XLEN", "events") <= 1_100


@pytest.mark.slow
def test_event_retention_can_be_raised(q: OwnQueue) -> None:
    assert q.run(administration.set_event_retention(q.meta, 3_000)) == 1
    q.add(*[row("task", "{}", "{}") for _ in range(900)])
    work(q, 1_500)
    for _ in range(100):
        q.add_job(priority=1)
        q.finish(q.take_one().failed("boom"))
    assert 3_000 <= q.redis("XLEN", "events") <= 3_300
    assert q.run(administration.set_event_retention(q.meta, 0)) == 1
    assert q.redis("HGET", "meta", "maxLenEvents") is None
    q.run(administration.pause(q.meta))
    assert q.redis("XLEN", "events") <= 1_100


@pytest.mark.parametrize("junk", ["many", "-5", "1e3", ""])
def test_invalid_events_limit_uses_default(q: OwnQueue, junk: str) -> None:
    q.redis("HSET", "meta", "maxLenEvents", junk)
    q.run(administration.pause(q.meta))
    assert [event["event"] for event in q.events("0")] == ["paused"]


# -- remove ------------------------------------------------------------------------------------------------


def active(q: OwnQueue) -> str:
    q.add_job()
    return q.take_one().id


def active_from_list(q: OwnQueue) -> str:
    q.add_job(lifo=True)
    return q.take_one().id


def active_with_priority(q: OwnQueue) -> str:
    q.add_job(priority=1)
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


def stalled(q: OwnQueue) -> str:
    q.add_job()
    q.let_idle(q.take_one().entry, 60_000)
    q.run(recover_stalled(q.meta, "py-9", 1_000, 30_000, 1, False, ""))
    q.redis("DEL", "lock:recover")
    return "1"


STATES = (waiting, lifo, delayed, prioritized, in_nodes_priority_list, promoted, active, active_from_list,
          active_with_priority, completed, failed, waiting_for_retry, stalled)  # fmt: skip


@pytest.mark.parametrize("arrange", STATES)
def test_remove_deletes_every_key_of_a_job(q: OwnQueue, arrange: object) -> None:
    job_id = arrange(q)  # type: ignore[operator]
    give_satellites(q, [job_id])
    assert q.run(administration.remove(q.meta, job_id)) is True
    assert q.key_names() <= BOOKKEEPING
    assert q.entries() == []
    assert q.redis("GET", "list-active") in (None, "0")
    assert q.counts() == dict.fromkeys(q.counts(), 0)
    assert q.event_names(job_id)[-1] == "removed"
    assert q.run(administration.remove(q.meta, job_id)) is False
    assert q.exchange(5).jobs == []


@pytest.mark.parametrize("arrange", [waiting, lifo, delayed, prioritized, active_from_list])
def test_remove_keeps_other_jobs(q: OwnQueue, arrange: object) -> None:
    first = arrange(q)  # type: ignore[operator]
    before = q.counts()
    second = arrange(q)  # type: ignore[operator]
    assert first != second
    q.run(administration.remove(q.meta, second))
    assert q.counts() == before
    assert q.state(first) is not None


def test_removing_a_job_that_node_added(q: OwnQueue) -> None:
    q.push_entry(q.put_job("7"))
    assert q.run(administration.remove(q.meta, "7")) is True
    assert q.entries() == []
    assert q.exchange(1).dropped == []


def test_removing_a_suspended_job(q: OwnQueue) -> None:
    q.redis("ZADD", "suspended", START, q.put_job("7", state="suspended"))
    assert q.run(administration.remove(q.meta, "7")) is True
    assert q.key_names() == {"events"}


def test_remove_of_missing_job(q: OwnQueue) -> None:
    q.redis("SET", "job:7", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.run(administration.remove(q.meta, "7"))
    assert q.key_names() == {"job:7"}


# -- retry -------------------------------------------------------------------------------------------------


def test_a_failed_job_runs_again_with_all_its_attempts(q: OwnQueue) -> None:
    job_id = failed(q)
    q.redis("HSET", f"job:{job_id}", "revoked", "1", "stalledCount", "1")
    assert q.run(administration.requeue_job(q.meta, job_id)) == "ok"
    record = q.job(job_id)
    assert (record["state"], record["attemptsMade"], record["failedReason"]) == ("waiting", "0", "")
    assert record.keys().isdisjoint({"revoked", "stalledCount", "failedType", "stacktrace", "processedOn"})
    assert not q.redis("EXISTS", "failed")
    assert q.event_names(job_id)[-1] == "retried"
    again = q.take_one()
    assert (again.id, again.fence) == (job_id, 2)
    assert q.finish(again.completed()) == [S.OK]


@pytest.mark.parametrize(
    ("options", "state"), [({"lifo": True}, "waiting"), ({"priority": 3}, "prioritized"), ({"delay": 5}, "waiting")]
)
def test_retry_goes_to_the_source_of_the_job(q: OwnQueue, options: dict[str, Any], state: str) -> None:
    job_id = q.add_job(**options)
    q.advance(5)
    q.finish(q.take_one().failed())
    assert q.run(administration.requeue_job(q.meta, job_id)) == "ok"
    assert q.state(job_id) == state
    assert q.take_one().id == job_id


@pytest.mark.parametrize("fields", [{}, {"notBefore": "9999999999999"}])
def test_requeued_parent_is_ready_when_its_children_have_ended(q: OwnQueue, fields: dict[str, str]) -> None:
    """It has waited for its delay before, or was revoked during it: requeued jobs are not delayed."""
    parent = q.add_job(delay=45)
    for name, value in fields.items():
        q.redis("HSET", f"job:{parent}", name, value)
    child = q.add_job(parent=[parent, q.base[q.base.index("{") + 1 : -1]])
    assert q.run(administration.revoke(q.meta, parent)) == "revoked"
    assert q.run(administration.requeue_job(q.meta, parent)) == "ok"
    assert q.state(parent) == "waiting-children"
    first = q.take_one()
    assert (first.id, q.finish(first.completed())) == (child, [S.OK])
    assert q.state(parent) == "waiting"
    assert q.take_one().id == parent


@pytest.mark.parametrize("arrange", [waiting, delayed, prioritized, active, completed])
def test_only_failed_jobs_are_requeued(q: OwnQueue, arrange: object) -> None:
    job_id = arrange(q)  # type: ignore[operator]
    before = q.job(job_id)
    assert q.run(administration.requeue_job(q.meta, job_id)) == before["state"]
    assert q.job(job_id) == before


def test_retry_of_missing_job(q: OwnQueue) -> None:
    assert q.run(administration.requeue_job(q.meta, "7")) == "gone"
    assert q.key_names() == set()


def test_job_that_cannot_be_requeued_stays_failed(q: OwnQueue) -> None:
    job_id = failed(q)
    q.redis("DEL", "stream")
    q.redis("SET", "stream", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.run(administration.requeue_job(q.meta, job_id))
    assert (q.state(job_id), q.redis("ZRANGE", "failed", 0, -1)) == ("failed", [job_id])


# -- note --------------------------------------------------------------------------------------------------


def test_updates_of_current_worker_are_accepted(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    token = (job.fence, job.processed_on)
    assert q.run(administration.update_job_progress(q.meta, "1", '{"at":5}', token)) == S.OK
    assert q.run(administration.update_job_data(q.meta, "1", '{"new":1}', token)) == S.OK
    assert q.run(administration.append_job_log(q.meta, "1", "line", 0, token)) == S.OK
    record = q.job("1")
    assert (record["progress"], record["data"]) == ('{"at":5}', '{"new":1}')
    assert q.redis("LRANGE", "log:1", 0, -1) == ["line"]
    assert q.events("1")[-1] == {"event": "progress", "jobId": "1", "data": '{"at":5}'}


def test_updates_of_stale_worker_are_rejected(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.finish(job.released())
    before = q.job("1")
    assert q.run(administration.update_job_progress(q.meta, "1", "5", (job.fence, job.processed_on))) == S.STALE
    assert q.run(administration.append_job_log(q.meta, "1", "5", 0, (job.fence, job.processed_on))) == S.STALE
    assert q.job("1") == before
    assert not q.redis("EXISTS", "log:1")


def test_updates_without_token_need_only_the_job(q: OwnQueue) -> None:
    q.add_job()
    assert q.run(administration.update_job_data(q.meta, "1", "2")) == S.OK
    assert q.run(administration.append_job_log(q.meta, "7", "x", 5)) == S.GONE
    assert q.run(administration.update_job_progress(q.meta, "7", "x")) == S.GONE
    assert {key for key in q.key_names() if key.endswith(":7")} == set()


def test_the_newest_log_lines_stay(q: OwnQueue) -> None:
    q.add_job()
    for i in range(5):
        q.run(administration.append_job_log(q.meta, "1", str(i), 3))
    assert q.redis("LRANGE", "log:1", 0, -1) == ["2", "3", "4"]


# -- locks -------------------------------------------------------------------------------------------------


def test_a_lock(q: OwnQueue) -> None:
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


def test_version(q: OwnQueue) -> None:
    assert q.run(version(q.meta)) == library().name
    assert q.key_names() == set()


# -- obliterate --------------------------------------------------------------------------------------------


def test_obliterate_leaves_no_key(q: OwnQueue) -> None:
    for arrange in (completed, failed, waiting, lifo, delayed, prioritized, in_nodes_priority_list):
        arrange(q)
    waiting_for_retry(q)
    q.redis("ZADD", "suspended", START, q.put_job("8", state="suspended"))
    give_satellites(q, range(1, 9))
    q.run(heartbeat(q.meta, "py-1", "{}", 60_000, []))
    q.run(recover_stalled(q.meta, "py-1", 60_000, 30_000, 1, False, ""))
    q.run(administration.pause(q.meta))
    q.run(administration.resume(q.meta))
    replies = q.obliterate(batch=3)
    assert replies[-1] == ("done", 0)
    assert all(deleted <= 3 for _, deleted in replies)
    assert q.key_names() == set()
    assert q.obliterate() == [("done", 0)]


@pytest.mark.parametrize("arrange", [active, active_from_list])
def test_obliterate_of_active_queue_needs_force(q: OwnQueue, arrange: object) -> None:
    arrange(q)  # type: ignore[operator]
    before = q.key_names()
    assert q.obliterate() == [("active", 1)]
    assert q.key_names() == before
    assert q.obliterate(force=True)[-1] == ("done", 0)
    assert q.key_names() == set()


def test_obliterate_deletes_foreign_keys(q: OwnQueue) -> None:
    waiting(q)
    for suffix in ("completed", "lifo", "list-active", "events", "wake", "workers", "stall-watch"):
        q.redis("DEL", suffix)
        q.redis("RPUSH" if suffix == "completed" else "SADD", suffix, "foreign")
    assert q.obliterate()[-1] == ("done", 0)
    assert q.key_names() == set()


def test_obliterate_does_not_touch_other_queues(q: OwnQueue) -> None:
    other = OwnQueue(q.resp, "other-" + q.base[7:-1])
    try:
        other.add_job()
        q.add_job()
        q.obliterate()
        assert other.counts()["waiting"] == 1
    finally:
        other.delete_everything()


def test_obliterate_finds_jobs_that_no_index_names(q: OwnQueue) -> None:
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


def test_obliterate_finds_keys_that_expire(q: OwnQueue) -> None:
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


def test_obliterate_deletes_foreign_entries(q: OwnQueue) -> None:
    q.redis("XADD", "stream", "*", "foreign", "entry")
    q.read_as(NODE_CONSUMER)
    assert q.obliterate(force=True) == [("more", 0), ("done", 0)]
    assert q.key_names() == set()


def test_priority_above_our_maximum(q: OwnQueue) -> None:
    q.put_job("7", priority=2048, state="prioritized")
    q.redis("ZADD", "scheduled", 2048 * BAND, "7")
    assert q.take_one().id == "7"
    q.add(row("a", "", "{}"))
    assert q.run(administration.remove(q.meta, "7")) is True


def test_removed_grouped_job_leaves_list_active(q: OwnQueue) -> None:
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
