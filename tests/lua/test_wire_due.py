"""promote, nextDue, promoteJob, changeDelay, changePriority."""

import pytest

from tests.lua import wire_support
from tests.lua.wire_support import BAND, GROUP, START, WireQueue

wire = wire_support.wire_fixture


def change_delay(wire: WireQueue, job_id: str, delay: object) -> str:
    return str(wire.call("changeDelay", CHANGE_KEYS(job_id), job_id, delay, wire.now, GROUP))


def change_priority(wire: WireQueue, job_id: str, priority: object) -> str:
    return str(wire.call("changePriority", CHANGE_KEYS(job_id), job_id, priority, GROUP))


def CHANGE_KEYS(job_id: str) -> list[str]:
    return [f"job:{job_id}", "stream", "scheduled", "events"]


def test_promote_sends_each_to_its_source(wire: WireQueue) -> None:
    plain, lifo, first = wire.add(delay=10), wire.add(delay=10, lifo=1), wire.add(priority=1, delay=10)
    later = wire.add(delay=11)
    assert wire.promote() == 0
    wire.now += 10
    assert wire.promote() == 3
    assert wire.queued() == [plain]
    assert wire.redis("LRANGE", "lifo", 0, -1) == [lifo]
    assert wire.redis("LRANGE", "priority", 0, -1) == [first]
    assert {wire.state(job) for job in (plain, lifo, first)} == {"waiting"}
    assert wire.event_names(plain) == ["added", "promoted"]
    assert wire.scores("scheduled") == {later: START + 11}


def test_most_urgent_band_first_and_first_come_first(wire: WireQueue) -> None:
    """W65: within a priority by number, not by text."""
    low = [wire.add(priority=2) for _ in range(11)]
    high = wire.add(priority=1)
    assert wire.promote() == 12
    assert wire.call("popLists", ["priority", "lifo"], 20) == [high, *low]


def test_expired_job_fails_at_promotion(wire: WireQueue) -> None:
    job_id = wire.add(delay=10, ttl=5)
    wire.now += 10
    assert wire.promote() == 1
    assert wire.job(job_id)["failedReason"] == "expired"
    assert wire.event_names(job_id) == ["added", "expired"]
    assert wire.metric("failed")["c"] == 1
    assert wire.entries() == []


def test_promote_removes_members_without_jobs(wire: WireQueue) -> None:
    """W31."""
    wire.redis("ZADD", "scheduled", 1, "ghost")
    assert wire.promote() == 1
    assert wire.has_keys() == set()


def test_retry_is_delivered_to_its_subscription_only(wire: WireQueue) -> None:
    job_id = wire.add()
    wire.redis("ZADD", "scheduled", 1, f"{job_id}||mail")
    assert wire.promote() == 1
    assert wire.entries()[-1] == {"jobId": job_id, "name": "task", "retryGroup": "mail"}


def test_next_due(wire: WireQueue) -> None:
    """W59: a job far off does not hide a due one of another band."""
    assert wire.call("nextDue", ["scheduled", "ratelimited"]) == -1
    wire.add(delay=3_600_000)
    assert wire.call("nextDue", ["scheduled", "ratelimited"]) == START + 3_600_000
    wire.add(delay=500, priority=7)
    assert wire.call("nextDue", ["scheduled", "ratelimited"]) == START + 500
    wire.redis("ZADD", "ratelimited", START + 100, "k")
    assert wire.call("nextDue", ["scheduled", "ratelimited"]) == START + 100
    wire.add(priority=1)
    assert wire.call("nextDue", ["scheduled", "ratelimited"]) == 0


@pytest.mark.parametrize(("options", "place"), [({}, "stream"), ({"lifo": 1}, "lifo"), ({"priority": 3}, "priority")])
def test_promote_job(wire: WireQueue, options: dict[str, int], place: str) -> None:
    job_id = wire.add(delay=1000, **options)
    assert wire.call("promoteJob", CHANGE_KEYS(job_id), job_id) == "ok"
    assert wire.call("promoteJob", CHANGE_KEYS(job_id), job_id) == "error:not_delayed"
    assert wire.call("promoteJob", CHANGE_KEYS("x"), "x") == "error:not_found"
    assert (wire.queued() if place == "stream" else wire.redis("LRANGE", place, 0, -1)) == [job_id]
    assert (wire.job(job_id)["delay"], wire.state(job_id)) == ("0", "waiting")
    assert wire.scores("scheduled") == {}
    assert wire.event_names(job_id)[-1] == "promoted"


def test_change_delay_of_a_delayed_job(wire: WireQueue) -> None:
    plain, urgent = wire.add(delay=1000), wire.add(delay=1000, priority=2)
    assert [change_delay(wire, job, 50) for job in (plain, urgent)] == ["ok", "ok"]
    assert wire.scores("scheduled") == {plain: START + 50, urgent: 2 * BAND + START + 50}
    assert wire.events(plain)[-1] == {"event": "delay-changed", "jobId": plain, "delay": "50"}
    assert [change_delay(wire, job, 0) for job in (plain, urgent)] == ["ok", "ok"]
    assert wire.scores("scheduled") == {urgent: 2 * BAND}
    assert (wire.state(plain), wire.state(urgent)) == ("waiting", "prioritized")
    assert wire.job(plain)["delay"] == "0"
    assert wire.queued() == [plain]


def test_change_delay_of_a_waiting_job(wire: WireQueue) -> None:
    job_id, other = wire.add(), wire.add()
    assert change_delay(wire, job_id, 0) == "no_op"
    assert change_delay(wire, job_id, 70) == "ok"
    assert wire.queued() == [other]
    assert (wire.state(job_id), wire.scores("scheduled")) == ("delayed", {job_id: START + 70})


def test_an_entry_is_found_without_eid_too(wire: WireQueue) -> None:
    job_id = wire.add()
    wire.redis("HDEL", f"job:{job_id}", "eid")
    assert change_priority(wire, job_id, 4) == "ok"
    assert wire.entries() == []


def test_entry_read_by_worker_is_not_moved(wire: WireQueue) -> None:
    """W38."""
    job_id = wire.add()
    wire.read()
    assert change_delay(wire, job_id, 70) == "error:not_in_stream"
    assert change_priority(wire, job_id, 7) == "error:not_in_stream"
    assert (wire.state(job_id), wire.queued()) == ("waiting", [job_id])


def test_lists_are_not_searched(wire: WireQueue) -> None:
    assert change_delay(wire, wire.add(lifo=1), 70) == "error:not_in_stream"


def test_change_delay_in_other_states(wire: WireQueue) -> None:
    job_id = wire.add(priority=3)
    assert change_delay(wire, job_id, 0) == "no_op"
    assert change_delay(wire, job_id, 10) == "ok"
    assert (wire.state(job_id), wire.scores("scheduled")) == ("delayed", {job_id: 3 * BAND + START + 10})
    assert change_delay(wire, job_id, -1) == "error:invalid_delay"
    assert change_delay(wire, job_id, "soon") == "error:invalid_delay"
    assert change_delay(wire, "nobody", 5) == "error:not_found"
    wire.redis("ZREM", "scheduled", job_id)
    assert change_delay(wire, job_id, 5) == "error:not_in_scheduled"
    wire.redis("HSET", f"job:{job_id}", "state", "active")
    assert change_delay(wire, job_id, 5) == "error:invalid_state"


def test_change_priority(wire: WireQueue) -> None:
    job_id = wire.add()
    assert change_priority(wire, job_id, 0) == "no_op"
    assert change_priority(wire, job_id, 5) == "ok"
    assert (wire.state(job_id), wire.scores("scheduled"), wire.entries()) == ("prioritized", {job_id: 5 * BAND}, [])
    assert change_priority(wire, job_id, 2) == "ok"
    assert (wire.scores("scheduled"), wire.job(job_id)["priority"]) == ({job_id: 2 * BAND}, "2")
    assert change_priority(wire, job_id, 0) == "ok"
    assert (wire.state(job_id), wire.queued(), wire.job(job_id)["priority"]) == ("waiting", [job_id], "0")
    assert wire.events(job_id)[-1] == {"event": "priority-changed", "jobId": job_id, "priority": "0"}


def test_change_priority_keeps_the_due_time(wire: WireQueue) -> None:
    job_id = wire.add(delay=500)
    assert change_priority(wire, job_id, 4) == "ok"
    assert wire.scores("scheduled") == {job_id: 4 * BAND + START + 500}
    assert change_priority(wire, job_id, 0) == "ok"
    assert (wire.scores("scheduled"), wire.state(job_id)) == ({job_id: START + 500}, "delayed")
    assert change_priority(wire, job_id, "x") == "error:invalid_priority"
    assert change_priority(wire, "nobody", 1) == "error:not_found"
