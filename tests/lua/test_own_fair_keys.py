"""Fair keys in the calls of a worker: the turns within one call, limits that it reaches, and the number of commands."""

import pytest

from tests.inside import row
from tests.lua.own_support import PLAIN_LENGTH, Fetched, OwnQueue


def add(q: OwnQueue, *keys: str) -> list[str]:
    return [str(job_id) for job_id in q.add(*(row("task", "{}", "{}", fair_key=key) for key in keys))]


def keys_of(q: OwnQueue, jobs: list[Fetched]) -> list[str]:
    return [q.job(job.id)["fairKey"] for job in jobs]


def commands(q: OwnQueue) -> int:
    """The number of commands that the server has run for functions."""
    return q.calls() - q.calls("fcall", "info", "ping", "hello", "set", "client|setinfo")


def test_a_page_of_the_ring_is_followed_by_the_next(q: OwnQueue):
    keys = [f"key-{number:03}" for number in range(250)]
    add(q, *keys, *keys)
    fetched = keys_of(q, q.fetch(500))
    assert sorted(fetched[:250]) == keys
    assert sorted(fetched[250:]) == keys
    assert q.exchange(1).jobs == []
    assert q.redis("EXISTS", "fair") == q.redis("EXISTS", "fair-keys") == 0


@pytest.mark.parametrize(("waiting", "most"), [(1, 8.5), (6, 7.5)])
def test_commands_per_job_do_not_grow_with_the_number_of_keys(q: OwnQueue, waiting: int, most: float):
    """Of a job's fetch and end, with 100 jobs per call; waiting: jobs per key."""
    counts: list[float] = []
    for keys in (250, 2_000):
        names = [f"key-{number:04}" for number in range(keys)]
        for at in range(0, keys, 250):
            add(q, *names[at : at + 250] * waiting)
        jobs = q.fetch(100)
        before = commands(q)
        jobs = [Fetched(job, q.now) for job in q.exchange(100, [job.completed() for job in jobs]).jobs]
        counts.append((commands(q) - before) / 100)
        q.finish(*(job.completed() for job in jobs))
        q.obliterate(force=True, batch=10_000)
    if not any(counts):
        pytest.skip("the commands were counted by another node, or not at all")
    assert max(counts) < most, counts
    assert max(counts) < 1.1 * min(counts), counts


@pytest.mark.parametrize(("field", "value"), [
    ("parentId", "9"), ("schedulerName", "nightly"), ("progress", "50"), ("stalledCount", "1"),
    ("expireAt", "9999999999999"), ("attemptsMade", "1"), ("priority", "3"),
])  # fmt: skip
def test_a_job_with_another_field_is_read_in_full(q: OwnQueue, field: str, value: str):
    (job_id,) = add(q, "a")
    q.redis(
        "HSET", f"job:{job_id}", field, value, *(["fence", "1"] if field in ("stalledCount", "attemptsMade") else [])
    )
    job = q.take_one()
    assert len(job.given) > PLAIN_LENGTH
    assert job.fields.get(field, value) == value
