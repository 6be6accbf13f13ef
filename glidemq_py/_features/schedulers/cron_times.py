"""Compute when a cron pattern matches in a time zone with daylight saving time. All times are epoch ms.

A pattern that names hours ("at 02:30") runs once per day: in a repeated hour it runs the first time, and a time that
does not exist runs at the end of the gap. A pattern for every hour ("every ten minutes") follows elapsed time: it runs
in both repeated hours, and runs in a missing hour are not made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from croniter import CroniterBadDateError, croniter

from glidemq_py._core.times import MAX_EPOCH_MS, epoch_ms
from glidemq_py._features.schedulers.cron import CronPattern

__all__ = ["HORIZON_YEARS", "instants", "next_instant"]

HORIZON_YEARS: Final = 10
"""Years in which a match is searched, the same as in glide-mq."""

_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_WEEK_MS: Final = 7 * 86_400_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UTC: Final = ZoneInfo("UTC")


def instants(pattern: CronPattern, zone: ZoneInfo, after: int) -> Iterator[int]:
    """Yield the matches strictly after a time, in order."""
    at = next_instant(pattern, zone, after)
    while at is not None:
        yield at
        at = next_instant(pattern, zone, at)


def next_instant(pattern: CronPattern, zone: ZoneInfo, after: int) -> int | None:
    """Return the first match strictly after a time, or None if there is none within ten years."""
    last_year = (_EPOCH + timedelta(milliseconds=after)).year + HORIZON_YEARS
    find = _by_the_clock if pattern.is_fixed_time or zone is _UTC else _by_time_that_passes
    at = find(pattern, zone, after, last_year)
    return None if at is None or at > MAX_EPOCH_MS else at


# -- wall time ------------------------------------------------------------------------------------------------


def _next_wall(pattern: CronPattern, after: datetime, last_year: int) -> datetime | None:
    """Return the first matching local time strictly after ``after``."""
    start = after.replace(microsecond=0)
    search = croniter(
        pattern.text, start, day_or=pattern.either_day, second_at_beginning=pattern.has_seconds,
        max_years_between_matches=HORIZON_YEARS,
    )  # fmt: skip
    try:
        found: datetime = search.get_next(datetime)
    except CroniterBadDateError:
        return None
    return found if found.year <= last_year else None


# -- instants -------------------------------------------------------------------------------------------------


def _local(at: int, zone: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=at)).astimezone(zone)


def _offset_ms(at: int, zone: ZoneInfo) -> int:
    offset = _local(at, zone).utcoffset()
    return 0 if offset is None else offset // timedelta(milliseconds=1)


def _by_the_clock(pattern: CronPattern, zone: ZoneInfo, after: int, last_year: int) -> int | None:
    wall: datetime | None = _local(after, zone).replace(tzinfo=None)
    while wall is not None:
        wall = _next_wall(pattern, wall, last_year)
        if wall is not None and (at := _instant_of(wall, zone)) > after:
            return at
    return None


def _instant_of(wall: datetime, zone: ZoneInfo) -> int:
    """Return the first epoch ms at which clocks show a local time, or the end of the gap if they never show it."""
    at = epoch_ms(wall.replace(tzinfo=zone).astimezone(UTC))
    if _local(at, zone).replace(tzinfo=None) == wall:
        return at
    return _change(epoch_ms(wall.replace(tzinfo=zone, fold=1).astimezone(UTC)), at, zone)


def _change(before: int, after: int, zone: ZoneInfo) -> int:
    """Return the time in (before, after] at which the UTC offset changes."""
    offset = _offset_ms(before, zone)
    low, high = before // 1000, -(-after // 1000)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset_ms(middle * 1000, zone) == offset:
            low = middle
        else:
            high = middle
    return high * 1000


def _by_time_that_passes(pattern: CronPattern, zone: ZoneInfo, after: int, last_year: int) -> int | None:
    at, offset = after, _offset_ms(after, zone)
    while True:
        shown = (_EPOCH + timedelta(milliseconds=at + offset)).replace(tzinfo=None)
        wall = _next_wall(pattern, shown, last_year)
        found = None if wall is None else epoch_ms(wall.replace(tzinfo=UTC)) - offset
        # Search one week at a time, so that no change of the offset is missed.
        end = at + _WEEK_MS if found is None else min(found, at + _WEEK_MS)
        if _offset_ms(end, zone) != offset:
            change = _change(at, end, zone)
            if found is not None and found < change:
                return found
            at, offset = change - 1, _offset_ms(change, zone)
            continue
        if found is not None and found <= end:
            return found
        at = end
        if _local(at, zone).year > last_year:
            return None
