"""Test the histograms and the recorder of figures per job name."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py._features.metrics_by_name import MINUTE_MS, Recorder, Times, bucket_of, middle_of
from tests.inside import working

NOW = 1_800_000_000_000 - 1_800_000_000_000 % MINUTE_MS
OK, FAILED, RETRYING = working.AttemptStatus.OK, working.AttemptStatus.FAILED, working.AttemptStatus.RETRYING


@given(st.integers(0, 2**40))
def test_middle_of_the_bucket_is_close(milliseconds: int):
    assert abs(middle_of(bucket_of(milliseconds)) - milliseconds) <= milliseconds / 16


@given(st.integers(0, 2**41), st.integers(0, 2**41))
def test_buckets_are_ordered(one: int, other: int):
    assert (bucket_of(one) <= bucket_of(other)) == (one <= other) or bucket_of(one) == bucket_of(other)


def test_percentiles():
    chance = random.Random(1)
    durations = sorted(int(chance.lognormvariate(6, 1)) for _ in range(5_000))
    parts = [Times(), Times()]
    for number, duration in enumerate(durations):
        parts[number % 2].add(duration)
    merged = Times()
    for part in parts:
        merged.merge(part.packed())
    assert (merged.count, merged.total) == (5_000, sum(durations))
    for percent in (50, 95, 99):
        assert merged.percentile(percent) == pytest.approx(durations[5_000 * percent // 100 - 1], rel=0.07)
    assert Times().percentile(99) == 0


def test_malformed_times_are_survived():
    times = Times()
    for packed in ([], [1], ["a", None], [1, 2, 3], [1, 2, -3, 4], [1, 2, 10**9, 1]):
        times.merge(packed)
    assert times.percentile(99) >= 0


def test_rows_per_minute_and_name():
    recorder = Recorder()
    assert recorder.is_empty
    assert recorder.next_report() is None
    recorder.add("a", OK, 4, 10, NOW)
    recorder.add("a", RETRYING, 2, 20, NOW + 59_999)
    recorder.add("b", FAILED, None, 30, NOW + 1)
    recorder.add("a", working.AttemptStatus.STALE, 1, 1, NOW + 1)
    recorder.add("a", OK, -5, -1, NOW + 60_000)
    report = recorder.next_report()
    assert report is not None
    assert [row[:5] for row in report.rows] == [
        (NOW, "a", 1, 0, 1), (NOW, "b", 0, 1, 0), (NOW + 60_000, "a", 1, 0, 0),
    ]  # fmt: skip
    assert report.rows[0].wait == [2, 6, 2, 1, 4, 1]
    assert report.rows[1].wait == [0, 0]
    assert report.rows[2].run == [1, 0, 0, 1]


def test_report_is_repeated_until_stored():
    recorder = Recorder()
    recorder.add("a", OK, 1, 1, NOW)
    first = recorder.next_report()
    recorder.add("a", OK, 1, 1, NOW)
    assert recorder.next_report() is first
    recorder.stored()
    second = recorder.next_report()
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (1, 2)
    recorder.stored()
    assert recorder.is_empty


def test_bounded():
    recorder = Recorder()
    for number in range(3_000):
        recorder.add(f"name-{number}", OK, 1, 1, NOW)
    rows = 0
    names: set[object] = set()
    while (report := recorder.next_report()) is not None:
        assert len(report.rows) <= 50
        rows += sum(row.completed for row in report.rows)
        names.update(row.name for row in report.rows)
        recorder.stored()
    assert rows == 3_000
    assert len(names) == 1_001
    assert False in names


def test_many_different_durations_are_folded():
    recorder = Recorder()
    for number in range(10_000):
        recorder.add("a", OK, 5, number, NOW)
        recorder.add("b", OK, number, 5, NOW)
    report = recorder.next_report()
    assert report is not None
    for row, times in zip(report.rows, (report.rows[0].run, report.rows[1].wait), strict=True):
        assert row.completed == times[0] == 10_000
        assert times[1] == sum(range(10_000))
        assert len(times) < 250
