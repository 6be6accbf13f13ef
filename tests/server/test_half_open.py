"""Half-open connections: packets get lost, and nothing reports the connection as lost. GLIDE alone never reconnects."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterator

import pytest

from glidemq_py import AmbiguousResultError, Queue
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import RespClient
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.chaos.fault_proxy import FaultProxy
from tests.server.worker_support import EventRecorder, Gate, Raw, StartServer, WorkerFor, until, with_timeout

MakeServer = StartServer
REQUEST_TIMEOUT = 300


@pytest.fixture
def proxy(server: GlideMQServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.url, seed=1) as proxy:
        yield proxy


@pytest.fixture
def url(proxy: FaultProxy) -> str:
    return f"{proxy.url}?request_timeout={REQUEST_TIMEOUT}&direct=false"


async def added(queue: Queue, job_id: str) -> str:
    """Add a job until the server replies."""
    while True:
        try:
            return (await queue.add("n", job_id=job_id)).id
        except AmbiguousResultError:
            continue


@pytest.mark.slow
async def test_queue_reconnects(proxy: FaultProxy, queue: Queue, caplog: pytest.LogCaptureFixture):
    await queue.add("n")
    for number in range(2):
        caplog.clear()
        assert proxy.half_open()
        with pytest.raises(AmbiguousResultError):
            await queue.add("n")
        await with_timeout(added(queue, f"after-{number}"))
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "replaced the half-open connection" in caplog.text


async def test_pending_calls_fail_when_the_connection_is_replaced(proxy: FaultProxy, queue: Queue):
    await queue.add("n")
    proxy.half_open()
    adds = (queue.add("n", job_id=f"j{number}") for number in range(20))
    results = await with_timeout(asyncio.gather(*adds, return_exceptions=True))
    assert {type(result) for result in results} == {AmbiguousResultError}
    await with_timeout(added(queue, "j1"))


def test_blocking_queue_reconnects(url: str, proxy: FaultProxy, queue_name: str):
    with BlockingQueue(queue_name, url) as queue:
        queue.add("n")
        proxy.half_open()
        with pytest.raises(AmbiguousResultError):
            queue.add("n")
        found = None
        while found is None:  # the connection is replaced in the background
            with contextlib.suppress(AmbiguousResultError):
                found = queue.add("n", job_id="after")
        assert found.id == "after"


@pytest.mark.slow
async def test_worker_reconnects_and_keeps_its_jobs(
    worker_for: WorkerFor, server: GlideMQServer, proxy: FaultProxy, queue_name: str, resp: RespClient
):
    gate, raw = Gate(), Raw(resp, queue_name)
    async with (
        Queue(queue_name, server.url) as queue,
        worker_for(gate, concurrency=2, lock_duration=1_000) as worker,
    ):
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await gate.next()
        proxy.half_open()
        other = await queue.add("n")
        await gate.next()  # fetched over a new connection
        # So was the heartbeat's connection, and a heartbeat renews the lock again.
        renewed = raw.job(job.id)["lastActive"]
        await with_timeout(until(lambda: raw.job(job.id)["lastActive"] > renewed))
        gate.open()
        for each in (job, other):
            await each.wait_until_finished()
        await recorded.wait("completed", 2)


async def test_connection_to_a_frozen_server_is_kept(private_server: MakeServer, queue_name: str):
    server = private_server()
    async with Queue(queue_name, f"{server.url}?request_timeout={REQUEST_TIMEOUT}&direct=false") as queue:
        await queue.add("n")
        with server.client() as client:
            before = glide_clients(client)
            server.pause()
            with pytest.raises(AmbiguousResultError):
                await queue.add("n")
            server.resume()
            await with_timeout(added(queue, "after"))
            assert set() < before <= glide_clients(client)


def glide_clients(client: RespClient) -> set[str]:
    """Return the ids of all clients but this one."""
    ids = re.findall(r"^id=(\d+)", client.execute("CLIENT", "LIST"), re.MULTILINE)
    return set(ids) - {str(client.execute("CLIENT", "ID"))}
