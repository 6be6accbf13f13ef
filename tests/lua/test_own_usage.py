"""Test usage reports (stored, counted per minute, replaced by the next report) and budgets in exchange."""

from typing import Any

import pytest

from glidemq_py import Budget
from glidemq_py._features.usage import _checked, _row
from tests.inside import AttemptStatus as S
from tests.inside import (
    BudgetCharge,
    ExchangeReply,
    charge_budget,
    check_budget,
    create_budget,
    drain,
    exchange,
    remove,
    report_usage,
)
from tests.lua.own_support import START, Fetched, OwnQueue

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


def test_deleted_root_deletes_its_budget(q: OwnQueue):
    for delete in (lambda job_id: remove(q.meta, job_id), lambda _: drain(q.meta, True, "", 100, 0)):
        job_id = q.add_job()
        q.run(create_budget(q.meta, job_id, Budget(max_total_tokens=1).to_fields()))
        q.run(delete(job_id))
        assert q.redis("EXISTS", f"job:{job_id}", q.key(f"budget:{job_id}")) == 0


# -- budgets -----------------------------------------------------------------------------------------------


def budgeted(q: OwnQueue, flow: str, name: str = "task", key: str | None = None) -> str:
    job_id = q.put_job(str(q.redis("INCR", "id")), name=name, budgetKey=key or q.key(f"budget:{flow}"))
    q.push_entry(job_id, name)
    return job_id


def report_result(q: OwnQueue, charges: list[BudgetCharge], *rows: Any, want: int = 0) -> ExchangeReply:
    reply = q.run(exchange(q.meta, "py-1", want, rows, False, False, charges=charges))
    assert isinstance(reply, ExchangeReply)
    return reply


def create(q: OwnQueue, flow: str, **limits: Any) -> str:
    return str(q.run(create_budget(q.meta, flow, Budget(**limits).to_fields())))


def fetch_all(q: OwnQueue, want: int = 10) -> tuple[list[Fetched], Any]:
    reply = q.exchange(want)
    return [Fetched(job, reply.now) for job in reply.jobs], reply.budgets


def test_usage_is_charged_once_and_bars_next_jobs(q: OwnQueue):
    key = create(q, "1", max_total_tokens=100, token_weights={"output": 2}, on_exceeded="pause")
    ids = [budgeted(q, "1") for _ in range(4)]
    fetched, decisions = fetch_all(q, 2)
    assert decisions == [{job_id: [key, ""] for job_id in ids[:2]}, []]
    usage: Any = ({"input": 10, "output": 50}, {}, 60, 0)
    row = fetched[0].completed()
    reply = report_result(q, [(1, key, usage)], row, want=1)
    assert reply.budgets == [{ids[2]: [key, "pause"]}, [1]]
    fields = q.resp.hash(key)
    assert (fields["usedTokens"], fields["usedTokens:output"], fields["exceeded"]) == ("110", "50", "1")
    # The reply was lost: reported again, it is not counted again.
    assert report_result(q, [(1, key, usage)], row).budgets is None
    assert q.resp.hash(key)["usedTokens"] == "110"
    # The usage of a failed attempt counts; the limit is exceeded only once.
    assert report_result(q, [(1, key, usage)], fetched[1].failed(limit=3)).budgets is None
    assert q.resp.hash(key)["usedTokens"] == "220"
    events = [dict(zip(e[::2], e[1::2], strict=True)) for _, e in q.redis("XRANGE", "events", "-", "+")]
    assert [(e["jobId"], e["flowId"]) for e in events if e["event"] == "budget-exceeded"] == [(ids[0], "1")]


@pytest.mark.parametrize(
    ("limits", "usage", "passes"),
    [
        ({"max_total_tokens": 60}, ({"a": 60}, {}, 60, 0), False),  # exceeded means more
        ({"max_total_tokens": 60}, ({}, {}, 61, 0), True),
        ({"max_tokens": {"a": 5}}, ({"a": 6}, {}, 6, 0), True),
        ({"max_tokens": {"b": 5}}, ({"a": 6}, {}, 6, 0), False),
        ({"max_total_cost": 0.5}, ({}, {"x": 0.6}, 0, 0.6), True),
        ({"max_costs": {"x": 0.5}}, ({}, {"x": 0.6}, 0, 0.6), True),
        ({"max_total_tokens": 60, "token_weights": {"a": 0}}, ({"a": 70}, {}, 70, 0), True),
    ],
)
def test_limits(q: OwnQueue, limits: Any, usage: Any, passes: bool):
    key = create(q, "1", **limits)
    budgeted(q, "1")
    (job,), _ = fetch_all(q)
    reply = report_result(q, [(1, key, usage)], job.completed())
    assert (q.resp.hash(key)["exceeded"] == "1") is passes
    assert (reply.budgets == [False, [1]]) is passes


def test_the_budget_ends_a_week_after_its_root(q: OwnQueue):
    root = budgeted(q, "1")
    key = create(q, root, max_total_tokens=1)
    (job,), _ = fetch_all(q)
    report_result(q, [(1, key, False)], job.failed(limit=2))
    assert q.resp.execute("TTL", key) == -1
    (job,), _ = fetch_all(q)
    report_result(q, [(1, key, False)], job.completed())
    assert 604_700 < q.resp.execute("TTL", key) <= 604_800


def test_a_charge_counts_once_for_its_mark(q: OwnQueue):
    key = create(q, "9", max_total_tokens=10)
    charge: Any = ({"a": 8}, {}, 8, 0)
    assert [q.run(charge_budget(q.meta, "9", mark, "5", charge)) for mark in ("x:5:1", "x:5:1", "x:5:2")] == [
        False, False, True,
    ]  # fmt: skip
    assert q.resp.hash(key)["usedTokens"] == "16"
    assert not q.run(charge_budget(q.meta, "none", "x:5:1", "5", charge))
    assert q.redis("EXISTS", "budget:none") == 0


def test_repeated_create_keeps_the_use_and_another_flow_begins_anew(q: OwnQueue):
    create(q, "7", max_total_tokens=1_000, max_costs={"über": 1})
    q.redis("HSET", "budget:7", "usedTokens", "12", "usedTokens:input", "12", "exceeded", "1")
    create(q, "7", max_total_tokens=1_000, max_costs={"über": 1})
    assert q.redis("HGET", "budget:7", "usedTokens") == "12"
    q.redis("EXPIRE", "budget:7", 60)  # its root has ended
    create(q, "7", max_total_cost=1)
    assert q.resp.hash(q.key("budget:7")) == {
        "usedTokens": "0", "usedCost": "0", "exceeded": "0", "onExceeded": "fail", "maxTotalCost": "1",
    }  # fmt: skip
    assert q.redis("TTL", "budget:7") == -1


def test_check_budget_verdicts(q: OwnQueue):
    def verdict() -> str:
        return str(q.run(check_budget(q.meta, "7")))

    assert verdict() == ""
    create(q, "7", max_total_cost=1, on_exceeded="pause")
    assert verdict() == ""
    q.redis("HSET", "budget:7", "exceeded", "1")
    assert verdict() == "pause"
    q.redis("HSET", "budget:7", "onExceeded", "fail")
    assert verdict() == "fail"
