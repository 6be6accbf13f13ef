"""Scores, counters and times that are infinite, out of range or not numbers. They are repaired or replaced when they
are read.
"""

import pytest

from tests.inside import working
from tests.lua.own_support import BAND, OwnQueue
from tests.wire_library.support import WireQueue

PRIORITY_MAX = 2048


@pytest.mark.parametrize("delay", ["Infinity", "inf", "1e400", "1e308"])
def test_infinite_delay_of_a_node_producer_is_the_longest_delay(wire: WireQueue, delay: str):
    """A Node producer does not check `delay: Infinity`: its options hold null, the argument is the text Infinity."""
    job_id = wire.add(delay=delay, opts='{"delay":null}')
    assert wire.scores("scheduled") == {job_id: BAND - 1}
    assert wire.job(job_id)["state"] == "delayed"
    assert wire.job(job_id)["delay"] == str(BAND - 1)
    assert wire.promote() == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [("delay", "NaN"), ("delay", "-Infinity"), ("priority", "NaN"), ("priority", "Infinity"), ("priority", "-5")],
)
def test_unusable_numbers_count_as_zero(wire: WireQueue, option: str, value: str):
    job_id = wire.add(**{option: value})
    assert wire.state(job_id) == "waiting"
    assert wire.queued() == [job_id]


@pytest.mark.parametrize("priority", ["2049", "5000"])
def test_priority_out_of_range_is_the_last_one(wire: WireQueue, priority: str):
    job_id = wire.add(priority=priority)
    assert wire.scores("scheduled") == {job_id: PRIORITY_MAX * BAND}


def test_score_written_by_node_is_repaired(wire: WireQueue):
    """The library of a Node peer adds an infinite delay to the time and writes the score inf."""
    endless, due, gone = wire.add(delay=1), wire.add(delay=1), "gone"
    wire.redis("HSET", f"job:{endless}", "delay", "Infinity")
    for member in (endless, due, gone):
        wire.redis("ZADD", "scheduled", "inf", member)
    wire.now += 10
    assert wire.promote() == 1
    assert wire.scores("scheduled") == {endless: BAND - 1}
    assert wire.state(due) == "waiting"
    assert wire.call("nextDue", ["scheduled", "ratelimited"]) == BAND - 1


def test_unusable_id_counter_restarts_in_wire_library(wire: WireQueue):
    wire.redis("SET", "id", "junk")
    assert wire.add() != wire.add()


def test_trim_of_crowded_metrics_is_bounded(q: OwnQueue):
    for first in range(0, 25_000, 5_000):
        fields = (text for n in range(first, first + 5_000) for text in (f"junk{n}", "1"))
        q.redis("HSET", "metrics:completed", *fields)
    q.add_job()
    assert q.finish(q.take_one().completed()) == [working.AttemptStatus.OK]
    left = q.redis("HLEN", "metrics:completed")
    assert 25_000 - 2_000 <= left < 25_000
