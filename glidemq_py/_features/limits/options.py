"""Options for limits: rate limits, token buckets, token limiters. Nothing is enforced here.

The rate limits of a group, a queue and a worker are the same type, so a limit can be moved from one to another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypedDict

from glidemq_py._core.checked_options import Converted, OptionValue, option
from glidemq_py._core.checks import check_choice, check_int
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError

MAX_COUNT: Final = 2**31 - 1
MAX_TOKENS: Final = 10**9
"""Most tokens of one value: sums up to 10**12 millitokens are exact on the server."""

TokenScope = Literal["queue", "worker", "both"]
_SCOPES: Final = ("queue", "worker", "both")


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


class RateLimit(OptionValue):
    """At most ``max`` jobs start per window of ``duration``.

    Windows are fixed: one starts with the first job after the end of the previous one. So up to twice ``max`` jobs may
    start around the boundary of two windows.

    Args:
        max: number of jobs, >= 1.
        duration: length of a window, ms or timedelta, > 0.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    max: int = option(partial(check_int, minimum=1, maximum=MAX_COUNT), wire="max")
    duration: Converted[int, Milliseconds] = option(partial(to_ms, minimum=1), wire="duration")


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalLimits:
    """Limits of a queue that apply at one moment.

    Attributes:
        concurrency: number of jobs that may be active at a time; None = no limit.
        concurrency_ttl: ms until this setting ends and the one before it applies again; None = it does not end.
        rate_limit: number of jobs that may be fetched per window; None = no limit.
        rate_limit_ttl: ms until this setting ends and the one before it applies again; None = it does not end.
        rate_limit_used: number of jobs fetched in the current window.
        rate_limit_resets_in: ms until the next window begins; None between two windows, as a fetch begins one.
    """

    concurrency: int | None
    concurrency_ttl: int | None
    rate_limit: RateLimit | None
    rate_limit_ttl: int | None
    rate_limit_used: int = 0
    rate_limit_resets_in: int | None = None


class TokenBucket(OptionValue):
    """A token bucket: starting a job takes its ``cost`` from the bucket.

    Args:
        capacity: most tokens in the bucket, 0.001 to 10**9; rounded to thousandths.
        refill_rate: tokens added per second, 0.001 to 10**9; rounded to thousandths.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    capacity: float = option(check_tokens, wire="capacity")
    refill_rate: float = option(check_tokens, wire="refillRate")


class TokenLimiter(OptionValue):
    """Fetch no jobs while the jobs of the current window have reported ``max_tokens`` or more (`Job.report_tokens`).

    Args:
        max_tokens: tokens per window, >= 1.
        duration: length of a window, ms or timedelta, > 0.
        scope: "queue" counts the tokens reported by all workers with a token limiter, "worker" those of this worker,
            "both" (the default) applies both limits.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    max_tokens: int = option(partial(check_int, minimum=1, maximum=MAX_COUNT))
    duration: Converted[int, Milliseconds] = option(partial(to_ms, minimum=1))
    scope: TokenScope = option(partial(check_choice, choices=_SCOPES), default="both")
