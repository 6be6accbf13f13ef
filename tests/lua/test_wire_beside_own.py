"""Both faces on one queue: a peer calls the wire face, our own workers call ours."""

import pytest

from glidemq_py.testing import RespClient
from glidemq_py.wire.calls import suspending, working
from glidemq_py.wire.calls.adding import row
from tests.lua import wire_support
from tests.lua.own_support import OwnQueue
from tests.lua.wire_support import WireQueue

wire = wire_support.wire_fixture


@pytest.fixture(name="own")
def own_fixture(core_resp: RespClient, wire: WireQueue) -> OwnQueue:
    """Our face on the queue of `wire`."""
    return OwnQueue(core_resp, wire.name)


def test_a_peer_s_jobs_are_run_by_ours(wire: WireQueue, own: OwnQueue) -> None:
    jobs = {wire.add(), wire.add(lifo=1), wire.add(priority=1)}
    taken = own.take(5)
    assert {job.id for job in taken} == jobs
    own.finish(*(job.completed() for job in taken))
    assert wire.scores("completed").keys() == jobs
    assert (wire.pending(), wire.list_active()) == ([], 0)


def test_our_jobs_are_run_by_a_peer(wire: WireQueue, own: OwnQueue) -> None:
    job_id = own.add_job()
    assert own.exchange(0).jobs == []
    taken, entry = wire.take_id()
    assert (taken, wire.complete(job_id, entry, "7")) == (job_id, 1)
    assert own.job(job_id)["returnvalue"] == "7"


def test_our_remove_finds_a_peer_s_entry(wire: WireQueue, own: OwnQueue) -> None:
    job_id = wire.add()
    assert own.fcall("remove", own.meta, job_id) == 1
    assert wire.entries() == []


def test_a_peer_s_push_to_a_list_wakes_our_idle_workers(wire: WireQueue, own: OwnQueue) -> None:
    own.exchange(1)  # finds nothing and waits: from now on there is a stream of markers
    before = own.redis("XLEN", "wake")
    wire.add(lifo=1)
    assert own.redis("XLEN", "wake") == before + 1


def test_our_attempt_is_stale_once_a_peer_has_recovered_it(wire: WireQueue, own: OwnQueue) -> None:
    own.add_job()
    job = own.take_one()
    wire.now = own.now + 60_000
    assert wire.reclaim() == 1
    _, entry = wire.take_id()
    assert own.finish(job.completed()) == [3]
    assert (wire.complete(job.id, entry), wire.state(job.id)) == (1, "completed")


def test_heal_knows_list_jobs_that_ours_took(wire: WireQueue, own: OwnQueue) -> None:
    wire.add(priority=1)
    own.take_one()
    assert (wire.call("healListActive", ["id"]), wire.list_active()) == (0, 1)


def test_an_early_signal_of_ours_resumes_what_a_peer_suspends(wire: WireQueue, own: OwnQueue) -> None:
    job_id = wire.add()
    assert own.run(suspending.signal(own.meta, job_id, "early", "1")) == "kept"
    _, entry = wire.take_id()
    keys = [f"job:{job_id}", "stream", "events", "suspended"]
    assert wire.call("suspend", keys, job_id, entry, "workers", wire.now, "", 0, 0) == "ok"
    assert (wire.state(job_id), wire.scores("suspended")) == ("waiting", {})
    assert own.take_one().fields["signals"].startswith('[{"name":"early"')


def test_a_peer_signals_what_ours_suspended(wire: WireQueue, own: OwnQueue) -> None:
    own.add_job(lifo=True)
    job = own.take_one()
    own.finish(suspending.suspended(*job.token, "", 0))
    keys = ["job:1", "stream", "events", "suspended", "signals:1"]
    assert wire.call("signal", keys, "1", "go", "", own.now) == "ok"
    again = own.take_one()
    assert again.fields["signals"] == '[{"name":"go","data":"","receivedAt":' + str(own.now) + "}]"
    assert own.finish(again.completed()) == [0]


def test_ours_fails_what_a_peer_suspended_for_too_long(wire: WireQueue, own: OwnQueue) -> None:
    job_id = wire.add()
    _, entry = wire.take_id()
    keys = [f"job:{job_id}", "stream", "events", "suspended"]
    wire.call("suspend", keys, job_id, entry, "workers", own.now, "", 50, 0)
    own.advance(50)
    assert own.run(suspending.sweep(own.meta)).failed == [job_id]
    assert wire.scores("failed") == {job_id: own.now}


def test_a_parent_that_goes_on_because_its_child_was_drained_is_not_lost(wire: WireQueue, own: OwnQueue) -> None:
    own.add_job(lifo=True)
    parent = own.take_one()
    own.add(row("child", "{}", '{"onFailure":"ignore"}', lifo=True, parent=[parent.id, wire.name]))
    assert own.finish(working.waiting_children(*parent.token)) == [10]
    assert wire.call("drain", ["stream", "scheduled", "events", "id", "lifo", "priority"], 0, "workers") == 1
    assert own.take_one().id == parent.id
