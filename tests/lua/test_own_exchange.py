"""Test the fetch half of exchange: order, rejections, promotion, pause, and wake-ups of idle workers."""

from typing import Any

import pytest

from glidemq_py._core.calls.adding import row
from glidemq_py._core.calls.administration import pause, resume
from glidemq_py._core.calls.working import ExchangeFlags
from glidemq_py.testing import RespError
from tests.lua.own_support import BAND, NODE_CONSUMER, START, OwnQueue


def test_fetch_activates_job(q: OwnQueue) -> None:
    q.add_job(data="[1]", opts='{"a":1}')
    q.advance(50)
    reply = q.exchange(5)
    assert reply.now == START + 50
    ((job_id, entry, fence, *fields),) = reply.jobs
    assert (job_id, fence) == ("1", 1)
    assert fields == ["task", "[1]", '{"a":1}', str(START)]
    job = q.job("1")
    assert job["state"] == "active"
    assert job["processedOn"] == job["lastActive"] == str(START + 50)
    assert job["fence"] == "1"
    assert q.pending() == [(entry, "py-1")]


def test_fetch_respects_want(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}") for _ in range(5)])
    reply = q.exchange(3)
    assert [job[0] for job in reply.jobs] == ["1", "2", "3"]
    assert not reply.flags
    assert q.counts()["waiting"] == 2


def test_fetch_with_want_zero_returns_nothing(q: OwnQueue) -> None:
    q.add_job()
    reply = q.exchange(0)
    assert (reply.jobs, reply.flags) == ([], 0)
    assert not q.resp.execute("XINFO", "GROUPS", q.key("stream"))


def test_fetch_is_bounded_per_call(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}", priority=i % 2) for i in range(1100)], quiet=True)
    reply = q.exchange(5_000, quiet=True)
    assert len(reply.jobs) == 1_000
    assert len(q.exchange(5_000, quiet=True).jobs) == 100


def test_sources_are_read_in_order(q: OwnQueue) -> None:
    q.add_job("stream")
    q.add_job("lifo", lifo=True)
    q.add_job("second", priority=2)
    q.add_job("first", priority=1)
    q.redis("LPUSH", "priority", q.put_job("node", priority=7))
    reply = q.exchange(9)
    assert [job[0] for job in reply.jobs] == ["node", "4", "3", "2", "1"]
    assert [job[1] != "" for job in reply.jobs] == [False, False, False, False, True]
    assert q.redis("GET", "list-active") == "4"
    assert q.redis("ZCARD", "list-active-ids") == 4
    assert reply.flags == ExchangeFlags.EXHAUSTED


def test_list_jobs_are_announced_as_active(q: OwnQueue) -> None:
    q.add_job(lifo=True)
    q.add_job()
    q.fetch(2)
    assert q.event_names("1") == ["added", "active"]
    assert q.event_names("2") == ["added"]


def test_missing_consumer_groups_are_created(q: OwnQueue) -> None:
    assert q.exchange(1).flags == ExchangeFlags.EXHAUSTED
    names = [dict(zip(g[::2], g[1::2], strict=True))["name"] for g in q.redis_groups("stream")]
    assert sorted(names) == ["wakers", "workers"]
    q.resp.execute("XGROUP", "DESTROY", q.key("stream"), "workers")
    q.resp.execute("XGROUP", "DESTROY", q.key("stream"), "wakers")
    q.add_job()
    assert q.take_one().id == "1"
    q.redis("DEL", "stream")
    q.redis("DEL", "wake")
    job_id = q.add_job()
    assert q.take_one().id == job_id


# -- what must not run -------------------------------------------------------------------------------------


def test_entry_of_missing_job_is_dropped(q: OwnQueue) -> None:
    q.add_job()
    q.redis("DEL", "job:1")
    job_id = q.add_job()
    reply = q.exchange(1)
    assert [job[0] for job in reply.jobs] == [job_id]
    assert [dropped[1:] for dropped in reply.dropped] == [["1", "the job is gone"]]
    assert len(q.entries()) == 1
    assert not q.redis("EXISTS", "job:1")


def test_foreign_entries_are_acknowledged_with_a_reason(q: OwnQueue) -> None:
    q.redis("XADD", "stream", "*", "hello", "world")
    q.redis("XADD", "stream", "*", "name", "x", "jobId", q.put_job("7"))
    q.redis("XADD", "stream", "*", "retryGroup", "g", "w", "1")
    reply = q.exchange(5)
    assert [job[0] for job in reply.jobs] == ["7"]
    assert [dropped[1:] for dropped in reply.dropped] == [["", "a stream entry without a job id"]] * 2
    assert len(q.entries()) == len(q.pending()) == 1


@pytest.mark.parametrize("field", ["name", "data", "opts"])
def test_a_malformed_record_fails_with_a_reason(q: OwnQueue, field: str) -> None:
    q.push_entry(q.put_job("1"))
    q.redis("HDEL", "job:1", field)
    reply = q.exchange(1)
    assert (reply.jobs, [d[1:] for d in reply.dropped]) == ([], [["1", "malformed"]])
    assert q.state("1") == "failed"
    assert "malformed job record" in q.job("1")["failedReason"]
    assert q.redis("ZRANGE", "failed", 0, -1) == ["1"]
    assert q.event_names("1") == ["failed"]
    assert q.entries() == []


def test_job_key_of_other_type_is_dropped(q: OwnQueue) -> None:
    q.add_job()
    q.redis("SET", "job:1", "a string")
    assert q.exchange(1).dropped[0][1:] == ["1", "the job key is not a hash"]
    assert q.redis("GET", "job:1") == "a string"


@pytest.mark.parametrize("state", ["active", "completed", "failed", "waiting-children", "suspended", "nonsense"])
def test_a_stale_second_entry_does_not_run_a_job_again(q: OwnQueue, state: str) -> None:
    q.push_entry(q.put_job("7", state=state))
    reply = q.exchange(1)
    assert (reply.jobs, reply.dropped[0][2]) == ([], f"state is {state}")
    assert q.state("7") == state
    assert q.entries() == []


def test_entry_of_finished_job_changes_nothing(q: OwnQueue) -> None:
    q.redis("HSET", "job:7", "state", "completed", "returnvalue", "null")
    q.push_entry("7")
    assert q.exchange(1).dropped[0][2] == "state is completed"
    assert q.redis("ZCARD", "failed") == 0


def test_a_revoked_job(q: OwnQueue) -> None:
    q.add_job()
    q.redis("HSET", "job:1", "revoked", "1")
    assert q.exchange(1).dropped[0][1:] == ["1", "revoked"]
    assert (q.state("1"), q.job("1")["failedReason"]) == ("failed", "revoked")
    assert q.event_names("1") == ["added", "revoked"]


@pytest.mark.parametrize("options", [{}, {"lifo": True}, {"priority": 1}, {"delay": 5}])
def test_expired_job_fails_in_every_source(q: OwnQueue, options: dict[str, Any]) -> None:
    q.add_job(ttl=1_000, **options)
    q.advance(1_001)
    reply = q.exchange(1)
    assert reply.jobs == []
    assert (q.state("1"), q.job("1")["failedReason"]) == ("failed", "expired")
    assert q.event_names("1")[-1] == "expired"
    assert q.metric("failed")["c"] == 1
    assert q.counts() | {"failed": 0} == dict.fromkeys(q.counts(), 0)


def test_job_still_runs_at_its_expiry_time(q: OwnQueue) -> None:
    q.add_job(ttl=1_000)
    q.advance(1_000)
    assert q.take_one().id == "1"


def test_rejections_are_bounded_per_call(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}") for _ in range(250)], quiet=True)
    for i in range(1, 250):
        q.redis("DEL", f"job:{i}")
    reply = q.exchange(1)
    assert reply.jobs == []
    assert not reply.flags  # more may be ready: come again
    dropped = len(reply.dropped)
    assert 100 <= dropped <= 110
    while not reply.jobs:
        reply = q.exchange(1)
        dropped += len(reply.dropped)
    assert (reply.jobs[0][0], dropped) == ("250", 249)


def test_a_job_left_in_two_places_runs_from_one(q: OwnQueue) -> None:
    q.add_job()
    q.redis("ZADD", "scheduled", START + 5, "1")
    q.redis("HSET", "job:1", "state", "delayed")
    assert q.take_one().id == "1"
    q.advance(10)
    assert q.exchange(1).jobs == []
    assert q.state("1") == "active"


# -- due times ---------------------------------------------------------------------------------------------


def test_a_delayed_job_is_promoted_when_it_is_due(q: OwnQueue) -> None:
    q.add_job(delay=100)
    q.advance(99)
    reply = q.exchange(1)
    assert (reply.jobs, reply.next_due) == ([], 1)
    q.advance(1)
    reply = q.exchange(1)
    assert (reply.jobs[0][0], reply.next_due) == ("1", -1)
    assert q.event_names("1") == ["added", "promoted"]
    assert q.job("1")["eid"] == reply.jobs[0][1]


def test_promotion_follows_due_times(q: OwnQueue) -> None:
    for delay in (30, 10, 20):
        q.add_job(delay=delay)
    q.advance(30)
    assert [job.id for job in q.fetch(3)] == ["2", "3", "1"]


def test_a_delayed_lifo_job_returns_to_its_list(q: OwnQueue) -> None:
    q.add_job(delay=1, lifo=True)
    q.advance(1)
    assert q.take_one().entry == ""


def test_promotion_is_bounded_per_call(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}", delay=1) for _ in range(250)], quiet=True)
    q.advance(1)
    assert q.exchange(0).next_due == 0
    assert (q.counts()["waiting"], q.counts()["delayed"]) == (200, 50)
    assert q.exchange(0).next_due == -1


def test_next_due_covers_every_priority(q: OwnQueue) -> None:
    q.add_job(delay=3_600_000)
    q.add_job(delay=500, priority=9)
    q.add_job(delay=700, priority=1)
    assert q.exchange(1).next_due == 500
    q.advance(500)
    reply = q.exchange(5)
    assert [job[0] for job in reply.jobs] == ["2"]
    assert reply.next_due == 200


def test_due_job_behind_later_priority_is_fetched(q: OwnQueue) -> None:
    q.add_job(delay=60_000, priority=1)
    q.add_job(priority=2)
    assert q.take_one().id == "2"


def test_most_urgent_job_is_fetched_first(q: OwnQueue) -> None:
    q.add_job(priority=5)
    q.exchange(0)
    q.add_job(priority=1)
    assert q.take_one().id == "2"


def test_scheduled_member_without_job_is_removed(q: OwnQueue) -> None:
    q.redis("ZADD", "scheduled", START - 1, "ghost")
    q.redis("ZADD", "scheduled", BAND + 1, "urgent ghost")
    reply = q.exchange(1)
    assert (reply.jobs, reply.next_due) == ([], -1)
    assert not q.redis("EXISTS", "scheduled")
    assert not {key for key in q.key_names() if key.startswith("job:")}


@pytest.mark.parametrize("state", ["active", "completed", "failed"])
def test_leftover_member_does_not_change_job(q: OwnQueue, state: str) -> None:
    q.put_job("7", state=state)
    q.redis("ZADD", "scheduled", START - 1, "7")
    assert q.exchange(1).jobs == []
    assert q.state("7") == state


def test_a_broadcast_retry_goes_to_its_group(q: OwnQueue) -> None:
    q.put_job("7", state="delayed")
    q.redis("ZADD", "scheduled", START, "7||mail")
    q.exchange(0)
    assert q.entries() == [{"jobId": "7", "name": "task", "retryGroup": "mail"}]


# -- pause -------------------------------------------------------------------------------------------------


def test_paused_queue_reports_and_promotes_but_does_not_fetch(q: OwnQueue) -> None:
    q.add_job()
    job = q.take_one()
    q.add_job()
    q.add_job(lifo=True)
    q.add_job(delay=5)
    assert q.run(pause(q.meta)) is True
    q.advance(5)
    reply = q.exchange(5, [job.completed()])
    assert (reply.statuses, reply.jobs, reply.flags) == ([0], [], ExchangeFlags.PAUSED)
    assert q.counts()["waiting"] == 3
    assert q.run(resume(q.meta)) is True
    assert len(q.exchange(5).jobs) == 3


# -- waking ------------------------------------------------------------------------------------------------


def wakes(q: OwnQueue, count: int = 10) -> int:
    """How many entries an idle worker would be woken by."""
    reply = q.resp.execute(
        "XREADGROUP", "GROUP", "wakers", "py-1", "COUNT", count, "NOACK", "STREAMS",
        q.key("stream"), q.key("wake"), ">", ">",
    )  # fmt: skip
    return sum(len(entries) for _, entries in reply or [])


def test_only_later_pushes_wake_after_empty_fetch(q: OwnQueue) -> None:
    q.add_job()
    q.add_job(lifo=True)
    assert q.exchange(9).flags == ExchangeFlags.EXHAUSTED
    assert q.exchange(9).flags == ExchangeFlags.EXHAUSTED  # an exchange that finds nothing skips old wake-ups
    assert wakes(q) == 0
    q.add_job()
    q.add_job(lifo=True)
    assert wakes(q) == 2
    assert wakes(q) == 0
    assert [entry for entry, _ in q.pending()] == [q.job("1")["eid"]]  # NOACK: a woken worker holds nothing


def test_remaining_jobs_wake_another_worker(q: OwnQueue) -> None:
    q.exchange(1)
    q.add(*[row("a", "", "{}") for _ in range(3)])
    assert not q.exchange(2).flags
    assert wakes(q) >= 1


def test_paused_queue_wakes_workers_only_on_resume(q: OwnQueue) -> None:
    q.exchange(1)
    q.run(pause(q.meta))
    q.add_job()
    q.exchange(1)
    assert wakes(q) == 0
    q.run(resume(q.meta))
    assert wakes(q, 100) == 32


def test_markers_are_bounded(q: OwnQueue) -> None:
    q.add(*[row("a", "", "{}", lifo=True) for _ in range(1_000)], quiet=True)
    assert q.redis("XLEN", "wake") < 300


# -- keys of a foreign type --------------------------------------------------------------------------------


def test_a_stream_of_a_foreign_type_fails_the_call(q: OwnQueue) -> None:
    q.redis("SET", "stream", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.exchange(1)


def test_job_that_cannot_be_promoted_stays_scheduled(q: OwnQueue) -> None:
    q.add_job(delay=1)
    q.advance(1)
    q.redis("SET", "stream", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.exchange(1)
    assert (q.state("1"), q.redis("ZRANGE", "scheduled", 0, -1)) == ("delayed", ["1"])
    q.redis("DEL", "stream")
    assert q.take_one().id == "1"


def test_jobs_fetched_before_source_error_are_returned(q: OwnQueue) -> None:
    q.add_job(priority=1)
    q.redis("SET", "lifo", "foreign")
    reply = q.exchange(5)
    assert [job[0] for job in reply.jobs] == ["1"]
    assert not reply.flags
    assert q.redis("ZCARD", "list-active-ids") == 1
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.exchange(5)


@pytest.mark.parametrize("suffix", ["wake", "events", "metrics:completed", "list-active", "list-active-ids"])
def test_bookkeeping_of_a_foreign_type_does_not_stop_the_work(q: OwnQueue, suffix: str) -> None:
    q.redis("SET", suffix, "foreign")
    q.add_job(lifo=True)
    q.add_job()
    jobs = q.fetch(2)
    assert [job.id for job in jobs] == ["1", "2"]
    assert q.finish(*[job.completed() for job in jobs]) == [0, 0]


def test_unfetched_jobs_are_left_for_node_peers(q: OwnQueue) -> None:
    q.add(row("a", "", "{}"), row("b", "", "{}"))
    first = q.take_one()
    (theirs,) = q.read_as(NODE_CONSUMER)
    assert theirs != first.entry
    assert dict(q.pending()) == {first.entry: "py-1", theirs: NODE_CONSUMER}
    assert q.exchange(5).jobs == []
