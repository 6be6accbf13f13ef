"""The job option `fair_key`, the limits of a fair key, and its state.

The server enforces them (lua/features/fair_keys).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from glidemq_py._core.checks import check_int, check_text
from glidemq_py._features.limits.options import RateLimit
from glidemq_py.errors import GlideMQValidationError

KEY_LENGTH: Final = 256
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


def check_weight(option: str, value: object) -> int:
    """Return a valid weight of a fair key; otherwise raise GlideMQValidationError."""
    return check_int(option, value, 1, MAX_WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairKeyInfo:
    """State of a fair key at one moment.

    Attributes:
        key: the fair key.
        backlog: number of jobs that are ready and have not started. Delayed jobs are not counted.
        active: number of active jobs.
        weight: how many jobs of the key are served per job of a key with weight 1.
        concurrency: number of jobs that may be active at a time; None = no limit. This limit and the next two are those
            of the key, else those of `Queue.set_fair_key_defaults`.
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
