"""Test the report half of exchange: statuses, fencing, retries, releases, retention, metrics."""

from typing import Any

import pytest

from glidemq_py.testing import RespError
from tests.inside import AttemptStatus as S
from tests.inside import Finished, row, working
from tests.lua.own_support import START, OwnQueue


def add_many(q: OwnQueue, count: int):
    q.add(*[row("a", "", "{}") for _ in range(count)], quiet=True)


@pytest.mark.parametrize("options", [{}, {"lifo": True}, {"priority": 3}, {"rank": -1}, {"fair_key": "k"}])
def test_returned_jobs_are_the_next(q: OwnQueue, options: Any):
    q.add(*[row("a", "", "{}", **options) for _ in range(6)])
    order = list("654321" if "lifo" in options else "123456")
    jobs = q.fetch(4)
    assert [job.id for job in jobs] == order[:4]
    assert q.finish(*[job.returned() for job in reversed(jobs[1:])]) == [S.RELEASED] * 3
    assert [q.job(job.id)["attemptsMade"] for job in jobs] == ["0"] * 4
    assert [job.id for job in q.fetch(6)] == order[1:]
    assert q.finish(*[job.completed() for job in jobs[1:]]) == [S.STALE] * 3


# -- fencing -----------------------------------------------------------------------------------------------


def test_a_call_repeated_after_a_lost_reply_is_a_success(q: OwnQueue):
    add_many(q, 3)
    one, two, three = q.fetch(3)
    rows: list[Finished] = [one.completed("1"), two.failed(), three.failed(limit=2, backoff=50)]
    assert q.finish(*rows) == [S.OK, S.FAILED, S.RETRYING]
    before = [q.job(job_id) for job_id in "123"]
    q.advance(10)
    assert q.finish(*rows) == [S.ALREADY] * 3
    assert [q.job(job_id) for job_id in "123"] == before
    assert (q.metric("completed")["c"], q.metric("failed")["c"]) == (1, 1)
    assert len(q.events()) == 3


def test_a_newer_attempt_makes_the_older_one_stale(q: OwnQueue):
    q.add_job()
    old = q.take_one()
    q.finish(old.released())
    new = q.take_one("py-2")
    before = q.job("1")
    for finished in (old.completed(), old.failed(limit=9), old.failed(), old.released()):
        assert q.finish(finished) == [S.STALE]
    assert q.job("1") == before
    assert q.pending() == [(new.entry, "py-2")]
    assert q.finish(new.completed()) == [S.OK]


def test_job_key_of_other_type_counts_as_missing(q: OwnQueue):
    add_many(q, 2)
    one, two = q.fetch(2)
    q.redis("SET", "job:1", "foreign")
    assert q.finish(one.completed(), two.completed()) == [S.GONE, S.OK]


@pytest.mark.parametrize("junk", ["", "x", "nan", "-1", "1e300"])
def test_unusable_counters_of_a_job(q: OwnQueue, junk: str):
    q.push_entry(q.put_job("7", fence=junk, attemptsMade=junk, priority=junk))
    job = q.take_one()
    assert job.fence == 1
    assert q.finish(job.failed(limit=2, backoff=5)) == [S.RETRYING]
    assert q.job("7")["attemptsMade"] == "1"
    assert int(q.redis("ZSCORE", "scheduled", "7")) == START + 5


# -- retention ---------------------------------------------------------------------------------------------


def test_each_rule_of_a_call_is_applied(q: OwnQueue):
    add_many(q, 6)
    q.finish(*(job.completed() for job in q.fetch(5)))
    q.finish(q.take_one().completed(keep=-4))
    assert q.redis("ZRANGE", "completed", 0, -1) == ["3", "4", "5", "6"]
    q.advance(1)
    add_many(q, 3)
    rules: list[working.Keep] = [-8, -8, (2, 0)]
    q.finish(*(job.completed(keep=keep) for job, keep in zip(q.fetch(3), rules, strict=True)))
    assert q.redis("ZRANGE", "completed", 0, -1) == ["8", "9"]


# -- many at once ------------------------------------------------------------------------------------------


def test_too_many_rows_are_rejected_before_writing(q: OwnQueue):
    q.add_job()
    job = q.take_one()
    with pytest.raises(RespError, match="too many finished rows"):
        q.finish(*[job.completed()] * 1_001)
    assert q.state("1") == "active"


def test_old_metrics_are_trimmed(q: OwnQueue):
    minute = START - START % 60_000
    day = 86_400_000
    q.redis("HSET", "metrics:completed", f"m:{minute - day - 60_000}:c", 5, f"m:{minute - day - 60_000}:d", 50,
            f"m:{minute - day}:c", 7, "junk", "x")  # fmt: skip
    add_many(q, 2)
    one, two = q.fetch(2)
    q.finish(one.completed())
    q.finish(two.completed())
    assert q.resp.hash(q.key("metrics:completed")) == {f"m:{minute - day}:c": "7", "junk": "x", f"m:{minute}:c": "2"}


# -- keys of a foreign type --------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "fail"), [("completed", False), ("failed", True), ("scheduled", True)])
def test_job_stays_active_if_its_new_source_cannot_be_written(q: OwnQueue, suffix: str, fail: bool):
    add_many(q, 2)
    good, bad = q.fetch(2)
    q.redis("SET", suffix, "foreign")
    limit = 2 if suffix == "scheduled" else 0
    good_row = good.completed() if fail else good.failed()
    bad_row = bad.failed(limit=limit) if fail else bad.completed()
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.finish(good_row, bad_row)
    assert q.state(bad.id) == "active"
    assert q.pending() == [(bad.entry, "py-1")]
    assert q.redis("ZCARD", "completed" if fail else "failed") == 1  # what came before is written whole
    q.redis("DEL", suffix)
    assert q.finish(good_row, bad_row)[0] == S.ALREADY
    assert q.state(bad.id) != "active"
    assert q.pending() == []


def test_release_without_writable_place_keeps_job_active(q: OwnQueue):
    q.add_job(lifo=True)
    job = q.take_one()
    q.redis("SET", "lifo", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.finish(job.released())
    assert (q.state("1"), q.redis("ZCARD", "list-heartbeats")) == ("active", 1)
    q.redis("DEL", "lifo")
    assert q.finish(job.released()) == [S.RELEASED]


def test_unknown_row_kinds(q: OwnQueue):
    add_many(q, 1)
    job = q.take_one()
    with pytest.raises(RespError):
        q.finish(job.completed(), job.released()._replace(kind=99, id="1"))
    assert q.state("1") == "completed"
    assert q.redis("ZCARD", "completed") == 1


def test_no_metrics_and_quiet(q: OwnQueue):
    q.add(row("a", "", "{}"), row("b", "", "{}"), quiet=True)
    one, two = q.fetch(2)
    reply = q.exchange(0, [one.completed(), two.failed()], quiet=True, no_metrics=True)
    assert reply.statuses == [S.OK, S.FAILED]
    assert q.key_names().isdisjoint({"events", "metrics:completed", "metrics:failed"})
