"""Ranks in the Lua functions: places, repairs, recovery, members left behind by peers, and the feature gate."""

from typing import Any

import pytest

from glidemq_py._features.ranks import count_ranks_page
from tests.inside import FindingKind, administration, row, working
from tests.lua.check_support import assert_repairs, check
from tests.lua.own_support import Fetched, OwnQueue

MINUTE_MS = 60_000


def place_of(rank: int) -> str:
    return "ranked-above" if rank > 0 else "ranked-below"


def ids(q: OwnQueue, want: int = 10) -> list[str]:
    return [fetched.id for fetched in q.fetch(want)]


@pytest.mark.parametrize("rank", [2_048, -1])
def test_delayed_job_waits_where_no_peer_promotes(q: OwnQueue, rank: int):
    job = q.add_job(rank=rank, delay=500)
    assert q.redis("EXISTS", "scheduled") == 0
    assert float(q.redis("ZSCORE", "delayed-own", job)) == q.now + 500
    reply = q.exchange()
    assert (reply.jobs, reply.next_due) == ([], 500)
    q.advance(500)
    fetched = q.take_one()
    assert fetched.id == job
    assert not {"delayed-own", place_of(rank)} & q.key_names()
    assert q.counts() == {**dict.fromkeys(q.counts(), 0), "active": 1}


def add(q: OwnQueue, rank: int, **options: Any) -> str:
    if 0 < rank < 2_048:
        return q.add_job(priority=2_048 - rank, **options)
    return q.add_job(rank=rank, **options) if rank else q.add_job(**options)


@pytest.mark.parametrize("before", [0, 5, 9_000, -9])
@pytest.mark.parametrize("after", [0, 5, 9_000, -9])
def test_ready_job_becomes_a_lifo_job(q: OwnQueue, before: int, after: int):
    first = add(q, after)
    job = add(q, before)
    last = add(q, after)
    call = administration.change_rank(q.meta, job, after, lifo=True)
    assert [q.run(call), q.run(call)] == ["ok", "no_op"]
    assert q.state(job) == ("prioritized" if after else "waiting")
    assert check(q).findings == ()
    q.run(administration.change_rank(q.meta, last, after, lifo=True))
    assert ids(q) == [last, job, first]
    assert q.counts() == {**dict.fromkeys(q.counts(), 0), "active": 3}


@pytest.mark.parametrize("before", [0, 5, 9_000, -9])
@pytest.mark.parametrize("after", [0, 5, 9_000, -9])
def test_delayed_job_becomes_a_lifo_job(q: OwnQueue, before: int, after: int):
    first, late = add(q, after), add(q, before, delay=50)
    assert q.run(administration.change_rank(q.meta, late, after, lifo=True)) == "ok"
    assert q.state(late) == "delayed"
    assert check(q).findings == ()
    q.advance(50)
    q.exchange(0)
    assert ids(q) == [late, first]


def test_jobs_with_an_order_of_their_own_become_no_lifo_jobs(q: OwnQueue):
    (keyed,) = q.add(row("task", "{}", "{}", fair_key="k"))
    (ordered,) = q.add(row("task", "{}", "{}", ordering=["g", 1, 0, 0, 0, 0, 0]))
    for job, reason in ((keyed, "keyed"), (ordered, "ordered")):
        assert q.run(administration.change_rank(q.meta, job, 0, lifo=True)) == reason
        assert q.redis("HGET", f"job:{job}", "lifo") is None
    assert check(q).findings == ()


def test_job_of_a_dead_worker_returns_to_its_rank(q: OwnQueue):
    job, other = q.add_job(rank=9_000), q.add_job(rank=8_000)
    assert ids(q, 1) == [job]
    for _ in range(2):
        q.advance(MINUTE_MS)
        q.recover_stalled(5, lock=1_000)
    assert q.state(job) == "prioritized"
    assert ids(q) == [job, other]


@pytest.mark.parametrize("rank", [9_000, -9_000])
def test_lost_and_misplaced_jobs_are_repaired(q: OwnQueue, rank: int):
    place = place_of(rank)
    ready, late = q.add_job(rank=rank), q.add_job(rank=rank, delay=5_000)
    stack = q.add_job(rank=7, lifo=True, priority=2_041)
    assert check(q).findings == ()
    q.redis("DEL", place)
    q.redis("DEL", "delayed-own")
    q.redis("DEL", "scheduled")
    lost = FindingKind.LOST_JOB
    assert_repairs(q, (lost, ready), (lost, late), (lost, stack))
    q.redis("ZADD", place, -rank, f"1{7:016}:{ready}", -rank, f"1{8:016}:none", -rank, f"1{9:016}:{late}")
    q.redis("ZADD", "delayed-own", q.now, "none")
    assert_repairs(
        q, (FindingKind.TWICE, ready), (FindingKind.DANGLING, "none"), (FindingKind.MISPLACED, late),
        (FindingKind.DANGLING, "none"),
    )  # fmt: skip
    assert q.redis("ZCARD", place) == 1


@pytest.mark.parametrize("rank", [9_000, -9_000])
def test_members_left_by_a_peer_are_dropped(q: OwnQueue, rank: int):
    gone, kept, late = q.add_job(rank=rank), q.add_job(rank=rank), q.add_job(rank=rank, delay=50)
    q.redis("DEL", f"job:{gone}")
    q.redis("DEL", f"job:{late}")
    q.redis("ZADD", place_of(rank), -rank - 1, "of no known form")
    q.advance(50)
    reply = q.exchange(10)
    assert [Fetched(job, q.now).id for job in reply.jobs] == [kept]
    assert not {"ranked-above", "ranked-below", "delayed-own"} & q.key_names()


def test_worker_without_a_free_slot_wakes_another(q: OwnQueue):
    q.add_job()
    running = q.take_one()
    q.add_job(rank=-3)
    before = q.redis("XLEN", "wake")
    q.exchange(0, (running.completed(),))
    assert q.redis("XLEN", "wake") == before + 1


def test_many_ranks_are_counted_in_pages(q: OwnQueue):
    ranks = [*range(5_600, 5_000, -1), *(-n for n in range(1, 100))]
    for rank in ranks:
        q.add_job(rank=rank)
    q.add_job(priority=3)
    counts: list[int] = []
    cursor, pages = "", 0
    while pages == 0 or cursor:
        page = q.run(count_ranks_page(q.meta, cursor))
        counts += page.counts
        cursor, pages = page.cursor, pages + 1
    assert counts[::2] == [*ranks[:600], 2_045, *ranks[600:]]
    assert set(counts[1::2]) == {1}
    assert pages == 3


def test_rank_of_a_leased_job_is_in_the_reply(q: OwnQueue):
    q.add_job(rank=-7)
    leasing = working.Leasing("owner", 1_000, working.Expiry.STALL, ())
    reply = q.run(working.exchange(q.meta, "c", 1, (), False, False, leasing=leasing))
    assert [Fetched(job, q.now).fields["priority"] for job in reply.jobs] == ["r-7"]


def test_reattached_job_keeps_its_rank(q: OwnQueue):
    q.add_job(rank=6_000)
    q.take_one()
    reply = q.run(working.reattach(q.meta, "py-1", (), 5, False, "l:0", ()))
    assert [Fetched(job, q.now).fields["priority"] for job in reply.jobs] == ["r6000"]
