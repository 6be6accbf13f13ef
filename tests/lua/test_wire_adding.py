"""addJob, dedup, addFlow, completeChild, registerParent, and the locks."""

import json

import pytest

from glidemq_py.testing import RespError
from tests.lua import wire_support
from tests.lua.wire_support import BAND, START, WireQueue, library

wire = wire_support.wire_fixture


def test_all_documented_functions_exist() -> None:
    documented = {
        "version", "tryLock", "unlock", "renewLock", "addJob", "dedup", "addFlow", "completeChild", "registerParent",
        "promote", "nextDue", "promoteRateLimited", "promoteJob", "changeDelay", "changePriority", "moveToActive",
        "completeAndFetchNext", "checkConcurrency", "rpopAndReserve", "popLists", "deferActive", "complete", "fail",
        "moveActiveToDelayed", "moveToWaitingChildren", "suspend", "signal", "sweepSuspended", "rateLimitGroup",
        "rateLimitGroupExternal", "reclaimStalled", "reclaimStalledListJobs", "healListActive", "getActiveListJobIds",
        "pause", "resume", "rateLimit", "removeJob", "clean", "drain", "retryJobs", "revoke", "searchByName",
        "checkBudget", "recordUsageAndCheckBudget",
    }  # fmt: skip
    assert len(documented) == 45
    assert library().functions == documented
    assert library().name == "glidemq"


def test_version(wire: WireQueue) -> None:
    assert wire.call("version", []) == "93"
    assert wire.call("version", ["any"]) == "93"


def test_locks(wire: WireQueue) -> None:
    assert wire.call("tryLock", ["lock"], "a", 500_000) == 1
    assert wire.call("tryLock", ["lock"], "b", 500_000) == 0
    assert wire.call("renewLock", ["lock"], "b", 500_000) == 0
    assert wire.call("renewLock", ["lock"], "a", 900_000) == 1
    assert 500_000 < wire.redis("PTTL", "lock") <= 900_000
    assert wire.call("unlock", ["lock"], "b") == 0
    assert wire.call("unlock", ["lock"], "a") == 1
    assert wire.redis("EXISTS", "lock") == 0


def test_lock_without_ttl_lasts_a_second(wire: WireQueue) -> None:
    for _ in range(50):
        assert wire.call("tryLock", ["lock"], "a") == 1
        left = wire.redis("PTTL", "lock")
        if left != -2:  # on a slow machine it expires before it is read
            break
    assert 0 < left <= 1000


# -- addJob ------------------------------------------------------------------------------------------------


def test_missing_arguments_take_their_defaults(wire: WireQueue) -> None:
    reply = wire.call("addJob", ["id", "stream", "scheduled", "events"], "n", "d", "{}", START)
    assert reply == "1"
    job = wire.job("1")
    assert job.pop("eid")
    assert job == {
        "id": "1", "name": "n", "data": "d", "opts": "{}", "timestamp": str(START), "attemptsMade": "0", "delay": "0",
        "priority": "0", "maxAttempts": "0", "state": "waiting",
    }  # fmt: skip


def test_invalid_id_key_is_rejected(wire: WireQueue) -> None:
    with pytest.raises(RespError, match="does not end in"):
        wire.call("addJob", ["ids", "stream", "scheduled", "events"], "n", "d", "{}", START)


def test_eid_names_the_entry(wire: WireQueue) -> None:
    job_id = wire.add()
    ((entry, _),) = wire.redis("XRANGE", "stream", "-", "+")
    assert wire.job(job_id)["eid"] == entry


def test_delay_and_priority_beat_lifo(wire: WireQueue) -> None:
    delayed, first, lifo = wire.add(delay=50, lifo=1), wire.add(priority=2, lifo=1), wire.add(lifo=1)
    assert wire.scores("scheduled") == {delayed: START + 50, first: 2 * BAND}
    assert [wire.state(job) for job in (delayed, first, lifo)] == ["delayed", "prioritized", "waiting"]
    assert wire.redis("LRANGE", "lifo", 0, -1) == [lifo]
    assert wire.job(delayed)["lifo"] == "1"


def test_quiet_emits_nothing(wire: WireQueue) -> None:
    wire.add(quiet=1)
    assert wire.redis("EXISTS", "events") == 0


def test_numeric_custom_ids_move_the_counter(wire: WireQueue) -> None:
    assert [wire.add(id="41"), wire.add(), wire.add(id="7"), wire.add()] == ["41", "42", "7", "43"]


@pytest.mark.parametrize("custom", ["007", "99999999999999999999", "9223372036854775808"])
def test_unusual_numeric_ids_do_not_break_the_counter(wire: WireQueue, custom: str) -> None:
    """W63."""
    assert wire.add(id=custom) == custom
    assert wire.add() in ("1", "8")


def test_ids_beyond_14_digits_are_printed_in_full(wire: WireQueue) -> None:
    """W63: not 1e+14."""
    wire.add(id="100000000000000")
    assert [wire.add(), wire.add()] == ["100000000000001", "100000000000002"]


def test_auto_ids_skip_existing_ids(wire: WireQueue) -> None:
    """W64."""
    wire.redis("HSET", "job:1", "id", "1", "state", "completed")
    assert wire.add() == "2"


def test_parent_fields_and_deps(wire: WireQueue) -> None:
    job_id = wire.add(parent_id="9", parent_queue=wire.name, deps="deps:9")
    assert wire.redis("SMEMBERS", "deps:9") == [wire.key(job_id)]
    assert wire.job(job_id)["parentQueue"] == wire.name
    orphan = wire.add(parent_queue=wire.name, deps="deps:9")
    assert "parentQueue" not in wire.job(orphan)
    assert wire.redis("SCARD", "deps:9") == 1


def test_scheduler_name_ttl_and_cost(wire: WireQueue) -> None:
    job = wire.job(wire.add(scheduler="nightly", ttl=500, ordering="k", capacity=5000, refill=1000, cost=1500))
    assert (job["schedulerName"], job["expireAt"], job["cost"]) == ("nightly", str(START + 500), "1500")


def test_a_cost_over_capacity_leaves_no_trace(wire: WireQueue) -> None:
    """W1: neither an id nor a sequence is consumed."""
    assert wire.add(ordering="k", capacity=500, refill=1) == "ERR:COST_EXCEEDS_CAPACITY"
    assert wire.has_keys() == set()


def test_limits_of_a_group_follow_the_last_add(wire: WireQueue) -> None:
    wire.add(ordering="k", concurrency=3, rate_max=5, rate_duration=1000, capacity=4000, refill=1000)
    assert wire.group("k") == {
        "maxConcurrency": "3", "nextSeq": "1", "rateMax": "5", "rateDuration": "1000", "tbCapacity": "4000",
        "tbRefillRate": "1000", "tbTokens": "4000", "tbLastRefill": str(START), "tbRefillRemainder": "0",
    }  # fmt: skip
    wire.add(ordering="k")
    assert wire.group("k") == {"maxConcurrency": "1", "nextSeq": "1"}


# -- dedup -------------------------------------------------------------------------------------------------


def test_simple_lasts_while_the_job_lives(wire: WireQueue) -> None:
    first = wire.dedup("d", "simple")
    assert wire.dedup("d", "simple") == "skipped"
    wire.redis("HSET", f"job:{first}", "state", "completed")
    assert wire.dedup("d", "simple") == "2"
    wire.redis("DEL", "job:2")
    assert wire.dedup("d", "simple") == "3"
    assert wire.redis("HGET", "dedup", "d") == f"3:{START}"


def test_throttle_counts_from_the_last_accepted_add(wire: WireQueue) -> None:
    assert wire.dedup("d", "throttle", 1000) == "1"
    wire.now += 999
    assert wire.dedup("d", "throttle", 1000) == "skipped"
    wire.now += 1
    assert wire.dedup("d", "throttle", 1000) == "2"
    assert wire.dedup("d", "throttle", 0) == "3"


def test_debounce_keeps_started_jobs(wire: WireQueue) -> None:
    wire.dedup("d", "debounce")
    assert wire.dedup("d", "debounce") == "skipped"


def test_debounce_in_a_group_does_not_stop_it(wire: WireQueue) -> None:
    wire.dedup("d", "debounce", ordering="k", delay=100)
    wire.dedup("d", "debounce", ordering="k")
    assert wire.group("k")["nextSeq"] == "2"
    assert wire.fetch()[2]["orderingSeq"] == "2"


def test_an_unknown_mode_checks_nothing(wire: WireQueue) -> None:
    assert [wire.dedup("d", "other"), wire.dedup("d", "other")] == ["1", "2"]


def test_duplicates_and_costs_are_not_remembered(wire: WireQueue) -> None:
    wire.add(id="x")
    assert wire.dedup("d", "simple", id="x") == "duplicate"
    assert wire.dedup("e", "simple", ordering="k", capacity=1) == "ERR:COST_EXCEEDS_CAPACITY"
    assert wire.redis("EXISTS", "dedup") == 0


# -- flows -------------------------------------------------------------------------------------------------

QUEUE_KEYS = ["id", "stream", "scheduled", "events"]


def add_flow(
    wire: WireQueue, *children: tuple[str, str], parent_id: str = "", opts: str = "{}", extra: tuple[str, ...] = ()
) -> str:
    """Children are (opts, custom id), all in this queue."""
    args: list[object] = ["parent", "{}", opts, wire.now, 0, 0, 0, len(children), parent_id]
    for child_opts, custom in children:
        args += ["child", "{}", child_opts, 0, 0, 0, wire.base, wire.name, custom]
    reply = wire.call("addFlow", QUEUE_KEYS * (1 + len(children)), *args, len(extra), *extra)
    return str(reply)


def test_a_parent_waits_for_its_children(wire: WireQueue) -> None:
    assert json.loads(add_flow(wire, ("{}", ""), ('{"lifo":true}', ""))) == ["1", "2", "3"]
    assert wire.state("1") == "waiting-children"
    assert wire.queued() == ["2"]
    assert wire.redis("LRANGE", "lifo", 0, -1) == ["3"]
    assert wire.event_names() == ["added"] * 3
    assert [event["jobId"] for event in wire.events()] == ["2", "3", "1"]
    deps = ["deps:1", "job:1", "stream", "events"]
    for child, left in (("2", 1), ("2", 1), ("3", 0)):
        assert wire.call("completeChild", deps, wire.key(child), "1") == left
    assert wire.state("1") == "waiting"
    assert wire.queued() == ["2", "1"]
    assert wire.event_names("1") == ["added", "active"]
    assert wire.job("1")["depsCompleted"] == "2"


def test_options_of_a_flow_are_read_from_their_json(wire: WireQueue) -> None:
    ordering = '"ordering":{"key":"k","concurrency":2,"tokenBucket":{"capacity":3,"refillRate":1}}'
    add_flow(wire, (f'{{{ordering},"cost":1.5,"ttl":10}}', ""), opts=f"{{{ordering}}}")
    child = wire.job("2")
    assert (child["cost"], child["expireAt"], child["orderingSeq"]) == ("1500", str(START + 10), "2")
    group = wire.group("k")
    assert (group["maxConcurrency"], group["active"], group["tbCapacity"]) == ("2", "0", "3000")


@pytest.mark.parametrize(
    ("parent_id", "children"), [("p", ("p",)), ("", ("c", "c")), ("taken", ("c",)), ("", ("taken",))]
)
def test_duplicates_of_a_flow(wire: WireQueue, parent_id: str, children: tuple[str, ...]) -> None:
    wire.add(id="taken")
    before = wire.has_keys()
    assert json.loads(add_flow(wire, *(("{}", child) for child in children), parent_id=parent_id)) == ["duplicate"]
    assert wire.has_keys() == before


def test_a_costly_child_leaves_no_orphan(wire: WireQueue) -> None:
    """W47."""
    costly = '{"cost":9,"ordering":{"key":"k","tokenBucket":{"capacity":3,"refillRate":1}}}'
    assert add_flow(wire, (costly, "")) == "ERR:COST_EXCEEDS_CAPACITY"
    assert wire.has_keys() == set()


def test_a_flow_without_children_takes_extra_deps(wire: WireQueue) -> None:
    assert json.loads(add_flow(wire, extra=("glide:{x}:5",))) == ["1"]
    assert wire.redis("SMEMBERS", "deps:1") == ["glide:{x}:5"]
    assert wire.call("completeChild", ["deps:1", "job:1", "stream", "events"], "glide:{x}:5", "1") == 0
    assert wire.state("1") == "waiting"


def test_deleted_parent_is_not_recreated(wire: WireQueue) -> None:
    wire.redis("SADD", "deps:9", wire.key("1"))
    assert wire.call("completeChild", ["deps:9", "job:9", "stream", "events"], wire.key("1"), "9") == 1
    assert wire.redis("EXISTS", "job:9") == 0


def register(wire: WireQueue, child: str, parent: str) -> str:
    keys = [f"job:{child}", f"parents:{child}", f"deps:{parent}", f"job:{parent}", "stream", "events"]
    return str(wire.call("registerParent", keys, child, parent, wire.base, wire.key(child)))


def test_register_parent(wire: WireQueue) -> None:
    parents = json.loads(add_flow(wire)) + json.loads(add_flow(wire))
    child = wire.add()
    assert register(wire, "nobody", parents[0]) == "error:child_not_found"
    assert [register(wire, child, parent) for parent in (*parents, parents[0])] == ["ok"] * 3
    assert wire.redis("SCARD", f"parents:{child}") == 2
    wire.complete(*wire.take_id())
    assert [wire.state(parent) for parent in parents] == ["waiting", "waiting"]
    late = json.loads(add_flow(wire))[0]
    assert register(wire, child, late) == "already_completed"
    assert wire.state(late) == "waiting"


def test_parent_in_another_queue_is_notified_if_reachable(wire: WireQueue) -> None:
    """W45: in a cluster it stays untouched, and the completion succeeds all the same."""
    other = WireQueue(wire.resp, wire.name + "-other")
    other.redis("HSET", "job:5", "id", "5", "name", "p", "state", "waiting-children")
    other.redis("SADD", "deps:5", wire.key("1"))
    wire.add()
    wire.redis("SADD", "parents:1", other.key("5"))
    assert wire.complete(*wire.take_id()) == 1
    clustered = wire.resp.info("cluster").get("cluster_enabled") == "1"
    assert wire.state("1") == "completed"
    assert other.state("5") == ("waiting-children" if clustered else "waiting")
    other.delete_everything()
