"""How times are given: whole milliseconds, or `timedelta` and `datetime`. Nothing reads a clock here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from glidemq_py.errors import GlideMQValidationError

Milliseconds = int | timedelta
"""A duration: an `int` is milliseconds."""

SECOND_MS: Final = 1_000
DAY_MS: Final = 86_400_000
MAX_DURATION_MS: Final = 10 * 365 * DAY_MS
"""Ten years: the longest delay, ttl, timeout or backoff accepted."""
MAX_EPOCH_MS: Final = 2**42 - 1
"""Latest instant a scheduled score can hold beside a priority (May 2109); spec/data-model section 7."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MS: Final = timedelta(milliseconds=1)


def to_ms(option: str, value: object, *, minimum: int = 0, maximum: int = MAX_DURATION_MS) -> int:
    """Milliseconds of an `int` or `timedelta`.

    A timedelta that is no whole number of milliseconds is rounded away from zero, so that a positive duration
    never becomes none. Booleans, floats (even 2.0) and strings are refused: they are how seconds are mistaken
    for milliseconds. Raises `GlideMQValidationError` also outside `minimum`..`maximum`.
    """
    if type(value) is int:
        ms = value
    elif isinstance(value, timedelta):
        ms = _whole_ms(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        ms = int(value)
    else:
        raise GlideMQValidationError(
            option, value, f"must be an int (milliseconds) or a timedelta, not {type(value).__name__}"
        )
    if ms < minimum:
        raise GlideMQValidationError(option, value, f"must be >= {minimum}{_unit(value)}")
    if ms > maximum:
        raise GlideMQValidationError(option, value, f"must be <= {maximum}{_unit(value)}")
    return ms


def to_instant(option: str, value: object) -> datetime:
    """An aware datetime; a naive one is taken as local time. 1970-01-01 up to May 2109."""
    if not isinstance(value, datetime):
        raise GlideMQValidationError(option, value, f"must be a datetime, not {type(value).__name__}")
    try:
        instant = value if value.utcoffset() is not None else value.astimezone()
        ms = epoch_ms(instant)
    except (OverflowError, OSError, ValueError) as error:  # what astimezone() raises near the ends of time
        raise GlideMQValidationError(option, value, f"cannot be placed in time ({error})") from error
    if not 0 <= ms <= MAX_EPOCH_MS:
        raise GlideMQValidationError(option, value, "must lie between 1970 and May 2109")
    return instant


def epoch_ms(instant: datetime) -> int:
    """Milliseconds since 1970 of an aware datetime, rounded up: never before the instant."""
    return -((_EPOCH - instant) // _ONE_MS)


def _whole_ms(value: timedelta) -> int:
    # Not -(-value // _ONE_MS): the largest timedelta cannot be negated.
    whole, rest = divmod(value, _ONE_MS)
    return whole + 1 if rest and whole >= 0 else whole


def _unit(value: object) -> str:
    return " ms" if isinstance(value, timedelta) else ""
