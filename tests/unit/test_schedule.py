"""`Schedule`: accepted values and due times."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from glidemq_py import GlideMQValidationError, Schedule

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
