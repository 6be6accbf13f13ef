"""Test the result sequence: every finish gets one number, whoever wrote it and whatever its clock says."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.inside import clean, results
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


def test_removed_results_are_counted(q: OwnQueue):
    q.run(results.start_sequence(q.meta))
    q.add_job()
    gone = q.take_one()
    q.finish(gone.completed(keep=1))
    kept = [run_one(q) for _ in range(3)]
    q.redis("UNLINK", f"job:{kept[1]}")
    assert read(q) == ([kept[0], kept[2]], 2)


def test_result_of_another_client_is_numbered_before_retention_deletes_it(q: OwnQueue):
    q.run(results.start_sequence(q.meta))
    finish_elsewhere(q, "old", q.now - 5)
    q.add_job()
    ours = q.take_one()
    q.finish(ours.completed(keep=(1, 0)))
    finish_elsewhere(q, "cleaned", q.now - 5, "failed")
    q.run(clean(q.meta, "failed", 0, -1, 10, 10, 0))
    assert jobs(q) == [ours.id, "old", "cleaned"]
    assert read(q) == ([ours.id], 2)


def test_trimmed_entries_are_known_by_their_numbers(q: OwnQueue):
    q.run(results.set_retention(q.meta, 100))
    for n in range(450):
        finish_elsewhere(q, f"j{n:03}", START + n)
    search(q)
    found = q.run(results.range_of(q.meta))
    assert found.last == 450
    assert 251 <= found.first <= 351
    page = q.run(results.page(q.meta, 0, 450, 1_000, BOTH, []))
    assert (page.scanned, page.last) == (450 - found.first + 1, 450)


def test_retention_of_zero_turns_the_sequence_off(q: OwnQueue):
    q.run(results.start_sequence(q.meta))
    job = run_one(q)
    before = q.run(results.range_of(q.meta)).id
    q.run(results.start_sequence(q.meta))
    assert q.run(results.range_of(q.meta)).id == before
    q.run(results.set_retention(q.meta, 0))
    assert "results" not in q.key_names()
    run_one(q)
    q.run(results.start_sequence(q.meta))
    assert q.run(results.range_of(q.meta)).id not in ("", before)
    # The number that the job had in the earlier sequence is not valid in this one.
    assert search(q) == 2
    assert job in jobs(q)


def test_range_shows_that_the_server_lost_numbers(q: OwnQueue):
    q.run(results.start_sequence(q.meta))
    ids = [run_one(q) for _ in range(3)]
    found = q.run(results.range_of(q.meta, start=2, most=5))
    assert (found.start_job, found.stop, found.stop_job) == (ids[1], 3, ids[2])
    assert q.run(results.range_of(q.meta, start=1, most=1)).stop_job == ids[1]
    assert q.run(results.range_of(q.meta, start=1, target=2)).stop == 2
    q.redis("UNLINK", "results")
    later = [run_one(q) for _ in range(3)]
    assert q.run(results.range_of(q.meta, start=2)).start_job == later[1]


def test_since_returns_the_number_before_a_time(q: OwnQueue):
    q.run(results.start_sequence(q.meta))
    for at in range(10):
        finish_elsewhere(q, f"j{at}", START + at)
        search(q)
    assert q.run(results.since(q.meta, START + 4, 0, 100)) == (4, 1)
    assert q.run(results.since(q.meta, START + 4, 0, 2)) == (2, 0)
    assert q.run(results.since(q.meta, START + 99, 0, 100)) == (10, 1)


def test_foreign_key_undoes_no_result(q: OwnQueue):
    q.run(results.start_sequence(q.meta))
    q.redis("SET", "results", "junk")
    job = run_one(q)
    assert q.redis("HGET", f"job:{job}", "state") == "completed"
    with pytest.raises(Exception, match="WRONGTYPE"):
        search(q)
    q.redis("UNLINK", "results")
    assert search(q) == 1
    assert jobs(q) == [job]


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


def test_expired_job_is_numbered(q: OwnQueue):
    q.run(results.start_sequence(q.meta))
    job = q.add_job(ttl=10)
    q.advance(1_000)
    assert q.fetch() == []
    assert numbered(q) == [(1, job, "f")]
