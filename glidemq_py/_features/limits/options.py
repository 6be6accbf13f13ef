"""Options for limits: rate limits, token buckets, token limiters. Nothing is enforced here.

The rate limits of a group, a queue and a worker are the same type, so a limit can be moved from one to another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, TypeVar

from glidemq_py._core.checks import check_choice, check_int, parse_nested
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError

MAX_COUNT: Final = 2**31 - 1
MAX_TOKENS: Final = 10**9
"""Most tokens of one value: sums up to 10**12 millitokens are exact on the server."""

TokenScope = Literal["queue", "worker", "both"]
_SCOPES: Final = ("queue", "worker", "both")

LimitT = TypeVar("LimitT", "RateLimit", "TokenBucket", "TokenLimiter")


class RateLimitDict(TypedDict):
    """`RateLimit` as a mapping."""

    max: int
    duration: Milliseconds


class TokenBucketDict(TypedDict):
    """`TokenBucket` as a mapping."""

    capacity: float
    refill_rate: float


class TokenLimiterDict(TypedDict, total=False):
    """`TokenLimiter` as a mapping; ``scope`` is optional."""

    max_tokens: int
    duration: Milliseconds
    scope: TokenScope


@dataclass(frozen=True, slots=True, init=False)
class RateLimit:
    """At most ``max`` jobs start per window of ``duration``.

    Windows are fixed: one starts with the first job after the end of the previous one. So up to twice ``max`` jobs may
    start around the boundary of two windows.

    Args:
        max: number of jobs, >= 1.
        duration: length of a window, ms or timedelta, > 0.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    max: int
    duration: int

    def __init__(self, max: int, duration: Milliseconds) -> None:
        keep = object.__setattr__
        keep(self, "max", check_int("max", max, 1, MAX_COUNT))
        keep(self, "duration", to_ms("duration", duration, minimum=1))


@dataclass(frozen=True, slots=True, init=False)
class TokenBucket:
    """A token bucket: starting a job takes its ``cost`` from the bucket.

    Args:
        capacity: most tokens in the bucket, 0.001 to 10**9; rounded to thousandths.
        refill_rate: tokens added per second, 0.001 to 10**9; rounded to thousandths.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    capacity: float
    refill_rate: float

    def __init__(self, capacity: float, refill_rate: float) -> None:
        keep = object.__setattr__
        keep(self, "capacity", check_tokens("capacity", capacity))
        keep(self, "refill_rate", check_tokens("refill_rate", refill_rate))


@dataclass(frozen=True, slots=True, init=False)
class TokenLimiter:
    """Fetch no jobs while the jobs of the current window have reported ``max_tokens`` or more (`Job.report_tokens`).

    Args:
        max_tokens: tokens per window, >= 1.
        duration: length of a window, ms or timedelta, > 0.
        scope: "queue" counts the tokens reported by all workers with a token limiter, "worker" those of this worker,
            "both" (the default) applies both limits.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    max_tokens: int
    duration: int
    scope: TokenScope

    def __init__(self, max_tokens: int, duration: Milliseconds, scope: TokenScope = "both") -> None:
        keep = object.__setattr__
        keep(self, "max_tokens", check_int("max_tokens", max_tokens, 1, MAX_COUNT))
        keep(self, "duration", to_ms("duration", duration, minimum=1))
        keep(self, "scope", check_choice("scope", scope, _SCOPES))


def parse_limit(option: str, value: object, kind: type[LimitT]) -> LimitT:
    """Return a limit from one or from a mapping of its fields. Raises the errors of `parse_nested`."""
    return parse_nested(option, value, kind, needed=2)


def check_tokens(option: str, value: object) -> float:
    """Return a finite number of tokens from 0.001 to `MAX_TOKENS`; otherwise raise GlideMQValidationError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise GlideMQValidationError(option, value, f"must be a number of tokens, not {type(value).__name__}")
    if not math.isfinite(value) or value > MAX_TOKENS:
        raise GlideMQValidationError(option, value, f"must be a finite number of at most {MAX_TOKENS}")
    if millitokens(value) < 1:
        raise GlideMQValidationError(option, value, "must be at least 0.001")
    return value


def millitokens(tokens: float) -> int:
    """Convert tokens to thousandths, as the server counts them; halves are rounded up."""
    return math.floor(tokens * 1000 + 0.5)


def rate_to_wire(rate: RateLimit) -> dict[str, Any]:
    """Return the rate limit as in the opts JSON."""
    return {"max": rate.max, "duration": rate.duration}


def bucket_to_wire(bucket: TokenBucket) -> dict[str, Any]:
    """Return the bucket as in the opts JSON, in tokens, not millitokens."""
    return {"capacity": bucket.capacity, "refillRate": bucket.refill_rate}
