"""Parse cron patterns, compute their matches in a time zone with daylight saving time (epoch ms), say them in words.

A pattern has five fields (minute, hour, day of month, month, day of week) or six, with the seconds *first*. A field is
`*`, a number, a range `a-b`, either of them with a step `/s`, or a list of these. Months and weekdays may be named
(JAN, MON-FRI), Sunday is 0 or 7, and the usual macros are supported. Everything else is rejected. Node clients parse
numbers only, so names are converted to numbers before the pattern is stored.

A pattern that names hours ("at 02:30") runs once per day: in a repeated hour it runs the first time, and a time that
does not exist runs at the end of the gap. A pattern for every hour ("every ten minutes") follows elapsed time: it runs
in both repeated hours, and runs in a missing hour are not made up. Only the common forms have words.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Literal

from glidemq_py._core.checks import check_choice, check_text
from glidemq_py._core.times import MAX_EPOCH_MS, epoch_ms
from glidemq_py.errors import GlideMQValidationError

DayMatch = Literal["and", "or"]
DAY_MATCHES: Final = ("and", "or")

_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS: Final = {name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}
_LAST_DAY: Final = ("7", "SUN")
_LONGEST_MONTH: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_TOKEN: Final = re.compile(r"(\*|(?P<first>[0-9A-Z]+)(?:-(?P<last>[0-9A-Z]+))?)(?:/(?P<step>[0-9]+))?", re.ASCII)
_QUARTZ: Final = re.compile(r"[?#]|^L|[0-9]L|[0-9]W|LW|^W", re.ASCII)
_LENGTH: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """The allowed values of one field."""

    what: str
    low: int
    high: int
    names: dict[str, int]


_FIELDS: Final = (
    _Field(what="second", low=0, high=59, names={}),
    _Field(what="minute", low=0, high=59, names={}),
    _Field(what="hour", low=0, high=23, names={}),
    _Field(what="day of month", low=1, high=31, names={}),
    _Field(what="month", low=1, high=12, names=_MONTHS),
    _Field(what="day of week", low=0, high=6, names=_WEEKDAYS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CronPattern:
    """A parsed pattern.

    Attributes:
        text: the pattern with numbers only, in five or six fields.
        has_seconds: the pattern has six fields.
        seconds: matching seconds, ascending.
        minutes: matching minutes, ascending.
        hours: matching hours, ascending.
        days: matching days of the month.
        months: matching months, 1..12.
        weekdays: matching days of the week; Sunday is 0.
        either_day: a day matches if *one* of the two day fields matches; otherwise both must match.
    """

    text: str
    has_seconds: bool
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool

    @property
    def is_fixed_time(self) -> bool:
        """True if the pattern names hours of the day.

        A pattern for every hour follows elapsed time instead, across changes of the clock.
        """
        return len(self.hours) < 24


def parse_cron(pattern: object, day_match: object = "and", option: str = "pattern") -> CronPattern:
    """Parse a cron pattern.

    Args:
        pattern: five fields, six with the seconds first, or a macro such as ``@daily``.
        day_match: "and": both day fields must match, as in glide-mq; "or": one is enough if both are restricted.
        option: name of the option in errors.

    Raises:
        GlideMQValidationError: the pattern is invalid, or no day can ever match it.
    """
    given = check_text(option, pattern, maximum=_LENGTH)
    rule = check_choice("day_match", day_match, DAY_MATCHES)
    text = given.strip().upper()
    if text.startswith("@"):
        macro = _MACROS.get(text.lower())
        if macro is None:
            raise GlideMQValidationError(option, given, f"unknown macro; must be one of {', '.join(_MACROS)}")
        text = macro
    fields = text.split()
    if len(fields) not in (5, 6):
        problem = f"must have 5 fields, or 6 with the seconds first, not {len(fields)}"
        raise GlideMQValidationError(option, given, problem)
    has_seconds = len(fields) == 6
    kinds = _FIELDS if has_seconds else _FIELDS[1:]
    try:
        read = [_read(field, kind) for field, kind in zip(fields, kinds, strict=True)]
    except ValueError as error:
        raise GlideMQValidationError(option, given, str(error)) from None
    seconds = read[0][0] if has_seconds else {0}
    minutes, hours, days, months, weekdays = (numbers for numbers, _ in read[-5:])
    either = rule == "or" and len(days) < 31 and len(weekdays) < 7
    if not either and not any(min(days) <= _LONGEST_MONTH[month - 1] for month in months):
        raise GlideMQValidationError(option, given, "never matches: these months have no such day")
    return CronPattern(
        text=" ".join(text for _, text in read), has_seconds=has_seconds,
        seconds=tuple(sorted(seconds)), minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)), days=frozenset(days), months=frozenset(months), weekdays=frozenset(weekdays),
        either_day=either,
    )  # fmt: skip


def _read(text: str, kind: _Field) -> tuple[set[int], str]:
    """Return the values of a field, and the field as text with numbers only."""
    numbers: set[int] = set()
    written: list[str] = []
    for token in text.split(","):
        found, as_text = _read_token(token, kind)
        numbers |= found
        written.append(as_text)
    return numbers, ",".join(written)


def _read_token(token: str, kind: _Field) -> tuple[set[int], str]:
    if _QUARTZ.search(token) and token not in kind.names:
        raise ValueError(f"{kind.what} {token!r}: L, W, # and ? are not supported")
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise ValueError(f"{kind.what} {token!r} is invalid")
    step = int(match["step"]) if match["step"] else 1
    most = kind.high - kind.low + 1
    if not 1 <= step <= most:
        raise ValueError(f"{kind.what} {token!r}: the step must be 1..{most}")
    if match["first"] is None:
        return set(range(kind.low, kind.high + 1, step)), token if match["step"] is None else f"*/{step}"
    first = _number(match["first"], kind)
    # At the end of a range, Sunday is 7.
    last = _number(match["last"], kind, ends=True) if match["last"] else first
    if match["last"] is None and match["step"]:
        last = kind.high  # n/s: from n on
    if last == 7 and match["first"] in _LAST_DAY:
        last = first  # from Sunday to the same Sunday
    if last < first:
        raise ValueError(f"{kind.what} {token!r}: a range must not end before it begins")
    values = range(first, last + 1, step)
    if last > kind.high:
        numbers = [value % 7 for value in values]
        return set(numbers), ",".join(map(str, numbers))
    if first == last:
        return {first}, str(first)
    return set(values), f"{first}-{last}" + (f"/{step}" if match["step"] else "")


def _number(text: str, kind: _Field, *, ends: bool = False) -> int:
    if text.isdigit() and len(text) <= 4:
        number = int(text)
        is_weekday = kind.names is _WEEKDAYS
        if is_weekday and number == 7:
            return 7 if ends else 0
        if not kind.low <= number <= kind.high:
            raise ValueError(f"{kind.what} {text} is not in {kind.low}..{kind.high}")
        return number
    named = kind.names.get(text)
    if named is None:
        raise ValueError(f"{kind.what} {text!r} is invalid")
    return 7 if ends and text == "SUN" else named


HORIZON_YEARS: Final = 40
"""Years in which a match is searched: a February 29 on a given weekday comes after 40 years at most."""

_WEEK_MS: Final = 7 * 86_400_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def instants(pattern: CronPattern, zone: tzinfo, after: int) -> Iterator[int]:
    """Yield the matches strictly after a time, in order."""
    at = next_instant(pattern, zone, after)
    while at is not None:
        yield at
        at = next_instant(pattern, zone, at)


def next_instant(pattern: CronPattern, zone: tzinfo, after: int) -> int | None:
    """Return the first match strictly after a time, or None if there is none within `HORIZON_YEARS`."""
    last_year = as_datetime(after, UTC).year + HORIZON_YEARS
    find = _by_the_clock if pattern.is_fixed_time or zone is UTC else _by_time_that_passes
    at = find(pattern, zone, after, last_year)
    return None if at is None or at > MAX_EPOCH_MS else at


# -- wall time ------------------------------------------------------------------------------------------------


def _next_wall(pattern: CronPattern, after: datetime, last_year: int) -> datetime | None:
    """Return the first matching local time strictly after ``after``."""
    from croniter import CroniterBadDateError, croniter  # loaded only by a process that has schedulers

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


def as_datetime(at: int, zone: tzinfo) -> datetime:
    """Return an epoch ms time as an aware datetime."""
    return (_EPOCH + timedelta(milliseconds=at)).astimezone(zone)


def _offset_ms(at: int, zone: tzinfo) -> int:
    offset = as_datetime(at, zone).utcoffset()
    return 0 if offset is None else offset // timedelta(milliseconds=1)


def _by_the_clock(pattern: CronPattern, zone: tzinfo, after: int, last_year: int) -> int | None:
    wall: datetime | None = as_datetime(after, zone).replace(tzinfo=None)
    while wall is not None:
        wall = _next_wall(pattern, wall, last_year)
        if wall is not None and (at := _instant_of(wall, zone)) > after:
            return at
    return None


def _instant_of(wall: datetime, zone: tzinfo) -> int:
    """Return the first epoch ms at which clocks show a local time, or the end of the gap if they never show it."""
    at = epoch_ms(wall.replace(tzinfo=zone).astimezone(UTC))
    if as_datetime(at, zone).replace(tzinfo=None) == wall:
        return at
    return _change(epoch_ms(wall.replace(tzinfo=zone, fold=1).astimezone(UTC)), at, zone)


def _change(before: int, after: int, zone: tzinfo) -> int:
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


def _by_time_that_passes(pattern: CronPattern, zone: tzinfo, after: int, last_year: int) -> int | None:
    at, offset = after, _offset_ms(after, zone)
    while True:
        shown = as_datetime(at + offset, UTC).replace(tzinfo=None)
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
        if as_datetime(at, zone).year > last_year:
            return None


_DAYS: Final = ("Sundays", "Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays")
_MOST_TIMES: Final = 4
_SHORTEST_MONTH: Final = 28


def pattern_in_words(pattern: str) -> str:
    """Return a valid cron pattern in words, such as "at 09:00 on weekdays"; '' if its form is not a common one."""
    text = pattern.strip().lower()
    if text in ("@yearly", "@annually"):
        return "at 00:00 on January 1"
    fields = _MACROS.get(text, text).split()
    if len(fields) == 6 and fields[0] == "0":
        fields = fields[1:]
    if len(fields) != 5:
        return ""
    minute, hour, day, month, weekday = fields
    time = _time(minute, hour)
    days = _days(day, weekday) if month == "*" else None
    if not time or days is None:
        return ""
    if days:
        return f"{time} {days}"
    return f"{time} every day" if time.startswith("at ") else time


def _time(minute: str, hour: str) -> str:
    """Return the minutes and hours in words; '' if they are not of a common form."""
    if hour == "*":
        step = _step(minute, 60)
        if step:
            return "every minute" if step == 1 else f"every {step} minutes"
        if not _is_number(minute):
            return ""
        return "every hour" if int(minute) == 0 else f"every hour at minute {int(minute)}"
    if not _is_number(minute):
        return ""
    step = _step(hour, 24)
    if step:
        every = "every hour" if step == 1 else f"every {step} hours"
        return every if int(minute) == 0 else f"{every} at minute {int(minute)}"
    hours = hour.split(",")
    if len(hours) > _MOST_TIMES or not all(map(_is_number, hours)):
        return ""
    return f"at {_joined([f'{each:02}:{int(minute):02}' for each in sorted({int(each) for each in hours})])}"


def _days(day: str, weekday: str) -> str | None:
    """Return the days in words, '' for every day; None if they are not of a common form."""
    if weekday == "*":
        if day == "*":
            return ""
        return f"on day {int(day)} of each month" if _is_number(day) and int(day) <= _SHORTEST_MONTH else None
    if day != "*":  # whether both must match depends on the schedule
        return None
    for name, number in _WEEKDAYS.items():
        weekday = re.sub(rf"\b{name}\b", str(number), weekday, flags=re.IGNORECASE)
    if weekday == "1-5":
        return "on weekdays"
    parts = weekday.split(",")
    if not all(re.fullmatch("[0-7]", each) for each in parts):
        return None
    numbers = {int(each) % 7 for each in parts}
    if numbers == {0, 6}:
        return "on weekends"
    return f"on {_joined([_DAYS[each] for each in sorted(numbers, key=lambda each: each or 7)])}"


def _step(field: str, whole: int) -> int:
    """Return the step of a field that matches at equal intervals, 1 for each; 0 if it does not."""
    if field == "*":
        return 1
    found = re.fullmatch(r"\*/([1-9]\d?)", field)
    return int(found[1]) if found and whole % int(found[1]) == 0 and int(found[1]) < whole else 0


def _is_number(field: str) -> bool:
    return re.fullmatch(r"\d{1,2}", field) is not None


def _joined(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
