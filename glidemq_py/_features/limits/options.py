"""How much may run or be started in a time: windows, buckets, tokens. Values that check themselves; no counting.

Rates of a group, of a queue and of a worker have one form, so that a limit may be moved from one to another.
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
"""Most tokens: with 10**12 millitokens every sum that the server makes of them is exact."""

TokenScope = Literal["queue", "worker", "both"]
_SCOPES: Final = ("queue", "worker", "both")

LimitT = TypeVar("LimitT", "RateLimit", "TokenBucket", "TokenLimiter")


class RateLimitDict(TypedDict):
    """`RateLimit` written as a mapping."""

    max: int
    duration: Milliseconds


class TokenBucketDict(TypedDict):
    """`TokenBucket` written as a mapping."""

    capacity: float
    refill_rate: float


class TokenLimiterDict(TypedDict, total=False):
    """`TokenLimiter` written as a mapping; ``scope`` may be left out."""

    max_tokens: int
    duration: Milliseconds
    scope: TokenScope


@dataclass(frozen=True, slots=True, init=False)
class RateLimit:
    """At most ``max`` jobs begin in a window of ``duration``.

    Windows are fixed: one begins with the first job after the last one's end, so up to twice ``max`` jobs may begin
    around an edge (wrinkles.md W62).

    Args:
        max: jobs, >= 1.
        duration: milliseconds or a timedelta, > 0.
    """

    max: int
    duration: int

    def __init__(self, max: int, duration: Milliseconds) -> None:
        keep = object.__setattr__
        keep(self, "max", check_int("max", max, 1, MAX_COUNT))
        keep(self, "duration", to_ms("duration", duration, minimum=1))


@dataclass(frozen=True, slots=True, init=False)
class TokenBucket:
    """A bucket that jobs pay from with their ``cost``: it holds ``capacity`` tokens and gets ``refill_rate`` a second.

    Args:
        capacity: tokens, > 0; fractions down to a thousandth.
        refill_rate: tokens a second, > 0.
    """

    capacity: float
    refill_rate: float

    def __init__(self, capacity: float, refill_rate: float) -> None:
        keep = object.__setattr__
        keep(self, "capacity", check_tokens("capacity", capacity))
        keep(self, "refill_rate", check_tokens("refill_rate", refill_rate))


@dataclass(frozen=True, slots=True, init=False)
class TokenLimiter:
    """No job is taken while the jobs of the present window have reported ``max_tokens`` (`Job.report_tokens`).

    Args:
        max_tokens: >= 1.
        duration: of a window, milliseconds or a timedelta, > 0.
        scope: "queue" counts what all workers with such a limit report, "worker" what this one does, "both" (the
            default) heeds both counts.
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
    """A limit from one, or from a mapping of its fields. Raises as `parse_nested`."""
    return parse_nested(option, value, kind, needed=2)


def check_tokens(option: str, value: object) -> float:
    """A finite number of tokens, at least a thousandth and at most `MAX_TOKENS`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise GlideMQValidationError(option, value, f"must be a number of tokens, not {type(value).__name__}")
    if not math.isfinite(value) or value > MAX_TOKENS:
        raise GlideMQValidationError(option, value, f"must be a finite number, at most {MAX_TOKENS}")
    if millitokens(value) < 1:
        raise GlideMQValidationError(option, value, "must be at least 0.001")
    return value


def millitokens(tokens: float) -> int:
    """Tokens as the server counts them: thousandths, halves rounded up (spec/data-model section 1)."""
    return math.floor(tokens * 1000 + 0.5)


def rate_to_wire(rate: RateLimit) -> dict[str, Any]:
    """The form in the opts JSON."""
    return {"max": rate.max, "duration": rate.duration}


def bucket_to_wire(bucket: TokenBucket) -> dict[str, Any]:
    """The form in the opts JSON: tokens, not millitokens."""
    return {"capacity": bucket.capacity, "refillRate": bucket.refill_rate}
