"""Test both libraries on one queue: a peer calls the wire library, our workers call ours."""

import pytest

from glidemq_py._core.calls import working
from glidemq_py._core.calls.adding import row
from glidemq_py._features.consistency.checking import FindingKind
from glidemq_py._features.flows import calls as flows
from glidemq_py._features.suspend import job_api as suspending
from glidemq_py.testing import RespClient
from tests.lua import wire_support
from tests.lua.check_support import assert_repairs, check
from tests.lua.own_support import OwnQueue
from tests.lua.wire_support import WireQueue

wire = wire_support.wire_fixture


@pytest.fixture(name="own")
def own_fixture(core_resp: RespClient, wire: WireQueue) -> OwnQueue:
    """Our variant on the queue of `wire`."""
    return OwnQueue(core_resp, wire.name)


def test_a_peer_s_jobs_are_run_by_ours(wire: WireQueue, own: OwnQueue) -> None:
    jobs = {wire.add(), wire.add(lifo=1), wire.add(priority=1)}
    fetched = own.fetch(5)
    assert {job.id for job in fetched} == jobs
    own.finish(*(job.completed() for job in fetched))
    assert wire.scores("completed").keys() == jobs
    assert (wire.pending(), wire.list_active()) == ([], 0)


def test_our_jobs_are_run_by_a_peer(wire: WireQueue, own: OwnQueue) -> None:
    job_id = own.add_job()
    assert own.exchange(0).jobs == []
    fetched, entry = wire.take_id()
    assert (fetched, wire.complete(job_id, entry, "7")) == (job_id, 1)
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
    assert wire.recover_stalled() == 1
    _, entry = wire.take_id()
    assert own.finish(job.completed()) == [3]
    assert (wire.complete(job.id, entry), wire.state(job.id)) == (1, "completed")


def test_heal_counts_list_jobs_of_our_workers(wire: WireQueue, own: OwnQueue) -> None:
    wire.add(priority=1)
    own.take_one()
    assert (wire.call("healListActive", ["id"]), wire.list_active()) == (0, 1)


def test_our_early_signal_resumes_a_job_that_a_peer_suspends(wire: WireQueue, own: OwnQueue) -> None:
    job_id = wire.add()
    assert own.run(suspending.signal(own.meta, job_id, "early", "1")) == "kept"
    _, entry = wire.take_id()
    keys = [f"job:{job_id}", "stream", "events", "suspended"]
    assert wire.call("suspend", keys, job_id, entry, "workers", wire.now, "", 0, 0) == "ok"
    assert (wire.state(job_id), wire.scores("suspended")) == ("waiting", {})
    assert own.take_one().fields["signals"].startswith('[{"name":"early"')


def test_peer_signals_a_job_that_we_suspended(wire: WireQueue, own: OwnQueue) -> None:
    own.add_job(lifo=True)
    job = own.take_one()
    own.finish(suspending.suspended(*job.token, "", 0))
    keys = ["job:1", "stream", "events", "suspended", "signals:1"]
    assert wire.call("signal", keys, "1", "go", "", own.now) == "ok"
    again = own.take_one()
    assert again.fields["signals"] == '[{"name":"go","data":"","receivedAt":' + str(own.now) + "}]"
    assert own.finish(again.completed()) == [0]


def test_we_fail_a_job_that_a_peer_suspended_for_too_long(wire: WireQueue, own: OwnQueue) -> None:
    job_id = wire.add()
    _, entry = wire.take_id()
    keys = [f"job:{job_id}", "stream", "events", "suspended"]
    wire.call("suspend", keys, job_id, entry, "workers", own.now, "", 50, 0)
    own.advance(50)
    assert own.run(suspending.sweep(own.meta)).failed == [job_id]
    assert wire.scores("failed") == {job_id: own.now}


def test_parent_released_by_drain_is_kept(wire: WireQueue, own: OwnQueue) -> None:
    own.add_job(lifo=True)
    parent = own.take_one()
    own.add(row("child", "{}", '{"onFailure":"ignore"}', lifo=True, parent=[parent.id, wire.name]))
    assert own.finish(working.waiting_children(*parent.token)) == [10]
    assert wire.call("drain", ["stream", "scheduled", "events", "id", "lifo", "priority"], 0, "workers") == 1
    assert own.take_one().id == parent.id


# -- a peer that died ----------------------------------------------------------------------------------------

LOCK = 30_000


def _recover_stalled(own: OwnQueue) -> working.RecoverStalledReply:
    reply = own.run(working.recover_stalled(own.meta, "py-1", 1, LOCK, 1, False, ""))
    assert isinstance(reply, working.RecoverStalledReply)
    return reply


def _pop(wire: WireQueue, own: OwnQueue, count: int = 1) -> list[str]:
    """The wire variant reads the server's clock; here the pop is dated by the test's."""
    ids = wire.pop(count)
    for job_id in ids:
        assert wire.redis("ZADD", "list-popped", "XX", own.now, job_id) == 0
    return ids


@pytest.mark.parametrize("options", [{"lifo": 1}, {"priority": 3}], ids=["lifo", "priority"])
def test_ours_recover_a_job_that_a_dead_peer_popped(wire: WireQueue, own: OwnQueue, options: dict[str, int]) -> None:
    """W15: the peer died between pop and activation."""
    job_id = wire.add(**options)
    wire.promote()
    assert _pop(wire, own) == [job_id]
    own.advance(LOCK - 1)
    assert _recover_stalled(own).recovered == []
    own.advance(1)
    assert _recover_stalled(own).recovered == [job_id]
    assert (wire.redis("EXISTS", "list-popped"), wire.list_active()) == (0, 0)
    job = own.take_one()
    assert own.finish(job.completed()) == [0]
    assert (wire.state(job_id), wire.list_active()) == ("completed", 0)
    assert check(own).ok


def test_missing_or_finished_popped_job_leaves_list_active(wire: WireQueue, own: OwnQueue) -> None:
    gone, ended = wire.add(lifo=1), wire.add(lifo=1)
    _pop(wire, own, 2)
    own.redis("DEL", f"job:{gone}")
    own.redis("HSET", f"job:{ended}", "state", "failed")
    own.advance(LOCK)
    assert _recover_stalled(own).recovered == []
    assert (wire.redis("EXISTS", "list-popped"), wire.list_active(), wire.redis("LLEN", "lifo")) == (0, 0, 0)


def test_slow_peer_cannot_activate_recovered_job(wire: WireQueue, own: OwnQueue) -> None:
    job_id = wire.add(lifo=1)
    _pop(wire, own)
    own.advance(LOCK)
    assert _recover_stalled(own).recovered == [job_id]
    assert own.take_one().id == job_id
    assert wire.activate(job_id, "") == "GROUP_FULL"


def test_job_popped_at_an_unusable_time_is_recovered(wire: WireQueue, own: OwnQueue) -> None:
    job_id = wire.add(lifo=1)
    _pop(wire, own)
    own.redis("ZADD", "list-popped", "inf", job_id)
    assert check(own).findings[0].subject == job_id
    assert _recover_stalled(own).recovered == [job_id]
    assert own.take_one().id == job_id


def test_check_reports_unrecovered_popped_job(wire: WireQueue, own: OwnQueue) -> None:
    job_id = wire.add(lifo=1)
    _pop(wire, own)
    assert check(own).ok
    own.advance(120_000)
    assert_repairs(own, (FindingKind.LOST_JOB, job_id))
    assert own.take_one().id == job_id


def test_many_popped_jobs_are_recovered_in_bounded_pieces(wire: WireQueue, own: OwnQueue) -> None:
    ids = {wire.add(lifo=1) for _ in range(450)}
    _pop(wire, own, 1000)
    own.advance(LOCK)
    sizes = [len(_recover_stalled(own).recovered) for _ in range(4)]
    assert (sum(sizes), max(sizes)) == (len(ids), 200)


# -- parents that a peer's own library releases ----------------------------------------------------------------


def _wait_and_go(own: OwnQueue, count: int, state: str) -> None:
    """Parents in the index of those that wait, which a peer has released without knowing of it."""
    for i in range(count):
        own.put_job(f"p{i}", state=state)
        own.redis("ZADD", "waiting-children", own.now - 1_000_000, f"p{i}")


@pytest.mark.parametrize("state", ["completed", "waiting", "failed"])
def test_parents_that_a_peer_released_leave_the_index(own: OwnQueue, state: str) -> None:
    _wait_and_go(own, 1_200, state)
    own.put_job("open", state="waiting-children")
    own.redis("ZADD", "waiting-children", own.now, "open")
    own.redis("SADD", "deps:open", "glide:{other}:1")
    calls = 0
    while own.run(flows.sweep_parents(own.meta)):
        calls += 1
    assert 1 < calls < 20
    assert own.counts()["waiting_children"] < 100
    _recover_stalled(own)
    assert own.redis("ZRANGE", "waiting-children", 0, -1) == ["open"]
    assert own.counts()["waiting_children"] == 1


def test_parent_watch_removes_parents_that_no_longer_wait(own: OwnQueue) -> None:
    _wait_and_go(own, 300, "completed")
    pages = 0
    while own.run(flows.watch_children(own.meta, 1_000, 500)).more:
        pages += 1
        assert pages < 50
    assert own.redis("EXISTS", "waiting-children") == 0
