"""Calls for usage: reports, totals, budgets of flows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from glidemq_py._core.calls.control import NO_TOKEN
from glidemq_py._core.calls.packing import Call, pack, unpack
from glidemq_py._core.calls.working import AttemptStatus

__all__ = [
    "Charge",
    "UsageRow",
    "UsageSums",
    "charge_budget",
    "check_budget",
    "create_budget",
    "report_usage",
    "usage_minutes",
    "usages",
]


def create_budget(meta: str, flow_id: str, fields: Sequence[str]) -> Call[str]:
    """Create the budget of a flow, before any of its jobs is added.

    Args:
        meta: meta key of the root job's queue.
        flow_id: id of the root job.
        fields: result of `Budget.to_fields`.

    Returns:
        The key of the budget, which is the ``budgetKey`` of each job.
    """
    return Call("create_budget", meta, (pack((flow_id, fields)),), bytes.decode, repeatable=True)


def check_budget(meta: str, flow_id: str) -> Call[str]:
    """Check whether a job of the flow may start; return '' (yes), 'fail' or 'pause'."""
    return Call("check_budget", meta, (flow_id,), bytes.decode, repeatable=True)


class UsageSums(NamedTuple):
    """Reply of `usage_minutes`: totals over minutes."""

    jobs: int
    total_tokens: float
    total_cost: float
    unit: str
    models: dict[str, int]
    tokens: dict[str, float]
    costs: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Usage that `report_usage` writes: fields of the job hash, and the numbers added to totals."""

    fields: Sequence[str]
    tokens: Mapping[str, float]
    costs: Mapping[str, float]
    total_tokens: float
    total_cost: float
    model: str
    unit: str
    event: str


def report_usage(
    meta: str, job_id: str, row: UsageRow, token: tuple[int, int] = NO_TOKEN
) -> Call[tuple[AttemptStatus, bool]]:
    """Store the usage of a job, replacing its previous report.

    Repeatable: a second run subtracts what the first one added.

    Returns:
        The status of the attempt, and True if this is the first report of its minute.
    """
    request = (
        job_id, *token, row.fields, row.tokens, row.costs, row.total_tokens, row.total_cost, row.model, row.unit,
        row.event,
    )  # fmt: skip
    return Call("report_usage", meta, (pack(request),), _reported, repeatable=True)


def _reported(reply: list[int]) -> tuple[AttemptStatus, bool]:
    return AttemptStatus(reply[0]), bool(reply[1])


def usages(meta: str, ids: Sequence[str], fields: Sequence[str]) -> Call[list[list[str | bool] | bool]]:
    """Return the usage fields of many jobs; False for a job that has reported nothing."""
    return Call("usages", meta, (pack((ids, fields)),), unpack, repeatable=True)


def usage_minutes(meta: str, first: int, minutes: int) -> Call[UsageSums]:
    """Return totals over ``minutes`` minutes; the first one starts at ``first`` (epoch ms)."""
    return Call("usage_minutes", meta, (pack((first, minutes)),), _summed, repeatable=True)


def _summed(reply: bytes) -> UsageSums:
    jobs, tokens, cost, unit, *by_name = unpack(reply)
    models, by_token, by_cost = ({} if not flat else dict(zip(flat[::2], flat[1::2], strict=True)) for flat in by_name)
    return UsageSums(int(jobs), tokens, cost, unit, models, by_token, by_cost)


Charge = tuple[Mapping[str, float], Mapping[str, float], float, float]
"""Tokens and costs by category, total tokens, total cost."""


def charge_budget(meta: str, flow_id: str, mark: str, job: str, usage: Charge) -> Call[bool]:
    """Charge the usage of an attempt of another queue, once per ``mark``; return True if it exceeded a limit."""
    return Call("charge_budget", meta, (pack((flow_id, mark, job, usage)),), bool, repeatable=True)
