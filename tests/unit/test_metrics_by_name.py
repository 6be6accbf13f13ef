"""Test the histograms and the recorder of figures per job name."""

import random
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py import CheckReport, FailedAttempt, FailureReason, Finding, FindingKind, Job, JobState
from glidemq_py._features.metrics_by_name import MINUTE_MS, Recorder, Times, bucket_of, middle_of
from tests.inside import AttemptStatus, last_run_time, last_start, requeues

NOW = 1_800_000_000_000 - 1_800_000_000_000 % MINUTE_MS
OK, FAILED, RETRYING = AttemptStatus.OK, AttemptStatus.FAILED, AttemptStatus.RETRYING


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
    recorder.add("a", AttemptStatus.STALE, 1, 1, NOW + 1)
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


# -- what the recorded attempts of a job show about its start, its run time and its requeues -------


def attempt(number: int, started: int | None, failed: int, error: str = "x", kind: str = "ValueError") -> FailedAttempt:
    return FailedAttempt(
        number=number, started_at=started, failed_at=failed, worker="w", reason=FailureReason.EXPLICIT_FAIL,
        error=error, error_type=kind,
    )  # fmt: skip


def recovered(number: int, started: int, failed: int) -> FailedAttempt:
    return attempt(number, started, failed, "the lock of the job was not renewed", "")


def job(state: JobState, processed_on: int | None, finished_on: int | None = None, made: int = 0) -> Job:
    found = SimpleNamespace(state=state, processed_on=processed_on, finished_on=finished_on, attempts_made=made)
    return cast("Job", found)


S = JobState


@pytest.mark.parametrize(("found", "attempts", "start", "run_time"), [
    (job(S.WAITING, None), [], None, None),
    (job(S.ACTIVE, 50, made=1), [], 50, None),
    (job(S.COMPLETED, 50, 80, made=1), [attempt(1, 10, 20)], 50, 30),
    (job(S.FAILED, 20, 20, made=1), [attempt(1, 10, 20)], 10, 10),
    (job(S.FAILED, 20, 20, made=1), [], None, None),
    (job(S.DELAYED, 20, made=1), [attempt(1, 10, 20)], 10, None),
    (job(S.DELAYED, 20, made=1), [], None, None),
    (job(S.WAITING, 20, made=1), [attempt(1, 10, 20)], 10, None),
    # A Node worker failed the second attempt.
    (job(S.FAILED, 40, 40, made=2), [attempt(1, 10, 20)], None, None),
    (job(S.DELAYED, 40, made=2), [attempt(1, 10, 20)], None, None),
    # The second attempt delayed its job.
    (job(S.DELAYED, 30, made=1), [attempt(1, 10, 20)], 30, None),
    (job(S.DELAYED, 30), [], 30, None),
    # Revoked: while waiting for a retry, and while active.
    (job(S.FAILED, 20, 90, made=1), [attempt(1, 10, 20), attempt(1, None, 90)], 10, None),
    (job(S.FAILED, 30, 90, made=1), [attempt(1, 10, 20), attempt(2, 30, 90)], 30, 60),
    # Stalled too often.
    (job(S.FAILED, 30, 90), [recovered(1, 10, 20), attempt(1, 30, 90, "stalled", "")], 30, 60),
    # Suspended, and no signal came in time.
    (job(S.FAILED, 90, 90), [attempt(0, None, 90)], None, None),
])  # fmt: skip
def test_start_and_run_time_are_those_of_the_last_attempt(
    found: Job, attempts: list[FailedAttempt], start: int | None, run_time: int | None
):
    assert last_start(found, attempts) == start
    assert last_run_time(found, attempts) == run_time


@pytest.mark.parametrize(("state", "made", "attempts", "places"), [
    (S.FAILED, 0, [], set()),
    (S.FAILED, 2, [attempt(1, 1, 2), attempt(2, 3, 4)], set()),
    (S.FAILED, 1, [attempt(1, 1, 2), attempt(1, 3, 4)], {1}),
    (S.FAILED, 1, [attempt(1, 1, 2), attempt(2, 3, 4), attempt(1, 5, 6)], {2}),
    (S.FAILED, 1, [attempt(n, n, n) for n in (1, 1, 1)], {1, 2}),
    # Recovered after a stall: the next attempt has the same number.
    (S.FAILED, 1, [recovered(1, 1, 2), attempt(1, 3, 4)], set()),
    (S.WAITING, 0, [recovered(1, 1, 2)], set()),
    (S.FAILED, 0, [attempt(1, 1, 2, "job stalled more than maxStalledCount", ""), attempt(1, 3, 4)], {1}),
    # Expired or revoked before an attempt.
    (S.FAILED, 0, [attempt(0, None, 2), attempt(0, None, 4)], {1}),
    (S.FAILED, 1, [attempt(1, 1, 2), attempt(1, None, 4)], set()),
    (S.FAILED, 0, [recovered(1, 1, 2), attempt(0, None, 4)], set()),
    # Revoked while active: recorded, but not counted.
    (S.FAILED, 0, [attempt(1, 1, 2)], set()),
    # Requeued after the last failure.
    (S.WAITING, 0, [attempt(1, 1, 2)], {1}),
    (S.COMPLETED, 0, [attempt(1, 1, 2), attempt(1, 3, 4)], {1, 2}),
    (S.WAITING, 0, [attempt(0, None, 2)], {1}),
    # Retried, and failed by a Node worker.
    (S.DELAYED, 1, [attempt(1, 1, 2)], set()),
    (S.DELAYED, 2, [attempt(1, 1, 2)], set()),
    (S.FAILED, 3, [attempt(1, 1, 2), attempt(3, 3, 4)], set()),
])  # fmt: skip
def test_requeue_is_found_between_attempts(state: JobState, made: int, attempts: list[FailedAttempt], places: set[int]):
    assert requeues(state, made, attempts) == places


# -- the text of a consistency report --------------------------------------------------------------


def findings(kind: FindingKind, count: int) -> list[Finding]:
    return [Finding(kind=kind, subject=str(number), detail="x") for number in range(count)]


def test_report_prints_20_findings_and_counts_the_others_by_kind():
    found = findings(FindingKind.GHOST, 21) + findings(FindingKind.TWICE, 17_000) + findings(FindingKind.COUNTER, 3)
    lines = str(CheckReport(queue="q", findings=tuple(found), jobs=5)).split("\n")
    assert lines[0] == "queue 'q': 17024 findings, 0 repaired (5 jobs, 0 groups)"
    assert lines[1:21] == [f"  ghost: {number}: x" for number in range(20)]
    assert lines[21:] == ["  and 17,004 more: twice 17,000, counter 3, ghost 1"]


def test_short_report_prints_all_findings():
    report = CheckReport(queue="q", findings=tuple(findings(FindingKind.GHOST, 20)))
    assert str(report).count("\n") == 20
    assert "more" not in str(report)
