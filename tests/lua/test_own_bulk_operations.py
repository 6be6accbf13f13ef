"""drain, clean, requeue_jobs, revoke, change_priority, change_delay, promote, and pages by name and of groups."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py._features.delays import due_times
from glidemq_py.testing import RespError
from tests.inside import administration, reading, requeue_job, row
from tests.lua.job_places import (
    delayed,
    in_nodes_priority_list,
    lifo,
    prioritized,
    promoted,
    waiting,
    waiting_for_retry,
)
from tests.lua.own_support import NODE_CONSUMER, START, OwnQueue


def member(key: str = "k", concurrency: int = 1, *, delay: int | bool = False, job_id: str = "") -> list[Any]:
    """Row of a job in a group."""
    ordering = [key, concurrency, 0, 0, 0, 0, 0]
    return ["a", "null", "{}", job_id, delay, 0, 0 if delay else False, 0, 0, False, ordering]


def drain(q: OwnQueue, *, delayed: bool = False, batch: int = 250) -> int:
    deleted, cursor = 0, ""
    for _ in range(1000):
        piece = q.run(administration.drain(q.meta, delayed, cursor, batch, deleted))
        assert piece.deleted <= batch
        deleted, cursor = deleted + piece.deleted, piece.cursor
        if not cursor:
            return deleted
    raise AssertionError("a drain without end")


def clean(q: OwnQueue, state: str, grace: int = 0, limit: int = 1000, batch: int = 250) -> list[str]:
    ids: list[str] = []
    cutoff, more = -1, True
    while more:
        piece = q.run(administration.clean(q.meta, state, grace, cutoff, batch, limit - len(ids), len(ids)))
        cutoff, more = piece.cutoff, piece.more
        ids += piece.ids
    return ids


def retry_all(q: OwnQueue, want: int = 0, batch: int = 250) -> int:
    retried, left, kept = 0, -1, 0
    while left:
        wanted = want and want - retried
        piece = q.run(administration.requeue_jobs(q.meta, batch, wanted, left, retried, kept=kept))
        retried, left, kept = retried + piece.retried, piece.left, piece.kept
    return retried


def revoke(q: OwnQueue, job_id: str) -> str:
    return str(q.run(administration.revoke(q.meta, job_id)))


def fail_jobs(q: OwnQueue, count: int) -> list[str]:
    """Failed jobs, a millisecond apart."""
    ids = [q.add_job() for _ in range(count)]
    for job in q.fetch(count):
        q.advance(1)
        q.finish(job.failed())
    return ids


# -- drain -------------------------------------------------------------------------------------------------


def test_thousands_of_skip_marks_are_passed(q: OwnQueue):
    """More than one call may consume: the group is come back to."""
    q.add(member("k", delay=50))
    q.add(*[member("k") for _ in range(2500)])
    assert drain(q) == 2500
    q.advance(50)
    first = q.take_one()
    q.add(member("k", job_id="last"))
    q.finish(first.completed())
    fetched = list(itertools.chain.from_iterable(q.fetch(5) for _ in range(5)))
    assert [job.id for job in fetched] == ["last"]


def test_drain_skips_jobs_that_are_not_waiting(q: OwnQueue):
    q.push_entry("gone")
    q.push_entry(q.put_job("parent", state="waiting-children"))
    q.redis("XADD", "stream", "*", "other", "1")
    q.redis("SET", "job:foreign", "x")
    q.push_entry("foreign")
    q.redis("ZADD", "scheduled", START - 1, q.put_job("done", state="completed"))
    q.add_job()
    assert drain(q, delayed=True) == 1
    assert q.entries() == []
    assert q.state("parent") == "waiting-children"
    assert q.state("done") == "completed"
    assert q.redis("GET", "job:foreign") == "x"


def test_drain_error_leaves_consistent_state(q: OwnQueue):
    q.redis("SET", "lifo", "foreign")
    q.add_job()
    with pytest.raises(RespError, match="WRONGTYPE"):
        drain(q)
    assert q.entries() == []
    assert not [name for name in q.key_names() if name.startswith("job:")]
    q.redis("DEL", "lifo")


def test_a_drain_ends_beside_a_producer(q: OwnQueue):
    """Jobs added between the calls are after the end position of each phase."""
    cursor, pieces = "", 0
    q.add(*[row("a", "1", "{}") for _ in range(5)])
    while True:
        piece = q.run(administration.drain(q.meta, False, cursor, 2, 0))
        cursor, pieces = piece.cursor, pieces + 1
        if not cursor:
            break
        q.add_job()
        q.add_job(lifo=True)
        q.add_job(priority=1)
        assert pieces < 30


def test_drain_keeps_pending_entries_after_deleted_ones(q: OwnQueue):
    """The group still has deleted entries pending; they must not hide the entry that a peer has read."""
    for number in range(1, 7):
        q.push_entry(q.put_job(str(number)))
    read = q.read_as(NODE_CONSUMER, 5)
    for entry, job_id in zip(read[1:4], "234", strict=True):
        q.redis("XDEL", "stream", entry)
        q.redis("DEL", f"job:{job_id}")
    assert drain(q) == 1
    assert [q.state(job_id) for job_id in "156"] == ["waiting", "waiting", None]
    assert [entry["jobId"] for entry in q.entries()] == ["1", "5"]


# -- clean -------------------------------------------------------------------------------------------------


def test_clean_keeps_requeued_jobs(q: OwnQueue):
    """A peer that retries without leaving the index (W40)."""
    (job_id,) = fail_jobs(q, 1)
    q.redis("HSET", f"job:{job_id}", "state", "active")
    q.redis("ZADD", "failed", START, "gone")
    assert clean(q, "failed") == ["gone"]
    assert q.state(job_id) == "active"
    assert q.redis("ZCARD", "failed") == 0


def test_clean_uses_cutoff_of_first_call(q: OwnQueue):
    fail_jobs(q, 2)
    piece = q.run(administration.clean(q.meta, "failed", 0, -1, 1, 100, 0))
    assert (piece.ids, piece.more, piece.cutoff) == (["1"], True, q.now)
    q.advance(10)
    fail_jobs(q, 1)
    assert q.run(administration.clean(q.meta, "failed", 0, piece.cutoff, 10, 99, 1)).ids == ["2"]


# -- requeue_jobs --------------------------------------------------------------------------------------------


def test_ids_without_a_failed_job_leave_the_index(q: OwnQueue):
    for job_id in ("gone", "2gone"):
        q.redis("ZADD", "failed", 1, job_id)
    q.redis("ZADD", "failed", 2, q.put_job("done", state="completed"))
    ids = fail_jobs(q, 2)
    assert retry_all(q, want=1, batch=2) == 1
    assert q.state("done") == "completed"
    assert q.redis("ZRANGE", "failed", 0, -1) == [ids[1]]


def test_job_failing_again_is_not_requeued_twice(q: OwnQueue):
    fail_jobs(q, 3)
    left = q.run(administration.requeue_jobs(q.meta, 2, 0, -1, 0)).left
    assert left == 1
    for job in q.fetch(2):
        q.finish(job.failed())
    assert q.run(administration.requeue_jobs(q.meta, 2, 0, left, 2)) == (1, 0, 0)
    assert q.redis("ZCARD", "failed") == 2


# -- revoke ------------------------------------------------------------------------------------------------


def added_by_node(q: OwnQueue) -> str:
    q.push_entry(q.put_job("7"))
    return "7"


def ours_promoted_by_node(q: OwnQueue) -> str:
    """A peer's promotion writes no `eid`."""
    job_id = q.add_job(delay=5)
    q.redis("ZREM", "scheduled", job_id)
    q.push_entry(job_id)
    q.redis("HSET", f"job:{job_id}", "state", "waiting")
    return job_id


NOT_BEGUN = (waiting, lifo, delayed, prioritized, in_nodes_priority_list, promoted, added_by_node,
             ours_promoted_by_node, waiting_for_retry)  # fmt: skip


@pytest.mark.parametrize("arrange", NOT_BEGUN)
def test_revoke_fails_jobs_not_started(q: OwnQueue, arrange: Callable[[OwnQueue], str]):
    job_id = arrange(q)
    assert revoke(q, job_id) == "revoked"
    job = q.job(job_id)
    assert (job["state"], job["failedReason"], job["revoked"]) == ("failed", "revoked", "1")
    assert job["finishedOn"] == str(q.now)
    assert q.redis("ZSCORE", "failed", job_id) == str(q.now)
    assert q.event_names(job_id)[-1] == "revoked"
    assert q.counts() == {**dict.fromkeys(q.counts(), 0), "failed": 1}
    q.advance(10)
    reply = q.exchange(5)
    assert (reply.jobs, reply.dropped) == ([], [])
    assert q.metric("failed")["c"] == 0  # none failed, as in the original
    # The reply was lost, and the call is made again.
    events = len(q.events())
    assert revoke(q, job_id) == "revoked"
    assert len(q.events()) == events
    assert q.run(requeue_job(q.meta, job_id)) == "ok"
    assert q.take_one().id == job_id


def test_revoke_flags_entry_read_by_peer(q: OwnQueue):
    """Its worker may be starting it now (W38); activation refuses it."""
    q.add_job()
    q.read_as("worker-1-x")
    assert revoke(q, "1") == "flagged"
    assert q.state("1") == "waiting"
    assert len(q.pending()) == 1


def test_revoked_job_deep_in_list_is_rejected_at_fetch(q: OwnQueue):
    q.add(*[row("a", "1", "{}", lifo=True) for _ in range(2100)])
    assert revoke(q, "1050") == "flagged"
    assert revoke(q, "1") == "revoked"
    assert revoke(q, "2100") == "revoked"
    assert q.redis("LLEN", "lifo") == 2098
    q.redis("LTRIM", "lifo", 1040, 1050)
    assert "1050" in q.redis("LRANGE", "lifo", 0, -1)
    reply = q.exchange(20)
    assert [drop[1:] for drop in reply.dropped] == [["1050", "revoked"]]
    assert q.state("1050") == "failed"


# -- priority, delay, promotion ----------------------------------------------------------------------------


def change_priority(q: OwnQueue, job_id: str, priority: int) -> str:
    return str(q.run(administration.change_priority(q.meta, job_id, priority)))


def change_delay(q: OwnQueue, job_id: str, delay: int) -> str:
    return str(q.run(administration.change_delay(q.meta, job_id, delay)))


def promote(q: OwnQueue, job_id: str) -> str:
    return str(q.run(administration.promote(q.meta, job_id)))


def test_due_times(q: OwnQueue):
    options: list[dict[str, Any]] = [{}, {"priority": 4}, {"rank": 9_000}, {"rank": -9}, {"rank": 7}]
    options.append({"fair_key": "key"})
    ids = [q.add_job(delay=1_000 + number, **each) for number, each in enumerate(options)]
    due = [START + 1_000 + number for number in range(len(ids))]
    ready = q.add_job()
    assert q.run(due_times(q.meta, [*ids, ready, "none"])) == [*due, 0, 0]
    assert change_delay(q, ids[0], 50) == "ok"
    assert q.run(due_times(q.meta, ids)) == [START + 50, *due[1:]]
    assert promote(q, ids[0]) == "ok"
    q.advance(2_000)
    # A job with a priority keeps its place until it is fetched.
    assert q.run(due_times(q.meta, ids[:2])) == [0, due[1]]


@pytest.mark.parametrize(
    "arrange", [waiting, lifo, promoted, added_by_node, ours_promoted_by_node, in_nodes_priority_list]
)
def test_waiting_job_can_be_reprioritized(q: OwnQueue, arrange: Callable[[OwnQueue], str]):
    first, job_id = q.add_job(priority=6), arrange(q)
    assert change_priority(q, job_id, 3) == "ok"
    job = q.job(job_id)
    assert (job["state"], job["priority"], job["eid"]) == ("prioritized", "3", "")
    assert q.events(job_id)[-1] == {"event": "priority-changed", "jobId": job_id, "priority": "3"}
    assert q.counts()["waiting"] == 0
    assert [fetched.id for fetched in q.fetch(5)] == [job_id, first]
    assert q.counts() == {**dict.fromkeys(q.counts(), 0), "active": 2}


@pytest.mark.parametrize(
    "arrange", [waiting, lifo, promoted, added_by_node, prioritized, in_nodes_priority_list, delayed]
)
def test_a_job_gets_a_delay(q: OwnQueue, arrange: Callable[[OwnQueue], str]):
    job_id = arrange(q)
    assert change_delay(q, job_id, 70) == "ok"
    job = q.job(job_id)
    assert (job["state"], job["delay"], job["eid"]) == ("delayed", "70", "")
    assert q.events(job_id)[-1] == {"event": "delay-changed", "jobId": job_id, "delay": "70"}
    assert q.fetch(5) == []
    q.advance(69)
    assert q.exchange(5).next_due == 1
    q.advance(1)
    assert q.take_one().id == job_id
    assert q.redis("ZCARD", "scheduled") == 0


@pytest.mark.parametrize("state", ["active", "completed", "failed", "group-waiting", "waiting-children", "suspended"])
def test_other_states_allow_no_change(q: OwnQueue, state: str):
    q.put_job("7", state=state)
    before = q.job("7")
    assert [change_priority(q, "7", 1), change_delay(q, "7", 1), promote(q, "7")] == [state] * 3
    assert q.job("7") == before
    assert [change_priority(q, "no", 1), change_delay(q, "no", 1), promote(q, "no")] == ["gone"] * 3


def test_job_read_by_peer_is_held(q: OwnQueue):
    """Re-queueing it would run it twice (W38)."""
    q.add_job()
    q.read_as("worker-1-x")
    assert [change_priority(q, "1", 1), change_delay(q, "1", 1)] == ["held", "held"]
    assert q.redis("EXISTS", "scheduled") == 0
    q.put_job("7", state="delayed")
    assert [change_delay(q, "7", 0), promote(q, "7"), change_priority(q, "7", 4)] == ["lost"] * 3
    q.put_job("8")
    assert [change_delay(q, "8", 5), change_priority(q, "8", 4)] == ["lost"] * 2


def test_a_foreign_key_leaves_the_job_where_it_was(q: OwnQueue):
    q.add_job()
    q.redis("SET", "scheduled", "foreign")
    for change in (change_priority, change_delay):
        with pytest.raises(RespError, match="WRONGTYPE"):
            change(q, "1", 5)
    q.redis("DEL", "scheduled")
    assert q.take_one().id == "1"


# -- pages -------------------------------------------------------------------------------------------------


def pages(q: OwnQueue, state: str, count: int, name: str = "", newest: bool = False) -> list[str]:
    ids: list[str] = []
    cursor = ""
    while True:
        piece = q.run(reading.page(q.meta, state, cursor, count, ("state",), name or None, newest=newest))
        assert len(piece.rows) <= count
        ids += [each[0] for each in piece.rows]
        cursor = piece.cursor
        if not cursor:
            return ids


@pytest.mark.parametrize("count", [1, 3, 100])
def test_pages_from_the_newest_job_on(q: OwnQueue, count: int):
    q.add(*[row("a", "1", "{}") for _ in range(12)])
    taken = q.fetch(8)
    q.finish(*[job.completed() for job in taken[:6]])
    assert pages(q, "waiting", count, newest=True) == ["12", "11", "10", "9"]
    assert pages(q, "completed", count, newest=True) == pages(q, "completed", count)[::-1]
    assert sorted(pages(q, "active", count, newest=True)) == ["7", "8"]


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_pages_of_parked_jobs(q: OwnQueue, count: int):
    groups = ["k", "a@b", "a:9", "", "z"]
    for name in filter(None, groups):
        q.add(*[member(name) for _ in range(4)])
    active = {job.id for job in q.fetch(100)}
    parked = {str(n) for n in range(1, 17)} - active
    found = pages(q, "group-waiting", count)
    assert sorted(found) == sorted(parked)
    assert pages(q, "group-waiting", count, "other") == []


def test_parked_jobs_of_many_groups(q: OwnQueue):
    """More groups than one step of the scan gives, some of them gone while we look."""
    q.add(*[member(f"g{n % 700}") for n in range(1400)])
    assert sum(len(q.fetch(1000)) for _ in range(3)) == 700
    found = pages(q, "group-waiting", 50)
    assert len(found) == len(set(found)) == 700


# -- metrics -----------------------------------------------------------------------------------------------


def test_recovery_trims_metrics(q: OwnQueue):
    """Where peers are always the first of a minute (W71)."""
    minute = START - START % 60_000
    fields = [f"m:{minute - n * 60_000}:c" for n in range(3000)]
    q.redis("HSET", "metrics:completed", *(text for field in fields for text in (field, "1")))
    q.recover_stalled()
    assert q.redis("HLEN", "metrics:completed") == 1441
    q.redis("DEL", "lock:recover")


@pytest.mark.parametrize("arrange", [waiting, lifo, prioritized, delayed])
def test_the_same_priority_changes_nothing(q: OwnQueue, arrange: Callable[[OwnQueue], str]):
    job_id = arrange(q)
    events = q.events()
    assert change_priority(q, job_id, int(q.job(job_id)["priority"])) == "no_op"
    assert q.events() == events


def test_promote_of_ready_job_is_rejected(q: OwnQueue):
    assert [change_delay(q, q.add_job(), 0), change_delay(q, q.add_job(priority=1), 0)] == ["no_op", "no_op"]
    assert [promote(q, "1"), promote(q, "2")] == ["waiting", "prioritized"]
