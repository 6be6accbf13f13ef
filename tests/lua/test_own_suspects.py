"""Test suspects: jobs lost together are retried in shrinking groups, and only a job lost alone counts as stalled."""

import math

import pytest

from tests.inside import administration, working
from tests.lua.check_support import check
from tests.lua.own_support import NODE_CONSUMER, Fetched, OwnQueue

LOCK = 30_000
MINUTE = 60_000
FREE = (0, 0, 0)


def register(q: OwnQueue, consumer: str = "py-1"):
    q.run(working.heartbeat(q.meta, consumer, "{}", 86_400_000, []))


def fetch(q: OwnQueue, want: int, held: working.Held | None = FREE, consumer: str = "py-1") -> list[Fetched]:
    register(q, consumer)
    reply = q.exchange(want, consumer=consumer, held=held)
    return [Fetched(job, reply.now) for job in reply.jobs]


def die(q: OwnQueue, jobs: list[Fetched], consumer: str = "py-1", max_stalled: int = 1) -> working.RecoverStalledReply:
    """The process of `consumer` dies with these jobs, and recovery looks after its locks have run out."""
    for job in jobs:
        if job.entry:
            q.let_idle(job.entry, LOCK, consumer)
    q.advance(LOCK)
    q.redis("UNLINK", f"w:{consumer}")
    recovered, failed, cursor = list[str](), list[str](), ""
    while True:
        reply = q.recover_stalled(max_stalled, hold=1, cursor=cursor)
        recovered += reply.recovered
        failed += reply.failed
        if not reply.cursor:
            return working.RecoverStalledReply(recovered, failed, "", 1)
        cursor = reply.cursor


def suspects(q: OwnQueue, count: int, consumer: str = "py-1") -> list[str]:
    """Add this many jobs and let them die together."""
    ids = [q.add_job() for _ in range(count)]
    assert die(q, fetch(q, count, FREE, consumer), consumer).recovered == ids
    return ids


def limits(q: OwnQueue) -> dict[str, int]:
    flat = q.redis("ZRANGE", "suspects", 0, -1, "WITHSCORES")
    return {member: int(score) for member, score in zip(flat[::2], flat[1::2], strict=True)}


def is_clean(q: OwnQueue):
    found = check(q, looks=1)
    assert not found.findings, str(found)


def test_jobs_recovered_by_several_calls_count_as_one_group(q: OwnQueue):
    """101 jobs are one more than a call recovers: the last one did not die alone."""
    ids = [q.add_job() for _ in range(101)]
    assert sorted(die(q, fetch(q, 101)).recovered) == sorted(ids)
    assert limits(q) == dict.fromkeys(ids, 50)


def test_a_worker_runs_half_as_many_suspects_beside_other_jobs(q: OwnQueue):
    ids = suspects(q, 8)
    others = [q.add_job() for _ in range(20)]
    first = fetch(q, 10)
    assert [job.id in ids for job in first] == [True] * 4 + [False] * 6
    assert first[0].fields["failedReason"] is False
    assert first[0].fields["suspectLimit"] == "4"
    # Three of the four are still at work: there is room for one.
    assert [job.id in ids for job in fetch(q, 2, (9, 3, 4))] == [True, False]
    assert [job.id in ids for job in fetch(q, 2, (10, 4, 4))] == [False, False]
    # Another worker has its own limit; a call without `held` fetches no suspects.
    assert [job.id in ids for job in fetch(q, 2, None, "py-2")] == [False, False]
    assert [job.id in ids for job in fetch(q, 5, FREE, "py-2")] == [True] * 3 + [False] * 2
    assert len(others) == 20
    is_clean(q)


def test_suspect_with_smaller_limit_is_not_skipped(q: OwnQueue):
    suspects(q, 8)
    dead = fetch(q, 4)
    die(q, dead)
    assert sorted(limits(q).values()) == [2, 2, 2, 2, 4, 4, 4, 4]
    assert fetch(q, 4, (3, 3, 4), "py-2") == []  # the next one has a limit of 2
    assert len(fetch(q, 4, (0, 0, 0), "py-2")) == 2
    is_clean(q)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 100])
@pytest.mark.parametrize("max_stalled", [0, 1, 2])
def test_the_bound_on_the_deaths_of_a_poison_job(q: OwnQueue, size: int, max_stalled: int):
    ids = [q.add_job() for _ in range(size)]
    poison, deaths, completed = ids[size // 2], 0, set[str]()
    for _ in range(1_000):
        fetched = fetch(q, size)
        if not fetched:
            break
        if poison in [job.id for job in fetched]:
            deaths += 1
            reply = die(q, fetched, max_stalled=max_stalled)
            assert set(reply.failed) <= {poison}
        else:
            q.exchange(0, [job.completed() for job in fetched])
            completed |= {job.id for job in fetched}
        q.advance(2 * MINUTE)
    assert completed == set(ids) - {poison}
    assert q.state(poison) == "failed"
    assert deaths <= math.floor(math.log2(size)) + 1 + max_stalled
    assert q.redis("ZCARD", "suspects") == 0
    is_clean(q)


def test_the_last_suspect_runs_alone_for_a_minute(q: OwnQueue):
    alone, other = suspects(q, 2)
    q.run(administration.remove(q.meta, other))
    q.add_job()
    assert [job.id for job in fetch(q, 10)] == [alone]
    assert fetch(q, 9, (1, 1, 1)) == []
    assert [job.id for job in fetch(q, 9, FREE, "py-2")] == ["3"]  # others continue
    q.advance(MINUTE)
    q.add_job()
    assert [job.id for job in fetch(q, 9, (1, 1, 1))] == ["4"]


def test_a_worker_is_emptied_for_the_last_suspect(q: OwnQueue):
    busy = [q.add_job() for _ in range(2)]
    at_work = fetch(q, 2, FREE, "py-2")
    assert [job.id for job in at_work] == busy
    ids = suspects(q, 2)
    q.add_job()
    assert fetch(q, 5, (2, 0, 0), "py-2") == []  # it finishes its jobs
    assert [job.id for job in fetch(q, 5, (0, 0, 0), "py-3")] == ["5"]  # one worker at a time
    q.exchange(0, [job.completed() for job in at_work], consumer="py-2")
    assert [job.id for job in fetch(q, 5, FREE, "py-2")] == [ids[0]]


def test_a_suspect_runs_beside_long_jobs_when_no_worker_is_emptied_in_time(q: OwnQueue):
    q.add_job()
    fetch(q, 1)
    ids = suspects(q, 2, "py-2")
    assert fetch(q, 5, (1, 0, 0)) == []
    q.add_job()
    assert fetch(q, 5, (1, 0, 0)) == []
    q.advance(MINUTE)
    fetched = fetch(q, 5, (1, 0, 0))
    assert [job.id for job in fetched] == [ids[0], "4"]
    # A death there is charged to it, as it was the only suspect, and to no other.
    die(q, fetched)
    assert [q.job(job.id).get("stalledCount") for job in fetched] == ["1", None]


def test_a_dead_host_is_replaced(q: OwnQueue):
    suspects(q, 2)
    dead = fetch(q, 1)
    assert q.job(dead[0].id)["suspectLimit"] == "1"
    die(q, dead)
    register(q)  # its registration may outlive it
    assert q.job(dead[0].id)["stalledCount"] == "1"
    assert len(fetch(q, 1, FREE, "py-2")) == 1


def test_beside_node_workers_suspects_stay_in_the_stream(q: OwnQueue):
    q.add_job()
    q.read_as(NODE_CONSUMER)
    q.redis("SET", f"w:{NODE_CONSUMER}", "{}")
    ids = [q.add_job() for _ in range(4)]
    die(q, fetch(q, 4))
    assert limits(q) == {}
    assert [job.id for job in fetch(q, 4)] == ids
    assert q.job(ids[0])["suspectLimit"] == "2"


# -- the place among all others ----------------------------------------------------------------------------


def test_check_repairs_suspects(q: OwnQueue):
    suspects(q, 2)
    q.redis("ZADD", "suspects", 2, "404")
    found = check(q, looks=1)
    assert [finding.subject for finding in found.findings] == ["404"]
