"""What a job says of what it has used: tokens and money, of a language model say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._core.calls.control import registry_add
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._core.checks import check_bool, check_text
from glidemq_py._core.keys import usage_registry_key
from glidemq_py._features.budgets.options import amounts_text, check_amount, check_amounts, number_text
from glidemq_py._features.usage import calls
from glidemq_py._features.usage.info import JobUsage
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._job.attempt import Attempt
    from glidemq_py._job.link import QueueLink

__all__ = ["JobUsageReports", "tokens_used"]

_NAME_CHARS: Final = 256


class JobUsageReports:
    """The part of `Job` about usage."""

    id: str
    _link: QueueLink
    _attempt: Attempt | None
    _usage: JobUsage | None = None

    if TYPE_CHECKING:

        @property
        def _token(self) -> tuple[int, int]: ...

        def _refused(self, status: AttemptStatus) -> None: ...

    @property
    def usage(self) -> JobUsage | None:
        """What it has used by the last report: this attempt's in a handler, else as it was when the job was read."""
        return self._usage

    async def report_usage(
        self,
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
        """Say what this job has used so far, in place of what it said before: report sums, not steps.

        It is stored with the job, counted by the minute (`Queue.get_usage_summary`), counted by a worker's
        ``token_limiter`` and by the flow's budget when the attempt ends, and told to listeners (event ``usage``).

        Args:
            model, provider: whose service it was.
            tokens, costs: by category, such as ``{"input": 812, "output": 64}``; at most 64 categories.
            total_tokens, total_cost: the sums of the categories unless given.
            cost_unit: such as "USD".
            latency: of the service, ms or a timedelta.
            cached: whether the answer came from a cache.

        Returns:
            The usage as stored.

        Raises:
            GlideMQValidationError: a value cannot be, or nothing is given.
            JobNotFoundError: the job is gone. StaleAttemptError: another worker has it now.
        """
        usage = _checked(model, provider, tokens, costs, total_tokens, total_cost, cost_unit, latency, cached)
        link = self._link
        registry = usage_registry_key(link.keys.prefix)
        if not link.has_usage:
            # Before there is any usage: a name too many there does no harm, one that is missing would.
            await link.transport.call(registry_add(registry, (link.keys.name,)))
            link.has_usage = True
        row = _row(usage)
        status, first = await link.transport.call(calls.report_usage(link.keys.meta, self.id, row, self._token))
        self._refused(status)
        if first:
            # Once a minute, since somebody else may have obliterated the queue meanwhile.
            await link.transport.call(registry_add(registry, (link.keys.name,)))
        self._usage = usage
        return usage


def _checked(
    model: object, provider: object, tokens: object, costs: object, total_tokens: object, total_cost: object,
    cost_unit: object, latency: object, cached: object,
) -> JobUsage:  # fmt: skip
    given = (model, provider, tokens, costs, total_tokens, total_cost, cost_unit, latency, cached)
    if all(value is None for value in given):
        raise GlideMQValidationError("usage", {}, "says nothing: give tokens, costs, a model or anything else")
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
    """Fields of the record and the event, as data-model.md section 4 has them: only what is known."""
    fields = ["usage:totalTokens", number_text(usage.total_tokens), "usage:totalCost", number_text(usage.total_cost)]
    told: dict[str, Any] = {"totalTokens": usage.total_tokens, "totalCost": usage.total_cost}
    for name, text in (("model", usage.model), ("provider", usage.provider), ("costUnit", usage.cost_unit)):
        if text is not None:
            fields += [f"usage:{name}", text]
            told[name] = text
    for name, amounts in (("tokens", usage.tokens), ("costs", usage.costs)):
        if amounts:
            fields += [f"usage:{name}", amounts_text(amounts)]
            told[name] = amounts
    if usage.latency is not None:
        fields += ["usage:latencyMs", number_text(usage.latency)]
        told["latencyMs"] = usage.latency
    if usage.cached is not None:
        fields += ["usage:cached", "1" if usage.cached else "0"]
        told["cached"] = usage.cached
    return calls.UsageRow(
        fields=fields, tokens=usage.tokens, costs=usage.costs, total_tokens=usage.total_tokens,
        total_cost=usage.total_cost, model=usage.model or "", unit=usage.cost_unit or "",
        event=json.dumps(told, "usage"),
    )  # fmt: skip


def tokens_used(job: JobUsageReports) -> int:
    """Tokens of this attempt that a token limit counts: of `Job.report_tokens` and `Job.report_usage`, the greater."""
    attempt, usage = job._attempt, job._usage
    reported = 0 if attempt is None else attempt.tokens
    return reported if usage is None else max(reported, math.ceil(usage.total_tokens))
