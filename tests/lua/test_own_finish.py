"""Test the report half of exchange: statuses, fencing, retries, releases, retention, metrics."""

from typing import Any

import pytest

from glidemq_py._core.calls import working
from glidemq_py._core.calls.adding import row
from glidemq_py._core.calls.administration import remove
from glidemq_py._core.calls.working import AttemptStatus as S
from glidemq_py._core.calls.working import Finished, completed, failed
from glidemq_py.testing import RespError
from tests.lua.own_support import BAND, START, OwnQueue


def add_many(q: OwnQueue, count: int) -> None:
    q.add(*[row("a", "", "{}") for _ in range(count)], quiet=True)


def test_completed(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.advance(40)
    assert q.finish(job.completed('{"ok":1}')) == [S.OK]
    record = q.job("1")
    assert (record["state"], record["returnvalue"], record["finishedOn"]) == ("completed", '{"ok":1}', str(START + 40))
    assert q.redis("ZRANGE", "completed", 0, -1, "WITHSCORES") == ["1", str(START + 40)]
    assert (q.entries(), q.pending()) == ([], [])
    assert q.events("1")[-1] == {"event": "completed", "jobId": "1", "returnvalue": '{"ok":1}'}
    assert q.metric("completed") == {"c": 1, "d": 40}


def test_failed_without_retries(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.advance(7)
    assert q.finish(job.failed("no luck")) == [S.FAILED]
    record = q.job("1")
    assert (record["state"], record["attemptsMade"], record["failedReason"]) == ("failed", "1", "no luck")
    assert (record["failedType"], record["stacktrace"]) == ("ValueError", "Traceback")
    assert record["finishedOn"] == record["processedOn"] == str(START + 7)
    assert q.redis("ZRANGE", "failed", 0, -1) == ["1"]
    assert q.events("1")[-1] == {"event": "failed", "jobId": "1", "failedReason": "no luck"}
    assert q.metric("failed") == {"c": 1, "d": 7}
    assert q.pending() == []


def test_retried_until_the_limit(q: OwnQueue) -> None:
    q.add_job()
    q.redis("HSET", "job:1", "stalledCount", "1")
    assert q.finish(q.take_one().failed(limit=3, backoff=1_000)) == [S.RETRYING]
    record = q.job("1")
    assert (record["state"], record["attemptsMade"]) == ("delayed", "1")
    assert "stalledCount" not in record  # W39: the original counts on, and a job of many attempts fails for it
    assert int(q.redis("ZSCORE", "scheduled", "1")) == START + 1_000
    assert q.events("1")[-1] == {
        "event": "retrying", "jobId": "1", "failedReason": "boom", "attemptsMade": "1", "delay": "1000",
    }  # fmt: skip
    q.advance(999)
    assert q.fetch() == []
    q.advance(1)
    assert q.finish(q.take_one().failed(limit=3, backoff=0)) == [S.RETRYING]
    last = q.take_one()
    assert (last.fence, last.fields["attemptsMade"]) == (3, "2")
    assert q.finish(last.failed(limit=3, backoff=0)) == [S.FAILED]
    assert q.job("1")["attemptsMade"] == "3"
    assert (q.counts()["failed"], q.metric("failed")["c"]) == (1, 1)


def test_retry_returns_due_time(q: OwnQueue) -> None:
    q.add_job()
    assert q.exchange(1, [q.take_one().failed(limit=2, backoff=300)]).next_due == 300


def test_a_retry_without_backoff_can_run_in_the_same_call(q: OwnQueue) -> None:
    q.add_job()
    reply = q.exchange(1, [q.take_one().failed(limit=2)])
    assert (reply.statuses, reply.jobs[0][0]) == ([S.RETRYING], "1")


def test_priority_job_is_retried_with_its_priority(q: OwnQueue) -> None:
    q.add_job(priority=4)
    q.finish(q.take_one().failed(limit=2, backoff=9))
    assert int(q.redis("ZSCORE", "scheduled", "1")) == 4 * BAND + START + 9
    assert not q.redis("ZCARD", "list-active-ids")
    q.advance(9)
    assert q.take_one().fence == 2


def test_release_does_not_count_an_attempt(q: OwnQueue) -> None:
    q.add(row("a", "", "{}"), row("b", "", "{}", lifo=True), row("c", "", "{}", priority=3))
    jobs = q.fetch(3)
    assert q.finish(*[job.released() for job in jobs]) == [S.RELEASED] * 3
    assert [q.state(job_id) for job_id in "123"] == ["waiting", "waiting", "prioritized"]
    assert [q.job(job_id)["attemptsMade"] for job_id in "123"] == ["0"] * 3
    assert all("processedOn" not in q.job(job_id) for job_id in "123")
    assert q.redis("GET", "list-active") == "0"
    again = q.fetch(3)
    assert [job.id for job in again] == [job.id for job in jobs]
    assert [job.fence for job in again] == [3, 3, 3]
    assert q.finish(*[job.completed() for job in jobs]) == [S.STALE] * 3


@pytest.mark.parametrize("options", [{}, {"lifo": True}, {"priority": 3}, {"rank": -1}, {"fair_key": "k"}])
def test_returned_jobs_are_the_next(q: OwnQueue, options: dict[str, Any]) -> None:
    q.add(*[row("a", "", "{}", **options) for _ in range(6)])
    order = list("654321" if "lifo" in options else "123456")
    jobs = q.fetch(4)
    assert [job.id for job in jobs] == order[:4]
    assert q.finish(*[job.returned() for job in reversed(jobs[1:])]) == [S.RELEASED] * 3
    assert [q.job(job.id)["attemptsMade"] for job in jobs] == ["0"] * 4
    assert [job.id for job in q.fetch(6)] == order[1:]
    assert q.finish(*[job.completed() for job in jobs[1:]]) == [S.STALE] * 3


def test_returned_job_of_a_group_is_its_head(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}", ordering=["g", 1, 0, 0, 0, 0, 0]) for _ in range(3)])
    first = q.take_one()
    assert q.finish(first.returned()) == [S.RELEASED]
    assert q.take_one().id == first.id


# -- fencing -----------------------------------------------------------------------------------------------


def test_a_call_repeated_after_a_lost_reply_is_a_success(q: OwnQueue) -> None:
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


def test_the_same_row_twice_in_one_call(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    assert q.finish(job.completed(), job.completed()) == [S.OK, S.ALREADY]
    assert q.metric("completed")["c"] == 1


def test_different_result_of_ended_attempt_is_stale(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.finish(job.completed())
    assert q.finish(job.failed(limit=5)) == [S.STALE]
    assert q.finish(job.released()) == [S.STALE]
    assert q.state("1") == "completed"


def test_a_newer_attempt_makes_the_older_one_stale(q: OwnQueue) -> None:
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


def test_a_node_peers_activation_makes_ours_stale(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.redis("HSET", "job:1", "processedOn", START + 3, "lastActive", START + 3)  # state-blind moveToActive
    assert q.finish(job.completed()) == [S.STALE]
    assert q.state("1") == "active"


def test_report_of_a_removed_job_returns_missing(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.run(remove(q.meta, "1"))
    assert q.finish(job.completed()) == [S.GONE]
    assert q.finish(job.failed()) == [S.GONE]
    assert q.finish(job.released()) == [S.GONE]
    assert not {key for key in q.key_names() if key.startswith("job:")}
    assert not q.redis("EXISTS", "completed")


def test_job_key_of_other_type_counts_as_missing(q: OwnQueue) -> None:
    add_many(q, 2)
    one, two = q.fetch(2)
    q.redis("SET", "job:1", "foreign")
    assert q.finish(one.completed(), two.completed()) == [S.GONE, S.OK]


@pytest.mark.parametrize("junk", ["", "x", "nan", "-1", "1e300"])
def test_unusable_counters_of_a_job(q: OwnQueue, junk: str) -> None:
    q.push_entry(q.put_job("7", fence=junk, attemptsMade=junk, priority=junk))
    job = q.take_one()
    assert job.fence == 1
    assert q.finish(job.failed(limit=2, backoff=5)) == [S.RETRYING]
    assert q.job("7")["attemptsMade"] == "1"
    assert int(q.redis("ZSCORE", "scheduled", "7")) == START + 5


# -- retention ---------------------------------------------------------------------------------------------


SATELLITES = ("log", "deps", "depvals", "parents", "jstream", "signals")


def with_satellites(q: OwnQueue, job_id: str) -> None:
    for kind in SATELLITES:
        q.redis("RPUSH", f"{kind}:{job_id}", "x")


@pytest.mark.parametrize("fail", [False, True])
def test_removal_deletes_all_keys(q: OwnQueue, fail: bool) -> None:
    q.add_job()
    with_satellites(q, "1")
    job = q.take_one()
    assert q.finish(job.failed(keep=1) if fail else job.completed(keep=1)) == [S.FAILED if fail else S.OK]
    assert not {key for key in q.key_names() if key.endswith(":1")}
    assert (q.redis("ZCARD", "failed"), q.redis("ZCARD", "completed")) == (0, 0)
    assert q.event_names("1")[-1] == ("failed" if fail else "completed")
    assert q.metric("failed" if fail else "completed")["c"] == 1


def test_a_retry_is_not_removed(q: OwnQueue) -> None:
    q.add_job()
    assert q.finish(q.take_one().failed(limit=2, backoff=1, keep=1)) == [S.RETRYING]
    assert q.state("1") == "delayed"


@pytest.mark.parametrize("keep", [(2, 0), -2])
def test_retention_by_count(q: OwnQueue, keep: working.Keep) -> None:
    for i in range(1, 6):
        job_id = q.add_job()
        with_satellites(q, job_id)
        q.advance(1)
        q.finish(q.take_one().completed(keep=keep))
        assert q.redis("ZCARD", "completed") == min(i, 2)
    assert q.redis("ZRANGE", "completed", 0, -1) == ["4", "5"]
    assert {key for key in q.key_names() if key.startswith(("job:", *SATELLITES))} == {
        f"{kind}:{i}" for i in (4, 5) for kind in ("job", *SATELLITES)
    }


def test_each_rule_of_a_call_is_applied(q: OwnQueue) -> None:
    add_many(q, 6)
    q.finish(*(job.completed() for job in q.fetch(5)))
    q.finish(q.take_one().completed(keep=-4))
    assert q.redis("ZRANGE", "completed", 0, -1) == ["3", "4", "5", "6"]
    q.advance(1)
    add_many(q, 3)
    rules: list[working.Keep] = [-8, -8, (2, 0)]
    q.finish(*(job.completed(keep=keep) for job, keep in zip(q.fetch(3), rules, strict=True)))
    assert q.redis("ZRANGE", "completed", 0, -1) == ["8", "9"]


def test_retention_by_age(q: OwnQueue) -> None:
    for _ in range(3):
        q.add_job()
        q.finish(q.take_one().failed(keep=(0, 60)))
        q.advance(30_000)
    assert q.redis("ZRANGE", "failed", 0, -1) == ["2", "3"]
    q.add_job()
    q.advance(100_000)
    q.finish(q.take_one().failed(keep=(100, 60)))
    assert q.redis("ZRANGE", "failed", 0, -1) == ["4"]


def test_retention_is_bounded_per_call(q: OwnQueue) -> None:
    members = [str(word) for i in range(1_500) for word in (START - 10_000 + i, f"old{i}")]
    q.redis("ZADD", "completed", *members)
    q.add_job()
    q.finish(q.take_one().completed(keep=(10, 0)))
    assert q.redis("ZCARD", "completed") == 501
    q.add_job()
    q.finish(q.take_one().completed(keep=(10, 0)))
    assert q.redis("ZCARD", "completed") == 10


# -- many at once ------------------------------------------------------------------------------------------


def test_mixed_batch_returns_statuses_in_order(q: OwnQueue) -> None:
    add_many(q, 200)
    jobs = q.fetch(200)
    q.run(remove(q.meta, jobs[5].id))
    rows = [job.failed() if i % 3 == 0 else job.completed() for i, job in enumerate(jobs)]
    expected = [S.FAILED if i % 3 == 0 else S.OK for i in range(200)]
    expected[5] = S.GONE
    assert q.finish(*rows) == expected
    assert q.counts() | {"completed": 0, "failed": 0} == dict.fromkeys(q.counts(), 0)
    assert q.metric("completed")["c"] + q.metric("failed")["c"] == 199


def test_too_many_rows_are_rejected_before_writing(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    with pytest.raises(RespError, match="too many finished rows"):
        q.finish(*[job.completed()] * 1_001)
    assert q.state("1") == "active"


def test_no_metrics_and_quiet(q: OwnQueue) -> None:
    q.add(row("a", "", "{}"), row("b", "", "{}"), quiet=True)
    one, two = q.fetch(2)
    reply = q.exchange(0, [one.completed(), two.failed()], quiet=True, no_metrics=True)
    assert reply.statuses == [S.OK, S.FAILED]
    assert q.key_names().isdisjoint({"events", "metrics:completed", "metrics:failed"})


def test_old_metrics_are_trimmed(q: OwnQueue) -> None:
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
def test_job_stays_active_if_its_new_source_cannot_be_written(q: OwnQueue, suffix: str, fail: bool) -> None:
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


def test_release_without_writable_place_keeps_job_active(q: OwnQueue) -> None:
    q.add_job(lifo=True)
    job = q.take_one()
    q.redis("SET", "lifo", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.finish(job.released())
    assert (q.state("1"), q.redis("ZCARD", "list-active-ids")) == ("active", 1)
    q.redis("DEL", "lifo")
    assert q.finish(job.released()) == [S.RELEASED]


def test_unknown_row_kinds(q: OwnQueue) -> None:
    add_many(q, 1)
    job = q.take_one()
    with pytest.raises(RespError):
        q.finish(job.completed(), job.released()._replace(kind=99, id="1"))
    assert q.state("1") == "completed"
    assert q.redis("ZCARD", "completed") == 1


def test_unknown_jobs(q: OwnQueue) -> None:
    assert (
        q.finish(completed("7", "", 1, START, "null"), failed("8", "1-1", 1, START, "", "", "", 0, 0)) == [S.GONE] * 2
    )
    assert q.key_names() <= {"stream", "wake"}


def test_second_report_of_a_deleted_job_returns_missing(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    assert q.finish(job.completed(keep=1), job.completed(keep=1)) == [S.OK, S.GONE]
    assert [event["event"] for event in q.events("1")] == ["added", "completed"]
    assert "job:1" not in q.key_names()
