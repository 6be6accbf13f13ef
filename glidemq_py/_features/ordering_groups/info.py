"""State of an ordering group, as `Queue.get_group` returns it."""

from __future__ import annotations

from dataclasses import dataclass

from glidemq_py._features.limits.options import RateLimit, TokenBucket


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
