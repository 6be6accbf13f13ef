"""Calls over direct connections: when they are used, and what happens when they end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from glidemq_py import AmbiguousResultError, Job, Queue, Worker
from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.connection_url import Address
from glidemq_py._client.direct import direct_nodes
from glidemq_py._client.direct.slots import ranges_of
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import RespClient
from glidemq_py.testing.servers import ServerProcess
from tests.chaos.fault_proxy import FaultProxy
from tests.server.tls_support import Certificates, StartTls
from tests.server.worker_support import until, with_timeout

if TYPE_CHECKING:
    from glidemq_py._client.blocking_transport import ThreadTransport
    from glidemq_py._client.driven_transport import DrivenTransport

pytest.importorskip("hiredis")

PRIVATE = Callable[..., ServerProcess]


async def transport_of(queue: Queue) -> AsyncTransport:
    transport = await queue._transport.here()
    assert isinstance(transport, AsyncTransport)
    return transport


async def direct_connections(queue: Queue) -> dict[str, Any]:
    """Return the direct connections in use for queues (not for the index of queues), by key."""
    nodes = (await transport_of(queue))._direct
    assert nodes is not None
    return {key: each for key, each in nodes.by_key.items() if key.endswith(":meta")}


def kill_clients(server: ServerProcess) -> None:
    """Close all connections. Called in a thread, so that the event loop sees it before the next call is sent."""
    with server.client() as resp:
        resp.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def test_calls_are_direct_from_the_first_one_on(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        jobs = await asyncio.gather(*(queue.add("n", number) for number in range(300)))
        assert [job.data for job in sorted(jobs, key=lambda job: int(job.id))] == list(range(300))
        assert list(await direct_connections(queue)) == [f"glide:{{{queue_name}}}:meta"]


async def test_no_direct_connection_if_disabled(url: str, queue_name: str) -> None:
    async with Queue(queue_name, f"{url}?direct=false") as queue:
        assert (await queue.add("n")).id == "1"
        assert (await transport_of(queue))._direct is None


@pytest.mark.parametrize(
    "options",
    [
        ConnectionOptions(inflight_requests_limit=10),
        ConnectionOptions(direct=False),
        None,
    ],
)
async def test_options_that_direct_connections_do_not_know(options: ConnectionOptions | None) -> None:
    assert direct_nodes(options) is None


async def test_lost_connection_is_replaced_and_nothing_is_lost(private_server: PRIVATE) -> None:
    server = private_server()
    async with Queue("q", server.url) as queue:
        for number in range(300):
            await queue.add("n", number)
            if number % 100 == 50:
                in_use = await direct_connections(queue)
                lost = next(iter(in_use.values()))
                await asyncio.to_thread(kill_clients, server)
                while not any(each is not lost for each in (await direct_connections(queue)).values()):
                    await queue.get_job_counts()  # served by GLIDE meanwhile
        assert (await queue.get_job_counts()).waiting == 300


@pytest.mark.slow
async def test_worker_outlives_lost_connections(private_server: PRIVATE) -> None:
    server = private_server()
    ran: list[int] = []

    async def handle(job: Job) -> None:
        ran.append(job.data)

    def has_run(number: int) -> bool:
        return number in ran

    async with Queue("q", server.url) as queue, Worker("q", handle, server.url, concurrency=5):
        for number in range(20):
            try:
                await queue.add("n", number, job_id=f"job-{number}")
            except AmbiguousResultError:  # the connection ended when the call had been sent
                await queue.add("n", number, job_id=f"job-{number}")
            await with_timeout(until(partial(has_run, number)))
            await asyncio.to_thread(kill_clients, server)
        await with_timeout(until(lambda: set(ran) == set(range(20))))


async def test_refused_connection_is_logged_while_the_call_waits(
    private_server: PRIVATE, caplog: pytest.LogCaptureFixture
) -> None:
    server = private_server()
    async with Queue("q", server.url) as queue:
        await queue.add("n")
        nodes = (await transport_of(queue))._direct
        assert nodes is not None
        server.kill()
        await with_timeout(until(lambda: not nodes.by_key))
        adding = asyncio.ensure_future(queue.add("n"))
        await with_timeout(until(lambda: "cannot be reached since" in caplog.text))
        assert "(connection refused)" in caplog.text
        assert not adding.done()
        server.restart()
        await asyncio.wait([adding])


@pytest.mark.slow
async def test_call_without_a_reply_is_ambiguous(private_server: PRIVATE) -> None:
    server = private_server()
    async with Queue("q", f"{server.url}?request_timeout=1500") as queue:
        await queue.add("n")
        (connection,) = (await direct_connections(queue)).values()
        server.pause()
        try:
            with pytest.raises(AmbiguousResultError, match="no reply within the request timeout"):
                await queue.remove("1")
        finally:
            server.resume()
        assert not connection.usable
        assert (await with_timeout(queue.add("n"))).id == "2"


async def test_a_new_connection_has_the_timeout_of_its_calls(private_server: PRIVATE) -> None:
    """Not that of its handshake, which may be much longer."""
    server = private_server()
    async with Queue("q", f"{server.url}?request_timeout=1000&connection_timeout=60000") as queue:
        await queue.add("n")
        server.pause()
        try:
            async with asyncio.timeout(30):
                with pytest.raises(AmbiguousResultError, match="no reply within the request timeout"):
                    await queue.remove("1")
        finally:
            server.resume()


@pytest.mark.slow
async def test_call_after_a_half_open_connection_needs_no_second_timeout(private_server: PRIVATE) -> None:
    """GLIDE's connection is silent, too: the next call waits for a new direct connection instead."""
    proxy = FaultProxy(private_server().port, seed=1)
    try:
        async with Queue("q", f"{proxy.url}?request_timeout=2000") as queue:
            await queue.add("n")
            proxy.half_open()
            with pytest.raises(AmbiguousResultError, match="no reply within the request timeout"):
                await queue.remove("1")
            assert (await queue.add("n")).id == "2"
            assert await direct_connections(queue)
    finally:
        proxy.close()


@pytest.mark.slow
async def test_a_silent_read_replaces_the_connection_of_calls(private_server: PRIVATE) -> None:
    """They would need a timeout each to notice that their packets are dropped, too."""
    proxy = FaultProxy(private_server().port, seed=1)
    try:
        async with Queue("q", f"{proxy.url}?request_timeout=1000") as queue:
            await queue.add("n")
            transport = await transport_of(queue)
            reader = await transport.dedicated()
            read = asyncio.create_task(reader.command("XREAD", "BLOCK", "100", "STREAMS", "glide:{q}:none", "$"))
            await asyncio.wait((read,), timeout=0.05)
            (before,) = (await direct_connections(queue)).values()
            proxy.half_open()
            await asyncio.wait((read,), timeout=0.5)
            removal = asyncio.create_task(queue.remove("1"))
            with pytest.raises(AmbiguousResultError, match="no reply within the request timeout"):
                await read
            assert not before.usable
            assert (await queue.add("n")).id == "2"
            assert not removal.done()  # the add did not wait for it
            assert await direct_connections(queue)
            with pytest.raises(AmbiguousResultError, match="no reply within the request timeout"):
                await removal
            await reader.close()
    finally:
        proxy.close()


async def test_password_database_and_name(private_server: PRIVATE) -> None:
    server = private_server(requirepass="secret")
    address = server.url.replace("://", "://:secret@")
    async with Queue("q", f"{address}/3?client_name=billing") as queue:
        await queue.add("n")
        assert await direct_connections(queue)
        with RespClient(server.host, server.port, password="secret") as resp:
            listed = resp.execute("CLIENT", "LIST").splitlines()
    ours = [line for line in listed if "name=billing" in line and " db=3 " in line]
    assert any("cmd=fcall" in line and "lib-name= " in line for line in ours), listed


async def test_tls_with_a_client_certificate(start_tls: StartTls, certificates: Certificates) -> None:
    _, port = start_tls(tls_auth_clients="yes")
    async with Queue("q", f"valkeys://localhost:{port}?{certificates.pair}") as queue:
        await queue.add("n")
        assert await direct_connections(queue)


async def test_replica_is_not_used(private_server: PRIVATE) -> None:
    primary = private_server()
    replica = private_server(replicaof=f"{primary.host} {primary.port}")
    async with Queue("q", f"{replica.url},{primary.host}:{primary.port}") as queue:
        await queue.add("n")
        (connection,) = (await direct_connections(queue)).values()
        assert connection._transport.get_extra_info("peername")[1] == primary.port


@pytest.mark.parametrize("missing", [False, True], ids=["library-present", "library-missing"])
async def test_demoted_primary_is_left(private_server: PRIVATE, missing: bool) -> None:
    """It replies READONLY; the next direct connection goes to the new primary, also to load the library."""
    first, second = private_server(), private_server()
    with RespClient(second.host, second.port) as resp:
        resp.execute("REPLICAOF", first.host, str(first.port))
        async with Queue("q", f"{first.url},{second.host}:{second.port}") as queue:
            await queue.add("n")
            (old,) = (await direct_connections(queue)).values()
            await with_timeout(until(lambda: "master_link_status:up" in resp.execute("INFO", "replication")))
            resp.execute("REPLICAOF", "NO", "ONE")
            with RespClient(first.host, first.port) as demoted:
                demoted.execute("REPLICAOF", second.host, str(second.port))
            if missing:
                resp.execute("FUNCTION", "FLUSH")
            await with_timeout(queue.add("n"))
            assert not old.usable
            assert resp.keys("glide:{q}:*")


async def test_cluster_has_one_connection_per_primary(cluster_url: str, queue_name: str) -> None:
    queues = [Queue(f"{queue_name}-{number}", cluster_url) for number in range(40)]
    for queue in queues:
        await queue.add("n")
    in_use = await direct_connections(queues[0])
    assert len(in_use) == 40
    assert len(set(map(id, in_use.values()))) == 3
    for queue in queues:
        await queue.obliterate(force=True)
        await queue.close()


async def test_worker_reads_without_another_client_of_glide(private_server: PRIVATE) -> None:
    server = private_server()
    ran = asyncio.Event()

    async def handle(_: Job) -> None:
        ran.set()

    async with Queue("q", server.url) as queue, Worker("q", handle, server.url):
        reads: list[str] = []

        def is_reading() -> bool:
            reads[:] = [line for line in resp.execute("CLIENT", "LIST").splitlines() if "cmd=xreadgroup" in line]
            return bool(reads)

        with server.client() as resp:
            await with_timeout(until(is_reading))
        assert len(reads) == 1
        assert "lib-name= " in reads[0]  # GLIDE's have a name
        await queue.add("n")
        await with_timeout(ran.wait())


def test_loop_that_ends_leaves_nothing(url: str, queue_name: str) -> None:
    program = f"""
import asyncio, gc
from glidemq_py import Queue
queue = Queue({queue_name!r}, "{url}?allow_no_aof=true")
async def use():
    await queue.add("n")
asyncio.run(use())
loop = asyncio.new_event_loop()
loop.run_until_complete(use())
loop.close()
gc.collect()
asyncio.run(use())
gc.collect()
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


# -- the blocking API -------------------------------------------------------------------------------------------


def nodes_of(queue: BlockingQueue) -> Any:
    """Return the direct connections of a blocking queue, which has been used."""
    last = queue._core._transport._last
    assert last is not None
    return cast("ThreadTransport", cast("DrivenTransport", last.transport)._blocking)._direct


def kinds(server: ServerProcess) -> dict[str, int]:
    """Return the number of calls of functions that clients of GLIDE and others were the last to make."""
    with server.client() as resp:
        lines = [line for line in resp.execute("CLIENT", "LIST").splitlines() if "cmd=fcall" in line]
    direct = sum("lib-name= " in line for line in lines)
    return {"direct": direct, "glide": len(lines) - direct}


def test_blocking_calls_are_direct_from_the_first_one_on(private_server: PRIVATE) -> None:
    server = private_server()
    with BlockingQueue("q", server.url) as queue:
        assert queue.add("n").id == "1"
        assert [job.id for job in queue.add_bulk([("n", number) for number in range(2_500)])][-1] == "2501"
        assert kinds(server)["direct"] == 1
    assert kinds(server) == {"direct": 0, "glide": 0}


def test_no_direct_blocking_calls_if_disabled(private_server: PRIVATE) -> None:
    server = private_server()
    with BlockingQueue("q", f"{server.url}?direct=false") as queue:
        assert queue.add("n").id == "1"
        assert kinds(server)["direct"] == 0


def test_threads_share_a_blocking_queue(private_server: PRIVATE) -> None:
    """One of them uses the direct connection at a time; the others go through GLIDE."""
    server = private_server()
    with BlockingQueue("q", server.url) as queue, ThreadPoolExecutor(8) as pool:
        ids = {job.id for job in pool.map(lambda number: queue.add("n", number), range(400))}
        assert len(ids) == 400
        assert kinds(server)["direct"] == 1


def test_lost_blocking_connection_is_replaced_and_nothing_is_lost(private_server: PRIVATE) -> None:
    server = private_server()
    with BlockingQueue("q", server.url) as queue:
        for number in range(300):
            queue.add("n", number)
            if number % 100 == 50:
                lost = nodes_of(queue).take("glide:{q}:meta")
                lost.turn.release()
                kill_clients(server)
                deadline = time.monotonic() + 30
                while time.monotonic() < deadline:
                    queue.get_job_counts()  # served by GLIDE meanwhile
                    found = nodes_of(queue).take("glide:{q}:meta")
                    if found is not None:
                        found.turn.release()
                        assert found is not lost
                        break
                else:
                    pytest.fail("no direct connection was opened again")
        assert queue.get_job_counts().waiting == 300


@pytest.mark.slow
def test_blocking_call_without_a_reply_is_ambiguous(private_server: PRIVATE) -> None:
    server = private_server()
    with BlockingQueue("q", f"{server.url}?request_timeout=1500") as queue:
        queue.add("n")
        server.pause()
        try:
            with pytest.raises(AmbiguousResultError, match="no reply within the request timeout"):
                queue.remove("1")
        finally:
            server.resume()
        assert queue.add("n").id == "2"


@pytest.mark.slow
def test_blocking_call_after_a_half_open_connection_needs_no_second_timeout(private_server: PRIVATE) -> None:
    proxy = FaultProxy(private_server().port, seed=1)
    try:
        with BlockingQueue("q", f"{proxy.url}?request_timeout=2000") as queue:
            queue.add("n")
            proxy.half_open()
            with pytest.raises(AmbiguousResultError, match="no reply within the request timeout"):
                queue.remove("1")
            assert queue.add("n").id == "2"
            assert nodes_of(queue)._open
    finally:
        proxy.close()


def test_blocking_password_database_and_name(private_server: PRIVATE) -> None:
    server = private_server(requirepass="secret")
    address = server.url.replace("://", "://:secret@")
    with BlockingQueue("q", f"{address}/3?client_name=billing") as queue:
        queue.add("n")
        with RespClient(server.host, server.port, password="secret") as resp:
            listed = resp.execute("CLIENT", "LIST").splitlines()
    ours = [line for line in listed if "name=billing" in line and " db=3 " in line]
    assert any("cmd=fcall" in line and "lib-name= " in line for line in ours), listed


def test_blocking_tls_with_a_client_certificate(start_tls: StartTls, certificates: Certificates) -> None:
    _, port = start_tls(tls_auth_clients="yes")
    with BlockingQueue("q", f"valkeys://localhost:{port}?{certificates.pair}") as queue:
        queue.add("n")
        assert nodes_of(queue).take("glide:{q}:meta") is not None
        assert len(queue.add_bulk([("n", "x" * 10_000)] * 500)) == 500


def test_blocking_calls_leave_a_demoted_primary(private_server: PRIVATE) -> None:
    first, second = private_server(), private_server()
    with RespClient(second.host, second.port) as resp:
        resp.execute("REPLICAOF", first.host, str(first.port))
        with BlockingQueue("q", f"{first.url},{second.host}:{second.port}") as queue:
            queue.add("n")
            deadline = time.monotonic() + 30
            while "master_link_status:up" not in resp.execute("INFO", "replication"):
                assert time.monotonic() < deadline
            resp.execute("REPLICAOF", "NO", "ONE")
            with RespClient(first.host, first.port) as demoted:
                demoted.execute("REPLICAOF", second.host, str(second.port))
            queue.add("n")
            assert resp.keys("glide:{q}:*")


def test_blocking_calls_of_a_cluster(cluster_url: str, queue_name: str) -> None:
    names = [f"{queue_name}-{number}" for number in range(10)]
    for name in names:
        with BlockingQueue(name, cluster_url) as queue:
            assert len(queue.add_bulk([("n", number) for number in range(1_200)])) == 1_200
            found = nodes_of(queue).take(f"glide:{{{name}}}:meta")
            assert found is not None
            found.turn.release()
            queue.obliterate(force=True)


def test_forked_child_has_a_blocking_connection_of_its_own(url: str, queue_name: str) -> None:
    program = f"""
import os
from glidemq_py.sync import Queue
queue = Queue({queue_name!r}, "{url}?allow_no_aof=true")
queue.add("n")
child = os.fork()
ids = [queue.add("n").id for _ in range(200)]
if child == 0:
    os._exit(0 if len(set(ids)) == 200 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(queue.get_job_counts().waiting)
queue.obliterate(force=True)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "401\n"), run.stderr


@pytest.mark.parametrize(
    "reply",
    [
        [[0, 16_383, [b"?", 6379, b"id"]]],
        [[0, 100, [b"10.0.0.1", 6379, b"id"]]],
        [[0, 100, [b"10.0.0.1", 6379, b"id"]], [102, 16_383, [b"10.0.0.2", 6379, b"id"]]],
        [],
    ],
)
def test_clusters_that_cannot_be_addressed_directly(reply: list[Any]) -> None:
    with pytest.raises(ValueError, match="the cluster"):
        ranges_of(reply, Address("10.0.0.9"))


def test_ranges_of_a_cluster() -> None:
    reply = [[8_000, 16_383, [b"10.0.0.2", 6379, b"b"], [b"10.0.0.3", 6379, b"c"]], [0, 7_999, [b"", 7000, b"a"]]]
    assert ranges_of(reply, Address("10.0.0.9")) == ([0, 8_000], [Address("10.0.0.9", 7000), Address("10.0.0.2", 6379)])
