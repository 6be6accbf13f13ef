"""Test heartbeat, recover_stalled, reattach and leave."""

from collections.abc import Iterator

import pytest

from tests.inside import AttemptStatus as S
from tests.inside import RecoverStalledReply, heartbeat, leave, reattach, remove, row
from tests.lua.own_support import NODE_CONSUMER, START, Fetched, OwnQueue

LOCK = 30_000


def looks(q: OwnQueue) -> Iterator[RecoverStalledReply]:
    """One look at everything, page by page."""
    cursor = ""
    while True:
        reply = q.recover_stalled(cursor=cursor)
        yield reply
        if not (cursor := reply.cursor):
            return


def beat(q: OwnQueue, *jobs: Fetched, consumer: str = "py-1", info: str = "", ttl: int = 60_000) -> list[int]:
    return list(q.run(heartbeat(q.meta, consumer, info, ttl, [job.token for job in jobs])).statuses)


# -- heartbeat ---------------------------------------------------------------------------------------------


def test_a_heartbeat_keeps_both_clocks_fresh(q: OwnQueue):
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
    assert q.recover_stalled().recovered == []


def test_a_heartbeat_takes_an_entry_back_from_a_peers_claim(q: OwnQueue):
    q.add_job()
    job = q.take_one()
    q.let_idle(job.entry, 0, NODE_CONSUMER)
    assert beat(q, job) == [S.OK]
    assert q.pending() == [(job.entry, "py-1")]


def test_heartbeat_returns_job_status(q: OwnQueue):
    q.add(*[row("a", "", "{}") for _ in range(4)])
    ours, gone, stale, revoked = q.fetch(4)
    q.run(remove(q.meta, gone.id))
    q.finish(stale.released())
    q.redis("HSET", f"job:{revoked.id}", "revoked", "1")
    before = q.job(stale.id)
    assert beat(q, ours, gone, stale, revoked) == [S.OK, S.GONE, S.STALE, S.REVOKED]
    assert not q.redis("EXISTS", f"job:{gone.id}")
    assert q.job(stale.id) == before


def test_a_heartbeat_without_a_group(q: OwnQueue):
    q.add_job()
    job = q.take_one()
    q.redis("DEL", "stream")
    assert beat(q, job) == [S.OK]


def test_old_registrations_are_removed(q: OwnQueue):
    beat(q, consumer="old", info="{}")
    q.advance(86_400_001)
    beat(q, consumer="new", info="{}")
    assert q.redis("ZRANGE", "workers", 0, -1) == ["new"]


# -- leaving -----------------------------------------------------------------------------------------------


def test_leave_keeps_consumer_with_pending_jobs(q: OwnQueue):
    q.add_job()
    job = q.take_one()
    assert q.run(leave(q.meta, "py-1")) is False
    assert q.pending() == [(job.entry, "py-1")]


# -- reclaim: ours -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "idle", "recovered"), [(1_000, 2_000, True), (3_600_000, 90_000, False), (5, 40_000, True)]
)
@pytest.mark.parametrize("lifo", [False, True])
def test_lock_duration_of_job_has_precedence(
    q: OwnQueue, own: int, idle: int, recovered: bool, lifo: bool
):  # fmt: skip
    q.add_job(opts=f'{{"lockDuration":{own}}}', lifo=lifo)
    job = q.take_one()
    q.advance(idle)
    if job.entry:
        q.let_idle(job.entry, idle)
    assert bool(q.recover_stalled().recovered) is recovered


def test_entries_of_ended_and_missing_jobs_are_acknowledged(q: OwnQueue):
    q.add(*[row("a", "", "{}") for _ in range(4)])
    q.redis("XADD", "stream", "*", "foreign", "entry")
    entries = q.read_as("py-1", 5)
    q.redis("HSET", "job:1", "state", "completed")
    q.redis("HSET", "job:2", "state", "failed")
    q.redis("DEL", "job:3")
    q.redis("XDEL", "stream", entries[3])
    for entry in (*entries[:3], entries[4]):
        q.let_idle(entry, LOCK)
    assert q.recover_stalled() == ([], [], "", 1, 0, 0)
    assert q.entries() == []
    assert {key for key in q.key_names() if key.startswith("job:")} == {"job:1", "job:2", "job:4"}


def test_entry_read_but_never_activated_is_returned_without_a_stall(q: OwnQueue):
    q.add_job()
    (entry,) = q.read_as("py-1")
    q.let_idle(entry, LOCK)
    assert q.recover_stalled().recovered == ["1"]
    assert "stalledCount" not in q.job("1")
    assert q.take_one().id == "1"


@pytest.mark.parametrize("junk", ["x", "1.5", ""])
def test_invalid_record_does_not_block_recovery(q: OwnQueue, junk: str):
    q.add(row("a", "", "{}"), row("b", "", "{}"))
    jobs = [q.take_one(), q.take_one("py-2")]
    q.redis("HSET", "job:1", "stalledCount", junk, "fence", junk, "opts", '{"lockDuration":"x"', "priority", junk)
    for job, consumer in zip(jobs, ("py-1", "py-2"), strict=True):
        q.let_idle(job.entry, LOCK, consumer)
    assert q.recover_stalled().recovered == ["1", "2"]
    assert q.job("1")["stalledCount"] == "1"
    assert len(q.fetch(2)) == 2


def test_recovery_reads_one_page_per_call(q: OwnQueue):
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


def test_only_one_holder_recovers(q: OwnQueue):
    assert q.recover_stalled(holder="a").held == 1
    assert q.recover_stalled(holder="b").held == 0
    assert q.recover_stalled(holder="a").held == 1
    q.redis("PEXPIRE", "lock:recover", 0)
    assert q.recover_stalled(holder="b").held == 1


# -- reclaim: lists ----------------------------------------------------------------------------------------


def test_list_entries_of_ended_jobs_are_removed(q: OwnQueue):
    q.redis("ZADD", "list-heartbeats", START, "gone", START, q.put_job("7", state="completed"))
    q.advance(LOCK)
    assert q.recover_stalled() == ([], [], "", 1, 0, 0)
    assert not q.redis("EXISTS", "list-heartbeats")


def test_list_job_fetched_by_node_peer_is_left_to_it(q: OwnQueue):
    q.add_job(lifo=True)
    q.take_one()
    q.advance(LOCK)
    # A Node peer found the stalled job itself and activated it again.
    q.redis("HSET", "job:1", "processedOn", q.now + 3, "lastActive", q.now + 3)
    assert q.recover_stalled() == ([], [], "", 1, 0, 0)
    assert q.state("1") == "active"
    assert not q.redis("EXISTS", "list-heartbeats")


# -- reclaim: Node peers -----------------------------------------------------------------------------------


def test_node_peer_with_unchanged_heartbeat_is_dead(q: OwnQueue):
    q.push_entry(q.put_job("7", state="active", lastActive=5, processedOn=5))  # by its own clock
    (entry,) = q.read_as(NODE_CONSUMER)
    q.let_idle(entry, 10 * LOCK, NODE_CONSUMER)
    assert q.recover_stalled().recovered == []  # the first look
    q.advance(LOCK - 1)
    assert q.recover_stalled().recovered == []
    q.redis("HSET", "job:7", "lastActive", 6)  # a heartbeat
    q.advance(1)
    assert q.recover_stalled().recovered == []
    q.advance(LOCK)
    assert q.recover_stalled().recovered == ["7"]
    assert not q.redis("EXISTS", "stall-watch")


def test_an_entry_that_a_node_peer_read_and_did_not_activate(q: OwnQueue):
    q.push_entry(q.put_job("7"))
    (entry,) = q.read_as(NODE_CONSUMER)
    q.let_idle(entry, LOCK, NODE_CONSUMER)
    assert q.recover_stalled().recovered == []
    q.advance(LOCK)
    assert q.recover_stalled().recovered == ["7"]
    assert "stalledCount" not in q.job("7")


def test_finished_jobs_are_not_watched(q: OwnQueue):
    for i in range(60):
        q.redis("HSET", "stall-watch", f"gone{i}", f"5|{START}")
    q.redis("HSET", "stall-watch", q.put_job("7", state="active"), f"5|{START}")
    for _ in range(40):
        q.recover_stalled()
        if q.redis("HLEN", "stall-watch") == 1:
            break
    assert q.redis("HKEYS", "stall-watch") == ["7"]


# -- regain ------------------------------------------------------------------------------------------------


def test_reattach_acknowledges_jobs_that_cannot_run(q: OwnQueue):
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


@pytest.mark.parametrize("lifo", [False, True])
def test_reattach_with_a_full_page_returns_a_cursor(q: OwnQueue, lifo: bool):
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


def test_reattach_of_list_jobs_is_paged(q: OwnQueue):
    q.add(*[row("a", "", "{}", lifo=True) for _ in range(900)], quiet=True)
    theirs = {job.id for i in range(9) for job in q.fetch(50, f"py-{i % 2 + 1}") if i % 2}
    q.fetch(450)
    q.advance(5)
    back = [job.id for job in ask_lists(q)]
    assert len(back) == len(set(back)) == 700
    assert not theirs & set(back)


def test_reattach_skips_list_jobs_that_cannot_run(q: OwnQueue):
    q.add(*[row("a", "", "{}", lifo=True) for _ in range(3)])
    q.fetch(3)
    q.redis("HSET", "job:1", "revoked", "1")
    q.redis("HSET", "job:2", "processedOn", START + 1, "lastActive", START + 1)  # a Node peer has it now
    q.redis("HSET", "job:3", "state", "waiting")
    assert ask_lists(q) == []
    assert (q.state("1"), q.state("2"), q.state("3")) == ("failed", "active", "waiting")
    assert q.redis("GET", "list-active") == "2"


@pytest.mark.parametrize("lifo", [False, True])
def test_lock_duration_of_each_worker_is_used(q: OwnQueue, lifo: bool):
    """A worker with a short lock duration does not recover jobs of one with a long duration early, and one with a
    long duration recovers jobs of one with a short duration in time."""

    def recovered(lock: int) -> list[str]:
        reply = q.recover_stalled(5, lock=lock)
        assert not reply.cursor
        return list(reply.recovered)

    def let_time_go_by(ms: int):
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


def test_stalled_list_jobs_behind_healthy_ones_are_found(q: OwnQueue):
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


def test_leaving(q: OwnQueue):
    beat(q, info="{}")
    q.exchange(1)
    assert q.run(leave(q.meta, "py-1")) is True
    for group in q.redis_groups("stream"):
        assert dict(zip(group[::2], group[1::2], strict=True))["consumers"] == 0
    assert q.redis("XLEN", "wake") == 1
    assert q.run(leave(q.meta, "py-1")) is True  # a worker that was never registered


def test_a_heartbeat_of_a_list_job(q: OwnQueue):
    q.add_job(lifo=True)
    job = q.take_one()
    q.advance(LOCK)
    assert beat(q, job) == [S.OK]
    assert int(q.redis("ZSCORE", "list-heartbeats", "1")) == START + LOCK
    q.advance(LOCK - 1)
    assert q.recover_stalled().recovered == []
