"""Scores, counters and times that are infinite, out of range or not numbers. They are repaired or replaced when they
are read.
"""

import re

import pytest

from tests.inside import consistency_calls as checking
from tests.inside import reading, working
from tests.inside import suspend as suspending
from tests.lua.own_support import BAND, START, OwnQueue
from tests.wire_library.support import WireQueue

PRIORITY_MAX = 2048
SCHEDULED_END = (PRIORITY_MAX + 1) * BAND
UNUSABLE_SCORES = ("inf", "1e300", str(SCHEDULED_END))


def score_of(q: OwnQueue | WireQueue, job_id: str, suffix: str = "scheduled") -> float:
    return float(q.redis("ZSCORE", suffix, job_id))


# -- scheduled jobs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", UNUSABLE_SCORES)
def test_unusable_score_does_not_hang_a_report(q: OwnQueue, score: str):
    q.add_job()
    fetched = q.take_one()
    q.redis("ZADD", "scheduled", score, "no such job")
    q.redis("ZADD", "scheduled", PRIORITY_MAX * BAND + START + 1000, "not due")
    assert q.finish(fetched.completed()) == [working.AttemptStatus.OK]
    assert q.redis("ZRANGE", "scheduled", 0, -1) == ["not due"]


@pytest.mark.parametrize("score", [*UNUSABLE_SCORES, "-inf", "-1e300"])
def test_job_with_unusable_score_is_fetched(q: OwnQueue, score: str):
    for number, options in enumerate(({"priority": 3}, {"delay": 5})):
        job_id = q.add_job(f"job {number}", **options)
        q.redis("ZADD", "scheduled", score, job_id)
    q.advance(10)
    assert sorted(job.fields["name"] for job in q.fetch(5)) == ["job 0", "job 1"]


def test_repair_restores_delay_and_priority(q: OwnQueue):
    job_id = q.add_job(priority=3, delay=1000)
    q.redis("ZADD", "scheduled", "inf", job_id)
    q.exchange(1)
    assert score_of(q, job_id) == 3 * BAND + START + 1000


@pytest.mark.parametrize("score", UNUSABLE_SCORES)
def test_read_functions_skip_unusable_scores(q: OwnQueue, score: str):
    q.add_job(priority=1, delay=1000)
    q.redis("ZADD", "scheduled", score, "no such job")
    assert q.counts()["delayed"] == 1
    assert q.counts()["band"] == 0
    assert q.run(reading.gauges(q.meta)).oldest == 0
    assert [row[0] for row in q.run(reading.page(q.meta, "delayed", "", 10, ["name"])).rows] == ["1"]


def test_check_reports_and_repairs_unusable_scores(q: OwnQueue):
    q.make_group()
    delayed, completed = q.add_job(delay=1000), q.add_job()
    q.finish(q.take_one().completed())
    for suffix, job_id in (("scheduled", delayed), ("completed", completed)):
        q.redis("ZADD", suffix, "inf", job_id)
    lost = q.run(checking.check_jobs(q.meta, [delayed, completed])).lost
    assert [row[0] for row in lost] == [delayed, completed]
    assert q.run(checking.apply_repair(q.meta, [["lost", row[0], row[2]] for row in lost])) == [1, 1]
    assert score_of(q, delayed) == START + 1000
    assert score_of(q, completed, "completed") == START


def test_hostile_priorities_are_bounded_work(q: OwnQueue):
    """With members in more priorities than a report reads, a worker is woken up to be safe."""
    for band in range(1, 400):
        q.redis("ZADD", "scheduled", band * BAND + START + 10_000, f"later {band}")
    q.add_job()
    fetched = q.take_one()
    assert q.finish(fetched.completed()) == [working.AttemptStatus.OK]
    assert q.redis("XLEN", "wake") > 0


# -- values of peers -----------------------------------------------------------------------------------------


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


# -- groups --------------------------------------------------------------------------------------------------


def ordering(key: str, width: int = 1) -> list[object]:
    return [key, width, 0, 0, 0, 0, 0]


def test_infinite_group_limit_is_ended(q: OwnQueue):
    q.add_job(ordering=ordering("k"))
    q.redis("ZADD", "ratelimited", "inf", "k")
    assert len(q.fetch(1)) == 1


def test_window_that_begins_far_ahead_is_over(q: OwnQueue):
    q.add_job(ordering=["k", 5, 1, 1000, 0, 0, 0])
    q.redis("HSET", "group:k", "rateWindowStart", "1e300", "rateCount", 1)
    assert len(q.fetch(1)) == 1


def test_bucket_filled_far_ahead_is_filled_now(q: OwnQueue):
    q.add_job(ordering=["k", 5, 0, 0, 2000, 1000, 1000])
    q.redis("HSET", "group:k", "tbLastRefill", "1e300", "tbTokens", "-1e300")
    q.exchange(1)
    q.advance(10_000)
    assert len(q.fetch(1)) == 1


def test_parked_job_with_infinite_score_gets_its_place(q: OwnQueue):
    first, second = q.add_job(ordering=ordering("k")), q.add_job(ordering=ordering("k"))
    (running,) = q.fetch(2)
    assert running.id == first
    q.redis("ZADD", "groupq:k", "inf", second)
    q.recover_stalled()
    assert score_of(q, second, "groupq:k") == 2
    q.finish(running.completed())
    assert [job.id for job in q.fetch(1)] == [second]


# -- counters and times --------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", ["junk", str(2**63 - 1), "1e308", "-5", "0x10"])
def test_unusable_id_and_sequence_counters_restart(q: OwnQueue, junk: str):
    q.add_job(ordering=ordering("k"))
    q.redis("SET", "id", junk)
    q.redis("HSET", "ordering", "k", junk)
    ids = [q.add_job(ordering=ordering("k", 5)) for _ in range(2)]
    assert all(re.fullmatch(r"\d{1,14}", job_id) for job_id in ids)
    assert len(set(ids)) == 2
    assert len(q.fetch(5)) == 3


def test_unusable_id_counter_restarts_in_wire_library(wire: WireQueue):
    wire.redis("SET", "id", "junk")
    assert wire.add() != wire.add()


def test_stalled_job_with_future_heartbeat_is_recovered(q: OwnQueue):
    job_id = q.add_job(lifo=True)
    q.take_one()
    q.redis("ZADD", "list-heartbeats", "inf", job_id)
    assert q.recover_stalled().recovered == []
    q.advance(60_000)
    assert q.recover_stalled().recovered == [job_id]


def test_suspended_job_with_infinite_deadline_times_out(q: OwnQueue):
    job_id = q.add_job()
    q.finish(suspending.suspended(*q.take_one().token, "", 500))
    q.redis("ZADD", "suspended", "inf", job_id)
    assert q.run(suspending.sweep(q.meta)).failed == []
    assert score_of(q, job_id, "suspended") == START + 500
    q.advance(500)
    assert q.run(suspending.sweep(q.meta)).failed == [job_id]


def test_trim_of_crowded_metrics_is_bounded(q: OwnQueue):
    for first in range(0, 25_000, 5_000):
        fields = (text for n in range(first, first + 5_000) for text in (f"junk{n}", "1"))
        q.redis("HSET", "metrics:completed", *fields)
    q.add_job()
    assert q.finish(q.take_one().completed()) == [working.AttemptStatus.OK]
    left = q.redis("HLEN", "metrics:completed")
    assert 25_000 - 2_000 <= left < 25_000


@pytest.mark.parametrize("junk", ["junk", "inf", "nan", "1e308", str(2**63 - 1)])
def test_unusable_child_counter_restarts(q: OwnQueue, junk: str):
    q.put_job("parent", state="waiting-children", depsCompleted=junk)
    child = q.add_job(parent=["parent", q.name])
    assert q.finish(q.take_one().completed()) == [working.AttemptStatus.OK]
    assert q.state(child) == "completed"
    assert q.state("parent") == "waiting"
