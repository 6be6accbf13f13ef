"""Test groups and limits in our own library: order per key, slots, rate windows, token buckets, global limits."""

from typing import Any

import pytest

from glidemq_py.testing import RespError
from tests.inside import Call, administration, pack, row, unpack, working
from tests.inside import limits as limiting
from tests.lua.own_support import Fetched, OwnQueue


def add(q: OwnQueue, *rows: Any) -> list[Any]:
    return q.run(Call("add", q.meta, (pack((rows, False)),), unpack))[1]


def member(key: str, concurrency: int = 1, *, rate: tuple[int, int] = (0, 0), bucket: tuple[int, int] = (0, 0),
           cost: int = 0, name: str = "a") -> list[Any]:  # fmt: skip
    ordering = [key, concurrency, *rate, *bucket, cost]
    return [name, "null", "{}", "", False, 0, False, 0, 0, False, ordering]


def fetch(q: OwnQueue, want: int, *finished: Any, limiter: Any = False) -> tuple[list[Fetched], Any]:
    reply = q.run(working.exchange(q.meta, "py-1", want, finished, False, False, limiter=limiter or None))
    return [Fetched(job, reply.now) for job in reply.jobs], reply


def sequences(q: OwnQueue, added: Any) -> list[int]:
    return [int(q.job(job_id)["orderingSeq"]) for job_id in added if isinstance(job_id, str)]


def test_sequences_of_a_bulk_have_no_gaps(q: OwnQueue):
    """A call counts them itself: rejected rows, and groups in any state before it, change nothing."""
    add(q, member("old"), member("lost"), member("unusable"))
    q.resp.execute("DEL", q.key("group:lost"))
    q.redis("HSET", "ordering", "unusable", "?")
    q.redis("HSET", "group:limited", "maxConcurrency", "3")
    q.redis("HSETNX", "ordering", "limited", "0")
    q.redis("HSET", "group:bucket", "maxConcurrency", "1", "nextSeq", "1", "tbCapacity", "5")
    keys = ["old", "new", "lost", "unusable", "limited", "bucket"]
    rows = [member(key, 0, cost=cost) for _ in range(3) for key in keys for cost in (0, 9 * (key == "bucket"))]
    found = add(q, *rows)
    assert sum(not isinstance(result, str) for result in found) == 3  # beyond the bucket
    added = found + add(q, *[member(key, 0) for key in keys]) + [add(q, member(key, 0))[0] for key in keys]
    by_key: dict[str, list[int]] = {}
    for job_id in added:
        if isinstance(job_id, str):
            by_key.setdefault(q.job(job_id)["groupKey"], []).append(int(q.job(job_id)["orderingSeq"]))
    first = dict.fromkeys(keys, 1) | {"old": 2, "lost": 2}
    assert by_key == {key: list(range(first[key], first[key] + len(by_key[key]))) for key in keys}
    for key in keys:
        assert q.redis("HGET", "ordering", key) == str(by_key[key][-1])
        assert q.redis("HMGET", f"group:{key}", "maxConcurrency", "nextSeq") == ["3" if key == "limited" else "1", "1"]


def test_a_bulk_that_fails_between_keeps_its_sequences(q: OwnQueue):
    q.redis("SET", "group:bad", "x")
    with pytest.raises(RespError, match="WRONGTYPE"):
        add(q, member("a"), member("b"), member("a"), member("bad"), member("a"))
    assert q.redis("HGETALL", "ordering") == ["a", "2", "b", "1"]
    assert sequences(q, add(q, member("a"), member("b"), member("a"))) == [3, 2, 4]


def test_the_last_concurrency_of_a_bulk_is_that_of_the_group(q: OwnQueue):
    for widths, found in (((0, 2, 0, 2), "2"), ((3, 3, 2), "2"), ((0, 0), "2"), ((4, 0, 5), "5")):
        add(q, *[member("k", width) for width in widths])
        assert q.redis("HGET", "group:k", "maxConcurrency") == found


DAY = 86_400_000


def sweep(q: OwnQueue):
    q.recover_stalled(hold=1)


def test_group_unused_for_a_day_is_deleted(q: OwnQueue):
    q.add(*(row("task", "{}", "{}", ordering=[key, 2, 0, 0, 0, 0, 0]) for key in ("idle", "busy", "held", "limited")))
    q.finish(*(job.completed() for job in q.fetch(4)))
    q.run(limiting.limit_group(q.meta, "limited", 5, False, False))
    q.run(limiting.block_group(q.meta, "held", 10 * DAY, False))
    q.add(row("task", "{}", "{}", ordering=["busy", 2, 0, 0, 0, 0, 0], delay=9 * DAY))
    sweep(q)
    q.advance(DAY - 1)
    sweep(q)
    assert q.redis("HLEN", "ordering") == 4
    q.advance(1)
    sweep(q)
    assert sorted(q.redis("HKEYS", "ordering")) == ["busy", "held", "limited"]
    assert not q.redis("EXISTS", "group:idle")
    assert q.add(row("task", "{}", "{}", ordering=["idle", 1, 0, 0, 0, 0, 0]))
    assert q.resp.hash(q.key("group:idle")) == {"maxConcurrency": "1", "nextSeq": "1"}


def test_a_group_that_was_used_meanwhile_is_kept_for_another_day(q: OwnQueue):
    def use():
        q.add(row("task", "{}", "{}", ordering=["k", 1, 0, 0, 0, 0, 0]))
        q.finish(q.take_one().completed())

    use()
    sweep(q)
    q.advance(DAY // 2)
    use()
    q.advance(DAY // 2)
    sweep(q)
    q.advance(DAY // 2)
    sweep(q)
    assert q.redis("EXISTS", "group:k") == 1
    q.advance(DAY)
    sweep(q)
    assert not q.redis("EXISTS", "ordering")


def test_a_failed_job_that_outlived_its_group_is_retried_in_order(q: OwnQueue):
    def add_one() -> str:
        return str(q.add(row("task", "{}", "{}", ordering=["k", 1, 0, 0, 0, 0, 0]))[0])

    for _ in range(3):
        add_one()
    for _ in range(3):
        q.finish(q.take_one().failed())
    for _ in range(2):
        sweep(q)
        q.advance(DAY)
    assert not q.redis("EXISTS", "group:k")
    assert q.run(administration.requeue_job(q.meta, "3")) == "ok"
    assert q.run(administration.requeue_job(q.meta, "2")) == "ok"
    new = add_one()
    ran: list[str] = []
    while fetched := q.fetch(4):
        assert len(fetched) == 1
        ran.append(fetched[0].id)
        q.finish(fetched[0].completed())
    assert sorted(ran) == ["2", "3", new]
    assert q.redis("HGET", "group:k", "active") == "0"


def test_many_groups_are_swept_page_by_page(q: OwnQueue):
    for at in range(0, 1_500, 500):
        q.add(*(row("task", "{}", "{}", ordering=[f"k{at + n}", 1, 0, 0, 0, 0, 0]) for n in range(500)))
    while jobs := q.fetch(500):
        q.finish(*(job.completed(keep=1) for job in jobs))
    for _ in range(20):
        sweep(q)
    q.advance(DAY)
    for _ in range(30):
        sweep(q)
    assert not q.redis("EXISTS", "ordering")
    assert not [key for key in q.key_names() if key.startswith("group:")]


def test_successor_of_expired_job_is_fetched_in_same_call(q: OwnQueue):
    """The worker has a free slot, and an entry pushed after it read the stream would wake up no worker."""
    add(q, *(row("task", "{}", "{}", ttl=10, ordering=["k", 1, 0, 0, 0, 0, 0]) for _ in range(3)))
    last = q.put_job("4", groupKey="k", orderingSeq=4, priority=1)
    q.redis("HSET", "ordering", "k", 4)
    q.redis("LPUSH", "priority", last)
    q.advance(20)
    assert [job.id for job in q.fetch(5)] == [last]
