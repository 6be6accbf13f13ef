"""Limits of queues and workers, the job options `ordering` and `fair_key`, and the state of what they limit.

The server enforces them: ``lua/features/limits``, ``ordering_groups``, ``fair_keys``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Required, TypedDict, cast

from glidemq_py._core.checks import Converted, OptionValue, check_choice, check_int, check_text, option, parse_nested
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError

MAX_COUNT: Final = 2**31 - 1
MAX_TOKENS: Final = 10**9
"""Most tokens of one value: sums up to 10**12 millitokens are exact on the server."""

TokenScope = Literal["queue", "worker", "both"]


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

    max: int = option(check_int, minimum=1, maximum=MAX_COUNT)
    duration: Converted[int, Milliseconds] = option(to_ms, minimum=1)


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

    capacity: float = option(check_tokens)
    refill_rate: float = option(check_tokens)


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

    max_tokens: int = option(check_int, minimum=1, maximum=MAX_COUNT)
    duration: Converted[int, Milliseconds] = option(to_ms, minimum=1)
    scope: TokenScope = option(check_choice, default="both", choices=TokenScope)


KEY_LENGTH: Final = 256
"""Longest ordering key, in UTF-16 code units."""
MAX_GROUP_CONCURRENCY: Final = 1_000_000
_RESERVED: Final = "__"


def validate_ordering_key(option: str, key: object) -> str:
    """Return a valid ordering key: 1..256 characters, not ``__``.

    Raises:
        GlideMQValidationError: the key is invalid.
    """
    text = check_text(option, key, maximum=KEY_LENGTH)
    if text == _RESERVED:
        raise GlideMQValidationError(option, text, "is reserved")
    return text


check_group_concurrency: Final = partial(check_int, minimum=1, maximum=MAX_GROUP_CONCURRENCY)
"""Return a valid concurrency of a group; otherwise raise GlideMQValidationError."""


class OrderingDict(TypedDict, total=False):
    """`Ordering` as a mapping."""

    key: Required[str]
    concurrency: int
    rate_limit: RateLimit | RateLimitDict
    token_bucket: TokenBucket | TokenBucketDict


class Ordering(OptionValue, prefix="ordering"):
    """Jobs with the same ``key`` form an ordering group: they start in the order of their adds, one at a time.

    The limits given here are set for the whole group when the job is added; limits that are not given are unchanged. A
    new group has a concurrency of 1 and no other limits.

    Args:
        key: ordering key, 1..256 characters, not ``__``.
        concurrency: number of jobs of the group that may be active at a time, 1..1_000_000. Above 1, jobs start in
            order but may end in any order.
        rate_limit: number of jobs that may start per window: `RateLimit` or ``{"max": jobs, "duration": ms}``.
        token_bucket: the bucket that pays the ``cost`` of jobs: `TokenBucket` or
            ``{"capacity": tokens, "refill_rate": tokens_per_second}``.

    Raises:
        GlideMQValidationError: an option is invalid; the error names it and its value.
    """

    key: str = option(validate_ordering_key)
    concurrency: int | None = option(check_group_concurrency, default=None, kw_only=True)
    rate_limit: Converted[RateLimit | None, RateLimit | RateLimitDict | None] = option(
        parse_nested, default=None, encode=RateLimit.to_wire, kw_only=True, kind=RateLimit
    )
    token_bucket: Converted[TokenBucket | None, TokenBucket | TokenBucketDict | None] = option(
        parse_nested, default=None, encode=TokenBucket.to_wire,
        kw_only=True, kind=TokenBucket)  # fmt: skip

    @classmethod
    def parse(cls, option: str, value: object) -> Ordering:
        """Return an `Ordering` from one, from a key, or from a mapping of its fields."""
        return cls(value) if isinstance(value, str) else parse_nested(option, value, cls, ", a str")

    @classmethod
    def read(cls, stored: object) -> dict[str, Any] | None:
        """Return the fields of stored JSON, not checked; None if it is none."""
        if not isinstance(stored, Mapping):
            return None
        kept = cls.from_wire(cast("Mapping[str, Any]", stored))
        bucket = kept.get("token_bucket")
        if isinstance(bucket, Mapping):
            kept["token_bucket"] = TokenBucket.from_wire(cast("Mapping[str, Any]", bucket))
        return kept

    def to_row(self, cost: float | None) -> list[object]:
        """Return field 11 of an `add` row: 0 if not given, tokens in thousandths (``lua/core/functions/add.lua``).

        A key alone, which is what most have, costs the server less.
        """
        rate, bucket = self.rate_limit, self.token_bucket
        if not (self.concurrency or rate or bucket or cost):
            return [self.key]
        return [
            self.key,
            self.concurrency or 0,
            rate.max if rate else 0,
            rate.duration if rate else 0,
            millitokens(bucket.capacity) if bucket else 0,
            millitokens(bucket.refill_rate) if bucket else 0,
            millitokens(cost) if cost else 0,
        ]


OrderingInput = Ordering | OrderingDict | str
"""Accepted values of the option `ordering`; a str is the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Limits of an ordering group.

    Attributes:
        concurrency: number of jobs that may be active at a time; None = no limit.
        rate_limit: number of jobs that may start per window; None = no limit.
        token_bucket: the bucket that pays the ``cost`` of jobs; None = no bucket.
    """

    concurrency: int | None = None
    rate_limit: RateLimit | None = None
    token_bucket: TokenBucket | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """State of an ordering group at one moment.

    Attributes:
        key: its ordering key.
        active: number of jobs that have one of its slots: active jobs, and started jobs that wait for their next
            attempt or step.
        parked: number of jobs that a worker found but could not start, because they wait for their turn, a slot or a
            limit. More jobs of the group may be waiting in the queue.
        next_seq: sequence number of the next job to start; adds to the group count from 1.
        limits: its limits.
        limited_until: end of a rate limit in effect, epoch ms by the server's clock; None = not rate limited.
    """

    key: str
    active: int
    parked: int
    next_seq: int
    limits: GroupLimits
    limited_until: int | None


"""Longest fair key, in UTF-16 code units."""
MAX_WEIGHT: Final = 1_000
NAME_PREFIX: Final = "\0name:"
"""Beginning of the keys that jobs with limited names have (lua/features/fair_keys/limited_names.lua)."""


def validate_fair_key(option: str, key: object) -> str:
    """Return a valid fair key: 1..256 characters, the first not NUL; otherwise raise GlideMQValidationError."""
    text = check_text(option, key, maximum=KEY_LENGTH)
    if text.startswith("\0"):
        raise GlideMQValidationError(option, key, "must not begin with a NUL character")
    return text


check_weight: Final = partial(check_int, minimum=1, maximum=MAX_WEIGHT)
"""Return a valid weight of a fair key; otherwise raise GlideMQValidationError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairKeyInfo:
    """State of a fair key at one moment.

    Attributes:
        key: the fair key.
        backlog: number of jobs that are ready and have not started. Delayed jobs are not counted.
        active: number of active jobs.
        weight: how many jobs of the key are served per job of a key with weight 1.
        concurrency: number of jobs that may be active at a time; None = no limit. This limit and the next two are those
            of the key, else those of `Queue.fair_keys.set_defaults`.
        rate_limit: number of jobs that may start per window; None = no limit.
        max_backlog: size of the backlog at which new jobs are rejected; None = no limit.
        paused: True if no job of the key is started.
        limited_until: end of a rate limit in effect, epoch ms by the server's clock; None = not rate limited.
    """

    key: str
    backlog: int
    active: int
    weight: int
    concurrency: int | None
    rate_limit: RateLimit | None
    max_backlog: int | None
    paused: bool
    limited_until: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FairKeyDefaults:
    """Limits of each fair key that has none of its own.

    Attributes:
        concurrency: number of jobs of a key that may be active at a time; None = no limit.
        rate_limit: number of jobs of a key that may start per window; None = no limit.
        max_backlog: number of ready jobs of a key at which new jobs are rejected; None = no limit.
    """

    concurrency: int | None = None
    rate_limit: RateLimit | None = None
    max_backlog: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NameLimits:
    """Limits of the jobs with a name, and their state at one moment.

    Attributes:
        name: name of the jobs.
        backlog: number of ready jobs that wait for the limits.
        active: number of active jobs that started since the name has limits.
        concurrency: number of jobs that may be active at a time; None = no limit.
        rate_limit: number of jobs that may start per window; None = no limit.
        limited_until: end of a rate limit in effect, epoch ms by the server's clock; None = not rate limited.
    """

    name: str
    backlog: int
    active: int
    concurrency: int | None
    rate_limit: RateLimit | None
    limited_until: int | None
