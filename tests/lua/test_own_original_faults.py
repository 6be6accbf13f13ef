"""Test faults of the original that no other test covers; the list is in unit/test_original_faults.py."""

from typing import Any

import pytest

from tests.inside import remove, row, update_job_progress
from tests.lua.own_support import START, Fetched, OwnQueue

LOCK = 30_000


def grouped(concurrency: int = 1, rate: tuple[int, int] = (0, 0), **options: Any) -> list[object]:
    return row("a", "{}", "{}", ordering=["k", concurrency, *rate, 0, 0, 0], **options)


def exchange(q: OwnQueue, want: int, *finished: Any) -> list[Fetched]:
    reply = q.exchange(want, finished)
    return [Fetched(job, reply.now) for job in reply.jobs]


def test_priority_jobs_respect_group_rate_window(q: OwnQueue):
    """W9: jobs fetched from the priority list skipped the rate window."""
    q.add(*(grouped(10, (2, 1_000), priority=1 + n % 2) for n in range(4)))
    jobs = exchange(q, 10)
    assert [job.id for job in jobs] == ["1", "2"]
    assert exchange(q, 10, *(job.completed() for job in jobs)) == []
    q.advance(1_000)
    assert [job.id for job in exchange(q, 10)] == ["3", "4"]


def test_first_turn_starts_jobs_parked_before_it(q: OwnQueue):
    """W100: arrival 2, 3, 1 with two slots; the original ran 1 alone."""
    q.add(grouped(2, delay=50), grouped(2), grouped(2))
    assert exchange(q, 10) == []
    assert [q.state(job_id) for job_id in "123"] == ["delayed", "group-waiting", "group-waiting"]
    q.advance(50)
    assert [job.id for job in exchange(q, 10)] == ["1", "2"]
    assert q.redis("HGET", "group:k", "active") == "2"


def test_entry_never_activated_frees_no_slot(q: OwnQueue):
    """W8: its recovery released a slot that another job of the group holds."""
    q.add(grouped(), grouped())
    (first,) = exchange(q, 1)
    (entry,) = q.read_as("py-2")
    q.let_idle(entry, LOCK)
    q.recover_stalled(0)
    assert q.redis("HMGET", "group:k", "active", "maxConcurrency") == ["1", "1"]
    assert q.state("2") != "failed"
    assert exchange(q, 5) == []
    assert [job.id for job in exchange(q, 5, first.completed())] == ["2"]


@pytest.mark.parametrize("how", ["completed", "removed", "stalled", "handed back"])
def test_the_count_of_active_list_jobs_is_never_negative(q: OwnQueue, how: str):
    """W77: the counter does not go below zero if another client has lowered it."""
    q.add_job(lifo=True)
    job = q.take_one()
    q.redis("SET", "list-active", "0")
    if how == "completed":
        q.finish(job.completed())
    elif how == "handed back":
        q.finish(job.released())
    elif how == "removed":
        q.run(remove(q.meta, job.id))
    else:
        q.advance(LOCK)
        assert q.recover_stalled().recovered == ["1"]
    assert int(q.redis("GET", "list-active") or 0) == 0


def test_lock_key_next_to_job_does_not_block_recovery(q: OwnQueue):
    """W55: `job:<id>:usage-lock` is no hash, and its pattern is that of jobs."""
    q.add_job(lifo=True)
    q.take_one()
    q.redis("SET", "job:1:usage-lock", "token")
    q.redis("SET", "job:2:usage-lock", "token")
    q.advance(LOCK)
    assert q.recover_stalled().recovered == ["1"]
    assert q.job("1")["timestamp"] == str(START)


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


def test_progress_alone_does_not_fill_the_events(q: OwnQueue):
    """W74: progress events were not bounded."""
    (job,) = q.add(row("a", "{}", "{}"))
    for number in range(1_500):
        q.run(update_job_progress(q.meta, job[0], str(number)))
    assert 1_000 <= q.redis("XLEN", "events") <= 1_200
