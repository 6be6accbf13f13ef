"""Sums over the parts of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from glidemq_py._core.limits import RateLimit

KeyT = TypeVar("KeyT")


def added(counts: Iterable[Mapping[KeyT, int]]) -> dict[KeyT, int]:
    """Return the sums of counts by key."""
    sums: dict[KeyT, int] = {}
    for each in counts:
        for key, count in each.items():
            sums[key] = sums.get(key, 0) + count
    return sums


def known(values: Iterable[int | None]) -> list[int]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def added_limits(numbers: Sequence[int | None]) -> int | None:
    """Return the sum of the parts' shares in a limit; None if one of them has no limit."""
    return None if None in numbers else sum(known(numbers))


def rate_of(most: int, ms: int) -> RateLimit | None:
    """Return a stored rate limit; None if it is none."""
    return RateLimit(most, ms) if most > 0 and ms > 0 else None


def added_rates(rates: Sequence[RateLimit | None]) -> RateLimit | None:
    """Return the sum of the parts' shares in a rate limit; None if one of them has no limit."""
    most = added_limits([None if rate is None else rate.max for rate in rates])
    return None if most is None or rates[0] is None else RateLimit(most, rates[0].duration)
