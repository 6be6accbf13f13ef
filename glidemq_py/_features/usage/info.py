"""What jobs have used: of one job, of a flow, of queues over a time. Values, and the reading of stored ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

__all__ = ["BUCKET_MS", "USAGE_FIELDS", "FlowBudget", "FlowUsage", "JobUsage", "QueueUsage", "UsageSummary",
           "add_amounts", "read_amounts", "read_budget", "read_usage"]  # fmt: skip

BUCKET_MS: Final = 60_000
"""Length of the buckets that usage is counted in."""
USAGE_FIELDS: Final = ("model", "provider", "tokens", "costs", "totalTokens", "totalCost", "costUnit", "latencyMs",
                       "cached")  # fmt: skip
"""Fields of a job's record that hold its usage, without their ``usage:``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """What a job has used, by its last `Job.report_usage`.

    Attributes:
        model, provider: whose service it was.
        tokens, costs: by category, such as ``{"input": 812, "output": 64}``.
        total_tokens, total_cost: given, or the sums of the categories.
        cost_unit: such as "USD".
        latency: of the service, ms.
        cached: whether the answer came from a cache.
    """

    model: str | None = None
    provider: str | None = None
    tokens: Mapping[str, float] = field(default_factory=dict[str, float])
    total_tokens: float = 0
    costs: Mapping[str, float] = field(default_factory=dict[str, float])
    total_cost: float = 0
    cost_unit: str | None = None
    latency: float | None = None
    cached: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSums:
    """What several jobs have used together.

    Attributes:
        job_count: jobs that reported anything.
        tokens, costs: by category. total_tokens, total_cost: their totals. cost_unit: of the last one that named one.
        models: how many jobs used each.
    """

    job_count: int = 0
    tokens: Mapping[str, float] = field(default_factory=dict[str, float])
    total_tokens: float = 0
    costs: Mapping[str, float] = field(default_factory=dict[str, float])
    total_cost: float = 0
    cost_unit: str | None = None
    models: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowUsage(UsageSums):
    """What a job and its children have used together; attributes are those of `UsageSums`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUsage(UsageSums):
    """What the jobs of one queue have used in the time of a `UsageSummary`; attributes are those of `UsageSums`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSummary(UsageSums):
    """What the jobs of queues have used in a time, by when they reported it.

    Attributes:
        start_time, end_time: epoch ms; whole minutes are counted, those of both included.
        bucket_size: in which it is counted, ms.
        queues: whose jobs; those in which nothing was reported too.
        job_count, tokens, total_tokens, costs, total_cost, models: of all of them together.
        cost_unit: the one reported last; sums of several units mean nothing.
        per_queue: the same for each queue in which something was reported.
    """

    start_time: int
    end_time: int
    bucket_size: int = BUCKET_MS
    queues: tuple[str, ...] = ()
    per_queue: Mapping[str, QueueUsage] = field(default_factory=dict[str, QueueUsage])


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowBudget:
    """The budget of a flow, and what is used of it.

    Attributes:
        max_total_tokens, max_tokens, token_weights, max_total_cost, max_costs, cost_unit, on_exceeded: see `Budget`.
        used_tokens, used_cost: counted so far; tokens by their weights.
        used_tokens_by_category, used_costs_by_category: unweighted.
        exceeded: a limit was passed; it stays so.
    """

    max_total_tokens: float | None = None
    max_tokens: Mapping[str, float] = field(default_factory=dict[str, float])
    token_weights: Mapping[str, float] = field(default_factory=dict[str, float])
    max_total_cost: float | None = None
    max_costs: Mapping[str, float] = field(default_factory=dict[str, float])
    cost_unit: str | None = None
    on_exceeded: str = "fail"
    used_tokens: float = 0
    used_cost: float = 0
    used_tokens_by_category: Mapping[str, float] = field(default_factory=dict[str, float])
    used_costs_by_category: Mapping[str, float] = field(default_factory=dict[str, float])
    exceeded: bool = False


def add_amounts(sums: dict[str, float], amounts: Mapping[str, float]) -> None:
    """Add numbers by category to sums."""
    for name, amount in amounts.items():
        sums[name] = sums.get(name, 0) + amount


def _number(text: object) -> float | None:
    try:
        number = float(cast("str", text))
    except (TypeError, ValueError):
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number == int(number) else number


def read_amounts(text: str | None) -> dict[str, float]:
    """Numbers by category of a stored JSON object; what is none is left out."""
    try:
        stored: Any = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(stored, dict):
        return {}
    read = {str(name): _number(value) for name, value in cast("dict[object, object]", stored).items()}
    return {name: number for name, number in read.items() if number is not None}


def read_usage(fields: Mapping[str, str] | None) -> JobUsage | None:
    """Usage of a job's record (field names without ``usage:``); None where it has none. Raises nothing."""
    if not fields:
        return None
    get = fields.get
    cached = get("cached")
    return JobUsage(
        model=get("model"), provider=get("provider"), tokens=read_amounts(get("tokens")),
        total_tokens=_number(get("totalTokens")) or 0, costs=read_amounts(get("costs")),
        total_cost=_number(get("totalCost")) or 0, cost_unit=get("costUnit"), latency=_number(get("latencyMs")),
        cached=None if cached is None else cached == "1",
    )  # fmt: skip


def read_budget(fields: Mapping[str, str]) -> FlowBudget:
    """A budget's hash (data-model.md section 11). Raises nothing."""
    get = fields.get

    def used(prefix: str) -> dict[str, float]:
        return {name[len(prefix) :]: _number(text) or 0 for name, text in fields.items() if name.startswith(prefix)}

    return FlowBudget(
        max_total_tokens=_number(get("maxTotalTokens")), max_tokens=read_amounts(get("maxTokens")),
        token_weights=read_amounts(get("tokenWeights")), max_total_cost=_number(get("maxTotalCost")),
        max_costs=read_amounts(get("maxCosts")), cost_unit=get("costUnit"), on_exceeded=get("onExceeded") or "fail",
        used_tokens=_number(get("usedTokens")) or 0, used_cost=_number(get("usedCost")) or 0,
        used_tokens_by_category=used("usedTokens:"), used_costs_by_category=used("usedCost:"),
        exceeded=get("exceeded") == "1",
    )  # fmt: skip
