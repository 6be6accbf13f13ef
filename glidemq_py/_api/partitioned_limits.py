"""Limits of a partitioned queue: each partition gets a share, so that together they never exceed the limit.

Partitions trade their shares of the queue's concurrency (`glidemq_py._features.partitions.share_round`), but not those
of other limits: while a partition has no jobs, its share of these is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from glidemq_py._api.partitions_protocol import Partitions
from glidemq_py._core.checked_options import parse_nested
from glidemq_py._core.checks import check_int
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.fair_keys.options import NameLimits
from glidemq_py._features.limits.options import MAX_COUNT, GlobalLimits, RateLimit
from glidemq_py._features.limits.queue_api import queue_limits, to_ttl
from glidemq_py._features.partitions.layout import shares
from glidemq_py._features.partitions.share_round import RoundEnd, RoundResult, ShareRound, pause_between_rounds
from glidemq_py.errors import GlideMQError

__all__ = [
    "get_global_concurrency",
    "get_global_limits",
    "get_global_rate_limit",
    "get_name_limits",
    "remove_global_rate_limit",
    "set_global_concurrency",
    "set_global_rate_limit",
    "set_name_limits",
    "trade_if_due",
    "trade_shares",
]

_ATTEMPTS: Final = 20
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.25


async def set_global_concurrency(self: Partitions, concurrency: int, *, ttl: Milliseconds | None = None) -> None:
    """See `Queue.set_global_concurrency`."""
    number, ms = check_int("concurrency", concurrency, 0, MAX_COUNT), to_ttl(ttl)
    shares("concurrency", number, len(self.queues))
    try:
        await trade_shares(self, limit=number, ttl=ms)
    except LayoutChangedError as error:
        await self.home._renew_layout(error)
        if self.home._partitions is self:
            raise
        await self.home.set_global_concurrency(number, ttl=ttl)


async def trade_shares(self: Partitions, *, limit: int | None = None, ttl: int = 0) -> None:
    """Give each partition its share of the queue's concurrency, also if none lacks any.

    Args:
        self: The partitions.
        limit: New limit of the queue; None = unchanged.
        ttl: See `glidemq_py._features.partitions.shares.open_share_round`.

    Raises:
        LayoutChangedError: The queue has another layout. Nothing was changed.
        GlideMQError: Other clients change the shares again and again.
    """
    above, pause = 0, _FIRST_PAUSE_S
    for _ in range(_ATTEMPTS):
        result = await (await _round(self)).run(limit=limit, ttl=ttl, above=above, spread=True)
        if result.end is not RoundEnd.OVERTAKEN:
            return
        limit, above = None, result.above  # the limit is stored; another client may have set a later one
        await self.home._runtime.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    raise GlideMQError(f"queue {self.home.name!r}: other clients keep changing the limits; set the limit again")


async def trade_if_due(self: Partitions) -> RoundResult:
    """Trade the shares of the queue's concurrency if a partition lacks any, unless it was done just now."""
    return await (await _round(self)).run(pause=pause_between_rounds(len(self.queues)))


async def _round(self: Partitions) -> ShareRound:
    links = [await queue._connected() for queue in self.queues]
    return ShareRound([link.keys.meta for link in links], self.layout.number, links[0].transport.call, self.together)


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
    """See `Queue.get_global_limits`. The concurrency is stored once; other limits are the sums of the shares."""
    found: list[GlobalLimits] = await self.each("get_global_limits")
    first = found[0]
    concurrency, ttl = _sum([each.concurrency for each in found]), first.concurrency_ttl
    link = await self.queues[0]._connected()
    stored = await link.transport.call(queue_limits(link.keys.meta))
    if stored.total >= 0:
        concurrency, ttl = stored.total or None, stored.total_ttl if stored.total_ttl >= 0 else None
    return GlobalLimits(
        concurrency=concurrency, concurrency_ttl=ttl,
        rate_limit=_rate([each.rate_limit for each in found]), rate_limit_ttl=first.rate_limit_ttl,
        rate_limit_used=sum(each.rate_limit_used for each in found),
        rate_limit_resets_in=min(
            (each.rate_limit_resets_in for each in found if each.rate_limit_resets_in is not None), default=None
        ),
    )  # fmt: skip


async def get_global_concurrency(self: Partitions) -> int:
    """See `Queue.get_global_concurrency`."""
    return (await get_global_limits(self)).concurrency or 0


async def get_global_rate_limit(self: Partitions) -> RateLimit | None:
    """See `Queue.get_global_rate_limit`."""
    return (await get_global_limits(self)).rate_limit


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
