"""Test the fetch half of exchange: order, rejections, promotion, pause, and wake-ups of idle workers."""

import pytest

from glidemq_py.testing import RespError
from tests.inside import ExchangeFlags, row
from tests.lua.own_support import BAND, NODE_CONSUMER, START, OwnQueue


def test_fetch_is_bounded_per_call(q: OwnQueue):
    q.add(*[row("a", "", "{}", priority=i % 2) for i in range(1100)], quiet=True)
    reply = q.exchange(5_000, quiet=True)
    assert len(reply.jobs) == 1_000
    assert len(q.exchange(5_000, quiet=True).jobs) == 100


def test_missing_consumer_groups_are_created(q: OwnQueue):
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


@pytest.mark.parametrize("state", ["active", "completed", "failed", "waiting-children", "suspended", "nonsense"])
def test_a_stale_second_entry_does_not_run_a_job_again(q: OwnQueue, state: str):
    q.push_entry(q.put_job("7", state=state))
    reply = q.exchange(1)
    assert (reply.jobs, reply.dropped[0][2]) == ([], f"state is {state}")
    assert q.state("7") == state
    assert q.entries() == []


def test_rejections_are_bounded_per_call(q: OwnQueue):
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


def test_a_job_left_in_two_places_runs_from_one(q: OwnQueue):
    q.add_job()
    q.redis("ZADD", "scheduled", START + 5, "1")
    q.redis("HSET", "job:1", "state", "delayed")
    assert q.take_one().id == "1"
    q.advance(10)
    assert q.exchange(1).jobs == []
    assert q.state("1") == "active"


# -- due times ---------------------------------------------------------------------------------------------


def test_promotion_is_bounded_per_call(q: OwnQueue):
    q.add(*[row("a", "", "{}", delay=1) for _ in range(250)], quiet=True)
    q.advance(1)
    assert q.exchange(0).next_due == 0
    assert (q.counts()["waiting"], q.counts()["delayed"]) == (200, 50)
    assert q.exchange(0).next_due == -1


def test_next_due_covers_every_priority(q: OwnQueue):
    q.add_job(delay=3_600_000)
    q.add_job(delay=500, priority=9)
    q.add_job(delay=700, priority=1)
    assert q.exchange(1).next_due == 500
    q.advance(500)
    reply = q.exchange(5)
    assert [job[0] for job in reply.jobs] == ["2"]
    assert reply.next_due == 200


def test_scheduled_member_without_job_is_removed(q: OwnQueue):
    q.redis("ZADD", "scheduled", START - 1, "ghost")
    q.redis("ZADD", "scheduled", BAND + 1, "urgent ghost")
    reply = q.exchange(1)
    assert (reply.jobs, reply.next_due) == ([], -1)
    assert not q.redis("EXISTS", "scheduled")
    assert not {key for key in q.key_names() if key.startswith("job:")}


@pytest.mark.parametrize("state", ["active", "completed", "failed"])
def test_leftover_member_does_not_change_job(q: OwnQueue, state: str):
    q.put_job("7", state=state)
    q.redis("ZADD", "scheduled", START - 1, "7")
    assert q.exchange(1).jobs == []
    assert q.state("7") == state


def test_a_broadcast_retry_goes_to_its_group(q: OwnQueue):
    q.put_job("7", state="delayed")
    q.redis("ZADD", "scheduled", START, "7||mail")
    q.exchange(0)
    assert q.entries() == [{"jobId": "7", "name": "task", "retryGroup": "mail"}]


# -- waking ------------------------------------------------------------------------------------------------


def wakes(q: OwnQueue, count: int = 10) -> int:
    """How many entries an idle worker would be woken by."""
    reply = q.resp.execute(
        "XREADGROUP", "GROUP", "wakers", "py-1", "COUNT", count, "NOACK", "STREAMS",
        q.key("stream"), q.key("wake"), ">", ">",
    )  # fmt: skip
    return sum(len(entries) for _, entries in reply or [])


def test_only_later_pushes_wake_after_empty_fetch(q: OwnQueue):
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


def test_remaining_jobs_wake_another_worker(q: OwnQueue):
    q.exchange(1)
    q.add(*[row("a", "", "{}") for _ in range(3)])
    assert not q.exchange(2).flags
    assert wakes(q) >= 1


def test_markers_are_bounded(q: OwnQueue):
    q.add(*[row("a", "", "{}", lifo=True) for _ in range(1_000)], quiet=True)
    assert q.redis("XLEN", "wake") < 300


# -- keys of a foreign type --------------------------------------------------------------------------------


def test_a_stream_of_a_foreign_type_fails_the_call(q: OwnQueue):
    q.redis("SET", "stream", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.exchange(1)


def test_job_that_cannot_be_promoted_stays_scheduled(q: OwnQueue):
    q.add_job(delay=1)
    q.advance(1)
    q.redis("SET", "stream", "foreign")
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.exchange(1)
    assert (q.state("1"), q.redis("ZRANGE", "scheduled", 0, -1)) == ("delayed", ["1"])
    q.redis("DEL", "stream")
    assert q.take_one().id == "1"


def test_jobs_fetched_before_source_error_are_returned(q: OwnQueue):
    q.add_job(priority=1)
    q.redis("SET", "lifo", "foreign")
    reply = q.exchange(5)
    assert [job[0] for job in reply.jobs] == ["1"]
    assert not reply.flags
    assert q.redis("ZCARD", "list-heartbeats") == 1
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.exchange(5)


@pytest.mark.parametrize("suffix", ["wake", "events", "metrics:completed", "list-active", "list-active-ids"])
def test_bookkeeping_of_a_foreign_type_does_not_stop_the_work(q: OwnQueue, suffix: str):
    q.redis("SET", suffix, "foreign")
    q.add_job(lifo=True)
    q.add_job()
    jobs = q.fetch(2)
    assert [job.id for job in jobs] == ["1", "2"]
    assert q.finish(*[job.completed() for job in jobs]) == [0, 0]


def test_unfetched_jobs_are_left_for_node_peers(q: OwnQueue):
    q.add(row("a", "", "{}"), row("b", "", "{}"))
    first = q.take_one()
    (theirs,) = q.read_as(NODE_CONSUMER)
    assert theirs != first.entry
    assert dict(q.pending()) == {first.entry: "py-1", theirs: NODE_CONSUMER}
    assert q.exchange(5).jobs == []
