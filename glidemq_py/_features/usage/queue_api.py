"""The methods of `Queue` that read usage and budgets."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from glidemq_py._core.names import parse_job_id
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.usage.calls import FlowBudget, FlowUsage, UsageSummary, read_budget
from glidemq_py._features.usage.summaries import decode_name, flow_usage, summarize_usage
from glidemq_py._job.link import ConnectedQueue


async def get_flow_usage(self: ConnectedQueue, parent_id: str) -> FlowUsage:
    """Return the total usage of a job and its direct children, which may be in other queues."""
    link = await self._connected()
    return await flow_usage(link, parse_job_id(parent_id, "parent_id"))


async def get_flow_budget(self: ConnectedQueue, flow_id: str) -> FlowBudget | None:
    """Return the budget of a flow and its usage so far; None if the flow has no budget.

    A budget can be read until a week after the root job has ended.

    Args:
        flow_id: id of the root job, or of any job of the flow that is in this queue.
    """
    link, job_id = await self._connected(), parse_job_id(flow_id, "flow_id")
    fields = await link.command("HGETALL", link.keys.budget(job_id))
    if not fields:
        key = await link.command("HGET", link.keys.job(job_id), "budgetKey")
        fields = await link.command("HGETALL", key.decode()) if key else None
    if not fields:
        return None
    return read_budget({decode_name(name): decode_name(value) for name, value in fields.items()})


async def get_usage_summary(
    self: ConnectedQueue,
    queues: Iterable[str] | None = None,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    window: Milliseconds | None = None,
) -> UsageSummary:
    """Return the total usage of queues over a time range, by the time of the reports.

    Usage is kept for 30 days: a ``start`` more than 30 days before ``end`` is moved to 30 days before it.

    Args:
        queues: names of queues; None = all queues of this prefix that have reported usage.
        start: start of the range (naive = local time); None = ``window`` before ``end``.
        end: end of the range (naive = local time); None = now.
        window: length of the range, ms or timedelta; one hour by default. Not together with ``start``.

    Raises:
        GlideMQValidationError: an argument is invalid, or minutes times queues and partitions exceed 100,000.
    """
    link = await self._connected()
    return await summarize_usage(link.transport, link.keys.prefix, queues, start=start, end=end, window=window)
