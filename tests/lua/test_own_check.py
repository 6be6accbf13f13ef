"""Test the consistency check: create every kind of inconsistency, find it and repair it."""

from typing import Any

import pytest

from tests.inside import FindingKind as Kind
from tests.inside import consistency_calls as checking
from tests.inside import results, row
from tests.lua.check_support import assert_repairs, check, findings
from tests.lua.own_support import BAND, START, OwnQueue

DAY = 86_400_000


def ordered(key: str = "k", width: int = 1) -> list[object]:
    return [key, width, 0, 0, 0, 0, 0]


def add_ordered(q: OwnQueue, count: int = 1, key: str = "k", width: int = 1) -> list[str]:
    return [str(i) for i in q.add(*(row("task", "{}", "{}", ordering=ordered(key, width)) for _ in range(count)))]


def one_of_each(q: OwnQueue):
    """A healthy queue with jobs in every state and place."""
    for options in ({"delay": 5_000}, {"priority": 3}, {"lifo": True}, {"priority": 2, "delay": 9_000}, {}):
        q.add_job(**options)
    add_ordered(q, 4)
    add_ordered(q, 4, "wide", 2)
    done, failing, retrying, *_ = q.fetch(7)
    q.finish(done.completed(), failing.failed(), retrying.failed(limit=3, backoff=60_000))
    for _ in range(3):
        q.add_job()
        q.add_job(lifo=True)


def test_healthy_queue_has_no_findings(q: OwnQueue):
    one_of_each(q)
    found = check(q)
    assert found.ok
    assert found.findings == (), str(found)
    assert (found.jobs, found.groups, found.looks) == (19, 2, 1)
    assert "consistent" in str(found)


def test_a_check_changes_nothing(q: OwnQueue):
    one_of_each(q)
    q.redis("DEL", "scheduled")
    before = {key: q.resp.execute("DUMP", q.key(key)) for key in q.key_names()}
    assert not check(q).ok
    assert {key: q.resp.execute("DUMP", q.key(key)) for key in q.key_names()} == before


# -- jobs without a place ----------------------------------------------------------------------------------


def _trim(q: OwnQueue):
    q.redis("XTRIM", "stream", "MAXLEN", 0)


@pytest.mark.parametrize(
    ("options", "lose", "state"),
    [
        ({}, _trim, "waiting"),
        ({"lifo": True}, lambda q: q.redis("DEL", "lifo"), "waiting"),
        ({"priority": 3}, lambda q: q.redis("DEL", "scheduled"), "prioritized"),
        ({"delay": 5_000}, lambda q: q.redis("DEL", "scheduled"), "delayed"),
    ],
)
def test_lost_job_is_repaired(q: OwnQueue, options: Any, lose: Any, state: str):
    job = q.add_job(**options)
    lose(q)
    assert_repairs(q, (Kind.LOST_JOB, job))
    assert q.state(job) == state
    q.advance(5_000)
    assert q.take_one().id == job


def test_lost_delayed_job_keeps_its_due_time(q: OwnQueue):
    job = q.add_job(delay=5_000, priority=2)
    q.redis("ZREM", "scheduled", job)
    assert_repairs(q, (Kind.LOST_JOB, job))
    assert float(q.redis("ZSCORE", "scheduled", job)) == 2 * BAND + START + 5_000


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_finished_job_missing_from_index(q: OwnQueue, end: str):
    job = q.add_job()
    fetched = q.take_one()
    q.finish(fetched.completed() if end == "completed" else fetched.failed())
    q.redis("ZREM", end, job)
    assert_repairs(q, (Kind.LOST_JOB, job))
    assert float(q.redis("ZSCORE", end, job)) == START


@pytest.mark.parametrize("options", [{}, {"lifo": True}, {"priority": 1}])
def test_active_job_in_no_place_becomes_ready(q: OwnQueue, options: Any):
    job = q.add_job(**options)
    fetched = q.take_one()
    if fetched.entry:
        q.resp.execute("XACK", q.key("stream"), "workers", fetched.entry)
        q.redis("XDEL", "stream", fetched.entry)
        expected = [(Kind.LOST_JOB, job)]
    else:
        q.redis("DEL", "list-heartbeats", q.key("list-active-ids"))
        q.advance(400_000)  # a peer's job would have had a heartbeat in this time
        expected = [(Kind.LOST_JOB, job), (Kind.COUNTER, "list-active")]
    assert_repairs(q, *expected)
    assert q.finish(fetched.completed()) == [3]
    again = q.take_one()
    assert (again.id, again.fence) == (job, fetched.fence + 2)


def test_peer_list_job_with_heartbeat_is_unchanged(q: OwnQueue):
    q.put_job("p", state="active", lifo=1, lastActive=q.now, processedOn=q.now)
    q.redis("SET", "list-active", 1)
    assert check(q).findings == ()
    q.advance(400_000)
    assert findings(check(q)) == [(Kind.COUNTER, "list-active"), (Kind.LOST_JOB, "p")]


def test_parked_job_missing_from_group(q: OwnQueue):
    _, second = add_ordered(q, 2)
    fetched = q.take_one()
    q.fetch(1)
    assert q.state(second) == "group-waiting"
    q.redis("DEL", "groupq:k")
    assert_repairs(q, (Kind.LOST_JOB, second))
    q.finish(fetched.completed())
    assert q.take_one().id == second


# -- places without a job ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["scheduled", "completed", "failed", "suspended", "list-heartbeats", "list-popped"])
def test_set_member_without_job(q: OwnQueue, place: str):
    q.redis("ZADD", place, START, "nobody")
    expected = [(Kind.DANGLING, "nobody")]
    if place == "list-popped":
        expected.append((Kind.COUNTER, "list-active"))
    assert_repairs(q, *expected)


@pytest.mark.parametrize("place", ["lifo", "priority"])
def test_list_member_without_job(q: OwnQueue, place: str):
    kept = q.add_job(lifo=True)
    q.redis("RPUSH", place, "nobody")
    assert_repairs(q, (Kind.DANGLING, "nobody"))
    assert q.redis("LRANGE", "lifo", 0, -1) == [kept]


def test_stream_entry_without_job(q: OwnQueue):
    kept = q.add_job()
    q.push_entry("nobody")
    assert_repairs(q, (Kind.DANGLING, "nobody"))
    assert [entry["jobId"] for entry in q.entries()] == [kept]


def test_pending_entries_of_missing_or_inactive_jobs(q: OwnQueue):
    gone, ended, trimmed = (q.add_job() for _ in range(3))
    fetched = q.fetch(3)
    q.redis("DEL", f"job:{gone}")
    q.redis("HSET", f"job:{ended}", "state", "completed")
    q.redis("ZADD", "completed", START, ended)
    q.redis("XDEL", "stream", fetched[2].entry)
    expected = [(Kind.DANGLING, gone), (Kind.MISPLACED, ended), (Kind.DANGLING, fetched[2].entry)]
    assert_repairs(q, *expected, (Kind.LOST_JOB, trimmed))
    assert q.pending() == []


@pytest.mark.parametrize("place", ["scheduled", "completed", "failed", "suspended"])
def test_set_member_in_another_state(q: OwnQueue, place: str):
    job = q.add_job()
    q.redis("ZADD", place, START, job)
    assert_repairs(q, (Kind.MISPLACED, job))
    assert q.take_one().id == job


def test_two_entries_of_one_job(q: OwnQueue):
    job = q.add_job()
    q.push_entry(job)
    assert_repairs(q, (Kind.TWICE, job))
    assert len(q.entries()) == 1
    assert q.take_one().id == job


def test_a_job_in_the_stream_and_in_a_list(q: OwnQueue):
    job = q.add_job()
    q.redis("RPUSH", "lifo", job)
    assert_repairs(q, (Kind.TWICE, job))
    assert len(q.entries()) + q.redis("LLEN", "lifo") == 1


def test_prioritized_job_also_in_list(q: OwnQueue):
    job = q.add_job(priority=3)
    q.redis("RPUSH", "priority", job)
    assert_repairs(q, (Kind.TWICE, job))
    assert q.redis("ZSCORE", "scheduled", job) is not None


def test_a_watched_job_that_ended_is_left_to_recovery_for_a_day(q: OwnQueue):
    """Jobs end under peers all the time, and each round of recovery forgets some of them."""
    q.redis("HSET", "stall-watch", "nobody", f"1|{START}", q.add_job(), f"2|{START}")
    assert check(q).ok
    q.advance(2 * 86_400_000)
    assert_repairs(q, (Kind.DANGLING, "nobody"))


# -- keys --------------------------------------------------------------------------------------------------


def test_a_ghost_is_deleted(q: OwnQueue):
    q.redis("HSET", "job:77", "lastActive", START)
    before = q.add_job(job_id="99")
    assert_repairs(q, (Kind.GHOST, "77"))
    assert not q.redis("EXISTS", "job:77")
    assert q.take_one().id == before


def test_foreign_job_key_is_reported_and_unchanged(q: OwnQueue):
    q.redis("SET", "job:x", "somebody's")
    found = check(q, repair=True)
    assert findings(found) == [(Kind.FOREIGN_KEY, "x")]
    assert not found.ok
    assert q.redis("GET", "job:x") == "somebody's"


def test_key_of_a_result_sequence_that_is_off_is_deleted(q: OwnQueue):
    q.run(results.start_sequence(q.meta))
    q.add_job()
    q.finish(q.take_one().completed())
    assert findings(check(q)) == []
    assert q.run(checking.apply_repair(q.meta, [("orphan", "results")])) == [0]
    q.redis("HDEL", "meta", "resultsId")
    assert_repairs(q, (Kind.ORPHAN_KEY, q.key("results")))
    assert q.redis("EXISTS", "results") == 0


def test_result_sequence_of_a_foreign_type_is_kept(q: OwnQueue):
    q.redis("SET", "results", "x")
    q.run(results.start_sequence(q.meta))
    assert findings(check(q, repair=True)) == [(Kind.ORPHAN_KEY, q.key("results"))]
    assert q.redis("GET", "results") == "x"


def test_orphans(q: OwnQueue):
    job = q.add_job()
    q.redis("RPUSH", f"log:{job}", "kept")
    q.redis("RPUSH", "log:gone", "line")
    q.redis("RPUSH", "signals:gone", "{}")
    q.redis("SADD", "deps:gone", "x")
    q.redis("HSET", "depvals:gone", "x", "v1")
    q.redis("SADD", "parents:gone", "x")
    q.redis("XADD", "jstream:gone", "*", "a", "b")
    kinds = ("log", "signals", "deps", "depvals", "parents", "jstream")
    assert_repairs(q, *((Kind.ORPHAN_KEY, q.key(f"{kind}:gone")) for kind in kinds))
    assert q.redis("EXISTS", f"log:{job}") == 1


def test_keys_of_missing_staged_writes_are_deleted(q: OwnQueue):
    q.redis("RPUSH", "write:gone:try:d.0", "piece")
    q.redis("SADD", "write:gone:tried", "d.0")
    assert_repairs(q, *((Kind.ORPHAN_KEY, q.key(f"write:gone:{part}")) for part in ("tried", "try:d.0")))


def test_unlisted_staged_write_is_indexed(q: OwnQueue):
    q.redis("HSET", "write:w", "state", "committed", "home", "x", "query", "", "at", q.now)
    q.redis("HSET", "write:over", "state", "done")
    assert_repairs(q, (Kind.STAGED_WRITE, q.key("write:w")))
    assert q.redis("ZRANGE", "writes", 0, -1) == ["w"]


def test_stale_deduplication_entry_is_repaired(q: OwnQueue):
    for name in ("old", "held"):
        q.add(row("task", "{}", "{}", deduplication=[name, 1_000, "simple"]))
    q.finish(q.take_one().completed())
    q.advance(3 * DAY)
    assert_repairs(q, (Kind.STALE_DEDUPLICATION, "old"))
    assert q.redis("HKEYS", "dedup") == ["held"]


# -- counters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drift", [-2, -1, 3])
def test_the_count_of_active_list_jobs(q: OwnQueue, drift: int):
    for _ in range(2):
        q.add_job(lifo=True)
    q.fetch(2)
    q.redis("INCRBY", "list-active", drift)
    assert_repairs(q, (Kind.COUNTER, "list-active"))
    assert q.redis("GET", "list-active") == "2"


@pytest.mark.parametrize("drift", [-2, 3])
def test_the_count_of_waiting_jobs_with_a_fair_key(q: OwnQueue, drift: int):
    q.add(*(row("a", "null", "{}", fair_key=key) for key in ("x", "x", "y")))
    q.redis("HINCRBY", "fair-state", "waiting", drift)
    assert_repairs(q, (Kind.COUNTER, "fair-waiting"))
    assert q.redis("HGET", "fair-state", "waiting") == "3"


def test_high_count_is_ignored_while_peers_run(q: OwnQueue):
    q.add_job()
    q.read_as("worker-1700000000000-0badcafe")
    q.redis("SET", "w:worker-1700000000000-0badcafe", "{}", "PX", 60_000)
    q.redis("SET", "list-active", 2)
    assert check(q).findings == ()


def test_id_counter_too_low(q: OwnQueue):
    for _ in range(3):
        q.add_job()
    q.redis("DEL", "id")
    assert_repairs(q, (Kind.COUNTER, "id"))
    assert q.add_job() == "4"


def test_ids_ignored_by_the_counter(q: OwnQueue):
    q.add_job(job_id="007")
    q.add_job(job_id="9" * 20)
    assert check(q).findings == ()


# -- groups ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drift", [-1, 1, 5])
def test_slots_of_a_group(q: OwnQueue, drift: int):
    add_ordered(q, 5, width=3)
    fetched = q.fetch(2)
    q.redis("HINCRBY", "group:k", "active", drift)
    assert_repairs(q, (Kind.GROUP_SLOTS, "k"))
    assert q.redis("HGET", "group:k", "active") == "2"
    q.finish(*(job.completed() for job in fetched))
    assert len(q.fetch(5)) == 3


def test_a_leaked_slot_of_a_group_without_jobs(q: OwnQueue):
    add_ordered(q, 1)
    q.finish(q.take_one().completed())
    q.redis("HSET", "group:k", "active", 1)
    assert_repairs(q, (Kind.GROUP_SLOTS, "k"))
    assert q.redis("HGET", "group:k", "active") == "0"


def test_missing_sequence_is_repaired(q: OwnQueue):
    first, *others = add_ordered(q, 4)
    q.redis("DEL", f"job:{first}")
    q.redis("DEL", f"job:{others[1]}")
    assert q.fetch(4) == []
    assert_repairs(q, (Kind.GROUP_SEQUENCE, "k"))
    ran = []
    while fetched := q.fetch(4):
        ran += [job.id for job in fetched]
        q.finish(*(job.completed() for job in fetched))
    assert ran == [others[0], others[2]]
    assert check(q).findings == ()


def test_a_group_that_was_deleted(q: OwnQueue):
    add_ordered(q, 3)
    for _ in range(2):
        q.finish(q.take_one().completed())
    q.redis("DEL", "group:k")
    (late,) = add_ordered(q)
    assert findings(check(q)) == [(Kind.GROUP_SEQUENCE, "k")]
    assert check(q, repair=True).ok
    assert check(q).findings == ()
    q.finish(q.take_one().completed())
    assert q.take_one().id == late


def test_ordering_counter_too_low(q: OwnQueue):
    add_ordered(q, 3)
    q.redis("HSET", "ordering", "k", 1)
    assert_repairs(q, (Kind.COUNTER, "k"))
    assert q.redis("HGET", "ordering", "k") == "3"
    q.redis("HDEL", "ordering", "k")
    assert_repairs(q, (Kind.COUNTER, "k"))


def test_stuck_parked_jobs_are_repaired(q: OwnQueue):
    add_ordered(q, 3)
    fetched = q.take_one()
    q.fetch(3)
    q.redis("HSET", f"job:{fetched.id}", "state", "completed")  # it ended without telling its group
    q.resp.execute("XACK", q.key("stream"), "workers", fetched.entry)
    q.redis("XDEL", "stream", fetched.entry)
    q.redis("ZADD", "completed", START, fetched.id)
    q.redis("HSET", "group:k", "active", 0)
    assert_repairs(q, (Kind.GROUP_PARKED, "k"))
    assert q.take_one().id


def test_changed_group_is_not_checked(q: OwnQueue):
    add_ordered(q, 2)
    facts = checking.GroupFacts("k", [], 2, 1, [1, 2], 3, 0, 1)
    q.take_one()
    assert q.run(checking.check_group(q.meta, *facts)).moved
    assert q.run(checking.repair_group(q.meta, *facts)) == []


# -- repairs look once more --------------------------------------------------------------------------------


def test_moved_job_is_not_repaired(q: OwnQueue):
    job = q.add_job()
    mark = "waiting|||||||"
    rows = [("lost", job, mark), ("ghost", job), ("member", "stream", job, q.redis("XRANGE", "stream", "-", "+")[0][0])]
    before = q.job(job)
    assert q.run(checking.apply_repair(q.meta, [*rows, ("orphan", f"log:{job}"), ("orphan", "meta:x")])) == [0] * 5
    assert q.job(job) == before
    assert len(q.entries()) == 1


def test_check_of_many_jobs_is_bounded_per_call(q: OwnQueue):
    q.add(*(row("task", "{}", "{}") for _ in range(700)))
    q.add(*(row("task", "{}", "{}", lifo=True) for _ in range(300)))
    q.add(*(row("task", "{}", "{}", ordering=ordered(f"g{n % 40}")) for n in range(300)))
    found = check(q)
    assert found.findings == ()
    assert (found.jobs, found.groups) == (1_300, 40)
