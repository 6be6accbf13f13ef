"""Test leases: deadlines, expiry, timeouts, extension, release, and peers that judge by `lastActive`."""

from typing import Any

import pytest

from glidemq_py._features.leases import CONSUMER
from tests.inside import working
from tests.lua.check_support import check
from tests.lua.own_support import Fetched, OwnQueue
from tests.lua.test_beside_documented import SOURCE, Peer
from tests.wire_library import support as wire_support
from tests.wire_library.support import WireQueue

LOCK = 30_000


def leasing(
    q: OwnQueue, want: int = 10, finished: Any = (), lock: int = LOCK, expiry: working.Expiry = working.Expiry.STALL,
    limits: Any = (), owner: str = "me",
) -> tuple[list[int], list[Fetched]]:  # fmt: skip
    call = working.exchange(
        q.meta, CONSUMER, want, finished, False, False, leasing=working.Leasing(owner, lock, expiry, limits)
    )
    reply = q.run(call)
    return list(reply.statuses), [Fetched(job, reply.now) for job in reply.jobs]


def lease(q: OwnQueue, **options: Any) -> Fetched:
    _, (job,) = leasing(q, 1, **options)
    return job


@pytest.fixture(params=["wire", "documented"])
def peer(request: pytest.FixtureRequest, q: OwnQueue) -> WireQueue:
    """Return a peer that calls the wire library, or one that calls a library as Node peers have it."""
    name = q.name
    if request.param == "wire":
        wire_support.load(q.resp)
        return WireQueue(q.resp, name)
    q.resp.execute_everywhere("FUNCTION", "LOAD", "REPLACE", SOURCE)
    return Peer(q.resp, name)


@pytest.mark.parametrize("place", [{}, {"lifo": True}], ids=["stream", "list"])
def test_no_peer_takes_a_leased_job_early(q: OwnQueue, peer: WireQueue, place: Any):
    job_id = q.add_job(**place)
    job = lease(q, lock=10 * LOCK)
    q.advance(10 * LOCK - 1)
    peer.now = q.now
    recover = peer.recover_list_jobs if place else peer.recover_stalled
    if job.entry:
        q.let_idle(job.entry, 10 * LOCK, CONSUMER)
    recover()
    assert q.state(job_id) == "active"
    assert q.recover_stalled().recovered == []
    assert leasing(q, 0, [job.completed("1")])[0] == [working.AttemptStatus.OK]
    assert check(q).findings == ()


def test_a_peer_recovers_an_abandoned_lease(q: OwnQueue, peer: WireQueue):
    job_id = q.add_job()
    job = lease(q)
    q.advance(3 * LOCK)
    peer.now = q.now
    q.let_idle(job.entry, 3 * LOCK, CONSUMER)
    assert peer.recover_stalled() == 1
    assert q.state(job_id) == "waiting"
    taken, entry = peer.take_id()
    assert taken == job_id
    assert leasing(q, 0, [job.completed("1")])[0] == [working.AttemptStatus.STALE]
    assert leasing(q)[1] == []  # the peer's attempt is not a lease
    assert q.state(job_id) == "active"
    peer.complete(job_id, entry, "2")
    assert q.job(job_id)["returnvalue"] == "2"
