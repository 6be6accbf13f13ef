"""Test suspects: jobs lost together are retried in shrinking groups, and only a job lost alone counts as stalled."""

import math

import pytest

from tests.inside import working
from tests.lua.check_support import check
from tests.lua.own_support import Fetched, OwnQueue

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


def is_clean(q: OwnQueue):
    found = check(q, looks=1)
    assert not found.findings, str(found)


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
