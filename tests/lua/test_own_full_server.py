"""Test that a server at maxmemory rejects only new jobs."""

from collections.abc import Iterator

import pytest

from glidemq_py.testing import RespError
from tests.inside import administration, row, working
from tests.lua.own_support import OwnQueue
from tests.server.worker_support import StartServer


@pytest.fixture(params=["valkey-9.1", "valkey-8.1", "redis"])
def full(request: pytest.FixtureRequest, private_server: StartServer) -> Iterator[OwnQueue]:
    """A queue with 20 waiting and one failed job on a server that has no memory left."""
    server = private_server(request.param, maxmemory_policy="noeviction")
    with server.client() as resp:
        q = OwnQueue(resp, "full")
        q.add(*[row("a", "x" * 10_000, "{}") for _ in range(21)])
        q.finish(q.take_one().failed())
        resp.execute("CONFIG", "SET", "maxmemory", 1)
        yield q


def test_full_server_rejects_adds_completely(full: OwnQueue):
    before = full.key_names()
    for options in ({}, {"delay": 5}, {"priority": 1}, {"lifo": True}, {"job_id": "x"}):
        with pytest.raises(RespError, match="OOM"):
            full.add_job(**options)
    with pytest.raises(RespError, match="OOM"):
        full.run(administration.requeue_job(full.meta, "1"))
    assert full.key_names() == before
    assert full.redis("GET", "id") == "21"
    assert full.state("1") == "failed"


def test_the_backlog_drains(full: OwnQueue):
    jobs = full.fetch(20)
    assert len(jobs) == 20
    assert full.finish(*[job.completed() for job in jobs[:15]], *[job.failed(limit=2) for job in jobs[15:]])
    again = full.fetch(5)
    assert len(again) == 5
    assert full.finish(*[job.completed(keep=1) for job in again]) == [0] * 5
    assert full.counts()["completed"] == 15


def test_everything_but_adding_works(full: OwnQueue):
    job = full.take_one()
    full.run(working.heartbeat(full.meta, "py-1", "{}", 60_000, [job.token]))
    full.let_idle(job.entry, 60_000)
    assert full.recover_stalled().recovered == [job.id]
    full.take_one()
    assert len(full.run(working.reattach(full.meta, "py-1", [], 5, False, "", [])).jobs) == 1
    full.run(administration.pause(full.meta))
    full.run(administration.resume(full.meta))
    assert full.run(administration.lock(full.key("lock:x"), "a", 1_000)) is True
    assert full.run(administration.unlock(full.key("lock:x"), "a")) is True
    assert full.run(working.leave(full.meta, "py-1")) is False
    assert full.run(administration.remove(full.meta, job.id)) is True
    assert full.obliterate(force=True)[-1] == ("done", 0)
    assert full.key_names() == set()
