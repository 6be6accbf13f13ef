"""Durations and instants: whole milliseconds, and nothing that could be seconds by mistake."""

from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py.errors import GlideMQValidationError
from tests.inside import MAX_DURATION_MS, MAX_EPOCH_MS, epoch_ms, to_instant, to_ms


class Wait(IntEnum):
    SHORT = 50


@given(st.integers(0, MAX_DURATION_MS))
def test_milliseconds_are_unchanged(ms):
    assert to_ms("delay", ms) == ms
    assert to_ms("delay", timedelta(milliseconds=ms)) == ms


@given(st.timedeltas(timedelta(microseconds=1), timedelta(days=3650)))
def test_positive_timedelta_is_rounded_up(value):
    ms = to_ms("delay", value, minimum=1)
    assert timedelta(milliseconds=ms - 1) < value <= timedelta(milliseconds=ms)


def test_an_int_subclass_becomes_a_plain_int():
    assert type(to_ms("delay", Wait.SHORT)) is int


@pytest.mark.parametrize("value", [True, False, 1.0, 1.5, float("nan"), "5", b"5", None, [5], 5j])
def test_invalid_duration_is_rejected(value):
    with pytest.raises(GlideMQValidationError, match="option 'delay'") as caught:
        to_ms("delay", value)
    assert caught.value.value is value


@pytest.mark.parametrize(
    "value", [-1, timedelta(microseconds=-1), timedelta.min, timedelta.max, MAX_DURATION_MS + 1, 10**30]
)
def test_value_out_of_range_is_rejected(value):
    with pytest.raises(GlideMQValidationError, match=r"from 0 to 315,360,000,000 ms"):
        to_ms("delay", value)


def test_minimum_and_maximum_are_allowed_themselves():
    assert to_ms("lock_duration", 1000, minimum=1000, maximum=2000) == 1000
    assert to_ms("lock_duration", timedelta(seconds=2), minimum=1000, maximum=2000) == 2000
    with pytest.raises(GlideMQValidationError, match="from 1,000 to"):
        to_ms("lock_duration", 999, minimum=1000, maximum=2000)


def test_an_aware_datetime_is_kept():
    instant = datetime(2030, 5, 6, 7, 8, 9, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert to_instant("run_at", instant) is instant


def test_a_naive_datetime_is_local_time():
    naive = datetime(2030, 5, 6, 7, 8, 9)  # noqa: DTZ001
    instant = to_instant("run_at", naive)
    assert instant.utcoffset() is not None
    assert instant.timestamp() == naive.timestamp()


@given(st.integers(0, MAX_EPOCH_MS))
def test_an_instant_in_milliseconds(ms):
    assert epoch_ms(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)) == ms


def test_an_instant_is_rounded_up():
    assert epoch_ms(datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)) == 1001


@pytest.mark.parametrize(
    "value",
    [
        1_800_000_000_000,
        "2030-01-01",
        None,
        datetime(1969, 12, 31, tzinfo=UTC),
        datetime(2200, 1, 1, tzinfo=UTC),
        datetime.min,  # noqa: DTZ901
        datetime.max,  # noqa: DTZ901
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
        datetime(2030, 1, 1, tzinfo=UTC).date(),
    ],
)
def test_invalid_instant_is_rejected(value):
    with pytest.raises(GlideMQValidationError, match="option 'run_at'"):
        to_instant("run_at", value)
