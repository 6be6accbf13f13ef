"""Functions of the features: random histories, counted commands, and loops over pages; most cases are transcripts."""

import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from glidemq_py._features.usage import _row, checked_usage
from glidemq_py.records import TimelineEntry
from glidemq_py.testing import RespClient
from tests.inside import Call, administration, pack, results, row, unpack, usage, working
from tests.inside import calls as flows
from tests.inside import timeline as timelines
from tests.lua.check_support import check
from tests.lua.own_support import PLAIN_LENGTH, START, Fetched, OwnQueue
from tests.wire_library.support import WireQueue


def add_keys(q: OwnQueue, *keys: str) -> list[str]:
    return [str(job_id) for job_id in q.add(*(row("task", "{}", "{}", fair_key=key) for key in keys))]


def keys_of(q: OwnQueue, jobs: list[Fetched]) -> list[str]:
    return [q.job(job.id)["fairKey"] for job in jobs]


def commands(q: OwnQueue) -> int:
    """The number of commands that the server has run for functions."""
    return q.calls() - q.calls("fcall", "info", "ping", "hello", "set", "client|setinfo")


def test_a_page_of_the_ring_is_followed_by_the_next(q: OwnQueue):
    keys = [f"key-{number:03}" for number in range(250)]
    add_keys(q, *keys, *keys)
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
            add_keys(q, *names[at : at + 250] * waiting)
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
    (job_id,) = add_keys(q, "a")
    q.redis(
        "HSET", f"job:{job_id}", field, value, *(["fence", "1"] if field in ("stalledCount", "attemptsMade") else [])
    )
    job = q.take_one()
    assert len(job.given) > PLAIN_LENGTH
    assert job.fields.get(field, value) == value


def waiting(q: OwnQueue, *ids: str, children: int = 2, at: int | None = None):
    """Parents that wait for children that have failed without telling them."""
    for parent in ids:
        q.put_job(parent, state="waiting-children")
        q.redis("ZADD", "waiting-children", q.now if at is None else at, parent)
        members = [f"{parent}-{i}" for i in range(children)]
        for child in members:
            q.put_job(child, state="failed", failedReason="no", opts='{"onFailure":"ignore"}')
        q.redis("SADD", f"deps:{parent}", *(q.key(child) for child in members))


def all_watched(q: OwnQueue, age: int = 1_000, pages: int = 100) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for _ in range(pages):
        reply = q.run(flows.watch_children(q.meta, age, 500, age, 500))
        for parent, members in reply.rows:
            assert not found.setdefault(parent, set()) & set(members) or len(members) > 100
            found[parent] |= set(members)
        if not reply.more:
            return found
    raise AssertionError("it does not come to an end")


def test_all_long_waiting_parents_are_checked(q: OwnQueue):
    ids = [f"p{i}" for i in range(130)]
    waiting(q, *ids, at=q.now - 5_000)  # all in one millisecond
    waiting(q, "young")
    found = all_watched(q)
    assert set(found) == set(ids)
    assert all(len(members) == 2 for members in found.values())
    # It pauses, then starts again.
    assert q.run(flows.watch_children(q.meta, 1_000, 500, 1_000, 500)) == ([], 0, 0, 0)
    q.advance(500)
    assert set(all_watched(q)) == set(ids)


def test_parent_with_many_children_is_checked_in_pages(q: OwnQueue):
    waiting(q, "before", "p", children=1_000, at=1)
    first = q.run(flows.watch_children(q.meta, 1_000, 500, 1_000, 500))
    assert first.more
    assert sum(len(members) for _, members in first.rows) < 400
    found = all_watched(q)
    assert len(found["p"]) == 1_000


def test_watch_continues_after_cursor_parent_is_deleted(q: OwnQueue):
    waiting(q, *(f"p{i:03}" for i in range(60)), children=10, at=1)
    seen = {parent for parent, _ in q.run(flows.watch_children(q.meta, 1_000, 500, 1_000, 500)).rows}
    last = max(seen)
    q.redis("ZREM", "waiting-children", last)
    assert seen | set(all_watched(q)) == {f"p{i:03}" for i in range(60)}


def add_rows(q: OwnQueue, *rows: Any) -> list[Any]:
    return q.run(Call("add", q.meta, (pack((rows, False)),), unpack))[1]


def member_of(key: str, concurrency: int = 1, *, rate: tuple[int, int] = (0, 0), bucket: tuple[int, int] = (0, 0),
           cost: int = 0, name: str = "a") -> list[Any]:  # fmt: skip
    ordering = [key, concurrency, *rate, *bucket, cost]
    return [name, "null", "{}", "", False, 0, False, 0, 0, False, ordering]


def test_sequences_of_a_bulk_have_no_gaps(q: OwnQueue):
    """A call counts them itself: rejected rows, and groups in any state before it, change nothing."""
    add_rows(q, member_of("old"), member_of("lost"), member_of("unusable"))
    q.resp.execute("DEL", q.key("group:lost"))
    q.redis("HSET", "ordering", "unusable", "?")
    q.redis("HSET", "group:limited", "maxConcurrency", "3")
    q.redis("HSETNX", "ordering", "limited", "0")
    q.redis("HSET", "group:bucket", "maxConcurrency", "1", "nextSeq", "1", "tbCapacity", "5")
    keys = ["old", "new", "lost", "unusable", "limited", "bucket"]
    rows = [member_of(key, 0, cost=cost) for _ in range(3) for key in keys for cost in (0, 9 * (key == "bucket"))]
    found = add_rows(q, *rows)
    assert sum(not isinstance(result, str) for result in found) == 3  # beyond the bucket
    added = (
        found + add_rows(q, *[member_of(key, 0) for key in keys]) + [add_rows(q, member_of(key, 0))[0] for key in keys]
    )
    by_key: dict[str, list[int]] = {}
    for job_id in added:
        if isinstance(job_id, str):
            by_key.setdefault(q.job(job_id)["groupKey"], []).append(int(q.job(job_id)["orderingSeq"]))
    first = dict.fromkeys(keys, 1) | {"old": 2, "lost": 2}
    assert by_key == {key: list(range(first[key], first[key] + len(by_key[key]))) for key in keys}
    for key in keys:
        assert q.redis("HGET", "ordering", key) == str(by_key[key][-1])
        assert q.redis("HMGET", f"group:{key}", "maxConcurrency", "nextSeq") == ["3" if key == "limited" else "1", "1"]


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


def timeline(q: OwnQueue, job_id: str = "1") -> list[TimelineEntry]:
    return timelines.read_timeline(q.job(job_id).get("timeline", ""), int(q.job(job_id).get("timestamp", 0)))


def turn_on(q: OwnQueue, sample: int = 1_000_000, entries: int = 50):
    q.run(administration.set_settings(q.meta, timeline=f"{sample}|{entries}"))


def test_sampled(q: OwnQueue):
    turn_on(q, sample=300_000)
    for _ in range(300):
        q.add_job()
    while jobs := q.fetch(100):
        q.finish(*(job.completed() for job in jobs))
    lengths = [len(timeline(q, str(number))) for number in range(1, 301)]
    assert set(lengths) == {0, 3}
    assert 50 < lengths.count(3) < 130


LUA = Path(__file__).parents[2] / "lua"
UNRECORDED = {
    # A message has a state per subscription, and no timeline.
    "features/broadcast",
    # Records of writes, not of jobs.
    "features/staged_writes",
    # A restored job has the timeline of the backup.
    "features/backup",
}


def test_every_change_of_state_is_recorded():
    changes = [
        path for folder in ("core", "features") for path in sorted((LUA / folder).rglob("*.lua"))
        if re.search(r"(?:'HSET', |G\.set\()[^\n]*'state', ", path.read_text())
        and "/".join(path.relative_to(LUA).parts[:2]) not in UNRECORDED
    ]  # fmt: skip
    assert len(changes) > 12
    assert [
        path.name for path in changes if "timeline" not in path.read_text() and "G.note_" not in path.read_text()
    ] == []


THIS_MINUTE = START - START % 60_000


def report(
    q: OwnQueue, job_id: str, token: tuple[int, int] = (0, 0), **given: Any
) -> tuple[working.AttemptStatus, bool]:
    names = ("model", "provider", "tokens", "costs", "total_tokens", "total_cost", "cost_unit", "latency", "cached")
    status: tuple[working.AttemptStatus, bool] = q.run(
        usage.send_usage(q.meta, job_id, token[0], token[1], *_row(checked_usage(*(given.get(name) for name in names))))
    )
    return status


def bucket(q: OwnQueue, minute: int = THIS_MINUTE) -> dict[str, str]:
    return dict(q.resp.hash(q.key(f"usage:{minute}")))


def test_repeated_report_replaces_earlier_one(q: OwnQueue):
    first, second = q.add_job(), q.add_job()
    report(q, first, model="a", tokens={"input": 10, "output": 1}, cost_unit="USD", cached=True)
    assert report(q, second, model="a", tokens={"input": 5}) == (working.AttemptStatus.OK, False)
    q.advance(60_000)
    assert report(q, first, model="b", tokens={"input": 20}) == (working.AttemptStatus.OK, True)
    assert {name: float(text) for name, text in bucket(q).items() if name != "costUnit"} == {
        "jobCount": 1, "totalTokens": 5, "models:a": 1, "tokens:input": 5, "tokens:output": 0,
    }  # fmt: skip
    later = bucket(q, THIS_MINUTE + 60_000)
    assert (later["jobCount"], later["totalTokens"], later["models:b"]) == ("1", "20", "1")
    # Nothing of the earlier report is left in the record.
    assert not {"usage:costUnit", "usage:cached"} & q.job(first).keys()
    # A minute that nothing is counted in any more goes.
    report(q, second, model="a", tokens={"input": 5})
    assert bucket(q) == {}


def test_stale_reports_are_rejected(q: OwnQueue):
    q.add_job()
    job = q.take_one()
    assert report(q, job.id, (job.fence, job.processed_on), tokens={"a": 1})[0] is working.AttemptStatus.OK
    assert report(q, job.id, (job.fence + 1, job.processed_on), tokens={"a": 2})[0] is working.AttemptStatus.STALE
    assert report(q, "none", tokens={"a": 2})[0] is working.AttemptStatus.GONE
    assert q.redis("EXISTS", "job:none") == 0  # a write must not recreate a removed job
    assert bucket(q)["totalTokens"] == "1"


def test_a_foreign_key_in_the_way_leaves_the_record_as_it_was(q: OwnQueue):
    job_id = q.add_job()
    q.redis("SET", f"usage:{THIS_MINUTE}", "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        report(q, job_id, tokens={"a": 1})
    assert "usage:tokens" not in q.job(job_id)
    q.redis("DEL", f"usage:{THIS_MINUTE}")


@pytest.fixture(name="own")
def own_fixture(core_resp: RespClient, wire: WireQueue) -> OwnQueue:
    """Our variant on the queue of `wire`."""
    return OwnQueue(core_resp, wire.name)


def wait(q: OwnQueue, name: str = "glidemq_py:wake:test:1", want: int = 1) -> working.ExchangeReply:
    # In a cluster the server does not know the subscribers of other nodes: no channel is skipped.
    channel = working.WakeChannel(name, True)
    reply: working.ExchangeReply = q.run(working.exchange(q.meta, "py-1", want, (), False, False, channel=channel))
    return reply


def channels(q: OwnQueue) -> list[str]:
    return list(q.redis("ZRANGE", "wake-channels", 0, -1))


def test_pushes_of_the_wire_library_wake_too(wire: WireQueue, own: OwnQueue):
    wait(own)
    wire.add()
    assert channels(own) == []
