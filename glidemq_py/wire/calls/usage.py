"""Calls about what jobs have used: reports, sums, budgets of flows."""

from __future__ import annotations

from collections.abc import Sequence

from glidemq_py.wire.calls.packing import Call, pack

__all__ = ["check_budget", "create_budget"]


def create_budget(meta: str, flow_id: str, fields: Sequence[str]) -> Call[str]:
    """Give the flow whose root is ``flow_id`` (of the queue of ``meta``) a budget, before any job of it is added;
    ``fields`` are `Budget.to_fields`. Answers the budget's key, which is each job's ``budgetKey``."""
    return Call("create_budget", meta, (pack((flow_id, fields)),), bytes.decode, repeatable=True)


def check_budget(meta: str, flow_id: str) -> Call[str]:
    """Whether a job of the flow may begin: '' (yes), 'fail' or 'pause'."""
    return Call("check_budget", meta, (flow_id,), bytes.decode, repeatable=True)
