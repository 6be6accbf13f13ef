"""Connection options: URLs, options, GLIDE clients of the user; and the errors if the server is unreachable."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import glide
import pytest
from glide_shared.config import (
    GlideClientConfiguration,
    GlideClusterClientConfiguration,
    NodeAddress,
    ReadFrom,
    ServiceType,
)

from glidemq_py import (
    Address,
    ConnectionOptions,
    GlideMQConnectionError,
    IamCredentials,
    Job,
    LibraryError,
    Queue,
    QueueEvents,
    Worker,
)
from glidemq_py._client import shared_reads
from glidemq_py._client.async_transport import AsyncTransport, SharedClient
from glidemq_py._client.connect import open_transport
from glidemq_py._client.glide_config import config_of
from glidemq_py.testing import RespClient, ServerProcess
from tests.server.worker_support import Raw, with_timeout

CA = b"-----BEGIN CERTIFICATE-----\n"


async def echo(job: Job) -> Any:
    return job.data


# -- GLIDE configuration of the options -------------------------------------------------------------------


def test_default_options() -> None:
    config = config_of(ConnectionOptions())
    assert isinstance(config, GlideClientConfiguration)
    assert [(a.host, a.port) for a in config.addresses] == [("127.0.0.1", 6379)]
    assert (config.use_tls, config.credentials, config.read_from) == (False, None, ReadFrom.PRIMARY)
    assert (config.request_timeout, config.advanced_config.connection_timeout) == (30_000, 5_000)  # type: ignore[union-attr]
    assert (config.database_id, config.client_name, config.client_az) == (None, None, None)
    assert config.inflight_requests_limit is None


def test_all_standalone_options() -> None:
    options = ConnectionOptions(
        [Address("a", 1), "b:2", ("::1", 3)], tls=True, username="u", password="p", read_from="az_affinity",
        client_az="eu-1a", request_timeout=1_234, connection_timeout=2_345, inflight_requests_limit=77, database_id=4,
        tls_ca=CA, client_name="me",
    )  # fmt: skip
    config = config_of(options)
    assert isinstance(config, GlideClientConfiguration)
    assert [(a.host, a.port) for a in config.addresses] == [("a", 1), ("b", 2), ("::1", 3)]
    assert config.use_tls is True
    assert config.credentials is not None
    assert (config.credentials.username, config.credentials.password) == ("u", "p")
    assert (config.read_from, config.client_az) == (ReadFrom.AZ_AFFINITY, "eu-1a")
    assert (config.request_timeout, config.inflight_requests_limit) == (1_234, 77)
    assert (config.database_id, config.client_name) == (4, "me")
    advanced = config.advanced_config
    assert advanced is not None
    assert advanced.connection_timeout == 2_345
    assert advanced.tls_config is not None
    assert advanced.tls_config.root_pem_cacerts == CA
    assert not advanced.tls_config.use_insecure_tls


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("primary", ReadFrom.PRIMARY),
        ("prefer_replica", ReadFrom.PREFER_REPLICA),
        ("az_affinity", ReadFrom.AZ_AFFINITY),
        ("az_affinity_replicas_and_primary", ReadFrom.AZ_AFFINITY_REPLICAS_AND_PRIMARY),
    ],
)
def test_read_from(name: Any, meant: ReadFrom) -> None:
    az = "z" if name.startswith("az") else None
    assert config_of(ConnectionOptions(read_from=name, client_az=az)).read_from is meant


@pytest.mark.parametrize(
    ("service", "meant"), [("elasticache", ServiceType.ELASTICACHE), ("memorydb", ServiceType.MEMORYDB)]
)
def test_iam_and_cluster(service: Any, meant: ServiceType) -> None:
    iam = IamCredentials(
        username="u", cluster_name="c", region="eu-west-1", service=service, refresh_interval_seconds=60
    )
    config = config_of(ConnectionOptions("h", cluster=True, tls=True, iam=iam, tls_insecure=True))
    assert isinstance(config, GlideClusterClientConfiguration)
    credentials = config.credentials
    assert credentials is not None
    assert credentials.iam_config is not None
    assert (credentials.username, credentials.password) == ("u", None)
    assert (credentials.iam_config.cluster_name, credentials.iam_config.region) == ("c", "eu-west-1")
    assert (credentials.iam_config.service, credentials.iam_config.refresh_interval_seconds) == (meant, 60)
    assert config.advanced_config is not None
    assert config.advanced_config.tls_config is not None
    assert config.advanced_config.tls_config.use_insecure_tls is True


# -- on a real server -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        lambda host, port: f"valkey://{host}:{port}",
        lambda host, port: f"redis://{host}:{port}/",
        lambda host, port: f"VALKEY://localhost:{port}?request_timeout=5000&client_name=me",
        lambda host, port: ConnectionOptions([(host, port)]),
        lambda host, port: ConnectionOptions(f"{host}:{port}", client_name="me", inflight_requests_limit=100),
        lambda host, port: ConnectionOptions.from_url(f"valkey://{host}:{port}"),
    ],
)
async def test_connection_can_be_given_in_every_form(server: Any, queue_name: str, form: Callable[[str, int], Any]):
    connection = form(server.host, server.port)
    async with Queue(queue_name, connection) as queue, Worker(queue_name, echo, connection):
        assert await queue.add_and_wait("n", 1) == 1


async def test_client_name_and_database_are_set(private_server: Callable[..., ServerProcess]):
    server = private_server()
    async with Queue("q", f"{server.url}/3?client_name=billing") as queue, Worker("q", echo, f"{server.url}/3"):
        assert await queue.add_and_wait("n", 1) == 1
        with server.client() as resp:
            assert " name=billing " in str(resp.execute("CLIENT", "LIST"))
            assert resp.keys("*") == []
            resp.execute("SELECT", 3)
            assert "glide:{q}:job:1" in resp.keys("*")


async def test_password_is_used(private_server: Callable[..., ServerProcess]):
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
    address = NodeAddress(server.host, server.port)
    client = await glide.GlideClient.create(GlideClientConfiguration([address]))
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


async def test_later_use_connects_again(private_server: Callable[..., ServerProcess]):
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
async def test_unresponsive_server_raises(private_server: Callable[..., ServerProcess]):
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


async def test_missing_permission_to_load_functions(private_server: Callable[..., ServerProcess]):
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


async def test_add_works_after_a_server_restart(restartable_server: Callable[..., ServerProcess]):
    server = restartable_server()
    async with Queue("q", server.url) as queue:
        await queue.add("n")
        await asyncio.to_thread(server.restart)
        assert (await with_timeout(queue.add("n"))).id == "2"


@pytest.mark.parametrize(("query", "wanted"), [("", True), ("?busy_poll=false", False)])
async def test_busy_poll_is_a_connection_option(server, query: str, wanted: bool) -> None:
    transport = await open_transport(f"{server.url}/{query}" if query else server.url)
    shared = await SharedClient.open(f"{server.url}/{query}")
    assert isinstance(shared, SharedClient)
    try:
        for each in (transport, shared.open_transport()):
            assert isinstance(each, AsyncTransport)
            assert each._poll._choice._possible == (wanted and len(os.sched_getaffinity(0)) > 1)
    finally:
        for opened in (transport, shared):
            await opened.close()


async def test_closed_lines_of_readers_are_forgotten(url: str, queue_name: str) -> None:
    """A line refers to its client, whose lines are kept as long as the client is."""
    async with QueueEvents(queue_name, url) as events:
        await events.wait_until_ready()
        assert await events._read() == []  # it waits on a connection of its own
        (reads,) = (found for client, found in shared_reads._of_client.items() if not client.is_closed)
        assert len(reads._lines) == 1
    assert reads._lines == []
