"""drain, clean, requeue_jobs, revoke, change_priority, change_delay, promote, and pages by name and of groups."""

import itertools
from typing import Any

from tests.inside import administration, row
from tests.lua.own_support import START, OwnQueue


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


def test_recovery_trims_metrics(q: OwnQueue):
    """Where peers are always the first of a minute (W71)."""
    minute = START - START % 60_000
    fields = [f"m:{minute - n * 60_000}:c" for n in range(3000)]
    q.redis("HSET", "metrics:completed", *(text for field in fields for text in (field, "1")))
    q.recover_stalled()
    assert q.redis("HLEN", "metrics:completed") == 1441
    q.redis("DEL", "lock:recover")
