"""Test heartbeat, recover_stalled, reattach and leave."""

from collections.abc import Iterator
from typing import Any

import pytest

from glidemq_py._core.calls.adding import row
from glidemq_py._core.calls.administration import pause, remove
from glidemq_py._core.calls.reading import workers
from glidemq_py._core.calls.working import AttemptStatus as S
from glidemq_py._core.calls.working import RecoverStalledReply, heartbeat, leave, reattach, recover_stalled
from tests.lua.own_support import NODE_CONSUMER, START, Fetched, OwnQueue

LOCK = 30_000


def look(
    q: OwnQueue, cursor: str = "", max_stalled: int = 1, holder: str = "py-9", hold: int = 60_000
) -> RecoverStalledReply:
    reply = q.run(recover_stalled(q.meta, holder, hold, LOCK, max_stalled, False, cursor))
    assert isinstance(reply, RecoverStalledReply)
    return reply


def looks(q: OwnQueue, max_stalled: int = 1) -> Iterator[RecoverStalledReply]:
    """One look at everything, page by page."""
    cursor = ""
    while True:
        reply = look(q, cursor, max_stalled)
        yield reply
        if not (cursor := reply.cursor):
            return


def beat(q: OwnQueue, *jobs: Fetched, consumer: str = "py-1", info: str = "", ttl: int = 60_000) -> list[int]:
    return list(q.run(heartbeat(q.meta, consumer, info, ttl, [job.token for job in jobs])).statuses)


# -- heartbeat ---------------------------------------------------------------------------------------------


def test_a_heartbeat_keeps_both_clocks_fresh(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.let_idle(job.entry, 90_000)
    q.advance(90_000)
    assert beat(q, job) == [S.OK]
    assert q.job("1")["lastActive"] == str(START + 90_000)
    (pending,) = q.resp.execute("XPENDING", q.key("stream"), "workers", "-", "+", 10)
    assert pending[1] == "py-1"
    assert pending[2] < 60_000
    assert pending[3] == 1  # no delivery was counted
    assert look(q).recovered == []


def test_a_heartbeat_of_a_list_job(q: OwnQueue) -> None:
    q.add_job(lifo=True)
    job = q.take_one()
    q.advance(LOCK)
    assert beat(q, job) == [S.OK]
    assert int(q.redis("ZSCORE", "list-active-ids", "1")) == START + LOCK
    q.advance(LOCK - 1)
    assert look(q).recovered == []


def test_a_heartbeat_takes_an_entry_back_from_a_peers_claim(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.let_idle(job.entry, 0, NODE_CONSUMER)
    assert beat(q, job) == [S.OK]
    assert q.pending() == [(job.entry, "py-1")]


def test_heartbeat_returns_job_status(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}") for _ in range(4)])
    ours, gone, stale, revoked = q.fetch(4)
    q.run(remove(q.meta, gone.id))
    q.finish(stale.released())
    q.redis("HSET", f"job:{revoked.id}", "revoked", "1")
    before = q.job(stale.id)
    assert beat(q, ours, gone, stale, revoked) == [S.OK, S.GONE, S.STALE, S.REVOKED]
    assert not q.redis("EXISTS", f"job:{gone.id}")
    assert q.job(stale.id) == before


def test_a_heartbeat_after_the_end_is_stale(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.finish(job.completed())
    assert beat(q, job) == [S.STALE]
    q.redis("DEL", "job:1")
    q.redis("SET", "job:1", "x")
    assert beat(q, job) == [S.GONE]


def test_a_heartbeat_without_a_group(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.redis("DEL", "stream")
    assert beat(q, job) == [S.OK]


def test_registration(q: OwnQueue) -> None:
    beat(q, consumer="py-1", info='{"pid":1}')
    beat(q, consumer="py-2", info='{"pid":2}')
    beat(q, consumer="py-3")
    assert sorted(q.run(workers(q.meta))) == [("py-1", '{"pid":1}'), ("py-2", '{"pid":2}')]
    assert 0 < q.redis("PTTL", "w:py-1") <= 60_000
    q.redis("DEL", "w:py-1")
    assert q.run(workers(q.meta)) == [("py-2", '{"pid":2}')]


def test_node_workers_are_found_by_their_consumers(q: OwnQueue) -> None:
    q.add_job()
    q.read_as(NODE_CONSUMER)
    q.redis("SET", f"w:{NODE_CONSUMER}", '{"pid":3}')
    assert q.run(workers(q.meta)) == [(NODE_CONSUMER, '{"pid":3}')]


def test_old_registrations_are_removed(q: OwnQueue) -> None:
    beat(q, consumer="old", info="{}")
    q.advance(86_400_001)
    beat(q, consumer="new", info="{}")
    assert q.redis("ZRANGE", "workers", 0, -1) == ["new"]


# -- leaving -----------------------------------------------------------------------------------------------


def test_leaving(q: OwnQueue) -> None:
    beat(q, info="{}")
    q.exchange(1)
    assert q.run(leave(q.meta, "py-1")) is True
    assert q.run(workers(q.meta)) == []
    for group in q.redis_groups("stream"):
        assert dict(zip(group[::2], group[1::2], strict=True))["consumers"] == 0
    assert q.redis("XLEN", "wake") == 1
    assert q.run(leave(q.meta, "py-1")) is True  # a worker that was never registered


def test_leave_keeps_consumer_with_pending_jobs(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    assert q.run(leave(q.meta, "py-1")) is False
    assert q.pending() == [(job.entry, "py-1")]


# -- reclaim: ours -----------------------------------------------------------------------------------------


def test_a_job_of_a_dead_worker_runs_again(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.let_idle(job.entry, LOCK + 5)
    q.advance(LOCK + 5)
    assert look(q) == (["1"], [], "", 1, 0, 0)
    record = q.job("1")
    assert (record["state"], record["stalledCount"], record["attemptsMade"]) == ("waiting", "1", "0")
    assert "processedOn" not in record
    assert q.event_names("1")[-1] == "stalled"
    assert (len(q.entries()), q.pending()) == (1, [])
    assert record["eid"] != job.entry
    assert q.finish(job.completed()) == [S.STALE]  # the dead worker was only slow
    assert beat(q, job) == [S.STALE]
    again = q.take_one("py-2")
    assert (again.fields["stalledCount"], again.fence) == ("1", job.fence + 2)
    assert q.finish(again.completed()) == [S.OK]
    assert q.event_names("1").count("completed") == 1


def test_job_with_heartbeat_is_not_recovered(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.let_idle(job.entry, LOCK - 1_000)
    assert look(q).recovered == []
    assert q.pending() == [(job.entry, "py-1")]


def test_job_fails_above_max_stalled(q: OwnQueue) -> None:
    q.add_job()
    for expected in (["1"], []):
        job = q.take_one()
        q.let_idle(job.entry, LOCK)
        q.advance(LOCK)
        reply = look(q)
        assert reply.recovered == expected
    assert reply.failed == ["1"]
    record = q.job("1")
    assert (record["state"], record["failedReason"]) == ("failed", "job stalled more than maxStalledCount")
    assert q.redis("ZRANGE", "failed", 0, -1) == ["1"]
    assert q.event_names("1")[-1] == "failed"
    assert q.metric("failed") == {"c": 1, "d": LOCK}
    assert (q.entries(), q.pending()) == ([], [])
    assert q.finish(job.completed()) == [S.STALE]


def test_max_stalled_zero_fails_first_stall(q: OwnQueue) -> None:
    q.add_job()
    q.let_idle(q.take_one().entry, LOCK)
    assert look(q, max_stalled=0).failed == ["1"]


@pytest.mark.parametrize(
    ("own", "idle", "recovered"), [(1_000, 2_000, True), (3_600_000, 90_000, False), (5, 40_000, True)]
)
def test_lock_duration_of_job_has_precedence(q: OwnQueue, own: int, idle: int, recovered: bool) -> None:
    q.add_job(opts=f'{{"lockDuration":{own}}}')
    q.let_idle(q.take_one().entry, idle)
    assert bool(look(q).recovered) is recovered


def test_entries_of_ended_and_missing_jobs_are_acknowledged(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}") for _ in range(4)])
    q.redis("XADD", "stream", "*", "foreign", "entry")
    entries = q.read_as("py-1", 5)
    q.redis("HSET", "job:1", "state", "completed")
    q.redis("HSET", "job:2", "state", "failed")
    q.redis("DEL", "job:3")
    q.redis("XDEL", "stream", entries[3])
    for entry in (*entries[:3], entries[4]):
        q.let_idle(entry, LOCK)
    assert look(q) == ([], [], "", 1, 0, 0)
    assert q.entries() == []
    assert {key for key in q.key_names() if key.startswith("job:")} == {"job:1", "job:2", "job:4"}


def test_entry_read_but_never_activated_is_returned_without_a_stall(q: OwnQueue) -> None:
    q.add_job()
    (entry,) = q.read_as("py-1")
    q.let_idle(entry, LOCK)
    assert look(q).recovered == ["1"]
    assert "stalledCount" not in q.job("1")
    assert q.take_one().id == "1"


@pytest.mark.parametrize("junk", ["x", "1.5", ""])
def test_invalid_record_does_not_block_recovery(q: OwnQueue, junk: str) -> None:
    q.add(row("a", "", "{}"), row("b", "", "{}"))
    jobs = [q.take_one(), q.take_one("py-2")]
    q.redis("HSET", "job:1", "stalledCount", junk, "fence", junk, "opts", '{"lockDuration":"x"', "priority", junk)
    for job, consumer in zip(jobs, ("py-1", "py-2"), strict=True):
        q.let_idle(job.entry, LOCK, consumer)
    assert look(q).recovered == ["1", "2"]
    assert q.job("1")["stalledCount"] == "1"
    assert len(q.fetch(2)) == 2


def test_stalled_job_of_a_node_peer_returns_to_its_group(q: OwnQueue) -> None:
    q.redis("HSET", "group:g", "active", "1", "maxConcurrency", "1", "nextSeq", "2")
    q.push_entry(q.put_job("7", state="active", groupKey="g", orderingSeq=1, lastActive=START, processedOn=START))
    (entry,) = q.read_as(NODE_CONSUMER)
    q.let_idle(entry, LOCK, NODE_CONSUMER)
    assert look(q) == ([], [], "", 1, 0, 0)  # only reads its heartbeat
    q.advance(LOCK)
    q.let_idle(entry, LOCK, NODE_CONSUMER)
    assert look(q).recovered == ["7"]
    assert q.redis("HGET", "group:g", "active") == "1"
    assert q.take_one().id == "7"
    assert q.redis("HMGET", "group:g", "active", "nextSeq") == ["1", "2"]


def test_recovery_reads_one_page_per_call(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}") for _ in range(250)], quiet=True)
    jobs = q.fetch(250)
    for job in jobs:
        if int(job.id) % 2:
            q.let_idle(job.entry, LOCK)
        else:
            q.let_idle(job.entry, 2_000)  # alive, but looked at
    pages = list(looks(q))
    assert [len(page.recovered) for page in pages] == [50, 50, 25]
    assert sorted(int(i) for page in pages for i in page.recovered) == list(range(1, 250, 2))


def test_only_one_holder_recovers(q: OwnQueue) -> None:
    assert look(q, holder="a").held == 1
    assert look(q, holder="b").held == 0
    assert look(q, holder="a").held == 1
    q.redis("PEXPIRE", "lock:recover", 0)
    assert look(q, holder="b").held == 1


def test_recovery_on_an_empty_queue(q: OwnQueue) -> None:
    assert look(q) == ([], [], "", 1, 0, 0)
    assert q.key_names() == {"lock:recover"}


def test_recovery_while_paused(q: OwnQueue) -> None:
    q.add_job()
    q.let_idle(q.take_one().entry, LOCK)
    q.run(pause(q.meta))
    assert look(q).recovered == ["1"]


# -- reclaim: lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "state"), [({"lifo": True}, "waiting"), ({"priority": 2}, "prioritized")])
def test_a_list_job_returns_to_its_source(q: OwnQueue, options: dict[str, Any], state: str) -> None:
    q.add_job(**options)
    job = q.take_one()
    q.advance(LOCK - 1)
    assert look(q).recovered == []
    q.advance(1)
    assert look(q).recovered == ["1"]
    assert (q.state("1"), q.job("1")["stalledCount"]) == (state, "1")
    assert (q.redis("GET", "list-active"), q.redis("ZCARD", "list-active-ids")) == ("0", 0)
    assert q.finish(job.completed()) == [S.STALE]
    again = q.take_one()
    q.advance(LOCK)
    assert look(q).failed == ["1"]
    assert q.finish(again.completed()) == [S.STALE]


def test_a_list_jobs_own_lock(q: OwnQueue) -> None:
    q.add_job(lifo=True, opts='{"lockDuration":3600000}')
    q.take_one()
    q.advance(3_599_999)
    assert look(q).recovered == []
    q.advance(1)
    assert look(q).recovered == ["1"]


def test_all_list_jobs_of_a_dead_worker_in_one_round(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}", lifo=True) for _ in range(250)], quiet=True)
    q.fetch(250)
    q.advance(LOCK)
    assert sum(len(page.recovered) for page in looks(q)) == 250
    assert q.counts()["waiting"] == 250


def test_list_entries_of_ended_jobs_are_removed(q: OwnQueue) -> None:
    q.redis("ZADD", "list-active-ids", START, "gone", START, q.put_job("7", state="completed"))
    q.advance(LOCK)
    assert look(q) == ([], [], "", 1, 0, 0)
    assert not q.redis("EXISTS", "list-active-ids")


def test_list_job_fetched_by_node_peer_is_left_to_it(q: OwnQueue) -> None:
    q.add_job(lifo=True)
    q.take_one()
    q.advance(LOCK)
    # A Node peer found the stalled job itself and activated it again.
    q.redis("HSET", "job:1", "processedOn", q.now + 3, "lastActive", q.now + 3)
    assert look(q) == ([], [], "", 1, 0, 0)
    assert q.state("1") == "active"
    assert not q.redis("EXISTS", "list-active-ids")


# -- reclaim: Node peers -----------------------------------------------------------------------------------


def test_node_peer_with_unchanged_heartbeat_is_dead(q: OwnQueue) -> None:
    q.push_entry(q.put_job("7", state="active", lastActive=5, processedOn=5))  # by its own clock
    (entry,) = q.read_as(NODE_CONSUMER)
    q.let_idle(entry, 10 * LOCK, NODE_CONSUMER)
    assert look(q).recovered == []  # the first look
    q.advance(LOCK - 1)
    assert look(q).recovered == []
    q.redis("HSET", "job:7", "lastActive", 6)  # a heartbeat
    q.advance(1)
    assert look(q).recovered == []
    q.advance(LOCK)
    assert look(q).recovered == ["7"]
    assert not q.redis("EXISTS", "stall-watch")


def test_an_entry_that_a_node_peer_read_and_did_not_activate(q: OwnQueue) -> None:
    q.push_entry(q.put_job("7"))
    (entry,) = q.read_as(NODE_CONSUMER)
    q.let_idle(entry, LOCK, NODE_CONSUMER)
    assert look(q).recovered == []
    q.advance(LOCK)
    assert look(q).recovered == ["7"]
    assert "stalledCount" not in q.job("7")


def test_finished_jobs_are_not_watched(q: OwnQueue) -> None:
    for i in range(60):
        q.redis("HSET", "stall-watch", f"gone{i}", f"5|{START}")
    q.redis("HSET", "stall-watch", q.put_job("7", state="active"), f"5|{START}")
    for _ in range(40):
        look(q)
        if q.redis("HLEN", "stall-watch") == 1:
            break
    assert q.redis("HKEYS", "stall-watch") == ["7"]


# -- regain ------------------------------------------------------------------------------------------------


def reattach_jobs(q: OwnQueue, *known: str, want: int = 100, consumer: str = "py-1") -> list[Fetched]:
    found: list[Fetched] = []
    cursor = ""
    while True:
        reply = q.run(reattach(q.meta, consumer, known, want - len(found), False, cursor, []))
        found += [Fetched(job, reply.now) for job in reply.jobs]
        cursor = reply.cursor
        if not cursor:
            return found


def test_reattach_returns_jobs_of_lost_reply(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}") for _ in range(3)])
    known, *lost = q.fetch(3)
    q.fetch(1, "py-2")
    q.advance(5)
    back = reattach_jobs(q, known.entry)
    assert [(job.id, job.entry) for job in back] == [(job.id, job.entry) for job in lost]
    assert [job.fence for job in back] == [2, 2]
    assert q.finish(lost[0].completed()) == [S.STALE]
    assert q.finish(*[job.completed() for job in [known, *back]]) == [S.OK] * 3
    assert q.job("2")["attemptsMade"] == "0"
    assert "stalledCount" not in q.job("2")


def test_reattach_ignores_jobs_of_other_consumers(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one("py-2")
    assert reattach_jobs(q) == []
    assert q.finish(job.completed()) == [S.OK]


def test_reattach_respects_want(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}") for _ in range(3)])
    q.fetch(3)
    assert [job.id for job in reattach_jobs(q, want=2)] == ["1", "2"]


def test_reattach_acknowledges_jobs_that_cannot_run(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}") for _ in range(4)])
    jobs = q.fetch(4)
    q.redis("DEL", "job:1")
    q.redis("HSET", "job:2", "state", "completed")
    q.redis("HSET", "job:3", "revoked", "1")
    q.redis("XDEL", "stream", jobs[3].entry)
    reply = q.run(reattach(q.meta, "py-1", [], 100, False, "", []))
    assert reply.jobs == []
    assert reply.cursor == "l:0"  # the lists are next
    reasons = [dropped[2] for dropped in reply.dropped]
    assert reasons == ["the job is gone", "state is completed", "revoked", "a stream entry without a job id"]
    assert q.pending() == []


def test_reattach_is_paged(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}") for _ in range(250)], quiet=True)
    q.fetch(250)
    found, cursor = [], ""
    while True:
        reply = q.run(reattach(q.meta, "py-1", [], 1_000, True, cursor, []))
        found += [job[0] for job in reply.jobs]
        if not (cursor := reply.cursor):
            break
    assert found == [str(i) for i in range(1, 251)]


@pytest.mark.parametrize("lifo", [False, True])
def test_reattach_with_a_full_page_returns_a_cursor(q: OwnQueue, lifo: bool) -> None:
    q.add(*[row("a", "", "{}", lifo=lifo) for _ in range(250)], row("a", "", "{}", lifo=not lifo), quiet=True)
    q.fetch(251)
    q.advance(5)
    found: list[Fetched] = []
    cursor, sizes = "", list[int]()
    while cursor or not sizes:
        entries, ids = [job.entry for job in found], [job.id for job in found]
        reply = q.run(reattach(q.meta, "py-1", entries, 100, True, cursor, ids))
        found += [Fetched(job, reply.now) for job in reply.jobs]
        cursor = reply.cursor
        sizes.append(len(reply.jobs))
    assert sorted(int(job.id) for job in found) == list(range(1, 252))
    assert max(sizes) == 100


def ask_lists(q: OwnQueue, *known_ids: str, want: int = 1_000, consumer: str = "py-1") -> list[Fetched]:
    """Everything that pends for a worker that knows its jobs without entries, too."""
    found: list[Fetched] = []
    cursor = ""
    while True:
        known = [*known_ids, *[job.id for job in found]]
        entries = [job.entry for job in found]
        reply = q.run(reattach(q.meta, consumer, entries, want - len(found), False, cursor, known))
        found += [Fetched(job, reply.now) for job in reply.jobs]
        cursor = reply.cursor
        if not cursor:
            return found


def test_reattach_returns_list_jobs(q: OwnQueue) -> None:
    q.add(row("a", "", "{}"), *[row("a", "", "{}", lifo=i < 2, priority=int(i >= 2)) for i in range(4)])
    known, *lost = q.fetch(4)
    q.add_job(lifo=True)
    others = q.take_one("py-2")
    q.advance(5)
    back = ask_lists(q, known.id)
    assert {job.id for job in back} == {job.id for job in lost}
    assert all(job.fence == 2 for job in back)
    assert q.redis("GET", "list-active") == "5"
    q.advance(LOCK - 1)
    assert set(look(q).recovered) == {known.id, others.id}  # the others' heartbeat is younger
    assert q.finish(lost[0].completed()) == [S.STALE]
    assert q.finish(*[job.completed() for job in back]) == [S.OK] * 3
    assert q.redis("GET", "list-active") == "0"


def test_reattach_of_list_jobs_is_paged(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}", lifo=True) for _ in range(900)], quiet=True)
    theirs = {job.id for i in range(9) for job in q.fetch(50, f"py-{i % 2 + 1}") if i % 2}
    q.fetch(450)
    q.advance(5)
    back = [job.id for job in ask_lists(q)]
    assert len(back) == len(set(back)) == 700
    assert not theirs & set(back)


def test_reattach_skips_list_jobs_that_cannot_run(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}", lifo=True) for _ in range(3)])
    q.fetch(3)
    q.redis("HSET", "job:1", "revoked", "1")
    q.redis("HSET", "job:2", "processedOn", START + 1, "lastActive", START + 1)  # a Node peer has it now
    q.redis("HSET", "job:3", "state", "waiting")
    assert ask_lists(q) == []
    assert (q.state("1"), q.state("2"), q.state("3")) == ("failed", "active", "waiting")
    assert q.redis("GET", "list-active") == "2"


def test_reattach_without_consumer_group(q: OwnQueue) -> None:
    assert reattach_jobs(q) == []
    assert q.key_names() == set()


@pytest.mark.parametrize("lifo", [False, True])
def test_lock_duration_of_each_worker_is_used(q: OwnQueue, lifo: bool) -> None:
    """A worker with a short lock duration does not recover jobs of one with a long duration early, and one with a
    long duration recovers jobs of one with a short duration in time."""

    def recovered(lock: int) -> list[str]:
        reply = q.run(recover_stalled(q.meta, "py-9", 60_000, lock, 5, False, ""))
        assert not reply.cursor
        return list(reply.recovered)

    def let_time_go_by(ms: int) -> None:
        q.advance(ms)
        for entry, consumer in q.pending():
            q.let_idle(entry, ms, consumer)

    q.add_job(lifo=lifo)
    q.add_job(lifo=lifo)
    q.make_group()
    for consumer, lock in (("slow", 30_000), ("quick", 1_000)):
        beat(q, consumer=consumer, info=f'{{"lockDuration": {lock}}}')
    slow, quick = q.take_one("slow"), q.take_one("quick")
    let_time_go_by(5_000)
    assert recovered(1_000) == [quick.id]
    assert q.state(slow.id) == "active"
    assert q.take_one("quick").id == quick.id
    let_time_go_by(2_000)
    assert recovered(30_000) == [quick.id]


def test_stalled_list_jobs_behind_healthy_ones_are_found(q: OwnQueue) -> None:
    """The number of healthy jobs does not matter: their workers may have a longer lock duration."""
    beat(q, consumer="slow", info='{"lockDuration": 60000}')
    for _ in range(250):
        q.add_job(lifo=True)
    q.fetch(250, "slow")
    q.advance(1)
    last = q.add_job(lifo=True)
    q.take_one("py-1")
    q.advance(30_000)
    assert [job_id for reply in looks(q) for job_id in reply.recovered] == [last]
