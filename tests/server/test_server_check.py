"""The check of the server's configuration when connecting: an error, one WARNING, or nothing."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import glide
import pytest
from glide_shared.config import GlideClientConfiguration, NodeAddress

from glidemq_py import ConnectionOptions, Queue, Worker
from glidemq_py.errors import ConnectionRejectedError
from glidemq_py.testing import ClusterProcess, RespClient, server_binary
from tests.inside import async_client, embedded
from tests.server.worker_support import StartServer

Connect = Callable[[Any], Awaitable[None]]
StartServer = StartServer
LOGGER = async_client.__name__


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[int], list[str]]:
    """Return the check's log lines at one level."""
    caplog.set_level(logging.DEBUG, LOGGER)
    return lambda level: [each.getMessage() for each in caplog.records if (each.name, each.levelno) == (LOGGER, level)]


@pytest.mark.parametrize("name", ["valkey-9.1", "redis"])
async def test_allkeys_eviction_is_an_error(private_server: StartServer, connect: Connect, name: str):
    server = private_server(name, maxmemory_policy="allkeys-lru")
    with pytest.raises(
        ConnectionRejectedError,
        match=r"is allkeys-lru.*noeviction.*'\?allow_eviction=true' in the URL or Conn",
    ):
        await connect(server.url)
    await connect(f"{server.url}?allow_eviction=true")
    await connect(ConnectionOptions([(server.host, server.port)], allow_eviction=True))
    with server.client() as resp:
        resp.execute("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await connect(server.url)


async def test_worker_does_not_start_if_jobs_may_be_evicted(private_server: StartServer):
    server = private_server(maxmemory_policy="allkeys-lfu")
    with pytest.raises(ConnectionRejectedError, match="maxmemory-policy is allkeys"):
        await Worker("q", print, server.url).start()


async def test_given_client_is_checked_and_stays_open(private_server: StartServer):
    server = private_server(maxmemory_policy="allkeys-lru")
    client = await glide.GlideClient.create(GlideClientConfiguration([NodeAddress(server.host, server.port)]))
    try:
        with pytest.raises(ConnectionRejectedError, match="maxmemory-policy is allkeys"):
            async with Queue("q", client) as queue:
                await queue.count()
        assert await client.ping() == b"PONG"
    finally:
        await client.close()


async def test_one_warning_per_server_and_finding(
    restartable_server: StartServer, connect: Connect, lines: Callable[[int], list[str]]
):
    server = restartable_server(maxmemory_policy="volatile-lru")
    with server.client() as resp:
        resp.execute("CONFIG", "SET", "appendonly", "no")
    for url in (server.url, server.url, f"{server.url}/3", server.url.replace("127.0.0.1", "localhost")):
        await connect(url)
    eviction, append_only = lines(logging.WARNING)
    assert "maxmemory-policy is volatile-lru" in eviction
    assert "append-only file is off" in append_only
    assert "set appendonly to yes" in append_only


async def test_missing_append_only_file_can_be_allowed(
    restartable_server: StartServer, connect: Connect, lines: Callable[[int], list[str]]
):
    server = restartable_server()
    with server.client() as resp:
        resp.execute("CONFIG", "SET", "appendonly", "no")
    await connect(f"{server.url}?allow_no_aof=true")
    assert lines(logging.WARNING) == []


async def test_good_server_is_not_logged(
    restartable_server: StartServer, connect: Connect, lines: Callable[[int], list[str]]
):
    await connect(restartable_server().url)
    assert lines(logging.WARNING) == []


async def test_embedded_and_test_servers_are_not_logged(
    url: str, connect: Connect, lines: Callable[[int], list[str]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GLIDEMQ_URL", raising=False)
    await connect(url)
    await connect(None)
    embedded.stop_shared_embedded()
    assert lines(logging.WARNING) == []


async def test_forbidden_info_is_ignored(
    private_server: StartServer, lines: Callable[[int], list[str]], connect: Connect
):
    server = private_server(maxmemory_policy="allkeys-lru")
    with server.client() as resp:
        # GLIDE itself needs the replication section.
        resp.execute("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-info", "+info|replication")
    await connect(f"valkey://app:pw@{server.host}:{server.port}")
    assert lines(logging.WARNING) == []
    (line,) = lines(logging.DEBUG)
    assert "configuration not checked" in line


async def test_client_of_a_demoted_server_gets_a_warning(
    restartable_server: StartServer, lines: Callable[[int], list[str]]
):
    server, other = restartable_server(), restartable_server()
    client = await glide.GlideClient.create(GlideClientConfiguration([NodeAddress(server.host, server.port)]))
    try:
        with server.client() as resp:
            resp.execute("REPLICAOF", other.host, other.port)
        async with Queue("q", client) as queue:
            await queue.connect()
        (line,) = lines(logging.WARNING)
        assert f"server {server.host}:{server.port}: is a replica" in line
    finally:
        await client.close()


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[ClusterProcess]:
    with ClusterProcess(server_binary("valkey-9.1")) as cluster:
        yield cluster


@pytest.mark.slow
async def test_every_primary_of_a_cluster_is_checked(own_cluster: ClusterProcess, connect: Connect):
    await connect(own_cluster.url)
    with own_cluster.nodes[2].client() as resp:
        resp.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        try:
            with pytest.raises(ConnectionRejectedError, match=f"{own_cluster.nodes[2].port}: maxmemory-policy is all"):
                await connect(own_cluster.url)
            await connect(f"{own_cluster.url}?allow_eviction=true")
        finally:
            resp.execute("CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_standalone_url_for_a_cluster_node(own_cluster: ClusterProcess, connect: Connect):
    with pytest.raises(
        ConnectionRejectedError, match=r"server 127\.0\.0\.1:\d+: is a cluster node; use valkey\+cluster://"
    ):
        await connect(own_cluster.nodes[0].url)


async def test_one_info_per_connection_and_none_per_call(private_server: StartServer):
    server = private_server()

    def infos(resp: RespClient) -> int:
        calls = resp.info("commandstats").get("cmdstat_info", "calls=0,")
        return int(str(calls).split("calls=")[1].split(",")[0])

    with server.client() as resp:
        async with Queue("q", server.url) as queue, Worker("q", print, server.url, concurrency=3):
            await queue.add_and_wait("n", 1)
            before = infos(resp)
            for each in range(20):
                await queue.add_and_wait("n", each)
            assert infos(resp) == before + 1  # this test's own
