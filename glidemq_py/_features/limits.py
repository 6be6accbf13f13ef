"""Limits of a queue and of its ordering groups (``lua/features/limits``, ``lua/features/ordering_groups``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from glidemq_py._core.calls import Argument, Flag, call, unpack
from glidemq_py._core.checks import check_choice, check_int, parse_nested
from glidemq_py._core.limits import (
    MAX_COUNT,
    GlobalLimits,
    GroupInfo,
    GroupLimits,
    RateLimit,
    TokenBucket,
    check_group_concurrency,
    millitokens,
    validate_ordering_key,
)
from glidemq_py._core.misuse import known_methods
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.fair_keys import LimitsOfNames, rate_setting
from glidemq_py._partitions.parts import Area, added_limits, added_rates, rate_of
from glidemq_py.errors import GlideMQValidationError

Setting = tuple[int, int] | int
"""A pair of numbers; 0 = remove the limit; False = leave it unchanged."""


class GroupReply(NamedTuple):
    """Reply of `group_info`; 0 = no such limit."""

    active: int
    parked: int
    next_seq: int
    concurrency: int
    rate_max: int
    rate_ms: int
    capacity: int
    refill: int
    limited_until: int


class QueueLimitsReply(NamedTuple):
    """Reply of `queue_limits`; 0 = no such limit."""

    concurrency: int
    rate_max: int
    rate_ms: int
    ttl: int
    """Milliseconds until the limit of concurrency ends; -1 = never."""
    rate_ttl: int
    rate_used: int = 0
    """Jobs fetched in the current window; 0 between two windows."""
    rate_wait: int = 0
    """Milliseconds until the next window."""


@call("limit_queue", repeatable=True)
def limit_queue(concurrency: int, rate: Setting, ttl: int = 0) -> int:
    """Set the limits of the queue: concurrency, and rate as (jobs, ms); 0 = no limit, False = unchanged.

    After ``ttl`` ms (0 = never) the limits that applied before apply again.
    """
    ...


@call("queue_limits", repeatable=True)
def queue_limits() -> QueueLimitsReply:
    """Return the limits of the queue that apply now."""
    ...


@call("limit_group", repeatable=True)
def limit_group(key: str, concurrency: int, rate: Setting, bucket: Setting) -> int:
    """Set the limits of a group: concurrency, rate as (jobs, ms), bucket as (capacity, refill per s) in millitokens."""
    ...


@call("rate_limit_group", repeatable=True)
def block_group(key: str, ms: int, replace: Flag) -> int:
    """Rate limit a group for ``ms`` and return the end (epoch ms). A later end is kept unless ``replace`` is True."""
    ...


def _group(reply: bytes) -> GroupReply | None:
    found = unpack(reply)
    return GroupReply(*(int(value) for value in found)) if found else None


@call("group_info", read=_group, repeatable=True)
def group_info(key: Argument[str]) -> GroupReply | None:
    """Return the current state of a group, or None."""
    ...


_EXTEND = ("max", "replace")


def _width(concurrency: object) -> int:
    return check_group_concurrency("concurrency", concurrency)


def _setting(value: Any) -> int:
    """Convert None to False (unchanged) and False to 0 (remove); return a number as it is."""
    if value is None:
        return False
    return value if type(value) is int else 0


def to_ttl(value: Milliseconds | None) -> int:
    """Return a time to live in ms; 0 = none."""
    return 0 if value is None else to_ms("ttl", value, minimum=1)


@known_methods
class Limits(LimitsOfNames):
    """``queue.limits``: limits of the whole queue, and of jobs with a name, on all workers."""

    __slots__ = ()

    async def set_concurrency(self, concurrency: int, *, ttl: Milliseconds | None = None) -> None:
        """Limit the number of active jobs of all workers together.

        The limit applies to jobs fetched from now on. Active jobs keep running.

        Args:
            concurrency: number of jobs, 0 to 2**31 - 1; 0 = remove the limit.
            ttl: time to live, ms or timedelta, > 0; then the limit that applied before applies again. None = no end.

        Raises:
            GlideMQValidationError: an argument is invalid.
        """
        number, ms = check_int("concurrency", concurrency, 0, MAX_COUNT), to_ttl(ttl)
        await self._queue._change(lambda link: link.call(limit_queue, link.share("concurrency", number), False, ms))

    async def set_rate_limit(self, max: int, duration: Milliseconds, *, ttl: Milliseconds | None = None) -> None:
        """Limit the number of jobs that all workers together fetch per window. Overrides the workers' ``limiter``.

        Args:
            max: number of jobs, >= 1.
            duration: length of a window, ms or timedelta, > 0.
            ttl: time to live, ms or timedelta, > 0; then the limit that applied before applies again. None = no end.

        Raises:
            GlideMQValidationError: an argument is invalid.
        """
        rate, ms = RateLimit(max, duration), to_ttl(ttl)
        await self._queue._change(
            lambda link: link.call(limit_queue, False, (link.share("max", rate.max), rate.duration), ms)
        )

    async def remove_rate_limit(self) -> None:
        """Remove the rate limit of the queue."""
        await self._queue._change(lambda link: link.call(limit_queue, False, 0))

    async def get(self) -> GlobalLimits:
        """Return the limits of the whole queue that apply now, for how long, and the use of the rate limit."""
        found = await self._queue._each(lambda link: link.call(queue_limits))
        first, *_ = found
        rate = added_rates([rate_of(each.rate_max, each.rate_ms) for each in found])
        return GlobalLimits(
            concurrency=added_limits([each.concurrency or None for each in found]),
            concurrency_ttl=first.ttl if first.ttl >= 0 else None,
            rate_limit=rate,
            rate_limit_ttl=first.rate_ttl if first.rate_ttl >= 0 else None,
            rate_limit_used=sum(each.rate_used for each in found),
            rate_limit_resets_in=min((each.rate_wait for each in found if rate and each.rate_used), default=None),
        )


@known_methods
class Groups(Area):
    """``queue.groups``: limits of ordering groups."""

    __slots__ = ()

    async def set_limits(
        self,
        key: str,
        *,
        concurrency: int | Literal[False] | None = None,
        rate_limit: RateLimit | Mapping[str, Any] | Literal[False] | None = None,
        token_bucket: TokenBucket | Mapping[str, Any] | Literal[False] | None = None,
    ) -> None:
        """Set the limits of an ordering group. Raising a limit takes effect immediately.

        A job that is added later with limits in its ``ordering`` overwrites them.

        Args:
            key: ordering key; the group is created if it does not exist.
            concurrency: as in `Ordering`; None = unchanged, False = remove the limit.
            rate_limit: as in `Ordering`; None = unchanged, False = remove the limit.
            token_bucket: as in `Ordering`; None = unchanged, False = remove the limit.

        Raises:
            GlideMQValidationError: an argument is invalid, or no limit was given.
        """
        name = validate_ordering_key("key", key)
        if concurrency is None and rate_limit is None and token_bucket is None:
            problem = "give at least one of 'concurrency', 'rate_limit' and 'token_bucket'"
            raise GlideMQValidationError("concurrency", None, problem)
        width = concurrency if concurrency is None or concurrency is False else _width(concurrency)
        rate = rate_setting(rate_limit)
        bucket: Setting = _setting(token_bucket)
        if token_bucket is not None and token_bucket is not False:
            tokens = parse_nested("token_bucket", token_bucket, TokenBucket)
            bucket = millitokens(tokens.capacity), millitokens(tokens.refill_rate)
        await self._queue._at(
            name, lambda link: link.call(limit_group, name, _setting(width), rate, bucket), changes=True
        )

    async def rate_limit(self, key: str, duration: Milliseconds, *, extend: Literal["max", "replace"] = "max") -> int:
        """Start no job of an ordering group for ``duration``. Active jobs keep running.

        In a handler, use `Job.rate_limit_group`.

        Args:
            key: ordering key of the group.
            duration: ms or timedelta, > 0.
            extend: "max" keeps an end that is already set and later; "replace" overwrites it.

        Returns:
            The end of the rate limit, epoch ms by the server's clock.

        Raises:
            GlideMQValidationError: an argument is invalid.
        """
        name, ms = validate_ordering_key("key", key), to_ms("duration", duration, minimum=1)
        replace = check_choice("extend", extend, _EXTEND) == "replace"
        return await self._queue._at(name, lambda link: link.call(block_group, name, ms, replace), fresh=True)

    async def get(self, key: str) -> GroupInfo | None:
        """Return the current state of an ordering group; None if it does not exist."""
        name = validate_ordering_key("key", key)
        found = await self._queue._at(name, lambda link: link.call(group_info, name))
        if found is None:
            return None
        paid = found.capacity > 0 and found.refill > 0
        return GroupInfo(
            key=name,
            active=found.active,
            parked=found.parked,
            next_seq=found.next_seq,
            limits=GroupLimits(
                concurrency=found.concurrency or None,
                rate_limit=rate_of(found.rate_max, found.rate_ms),
                token_bucket=TokenBucket(found.capacity / 1000, found.refill / 1000) if paid else None,
            ),
            limited_until=found.limited_until or None,
        )
