"""Test budgets of flows: creation, and the check for jobs in another queue."""

import json

from glidemq_py import Budget
from glidemq_py._features.usage.calls import check_budget, create_budget
from tests.lua.own_support import OwnQueue

BUDGET = Budget(
    max_total_tokens=1000, max_tokens={"input": 500.5}, token_weights={"output": 4}, max_total_cost=2.5,
    max_costs={"über": 1}, cost_unit="USD", on_exceeded="pause",
)  # fmt: skip


def create(q: OwnQueue, budget: Budget = BUDGET, flow: str = "7") -> str:
    return str(q.run(create_budget(q.meta, flow, budget.to_fields())))


def test_budget_hash_matches_data_model(q: OwnQueue) -> None:
    assert create(q) == q.key("budget:7")
    fields = q.resp.hash(q.key("budget:7"))
    read = {name: json.loads(fields.pop(name)) for name in ("maxTokens", "maxCosts", "tokenWeights")}
    assert read == {"maxTokens": {"input": 500.5}, "maxCosts": {"über": 1}, "tokenWeights": {"output": 4}}
    assert fields == {
        "usedTokens": "0", "usedCost": "0", "exceeded": "0", "onExceeded": "pause", "maxTotalTokens": "1000",
        "maxTotalCost": "2.5", "costUnit": "USD",
    }  # fmt: skip
    assert q.redis("TTL", "budget:7") == -1


def test_repeated_create_keeps_usage(q: OwnQueue) -> None:
    create(q)
    q.redis("HSET", "budget:7", "usedTokens", "12")
    create(q)
    assert q.redis("HGET", "budget:7", "usedTokens") == "12"


def test_budget_of_earlier_flow_is_replaced(q: OwnQueue) -> None:
    create(q)
    q.redis("HSET", "budget:7", "usedTokens", "12", "usedTokens:input", "12", "exceeded", "1")
    q.redis("EXPIRE", "budget:7", 60)  # its root has ended
    create(q, Budget(max_total_cost=1))
    assert q.resp.hash(q.key("budget:7")) == {
        "usedTokens": "0", "usedCost": "0", "exceeded": "0", "onExceeded": "fail", "maxTotalCost": "1",
    }  # fmt: skip
    assert q.redis("TTL", "budget:7") == -1


def test_check_budget_verdicts(q: OwnQueue) -> None:
    assert q.run(check_budget(q.meta, "7")) == ""
    create(q)
    assert q.run(check_budget(q.meta, "7")) == ""
    q.redis("HSET", "budget:7", "exceeded", "1")
    assert q.run(check_budget(q.meta, "7")) == "pause"
    q.redis("HSET", "budget:7", "onExceeded", "fail")
    assert q.run(check_budget(q.meta, "7")) == "fail"
