"""A job's hash as typed values: reading never raises, for any content."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py import JobCounts, JobState
from glidemq_py._core.record import MAX_STACKTRACES, JobRecord

# The hash of a recorded job (golden "attempts") after its second attempt, with our additions.
FINISHED = {
    "attemptsMade": "1",
    "data": '{"kind":"attempts"}',
    "delay": "0",
    "failedReason": "planned failure 1",
    "finishedOn": "1795240424325",
    "id": "1",
    "lastActive": "1795240424323",
    "maxAttempts": "3",
    "name": "attempts",
    "opts": '{"attempts":3}',
    "priority": "0",
    "processedOn": "1795240424323",
    "progress": '{"pct":50}',
    "returnvalue": '{"by":"node"}',
    "state": "completed",
    "timestamp": "1795240424148",
    "eid": "1795240424148-0",
    "fence": "2",
    "failedType": "ValueError",
    "stacktrace": '["first","second"]',
}


def test_a_recorded_job():
    record = JobRecord.parse("1", FINISHED)
    assert record.state is JobState.COMPLETED
    assert record.state.is_finished
    assert (record.name, record.attempts_made) == ("attempts", 1)
    assert (record.timestamp, record.processed_on, record.finished_on) == (
        1795240424148,
        1795240424323,
        1795240424325,
    )
    assert (record.failed_reason, record.failed_type) == ("planned failure 1", "ValueError")
    assert record.stacktrace == ("first", "second")
    assert record.returnvalue == '{"by":"node"}'


def test_absent_and_empty_fields_are_none():
    record = JobRecord.parse("1", {"name": "n", "finishedOn": "", "failedReason": "", "processedOn": None})
    assert (record.finished_on, record.failed_reason, record.processed_on, record.timestamp) == (None,) * 4
    assert record.opts == "{}"


def test_rarer_fields():
    record = JobRecord.parse(
        "1",
        {
            "name": "n",
            "parentIds": '["1","2"]',
            "parentQueues": '["a","b"]',
            "tpmTokens": "12.5",
            "usage:model": "m",
            "usage:cached": "0",
            "cost": "1500",
            "delay": "1.5",
        },
    )
    assert (record.parent_ids, record.parent_queues) == (("1", "2"), ("a", "b"))
    assert (record.tpm_tokens, record.cost, record.delay) == (12.5, 1500, 1)
    assert record.usage == {"model": "m", "cached": "0"}


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("state", "sleeping"),
        ("timestamp", "soon"),
        ("timestamp", "nan"),
        ("timestamp", "1_000"),
        ("timestamp", "٣"),
        ("attemptsMade", "9" * 5000),
        ("attemptsMade", "1e99"),
        ("priority", "0x10"),
        ("stacktrace", "not json"),
        ("stacktrace", '{"a":1}'),
        ("stacktrace", "[1]"),
        ("stacktrace", "[" * 100_000),
        ("tpmTokens", "inf"),
        ("id", "2"),
    ],
)
def test_invalid_fields_are_skipped(field, text):
    without = {name: value for name, value in FINISHED.items() if name != field}
    record = JobRecord.parse("1", without | {field: text})
    assert replace(record, fields_read=()) == replace(JobRecord.parse("1", without), fields_read=())


def test_only_the_newest_stack_traces_are_read():
    text = "[" + ",".join(f'"{n}"' for n in range(50)) + "]"
    assert JobRecord.parse("1", {"name": "n", "stacktrace": text}).stacktrace == tuple(
        str(n) for n in range(50 - MAX_STACKTRACES, 50)
    )


@given(
    st.dictionaries(
        st.sampled_from([*FINISHED, "lifo", "revoked", "parentIds", "tpmTokens", "cost"]) | st.text(),
        st.none() | st.text() | st.sampled_from(["-1", "1e5", ".", "+", "--", "[]", "null", "-0", "9" * 30]),
    )
)
def test_reading_never_raises(fields):
    record = JobRecord.parse("1", fields)
    assert record.id == "1"


def test_counts():
    counts = JobCounts(waiting=1, active=2, delayed=3, prioritized=4, completed=5, failed=6, paused=True)
    assert (counts.unfinished, counts.total) == (10, 21)
