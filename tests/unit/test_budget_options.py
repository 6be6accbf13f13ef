"""`Budget` validates its arguments."""

from typing import Any

import pytest

from glidemq_py import Budget, GlideMQValidationError, UnknownOptionError
from glidemq_py._features.budgets import parse_budget


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({}, "budget"),
        ({"cost_unit": "USD"}, "budget"),
        ({"max_tokens": {}}, "budget"),
        ({"max_total_tokens": 0}, "budget.max_total_tokens"),
        ({"max_total_tokens": True}, "budget.max_total_tokens"),
        ({"max_total_cost": float("nan")}, "budget.max_total_cost"),
        ({"max_tokens": {"input": -1}}, "budget.max_tokens.input"),
        ({"max_tokens": {"": 1}}, "budget.max_tokens category"),
        ({"max_costs": {str(i): 1 for i in range(65)}}, "budget.max_costs"),
        ({"max_costs": 5}, "budget.max_costs"),
        ({"max_total_cost": 1, "token_weights": {"input": 2}}, "budget.token_weights"),
        ({"max_total_tokens": 1, "on_exceeded": "stop"}, "budget.on_exceeded"),
        ("all", "budget"),
    ],
)
def test_invalid_options_are_rejected(given: Any, option: str):
    with pytest.raises(GlideMQValidationError) as raised:
        parse_budget(given)
    assert raised.value.option == option


def test_misuse_is_rejected():
    with pytest.raises(UnknownOptionError):
        parse_budget({"max_total_token": 1})


def test_a_mapping_is_as_good():
    assert parse_budget({"max_total_tokens": 5, "on_exceeded": "pause"}) == Budget(
        max_total_tokens=5, on_exceeded="pause"
    )
    budget = Budget(max_total_cost=1)
    assert parse_budget(budget) is budget
