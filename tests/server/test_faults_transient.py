"""Calls and workers on a server that is loading, read-only, failing over, or without the library."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import pytest

from glidemq_py import GlideMQConnectionError, Job, Queue, Worker
from glidemq_py.errors import ServerNotReadyError
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import ClusterProcess, RespClient, ServerProcess, server_binary
from glidemq_py.testing.servers import RespError
from tests.server.worker_support import EventRecorder, StartServer, until, with_timeout

MakeServer = StartServer


async def double(job: Job) -> int:
    return int(job.data) * 2


def answers(client: RespClient, code: str) -> bool:
    """Return whether the server replies to a write with an error of this code."""
    try:
        client.execute("SET", "probe", "1")
    except RespError as error:
        return str(error).startswith(code)
    return False


@contextlib.asynccontextmanager
async def loading(server: ServerProcess) -> AsyncIterator[None]:
    """Make the server reload its data for about two seconds; within the context it is loading."""
    with server.client(timeout=60) as admin, server.client() as probe:
        admin.execute("CONFIG", "SET", "loading-process-events-interval-bytes", "1024")
        admin.execute("DEBUG", "POPULATE", "200", "filler", "100")
        admin.execute("CONFIG", "SET", "key-load-delay", "10000")
        reload = asyncio.create_task(asyncio.to_thread(admin.execute, "DEBUG", "RELOAD"))
        await with_timeout(until(lambda: answers(probe, "LOADING")))
        yield
        await reload


@pytest.mark.slow
async def test_worker_starts_and_jobs_are_added_while_the_server_loads(private_server: MakeServer, queue_name: str):
    server = private_server()
    async with Queue(queue_name, server.url) as queue:
        await queue.add("n", 1)  # connects and loads the library
        worker = Worker(queue_name, double, server.url)
        async with loading(server):
            added = asyncio.create_task(queue.add_and_wait("n", 21))
            await worker.start()
            assert await with_timeout(added) == 42
        await worker.close()


@pytest.fixture
def replica(private_server: MakeServer) -> tuple[ServerProcess, Callable[[], None], Callable[[], None]]:
    """Return a server, a function that makes it a replica of an unreachable server, and one that promotes it."""
    server = private_server(replica_serve_stale_data="no")

    def demote():
        with server.client() as client:
            client.execute("REPLICAOF", "127.0.0.1", "1")

    def promote():
        with server.client() as client:
            client.execute("REPLICAOF", "NO", "ONE")

    return server, demote, promote


async def test_worker_waits_for_a_replica_to_be_promoted(replica, queue_name: str, caplog: pytest.LogCaptureFixture):
    server, demote, promote = replica
    async with Queue(queue_name, server.url) as queue:
        await queue.add("n", 1)
        demote()
        worker = Worker(queue_name, double, server.url + "?request_timeout=500")
        recorded = EventRecorder(worker)
        with caplog.at_level(logging.WARNING, logger="glidemq_py"):
            starting = asyncio.create_task(worker.start())
            added = asyncio.create_task(queue.add_and_wait("n", 21))
            await recorded.wait("error")
            assert not starting.done()
            assert not added.done()
            promote()
            await with_timeout(starting)
        assert await with_timeout(added) == 42
        assert isinstance(recorded.of("error")[0][0], GlideMQConnectionError)  # "No primary node found"
        assert "worker cannot start yet" in caplog.text
        await worker.close()


async def test_read_only_and_primary_down_are_typed(replica, queue_name: str):
    server, demote, promote = replica
    url = server.url + "?request_timeout=200"
    async with Queue(queue_name, server.url) as patient:
        await patient.count()  # loads the library, which may take longer
    async with Queue(queue_name, url) as queue:
        await queue.add("n", 1)
        demote()
        with pytest.raises(ServerNotReadyError, match="read-only replica; the call was not executed"):
            await queue.add("n", 2)
        with pytest.raises(ServerNotReadyError, match="lost its primary; the call was not executed"):
            await queue.get_job_counts()
        promote()
        assert (await queue.get_job_counts()).waiting == 1


def test_blocking_calls_are_typed_and_retried(replica, queue_name: str):
    server, demote, promote = replica
    with BlockingQueue(queue_name, server.url) as patient:
        patient.count()  # loads the library, which may take longer
    with BlockingQueue(queue_name, server.url + "?request_timeout=200") as queue:
        queue.add("n", 1)
        demote()
        with pytest.raises(ServerNotReadyError, match="read-only replica"):
            queue.add("n", 2)
        promote()
        queue.add("n", 3)
        assert queue.get_job_counts().waiting == 2


async def test_too_few_replicas_raise_immediately(private_server: MakeServer, queue_name: str):
    server = private_server()
    async with Queue(queue_name, server.url) as queue:
        await queue.add("n", 1)
        with server.client() as client:
            client.execute("CONFIG", "SET", "min-replicas-to-write", "1")
            with pytest.raises(ServerNotReadyError, match="too few replicas"):
                await queue.add("n", 2)
            client.execute("CONFIG", "SET", "min-replicas-to-write", "0")
        assert (await queue.get_job_counts()).waiting == 1


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_step_waits_until_its_result_can_be_stored(
    private_server: MakeServer, queue_name: str, caplog: pytest.LogCaptureFixture, blocking: bool
):
    server, effects = private_server(), list[str]()

    def effect() -> int:
        effects.append("effect")
        with server.client() as client:
            client.execute("CONFIG", "SET", "min-replicas-to-write", "1")
        return 7

    def plain(job: Job) -> int:
        return job.blocking.run("step", effect)

    async def handle(job: Job) -> int:
        return await job.run("step", effect)

    async with Queue(queue_name, server.url) as queue, Worker(queue_name, plain if blocking else handle, server.url):
        job = await queue.add("n")
        await with_timeout(until(lambda: "storing steps failed: " in caplog.text))
        with server.client() as client:
            client.execute("CONFIG", "SET", "min-replicas-to-write", "0")
        assert await job.wait_until_finished() == 7
        await job.reload()
    assert (effects, job.attempts_made) == (["effect"], 0)
    assert "storing steps works again" in caplog.text


async def test_library_flushed_under_an_idle_worker(private_server: MakeServer, queue_name: str):
    """The call behind the blocking read, a single call and a blocking call load it again without an error event."""
    server = private_server()
    async with Queue(queue_name, server.url) as queue, Worker(queue_name, double, server.url) as worker:
        recorded = EventRecorder(worker)
        with server.client() as client, BlockingQueue(queue_name, server.url) as blocking:
            for _ in range(3):
                client.execute("FUNCTION", "FLUSH")
                assert await with_timeout(queue.add_and_wait("n", 4)) == 8
                client.execute("FUNCTION", "FLUSH")
                await asyncio.to_thread(blocking.get_job_counts)
        assert recorded.count["error"] == 0


@contextmanager
def small_cluster() -> Iterator[ClusterProcess]:
    with ClusterProcess(server_binary("valkey-9.1"), config={"cluster-node-timeout": 500}) as cluster:
        yield cluster


@pytest.mark.slow
async def test_worker_waits_for_a_cluster_that_is_down(queue_name: str):
    with small_cluster() as cluster:
        async with Queue(queue_name, cluster.url) as queue:
            await queue.add("n", 1)
            with cluster.client() as client:
                slot = client.execute("CLUSTER", "KEYSLOT", queue_name)
            away = cluster.nodes[0 if slot * 3 // 16_384 else 1]  # not the node of the queue
            away.kill()
            here = cluster.nodes[1 if away is cluster.nodes[0] else 2]
            with here.client() as client:
                await with_timeout(until(lambda: "cluster_state:fail" in client.execute("CLUSTER", "INFO")))
            worker = Worker(queue_name, double, cluster.url)
            starting = asyncio.create_task(worker.start())
            added = asyncio.create_task(queue.add_and_wait("n", 21))
            short = cluster.url + "?request_timeout=200"
            impatient = Queue(queue_name, short)
            with pytest.raises(ServerNotReadyError, match="cluster is down or failing over"):
                await impatient.get_job_counts()
            await impatient.close()
            assert not starting.done()
            await asyncio.to_thread(away.start)
            await with_timeout(starting)
            assert await with_timeout(added) == 42
            await worker.close()
