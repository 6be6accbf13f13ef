"""Test both libraries on one queue: a peer calls the wire library, our workers call ours."""

import pytest

from glidemq_py.records import FindingKind
from glidemq_py.testing import RespClient
from tests.inside import calls as flows
from tests.inside import row, working
from tests.lua.check_support import check, repaired
from tests.lua.own_support import OwnQueue
from tests.wire_library.support import WireQueue


@pytest.fixture(name="own")
def own_fixture(core_resp: RespClient, wire: WireQueue) -> OwnQueue:
    """Our variant on the queue of `wire`."""
    return OwnQueue(core_resp, wire.name)


def test_a_peer_s_push_to_a_list_wakes_our_idle_workers(wire: WireQueue, own: OwnQueue):
    own.exchange(1)  # finds nothing and waits: from now on there is a stream of markers
    before = own.redis("XLEN", "wake")
    wire.add(lifo=1)
    assert own.redis("XLEN", "wake") == before + 1


def test_parent_released_by_drain_is_kept(wire: WireQueue, own: OwnQueue):
    own.add_job(lifo=True)
    parent = own.take_one()
    own.add(row("child", "{}", '{"onFailure":"ignore"}', lifo=True, parent=[parent.id, wire.name]))
    assert own.finish(working.waiting_children(*parent.token)) == [10]
    assert wire.call("drain", ["stream", "scheduled", "events", "id", "lifo", "priority"], 0, "workers") == 1
    assert own.take_one().id == parent.id


# -- a peer that died ----------------------------------------------------------------------------------------

LOCK = 30_000


def _pop(wire: WireQueue, own: OwnQueue, count: int = 1) -> list[str]:
    """The wire variant reads the server's clock; here the pop is dated by the test's."""
    ids = wire.pop(count)
    for job_id in ids:
        assert wire.redis("ZADD", "list-popped", "XX", own.now, job_id) == 0
    return ids


@pytest.mark.parametrize("options", [{"lifo": 1}, {"priority": 3}], ids=["lifo", "priority"])
def test_ours_recover_a_job_that_a_dead_peer_popped(wire: WireQueue, own: OwnQueue, options: dict[str, int]):
    """W15: the peer died between pop and activation."""
    job_id = wire.add(**options)
    wire.promote()
    assert _pop(wire, own) == [job_id]
    own.advance(LOCK - 1)
    assert own.recover_stalled(hold=1).recovered == []
    own.advance(1)
    assert own.recover_stalled(hold=1).recovered == [job_id]
    assert (wire.redis("EXISTS", "list-popped"), wire.list_active()) == (0, 0)
    job = own.take_one()
    assert own.finish(job.completed()) == [0]
    assert (wire.state(job_id), wire.list_active()) == ("completed", 0)
    assert check(own).ok


def test_missing_or_finished_popped_job_leaves_list_active(wire: WireQueue, own: OwnQueue):
    gone, ended = wire.add(lifo=1), wire.add(lifo=1)
    _pop(wire, own, 2)
    own.redis("DEL", f"job:{gone}")
    own.redis("HSET", f"job:{ended}", "state", "failed")
    own.advance(LOCK)
    assert own.recover_stalled(hold=1).recovered == []
    assert (wire.redis("EXISTS", "list-popped"), wire.list_active(), wire.redis("LLEN", "lifo")) == (0, 0, 0)


def test_slow_peer_cannot_activate_recovered_job(wire: WireQueue, own: OwnQueue):
    job_id = wire.add(lifo=1)
    _pop(wire, own)
    own.advance(LOCK)
    assert own.recover_stalled(hold=1).recovered == [job_id]
    assert own.take_one().id == job_id
    assert wire.activate(job_id, "") == "GROUP_FULL"


def test_job_popped_at_an_unusable_time_is_recovered(wire: WireQueue, own: OwnQueue):
    job_id = wire.add(lifo=1)
    _pop(wire, own)
    own.redis("ZADD", "list-popped", "inf", job_id)
    assert check(own).findings[0].subject == job_id
    assert own.recover_stalled(hold=1).recovered == [job_id]
    assert own.take_one().id == job_id


def test_check_reports_unrecovered_popped_job(wire: WireQueue, own: OwnQueue):
    job_id = wire.add(lifo=1)
    _pop(wire, own)
    assert check(own).ok
    own.advance(120_000)
    assert repaired(own) == [[FindingKind.LOST_JOB, job_id]]
    assert own.take_one().id == job_id


def test_many_popped_jobs_are_recovered_in_bounded_pieces(wire: WireQueue, own: OwnQueue):
    ids = {wire.add(lifo=1) for _ in range(450)}
    _pop(wire, own, 1000)
    own.advance(LOCK)
    sizes = [len(own.recover_stalled(hold=1).recovered) for _ in range(4)]
    assert (sum(sizes), max(sizes)) == (len(ids), 200)


# -- parents that a peer's own library releases ----------------------------------------------------------------


def _wait_and_go(own: OwnQueue, count: int, state: str):
    """Parents in the index of those that wait, which a peer has released without knowing of it."""
    for i in range(count):
        own.put_job(f"p{i}", state=state)
        own.redis("ZADD", "waiting-children", own.now - 1_000_000, f"p{i}")


@pytest.mark.parametrize("state", ["completed", "waiting", "failed"])
def test_parents_that_a_peer_released_leave_the_index(own: OwnQueue, state: str):
    _wait_and_go(own, 1_200, state)
    own.put_job("open", state="waiting-children")
    own.redis("ZADD", "waiting-children", own.now, "open")
    own.redis("SADD", "deps:open", "glide:{other}:1")
    calls = 0
    while own.run(flows.sweep_parents(own.meta)):
        calls += 1
    assert 1 < calls < 20
    assert own.counts()["waiting_children"] < 100
    own.recover_stalled(hold=1)
    assert own.redis("ZRANGE", "waiting-children", 0, -1) == ["open"]
    assert own.counts()["waiting_children"] == 1


def test_parent_watch_removes_parents_that_no_longer_wait(own: OwnQueue):
    _wait_and_go(own, 300, "completed")
    pages = 0
    while own.run(flows.watch_children(own.meta, 1_000, 500, 1_000, 500)).more:
        pages += 1
        assert pages < 50
    assert own.redis("EXISTS", "waiting-children") == 0
