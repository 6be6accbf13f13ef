"""Budgets of flows: limits of the usage of all jobs of a flow (``lua/features/usage``)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final, Literal, TypedDict, cast

from glidemq_py._core.checks import OptionValue, check_choice, check_text, option, parse_nested
from glidemq_py.errors import GlideMQValidationError

BudgetAction = Literal["fail", "pause"]

MAX_CATEGORIES: Final = 64
"""Most categories of tokens, or of costs, of one job or budget: each is a hash field."""
MAX_CATEGORY_CHARS: Final = 64
MAX_AMOUNT: Final = 2.0**53
"""Sums of whole numbers are exact on the server up to this number."""

_OPTION: Final = "budget"
_CAPS: Final = ("max_total_tokens", "max_tokens", "max_total_cost", "max_costs")


def check_amount(option: str, value: object) -> float:
    """Return a finite number from 0 to 2**53; otherwise raise GlideMQValidationError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise GlideMQValidationError(option, value, f"must be a number, not {type(value).__name__}")
    if not math.isfinite(value) or not 0 <= value <= MAX_AMOUNT:
        raise GlideMQValidationError(option, value, "must be a finite number from 0 to 2**53")
    return value


def check_amounts(option: str, value: object) -> dict[str, float]:
    """Return a checked copy of amounts by category; otherwise raise GlideMQValidationError."""
    if not isinstance(value, Mapping):
        raise GlideMQValidationError(option, value, f"must be a mapping of numbers, not {type(value).__name__}")
    given = cast("Mapping[object, object]", value)
    if len(given) > MAX_CATEGORIES:
        raise GlideMQValidationError(option, f"{len(given)} categories", f"must have at most {MAX_CATEGORIES}")
    amounts: dict[str, float] = {}
    for category, amount in given.items():
        name = check_text(f"{option} category", category, maximum=MAX_CATEGORY_CHARS)
        amounts[name] = check_amount(f"{option}.{name}", amount)
    return amounts


def _limit(option: str, value: object) -> float:
    limit = check_amount(option, value)
    if limit == 0:
        raise GlideMQValidationError(option, value, "must be > 0")
    return limit


def _weights(option: str, value: object) -> dict[str, float] | None:
    return check_amounts(option, value) or None


def _limits(option: str, value: object) -> dict[str, float] | None:
    limits = check_amounts(option, value)
    for category, limit in limits.items():
        _limit(f"{option}.{category}", limit)
    return limits or None


def number_text(number: float) -> str:
    """Format a number as JavaScript does: whole numbers without a fraction."""
    return str(int(number)) if number == int(number) else repr(float(number))


def amounts_text(amounts: Mapping[str, float]) -> str:
    """Format amounts by category as JSON."""
    return "{" + ",".join(f"{json.dumps(name)}:{number_text(amount)}" for name, amount in amounts.items()) + "}"


class BudgetDict(TypedDict, total=False):
    """`Budget` written as a mapping."""

    max_total_tokens: float
    max_tokens: Mapping[str, float]
    token_weights: Mapping[str, float]
    max_total_cost: float
    max_costs: Mapping[str, float]
    cost_unit: str
    on_exceeded: BudgetAction


class Budget(OptionValue, kw_only=True):
    """Limits on the total usage of the jobs of a flow, as reported with `Job.report_usage`. At least one is required.

    Usage is charged when an attempt ends, so active jobs may exceed a limit. After that no job of the flow starts.
    Numbers are finite and at most 2**53; at most 64 categories.

    Args:
        max_total_tokens: limit on the weighted tokens of all categories; > 0.
        max_tokens: limits on unweighted tokens by category (``{"input": 1_000_000}``); each > 0.
        token_weights: weight of a token by category in the total; >= 0, 1 by default. Requires ``max_total_tokens``.
        max_total_cost: limit on the cost of all categories, in ``cost_unit``; > 0.
        max_costs: limits on costs by category; each > 0.
        cost_unit: such as "USD"; informational, at most 32 characters.
        on_exceeded: what happens to jobs that would start after a limit is exceeded. "fail" (the default) fails their
            attempt with `BudgetExceededError`; "pause" delays them by 24 hours, then checks the budget again.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    max_total_tokens: float | None = option(_limit, default=None, encode=number_text)
    max_tokens: Mapping[str, float] | None = option(_limits, default=None, encode=amounts_text)
    token_weights: Mapping[str, float] | None = option(_weights, default=None, encode=amounts_text)
    max_total_cost: float | None = option(_limit, default=None, encode=number_text)
    max_costs: Mapping[str, float] | None = option(_limits, default=None, encode=amounts_text)
    cost_unit: str | None = option(check_text, default=None, maximum=32)
    on_exceeded: BudgetAction = option(check_choice, default="fail", choices=BudgetAction)

    def _check_given(self) -> None:
        if all(getattr(self, name) is None for name in _CAPS):
            raise GlideMQValidationError("Budget", {}, f"requires at least one limit: {', '.join(_CAPS)}")
        if self.token_weights is not None and self.max_total_tokens is None:
            raise GlideMQValidationError("token_weights", self.token_weights, "requires 'max_total_tokens'")

    def to_fields(self) -> list[str]:
        """Return the field names and values of the budget hash, flat."""
        return [text for field in self.to_wire().items() for text in field]


def parse_budget(value: object, option: str = _OPTION) -> Budget:
    """Return a valid `Budget`.

    Raises:
        GlideMQValidationError: the value is invalid; the error names the option and the field.
    """
    return parse_nested(option, value, Budget)
