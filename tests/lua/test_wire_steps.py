"""Test delay, waiting for children and suspension of active jobs, signals, and recovery of stalled jobs."""

import json

import pytest

from tests.lua import wire_support
from tests.lua.wire_support import BAND, CONSUMER, GROUP, START, WireQueue

wire = wire_support.wire_fixture


def delay(wire: WireQueue, job_id: str, entry: str, until: int, data: str = "", broadcast: int = 0) -> str:
    keys = [f"job:{job_id}", "stream", "scheduled", "events"]
    return str(wire.call("moveActiveToDelayed", keys, job_id, entry, wire.now, until, GROUP, data, broadcast))


def await_children(wire: WireQueue, job_id: str, entry: str) -> str:
    keys = [f"job:{job_id}", "stream", "events"]
    return str(wire.call("moveToWaitingChildren", keys, job_id, entry, GROUP, wire.now, 0))


def suspend(wire: WireQueue, job_id: str, entry: str, reason: str = "", timeout: int = 0) -> str:
    keys = [f"job:{job_id}", "stream", "events", "suspended"]
    return str(wire.call("suspend", keys, job_id, entry, GROUP, wire.now, reason, timeout, 0))


def signal(wire: WireQueue, job_id: str, name: str, data: str = "") -> str:
    keys = [f"job:{job_id}", "stream", "events", "suspended", f"signals:{job_id}"]
    return str(wire.call("signal", keys, job_id, name, data, wire.now))


def test_delay_an_active_job(wire: WireQueue) -> None:
    job_id, entry = wire.add_and_take(priority=0)
    wire.redis("HSET", f"job:{job_id}", "stalledCount", 1)
    assert delay(wire, job_id, entry, START + 300, '{"step":2}') == "ok"
    job = wire.job(job_id)
    assert (job["state"], job["delay"], job["data"], job["attemptsMade"]) == ("delayed", "300", '{"step":2}', "0")
    assert "stalledCount" not in job  # W39
    assert (wire.scores("scheduled"), wire.pending(), wire.entries()) == ({job_id: START + 300}, [], [])
    assert wire.events(job_id)[-1] == {"event": "delay-changed", "jobId": job_id, "delay": "300"}
    assert delay(wire, job_id, entry, START) == "error:not_active"
    assert delay(wire, "nobody", "", START) == "error:not_found"


def test_delay_until_past_means_now(wire: WireQueue) -> None:
    job_id, entry = wire.add_and_take()
    assert delay(wire, job_id, entry, START - 5) == "ok"
    assert (wire.scores("scheduled"), wire.job(job_id)["delay"]) == ({job_id: START}, "0")


def test_active_list_job_can_be_delayed(wire: WireQueue) -> None:
    job_id = wire.add(priority=2)
    wire.promote()
    wire.activate(wire.pop()[0], "")
    assert wire.list_active() == 1
    assert delay(wire, job_id, "", START + 10) == "ok"
    assert (wire.list_active(), wire.scores("scheduled")) == (0, {job_id: 2 * BAND + START + 10})


def test_delay_affects_only_its_subscription(wire: WireQueue) -> None:
    """W34."""
    job_id, entry = wire.add_and_take()
    assert delay(wire, job_id, entry, START + 10, broadcast=1) == "ok"
    assert wire.scores("scheduled") == {f"{job_id}||{GROUP}": START + 10}
    wire.now += 10
    wire.promote()
    assert wire.entries()[-1]["retryGroup"] == GROUP


def test_stale_worker_cannot_move_job(wire: WireQueue) -> None:
    job_id, old = wire.add_and_take()
    wire.now += 60_000
    wire.recover_stalled()
    wire.take_id()
    assert delay(wire, job_id, old, START) == "error:not_active"
    assert suspend(wire, job_id, old) == "error:not_active"
    assert await_children(wire, job_id, old) == "error:not_active"
    assert wire.state(job_id) == "active"


def test_waiting_for_children(wire: WireQueue) -> None:
    job_id, entry = wire.add_and_take()
    wire.add(parent_id=job_id, parent_queue=wire.name, deps=f"deps:{job_id}")
    assert await_children(wire, job_id, entry) == "ok"
    assert (wire.state(job_id), wire.event_names(job_id)[-1]) == ("waiting-children", "waiting-children")
    child, child_entry = wire.take_id()
    parent_keys = [f"deps:{job_id}", f"job:{job_id}", "stream", "events"]
    wire.complete(child, child_entry, parent=(parent_keys, wire.key(child), job_id))
    _, entry = wire.take_id()
    assert await_children(wire, job_id, entry) == "completed"
    assert (wire.state(job_id), wire.queued()) == ("waiting", [job_id])
    assert await_children(wire, job_id, entry) == "error:not_active"


def test_no_children_to_wait_for(wire: WireQueue) -> None:
    """W48."""
    job_id, entry = wire.add_and_take()
    assert await_children(wire, job_id, entry) == "completed"
    assert wire.take_id()[0] == job_id


def test_suspend_and_signal(wire: WireQueue) -> None:
    job_id, entry = wire.add_and_take()
    assert suspend(wire, job_id, entry, "approval") == "ok"
    job = wire.job(job_id)
    assert (job["state"], job["suspendedAt"], job["suspendReason"]) == ("suspended", str(START), "approval")
    assert "suspendTimeout" not in job
    assert wire.scores("suspended") == {job_id: 9999999999999}
    wire.now += 5
    assert signal(wire, job_id, 'ok "é"', '{"by":"me"}') == "ok"
    assert signal(wire, job_id, "again") == "not_suspended"
    assert (wire.state(job_id), wire.scores("suspended"), wire.queued()) == ("waiting", {}, [job_id])
    sent = {"name": 'ok "é"', "data": '{"by":"me"}', "receivedAt": START + 5}
    assert json.loads(wire.job(job_id)["signals"]) == [sent]
    assert [json.loads(text) for text in wire.redis("LRANGE", f"signals:{job_id}", 0, -1)] == [sent]
    assert wire.events(job_id)[-1] == {"event": "resumed", "jobId": job_id, "signal": 'ok "é"'}
    _, entry = wire.take_id()
    assert suspend(wire, job_id, entry) == "ok"
    assert signal(wire, job_id, "two") == "ok"
    assert [item["name"] for item in json.loads(wire.job(job_id)["signals"])] == ['ok "é"', "two"]


def test_suspension_times_out(wire: WireQueue) -> None:
    job_id, entry = wire.add_and_take()
    suspend(wire, job_id, entry, timeout=100)
    wire.redis("ZADD", "suspended", 1, "gone")
    keys = ["suspended", "events", "failed", "metrics:failed"]
    assert wire.call("sweepSuspended", keys, START + 99, wire.base + ":") == 0
    assert wire.call("sweepSuspended", keys, START + 100, wire.base + ":") == 1
    job = wire.job(job_id)
    assert (job["state"], job["failedReason"]) == ("failed", "Suspend timeout exceeded")
    assert job["finishedOn"] == job["processedOn"] == str(START + 100)
    assert (wire.scores("suspended"), wire.scores("failed")) == ({}, {job_id: START + 100})
    assert wire.event_names(job_id)[-1] == "failed"
    assert wire.metric("failed")["c"] == 1


# -- stalls ------------------------------------------------------------------------------------------------


def test_a_stalled_job_runs_again_then_fails(wire: WireQueue) -> None:
    job_id, entry = wire.add_and_take()
    wire.now += 30_000
    assert wire.recover_stalled() == 1
    job = wire.job(job_id)
    assert (job["state"], job["stalledCount"]) == ("waiting", "1")
    assert not {"processedOn", "lastActive"} & job.keys()
    assert (wire.pending(), wire.event_names(job_id)[-1]) == ([], "stalled")
    again, second = wire.take_id()
    assert (again, second != entry) == (job_id, True)
    wire.now += 30_000
    assert wire.recover_stalled() == 1
    assert wire.job(job_id)["failedReason"] == "job stalled more than maxStalledCount"
    assert (wire.entries(), wire.scores("failed")) == ([], {job_id: wire.now})
    assert wire.metric("failed") == {"c": 1, "d": 30_000}


def test_healthy_jobs_stay_with_their_worker(wire: WireQueue) -> None:
    """W35: they are not claimed, and a page of them does not hide a stalled one."""
    wire.redis("DEL", "stream")
    jobs = [wire.add() for _ in range(120)]
    for entry, fields in wire.read(120):
        wire.activate(fields["jobId"], entry)
    wire.now += 1000
    for job_id in jobs[:-1]:
        wire.redis("HSET", f"job:{job_id}", "lastActive", wire.now)
    args = (GROUP, "worker-2", 0, 1, wire.now, wire.key("failed"), 0, 500)
    assert wire.call("reclaimStalled", ["stream", "events"], *args) == 120
    assert wire.state(jobs[-1]) == "waiting"
    owners = {row[1] for row in wire.resp.execute("XPENDING", wire.key("stream"), GROUP, "-", "+", 200)}
    assert (owners, len(wire.pending())) == ({CONSUMER}, 119)


def test_lock_duration_of_the_job_is_used(wire: WireQueue) -> None:
    job_id, _ = wire.add_and_take(opts='{"lockDuration":60000}')
    wire.now += 59_999
    assert (wire.recover_stalled(), wire.state(job_id)) == (1, "active")
    wire.now += 1
    assert (wire.recover_stalled(), wire.state(job_id)) == (1, "waiting")


def test_recent_entries_are_skipped(wire: WireQueue) -> None:
    wire.add()
    wire.take_id()
    wire.now += 90_000
    assert wire.recover_stalled(min_idle=60_000) == 0


def test_leftover_entries_create_no_records(wire: WireQueue) -> None:
    """W31."""
    gone, done = wire.add(), wire.add()
    wire.read(2)
    wire.redis("DEL", f"job:{gone}")
    wire.redis("HSET", f"job:{done}", "state", "completed")
    assert wire.recover_stalled() == 2
    assert (wire.redis("EXISTS", f"job:{gone}"), wire.state(done), wire.entries()) == (0, "completed", [])


def test_a_stalled_job_can_have_expired(wire: WireQueue) -> None:
    job_id, _ = wire.add_and_take(ttl=100)
    wire.now += 101
    assert wire.recover_stalled() == 1
    assert (wire.job(job_id)["failedReason"], wire.entries()) == ("expired", [])


def test_stalled_grouped_job_keeps_its_slot(wire: WireQueue) -> None:
    job_id, _ = wire.add_and_take(ordering="k")
    wire.redis("HDEL", f"job:{job_id}", "slot")  # activated by another library
    wire.now += 60_000
    wire.recover_stalled()
    assert wire.group("k")["active"] == "1"
    assert wire.take_id()[0] == job_id
    wire.now += 60_000
    wire.recover_stalled()
    assert (wire.state(job_id), wire.group("k")["active"]) == ("failed", "0")


def test_a_dead_subscription_gets_its_message_again(wire: WireQueue) -> None:
    """W32."""
    job_id = wire.add()
    ((entry, _),) = wire.read(group="mail")
    wire.activate(job_id, entry, "mail", 1)
    wire.now += 60_000
    assert wire.recover_stalled(broadcast=1, group="mail") == 1
    assert wire.state(job_id) == "active"
    ((again, fields),) = wire.read(group="mail")
    assert (fields["jobId"], fields["retryGroup"]) == (job_id, "mail")
    assert isinstance(wire.activate(job_id, again, "mail", 1), dict)


# -- list jobs ---------------------------------------------------------------------------------------------


def take_from_list(wire: WireQueue, **options: object) -> str:
    job_id = wire.add(**options)
    wire.promote()
    assert wire.pop() == [job_id]
    assert isinstance(wire.activate(job_id, ""), dict)
    return job_id


def forget_sets(wire: WireQueue) -> None:
    """As if another library had activated them."""
    wire.redis("DEL", "list-taken")


@pytest.mark.parametrize("known", [True, False])
def test_stalled_list_jobs(wire: WireQueue, known: bool) -> None:
    lifo, urgent = take_from_list(wire, lifo=1), take_from_list(wire, priority=1)
    wire.redis("SET", f"job:{lifo}:usage-lock", "token")  # W55: no hash
    if not known:
        forget_sets(wire)
    assert wire.recover_list_jobs(min_idle=1) == 0
    wire.now += 1000
    assert wire.recover_list_jobs() == 2
    assert (wire.redis("LRANGE", "lifo", 0, -1), wire.redis("LRANGE", "priority", 0, -1)) == ([lifo], [urgent])
    assert (wire.list_active(), wire.job(lifo)["stalledCount"]) == (0, "1")
    assert wire.recover_list_jobs() == 0
    wire.activate(wire.pop()[0], "")
    wire.now += 1000
    assert wire.recover_list_jobs() == 1
    assert (wire.state(urgent), wire.list_active()) == ("failed", 0)


def test_priority_stream_jobs_are_not_list_jobs(wire: WireQueue) -> None:
    """W37."""
    job_id = wire.add()
    wire.redis("HSET", f"job:{job_id}", "priority", 5)
    wire.take_id()
    wire.redis("SET", "list-active", 1)
    wire.now += 60_000
    assert (wire.recover_list_jobs(), wire.state(job_id)) == (0, "active")


def test_glob_in_queue_name_is_escaped(wire: WireQueue) -> None:
    """W93."""
    wild = WireQueue(wire.resp, wire.name[:-1] + "*")
    take_from_list(wire, lifo=1)
    forget_sets(wire)
    wild.redis("SET", "list-active", 1)
    wire.now += 60_000
    wild.now = wire.now
    assert wild.recover_list_jobs() == 0
    assert wild.call("getActiveListJobIds", ["id"]) == []
    wild.delete_everything()


def test_heal_list_active_repairs_counter(wire: WireQueue) -> None:
    assert wire.call("healListActive", ["id"]) == 0
    take_from_list(wire, lifo=1)
    assert wire.call("healListActive", ["id"]) == 0
    wire.redis("SET", "list-active", 4)
    assert (wire.call("healListActive", ["id"]), wire.list_active()) == (3, 1)
    wire.redis("SET", "list-active", -2)
    assert (wire.call("healListActive", ["id"]), wire.list_active()) == (0, 0)


def test_active_list_jobs(wire: WireQueue) -> None:
    jobs = {take_from_list(wire, lifo=1) for _ in range(3)}
    assert set(wire.call("getActiveListJobIds", ["id"])) == jobs
    assert set(wire.call("getActiveListJobIds", ["id"], 0, -1)) == jobs
    assert len(wire.call("getActiveListJobIds", ["id"], 1, 1)) == 1
    forget_sets(wire)
    assert set(wire.call("getActiveListJobIds", ["id"])) == jobs
