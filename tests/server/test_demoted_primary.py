"""A primary and a replica without a cluster change roles: no client is disconnected, and all find the new primary."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from glidemq_py import Job, Queue, Worker, sync
from glidemq_py.testing import RespClient, ServerProcess
from tests.server.worker_support import StartServer, until, with_timeout


class Pair(NamedTuple):
    """A primary and its replica."""

    url: str
    primary: ServerProcess
    replica: ServerProcess

    async def fail_over(self):
        """Exchange the roles by FAILOVER, which loses no write and closes no connection."""
        with self.primary.client() as resp:
            await with_timeout(until(lambda: "state=online" in resp.execute("INFO", "replication")))
            resp.execute("FAILOVER")
            await with_timeout(until(lambda: resp.execute("ROLE")[0] == "slave"))
        with self.replica.client() as resp:
            await with_timeout(until(lambda: resp.execute("ROLE")[0] == "master"))


@pytest_asyncio.fixture
async def pair(private_server: StartServer) -> AsyncIterator[Pair]:
    primary, replica = private_server(), private_server()
    with RespClient(replica.host, replica.port) as resp:
        resp.execute("REPLICAOF", primary.host, str(primary.port))
    yield Pair(f"{primary.url},{replica.host}:{replica.port}", primary, replica)


@pytest.mark.slow
@pytest.mark.parametrize("direct", ["true", "false"])
async def test_adds_go_to_the_new_primary(pair: Pair, direct: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "glidemq_py")
    async with Queue[int, None]("q", f"{pair.url}?direct={direct}") as queue:
        await queue.add("n", 0)
        await pair.fail_over()
        jobs = await with_timeout(asyncio.gather(*(queue.add("n", number) for number in range(1, 50))))
        assert sorted(int(job.id) for job in jobs) == list(range(2, 51))
        await with_timeout(queue.drain())  # commands of GLIDE itself too
        assert await queue.count() == 0
    assert caplog.text.count("the primary became a replica: connected to the new primary") == 1
    with pair.replica.client() as resp:
        assert resp.execute("ROLE")[0] == "master"


@pytest.mark.slow
@pytest.mark.parametrize("direct", ["true", "false"])
async def test_worker_goes_on(pair: Pair, direct: str):
    ran: set[str] = set()
    url = f"{pair.url}?direct={direct}"

    async def handle(job: Job):
        ran.add(job.id)

    async with Queue("q", url) as queue, Worker("q", handle, url):
        first = await queue.add("n")
        await with_timeout(until(lambda: first.id in ran))
        await pair.fail_over()
        jobs = await with_timeout(queue.add_bulk([("n", None)] * 20))
        await with_timeout(until(lambda: {job.id for job in jobs} <= ran))
        assert {await job.wait_until_finished(30_000) for job in jobs} == {None}


@pytest.mark.slow
async def test_missing_library_is_loaded_on_the_new_primary(pair: Pair):
    async with Queue("q", f"{pair.url}?direct=false") as queue:
        await queue.add("n")
        await pair.fail_over()
        with pair.replica.client() as resp:
            resp.execute("FUNCTION", "FLUSH")
            with pair.primary.client() as old:
                await with_timeout(until(lambda: old.execute("FUNCTION", "LIST") == []))
        assert (await with_timeout(queue.add("n"))).id == "2"


@pytest.mark.slow
async def test_blocking_queue(pair: Pair):
    queue = sync.Queue[int, None]("q", pair.url)
    try:
        await asyncio.to_thread(queue.add, "n", 0)
        await pair.fail_over()
        jobs = await asyncio.to_thread(lambda: [queue.add("n", number) for number in range(3)])
        assert [job.id for job in jobs] == ["2", "3", "4"]
    finally:
        await asyncio.to_thread(queue.close)
