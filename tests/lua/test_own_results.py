"""Test the result sequence: every finish gets one number, whoever wrote it and whatever its clock says."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.inside import results
from tests.lua.own_support import START, OwnQueue

BOTH = ("completed", "failed")


def numbered(q: OwnQueue) -> list[tuple[int, str, str]]:
    """Number, job and state of every entry of the sequence."""
    entries = q.redis("XRANGE", "results", "-", "+")
    return [(int(entry.partition("-")[2]), flat[1], flat[5]) for entry, flat in entries]


def jobs(q: OwnQueue) -> list[str]:
    return [job for _, job, _ in numbered(q)]


def search(q: OwnQueue, count: int = 100) -> int:
    """Search both indexes once; return how many jobs got a number."""
    cursor, found = "", 0
    for _ in range(10_000):
        reply = q.run(results.find(q.meta, cursor, count))
        found += reply.found
        cursor = reply.cursor
        if not cursor:
            return found
    raise AssertionError("the search does not end")


def read(q: OwnQueue, after: int = 0, states: tuple[str, ...] = BOTH, count: int = 100) -> tuple[list[str], int]:
    """Return the jobs after a number, and how many results were removed."""
    last, found, removed = q.run(results.range_of(q.meta)).last, list[str](), 0
    while after < last:
        page = q.run(results.page(q.meta, after, last, count, states, ["returnvalue"]))
        found += [job for job, _, _ in page.rows]
        removed += page.removed
        after = page.last
    return found, removed


def finish_elsewhere(q: OwnQueue, job: str, at: int, state: str = "completed"):
    """Finish a job as the library of another client does: with its own clock, and without a number."""
    q.redis("ZADD", state, at, job)
    q.redis("HSET", f"job:{job}", "id", job, "state", state, "finishedOn", at, "returnvalue", "1")


def run_one(q: OwnQueue, **how: Any) -> str:
    q.add_job()
    job = q.take_one()
    q.finish(job.failed(**how) if how else job.completed())
    return job.id


@pytest.mark.parametrize("seed", range(6))
def test_every_finish_is_numbered_once_in_random_histories(q: OwnQueue, seed: int):
    """Own and other clients finish and fail with clocks that jump, while readers search in parts of any size."""
    chance = random.Random(seed)
    expected: Counter[str] = Counter()
    times = [START + n for n in range(-3, 4)]
    cursors = ["", ""]
    q.run(results.start_sequence(q.meta))
    for step in range(150):
        kind = chance.randrange(5)
        if kind == 0:
            q.set_time(chance.choice(times))
            expected[run_one(q)] += 1
        elif kind == 1:
            finish_elsewhere(q, f"x{step}", chance.choice(times), chance.choice(BOTH))
            expected[f"x{step}"] += 1
        elif kind == 2:
            q.set_time(chance.choice(times))
            expected[run_one(q, reason="x", limit=0)] += 1
        elif kind == 3:
            reader = chance.randrange(2)
            cursors[reader] = q.run(results.find(q.meta, cursors[reader], chance.randint(1, 5))).cursor
        elif expected and chance.random() < 0.3:
            gone = chance.choice(sorted(expected))
            for index in BOTH:
                q.redis("ZREM", index, gone)
            q.redis("UNLINK", f"job:{gone}")
    present = {job for state in BOTH for job in q.redis("ZRANGE", state, 0, -1)}
    search(q, chance.randint(1, 5))
    found = Counter(jobs(q))
    assert found <= expected
    assert {job: found[job] for job in present} == {job: expected[job] for job in present}
    assert [number for number, _, _ in numbered(q)] == list(range(1, found.total() + 1))
    assert set(read(q)[0]) == present
