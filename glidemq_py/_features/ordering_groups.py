"""The job option `ordering` (validation, wire format), and the state of an ordering group.

The server enforces it: lua/features/ordering_groups (admission: group_admit.lua).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, TypedDict

from glidemq_py._core.checked_options import Converted, OptionValue, option, parse_nested
from glidemq_py._core.checks import check_int, check_text
from glidemq_py._features.limits.options import (
    RateLimit,
    RateLimitDict,
    TokenBucket,
    TokenBucketDict,
    millitokens,
)
from glidemq_py.errors import GlideMQValidationError

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


def check_group_concurrency(option: str, value: object) -> int:
    """Return a valid concurrency of a group; otherwise raise GlideMQValidationError."""
    return check_int(option, value, 1, MAX_GROUP_CONCURRENCY)


class _RequiredKeys(TypedDict):
    key: str


class OrderingDict(_RequiredKeys, total=False):
    """`Ordering` as a mapping."""

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

    key: str = option(validate_ordering_key, wire="key")
    concurrency: int | None = option(check_group_concurrency, default=None, wire="concurrency", kw_only=True)
    rate_limit: Converted[RateLimit | None, RateLimit | RateLimitDict | None] = option(
        partial(parse_nested, kind=RateLimit), default=None, wire="rateLimit", encode=RateLimit.to_wire, kw_only=True
    )
    token_bucket: Converted[TokenBucket | None, TokenBucket | TokenBucketDict | None] = option(
        partial(parse_nested, kind=TokenBucket), default=None, wire="tokenBucket", encode=TokenBucket.to_wire,
        kw_only=True,
    )  # fmt: skip

    @classmethod
    def parse(cls, option: str, value: object) -> Ordering:
        """Return an `Ordering` from one, from a key, or from a mapping of its fields."""
        return cls(value) if isinstance(value, str) else parse_nested(option, value, cls, ", a str")

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
