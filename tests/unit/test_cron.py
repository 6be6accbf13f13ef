"""When cron patterns match, compared with croniter and with brute force (tables/schedules.txt has the rest)."""

import itertools
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from tests.inside import CronPattern, instants, next_instant, parse_cron

UTC_ZONE = ZoneInfo("UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def ms(*parts: int) -> int:
    return round(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


# -- against croniter --------------------------------------------------------------------------------------------


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    # croniter takes `3-3` for everything.
    span = st.tuples(number, number).filter(lambda p: p[0] != p[1]).map(lambda p: f"{min(p)}-{max(p)}")
    step = st.integers(1, high - low).map(str)
    stepped = st.tuples(span, step).map("/".join)
    token = st.one_of(st.just("*"), number.map(str), span, step.map("*/{}".format), stepped)
    return st.lists(token, min_size=1, max_size=3).map(lambda tokens: "*" if "*" in tokens else ",".join(tokens))


PATTERNS = st.tuples(_field(0, 59), _field(0, 23), _field(1, 28), _field(1, 12), _field(0, 6)).map(" ".join)


@given(PATTERNS, st.integers(ms(2020, 1, 1), ms(2060, 1, 1)))
def test_matches_equal_croniter(pattern: str, after: int):
    base = EPOCH + timedelta(milliseconds=after)
    theirs = croniter(pattern, base, day_or=False, max_years_between_matches=10)
    ours = parse_cron(pattern)
    for _ in range(5):
        at = next_instant(ours, UTC_ZONE, after)
        try:
            expected = theirs.get_next(datetime)
        except Exception:
            assert at is None or at > ms(2029, 1, 1)
            return
        if at is None:
            assert expected.year - base.year >= 10
            return
        assert EPOCH + timedelta(milliseconds=at) == expected
        after = at


@given(_field(0, 59), PATTERNS, st.integers(ms(2020, 1, 1), ms(2060, 1, 1)))
def test_the_seconds_field_is_first(seconds: str, rest: str, after: int):
    ours = parse_cron(f"{seconds} {rest}")
    theirs = croniter(
        f"{rest} {seconds}", EPOCH + timedelta(milliseconds=after), day_or=False, max_years_between_matches=10
    )
    at = next_instant(ours, UTC_ZONE, after)
    try:
        expected = theirs.get_next(datetime)
    except Exception:
        return
    assert at is None or EPOCH + timedelta(milliseconds=at) == expected


@given(PATTERNS)
def test_patterns_in_numbers_round_trip(pattern: str):
    read = parse_cron(pattern)
    assert parse_cron(read.text) == read


# -- around the changes of the clocks, against brute force -------------------------------------------------------

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
YEAR = 2027
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Window:
    """The three days before and after a change of the clocks, minute by minute."""

    start: int
    end: int
    minutes: tuple[tuple[int, datetime, int], ...]
    """Epoch ms, local time, and 1 if the clocks show that time for the second time."""

    missing: tuple[int, tuple[datetime, ...]]
    """Local times that the clocks never show, after the epoch ms at which they would have been over."""


def _offset(at: int, info: ZoneInfo) -> timedelta | None:
    return (EPOCH + timedelta(milliseconds=at)).astimezone(info).utcoffset()


@cache
def _windows(zone: str) -> tuple[Window, ...]:
    info, first = ZoneInfo(zone), ms(YEAR, 1, 1)
    days = [first + n * DAY_MS for n in range(366)]
    changed = [day for day in days if _offset(day, info) != _offset(day + DAY_MS, info)]
    assert len(changed) == 2
    return tuple(_window(day - 3 * DAY_MS, day + 4 * DAY_MS, info) for day in changed)


def _window(start: int, end: int, info: ZoneInfo) -> Window:
    minutes: list[tuple[int, datetime, int]] = []
    missing: tuple[int, tuple[datetime, ...]] = (start, ())
    for at in range(start, end, 60_000):
        local = (EPOCH + timedelta(milliseconds=at)).astimezone(info)
        wall = local.replace(tzinfo=None, fold=0)
        if minutes and wall - minutes[-1][1] > MINUTE:
            gap = (wall - minutes[-1][1]) // MINUTE
            missing = (at, tuple(wall - n * MINUTE for n in range(1, gap)))
        minutes.append((at, wall, local.fold))
    return Window(start, end, tuple(minutes), missing)


def _shows(pattern: CronPattern, wall: datetime) -> bool:
    return (
        wall.minute in pattern.minutes
        and wall.hour in pattern.hours
        and wall.month in pattern.months
        and wall.day in pattern.days
        and wall.isoweekday() % 7 in pattern.weekdays
    )


def _brute(pattern: CronPattern, window: Window) -> list[int]:
    fixed = pattern.is_fixed_time
    found = {at for at, wall, again in window.minutes if _shows(pattern, wall) and not (fixed and again)}
    end_of_gap, walls = window.missing
    if fixed and any(_shows(pattern, wall) for wall in walls):
        found.add(end_of_gap)
    return sorted(found)


def _instants_in(pattern: CronPattern, zone: str, window: Window) -> list[int]:
    ours = instants(pattern, ZoneInfo(zone), window.start - 1)
    return list(itertools.takewhile(lambda at: at < window.end, ours))


CHANGING = (
    "30 2 * * *", "0 2 * * *", "45 1 * * *", "*/10 2 * * *", "*/20 1-3 * * *", "0 */2 * * *", "5 2 28 3 *",
    "5 2 14 3 *", "*/30 * * * *", "0 * * * *", "*/7 * 1-7 4,10,11 0",
)  # fmt: skip


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("pattern", CHANGING)
def test_matches_around_clock_changes(pattern: str, zone: str):
    read = parse_cron(pattern)
    for window in _windows(zone):
        assert _instants_in(read, zone, window) == _brute(read, window)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_random_patterns_around_clock_changes(zone: str):
    chance = random.Random(zone)
    for _ in range(8):
        hours = chance.choice(["*", str(chance.randrange(5)), f"{chance.randrange(3)}-{chance.randrange(3, 24)}"])
        pattern = parse_cron(
            f"{chance.choice(['*/15', '0', '30', '5,50'])} {hours} * {chance.choice(['*', '3,4,10,11'])} *"
        )
        for window in _windows(zone):
            assert _instants_in(pattern, zone, window) == _brute(pattern, window), pattern.text


@pytest.mark.parametrize("zone", ZONES)
def test_a_pattern_matches_every_day_of_a_year(zone: str):
    first, end = ms(YEAR, 1, 1), ms(YEAR + 1, 1, 1)
    ours = list(itertools.takewhile(lambda at: at < end, instants(parse_cron("15 12 * * *"), ZoneInfo(zone), first)))
    walls = [(EPOCH + timedelta(milliseconds=at)).astimezone(ZoneInfo(zone)) for at in ours]
    assert {(wall.hour, wall.minute) for wall in walls} == {(12, 15)}
    assert len({wall.date() for wall in walls}) == len(walls) == 365


def test_next_match_is_independent_of_the_start():
    info = ZoneInfo("Europe/Berlin")
    for text in ("30 2 * * *", "*/10 * * * *"):
        pattern = parse_cron(text)
        for window, day in zip(_windows("Europe/Berlin"), ((3, 28), (10, 31)), strict=True):
            start = ms(YEAR, *day)
            known = [at for at in _brute(pattern, window) if at > start]
            for at in range(start, start + 6 * 3_600_000, 123_457):
                assert next_instant(pattern, info, at) == next(each for each in known if each > at)
