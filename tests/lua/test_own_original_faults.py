"""Test faults of the original that no other test covers; the list is in unit/test_original_faults.py."""

from typing import Any

import pytest

from tests.inside import remove, row
from tests.lua.own_support import Fetched, OwnQueue


def grouped(concurrency: int = 1, rate: tuple[int, int] = (0, 0), **options: Any) -> list[object]:
    return row("a", "{}", "{}", ordering=["k", concurrency, *rate, 0, 0, 0], **options)


def exchange(q: OwnQueue, want: int, *finished: Any) -> list[Fetched]:
    reply = q.exchange(want, finished)
    return [Fetched(job, reply.now) for job in reply.jobs]


@pytest.mark.parametrize("lost", [128, 129, 1_500])
def test_group_continues_after_many_lost_turns(q: OwnQueue, lost: int):
    """W13: after 128 skipped jobs at once it stopped until the next request."""
    q.add(grouped())
    (first,) = exchange(q, 1)
    for _ in range(lost // 100 + 1):
        q.add(*(grouped(delay=90_000) for _ in range(100)))
    gone = lost // 100 * 100 + 100
    q.add(grouped())
    assert exchange(q, 10) == []  # parked: the others have their turn before it
    for number in range(2, gone + 2):
        q.run(remove(q.meta, str(number)))
    ran: list[str] = []
    finished = [first.completed()]
    for _ in range(4):
        jobs = exchange(q, 5, *finished)
        ran += [job.id for job in jobs]
        finished = [job.completed() for job in jobs]
        q.advance(1_000)
    assert ran == [str(gone + 2)]
