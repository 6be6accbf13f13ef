"""Reading what jobs have used: of a flow, of queues over a time; and a flow's budget. Read in pieces that are short for
the server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, cast

from glidemq_py._client.connect import Connection
from glidemq_py._client.open_transport import open_transport
from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import QueueKeys, split_member, usage_registry_key
from glidemq_py._core.names import parse_job_id, validate_prefix, validate_queue_name
from glidemq_py._core.queue_options import DEFAULT_PREFIX
from glidemq_py._core.times import MAX_DURATION_MS, Milliseconds, epoch_ms, to_instant, to_ms
from glidemq_py._features.usage import calls
from glidemq_py._features.usage.info import (
    BUCKET_MS,
    USAGE_FIELDS,
    FlowBudget,
    FlowUsage,
    JobUsage,
    QueueUsage,
    UsageSummary,
    add_amounts,
    read_budget,
    read_usage,
)
from glidemq_py._job import QueueLink
from glidemq_py.errors import GlideMQValidationError

__all__ = ["QueueUsageReading", "get_usage_summary", "sum_usage", "summarize_usage", "usages_of"]

MAX_READS: Final = 100_000
"""Most minutes times queues that one summary reads."""
KEPT_MS: Final = 30 * 86_400_000
"""How long a minute's usage is kept after the last report in it."""
_MINUTES_A_CALL: Final = 250
_JOBS_A_CALL: Final = 200
_HOUR_MS: Final = 3_600_000
_STORED: Final = tuple(f"usage:{name}" for name in USAGE_FIELDS)


class QueueUsageReading:
    """The part of `Queue` about usage."""

    async def _connected(self) -> QueueLink:
        raise NotImplementedError

    async def get_flow_usage(self, parent_id: str) -> FlowUsage:
        """What a job and its direct children have used together; the children may be in other queues."""
        link = await self._connected()
        return await flow_usage(link, parse_job_id(parent_id, "parent_id"))

    async def get_flow_budget(self, flow_id: str) -> FlowBudget | None:
        """The budget of the flow whose root, or any of whose jobs, is the job of that id in this queue; None if it
        has none.

        It can be read for a week after the root's end.
        """
        link, job_id = await self._connected(), parse_job_id(flow_id, "flow_id")
        fields = await link.transport.command("HGETALL", link.keys.budget(job_id))
        if not fields:
            key = await link.transport.command("HGET", link.keys.job(job_id), "budgetKey")
            fields = await link.transport.command("HGETALL", key.decode()) if key else None
        if not fields:
            return None
        return read_budget({_decoded(name): _decoded(value) for name, value in fields.items()})

    async def get_usage_summary(
        self,
        queues: Iterable[str] | None = None,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        window: Milliseconds | None = None,
    ) -> UsageSummary:
        """What the jobs of queues have used in a time, by when they reported it.

        Args:
            queues: names; None = all of this prefix in which anything was ever reported.
            start, end: moments (naive: local time); None = now for ``end``, and ``window`` before it for ``start``.
            window: how long before ``end`` it begins, ms or timedelta; an hour unless given. Not with ``start``.

        A start more than 30 days before the end is moved there: that is how long usage is kept.

        Raises:
            GlideMQValidationError: a value cannot be, or more than 100,000 minutes (times queues) would be read.
        """
        link = await self._connected()
        return await summarize_usage(link.transport, link.keys.prefix, queues, start=start, end=end, window=window)


async def get_usage_summary(
    connection: Connection = None,
    *,
    prefix: str = DEFAULT_PREFIX,
    queues: Iterable[str] | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    window: Milliseconds | None = None,
) -> UsageSummary:
    """`Queue.get_usage_summary` without a queue; ``connection`` as for `Queue`, closed again if it is ours."""
    validate_prefix(prefix)
    transport = await open_transport(connection)
    try:
        return await summarize_usage(transport, prefix, queues, start=start, end=end, window=window)
    finally:
        await transport.close()


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


# -- flows ------------------------------------------------------------------------------------------------------


async def usages_of(transport: Transport, meta: str, ids: Sequence[str]) -> list[JobUsage | None]:
    """What many jobs of one queue have used; None for those that said nothing."""
    found: list[JobUsage | None] = []
    for at in range(0, len(ids), _JOBS_A_CALL):
        for values in await transport.call(calls.usages(meta, ids[at : at + _JOBS_A_CALL], _STORED)):
            if isinstance(values, bool):
                found.append(None)
                continue
            fields = {name: text for name, text in zip(USAGE_FIELDS, values, strict=True) if isinstance(text, str)}
            found.append(read_usage(fields))
    return found


async def flow_usage(link: QueueLink, parent_id: str) -> FlowUsage:
    """Sums over a job and its direct children."""
    sums = _Sums()
    sums.add_jobs(await usages_of(link.transport, link.keys.meta, [parent_id]))
    async for members in _members(link.transport, link.keys.deps(parent_id)):
        by_meta: dict[str, list[str]] = {}
        for member in members:
            try:
                base, job_id = split_member(member)
            except ValueError:
                continue
            by_meta.setdefault(f"{base}:meta", []).append(job_id)
        for meta, ids in by_meta.items():
            sums.add_jobs(await usages_of(link.transport, meta, ids))
    return sums.of_flow()


async def sum_usage(transport: Transport, by_meta: Mapping[str, Sequence[str]]) -> FlowUsage:
    """Sums over jobs, named by the meta keys of their queues and their ids."""
    sums = _Sums()
    for meta, ids in by_meta.items():
        sums.add_jobs(await usages_of(transport, meta, ids))
    return sums.of_flow()


async def _members(transport: Transport, key: str) -> AsyncIterator[list[str]]:
    """A set in pieces, each member once."""
    cursor, seen = "0", set[str]()
    while True:
        cursor_bytes, page = await transport.command("SSCAN", key, cursor, "COUNT", "500")
        new = {_decoded(member) for member in cast("list[bytes]", page)} - seen
        seen |= new
        if new:
            yield sorted(new)
        cursor = _decoded(cursor_bytes)
        if cursor == "0":
            return


class _Sums:
    """What is added up."""

    def __init__(self) -> None:
        self.jobs = 0
        self.tokens: dict[str, float] = {}
        self.costs: dict[str, float] = {}
        self.models: dict[str, int] = {}
        self.total_tokens: float = 0
        self.total_cost: float = 0
        self.unit: str | None = None

    def of_flow(self) -> FlowUsage:
        return FlowUsage(
            job_count=self.jobs, tokens=self.tokens, total_tokens=self.total_tokens, costs=self.costs,
            total_cost=self.total_cost, cost_unit=self.unit, models=self.models,
        )  # fmt: skip

    def add_jobs(self, usages: Iterable[JobUsage | None]) -> None:
        for usage in usages:
            if usage is not None:
                models = {} if usage.model is None else {usage.model: 1}
                self._add(1, usage.total_tokens, usage.total_cost, usage.cost_unit, usage.tokens, usage.costs, models)

    def add(self, sums: calls.UsageSums) -> None:
        self._add(
            sums.jobs, sums.total_tokens, sums.total_cost, sums.unit or None, sums.tokens, sums.costs, sums.models
        )

    def _add(
        self,
        jobs: int,
        total_tokens: float,
        total_cost: float,
        unit: str | None,
        tokens: Mapping[str, float],
        costs: Mapping[str, float],
        models: Mapping[str, int],
    ) -> None:
        self.jobs += jobs
        self.total_tokens += total_tokens
        self.total_cost += total_cost
        self.unit = unit or self.unit
        add_amounts(self.tokens, tokens)
        add_amounts(self.costs, costs)
        for name, count in models.items():
            self.models[name] = self.models.get(name, 0) + int(count)


# -- queues over a time -----------------------------------------------------------------------------------------


async def summarize_usage(
    transport: Transport,
    prefix: str,
    queues: Iterable[str] | None,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    window: Milliseconds | None = None,
) -> UsageSummary:
    """See `QueueUsageReading.get_usage_summary`."""
    first, last = await _span(transport, start, end, window)
    if queues is None:
        names = [name async for page in _members(transport, usage_registry_key(prefix)) for name in page]
    else:
        if isinstance(queues, str):
            raise GlideMQValidationError("queues", queues, "must be several names, not one text")
        names = [validate_queue_name(name, "queues") for name in dict.fromkeys(queues)]
    begin, minutes = first - first % BUCKET_MS, last // BUCKET_MS - first // BUCKET_MS + 1
    if minutes * len(names) > MAX_READS:
        reads = f"{minutes} minutes of {len(names)} queues"
        raise GlideMQValidationError("window", reads, f"must come to at most {MAX_READS} minutes: name fewer queues")
    total = _Sums()
    per_queue: dict[str, QueueUsage] = {}
    for name in sorted(names):
        sums, meta = _Sums(), QueueKeys(prefix, name).meta
        for at in range(0, minutes, _MINUTES_A_CALL):
            piece = min(_MINUTES_A_CALL, minutes - at)
            found = await transport.call(calls.usage_minutes(meta, begin + at * BUCKET_MS, piece))
            sums.add(found)
            total.add(found)
        if sums.jobs:
            per_queue[name] = QueueUsage(
                job_count=sums.jobs, tokens=sums.tokens, total_tokens=sums.total_tokens, costs=sums.costs,
                total_cost=sums.total_cost, cost_unit=sums.unit, models=sums.models,
            )  # fmt: skip
    return UsageSummary(
        start_time=first, end_time=last, queues=tuple(sorted(names)), job_count=total.jobs, tokens=total.tokens,
        total_tokens=total.total_tokens, costs=total.costs, total_cost=total.total_cost, cost_unit=total.unit,
        models=total.models, per_queue=per_queue,
    )  # fmt: skip


async def _span(
    transport: Transport, start: datetime | None, end: datetime | None, window: Milliseconds | None
) -> tuple[int, int]:
    if start is not None and window is not None:
        raise GlideMQValidationError("window", window, "says where it begins, and so does 'start': give one of them")
    length = _HOUR_MS if window is None else to_ms("window", window, minimum=1, maximum=MAX_DURATION_MS)
    if end is not None:
        last = epoch_ms(to_instant("end", end))
    else:
        seconds, microseconds = await transport.command("TIME")
        last = int(seconds) * 1000 + int(microseconds) // 1000
    first = last - length if start is None else epoch_ms(to_instant("start", start))
    if first > last:
        raise GlideMQValidationError("start", start, "must not be later than the end")
    return max(0, first, last - KEPT_MS), last
