"""Limits of a queue and of its groups, set while it works: what `Queue` inherits. The server enforces them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from glidemq_py._core.checks import check_choice, check_int
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.limits import calls as limiting
from glidemq_py._features.limits.options import MAX_COUNT, RateLimit, TokenBucket, millitokens, parse_limit
from glidemq_py._features.ordering_groups.info import GroupInfo, GroupLimits
from glidemq_py._features.ordering_groups.options import check_group_concurrency, validate_ordering_key
from glidemq_py._job import QueueLink
from glidemq_py.errors import GlideMQValidationError

__all__ = ["QueueLimits"]

_EXTEND = ("max", "replace")


class QueueLimits:
    """The part of `Queue` that sets and shows limits."""

    async def _connected(self) -> QueueLink:
        raise NotImplementedError

    # -- the queue -------------------------------------------------------------------------------------------

    async def set_global_concurrency(self, concurrency: int) -> None:
        """Bound the jobs that all workers together run at a time; 0 takes the bound away.

        It holds from the next taking on: jobs that are running run on.

        Raises:
            GlideMQValidationError: not from 0 to 2**31 - 1.
        """
        number = check_int("concurrency", concurrency, 0, MAX_COUNT)
        link = await self._connected()
        await link.transport.call(limiting.limit_queue(link.keys.meta, number, False))

    async def get_global_concurrency(self) -> int:
        """Jobs that may run at a time in the whole queue; 0 = any number."""
        link = await self._connected()
        return _number(await link.transport.command("HGET", link.keys.meta, "globalConcurrency"))

    async def set_global_rate_limit(self, max: int, duration: Milliseconds) -> None:
        """Bound the jobs that all workers together take in a window; workers' own ``limiter`` do not count then.

        Args:
            max: jobs, >= 1. duration: of the window, ms or timedelta, > 0.
        """
        rate = RateLimit(max, duration)
        link = await self._connected()
        await link.transport.call(limiting.limit_queue(link.keys.meta, False, (rate.max, rate.duration)))

    async def get_global_rate_limit(self) -> RateLimit | None:
        """The queue's rate limit; None where it has none."""
        link = await self._connected()
        found = await link.transport.command("HMGET", link.keys.meta, "rateLimitMax", "rateLimitDuration")
        most, duration = (_number(value) for value in found)
        return RateLimit(most, duration) if most > 0 and duration > 0 else None

    async def remove_global_rate_limit(self) -> None:
        """Take the queue's rate limit away."""
        link = await self._connected()
        await link.transport.call(limiting.limit_queue(link.keys.meta, False, 0))

    # -- groups ----------------------------------------------------------------------------------------------

    async def rate_limit_group(
        self, key: str, duration: Milliseconds, *, extend: Literal["max", "replace"] = "max"
    ) -> int:
        """Let no job of a group begin for a while; those that run go on. (Within a handler: `Job.rate_limit_group`.)

        Args:
            key: the group's ordering key.
            duration: ms or timedelta, > 0.
            extend: "max" keeps a later end that is set already, "replace" does not.

        Returns:
            When the group goes on, milliseconds since 1970 by the server's clock.
        """
        name, ms = validate_ordering_key(key), to_ms("duration", duration, minimum=1)
        replace = check_choice("extend", extend, _EXTEND) == "replace"
        link = await self._connected()
        return await link.transport.call(limiting.hold_group(link.keys.meta, name, ms, replace))

    async def set_group_limits(
        self,
        key: str,
        *,
        concurrency: int | Literal[False] | None = None,
        rate_limit: RateLimit | Mapping[str, Any] | Literal[False] | None = None,
        token_bucket: TokenBucket | Mapping[str, Any] | Literal[False] | None = None,
    ) -> None:
        """Set a group's limits; jobs that a wider limit lets go on go on at once.

        A job that is added later with limits in its ``ordering`` sets those again.

        Args:
            key: the group's ordering key; a group that does not exist yet is made.
            concurrency, rate_limit, token_bucket: as in `Ordering`; None keeps what there is, False takes it away.

        Raises:
            GlideMQValidationError: a limit cannot be, or none is given.
        """
        name = validate_ordering_key(key)
        if concurrency is None and rate_limit is None and token_bucket is None:
            raise GlideMQValidationError("concurrency", None, "or another limit must be given: nothing would be set")
        width = concurrency if concurrency is None or concurrency is False else _width(concurrency)
        rate: limiting.Setting = _setting(rate_limit)
        if rate_limit is not None and rate_limit is not False:
            limit = parse_limit("rate_limit", rate_limit, RateLimit)
            rate = limit.max, limit.duration
        bucket: limiting.Setting = _setting(token_bucket)
        if token_bucket is not None and token_bucket is not False:
            tokens = parse_limit("token_bucket", token_bucket, TokenBucket)
            bucket = millitokens(tokens.capacity), millitokens(tokens.refill_rate)
        link = await self._connected()
        await link.transport.call(limiting.limit_group(link.keys.meta, name, _setting(width), rate, bucket))

    async def get_group(self, key: str) -> GroupInfo | None:
        """A group as it is now; None where no job of that key was ever added."""
        name = validate_ordering_key(key)
        link = await self._connected()
        found = await link.transport.call(limiting.group_info(link.keys.meta, name))
        if found is None:
            return None
        rated = found.rate_max > 0 and found.rate_ms > 0
        paid = found.capacity > 0 and found.refill > 0
        return GroupInfo(
            key=name,
            active=found.active,
            parked=found.parked,
            next_seq=found.next_seq,
            limits=GroupLimits(
                concurrency=found.concurrency or None,
                rate_limit=RateLimit(found.rate_max, found.rate_ms) if rated else None,
                token_bucket=TokenBucket(found.capacity / 1000, found.refill / 1000) if paid else None,
            ),
            limited_until=found.limited_until or None,
        )


def _width(concurrency: object) -> int:
    return check_group_concurrency(concurrency, "concurrency")


def _setting(value: Any) -> int:
    """None as False ("as it is"), False as 0 ("none"), a number as itself."""
    if value is None:
        return False
    return value if type(value) is int else 0


def _number(value: Any) -> int:
    """A number of the queue's meta hash; junk is none."""
    try:
        return max(0, int(float(value)))
    except (TypeError, ValueError, OverflowError):
        return 0
