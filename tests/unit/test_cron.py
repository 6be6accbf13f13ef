"""Cron patterns: accepted and rejected patterns, and when they match, compared with croniter and with brute force."""

import itertools
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py import GlideMQValidationError, Schedule
from tests.inside import MAX_EPOCH_MS, CronPattern, instants, next_instant, parse_cron

UTC_ZONE = ZoneInfo("UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def ms(*parts: int) -> int:
    return round(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("pattern", "in_numbers"),
    [
        ("* * * * *", "* * * * *"),
        ("  */10   *  * * * ", "*/10 * * * *"),
        ("05 09 01 1 *", "5 9 1 1 *"),
        ("0 9 * * MON-FRI", "0 9 * * 1-5"),
        ("0 9 * jan,Dec sun", "0 9 * 1,12 0"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * 7-7", "0 0 * * 0"),
        ("0 0 * * sun-SUN", "0 0 * * 0"),
        ("0 0 * * 5-7", "0 0 * * 5,6,0"),
        ("0 0 * * SAT-SUN", "0 0 * * 6,0"),
        ("0 0 * * 1-7/2", "0 0 * * 1,3,5,0"),
        ("5/20 * * * *", "5-59/20 * * * *"),
        ("10-50/20 * * * *", "10-50/20 * * * *"),
        ("*/15 0 0 1 1 *", "*/15 0 0 1 1 *"),
        ("@daily", "0 0 * * *"),
        ("@Annually", "0 0 1 1 *"),
        ("@weekly", "0 0 * * 0"),
        ("@hourly", "0 * * * *"),
    ],
)
def test_patterns_are_stored_in_numbers(pattern: str, in_numbers: str):
    read = parse_cron(pattern)
    assert read.text == in_numbers
    assert parse_cron(in_numbers) == read


@pytest.mark.parametrize(
    "pattern",
    [
        "", " ", "*", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *",
        "* * * 0 *", "* * * * 8", "-1 * * * *", "1- * * * *", "5-1 * * * *", "* * * * FRI-MON", "*/0 * * * *",
        "*/61 * * * *", "1,,2 * * * *", "a * * * *", "* * * MON *", "* * * * JAN", "0 0 L * *", "0 0 15W * *",
        "0 0 LW * *", "0 0 * * 5#2", "0 0 ? * *", "0 0 * * 5L", "H * * * *", "@reboot", "@every 5m", "1.5 * * * *",
        "0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "\u0663 * * * *", "~ * * * *", "1-2-3 * * * *",
    ],
)  # fmt: skip
def test_invalid_patterns_are_rejected(pattern: str):
    with pytest.raises(GlideMQValidationError) as caught:
        parse_cron(pattern)
    assert caught.value.option == "pattern"


@pytest.mark.parametrize("pattern", [None, 5, b"* * * * *", ["*"]])
def test_other_types_are_rejected(pattern: object):
    with pytest.raises(GlideMQValidationError):
        parse_cron(pattern)


def test_both_day_fields_must_match_unless_either_day_is_set():
    friday_13th = next_instant(parse_cron("0 0 13 * 5"), UTC_ZONE, ms(2026, 6, 1))
    assert friday_13th == ms(2026, 11, 13)
    either = parse_cron("0 0 13 * 5", "or")
    assert list(itertools.islice(instants(either, UTC_ZONE, ms(2026, 6, 1)), 3)) == [
        ms(2026, 6, 5), ms(2026, 6, 12), ms(2026, 6, 13),
    ]  # fmt: skip
    # If one of them is unrestricted, only the other applies.
    assert not parse_cron("0 0 13 * *", "or").either_day
    assert not parse_cron("0 0 * * 5", "or").either_day


def test_an_impossible_day_is_allowed_beside_a_weekday():
    assert parse_cron("0 0 31 2 5", "or").either_day


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Europe/Berlin")])
@pytest.mark.parametrize("time", ["0 0", "* *"])
def test_rare_days_are_found(time: str, zone: tzinfo):
    leap_monday = parse_cron(f"{time} 29 2 1")
    for after, year in ((2026, 2044), (2045, 2072), (2073, 2112)):
        at = next_instant(leap_monday, zone, ms(after, 1, 1))
        expected = datetime(year, 2, 29, tzinfo=zone).timestamp() * 1000
        assert at == (expected if expected <= MAX_EPOCH_MS else None)


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


# -- `Schedule` ------------------------------------------------------------------------------------


NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "schedule"),
        ({"every": 5, "pattern": "* * * * *"}, "pattern"),
        ({"every": 5, "repeat_after_complete": 5}, "repeat_after_complete"),
        ({"every": 0}, "every"),
        ({"every": -5}, "every"),
        ({"every": 1.5}, "every"),
        ({"every": "5"}, "every"),
        ({"repeat_after_complete": 0}, "repeat_after_complete"),
        ({"pattern": "0 0 31 2 *"}, "pattern"),
        ({"pattern": "* * * * *", "tz": "Mars/Olympus"}, "tz"),
        ({"pattern": "* * * * *", "tz": "../../etc/passwd"}, "tz"),
        ({"pattern": "* * * * *", "tz": ""}, "tz"),
        ({"pattern": "* * * * *", "tz": 5}, "tz"),
        ({"pattern": "* * * * *", "tz": "localtime"}, "tz"),
        ({"every": 5, "tz": "Europe/Berlin"}, "tz"),
        ({"every": 5, "day_match": "or"}, "day_match"),
        ({"pattern": "* * * * *", "day_match": "xor"}, "day_match"),
        ({"every": 5, "misfire": "later"}, "misfire"),
        ({"repeat_after_complete": 5, "misfire": "skip"}, "misfire"),
        ({"every": 5, "overlap": "queue"}, "overlap"),
        ({"repeat_after_complete": 5, "overlap": "skip"}, "overlap"),
        ({"every": 5, "misfire": "fire_all", "overlap": "skip"}, "overlap"),
        ({"every": 5, "limit": 0}, "limit"),
        ({"every": 5, "limit": True}, "limit"),
        ({"every": 5, "start_date": "2027-01-01"}, "start_date"),
        ({"every": 5, "start_date": NOW, "end_date": NOW - 1}, "end_date"),
        ({"every": 5, "start_date": NOW, "immediately": True}, "immediately"),
        ({"every": 5, "immediately": 1}, "immediately"),
    ],
)
def test_invalid_part_is_named(options: Any, named: str):
    with pytest.raises(GlideMQValidationError) as caught:
        Schedule(**options)
    assert caught.value.option == named


def test_two_schedules_in_one_are_named():
    with pytest.raises(GlideMQValidationError) as caught:
        Schedule(every=5, pattern="@daily")
    assert str(caught.value) == "option 'pattern' = '@daily': options 'every' and 'pattern' are mutually exclusive"


def test_values_are_kept_in_milliseconds_and_numbers():
    start = datetime(2027, 1, 1, tzinfo=UTC)
    schedule = Schedule(every=timedelta(seconds=2), start_date=start, end_date=start + timedelta(days=1))
    assert (schedule.every, schedule.start_date) == (2_000, round(start.timestamp() * 1000))
    assert Schedule(pattern="@daily", tz=ZoneInfo("Europe/Berlin")).tz == "Europe/Berlin"
    assert Schedule(pattern="@daily").pattern == "0 0 * * *"


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"every": 1_000}, NOW + 1_000),
        ({"every": 1_000, "immediately": True}, NOW),
        ({"every": 1_000, "start_date": NOW + 5}, NOW + 5),
        ({"every": 1_000, "start_date": NOW - 300}, NOW + 700),
        ({"every": 1_000, "start_date": NOW - 1_000}, NOW),
        ({"every": 1_000, "end_date": NOW + 999}, None),
        ({"repeat_after_complete": 1_000}, NOW),
        ({"repeat_after_complete": 1_000, "start_date": NOW + 5}, NOW + 5),
        ({"pattern": "* * * * *"}, NOW),
        ({"pattern": "* * * * *", "start_date": NOW + 1}, NOW + 60_000),
        ({"pattern": "* * * * *", "end_date": NOW - 1}, None),
    ],
)
def test_the_first_instant(options: Any, first: int | None):
    assert NOW % 60_000 == 0
    assert Schedule(**options).first(NOW) == first


def test_missed_instants_of_an_interval_leave_its_grid_as_it_is():
    schedule = Schedule(every=1_000)
    assert schedule.following(NOW, NOW) == NOW + 1_000
    assert schedule.following(NOW, NOW + 999) == NOW + 1_000
    assert schedule.following(NOW, NOW + 1_000) == NOW + 2_000
    assert schedule.following(NOW, NOW + 12_345) == NOW + 13_000


def test_a_preview_ends_where_the_schedule_does():
    schedule = Schedule(every=1_000, limit=3, start_date=NOW)
    assert [round(at.timestamp() * 1000) - NOW for at in schedule.preview(9, after=NOW)] == [0, 1_000, 2_000]
    ends = Schedule(every=1_000, start_date=NOW, end_date=NOW + 1_500)
    assert len(ends.preview(9, after=NOW)) == 2
    assert len(Schedule(repeat_after_complete=5).preview(9)) == 1
    with pytest.raises(GlideMQValidationError):
        schedule.preview(0)


def test_preview_uses_the_time_zone_of_the_pattern():
    (instant,) = Schedule(pattern="0 12 * * *", tz="Asia/Tokyo").preview(1, after=NOW)
    assert (instant.hour, str(instant.tzinfo)) == (12, "Asia/Tokyo")


def test_same_times():
    schedule = Schedule(pattern="0 0 * * 1-5", tz="Europe/Berlin")
    assert schedule.same_times(Schedule(pattern="0 0 * * MON-FRI", tz="Europe/Berlin", limit=5, misfire="skip"))
    assert not schedule.same_times(Schedule(pattern="0 0 * * MON-FRI"))
    assert not schedule.same_times(Schedule(every=5))
