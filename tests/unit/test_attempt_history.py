"""What the recorded attempts of a job show about its start, its run time and its requeues."""

from types import SimpleNamespace
from typing import cast

import pytest

from glidemq_py import FailedAttempt, FailureReason, Job, JobState
from tests.inside import last_run_time, last_start, requeues


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
