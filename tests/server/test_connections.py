"""Connection options: URLs, options, GLIDE clients of the user; and the errors if the server is unreachable."""

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import glide
import pytest
from glide_shared.config import (
    GlideClientConfiguration,
    GlideClusterClientConfiguration,
    NodeAddress,
)

from glidemq_py import ConnectionOptions, GlideMQConnectionError, Job, Queue, QueueEvents, Worker
from glidemq_py.errors import LibraryError
from glidemq_py.testing import RespClient
from tests.inside import AsyncTransport, config_of, open_transport, read_events, shared_clients, shared_reads
from tests.server.worker_support import Raw, StartServer, with_timeout


async def echo(job: Job):
    return job.data


# -- on a real server -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        lambda server: server.url,
        lambda server: f"redis{server.url.removeprefix('valkey')}/",
        lambda server: f"VALKEY://:{server.password}@localhost:{server.port}?request_timeout=5000&client_name=me",
        lambda server: ConnectionOptions([(server.host, server.port)], password=server.password),
        lambda server: ConnectionOptions(
            f"{server.host}:{server.port}", password=server.password, client_name="me", inflight_requests_limit=100
        ),
        lambda server: ConnectionOptions.from_url(server.url),
    ],
)
async def test_connection_can_be_given_in_every_form(server: Any, queue_name: str, form: Callable[[Any], Any]):
    connection = form(server)
    async with Queue(queue_name, connection) as queue, Worker(queue_name, echo, connection):
        assert await queue.add_and_wait("n", 1) == 1


async def test_client_name_and_database_are_set(private_server: StartServer):
    server = private_server()
    async with Queue("q", f"{server.url}/3?client_name=billing") as queue, Worker("q", echo, f"{server.url}/3"):
        assert await queue.add_and_wait("n", 1) == 1
        with server.client() as resp:
            assert " name=billing " in str(resp.execute("CLIENT", "LIST"))
            assert resp.keys("*") == []
            resp.execute("SELECT", 3)
            assert "glide:{q}:job:1" in resp.keys("*")


async def test_password_is_used(private_server: StartServer):
    server = private_server(requirepass="s3cret/?@ä")
    address = (server.host, server.port)
    options = ConnectionOptions([address], password="s3cret/?@ä")
    url = f"valkey://:s3cret%2F%3F%40%C3%A4@{server.host}:{server.port}"
    assert ConnectionOptions.from_url(url) == options
    async with Queue("q", url) as queue, Worker("q", echo, options), QueueEvents("q", url):
        assert await queue.add_and_wait("n", 1) == 1
    for wrong in (ConnectionOptions([address], password="wrong"), ConnectionOptions([address])):
        with pytest.raises((GlideMQConnectionError, LibraryError)) as caught:
            async with Queue("q", wrong) as queue:
                await queue.add("n")
        assert "s3cret" not in str(caught.value)
        assert "wrong'" not in repr(wrong)


async def test_given_client_stays_open(server: Any, queue_name: str):
    configuration = config_of(ConnectionOptions.from_url(server.url))
    assert isinstance(configuration, GlideClientConfiguration)
    client = await glide.GlideClient.create(configuration)
    try:
        async with Queue(queue_name, client) as queue, Worker(queue_name, echo, client, concurrency=4):
            assert await asyncio.gather(*(queue.add_and_wait("n", i) for i in range(10))) == list(range(10))
        async with Queue(queue_name, client) as queue:
            assert (await queue.get_job_counts()).completed == 10
        assert await client.ping() == b"PONG"
    finally:
        await client.close()


async def test_given_cluster_client_is_used(cluster: Any, queue_name: str):
    address = NodeAddress(cluster.host, cluster.port)
    client = await glide.GlideClusterClient.create(GlideClusterClientConfiguration([address]))
    try:
        async with Queue(queue_name, client) as queue, Worker(queue_name, echo, client):
            assert await queue.add_and_wait("n", 5) == 5
        assert await client.ping() == b"PONG"
    finally:
        await client.close()


async def test_environment_variable_is_used(
    url: str, queue_name: str, resp: RespClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GLIDEMQ_URL", url)
    async with Queue(queue_name) as queue, Worker(queue_name, echo), QueueEvents(queue_name):
        assert await queue.add_and_wait("n", 1) == 1
    assert Raw(resp, queue_name).state("1") == "completed"


# -- unreachable servers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["valkey", "valkey+cluster", "valkeys"])
async def test_unreachable_server_raises(queue_name: str, scheme: str):
    with pytest.raises(GlideMQConnectionError, match=r"cannot connect to 127\.0\.0\.1:1"):
        await with_timeout(Queue(queue_name, f"{scheme}://127.0.0.1:1?connection_timeout=3600000").connect())


async def test_later_use_connects_again(private_server: StartServer):
    server = private_server()
    url = server.url
    server.stop()
    async_queue = Queue("q", url)
    with pytest.raises(GlideMQConnectionError):
        await async_queue.add("n")
    server.start()
    try:
        assert (await async_queue.add("n")).id == "1"
    finally:
        await async_queue.close()


@pytest.mark.slow
async def test_unresponsive_server_raises(private_server: StartServer):
    server = private_server()
    server.pause()
    patient = asyncio.create_task(Queue("q", f"{server.url}?connection_timeout=5000").connect())
    with pytest.raises(GlideMQConnectionError, match="cannot connect"):
        await Queue("q", f"{server.url}?connection_timeout=250").connect()
    assert not patient.done()
    # The client keeps trying until its own timeout, even if the task is cancelled.
    with pytest.raises(GlideMQConnectionError, match="cannot connect"):
        await patient
    server.resume()


async def test_missing_permission_to_load_functions(private_server: StartServer):
    server = private_server()
    with server.client() as resp:
        resp.execute("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-function")
        url = f"valkey://app:pw@{server.host}:{server.port}"
        async with Queue("q", url) as queue:
            with pytest.raises(LibraryError, match=r"cannot be loaded.*python -m glidemq_py\.library load --url"):
                await queue.add("n")
            async with Queue("q", server.url) as administrator:
                await administrator.count()  # loads the library
            assert (await queue.add("n")).id == "1"
        resp.execute("ACL", "SETUSER", "app", "-fcall")
        async with Queue("q", url) as queue:
            with pytest.raises(LibraryError, match="permission denied: user 'app', command 'fcall' "):
                await queue.add("n")


@pytest.mark.parametrize(("query", "wanted"), [("", True), ("?busy_poll=false", False)])
async def test_busy_poll_is_a_connection_option(server, query: str, wanted: bool):
    transport = await open_transport(f"{server.url}/{query}" if query else server.url)
    shared = await shared_clients.SharedClient.open(f"{server.url}/{query}")
    assert isinstance(shared, shared_clients.SharedClient)
    try:
        for each in (transport, shared.open_transport()):
            glide: AsyncTransport = each.glide  # type: ignore[attr-defined]
            choice: Any = glide._poll._choice
            assert choice._possible == (wanted and len(os.sched_getaffinity(0)) > 1)
    finally:
        for opened in (transport, shared):
            await opened.close()


async def test_closed_lines_of_readers_are_forgotten(url: str, queue_name: str):
    """A line refers to its client, whose lines are kept as long as the client is."""
    before = [*shared_reads._of_client.values()]  # of earlier tests
    async with QueueEvents(queue_name, url) as events:
        await events.wait_until_ready()
        assert await read_events(events) == []  # it waits on a connection of its own
        (reads,) = (found for found in shared_reads._of_client.values() if found not in before)
        assert len(reads._lines) == 1
    assert reads._lines == []


async def test_a_full_executor_does_not_stop_a_connection(private_server: StartServer):
    server, full, loop = private_server("valkey-9.1"), threading.Event(), asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, full.wait) for _ in range(64)]
    try:
        async with asyncio.timeout(60), Queue("full", f"valkey://localhost:{server.port}") as queue:
            assert (await queue.add("n")).id == "1"
    finally:
        full.set()
        await asyncio.gather(*busy)
