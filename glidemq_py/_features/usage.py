"""Usage that jobs report, tokens and costs: per job, flow, queue and minute (``lua/features/usage``)."""

from __future__ import annotations

import json as plain_json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

from glidemq_py._client.transport import JobTransport
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import Argument, call, unpack
from glidemq_py._core.calls.administration import registry_add
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._core.checks import check_bool, check_text
from glidemq_py._core.keys import usage_registry_key
from glidemq_py._features.budgets import amounts_text, check_amount, check_amounts, number_text
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQValidationError

BUCKET_MS: Final = 60_000
"""Length of a usage bucket: one minute."""
USAGE_FIELDS: Final = ("model", "provider", "tokens", "costs", "totalTokens", "totalCost", "costUnit", "latencyMs",
                       "cached")  # fmt: skip
"""Usage fields of a job hash, without their prefix ``usage:``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """Usage of a job, as of its last `Job.report_usage`.

    Attributes:
        model: name of the model.
        provider: provider of the model.
        tokens: tokens by category, such as ``{"input": 812, "output": 64}``.
        total_tokens: as reported, or the sum of ``tokens``.
        costs: costs by category.
        total_cost: as reported, or the sum of ``costs``.
        cost_unit: such as "USD".
        latency: response time of the model, ms.
        cached: whether the response came from a cache.
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
    """Total usage of several jobs.

    Attributes:
        job_count: number of jobs that reported usage.
        tokens: tokens by category.
        total_tokens: sum of the jobs' total tokens.
        costs: costs by category.
        total_cost: sum of the jobs' total costs.
        cost_unit: the last one reported, or None.
        models: number of jobs per model.
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
    """Total usage of a job and its direct children. The attributes are those of `UsageSums`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUsage(UsageSums):
    """Usage of one queue within the range of a `UsageSummary`. The attributes are those of `UsageSums`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSummary(UsageSums):
    """Total usage of queues over a time range, by the time of the reports.

    The attributes of `UsageSums` are totals over all queues. Totals of different cost units are meaningless.

    Attributes:
        start_time: start of the range, epoch ms; its whole minute is included.
        end_time: end of the range, epoch ms; its whole minute is included.
        bucket_size: length of a bucket, ms.
        queues: names of the queues, those without usage included.
        per_queue: usage of each queue that has any.
    """

    start_time: int
    end_time: int
    bucket_size: int = BUCKET_MS
    queues: tuple[str, ...] = ()
    per_queue: Mapping[str, QueueUsage] = field(default_factory=dict[str, QueueUsage])


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowBudget:
    """The budget of a flow and its usage so far.

    Attributes:
        max_total_tokens: see `Budget`.
        max_tokens: see `Budget`.
        token_weights: see `Budget`.
        max_total_cost: see `Budget`.
        max_costs: see `Budget`.
        cost_unit: see `Budget`.
        on_exceeded: see `Budget`.
        used_tokens: weighted tokens used so far.
        used_cost: total cost so far.
        used_tokens_by_category: tokens used so far by category, unweighted.
        used_costs_by_category: costs so far by category.
        exceeded: True once a limit has been exceeded; it stays True.
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
    """Add amounts to the sums of their categories."""
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
    """Parse a stored JSON object of numbers by category; skip values that are not numbers."""
    try:
        stored: Any = plain_json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(stored, dict):
        return {}
    read = {str(name): _number(value) for name, value in cast("dict[object, object]", stored).items()}
    return {name: number for name, number in read.items() if number is not None}


def read_usage(fields: Mapping[str, str] | None) -> JobUsage | None:
    """Parse the usage fields of a job hash (names without ``usage:``); None if there are none. Never raises."""
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
    """Parse the hash of a budget. Never raises."""
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


@call("create_budget", repeatable=True)
def create_budget(flow_id: str, fields: Sequence[str]) -> str:
    """Create the budget of a flow, before any of its jobs is added.

    Args:
        flow_id: id of the root job.
        fields: result of `Budget.to_fields`.

    Returns:
        The key of the budget, which is the ``budgetKey`` of each job.
    """
    ...


@call("check_budget", repeatable=True)
def check_budget(flow_id: Argument[str]) -> str:
    """Check whether a job of the flow may start; return '' (yes), 'fail' or 'pause'."""
    ...


class MinuteSums(NamedTuple):
    """Reply of `usage_minutes`: totals over minutes."""

    jobs: int
    total_tokens: float
    total_cost: float
    unit: str
    models: dict[str, int]
    tokens: dict[str, float]
    costs: dict[str, float]
    minutes: int
    """Number of minutes read; fewer than requested if they have many names."""


class UsageRow(NamedTuple):
    """Usage that `report_usage` writes: fields of the job hash, and the numbers added to totals."""

    fields: Sequence[str]
    tokens: Mapping[str, float]
    costs: Mapping[str, float]
    total_tokens: float
    total_cost: float
    model: str
    unit: str
    event: str


class Reported(NamedTuple):
    """Reply of `send_usage`."""

    status: AttemptStatus
    is_first: int
    """1 = this is the first report of its minute."""


@call("report_usage", raw=True, repeatable=True)
def send_usage(
    id: str, fence: int, processed_on: int, fields: Sequence[str], tokens: Mapping[str, float],
    costs: Mapping[str, float], total_tokens: float, total_cost: float, model: str, unit: str, event: str,
) -> Reported:  # fmt: skip
    """Store the usage of a job, given its fencing token and the `UsageRow`; it replaces the report before.

    Repeatable: a second run subtracts the amounts that the first one added.
    """
    ...


@call("usages", repeatable=True)
def usages(ids: Sequence[str], fields: Sequence[str]) -> list[list[str | bool] | bool]:
    """Return the usage fields of many jobs; False for a job that has reported nothing."""
    ...


def _summed(reply: bytes) -> MinuteSums:
    jobs, tokens, cost, unit, *by_name, minutes = unpack(reply)
    models, by_token, by_cost = ({} if not flat else dict(zip(flat[::2], flat[1::2], strict=True)) for flat in by_name)
    return MinuteSums(int(jobs), tokens, cost, unit, models, by_token, by_cost, minutes)


@call("usage_minutes", read=_summed, repeatable=True)
def usage_minutes(first: int, minutes: int) -> MinuteSums:
    """Return totals over ``minutes`` minutes; the first one starts at ``first`` (epoch ms)."""
    ...


Charge = tuple[Mapping[str, float], Mapping[str, float], float, float]
"""Tokens and costs by category, total tokens, total cost."""


@call("charge_budget", repeatable=True)
def charge_budget(flow_id: str, mark: str, job: str, usage: Charge) -> bool:
    """Charge the usage of an attempt of another queue, once per ``mark``; return True if it exceeded a limit."""
    ...


_NAME_CHARS: Final = 256


async def store_usage(
    link: QueueLink[JobTransport], job_id: str, token: tuple[int, int], usage: JobUsage
) -> AttemptStatus:
    """Report the usage of a job so far, given the fencing token of its attempt."""
    registered = registry_add(usage_registry_key(link.keys.prefix), (link.keys.name,))
    if not link.has_usage:
        # Register before the report: a queue without usage in the registry is harmless, a missing one is not.
        await link.transport.call(registered)
        link.has_usage = True
    fence, processed_on = token
    status, first = await link.call(send_usage, job_id, fence, processed_on, *_row(usage))
    if first:
        # Register again once per minute: another client may have obliterated the queue.
        await link.transport.call(registered)
    return status


def checked_usage(
    model: object, provider: object, tokens: object, costs: object, total_tokens: object, total_cost: object,
    cost_unit: object, latency: object, cached: object,
) -> JobUsage:  # fmt: skip
    """Return the usage of these values.

    Raises:
        GlideMQValidationError: A value is invalid, or all are None.
    """
    given = (model, provider, tokens, costs, total_tokens, total_cost, cost_unit, latency, cached)
    if all(value is None for value in given):
        raise GlideMQValidationError(
            "usage", {}, "must not be empty; give 'tokens', 'costs', 'model' or another argument"
        )
    if isinstance(latency, timedelta):
        latency = latency / timedelta(milliseconds=1)
    by_token = {} if tokens is None else check_amounts("tokens", tokens)
    by_cost = {} if costs is None else check_amounts("costs", costs)
    return JobUsage(
        model=_text("model", model), provider=_text("provider", provider), tokens=by_token,
        total_tokens=_total("total_tokens", total_tokens, by_token), costs=by_cost,
        total_cost=_total("total_cost", total_cost, by_cost), cost_unit=_text("cost_unit", cost_unit),
        latency=None if latency is None else check_amount("latency", latency),
        cached=None if cached is None else check_bool("cached", cached),
    )  # fmt: skip


def _text(option: str, value: object) -> str | None:
    return None if value is None else check_text(option, value, maximum=_NAME_CHARS)


def _total(option: str, value: object, amounts: Mapping[str, float]) -> float:
    return check_amount(option, sum(amounts.values()) if value is None else value)


def _row(usage: JobUsage) -> UsageRow:
    """Return the fields of the job hash and the event; values that are None are omitted."""
    fields = ["usage:totalTokens", number_text(usage.total_tokens), "usage:totalCost", number_text(usage.total_cost)]
    event: dict[str, Any] = {"totalTokens": usage.total_tokens, "totalCost": usage.total_cost}
    for name, text in (("model", usage.model), ("provider", usage.provider), ("costUnit", usage.cost_unit)):
        if text is not None:
            fields += [f"usage:{name}", text]
            event[name] = text
    for name, amounts in (("tokens", usage.tokens), ("costs", usage.costs)):
        if amounts:
            fields += [f"usage:{name}", amounts_text(amounts)]
            event[name] = amounts
    if usage.latency is not None:
        fields += ["usage:latencyMs", number_text(usage.latency)]
        event["latencyMs"] = usage.latency
    if usage.cached is not None:
        fields += ["usage:cached", "1" if usage.cached else "0"]
        event["cached"] = usage.cached
    return UsageRow(
        fields=fields, tokens=usage.tokens, costs=usage.costs, total_tokens=usage.total_tokens,
        total_cost=usage.total_cost, model=usage.model or "", unit=usage.cost_unit or "",
        event=json.dumps(event, "usage"),
    )  # fmt: skip
