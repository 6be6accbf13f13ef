"""Starts the sandbox's processes and reads their exit codes.

`multiprocessing` is not used, because it would import the parent's main module in each process. Every process leads a
process group, so that programs started by its handler are killed with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from typing import Final, Protocol

__all__ = ["Child", "ForkServer", "Spawner", "Starter", "kill"]

_BOOT: Final = (
    "import sys; sys.path[:] = sys.argv[3:]; from glidemq_py._worker.sandbox.{0} import main; main(int(sys.argv[1]))"
)
_PID: Final = struct.Struct(">q")


class Child(Protocol):
    """A process."""

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        ...

    async def ended(self) -> int | None:
        """Wait for its end and return the exit code; negative: the signal that killed it; None: unknown."""
        ...


def kill(child: Child) -> None:
    """Kill a process that was not waited for yet, and the processes it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(child.pid, signal.SIGKILL)


class Starter(Protocol):
    """Starts processes."""

    async def start(self) -> tuple[Child, socket.socket]:
        """Start a process; return it and the worker's end of its socket. Raises OSError."""
        ...

    async def close(self) -> None:
        """Release the starter's resources."""
        ...


class SpawnedChild:
    """A process that is a child of this one."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """See `Child`."""
        return self._process.pid

    async def ended(self) -> int | None:
        """See `Child`."""
        return await asyncio.to_thread(self._process.wait)


def spawn(program: str) -> tuple[SpawnedChild, socket.socket]:
    """Start a new interpreter that runs ``main`` of a module of this package."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT.format(program), str(theirs.fileno()), "glidemq-sandbox", *sys.path],
                pass_fds=(theirs.fileno(),), start_new_session=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
    return SpawnedChild(process), ours


class Spawner:
    """Starts a new interpreter for each process."""

    async def start(self) -> tuple[Child, socket.socket]:
        """See `Starter`."""
        return await asyncio.to_thread(spawn, "child")

    async def close(self) -> None:
        """See `Starter`."""


class _ForkedChild:
    """A process that is the fork server's child; only the fork server can read its exit code."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self._pid = pid
        self._server = server

    @property
    def pid(self) -> int:
        """See `Child`."""
        return self._pid

    async def ended(self) -> int | None:
        """See `Child`."""
        return await self._server.wait_for(self._pid)


class ForkServer:
    """Forks processes from one interpreter that has imported the handler.

    Args:
        start: Bytes of the message `start`, which names the handler.
    """

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._server: SpawnedChild | None = None
        self._line: socket.socket | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> tuple[Child, socket.socket]:
        """See `Starter`. A fork server that has died is restarted."""
        async with self._lock:
            try:
                return await asyncio.to_thread(self._fork)
            except OSError:
                await self._stop()
                return await asyncio.to_thread(self._fork)

    def _fork(self) -> tuple[Child, socket.socket]:
        if self._line is None:
            self._server, self._line = spawn("template")
            self._line.sendall(self._start)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._line, [_PID.pack(0)], [theirs.fileno()])
            return _ForkedChild(self._number(), self), ours
        except BaseException:
            ours.close()
            raise

    def _number(self) -> int:
        assert self._line is not None
        answer = self._line.recv(_PID.size, socket.MSG_WAITALL)
        if len(answer) < _PID.size:
            raise ConnectionError("the fork server is gone")
        return int(_PID.unpack(answer)[0])

    async def wait_for(self, pid: int) -> int | None:
        """Return the exit code of a child that has exited or was killed; None if the fork server has died."""
        async with self._lock:
            return await asyncio.to_thread(self._wait, pid)

    def _wait(self, pid: int) -> int | None:
        if self._line is None:
            return None
        try:
            self._line.sendall(_PID.pack(pid))
            return self._number()
        except OSError:
            return None

    async def close(self) -> None:
        """See `Starter`."""
        async with self._lock:
            await self._stop()

    async def _stop(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._server is not None:
            server, self._server = self._server, None
            kill(server)
            await server.ended()
