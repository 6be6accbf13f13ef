"""Half-open connections: packets get lost, and nothing reports the connection as lost. GLIDE alone never reconnects."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator

import pytest

from glidemq_py import AmbiguousResultError, Queue, Worker
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import RespClient, ServerProcess
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.chaos.fault_proxy import FaultProxy
from tests.server.worker_support import EventRecorder, Gate, Raw, until, with_timeout

MakeServer = Callable[..., ServerProcess]
REQUEST_TIMEOUT = 300


@pytest.fixture
def proxy(server: GlideMQServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.port, seed=1) as proxy:
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
async def test_queue_reconnects(url: str, proxy: FaultProxy, queue_name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.add("n")
        for number in range(2):
            caplog.clear()
            assert proxy.half_open()
            with pytest.raises(AmbiguousResultError):
                await queue.add("n")
            await with_timeout(added(queue, f"after-{number}"))
            assert [record.levelno for record in caplog.records] == [logging.WARNING]
            assert "replaced the half-open connection" in caplog.text


async def test_pending_calls_fail_when_the_connection_is_replaced(url: str, proxy: FaultProxy, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.add("n")
        proxy.half_open()
        adds = (queue.add("n", job_id=f"j{number}") for number in range(20))
        results = await with_timeout(asyncio.gather(*adds, return_exceptions=True))
        assert {type(result) for result in results} == {AmbiguousResultError}
        await with_timeout(added(queue, "j1"))


@pytest.mark.slow
async def test_direct_connection_is_given_up(proxy: FaultProxy, queue_name: str) -> None:
    pytest.importorskip("hiredis")
    async with Queue(queue_name, f"{proxy.url}?request_timeout=1000") as queue:
        await queue.add("n")
        for number in range(2):
            assert proxy.half_open()
            with pytest.raises(AmbiguousResultError):
                await queue.add("n")
            assert await with_timeout(added(queue, f"after-{number}"))


def test_blocking_queue_reconnects(url: str, proxy: FaultProxy, queue_name: str) -> None:
    with BlockingQueue(queue_name, url) as queue:
        queue.add("n")
        proxy.half_open()
        with pytest.raises(AmbiguousResultError):
            queue.add("n")
        assert queue.add("n", job_id="after").outcome == "added"


@pytest.mark.slow
async def test_worker_reconnects_and_keeps_its_jobs(
    url: str, server: GlideMQServer, proxy: FaultProxy, queue_name: str, resp: RespClient
) -> None:
    gate, raw = Gate(), Raw(resp, queue_name)
    async with (
        Queue(queue_name, server.url) as queue,
        Worker(queue_name, gate, url, concurrency=2, lock_duration=1_000) as worker,
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


async def test_connection_to_a_frozen_server_is_kept(private_server: MakeServer, queue_name: str) -> None:
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
