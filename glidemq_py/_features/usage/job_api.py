"""Reporting the usage of a job: tokens and costs, for example of a language model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._core.calls.administration import registry_add
from glidemq_py._core.checks import check_bool, check_text
from glidemq_py._core.keys import usage_registry_key
from glidemq_py._features.budgets.options import amounts_text, check_amount, check_amounts, number_text
from glidemq_py._features.usage import calls
from glidemq_py._features.usage.calls import JobUsage
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._job.contents import JobContents

_NAME_CHARS: Final = 256


async def report_usage(
    self: JobContents[Any, Any, Any],
    *,
    model: str | None = None,
    provider: str | None = None,
    tokens: Mapping[str, float] | None = None,
    costs: Mapping[str, float] | None = None,
    total_tokens: float | None = None,
    total_cost: float | None = None,
    cost_unit: str | None = None,
    latency: float | timedelta | None = None,
    cached: bool | None = None,
) -> JobUsage:
    """Report the usage of this job so far. A report replaces the previous one: report totals, not increments.

    The report is stored with the job and added to the totals of the minute (`Queue.get_usage_summary`); the event
    ``usage`` is emitted. When the attempt ends, it counts towards the ``token_limiter`` of the worker and the
    budget of the flow. Numbers are finite, from 0 to 2**53.

    Args:
        model: name of the model, at most 256 characters.
        provider: provider of the model, at most 256 characters.
        tokens: tokens by category, such as ``{"input": 812, "output": 64}``; at most 64 categories.
        costs: costs by category; at most 64 categories.
        total_tokens: the sum of ``tokens`` by default.
        total_cost: the sum of ``costs`` by default.
        cost_unit: such as "USD".
        latency: response time of the model, ms or timedelta.
        cached: True if the response came from a cache.

    Returns:
        The usage as stored.

    Raises:
        GlideMQValidationError: an argument is invalid, or no argument was given.
        JobNotFoundError: the job does not exist any more.
        StaleAttemptError: the job is locked by another worker now.
    """
    usage = _checked(model, provider, tokens, costs, total_tokens, total_cost, cost_unit, latency, cached)
    link = self._link
    registry = usage_registry_key(link.keys.prefix)
    if not link.has_usage:
        # Register before the report: a queue without usage in the registry is harmless, a missing one is not.
        await link.transport.call(registry_add(registry, (link.keys.name,)))
        link.has_usage = True
    row = _row(usage)
    status, first = await link.call(calls.report_usage, self._stored_id, row, self._token)
    self._check_status(status)
    if first:
        # Register again once per minute: another client may have obliterated the queue.
        await link.transport.call(registry_add(registry, (link.keys.name,)))
    self._usage = usage
    return usage


def _checked(
    model: object, provider: object, tokens: object, costs: object, total_tokens: object, total_cost: object,
    cost_unit: object, latency: object, cached: object,
) -> JobUsage:  # fmt: skip
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


def _row(usage: JobUsage) -> calls.UsageRow:
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
    return calls.UsageRow(
        fields=fields, tokens=usage.tokens, costs=usage.costs, total_tokens=usage.total_tokens,
        total_cost=usage.total_cost, model=usage.model or "", unit=usage.cost_unit or "",
        event=json.dumps(event, "usage"),
    )  # fmt: skip


def tokens_used(job: JobContents[Any, Any, Any]) -> int:
    """Return the tokens that a token limiter counts: the greater of `Job.report_tokens` and `Job.report_usage`."""
    attempt, usage = job._attempt, job._usage
    reported = 0 if attempt is None else attempt.tokens
    return reported if usage is None else max(reported, math.ceil(usage.total_tokens))
