"""The job option `ordering` (validation, wire format), and the state of an ordering group. The server enforces it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict, cast

from glidemq_py._core.checks import check_int, check_mapping, check_text
from glidemq_py._features.limits.options import (
    RateLimit,
    RateLimitDict,
    TokenBucket,
    TokenBucketDict,
    bucket_to_wire,
    millitokens,
    parse_limit,
    rate_to_wire,
)
from glidemq_py.errors import GlideMQValidationError

KEY_LENGTH: Final = 256
"""Longest ordering key, in UTF-16 code units."""
MAX_GROUP_CONCURRENCY: Final = 1_000_000
_RESERVED: Final = "__"
_FIELDS: Final = ("key", "concurrency", "rate_limit", "token_bucket")


class _RequiredKeys(TypedDict):
    key: str


class OrderingDict(_RequiredKeys, total=False):
    """`Ordering` as a mapping."""

    concurrency: int
    rate_limit: RateLimit | RateLimitDict
    token_bucket: TokenBucket | TokenBucketDict


@dataclass(frozen=True, slots=True, init=False)
class Ordering:
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

    key: str
    concurrency: int | None
    rate_limit: RateLimit | None
    token_bucket: TokenBucket | None

    def __init__(
        self,
        key: str,
        *,
        concurrency: int | None = None,
        rate_limit: RateLimit | RateLimitDict | None = None,
        token_bucket: TokenBucket | TokenBucketDict | None = None,
    ) -> None:
        keep = object.__setattr__
        keep(self, "key", validate_ordering_key(key, "ordering.key"))
        keep(self, "concurrency", None if concurrency is None else check_group_concurrency(concurrency))
        rate = None if rate_limit is None else parse_limit("ordering.rate_limit", rate_limit, RateLimit)
        bucket = None if token_bucket is None else parse_limit("ordering.token_bucket", token_bucket, TokenBucket)
        keep(self, "rate_limit", rate)
        keep(self, "token_bucket", bucket)

    @classmethod
    def parse(cls, option: str, value: object) -> Ordering:
        """Return an `Ordering` from one, from a key, or from a mapping of its fields."""
        if isinstance(value, Ordering):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping):
            raise GlideMQValidationError(option, value, "must be an Ordering, a str or a mapping such as {'key': ...}")
        given = check_mapping(option, cast("object", value), _FIELDS)
        if given.get("key") is None:
            raise GlideMQValidationError(option, given, "requires a 'key'")
        return cls(**given)

    def to_wire(self) -> dict[str, Any]:
        """Return the `ordering` of the opts JSON."""
        wire: dict[str, Any] = {"key": self.key}
        if self.concurrency is not None:
            wire["concurrency"] = self.concurrency
        if self.rate_limit is not None:
            wire["rateLimit"] = rate_to_wire(self.rate_limit)
        if self.token_bucket is not None:
            wire["tokenBucket"] = bucket_to_wire(self.token_bucket)
        return wire

    def to_row(self, cost: float | None) -> list[object]:
        """Return field 11 of an `add` row: 0 if not given, tokens in thousandths (``lua/core/functions/add.lua``)."""
        rate, bucket = self.rate_limit, self.token_bucket
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


def validate_ordering_key(key: object, option: str = "key") -> str:
    """Return a valid ordering key: 1..256 characters, not ``__``.

    Raises:
        GlideMQValidationError: the key is invalid.
    """
    text = check_text(option, key, maximum=KEY_LENGTH)
    if text == _RESERVED:
        raise GlideMQValidationError(option, text, "is reserved")
    return text


def check_group_concurrency(value: object, option: str = "ordering.concurrency") -> int:
    """Return a valid concurrency of a group; otherwise raise GlideMQValidationError."""
    return check_int(option, value, 1, MAX_GROUP_CONCURRENCY)


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
