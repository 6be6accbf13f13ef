"""Calls over direct connections: when they are used, and what happens when they end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_py import AmbiguousResultError, ConnectionOptions, Job, Worker
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import RespClient
from glidemq_py.testing.servers import ServerProcess
from tests.chaos.fault_proxy import FaultProxy
from tests.contract.api import Queue, Selected
from tests.inside import direct as direct_module
from tests.inside import direct_connections, link_of, portal
from tests.server.tls_support import Certificates, StartTls
from tests.server.worker_support import StartServer, until, with_timeout

pytest.importorskip("hiredis")


@pytest.fixture(params=["async", "blocking"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test with each API."""
    Selected.blocking = request.param == "blocking"
    yield request.param
    Selected.blocking = False


async def transport_of(queue: Queue) -> direct_module.DirectTransport:
    transport = await link_of(queue).transport.here()
    assert isinstance(transport, direct_module.DirectTransport)
    return transport


def direct_of(lines: str) -> set[str]:
    """Return the direct connections, which have no library's name, in a list of clients, by their ids."""
    return {line.split()[0] for line in lines.splitlines() if "cmd=fcall" in line and "lib-name= " in line}


def direct(server: ServerProcess) -> set[str]:
    """Return the direct connections of a server whose last call was of a function."""
    with server.client() as resp:
        return direct_of(resp.execute("CLIENT", "LIST"))


def kill_clients(server: ServerProcess):
    """Close all connections. Called in a thread, so that the event loop sees it before the next call is sent."""
    with server.client() as resp:
        resp.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def test_calls_are_direct_from_the_first_one_on(kind: str, private_server: StartServer):
    server = private_server()
    async with Queue("q", server.url) as queue:
        jobs = await asyncio.gather(*(queue.add("n", number) for number in range(300)))
        assert sorted(int(job.id) for job in jobs) == list(range(1, 301))
        assert [job.id for job in await queue.add_bulk([("n", number) for number in range(2_500)])][-1] == "2800"
        assert 1 <= len(direct(server)) <= (1 if kind == "async" else 2)
    assert not direct(server)


async def test_no_direct_connection_if_disabled(kind: str, private_server: StartServer):
    server = private_server()
    async with Queue("q", f"{server.url}?direct=false") as queue:
        assert (await queue.add("n")).id == "1"
        assert not direct(server)


@pytest.mark.parametrize(
    "options",
    [
        ConnectionOptions(inflight_requests_limit=10),
        ConnectionOptions(direct=False),
        None,
    ],
)
async def test_options_that_direct_connections_do_not_know(options: ConnectionOptions | None):
    glide: Any = SimpleNamespace(options=options, client_owner=None)
    assert direct_module.accelerated(glide) is glide


async def test_lost_connection_is_replaced_and_nothing_is_lost(kind: str, private_server: StartServer):
    server = private_server()
    async with Queue("q", server.url) as queue:
        for number in range(300):
            await queue.add("n", number)
            if number % 100 == 50:
                await asyncio.to_thread(kill_clients, server)
                async with asyncio.timeout(30):
                    while not direct(server):
                        await queue.get_job_counts()  # served by GLIDE meanwhile
        assert (await queue.get_job_counts()).waiting == 300


@pytest.mark.slow
async def test_worker_outlives_lost_connections(private_server: StartServer):
    server = private_server()
    ran: list[int] = []

    async def handle(job: Job):
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
    private_server: StartServer, caplog: pytest.LogCaptureFixture
):
    server = private_server()
    async with Queue("q", server.url) as queue:
        await queue.add("n")
        transport = await transport_of(queue)
        server.kill()
        await with_timeout(until(lambda: not direct_connections(transport)))
        adding = asyncio.ensure_future(queue.add("n"))
        await with_timeout(until(lambda: "cannot be reached since" in caplog.text))
        assert "(connection refused)" in caplog.text
        assert not adding.done()
        server.restart()
        await asyncio.wait([adding])


@pytest.mark.slow
async def test_call_without_a_reply_is_ambiguous(kind: str, private_server: StartServer):
    server = private_server()
    async with Queue("q", f"{server.url}?request_timeout=1500") as queue:
        await queue.add("n")
        server.pause()
        try:
            with pytest.raises(AmbiguousResultError, match="no reply within the request timeout"):
                await queue.remove("1")
        finally:
            server.resume()
        assert (await with_timeout(queue.add("n"))).id == "2"
        assert len(direct(server)) == 1


async def test_a_new_connection_has_the_timeout_of_its_calls(private_server: StartServer):
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
async def test_call_after_a_half_open_connection_needs_no_second_timeout(kind: str, private_server: StartServer):
    """GLIDE's connection is silent, too: the next call waits for a new direct connection instead."""
    server = private_server()
    proxy = FaultProxy(server.url, seed=1)
    try:
        async with Queue("q", f"{proxy.url}?request_timeout=2000") as queue:
            await queue.add("n")
            before = direct(server)
            proxy.half_open()
            with pytest.raises(AmbiguousResultError, match="no reply within the request timeout"):
                await queue.add("n")
            assert (await queue.add("n")).id == "2"
            assert direct(server) - before
    finally:
        proxy.close()


@pytest.mark.slow
async def test_a_silent_read_replaces_the_connection_of_calls(private_server: StartServer):
    """They would need a timeout each to notice that their packets are dropped, too."""
    server = private_server()
    proxy = FaultProxy(server.url, seed=1)
    try:
        async with Queue("q", f"{proxy.url}?request_timeout=1000") as queue:
            await queue.add("n")
            transport = await transport_of(queue)
            reader = await transport.dedicated()
            read = asyncio.create_task(reader.command("XREAD", "BLOCK", "100", "STREAMS", "glide:{q}:none", "$"))
            await asyncio.wait((read,), timeout=0.05)
            before = direct(server)
            proxy.half_open()
            await asyncio.wait((read,), timeout=0.5)
            removal = asyncio.create_task(queue.remove("1"))
            with pytest.raises(AmbiguousResultError, match="no reply within the request timeout"):
                await read
            assert (await queue.add("n")).id == "2"
            assert not removal.done()  # the add did not wait for it
            assert direct(server) - before
            with pytest.raises(AmbiguousResultError, match="no reply within the request timeout"):
                await removal
            await reader.close()
    finally:
        proxy.close()


async def test_password_database_and_name(kind: str, private_server: StartServer):
    server = private_server(requirepass="secret")
    address = server.url.replace("://", "://:secret@")
    async with Queue("q", f"{address}/3?client_name=billing") as queue:
        await queue.add("n")
        with RespClient(server.host, server.port, password="secret") as resp:
            listed = resp.execute("CLIENT", "LIST").splitlines()
    ours = [line for line in listed if "name=billing" in line and " db=3 " in line]
    assert any("cmd=fcall" in line and "lib-name= " in line for line in ours), listed


async def test_tls_with_a_client_certificate(kind: str, start_tls: StartTls, certificates: Certificates):
    server, port = start_tls(tls_auth_clients="yes")
    async with Queue("q", f"valkeys://localhost:{port}?{certificates.pair}") as queue:
        assert len(await queue.add_bulk([("n", "x" * 10_000)] * 500)) == 500
        with server.client() as resp:
            listed = resp.execute("CLIENT", "LIST")
        # Of GLIDE's connection and the direct one: the library was missing, and the first call was repeated there, too.
        assert sorted(re.findall(r"cmd=(\S+)", listed)) == ["client|list", "fcall", "hmget"]


async def test_replica_is_not_used(private_server: StartServer):
    primary = private_server()
    replica = private_server(replicaof=f"{primary.host} {primary.port}")
    async with Queue("q", f"{replica.url},{primary.host}:{primary.port}") as queue:
        await queue.add("n")
        assert (len(direct(primary)), direct(replica)) == (1, set())


@pytest.mark.parametrize("missing", [False, True], ids=["library-present", "library-missing"])
async def test_demoted_primary_is_left(kind: str, private_server: StartServer, missing: bool):
    """It replies READONLY; the next direct connection goes to the new primary, also to load the library."""
    first, second = private_server(), private_server()
    with RespClient(second.host, second.port) as resp:
        resp.execute("REPLICAOF", first.host, str(first.port))
        async with Queue("q", f"{first.url},{second.host}:{second.port}") as queue:
            await queue.add("n")
            await with_timeout(until(lambda: "master_link_status:up" in resp.execute("INFO", "replication")))
            resp.execute("REPLICAOF", "NO", "ONE")
            with RespClient(first.host, first.port) as demoted:
                demoted.execute("REPLICAOF", second.host, str(second.port))
            if missing:
                resp.execute("FUNCTION", "FLUSH")
            await with_timeout(queue.add("n"))
            assert not direct(first)
            assert resp.keys("glide:{q}:*")


async def test_calls_keep_their_order_while_the_library_is_loaded(private_server: StartServer):
    """Calls that have missed it are sent again before later ones, over the same connection."""
    server = private_server()
    with RespClient(server.host, server.port) as resp:
        async with Queue[int, None]("q", server.url) as queue:
            job = await queue.add("n", -1)
            last = list[int]()
            for _ in range(40):
                resp.execute("FUNCTION", "FLUSH")
                writes = list[asyncio.Task[None]]()
                for number in range(40):
                    writes.append(asyncio.create_task(job.update_data(number)))
                    await asyncio.sleep(number % 2 * 0.0002)
                await with_timeout(asyncio.gather(*writes))
                last.append(json.loads(resp.execute("HGET", f"glide:{{q}}:job:{job.id}", "data")))
            assert last.count(39) >= 39, last
            assert "calls=41," in resp.execute("INFO", "commandstats").split("cmdstat_function|load:")[1]


async def test_cluster_has_one_connection_per_primary(
    kind: str, cluster_url: str, cluster_resp: RespClient, queue_name: str
):
    def count() -> int:
        return sum(len(direct_of(lines)) for lines in cluster_resp.execute_everywhere("CLIENT", "LIST"))

    before = count()
    queues = [Queue(f"{queue_name}-{number}", cluster_url) for number in range(40)]
    for queue in queues:
        assert len(await queue.add_bulk([("n", number) for number in range(300)])) == 300
    assert count() - before == 3
    for queue in queues:
        await queue.obliterate(force=True)
        await queue.close()


async def test_worker_reads_without_another_client_of_glide(private_server: StartServer):
    server = private_server()
    ran = asyncio.Event()

    async def handle(_: Job):
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


def test_loop_that_ends_leaves_nothing(url: str, queue_name: str):
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


def test_threads_share_a_blocking_queue(private_server: StartServer):
    """A lone add has a connection that its thread reads; others leave together, over that of the portal."""
    server = private_server()
    with BlockingQueue("q", server.url) as queue, ThreadPoolExecutor(8) as pool:
        ids = {job.id for job in pool.map(lambda number: queue.add("n", number), range(400))}
        assert len(ids) == 400
        assert 1 <= len(direct(server)) <= 2


def test_a_lone_blocking_add_needs_no_event_loop(url: str, queue_name: str):
    with BlockingQueue(queue_name, url) as queue:
        for _ in range(3):  # the first one connects the portal, the second one its thread
            queue.add("n")
        released = threading.Event()
        portal().call(released.wait)
        try:
            assert queue.add("n").id == "4"
        finally:
            released.set()


@pytest.mark.parametrize("interrupted", [False, True], ids=["lost", "interrupted"])
def test_the_add_after_a_lone_one_without_a_reply_has_its_own(private_server: StartServer, interrupted: bool):
    server = private_server()
    with BlockingQueue("q", f"{server.url}?request_timeout=1500") as queue:
        for _ in range(3):
            queue.add("n")
        server.pause()
        # Nothing tells that the main thread waits.
        to_main = threading.get_ident(), signal.SIGINT if interrupted else 0
        interrupting = threading.Timer(0.3, signal.pthread_kill, to_main)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt if interrupted else AmbiguousResultError):
            queue.add("n")
        interrupting.join()
        server.resume()
        for number in range(20):
            after = queue.get_job(queue.add("after", number).id)
            assert after is not None
            assert after.data == number


def test_a_lone_blocking_add_sees_that_the_server_has_closed_its_connection(private_server: StartServer):
    server = private_server()
    with BlockingQueue("q", server.url) as queue, server.client() as resp:
        for number in range(100):
            assert queue.add("n").id == str(number + 1)
            if number % 10 == 5:  # GLIDE's connections stay: it serves the call until there are new ones
                for each in direct_of(resp.execute("CLIENT", "LIST")):
                    resp.execute("CLIENT", "KILL", "ID", each.removeprefix("id="))


def test_forked_child_has_a_blocking_connection_of_its_own(url: str, queue_name: str):
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
