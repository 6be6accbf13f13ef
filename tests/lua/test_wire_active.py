"""moveToActive, complete, completeAndFetchNext, fail, deferActive, and the counting of list jobs."""

from collections.abc import Callable

import pytest

from tests.lua import wire_support
from tests.lua.wire_support import BAND, GROUP, START, WireQueue, as_dict

wire = wire_support.wire_fixture


def test_move_to_active_returns_the_whole_job(wire: WireQueue) -> None:
    job_id = wire.add(name="mail", data='{"a":1}', attempts=3)
    wire.now += 40
    fetched, entry, reply = wire.fetch()
    assert fetched == job_id
    assert reply == wire.job(job_id)
    assert (reply["state"], reply["processedOn"], reply["lastActive"]) == ("active", str(START + 40), str(START + 40))
    assert reply["data"] == '{"a":1}'
    assert wire.pending() == [entry]
    assert wire.event_names(job_id) == ["added"]


def test_move_to_active_without_a_stream(wire: WireQueue) -> None:
    job_id = wire.add()
    reply = as_dict(wire.call("moveToActive", [f"job:{job_id}"], wire.now))
    assert reply["state"] == "active"


def test_no_job_no_entry(wire: WireQueue) -> None:
    """W31: an entry without a job does not stay pending."""
    job_id = wire.add()
    wire.redis("DEL", f"job:{job_id}")
    assert wire.fetch()[2] == ""
    assert (wire.pending(), wire.entries(), wire.redis("EXISTS", f"job:{job_id}")) == ([], [], 0)


def test_revoked_is_for_the_caller_to_fail(wire: WireQueue) -> None:
    job_id = wire.add()
    wire.redis("HSET", f"job:{job_id}", "revoked", "1")
    _, entry, reply = wire.fetch()
    assert (reply, wire.state(job_id), wire.pending()) == ("REVOKED", "waiting", [entry])
    assert wire.fail(job_id, entry, "revoked") == "failed"
    assert (wire.state(job_id), wire.pending()) == ("failed", [])


def test_expired_fails_at_activation(wire: WireQueue) -> None:
    job_id = wire.add(ttl=10)
    wire.now += 11
    assert wire.fetch()[2] == "EXPIRED"
    assert (wire.job(job_id)["failedReason"], wire.entries()) == ("expired", [])
    assert wire.scores("failed") == {job_id: wire.now}


@pytest.mark.parametrize("state", ["completed", "failed", "suspended", "waiting-children"])
def test_leftover_entry_activates_nothing(wire: WireQueue, state: str) -> None:
    """W36."""
    job_id = wire.add()
    wire.redis("HSET", f"job:{job_id}", "state", state)
    assert wire.fetch()[2] == "GROUP_FULL"
    assert (wire.state(job_id), wire.entries()) == (state, [])


def test_second_entry_of_active_job_activates_nothing(wire: WireQueue) -> None:
    job_id, entry = wire.add(), ""
    wire.redis("XADD", "stream", "*", "jobId", job_id, "name", "task")
    _, entry = wire.take_id()
    assert wire.fetch()[2] == "GROUP_FULL"
    assert wire.pending() == [entry]
    assert isinstance(wire.activate(job_id, entry), dict)  # the same delivery, requested again


def test_complete(wire: WireQueue) -> None:
    job_id, entry = wire.add_and_take()
    wire.now += 25
    assert wire.complete(job_id, entry, '"done"') == 1
    job = wire.job(job_id)
    assert (job["state"], job["returnvalue"], job["finishedOn"]) == ("completed", '"done"', str(START + 25))
    assert wire.scores("completed") == {job_id: START + 25}
    assert wire.events(job_id)[-1] == {"event": "completed", "jobId": job_id, "returnvalue": '"done"'}
    assert wire.metric("completed") == {"c": 1, "d": 25}
    assert (wire.pending(), wire.entries()) == ([], [])


def test_a_second_completion_changes_nothing(wire: WireQueue) -> None:
    """W7."""
    wire.add(ordering="k", concurrency=2)
    wire.add(ordering="k", concurrency=2)
    (first, entry), _ = wire.take_id(), wire.take_id()
    assert wire.group("k")["active"] == "2"
    before = wire.complete(first, entry), wire.job(first), wire.events()
    assert (wire.complete(first, entry, "9"), wire.job(first), wire.events()) == before
    assert wire.group("k")["active"] == "1"
    assert wire.metric("completed")["c"] == 1


def test_completing_missing_job_creates_no_record(wire: WireQueue) -> None:
    """W30."""
    job_id, entry = wire.add_and_take()
    assert wire.remove(job_id) == 1
    assert wire.complete(job_id, entry) == 1
    assert wire.fail(job_id, entry) == "failed"
    assert wire.redis("EXISTS", f"job:{job_id}", wire.key("completed"), wire.key("failed")) == 0


def test_a_late_worker_cannot_finish_a_newer_attempt(wire: WireQueue) -> None:
    job_id, old = wire.add_and_take()
    wire.now += 60_000
    assert wire.recover_stalled() == 1
    _, entry = wire.take_id()
    assert wire.complete(job_id, old, "1") == 1
    assert wire.fail(job_id, old) == "retrying"
    assert (wire.state(job_id), wire.pending()) == ("active", [entry])
    assert wire.complete(job_id, entry, "2") == 1
    assert wire.job(job_id)["returnvalue"] == "2"


@pytest.mark.parametrize(
    ("retention", "kept"),
    [(("0", 0, 0), 3), (("true", 0, 0), 2), (("count", 1, 0), 1), (("count", 0, 0), 3), (("age_count", 0, 1), 1),
     (("age_count", 2, 9999), 2)],
)  # fmt: skip
def test_retention_deletes_all_keys_of_a_job(wire: WireQueue, retention: tuple[object, ...], kept: int) -> None:
    """W69."""
    for i in range(3):
        job_id, entry = wire.add_and_take()
        wire.redis("RPUSH", f"log:{job_id}", "line")
        wire.complete(job_id, entry, retention=retention if i == 2 else ("0", 0, 0))
        wire.now += 2000
    assert wire.redis("ZCARD", "completed") == kept
    left = {key for key in wire.has_keys() if key.startswith(("job:", "log:"))}
    assert left == {f"{kind}:{job_id}" for job_id in wire.scores("completed") for kind in ("job", "log")}


def test_complete_notifies_the_parent(wire: WireQueue) -> None:
    keys = ["id", "stream", "scheduled", "events"]
    wire.call(
        "addFlow", keys * 2, "p", "{}", "{}", START, 0, 0, 0, 1, "", "c", "{}", "{}", 0, 0, 0, wire.base, "q", "", 0
    )
    child, entry = wire.take_id()
    wire.complete(child, entry, parent=(["deps:1", "job:1", "stream", "events"], wire.key(child), "1"))
    assert (wire.state("1"), wire.queued()) == ("waiting", ["1"])
    assert wire.event_names() == ["added", "added", "completed", "active"]
    assert wire.take_id()[0] == "1"


# -- fail --------------------------------------------------------------------------------------------------


def test_fail_retries_until_the_attempts_are_spent(wire: WireQueue) -> None:
    job_id = wire.add(attempts=2, priority=3, opts='{"fallbacks":[{"model":"m"}]}')
    wire.redis("HSET", f"job:{job_id}", "stalledCount", 1)
    wire.promote()
    (popped,) = wire.pop()
    assert isinstance(wire.activate(popped, ""), dict)
    wire.now += 5
    assert wire.fail(job_id, "", "first", 2, 100) == "retrying"
    job = wire.job(job_id)
    assert (job["state"], job["attemptsMade"], job["failedReason"], job["fallbackIndex"]) == (
        "delayed",
        "1",
        "first",
        "1",
    )
    assert "stalledCount" not in job  # W39
    assert wire.scores("scheduled") == {job_id: 3 * BAND + START + 105}
    retrying = {"event": "retrying", "jobId": job_id, "failedReason": "first", "attemptsMade": "1", "delay": "100"}
    assert wire.events(job_id)[-1] == retrying
    wire.now += 100
    wire.promote()
    wire.activate(wire.pop()[0], "")
    assert wire.fail(job_id, "", "second", 2, 100) == "failed"
    job = wire.job(job_id)
    assert (job["state"], job["attemptsMade"], job["failedReason"]) == ("failed", "2", "second")
    assert job["finishedOn"] == job["processedOn"] == str(wire.now)
    assert (wire.scores("failed"), wire.list_active()) == ({job_id: wire.now}, 0)
    assert wire.metric("failed")["c"] == 1


def test_fail_without_attempts_is_final(wire: WireQueue) -> None:
    job_id, entry = wire.add_and_take(attempts=0)
    assert wire.fail(job_id, entry, retention=("true", 0, 0)) == "failed"
    assert wire.redis("EXISTS", f"job:{job_id}", wire.key("failed")) == 0
    assert wire.event_names(job_id) == ["added", "failed"]


def test_broadcast_failures_count_by_subscription(wire: WireQueue) -> None:
    job_id = wire.add()
    for group in ("mail", "audit"):
        ((entry, _),) = wire.read(group=group)
        wire.activate(job_id, entry, group, 1)
        assert wire.fail(job_id, entry, limit=2, broadcast=1, group=group) == "retrying"
    assert wire.scores("scheduled").keys() == {f"{job_id}||mail", f"{job_id}||audit"}
    assert wire.redis("HGET", f"job:{job_id}:sub:mail", "a") == "1"
    assert 0 < wire.redis("TTL", f"job:{job_id}:sub:mail") <= 86400
    assert (wire.job(job_id)["attemptsMade"], wire.queued()) == ("0", [job_id])
    assert wire.promote() == 2
    assert wire.entries()[-1]["retryGroup"] in ("mail", "audit")


def test_broadcast_completes_once_a_subscription(wire: WireQueue) -> None:
    job_id = wire.add()
    for group in ("mail", "audit"):
        ((entry, _),) = wire.read(group=group)
        assert isinstance(wire.activate(job_id, entry, group, 1), dict)
        assert wire.complete(job_id, entry, broadcast=1, group=group, retention=("true", 0, 0)) == 1
    assert wire.event_names(job_id) == ["added", "completed", "completed"]
    assert (wire.state(job_id), wire.queued()) == ("completed", [job_id])


# -- completeAndFetchNext ----------------------------------------------------------------------------------


def test_fetch_next_order(wire: WireQueue) -> None:
    first = wire.add()
    stream, lifo, urgent = wire.add(), wire.add(lifo=1), wire.add(priority=1)
    wire.promote()
    _, entry = wire.take_id()
    job, source = first, entry
    order = []
    for _ in range(3):
        kind, done, *rest = wire.complete_and_fetch(job, source)
        assert (kind, done) == ("NEXT_HASH", job)
        job, source, fields = rest[0], rest[1], as_dict(rest[2:])
        assert fields == wire.job(job)
        assert fields["state"] == "active"
        order.append((job, bool(source), wire.list_active()))
    assert order == [(urgent, False, 1), (lifo, False, 1), (stream, True, 0)]
    assert wire.complete_and_fetch(job, source) == ["NEXT_NONE", stream]
    assert wire.event_names(urgent) == ["added", "promoted", "active", "completed"]
    assert wire.event_names(stream) == ["added", "completed"]
    assert wire.metric("completed")["c"] == 4


def test_fetch_next_drops_jobs_that_cannot_run(wire: WireQueue) -> None:
    """W31: nothing of it stays pending."""
    job_id = wire.add()
    gone, expired, good = wire.add(), wire.add(ttl=1), wire.add()
    _, entry = wire.take_id()
    wire.redis("DEL", f"job:{gone}")
    wire.now += 2
    kind, _, next_id, next_entry, *_ = wire.complete_and_fetch(job_id, entry)
    assert (kind, next_id) == ("NEXT_HASH", good)
    assert (wire.state(expired), wire.pending()) == ("failed", [next_entry])


def test_fetch_next_returns_revoked_jobs(wire: WireQueue) -> None:
    job_id, revoked = wire.add(), wire.add()
    _, entry = wire.take_id()
    wire.redis("HSET", f"job:{revoked}", "revoked", "1")
    kind, _, next_id, next_entry = wire.complete_and_fetch(job_id, entry)
    assert (kind, next_id) == ("NEXT_REVOKED", revoked)
    assert wire.fail(revoked, next_entry, "revoked") == "failed"


def test_fetch_next_of_a_late_worker_completes_nothing(wire: WireQueue) -> None:
    job_id, entry = wire.add_and_take()
    wire.redis("HSET", f"job:{job_id}", "processedOn", START + 1)
    assert wire.complete_and_fetch(job_id, entry, started=START) == ["NEXT_NONE", job_id]
    assert wire.state(job_id) == "active"


def test_fetch_next_checks_group_limits_for_list_jobs(wire: WireQueue) -> None:
    """W9: the rate window too."""
    blocker, entry = wire.add_and_take()
    limits = {"ordering": "k", "concurrency": 5, "rate_max": 1, "rate_duration": 1000, "priority": 1}
    first, second = wire.add(**limits), wire.add(**limits)
    wire.promote()
    _, _, job_id, source, *_ = wire.complete_and_fetch(blocker, entry)
    assert job_id == first
    assert wire.complete_and_fetch(job_id, source) == ["NEXT_NONE", first]
    assert (wire.state(second), wire.scores("ratelimited")) == ("group-waiting", {"k": START + 1000})


def test_fetch_next_omits_the_marks_of_very_many_children(wire: WireQueue) -> None:
    """W50: a record has a field per ended child, which no worker reads."""
    job_id, entry = wire.add_and_take()
    big = wire.add(lifo=1)
    for i in range(0, 9000, 1000):
        wire.redis("HSET", f"job:{big}", *(text for j in range(i, i + 1000) for text in (f"depdone:{j}", "1")))
    fields = as_dict(wire.complete_and_fetch(job_id, entry)[4:])
    assert {"id", "name", "data", "opts", "timestamp", "state", "processedOn"} <= fields.keys()
    assert not any(field.startswith("depdone:") for field in fields)


# -- taking ------------------------------------------------------------------------------------------------


def concurrency(wire: WireQueue) -> int:
    return int(wire.call("checkConcurrency", ["meta", "stream", "list-active"], GROUP))


def reserve(wire: WireQueue, count: int) -> list[str]:
    return list(wire.call("rpopAndReserve", ["meta", "stream", "list-active", "lifo"], GROUP, count))


def test_global_concurrency(wire: WireQueue) -> None:
    assert concurrency(wire) == -1
    wire.redis("HSET", "meta", "globalConcurrency", 3)
    assert concurrency(wire) == 3
    job_id, entry = wire.add_and_take()
    lifo = [wire.add(lifo=1) for _ in range(4)]
    assert concurrency(wire) == 2
    assert reserve(wire, 10) == [lifo[3], lifo[2]]
    assert (concurrency(wire), wire.list_active(), reserve(wire, 1)) == (0, 2, [])
    wire.complete(job_id, entry)
    assert reserve(wire, 5) == [lifo[1]]


def test_pop_lists_takes_one_list_at_a_time(wire: WireQueue) -> None:
    lifo, urgent = wire.add(lifo=1), wire.add(priority=1)
    wire.promote()
    assert wire.call("popLists", ["priority", "lifo"], 5) == [urgent]
    assert wire.call("popLists", ["priority", "lifo"]) == [lifo]
    assert wire.call("popLists", ["priority", "lifo"], 5) == []
    assert wire.list_active() == 0


@pytest.mark.parametrize("from_list", [False, True])
def test_defer(wire: WireQueue, from_list: bool) -> None:
    job_id = wire.add(lifo=int(from_list))
    if from_list:
        entry = ""
        wire.activate(wire.pop()[0], "")
    else:
        _, entry = wire.take_id()
    assert wire.call("deferActive", ["stream", f"job:{job_id}", "list-active"], job_id, entry, GROUP, 0) == 1
    assert (wire.state(job_id), wire.queued(), wire.list_active()) == ("waiting", [job_id], 0)
    assert wire.call("deferActive", ["stream", "job:x", "list-active"], "x", "", GROUP, 0) == 0


def test_a_popped_job_that_was_never_activated_returns(wire: WireQueue) -> None:
    """W15."""
    job_id = wire.add(lifo=1)
    assert wire.pop() == [job_id]
    wire.redis("ZADD", "list-popped", 1, job_id)  # popped long ago
    assert wire.recover_list_jobs() == 1
    assert (wire.redis("LRANGE", "lifo", 0, -1), wire.list_active()) == ([job_id], 0)
    assert isinstance(wire.activate(wire.pop()[0], ""), dict)
    assert wire.redis("EXISTS", "list-popped") == 0
    assert wire.complete(job_id, "") == 1
    assert (wire.list_active(), wire.redis("EXISTS", "list-taken")) == (0, 0)


def _fail(wire: WireQueue, child: str) -> None:
    fetched, entry = wire.take_id()
    assert (fetched, wire.fail(child, entry)) == (child, "failed")


@pytest.mark.parametrize("end", [
    _fail,
    lambda wire, child: wire.revoke(child),
    lambda wire, child: wire.remove(child),
    lambda wire, _: wire.call("drain", ["stream", "scheduled", "events", "id", "lifo", "priority"], 1, "workers"),
])  # fmt: skip
@pytest.mark.parametrize(
    ("opts", "parent"), [("{}", "waiting-children"), ('{"onFailure":"ignore"}', "waiting"),
                         ('{"onFailure":"fail_parent"}', "failed")],
)  # fmt: skip
def test_failed_child_notifies_parent_only_with_on_failure(
    wire: WireQueue, end: Callable[[WireQueue, str], None], opts: str, parent: str
) -> None:
    keys = ["id", "stream", "scheduled", "events"]
    wire.call(
        "addFlow",
        keys * 2,
        "p",
        "{}",
        "{}",
        START,
        0,
        0,
        0,
        1,
        "",
        "c",
        "{}",
        opts,
        0,
        0,
        0,
        wire.base,
        wire.name,
        "",
        0,
    )
    end(wire, "2")
    assert wire.state("1") == parent
