"""`python -m glidemq_py.library`, and the deletion of unused library builds."""

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glidemq_py import ConnectionOptions, Queue, Worker, library
from glidemq_py.testing import RespClient
from tests.inside import AsyncTransport, Library, Variant, assemble, forget_registered_libraries
from tests.inside import libraries as library_sweep
from tests.server.worker_support import StartServer

OWN, WIRE = assemble(Variant.OWN), assemble(Variant.WIRE)
FAKE = "glidemq_py_0123456789ab"
PrivateServer = StartServer


@pytest.fixture(params=["one server", "cluster"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, RespClient]]:
    """Yield URL and raw client of a server whose libraries only this test uses."""
    if request.param == "cluster":
        found = request.getfixturevalue("cluster")
        url = found.url
    else:
        url = request.getfixturevalue("private_server")().url
    address = ConnectionOptions.from_url(url).addresses[0]
    with RespClient(address.host, address.port) as client:
        client.execute_everywhere("FUNCTION", "FLUSH")
        client.execute_everywhere("FLUSHALL")
        yield url, client
        client.execute_everywhere("FUNCTION", "FLUSH")
        client.execute_everywhere("FLUSHALL")


def names(client: RespClient) -> list[list[str]]:
    """Return the names of the libraries, per primary."""
    return [sorted(entry[1] for entry in reply) for reply in client.execute_everywhere("FUNCTION", "LIST")]


def run(*arguments: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "glidemq_py.library", *arguments],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False, timeout=60,
    )  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


# -- the command --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [Variant.OWN, Variant.WIRE])
@pytest.mark.slow
def test_dump_can_be_loaded(variant: Variant, private_server: PrivateServer):
    code, text = run("dump", "--variant", variant)
    assert (code, text) == (0, assemble(variant).code)
    with private_server().client() as client:
        assert client.execute("FUNCTION", "LOAD", text) == assemble(variant).name


@pytest.mark.parametrize("variant", [OWN, WIRE], ids=["own", "wire"])
def test_load_and_check(variant: Library, place: tuple[str, RespClient], capsys: pytest.CaptureFixture[str]):
    url, client = place
    kind = "wire" if variant is WIRE else "own"
    nodes = len(client.primaries())

    def command(name: str) -> tuple[int, list[str]]:
        code = library.main([name, "--variant", kind, "--url", url])
        return code, capsys.readouterr().out.splitlines()

    code, lines = command("check")
    assert (code, len(lines), lines[0].endswith(f"{variant.name} is missing")) == (1, nodes, True)
    code, lines = command("load")
    assert (code, [line.endswith(" loaded") for line in lines]) == (0, [True] * nodes)
    assert names(client) == [[variant.name]] * nodes
    code, lines = command("load")
    assert (code, [line.endswith(" already loaded, left unchanged") for line in lines]) == (0, [True] * nodes)
    code, lines = command("check")
    version = "93" if variant is WIRE else variant.name
    assert code == 0
    assert all(line.endswith(f"is loaded, version {version}, {len(variant.functions)} functions") for line in lines)


def test_foreign_wire_library_is_never_replaced(place: tuple[str, RespClient], capsys: pytest.CaptureFixture[str]):
    url, client = place
    foreign = "#!lua name=glidemq\nredis.register_function('glidemq_version', function() return '88' end)"
    client.execute_everywhere("FUNCTION", "LOAD", foreign)
    assert library.main(["load", "--variant", "wire", "--url", url]) == 0
    printed = capsys.readouterr()
    assert "left unchanged" in printed.out
    assert re.search(
        r"warning: .*: glidemq is loaded, version 88, 1 functions \(not this build's code\); ", printed.err
    )
    assert library.main(["check", "--variant", "wire", "--url", url]) == 1
    assert "version 88, 1 functions (not this build's code)" in capsys.readouterr().out


def test_missing_library_on_one_cluster_node(
    cluster_url: str, cluster_resp: RespClient, capsys: pytest.CaptureFixture[str]
):
    cluster_resp.execute_everywhere("FUNCTION", "FLUSH")
    host, port = cluster_resp.primaries()[1]
    with RespClient(host, port) as one:
        one.execute("FUNCTION", "LOAD", OWN.code)
    assert library.main(["check", "--url", cluster_url]) == 1
    assert [line.partition(" is ")[2] for line in capsys.readouterr().out.splitlines()].count("missing") == 2
    assert library.main(["load", "--url", cluster_url]) == 0
    output = capsys.readouterr().out
    assert (output.count(" loaded\n"), output.count("already loaded")) == (2, 1)
    assert library.main(["check", "--url", cluster_url]) == 0


def test_incomplete_wire_library_is_not_published(
    monkeypatch: pytest.MonkeyPatch, url: str, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(library, "WIRE_FUNCTIONS", library.WIRE_FUNCTIONS | {"fly"})
    assert library.main(["load", "--variant", "wire", "--url", url]) == 1
    assert "incomplete and is not loaded: fly" in capsys.readouterr().err


def test_there_are_45_documented_functions():
    assert len(library.WIRE_FUNCTIONS) == 45
    assert WIRE.functions == library.WIRE_FUNCTIONS


def test_missing_server_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delenv("GLIDEMQ_URL", raising=False)
    with pytest.raises(SystemExit) as caught:
        library.main(["check"])
    assert caught.value.code == 2
    assert "GLIDEMQ_URL" in capsys.readouterr().err
    assert library.main(["check", "--url", "valkey://127.0.0.1:1"]) == 1
    assert "cannot connect" in capsys.readouterr().err


# -- the sweep ----------------------------------------------------------------------------------------------


def load_fake(client: RespClient, name: str = FAKE):
    client.execute_everywhere(
        "FUNCTION", "LOAD", f"#!lua name={name}\nredis.register_function('{name}_f', function() return 1 end)"
    )


async def sweep(url: str) -> list[str]:
    """Run one sweep, as a separate worker process would."""
    forget_registered_libraries()
    transport = await AsyncTransport.connect(url)
    try:
        return await library_sweep.UnusedLibrariesTask(transport).sweep()
    finally:
        await transport.close()


async def test_build_unused_for_a_day_is_deleted(place: tuple[str, RespClient]):
    url, client = place
    load_fake(client)
    load_fake(client, "glidemq_py_not_one_of_ours")
    client.execute_everywhere("FUNCTION", "LOAD", OWN.code)
    nodes = len(client.primaries())
    # First seen now: a grace period of one day.
    assert await sweep(url) == []
    now = int(client.execute("TIME")[0]) * 1000
    for name in (OWN.name, FAKE):
        assert abs(float(client.execute("ZSCORE", library_sweep.REGISTRY, name)) - now) < 5_000
    # Another worker sweeps in this hour.
    client.execute("ZADD", library_sweep.REGISTRY, now - library_sweep.UNUSED_MS - 1, FAKE)
    assert await sweep(url) == []
    client.execute("DEL", library_sweep.LOCK_KEY)
    assert await sweep(url) == [FAKE]
    assert names(client) == [sorted([OWN.name, "glidemq_py_not_one_of_ours"])] * nodes
    assert client.execute("ZRANGE", library_sweep.REGISTRY, 0, -1) == [OWN.name]
    # Neither key outlives its purpose.
    assert client.execute("PTTL", library_sweep.REGISTRY) > 0
    assert client.execute("PTTL", library_sweep.LOCK_KEY) > 0


async def test_used_build_and_own_build_are_kept(place: tuple[str, RespClient]):
    url, client = place
    load_fake(client)
    now = int(client.execute("TIME")[0]) * 1000
    client.execute("ZADD", library_sweep.REGISTRY, now - library_sweep.UNUSED_MS + 60_000, FAKE, 1, OWN.name)
    assert await sweep(url) == []
    assert all(FAKE in found and OWN.name in found for found in names(client))


async def test_build_missing_on_one_node_is_deleted_from_the_others(cluster_url: str, cluster_resp: RespClient):
    cluster_resp.execute_everywhere("FUNCTION", "FLUSH")
    cluster_resp.execute("DEL", library_sweep.LOCK_KEY)
    load_fake(cluster_resp)
    host, port = cluster_resp.primaries()[0]
    with RespClient(host, port) as one:
        one.execute("FUNCTION", "DELETE", FAKE)
    cluster_resp.execute("ZADD", library_sweep.REGISTRY, 1, FAKE)
    assert await sweep(cluster_url) == [FAKE]
    assert all(FAKE not in found for found in names(cluster_resp))


async def test_client_loads_a_deleted_library_again(private_server: PrivateServer):
    server = private_server()
    async with Queue("q", server.url) as queue:
        await queue.add("a")
        with server.client() as client:
            client.execute("FUNCTION", "DELETE", OWN.name)
        await queue.add("b")
        assert await queue.count() == 2


async def test_missing_permission_is_ignored(
    private_server: PrivateServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    server = private_server()
    with server.client() as client:
        client.execute("FUNCTION", "LOAD", OWN.code)
        client.execute("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-function")
    monkeypatch.setattr(library_sweep, "_FIRST_AFTER_S", (0.0, 0.0))
    forget_registered_libraries()
    transport = await AsyncTransport.connect(server.url.replace("://", "://app:pw@"))
    duty = library_sweep.UnusedLibrariesTask(transport)
    with caplog.at_level(logging.DEBUG, logger="glidemq_py"):
        duty.start()
        assert duty._task is not None
        await duty._task
    await duty.close()
    (record,) = [record for record in caplog.records if record.name == library_sweep.__name__]
    assert record.levelno == logging.DEBUG
    assert "permissions.md" in record.getMessage()
    assert await transport.command("EXISTS", library_sweep.LOCK_KEY) == 0
    await transport.close()


async def test_every_worker_runs_the_task(private_server: PrivateServer, monkeypatch: pytest.MonkeyPatch):
    server, swept = private_server(), asyncio.Event()
    original = library_sweep.UnusedLibrariesTask.sweep

    async def sweep_and_tell(duty: library_sweep.UnusedLibrariesTask) -> list[str]:
        deleted = await original(duty)
        swept.set()
        return deleted

    async def handle(job: object): ...

    monkeypatch.setattr(library_sweep, "_FIRST_AFTER_S", (0.0, 0.0))
    monkeypatch.setattr(library_sweep.UnusedLibrariesTask, "sweep", sweep_and_tell)
    forget_registered_libraries()
    async with Worker("q", handle, server.url):
        await swept.wait()
    with server.client() as client:
        assert client.execute("ZRANGE", library_sweep.REGISTRY, 0, -1) == [OWN.name]
