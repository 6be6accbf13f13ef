"""The status of a suspension whose reply was lost, derived from the reply to the second report."""

import pytest

from tests.inside import AttemptStatus, FinishedAttempt, status_after_lost_reply, suspended


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        (AttemptStatus.ALREADY, AttemptStatus.SUSPENDED),  # it still waits, or waits for a worker by now
        (AttemptStatus.STALE, AttemptStatus.SUSPENDED),  # it has been resumed and fetched again
        (AttemptStatus.GONE, AttemptStatus.GONE),
        (AttemptStatus.SUSPENDED, AttemptStatus.SUSPENDED),
    ],
)
def test_suspension_that_is_reported_again(answer: AttemptStatus, meaning: AttemptStatus):
    row = suspended("1", "1-0", 1, 1, "reason", 50)
    run = type("R", (), {"job": type("J", (), {"attempts_made": 0})()})()
    assert status_after_lost_reply(FinishedAttempt(row, run, None, None, sent=True), answer) == meaning
