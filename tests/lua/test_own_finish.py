"""Test the report half of exchange: statuses, fencing, retries, releases, retention, metrics."""

import pytest

from glidemq_py.testing import RespError
from tests.inside import row
from tests.lua.own_support import START, OwnQueue


def add_many(q: OwnQueue, count: int):
    q.add(*[row("a", "", "{}") for _ in range(count)], quiet=True)


def test_old_metrics_are_trimmed(q: OwnQueue):
    minute = START - START % 60_000
    day = 86_400_000
    q.redis("HSET", "metrics:completed", f"m:{minute - day - 60_000}:c", 5, f"m:{minute - day - 60_000}:d", 50,
            f"m:{minute - day}:c", 7, "junk", "x")  # fmt: skip
    add_many(q, 2)
    one, two = q.fetch(2)
    q.finish(one.completed())
    q.finish(two.completed())
    assert q.resp.hash(q.key("metrics:completed")) == {f"m:{minute - day}:c": "7", "junk": "x", f"m:{minute}:c": "2"}


def test_unknown_row_kinds(q: OwnQueue):
    add_many(q, 1)
    job = q.take_one()
    with pytest.raises(RespError):
        q.finish(job.completed(), job.released()._replace(kind=99, id="1"))
    assert q.state("1") == "completed"
    assert q.redis("ZCARD", "completed") == 1
