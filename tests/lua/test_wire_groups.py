"""Test ordering groups: order, slots, limits, and that no end of a job blocks its group."""

from collections.abc import Callable

import pytest

from tests.lua import wire_support
from tests.lua.wire_support import GROUP, START, WireQueue

wire = wire_support.wire_fixture


def ordered(wire: WireQueue, count: int, **options: object) -> list[str]:
    return [wire.add(ordering="k", **options) for _ in range(count)]


def read_ids(wire: WireQueue) -> list[tuple[str, str]]:
    """All unread entries: (job id, entry)."""
    return [(fields["jobId"], entry) for entry, fields in wire.read(100)]


def step_keys(job_id: str) -> list[str]:
    return [f"job:{job_id}", "stream", "scheduled", "events"]


def delay(wire: WireQueue, job_id: str, entry: str, until: int) -> str:
    return str(wire.call("moveActiveToDelayed", step_keys(job_id), job_id, entry, wire.now, until, GROUP, "", 0))


def suspend(wire: WireQueue, job_id: str, entry: str, timeout: int = 0) -> str:
    keys = [f"job:{job_id}", "stream", "events", "suspended"]
    return str(wire.call("suspend", keys, job_id, entry, GROUP, wire.now, "", timeout, 0))


def test_one_at_a_time_in_order(wire: WireQueue) -> None:
    jobs = ordered(wire, 3)
    (first, entry), second, third = read_ids(wire)
    assert wire.activate(*third) == "GROUP_ORDERED"
    assert isinstance(wire.activate(first, entry), dict)
    assert wire.activate(*second) == "GROUP_FULL"
    assert wire.scores("groupq:k") == {jobs[1]: 2, jobs[2]: 3}
    assert [wire.state(job) for job in jobs] == ["active", "group-waiting", "group-waiting"]
    assert wire.group("k") | {"active": "1", "nextSeq": "2"} == wire.group("k")
    ran = [first]
    wire.complete(first, entry)
    for _ in jobs[1:]:
        job_id, entry = wire.take_id()
        ran.append(job_id)
        wire.complete(job_id, entry)
    assert ran == jobs
    assert wire.group("k") | {"active": "0", "nextSeq": "4"} == wire.group("k")
    assert wire.scores("groupq:k") == {}


def test_parked_successors_wake_when_their_turn_comes(wire: WireQueue) -> None:
    """W100: arrival 3, 2, 1 with two slots."""
    jobs = ordered(wire, 3, concurrency=2)
    first, second, third = read_ids(wire)
    assert [wire.activate(*third), wire.activate(*second)] == ["GROUP_ORDERED", "GROUP_ORDERED"]
    assert isinstance(wire.activate(*first), dict)
    assert wire.take_id()[0] == jobs[1]
    assert wire.group("k")["active"] == "2"


# -- W1: a skipped turn ------------------------------------------------------------------------------------


def by_revoke(wire: WireQueue, job_id: str) -> None:
    assert wire.revoke(job_id) == "revoked"


def by_removal(wire: WireQueue, job_id: str) -> None:
    assert wire.remove(job_id) == 1


def by_expiry(wire: WireQueue, job_id: str) -> None:
    wire.redis("HSET", f"job:{job_id}", "expireAt", 1)


def by_drain(wire: WireQueue, _: str) -> None:
    assert wire.call("drain", ["stream", "scheduled", "events", "id", "lifo", "priority"], "1", GROUP) == 1


@pytest.mark.parametrize("end", [by_revoke, by_removal, by_expiry, by_drain])
def test_a_job_that_ends_before_its_turn_does_not_stop_the_group(
    wire: WireQueue, end: Callable[[WireQueue, str], None]
) -> None:
    (lost,) = ordered(wire, 1)
    wire.make_group()
    end(wire, lost)
    (follower,) = ordered(wire, 1)
    fetched = [wire.activate(*pair) for pair in read_ids(wire)]
    assert [reply["id"] for reply in fetched if isinstance(reply, dict)] == [follower]


@pytest.mark.parametrize("end", [by_revoke, by_removal])
def test_ended_job_does_not_block_parked_jobs(wire: WireQueue, end: Callable[[WireQueue, str], None]) -> None:
    lost, follower = ordered(wire, 2, delay=0)
    wire.redis("DEL", "stream")
    wire.redis("XADD", "stream", "*", "jobId", follower, "name", "task")
    assert wire.fetch()[2] == "GROUP_ORDERED"
    end(wire, lost)
    assert wire.take_id()[0] == follower


def test_a_group_waiting_job_can_be_revoked_and_removed(wire: WireQueue) -> None:
    jobs = ordered(wire, 4)
    (first, entry), *rest = read_ids(wire)
    wire.activate(first, entry)
    assert {wire.activate(*pair) for pair in rest} == {"GROUP_FULL", "GROUP_ORDERED"}
    assert wire.revoke(jobs[1]) == "revoked"
    assert wire.remove(jobs[2]) == 1
    assert wire.scores("groupq:k") == {jobs[3]: 4}
    wire.complete(first, entry)
    assert wire.take_id()[0] == jobs[3]


def test_cost_above_capacity_is_rejected(wire: WireQueue) -> None:
    costly, follower = ordered(wire, 2, capacity=2000, refill=1000)
    wire.redis("HSET", f"job:{costly}", "cost", 9000)
    pairs = read_ids(wire)
    assert wire.activate(*pairs[0]) == "ERR:COST_EXCEEDS_CAPACITY"
    assert wire.job(costly)["failedReason"] == "cost exceeds token bucket capacity"
    assert wire.activate(*pairs[1])["id"] == follower


# -- W92: a slot kept while the job pauses -----------------------------------------------------------------


def pause_by_retry(wire: WireQueue, job_id: str, entry: str) -> None:
    assert wire.fail(job_id, entry, limit=5, backoff=50) == "retrying"


def pause_by_delay(wire: WireQueue, job_id: str, entry: str) -> None:
    assert delay(wire, job_id, entry, wire.now + 50) == "ok"


def pause_by_suspension(wire: WireQueue, job_id: str, entry: str) -> None:
    assert suspend(wire, job_id, entry) == "ok"


PAUSES = [pause_by_retry, pause_by_delay, pause_by_suspension]


@pytest.mark.parametrize("pause", PAUSES)
def test_inactive_ordered_job_keeps_its_slot(wire: WireQueue, pause: Callable[[WireQueue, str, str], None]) -> None:
    first, second = ordered(wire, 2)
    pair, other = read_ids(wire)
    wire.activate(*pair)
    pause(wire, *pair)
    assert wire.group("k")["active"] == "1"
    assert wire.activate(*other) == "GROUP_FULL"
    wire.now += 50
    wire.promote()
    wire.call(
        "signal", [f"job:{first}", "stream", "events", "suspended", f"signals:{first}"], first, "go", "", wire.now
    )
    job_id, entry = wire.take_id()
    assert (job_id, wire.group("k")["active"]) == (first, "1")
    wire.complete(job_id, entry)
    assert wire.take_id()[0] == second


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("end", [by_revoke, by_removal, by_expiry])
def test_slot_is_freed_when_inactive_job_ends(
    wire: WireQueue, pause: Callable[[WireQueue, str, str], None], end: Callable[[WireQueue, str], None]
) -> None:
    if pause is pause_by_suspension and end is not by_removal:
        pytest.skip("a suspended job is flagged, and ends when it resumes")
    first, second = ordered(wire, 2)
    pair, other = read_ids(wire)
    wire.activate(*pair)
    pause(wire, *pair)
    assert wire.activate(*other) == "GROUP_FULL"
    end(wire, first)
    wire.now += 50
    wire.promote()
    assert wire.take_id()[0] == second
    assert wire.group("k")["active"] == "1"


def test_suspend_timeout_frees_slot(wire: WireQueue) -> None:
    ordered(wire, 1)
    pair = read_ids(wire)[0]
    wire.activate(*pair)
    suspend(wire, *pair, timeout=10)
    wire.now += 10
    keys = ["suspended", "events", "failed", "metrics:failed"]
    assert wire.call("sweepSuspended", keys, wire.now, wire.base + ":") == 1
    assert wire.group("k")["active"] == "0"


def test_requeued_job_waits_for_a_slot(wire: WireQueue) -> None:
    """W6."""
    failed, second = ordered(wire, 2)
    pair, other = read_ids(wire)
    wire.activate(*pair)
    wire.fail(*pair)
    assert isinstance(wire.activate(*other), dict)
    assert wire.call("retryJobs", ["failed", "scheduled", "events", "id"], 0, wire.now) == 1
    wire.promote()
    assert wire.fetch()[2] == "GROUP_FULL"
    wire.complete(*other)
    assert (wire.take_id()[0], wire.group("k")["active"]) == (failed, "1")
    assert wire.state(second) == "completed"


def test_job_of_another_library_uses_protocol_slot_rule(wire: WireQueue) -> None:
    ordered(wire, 1)
    pair = read_ids(wire)[0]
    wire.activate(*pair)
    wire.redis("HDEL", f"job:{pair[0]}", "slot", "eid")
    wire.complete(*pair)
    assert wire.group("k")["active"] == "0"


# -- rate limits -------------------------------------------------------------------------------------------

WINDOW = {"concurrency": 5, "rate_max": 1, "rate_duration": 1000}


def promote_limited(wire: WireQueue) -> int:
    return int(wire.call("promoteRateLimited", ["ratelimited", "stream"], wire.now))


def test_rate_window(wire: WireQueue) -> None:
    jobs = ordered(wire, 2, **WINDOW)
    first, second = read_ids(wire)
    wire.activate(*first)
    assert wire.activate(*second) == "GROUP_RATE_LIMITED"
    assert wire.scores("ratelimited") == {"k": START + 1000}
    wire.complete(*first)
    assert (wire.state(jobs[1]), promote_limited(wire)) == ("group-waiting", 0)
    wire.now += 1000
    assert promote_limited(wire) == 1
    assert wire.scores("ratelimited") == {}
    assert wire.take_id()[0] == jobs[1]
    assert wire.group("k") | {"rateWindowStart": str(START + 1000), "rateCount": "1"} == wire.group("k")


def test_token_bucket(wire: WireQueue) -> None:
    jobs = ordered(wire, 2, concurrency=5, capacity=1500, refill=1000)
    first, second = read_ids(wire)
    wire.activate(*first)
    assert wire.group("k")["tbTokens"] == "500"
    assert wire.activate(*second) == "GROUP_TOKEN_LIMITED"
    assert wire.scores("ratelimited") == {"k": START + 500}
    wire.now += 499
    assert promote_limited(wire) == 0
    wire.now += 1
    assert promote_limited(wire) == 1
    assert wire.take_id()[0] == jobs[1]
    assert wire.group("k")["tbTokens"] == "0"


def test_missing_head_does_not_block_parked_jobs(wire: WireQueue) -> None:
    """W10."""
    jobs = ordered(wire, 3, concurrency=5, capacity=1000, refill=1000)
    first, *rest = read_ids(wire)
    wire.activate(*first)
    for pair in rest:
        assert wire.activate(*pair) in ("GROUP_TOKEN_LIMITED", "GROUP_ORDERED")
    wire.redis("DEL", f"job:{jobs[1]}")
    wire.now += 5000
    assert promote_limited(wire) == 1
    assert wire.take_id()[0] == jobs[2]


def limit_group(
    wire: WireQueue, pair: tuple[str, str], action: str = "requeue", place: str = "front", mode: str = "max"
) -> str:
    args = (*pair, GROUP, 500, wire.now, 0, action, place, mode)
    return str(wire.call("rateLimitGroup", [f"job:{pair[0]}", "stream"], *args))


def test_rate_limit_group_holds_the_whole_group(wire: WireQueue) -> None:
    """W4, W5: no other job starts, and the job takes its slot again when it returns."""
    first, second = ordered(wire, 2)
    pair, other = read_ids(wire)
    wire.activate(*pair)
    assert limit_group(wire, pair) == str(START + 500)
    assert (wire.state(first), wire.group("k")["active"]) == ("group-waiting", "0")
    assert wire.events(first)[-1] == {
        "event": "group-rate-limited", "jobId": first, "groupKey": "k", "duration": "500", "resumeAt": str(START + 500),
    }  # fmt: skip
    assert wire.activate(*other) == "GROUP_RATE_LIMITED"
    wire.now += 500
    assert promote_limited(wire) == 1
    job_id, entry = wire.take_id()
    assert (job_id, wire.group("k")["active"], wire.job(job_id)["attemptsMade"]) == (first, "1", "0")
    wire.complete(job_id, entry)
    assert wire.take_id()[0] == second


def test_rate_limit_group_at_the_back_and_failing(wire: WireQueue) -> None:
    first, second = ordered(wire, 2)
    pair, other = read_ids(wire)
    wire.activate(*pair)
    assert wire.activate(*other) == "GROUP_FULL"
    assert limit_group(wire, pair, place="back") == str(START + 500)
    assert wire.scores("groupq:k") == {second: 2, first: 3}
    wire.now += 500
    promote_limited(wire)
    pair = wire.take_id()
    assert pair[0] == second
    assert limit_group(wire, pair, action="fail") == str(START + 1000)
    assert (wire.job(second)["failedReason"], wire.event_names(second)[-2:]) == (
        "group rate limited", ["failed", "group-rate-limited"],
    )  # fmt: skip


def test_rate_limit_group_refusals(wire: WireQueue) -> None:
    job_id = wire.add()
    assert limit_group(wire, (job_id, "")) == "error:not_active"
    assert limit_group(wire, wire.take_id()) == "error:no_group"


def test_rate_limit_group_from_outside(wire: WireQueue) -> None:
    def limit(duration: int, mode: str) -> int:
        return int(wire.call("rateLimitGroupExternal", ["ratelimited", "events"], "k", duration, wire.now, mode))

    assert [limit(500, "max"), limit(100, "max"), limit(100, "replace")] == [START + 500, START + 500, START + 100]
    assert wire.events()[-1]["jobId"] == ""
    (job_id,) = ordered(wire, 1)
    assert wire.fetch()[2] == "GROUP_RATE_LIMITED"
    wire.now += 100
    assert promote_limited(wire) == 1
    assert wire.take_id()[0] == job_id
