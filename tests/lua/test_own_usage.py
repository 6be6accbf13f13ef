"""Test usage reports (stored, counted per minute, replaced by the next report) and budgets in exchange."""

from typing import Any

import pytest

from glidemq_py._features.usage import _checked, _row
from tests.inside import AttemptStatus as S
from tests.inside import (
    report_usage,
)
from tests.lua.own_support import START, OwnQueue

MINUTE = START - START % 60_000


def report(q: OwnQueue, job_id: str, token: tuple[int, int] = (0, 0), **given: Any) -> tuple[S, bool]:
    names = ("model", "provider", "tokens", "costs", "total_tokens", "total_cost", "cost_unit", "latency", "cached")
    status: tuple[S, bool] = q.run(
        report_usage(q.meta, job_id, token[0], token[1], *_row(_checked(*(given.get(name) for name in names))))
    )
    return status


def bucket(q: OwnQueue, minute: int = MINUTE) -> dict[str, str]:
    return dict(q.resp.hash(q.key(f"usage:{minute}")))


def test_repeated_report_replaces_earlier_one(q: OwnQueue):
    first, second = q.add_job(), q.add_job()
    report(q, first, model="a", tokens={"input": 10, "output": 1}, cost_unit="USD", cached=True)
    assert report(q, second, model="a", tokens={"input": 5}) == (S.OK, False)
    q.advance(60_000)
    assert report(q, first, model="b", tokens={"input": 20}) == (S.OK, True)
    assert {name: float(text) for name, text in bucket(q).items() if name != "costUnit"} == {
        "jobCount": 1, "totalTokens": 5, "models:a": 1, "tokens:input": 5, "tokens:output": 0,
    }  # fmt: skip
    later = bucket(q, MINUTE + 60_000)
    assert (later["jobCount"], later["totalTokens"], later["models:b"]) == ("1", "20", "1")
    # Nothing of the earlier report is left in the record.
    assert not {"usage:costUnit", "usage:cached"} & q.job(first).keys()
    # A minute that nothing is counted in any more goes.
    report(q, second, model="a", tokens={"input": 5})
    assert bucket(q) == {}


def test_stale_reports_are_rejected(q: OwnQueue):
    q.add_job()
    job = q.take_one()
    assert report(q, job.id, (job.fence, job.processed_on), tokens={"a": 1})[0] is S.OK
    assert report(q, job.id, (job.fence + 1, job.processed_on), tokens={"a": 2})[0] is S.STALE
    assert report(q, "none", tokens={"a": 2})[0] is S.GONE
    assert q.redis("EXISTS", "job:none") == 0  # a write must not recreate a removed job
    assert bucket(q)["totalTokens"] == "1"


def test_a_foreign_key_in_the_way_leaves_the_record_as_it_was(q: OwnQueue):
    job_id = q.add_job()
    q.redis("SET", f"usage:{MINUTE}", "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        report(q, job_id, tokens={"a": 1})
    assert "usage:tokens" not in q.job(job_id)
    q.redis("DEL", f"usage:{MINUTE}")
