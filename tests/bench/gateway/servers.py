"""The compared servers, each with the processor time of its processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from glidemq_py.testing import ServerProcess, server_binary
from tests.bench.bunqueue import BunqueuePackages

__all__ = ["ROOT", "Served", "bunqueue", "cpu_us", "gateways", "memory_mib"]

ROOT: Final = Path(__file__).resolve().parents[3]
START_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs.

    Attributes:
        ports: Its ports; several gateways have one each.
        processes: Their process ids.
        store: Process id of the Valkey that holds the queues, or None.
    """

    ports: tuple[int, ...]
    processes: tuple[int, ...]
    store: int | None

    @property
    def port(self) -> int:
        """The only port, or the first."""
        return self.ports[0]

    def cpu(self) -> tuple[float, float]:
        """Return the processor time so far of the servers and of the Valkey, us."""
        return sum(map(cpu_us, self.processes)), 0.0 if self.store is None else cpu_us(self.store)


def cpu_us(process: int) -> float:
    """Return the processor time of the threads of a process so far, us."""
    total = 0
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1_000


def memory_mib(process: int) -> float:
    """Return the resident memory of a process, MiB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1_024
    raise RuntimeError(f"no memory of process {process} is reported")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _process(command: list[str], port: int, **environment: str) -> Generator[int]:
    """Run a server until the block ends; yield its process id when it accepts connections."""
    running = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > until or running.poll() is not None:
                    raise
                time.sleep(0.05)
        yield running.pid
    finally:
        running.terminate()
        running.wait()


@contextlib.contextmanager
def bunqueue(packages: BunqueuePackages, *, in_memory: bool) -> Generator[Served]:
    """Run real bunqueue."""
    folder, port = Path(tempfile.mkdtemp(prefix="glidemq-bench-")), free_port()
    command = [str(packages.bun), str(packages.server), "start"]
    environment = {
        "TCP_PORT": str(port), "HTTP_PORT": str(free_port()), "HOST": "127.0.0.1",
        "RATE_LIMIT_MAX_REQUESTS": "1000000000", "LOG_LEVEL": "error",
    }  # fmt: skip
    if not in_memory:
        environment["DATA_PATH"] = str(folder / "bunqueue.db")
    try:
        with _process(command, port, **environment) as process:
            yield Served((port,), (process,), None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def gateways(fsync: str, number: int = 1) -> Generator[Served]:
    """Run gateways, one process each, on a Valkey of their own."""
    server = ServerProcess(server_binary("valkey-9.1"), config={"appendonly": "yes", "appendfsync": fsync, "save": ""})
    with server, contextlib.ExitStack() as stack:
        ports = tuple(free_port() for _ in range(number))
        processes = tuple(
            stack.enter_context(
                _process([sys.executable, "-m", "glidemq_py.gateway", "--url", server.url, "--port", str(port)], port)
            )
            for port in ports
        )
        yield Served(ports, processes, server.child.pid)
