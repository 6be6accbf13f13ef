"""Test groups and limits in our own library: order per key, slots, rate windows, token buckets, global limits."""

from typing import Any

from tests.inside import Call, pack, unpack
from tests.lua.own_support import OwnQueue


def add(q: OwnQueue, *rows: Any) -> list[Any]:
    return q.run(Call("add", q.meta, (pack((rows, False)),), unpack))[1]


def member(key: str, concurrency: int = 1, *, rate: tuple[int, int] = (0, 0), bucket: tuple[int, int] = (0, 0),
           cost: int = 0, name: str = "a") -> list[Any]:  # fmt: skip
    ordering = [key, concurrency, *rate, *bucket, cost]
    return [name, "null", "{}", "", False, 0, False, 0, 0, False, ordering]


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
