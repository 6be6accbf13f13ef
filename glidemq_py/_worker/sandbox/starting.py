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
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

__all__ = ["Child", "ForkServer", "Spawner", "Starter", "kill"]

_BOOT: Final = (
    "import sys; sys.path[:] = sys.argv[3:]; from glidemq_py._worker.sandbox.{0} import main; main(int(sys.argv[1]))"
)
_PID: Final = struct.Struct(">q")
_EXIT_S: Final = 15.0
"""Longest wait for the exit code of a child of the fork server: longer than `Sandbox` lets a process run on."""

T = TypeVar("T")


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


async def _to_its_end(start: Coroutine[Any, Any, tuple[Child, socket.socket]]) -> tuple[Child, socket.socket]:
    """Start a process; if the caller is cancelled meanwhile, end the process once it has started."""
    starting = asyncio.ensure_future(start)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_end_unused)
        raise


def _end_unused(starting: asyncio.Future[tuple[Child, socket.socket]]) -> None:
    if starting.cancelled() or starting.exception() is not None:
        return
    child, sock = starting.result()
    sock.close()
    kill(child)
    ending = asyncio.ensure_future(child.ended())
    _ending.add(ending)
    ending.add_done_callback(_ending.discard)


_ending: Final[set[asyncio.Future[int | None]]] = set()


class Spawner:
    """Starts a new interpreter for each process."""

    async def start(self) -> tuple[Child, socket.socket]:
        """See `Starter`."""
        return await _to_its_end(asyncio.to_thread(spawn, "child"))

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
        timeout_s: Maximum time for importing the handler, in seconds.
    """

    def __init__(self, start: bytes, timeout_s: float) -> None:
        self._start = start
        self._timeout_s = timeout_s
        self._server: SpawnedChild | None = None
        self._line: socket.socket | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> tuple[Child, socket.socket]:
        """See `Starter`. A fork server that has died is restarted. Raises TimeoutError if the import takes too long."""
        return await _to_its_end(self._start_one())

    async def _start_one(self) -> tuple[Child, socket.socket]:
        async with self._lock:
            try:
                return await self._request(self._fork)
            except TimeoutError:
                raise
            except OSError:
                return await self._request(self._fork)

    async def _request(self, function: Callable[..., T], *args: Any) -> T:
        """Run a request to the fork server in a thread; stop the server if it fails, since a reply may follow."""
        try:
            return await asyncio.to_thread(function, *args)
        except OSError:
            await self._stop()
            raise

    def _fork(self) -> tuple[Child, socket.socket]:
        if self._line is None:
            self._server, self._line = spawn("template")
            self._line.sendall(self._start)
        self._line.settimeout(self._timeout_s)
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
        """Return the exit code of a child that exits or was killed; None if the fork server cannot return it."""
        async with self._lock:
            with contextlib.suppress(OSError):
                return await self._request(self._wait, pid)
            return None

    def _wait(self, pid: int) -> int | None:
        if self._line is None:
            return None
        self._line.settimeout(_EXIT_S)
        self._line.sendall(_PID.pack(pid))
        return self._number()

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
