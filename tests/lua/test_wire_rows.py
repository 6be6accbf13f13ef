"""Test protocol cases not covered by other test_wire_* files: bounds, sentinels, states, optional arguments."""

import json
from collections.abc import Callable

import pytest

from tests.lua import wire_support
from tests.lua.wire_support import BAND, CONSUMER, GROUP, START, WireQueue

wire = wire_support.wire_fixture


def keys_of_job(job_id: str) -> list[str]:
    return [f"job:{job_id}", "stream", "scheduled", "events"]


def from_list(wire: WireQueue, **options: object) -> str:
    job_id = wire.add(**options)
    wire.promote()
    assert wire.pop() == [job_id]
    assert isinstance(wire.activate(job_id, ""), dict)
    return job_id


def in_state(wire: WireQueue, state: str) -> str:
    """Return a job in a state in which most changes are rejected."""
    job_id = wire.add()
    wire.redis("HSET", f"job:{job_id}", "state", state)
    return job_id


# -- locks, adding -----------------------------------------------------------------------------------------


def test_unlock_of_free_lock(wire: WireQueue) -> None:
    assert wire.call("unlock", ["lock"], "a") == 0
    assert wire.call("renewLock", ["lock"], "a") == 0
    wire.call("tryLock", ["lock"], "a", 60_000)
    assert wire.call("renewLock", ["lock"], "a") == 1
    # On a slow machine it expires before it is read.
    assert wire.redis("PTTL", "lock") in (-2, *range(1001))


def test_a_parent_without_its_queue_is_an_id_alone(wire: WireQueue) -> None:
    job = wire.job(wire.add(parent_id="9", deps="deps:9"))
    assert job["parentId"] == "9"
    assert "parentQueue" not in job
    assert wire.redis("EXISTS", "deps:9") == 0


def test_group_concurrency_defaults_to_one(wire: WireQueue) -> None:
    assert wire.job(wire.add(ordering="k", concurrency=0))["orderingSeq"] == "1"
    assert wire.group("k")["maxConcurrency"] == "1"


def test_rejected_duplicate_changes_nothing(wire: WireQueue) -> None:
    wire.add(id="a")
    before = wire.redis("GET", "id"), wire.events(), wire.queued()
    assert wire.add(id="a", ordering="k", priority=3, delay=5) == "duplicate"
    assert (wire.redis("GET", "id"), wire.events(), wire.queued()) == before
    assert wire.redis("EXISTS", "ordering", wire.key("group:k")) == 0


@pytest.mark.parametrize("options", [{"delay": 90}, {"priority": 4}, {"priority": 4, "delay": 90}])
def test_debounce_replaces_jobs_not_started(wire: WireQueue, options: dict[str, object]) -> None:
    first = wire.dedup("d", "debounce", 50, **options)
    wire.redis("RPUSH", f"log:{first}", "line")
    wire.now += 10
    second = wire.dedup("d", "debounce", 50, **options)
    assert wire.scores("scheduled").keys() == {second}
    assert wire.redis("EXISTS", f"job:{first}", wire.key(f"log:{first}")) == 0
    assert wire.event_names(first) == ["added", "removed"]
    assert wire.redis("HGET", "dedup", "d") == f"{second}:{START + 10}"


def test_quiet_debounce_writes_no_event(wire: WireQueue) -> None:
    wire.dedup("d", "debounce", delay=90, quiet=1)
    wire.dedup("d", "debounce", delay=90, quiet=1)
    assert wire.redis("EXISTS", "events") == 0


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_debounce_adds_after_job_ended(wire: WireQueue, state: str) -> None:
    first = wire.dedup("d", "debounce")
    wire.redis("HSET", f"job:{first}", "state", state)
    assert wire.dedup("d", "debounce") != first
    assert wire.state(first) == state


# -- flows -------------------------------------------------------------------------------------------------


def add_flow(wire: WireQueue, *extra: str, **parent: object) -> str:
    """Add a parent without children."""
    given = {"delay": 0, "priority": 0, "attempts": 0, "opts": "{}", "id": "", **parent}
    reply = wire.call(
        "addFlow", ["id", "stream", "scheduled", "events"], "parent", "{}", given["opts"], wire.now, given["delay"],
        given["priority"], given["attempts"], 0, given["id"], len(extra), *extra,
    )  # fmt: skip
    return str(json.loads(reply)[0])


def test_parent_stores_unused_fields(wire: WireQueue) -> None:
    parent = add_flow(wire, delay=70, priority=3, attempts=4, opts='{"ttl":500,"cost":2.0005,"lifo":true}')
    job = wire.job(parent)
    assert (job["state"], job["delay"], job["priority"], job["maxAttempts"]) == ("waiting-children", "70", "3", "4")
    assert (job["expireAt"], job["cost"]) == (str(START + 500), "2000")  # floor of the thousandths
    assert "lifo" not in job
    assert (wire.scores("scheduled"), wire.entries()) == ({}, [])


def test_repeated_child_completion_counts_once(wire: WireQueue) -> None:
    parent = add_flow(wire, "glide:{x}:1", "glide:{x}:2")
    deps = [f"deps:{parent}", f"job:{parent}", "stream", "events"]
    told = [
        wire.call("completeChild", deps, member, parent) for member in ("glide:{x}:1", "glide:{x}:1", "glide:{x}:2")
    ]
    assert told == [1, 1, 0]
    wire.complete(*wire.take_id())
    assert wire.call("completeChild", deps, "glide:{x}:2", parent) == 0
    assert (wire.state(parent), wire.queued()) == ("completed", [])
    assert wire.job(parent)["depdone:glide:{x}:1"] == "1"


def test_registering_failed_child_releases_no_parent(wire: WireQueue) -> None:
    child, entry = wire.add_and_take()
    wire.fail(child, entry)
    parent = add_flow(wire)
    keys = [f"job:{child}", f"parents:{child}", f"deps:{parent}", f"job:{parent}", "stream", "events"]
    assert wire.call("registerParent", keys, child, parent, wire.base, wire.key(child)) == "ok"
    assert wire.redis("SMEMBERS", f"parents:{child}") == [wire.key(parent)]
    assert wire.state(parent) == "waiting-children"


def test_fetch_next_notifies_parents(wire: WireQueue) -> None:
    child, entry = wire.add_and_take()
    one, other = add_flow(wire, wire.key(child)), add_flow(wire, wire.key(child))
    wire.redis("SADD", f"parents:{child}", wire.key(other))
    keys = ["stream", "completed", "events", f"job:{child}", "metrics:completed"]
    keys += [f"deps:{one}", f"job:{one}", "stream", "events"]
    args = [child, entry, "7", wire.now, GROUP, CONSUMER, "0", 0, 0, wire.key(child), one, "", "", "", 0, "", "", 0, 0]
    reply = wire.call("completeAndFetchNext", keys, *args)
    assert reply[:2] == ["NEXT_HASH", child]
    assert {wire.state(one), wire.state(other)} == {"active", "waiting"}


# -- due ---------------------------------------------------------------------------------------------------


def test_promote_is_bounded_per_call(wire: WireQueue) -> None:
    for i in range(1001):
        wire.add(delay=5, id=f"j{i}", ttl=1 if i < 3 else 0, quiet=1)
    wire.now += 5
    assert [wire.promote(), wire.promote(), wire.promote()] == [1000, 1, 0]
    assert len(wire.scores("failed")) == 3
    assert wire.redis("XLEN", "stream") == 998


def test_score_priority_determines_the_list(wire: WireQueue) -> None:
    """Not the priority in the record."""
    plain, urgent = wire.add(delay=5, priority=3), wire.add(delay=5)
    wire.redis("ZADD", "scheduled", START + 5, plain)
    wire.redis("ZADD", "scheduled", 2 * BAND + START + 5, urgent)
    wire.now += 5
    assert wire.promote() == 2
    assert (wire.queued(), wire.redis("LRANGE", "priority", 0, -1)) == ([plain], [urgent])


def test_limited_groups_are_bounded_per_call(wire: WireQueue) -> None:
    for i in range(101):
        job_id = wire.add(ordering=f"k{i}")
        wire.redis("ZADD", f"groupq:k{i}", 1, job_id)
        wire.redis("HSET", f"job:{job_id}", "state", "group-waiting")
        wire.redis("ZADD", "ratelimited", START, f"k{i}")
    assert wire.call("promoteRateLimited", ["ratelimited", "stream"], wire.now) == 100
    assert wire.call("promoteRateLimited", ["ratelimited", "stream"], wire.now) == 1


@pytest.mark.parametrize(
    "state", ["active", "group-waiting", "waiting-children", "suspended", "completed", "failed"]
)  # fmt: skip
def test_jobs_that_cannot_be_rescheduled(wire: WireQueue, state: str) -> None:
    job_id = in_state(wire, state)
    assert wire.call("changePriority", keys_of_job(job_id), job_id, 4, GROUP) == "error:invalid_state"
    assert wire.call("changeDelay", keys_of_job(job_id), job_id, 4, wire.now, GROUP) == "error:invalid_state"
    assert wire.call("promoteJob", keys_of_job(job_id), job_id) == "error:not_delayed"
    assert (wire.state(job_id), wire.event_names(job_id)) == (state, ["added"])


@pytest.mark.parametrize("state", ["delayed", "prioritized"])
def test_reschedule_of_misplaced_job(wire: WireQueue, state: str) -> None:
    job_id = in_state(wire, state)
    for priority in (0, 4):
        reply = wire.call("changePriority", keys_of_job(job_id), job_id, priority, GROUP)
        assert reply == "error:not_in_scheduled"
    assert wire.call("changeDelay", keys_of_job(job_id), job_id, 4, wire.now, GROUP) == "error:not_in_scheduled"
    assert wire.call("changePriority", keys_of_job(job_id), job_id, -1, GROUP) == "error:invalid_priority"
    assert wire.state(job_id) == state


# -- activation --------------------------------------------------------------------------------------------


def test_revocation_comes_before_expiry_and_both_before_the_group(wire: WireQueue) -> None:
    wire.add(ordering="k")
    revoked, expired = wire.add(ordering="k", ttl=1), wire.add(ordering="k", ttl=1)
    wire.redis("HSET", f"job:{revoked}", "revoked", "1")
    wire.now += 5
    replies = {fields["jobId"]: wire.activate(fields["jobId"], entry) for entry, fields in reversed(wire.read(3))}
    assert (replies[revoked], replies[expired]) == ("REVOKED", "EXPIRED")


BOTH = {"ordering": "k", "concurrency": 9, "rate_max": 1, "rate_duration": 300, "capacity": 1000, "refill": 1000}


def test_token_limit_reply_has_precedence_over_rate_limit(wire: WireQueue) -> None:
    """And the later of both times counts."""
    jobs = [wire.add(**BOTH) for _ in range(2)]
    assert wire.take_id()[0] == jobs[0]
    assert wire.fetch()[2] == "GROUP_TOKEN_LIMITED"
    assert wire.scores("ratelimited") == {"k": START + 1000}
    wire.add(**BOTH)
    wire.redis("HSET", "group:k", "rateDuration", 4000, "nextSeq", 3)
    assert wire.fetch()[2] == "GROUP_TOKEN_LIMITED"
    assert wire.scores("ratelimited") == {"k": START + 4000}


def test_returning_job_is_charged_again(wire: WireQueue) -> None:
    options = {"ordering": "k", "concurrency": 9, "rate_max": 5, "rate_duration": 9000, "capacity": 3000, "refill": 1}
    job_id, entry = wire.add_and_take(**options)
    wire.fail(job_id, entry, limit=5)
    wire.promote()
    wire.take_id()
    group = wire.group("k")
    assert (group["tbTokens"], group["rateCount"], group["active"], group["nextSeq"]) == ("1000", "2", "1", "2")


def test_a_bucket_that_is_not_refilled(wire: WireQueue) -> None:
    """A rate of nothing counts as a thousandth of a token a second."""
    options = {"ordering": "k", "concurrency": 9, "capacity": 1000, "refill": 0}
    wire.add(**options)
    wire.add(**options)
    wire.take_id()
    assert wire.fetch()[2] == "GROUP_TOKEN_LIMITED"
    assert wire.scores("ratelimited") == {"k": START + 1_000_000}


# -- fetching the next -------------------------------------------------------------------------------------


def test_fetch_next_reads_three_candidates_per_source(wire: WireQueue) -> None:
    done, entry = wire.add_and_take()
    lists = [wire.add(lifo=1, ttl=1) for _ in range(4)]
    stream = [wire.add(ttl=1) for _ in range(4)]
    wire.now += 5
    assert wire.complete_and_fetch(done, entry) == ["NEXT_NONE", done]
    assert (wire.redis("LRANGE", "lifo", 0, -1), wire.queued()) == ([lists[0]], [stream[3]])
    assert wire.scores("failed").keys() == {*lists[1:], *stream[:3]}


def test_a_broadcast_fetches_nothing(wire: WireQueue) -> None:
    done, entry = wire.add_and_take()
    wire.add(lifo=1)
    keys = ["stream", "completed", "events", f"job:{done}", "metrics:completed"]
    args = [done, entry, "7", wire.now, GROUP, CONSUMER, "true", 0, 0, "", "", "", "", "", 1, "", "", 0, 0]
    assert wire.call("completeAndFetchNext", keys, *args) == ["NEXT_NONE", done]
    assert (wire.state(done), wire.redis("LLEN", "lifo"), len(wire.entries())) == ("completed", 1, 1)


def test_quiet_and_no_metrics(wire: WireQueue) -> None:
    first, entry = wire.add_and_take(quiet=1)
    following = wire.add(lifo=1, quiet=1)
    keys = ["stream", "completed", "events", f"job:{first}", "metrics:completed"]
    args = [first, entry, "7", wire.now, GROUP, CONSUMER, "0", 0, 0, "", "", "__", 0, "__", 0, START, 0, 1, 1]
    assert wire.call("completeAndFetchNext", keys, *args)[:4] == ["NEXT_HASH", first, following, ""]
    assert wire.redis("EXISTS", "events", wire.key("metrics:completed")) == 0


@pytest.mark.parametrize("limit", [0, -1])
def test_no_limit_on_concurrency(wire: WireQueue, limit: int) -> None:
    wire.redis("HSET", "meta", "globalConcurrency", limit)
    jobs = [wire.add(lifo=1) for _ in range(3)]
    assert wire.call("checkConcurrency", ["meta", "stream", "list-active"], GROUP) == -1
    reserve = ["meta", "stream", "list-active", "lifo"]
    assert wire.call("rpopAndReserve", reserve, GROUP) == [jobs[2]]
    assert wire.call("rpopAndReserve", reserve, GROUP, 5000) == [jobs[1], jobs[0]]
    assert (wire.list_active(), wire.call("rpopAndReserve", reserve, GROUP, 0)) == (3, [])


# -- steps of list jobs ------------------------------------------------------------------------------------


def wait_for_children(wire: WireQueue, job_id: str) -> str:
    wire.redis("SADD", f"deps:{job_id}", "glide:{x}:1")
    return str(
        wire.call("moveToWaitingChildren", [f"job:{job_id}", "stream", "events"], job_id, "", GROUP, wire.now, 0)
    )


def suspend(wire: WireQueue, job_id: str) -> str:
    keys = [f"job:{job_id}", "stream", "events", "suspended"]
    return str(wire.call("suspend", keys, job_id, "", GROUP, wire.now, "why", 0, 0))


@pytest.mark.parametrize(("step", "state"), [(wait_for_children, "waiting-children"), (suspend, "suspended")])
def test_list_job_waits_for_children_or_signal(
    wire: WireQueue, step: Callable[[WireQueue, str], str], state: str
) -> None:
    """W25."""
    job_id = from_list(wire, lifo=1)
    assert (step(wire, job_id), wire.state(job_id), wire.list_active()) == ("ok", state, 0)
    assert step(wire, job_id) == "error:not_active"
    wire.redis("DEL", f"job:{job_id}")
    assert step(wire, job_id) == "error:not_found"


def test_list_job_rate_limits_its_group(wire: WireQueue) -> None:
    job_id = from_list(wire, ordering="k", priority=2)

    def limit(duration: int, mode: str) -> str:
        args = (job_id, "", GROUP, duration, wire.now, 0, "requeue", "front", mode)
        return str(wire.call("rateLimitGroup", [f"job:{job_id}", "stream"], *args))

    wire.redis("ZADD", "ratelimited", START + 9000, "k")
    assert limit(500, "replace") == str(START + 500)
    assert (wire.list_active(), wire.group("k")["active"], wire.scores("groupq:k")) == (0, "0", {job_id: 1})
    assert limit(500, "max") == "error:not_active"
    wire.redis("DEL", f"job:{job_id}")
    assert limit(500, "max") == "error:not_active"


def test_longer_rate_limit_stays(wire: WireQueue) -> None:
    job_id, entry = wire.add_and_take(ordering="k")
    wire.redis("ZADD", "ratelimited", START + 9000, "k")
    args = (job_id, entry, GROUP, 500, wire.now, 0, "requeue", "front", "max")
    assert wire.call("rateLimitGroup", [f"job:{job_id}", "stream"], *args) == str(START + 9000)


def test_signal_to_running_job_is_not_stored(wire: WireQueue) -> None:
    for job_id in (wire.add(), "nobody"):
        keys = [f"job:{job_id}", "stream", "events", "suspended", f"signals:{job_id}"]
        assert wire.call("signal", keys, job_id, "go", "", wire.now) == "not_suspended"
        assert wire.redis("EXISTS", f"signals:{job_id}") == 0


def test_suspend_sweep_is_bounded_per_call(wire: WireQueue) -> None:
    for i in range(101):
        wire.add(id=f"j{i}", quiet=1)
        wire.redis("HSET", f"job:j{i}", "state", "suspended")
        wire.redis("ZADD", "suspended", START, f"j{i}")
    keys = ["suspended", "events", "failed", "metrics:failed"]
    assert [wire.call("sweepSuspended", keys, wire.now, wire.base + ":") for _ in range(3)] == [100, 1, 0]


# -- stalls ------------------------------------------------------------------------------------------------


def test_a_stalled_list_job_can_have_expired(wire: WireQueue) -> None:
    job_id = from_list(wire, lifo=1, ttl=100)
    wire.now += 5000
    assert wire.recover_list_jobs() == 1
    assert (wire.job(job_id)["failedReason"], wire.list_active(), wire.redis("LLEN", "lifo")) == ("expired", 0, 0)


def test_worker_lock_duration_is_the_default(wire: WireQueue) -> None:
    own, plain = wire.add(opts='{"lockDuration":500}'), wire.add()  # out of its range: as if it were not there
    wire.take_id()
    wire.take_id()
    args = (GROUP, "worker-2", 0, 1, START + 1999, wire.key("failed"), 0, 2000)
    assert wire.call("reclaimStalled", ["stream", "events"], *args) == 2
    assert (wire.state(own), wire.state(plain)) == ("active", "active")
    args = (GROUP, "worker-2", 0, 1, START + 2000, wire.key("failed"), 0, 2000)
    assert wire.call("reclaimStalled", ["stream", "events"], *args) == 2
    assert (wire.state(own), wire.state(plain)) == ("waiting", "waiting")


# -- administration ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["active", "suspended", "waiting-children", "completed", "failed"])
def test_revoke_in_every_state(wire: WireQueue, state: str) -> None:
    job_id = in_state(wire, state)
    assert (wire.revoke(job_id), wire.state(job_id), wire.job(job_id)["revoked"]) == ("flagged", state, "1")
    assert wire.event_names(job_id) == ["added", "revoked"]


def test_retried_jobs_keep_their_priority(wire: WireQueue) -> None:
    job_id = from_list(wire, priority=7)
    wire.fail(job_id, "")
    wire.now += 5
    assert wire.call("retryJobs", ["failed", "scheduled", "events", "id"], 0, wire.now) == 1
    assert wire.scores("scheduled") == {job_id: 7 * BAND + wire.now}


def test_drain_finds_the_job_of_a_subscription_s_retry(wire: WireQueue) -> None:
    job_id = wire.add()
    wire.redis("DEL", "stream")
    wire.redis("ZADD", "scheduled", START, f"{job_id}||mail")
    wire.redis("HSET", f"job:{job_id}", "state", "delayed")
    keys = ["stream", "scheduled", "events", "id", "lifo", "priority"]
    assert wire.call("drain", keys, "1", GROUP) == 1
    assert wire.redis("EXISTS", f"job:{job_id}", wire.key("scheduled")) == 0


def test_remove_of_inactive_ordered_jobs(wire: WireQueue) -> None:
    for state, index in (("suspended", "suspended"), ("completed", "completed"), ("failed", "failed")):
        job_id = in_state(wire, state)
        wire.redis("ZADD", index, START, job_id)
        assert wire.remove(job_id) == 1
        assert wire.redis("EXISTS", index, wire.key(f"job:{job_id}")) == 0


def test_search_returns_100_by_default(wire: WireQueue) -> None:
    for i in range(101):
        wire.add(id=f"j{i}", name="a", quiet=1)
    assert len(wire.call("searchByName", ["stream"], "stream", "a", "", wire.base + ":")) == 100


def test_exceeded_is_returned_once(wire: WireQueue) -> None:
    wire.redis("HSET", "budget:1", "usedTokens", 0, "usedCost", 0, "exceeded", 1)
    assert wire.call("recordUsageAndCheckBudget", ["budget:1"], "{}", "{}", 5, 0, "{}", "{}") == "ok"
    assert wire.call("checkBudget", ["budget:1"]) == "exceeded"
