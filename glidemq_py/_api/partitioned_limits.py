"""Limits of a partitioned queue: each partition gets a share, so that together they never exceed the limit.

The shares are fixed: while a partition has no jobs, its share is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from glidemq_py._api.partitions_protocol import Partitions
from glidemq_py._core.checked_options import parse_nested
from glidemq_py._core.checks import check_int
from glidemq_py._core.limits import MAX_COUNT, GlobalLimits, NameLimits, RateLimit
from glidemq_py._core.times import Milliseconds
from glidemq_py._partitions.layout import shares


async def set_global_concurrency(self: Partitions, concurrency: int, *, ttl: Milliseconds | None = None) -> None:
    """See `Queue.set_global_concurrency`."""
    number = check_int("concurrency", concurrency, 0, MAX_COUNT)
    for queue, share in zip(self.queues, shares("concurrency", number, len(self.queues)), strict=True):
        await queue.set_global_concurrency(share, ttl=ttl)


async def set_global_rate_limit(
    self: Partitions, max: int, duration: Milliseconds, *, ttl: Milliseconds | None = None
) -> None:
    """See `Queue.set_global_rate_limit`."""
    rate = RateLimit(max, duration)
    for queue, share in zip(self.queues, shares("max", rate.max, len(self.queues)), strict=True):
        await queue.set_global_rate_limit(share, rate.duration, ttl=ttl)


async def remove_global_rate_limit(self: Partitions) -> None:
    """See `Queue.remove_global_rate_limit`."""
    await self.each("remove_global_rate_limit")


async def get_global_limits(self: Partitions) -> GlobalLimits:
    """See `Queue.get_global_limits`; the sums of the shares."""
    found: list[GlobalLimits] = await self.each("get_global_limits")
    first = found[0]
    return GlobalLimits(
        concurrency=_sum([each.concurrency for each in found]), concurrency_ttl=first.concurrency_ttl,
        rate_limit=_rate([each.rate_limit for each in found]), rate_limit_ttl=first.rate_limit_ttl,
        rate_limit_used=sum(each.rate_limit_used for each in found),
        rate_limit_resets_in=min(
            (each.rate_limit_resets_in for each in found if each.rate_limit_resets_in is not None), default=None
        ),
    )  # fmt: skip


async def set_name_limits(
    self: Partitions,
    name: str,
    *,
    concurrency: int | Literal[False] | None = None,
    rate_limit: RateLimit | Mapping[str, Any] | Literal[False] | None = None,
) -> None:
    """See `Queue.set_name_limits`."""
    count = len(self.queues)
    numbers: list[Any] = [concurrency] * count
    rates: list[Any] = [rate_limit] * count
    if concurrency is not None and concurrency is not False:
        numbers = list(shares("concurrency", check_int("concurrency", concurrency, 1, MAX_COUNT), count))
    if rate_limit is not None and rate_limit is not False:
        rate = parse_nested("rate_limit", rate_limit, RateLimit)
        rates = [RateLimit(share, rate.duration) for share in shares("rate_limit.max", rate.max, count)]
    for queue, number, rate in zip(self.queues, numbers, rates, strict=True):
        await queue.set_name_limits(name, concurrency=number, rate_limit=rate)


async def get_name_limits(self: Partitions, name: str) -> NameLimits:
    """See `Queue.get_name_limits`; numbers are the sums over the partitions."""
    found: list[NameLimits] = await self.each("get_name_limits", name)
    until = [each.limited_until for each in found if each.limited_until is not None]
    return NameLimits(
        name=name, backlog=sum(each.backlog for each in found), active=sum(each.active for each in found),
        concurrency=_sum([each.concurrency for each in found]),
        rate_limit=_rate([each.rate_limit for each in found]), limited_until=max(until, default=None),
    )  # fmt: skip


def _sum(numbers: Sequence[int | None]) -> int | None:
    """Return the sum; None if one partition has no limit."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _rate(rates: Sequence[RateLimit | None]) -> RateLimit | None:
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return None
    return RateLimit(sum(rate.max for rate in known), known[0].duration)
