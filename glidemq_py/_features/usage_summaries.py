"""Reading usage: of flows with their budgets, and of many queues over a time range.

Large reads are split into short calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import pieces
from glidemq_py._core.keys import (
    QueueKeys,
    exact_text,
    group_members,
    parse_job_id,
    usage_registry_key,
    validate_queue_name,
)
from glidemq_py._core.misuse import known_methods
from glidemq_py._core.times import MAX_DURATION_MS, Milliseconds, epoch_ms, to_instant, to_ms
from glidemq_py._features.queue_list import scan_members
from glidemq_py._features.usage import (
    BUCKET_MS,
    USAGE_FIELDS,
    FlowBudget,
    FlowUsage,
    JobUsage,
    MinuteSums,
    QueueUsage,
    UsageSummary,
    add_amounts,
    read_budget,
    read_usage,
    usage_minutes,
    usages,
)
from glidemq_py._partitions.link import QueueLink, server_time
from glidemq_py._partitions.parts import Area
from glidemq_py._partitions.stored import layout_or_name, whole_queues
from glidemq_py.errors import GlideMQValidationError

MAX_READS: Final = 100_000
"""Most minutes that one summary reads, summed over its queues."""
KEPT_MS: Final = 30 * 86_400_000
"""How long the usage of a minute is kept after the last report in it."""
_MINUTES_PER_CALL: Final = 250
_JOBS_PER_CALL: Final = 200
_HOUR_MS: Final = 3_600_000
_STORED: Final = tuple(f"usage:{name}" for name in USAGE_FIELDS)


_EXACT: Final = "surrogateescape"


# -- flows ------------------------------------------------------------------------------------------------------


async def usages_of(transport: Transport, meta: str, ids: Sequence[str]) -> list[JobUsage | None]:
    """Return the usage of many jobs of one queue; None for jobs that reported nothing."""
    found: list[JobUsage | None] = []
    for piece in pieces(ids, _JOBS_PER_CALL):
        for values in await transport.call(usages(meta, piece, _STORED)):
            if isinstance(values, bool):
                found.append(None)
                continue
            fields = {name: text for name, text in zip(USAGE_FIELDS, values, strict=True) if isinstance(text, str)}
            found.append(read_usage(fields))
    return found


async def flow_usage(link: QueueLink, parent_id: str) -> FlowUsage:
    """Return the total usage of a job and its direct children."""
    sums = _Sums()
    sums.add_jobs(await usages_of(link.transport, link.keys.meta, [parent_id]))
    async for members in scan_members(link.transport, link.keys.deps(parent_id), _EXACT):
        for base, ids in group_members(members).items():
            sums.add_jobs(await usages_of(link.transport, f"{base}:meta", ids))
    return FlowUsage(**vars(sums))


async def sum_usage(transport: Transport, by_meta: Mapping[str, Sequence[str]]) -> FlowUsage:
    """Return the total usage of jobs, given as lists of job ids by the meta keys of their queues."""
    sums = _Sums()
    for meta, ids in by_meta.items():
        sums.add_jobs(await usages_of(transport, meta, ids))
    return FlowUsage(**vars(sums))


class _Sums:
    """Running totals, named as in `UsageSums`."""

    def __init__(self) -> None:
        self.job_count = 0
        self.tokens: dict[str, float] = {}
        self.costs: dict[str, float] = {}
        self.models: dict[str, int] = {}
        self.total_tokens: float = 0
        self.total_cost: float = 0
        self.cost_unit: str | None = None

    def add_jobs(self, usages: Iterable[JobUsage | None]) -> None:
        for usage in usages:
            if usage is not None:
                self._add(usage, 1, {} if usage.model is None else {usage.model: 1})
                self.cost_unit = usage.cost_unit or self.cost_unit

    def add(self, sums: MinuteSums) -> None:
        self._add(sums, sums.jobs, sums.models)
        self.cost_unit = sums.unit or self.cost_unit

    def _add(self, amounts: JobUsage | MinuteSums, jobs: int, models: Mapping[str, int]) -> None:
        self.job_count += jobs
        self.total_tokens += amounts.total_tokens
        self.total_cost += amounts.total_cost
        add_amounts(self.tokens, amounts.tokens)
        add_amounts(self.costs, amounts.costs)
        for name, count in models.items():
            self.models[name] = self.models.get(name, 0) + int(count)


async def summarize_usage(
    transport: Transport,
    prefix: str,
    queues: Iterable[str] | None,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    window: Milliseconds | None = None,
) -> UsageSummary:
    """Return the total usage of queues over a time range; see `Queue.usage.get_summary`."""
    first, last = await _span(transport, start, end, window)
    if queues is None:
        listed = [name async for page in scan_members(transport, usage_registry_key(prefix), _EXACT) for name in page]
        found = await whole_queues(transport, prefix, listed)
    else:
        if isinstance(queues, str):
            raise GlideMQValidationError("queues", queues, "must be a list of names, not a str")
        names = [validate_queue_name(name, "queues") for name in dict.fromkeys(queues)]
        found = {name: await layout_or_name(transport, prefix, name) for name in names}
    begin, minutes = first - first % BUCKET_MS, last // BUCKET_MS - first // BUCKET_MS + 1
    count = sum(map(len, found.values()))
    if minutes * count > MAX_READS:
        reads = f"{minutes} minutes of {count} queues"
        problem = f"minutes times queues must be at most {MAX_READS}; use a shorter window or fewer queues"
        raise GlideMQValidationError("window", reads, problem)
    total = _Sums()
    per_queue: dict[str, QueueUsage] = {}
    for name, parts in sorted(found.items()):
        sums = _Sums()
        for part in parts:
            await _add_minutes(transport, QueueKeys(prefix, part).meta, begin, minutes, (sums, total))
        if sums.job_count:
            per_queue[name] = QueueUsage(**vars(sums))
    return UsageSummary(
        start_time=first, end_time=last, queues=tuple(sorted(found)), per_queue=per_queue, **vars(total)
    )


async def _add_minutes(transport: Transport, meta: str, begin: int, minutes: int, sums: Iterable[_Sums]) -> None:
    """Add the usage of so many minutes of a queue, or of a partition, to each of the sums."""
    at = 0
    while at < minutes:
        piece = min(_MINUTES_PER_CALL, minutes - at)
        found = await transport.call(usage_minutes(meta, begin + at * BUCKET_MS, piece))
        for each in sums:
            each.add(found)
        at += found.minutes


async def _span(
    transport: Transport, start: datetime | None, end: datetime | None, window: Milliseconds | None
) -> tuple[int, int]:
    if start is not None and window is not None:
        raise GlideMQValidationError("window", window, "is mutually exclusive with 'start'")
    length = _HOUR_MS if window is None else to_ms("window", window, minimum=1, maximum=MAX_DURATION_MS)
    if end is not None:
        last = epoch_ms(to_instant("end", end))
    else:
        last = await server_time(transport)
    first = last - length if start is None else epoch_ms(to_instant("start", start))
    if first > last:
        raise GlideMQValidationError("start", start, "must not be later than 'end'")
    return max(0, first, last - KEPT_MS), last


async def _flow_budget(link: QueueLink, job_id: str) -> FlowBudget | None:
    fields = await link.command("HGETALL", link.keys.budget(job_id))
    if not fields:
        key = await link.command("HGET", link.keys.job(job_id), "budgetKey")
        fields = await link.command("HGETALL", key.decode()) if key else None
    if not fields:
        return None
    return read_budget({exact_text(name): exact_text(value) for name, value in fields.items()})


@known_methods
class Usage(Area):
    """``queue.usage``: tokens, costs and budgets that jobs have reported."""

    __slots__ = ()

    async def get_flow(self, parent_id: str) -> FlowUsage:
        """Return the total usage of a job and its direct children, which may be in other queues."""
        return await self._queue._of(parse_job_id(parent_id, "parent_id"), flow_usage)

    async def get_budget(self, flow_id: str) -> FlowBudget | None:
        """Return the budget of a flow and its usage so far; None if the flow has no budget.

        A budget can be read until a week after the root job has ended.

        Args:
            flow_id: id of the root job, or of any job of the flow that is in this queue.
        """
        return await self._queue._of(parse_job_id(flow_id, "flow_id"), _flow_budget)

    async def get_summary(
        self,
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
        link = await self._queue._first()
        return await summarize_usage(link.transport, link.keys.prefix, queues, start=start, end=end, window=window)
