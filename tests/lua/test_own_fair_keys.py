"""Fair keys in the calls of a worker: the turns within one call, limits that it reaches, and the number of commands."""

import pytest

from tests.inside import row
from tests.lua.own_support import PLAIN_LENGTH, Fetched, OwnQueue

RUNNING = "fair-running"


def add(q: OwnQueue, *keys: str) -> list[str]:
    return [str(job_id) for job_id in q.add(*(row("task", "{}", "{}", fair_key=key) for key in keys))]


def keys_of(q: OwnQueue, jobs: list[Fetched]) -> list[str]:
    return [q.job(job.id)["fairKey"] for job in jobs]


def commands(q: OwnQueue) -> int:
    """The number of commands that the server has run for functions."""
    return q.calls() - q.calls("fcall", "info", "ping", "hello", "set", "client|setinfo")


def test_keys_of_a_bulk_join_in_order_beside_blocked_ones(q: OwnQueue):
    """The first key is served first. Keys that have jobs keep their turn, and blocked ones stay blocked."""
    add(q, *"zzyx")
    assert q.redis("ZRANGE", "fair", 0, 0) == ["z"]
    q.redis("HSET", "fair-limits", "z", "1|1|0|0|0|0")
    assert keys_of(q, q.fetch(9)) == list("zxy")
    add(q, *"zyxw")
    assert q.redis("ZRANGE", "fair-blocked", 0, -1) == ["z"]
    assert sorted(q.redis("ZRANGE", "fair", 0, -1)) == list("wxy")
    assert sorted(keys_of(q, q.fetch(9))) == list("wxy")


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


def test_a_job_without_other_options_is_fetched_and_completed_like_a_plain_one(q: OwnQueue):
    (job_id,) = add(q, "a")
    job = q.take_one()
    assert job.given == [job_id, "", 1, "task", "{}", "{}", q.job(job_id)["timestamp"]]
    assert q.redis("HGET", f"job:{job_id}", "takenBy") == "py-1"
    assert q.finish(job.completed('"done"')) == [0]
    assert (q.state(job_id), q.job(job_id)["returnvalue"]) == ("completed", '"done"')
    assert q.event_names(job_id) == ["added", "completed"]
    assert {RUNNING, "fair-active", "list-active-ids", "list-heartbeats"} & q.key_names() == set()


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


@pytest.mark.parametrize("field", ["revoked", "expireAt"])
def test_a_job_that_must_not_run_is_dropped(q: OwnQueue, field: str):
    (job_id,) = add(q, "a")
    q.redis("HSET", f"job:{job_id}", field, "1")
    assert q.exchange(1).jobs == []
    assert q.state(job_id) == "failed"


def test_a_bulk_counts_its_jobs_once_and_exactly(q: OwnQueue):
    """Also if a row of the bulk replaces the only job of its key, which a row before it has added."""
    results = q.add(
        row("task", "1", "{}", fair_key="a"),
        row("task", "2", "{}", fair_key="b", deduplication=["mail", 60_000, "simple", False, False, True]),
        row("task", "3", "{}", fair_key="b", deduplication=["mail", 60_000, "simple", False, False, True]),
        row("task", "4", "{}", fair_key="b"), row("task", "5", "{}", job_id="mine", fair_key="a"),
        row("task", "6", "{}", job_id="mine", fair_key="a"),
    )  # fmt: skip
    assert (results[2][0], results[5]) == ("replaced", ["duplicate", "mine"])
    jobs = q.fetch(10)
    waiting = q.redis("HGET", "fair-state", "waiting")
    assert (sorted(keys_of(q, jobs)), waiting) == (list("aabb"), "0")
    assert q.redis("EXISTS", "fair") == q.redis("EXISTS", "fair-keys") == 0


def test_a_bulk_that_fails_half_way_has_counted_what_it_added(q: OwnQueue):
    q.redis("SET", "fairq:broken", "foreign")
    with pytest.raises(Exception, match="WRONGTYPE"):
        add(q, "a", "a", "broken", "a")
    assert q.redis("HGET", "fair-state", "waiting") == "2"
    assert keys_of(q, q.fetch(5)) == ["a", "a"]


def test_a_call_writes_at_most_as_many_wake_markers_as_are_kept(q: OwnQueue):
    add(q, *(f"key-{number}" for number in range(200)))
    assert q.redis("XLEN", "wake") == 64
