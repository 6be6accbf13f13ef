"""Conversion of durations and instants to milliseconds, and the clock for waits."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

from glidemq_py.errors import GlideMQValidationError

Milliseconds = int | timedelta
"""A duration; an `int` is in milliseconds."""

SECOND_MS: Final = 1_000
DAY_MS: Final = 86_400_000
MAX_DURATION_MS: Final = 10 * 365 * DAY_MS
"""Maximum delay, ttl, timeout or backoff: ten years."""
MAX_EPOCH_MS: Final = 2**42 - 1
"""Latest instant (May 2109). Scores of the scheduled set store the time and a priority in one 53-bit number."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MS: Final = timedelta(milliseconds=1)
_INSTANT: Final = "must be from 1970 to May 2109"


def to_ms(option: str, value: object, *, minimum: int = 0, maximum: int = MAX_DURATION_MS) -> int:
    """Return a duration in milliseconds, given an `int` (milliseconds) or a `timedelta`.

    A timedelta with a fraction of a millisecond is rounded away from zero: a positive duration never becomes 0.
    Booleans, floats (even 2.0) and strings are rejected, because they are often seconds.

    Args:
        option: name of the option, for the error.
        value: the duration.
        minimum: shortest valid duration, in milliseconds.
        maximum: longest valid duration, in milliseconds.

    Raises:
        GlideMQValidationError: not a duration, or not from ``minimum`` to ``maximum``.
    """
    if type(value) is int:
        ms = value
    elif isinstance(value, timedelta):
        ms = _whole_ms(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        ms = int(value)
    else:
        raise GlideMQValidationError(option, value, f"{_duration(minimum, maximum)}, not {type(value).__name__}")
    if not minimum <= ms <= maximum:
        raise GlideMQValidationError(option, value, _duration(minimum, maximum))
    return ms


def to_instant(option: str, value: object) -> datetime:
    """Return an aware datetime from 1970 to May 2109; a naive datetime is in local time.

    Raises:
        GlideMQValidationError: not a datetime, or out of range.
    """
    if not isinstance(value, datetime):
        raise GlideMQValidationError(option, value, f"must be a datetime, not {type(value).__name__}")
    try:
        instant = value if value.utcoffset() is not None else value.astimezone()
        ms = epoch_ms(instant)
    except (OverflowError, OSError, ValueError) as error:  # astimezone() raises them near the ends of its range
        raise GlideMQValidationError(option, value, f"{_INSTANT} ({error})") from error
    if not 0 <= ms <= MAX_EPOCH_MS:
        raise GlideMQValidationError(option, value, _INSTANT)
    return instant


def epoch_ms(instant: datetime) -> int:
    """Return the milliseconds since 1970 of an aware datetime, rounded up."""
    return -((_EPOCH - instant) // _ONE_MS)


def _whole_ms(value: timedelta) -> int:
    # Not -(-value // _ONE_MS): the largest timedelta cannot be negated.
    whole, rest = divmod(value, _ONE_MS)
    return whole + 1 if rest and whole >= 0 else whole


def _duration(minimum: int, maximum: int) -> str:
    return f"must be an integer (milliseconds) or a timedelta, from {minimum:,} to {maximum:,} ms"


def monotonic() -> float:
    """Return `time.monotonic`, also where freezegun has replaced that: a wait would never end."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def duration_text(seconds: float) -> str:
    """Return a duration for a log line: seconds up to two minutes, then minutes."""
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
