"""Ordering groups as a queue reports them. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from glidemq_py._features.limits.options import RateLimit, TokenBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """What bounds a group.

    Attributes:
        concurrency: jobs that may run at a time; None = any number.
        rate_limit: jobs that may begin in a window; None = any number.
        token_bucket: what they pay from; None = they pay nothing.
    """

    concurrency: int | None = None
    rate_limit: RateLimit | None = None
    token_bucket: TokenBucket | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """One group at one moment.

    Attributes:
        key: its ordering key.
        active: jobs that hold one of its slots: those that run, and those that have begun and wait for their next
            attempt or step.
        parked: jobs that were met and have to wait for their turn, a slot or a limit. Others of the group may stand
            in the queue unmet.
        next_seq: number, counted from 1 by adds to the group, of the job that is to begin next.
        limits: what bounds it.
        limited_until: when its limits will let it go on (milliseconds since 1970 by the server's clock), where they
            hold it up; None = they do not.
    """

    key: str
    active: int
    parked: int
    next_seq: int
    limits: GroupLimits
    limited_until: int | None
