"""Connections to an in-memory server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from glidemq_py._client.failures import Interruptions, meaning_of
from glidemq_py._client.library_source import Library
from glidemq_py._client.memory.store import CommandError
from glidemq_py._core.calls import Call
from glidemq_py.errors import ClosedError, GlideMQError

if TYPE_CHECKING:
    from glidemq_py._client.memory.server import MemoryServer

T = TypeVar("T")

_WAIT_REPLIES: Final[dict[str, Any]] = {"WAITAOF": [1, 0], "WAIT": 0, "INFO": b"connected_slaves:0"}


class Waiter:
    """A blocked read. ``over``: it must return with the data available now."""

    __slots__ = ("keys", "over", "wake")

    def __init__(self, keys: frozenset[bytes], wake: Callable[[], None]) -> None:
        self.keys = keys
        self.wake = wake
        self.over = False


class _Read:
    """A command that may block, with its keys and its time limit."""

    def __init__(self, args: Sequence[str | bytes]) -> None:
        command = [_encoded(arg) for arg in args]
        upper = [arg.upper() for arg in command]
        self.block: float | None = None
        """Longest time to block, seconds; None for a command that does not block."""
        self.keys: tuple[bytes, ...] = ()
        if upper[0] in (b"XREAD", b"XREADGROUP") and b"STREAMS" in upper:
            first = upper.index(b"STREAMS") + 1
            self.keys = tuple(command[first : first + (len(command) - first) // 2])
            if b"BLOCK" in upper[:first]:
                at = upper.index(b"BLOCK")
                self.block = int(command[at + 1]) / 1000 or float("inf")
                del command[at : at + 2]
        self.command = command


class _Connection:
    def __init__(self, server: MemoryServer, library: Library) -> None:
        self._server = server
        self.library = library
        self.interruptions = Interruptions()
        self._closed = False
        self._wakers: set[Callable[[], None]] = set()

    def _run(self, call: Call[T]) -> T:
        self._check()
        try:
            return self._server.run(self.library, call)
        except CommandError as error:
            raise meaning_of(str(error), self.library) from error

    def _command(self, command: list[bytes]) -> Any:
        self._check()
        try:
            return self._server.command(command)
        except CommandError as error:
            raise meaning_of(str(error), self.library) from error

    def _run_reads(self, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        self._check()
        return [self._read(command) for command in commands]

    def _read(self, command: Sequence[str | bytes]) -> Any:
        try:
            return self._server.command(_Read(command).command)
        except CommandError as error:
            return meaning_of(str(error), self.library)

    is_cluster = False

    @property
    def listeners(self) -> list[Callable[[bytes], bool]]:
        """The subscribers of channels: called with the channel of each message; they return whether it is theirs."""
        return self._server._store.listeners

    def _run_before(self, call: Call[T], waits: Sequence[Sequence[str]]) -> tuple[T, list[Any]]:
        """See `Transport.call_before`. The data needs no disk, and there is no replica."""
        reply = self._run(call)
        return reply, [_WAIT_REPLIES[wait[0]] for wait in waits]

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the connection was closed")

    def _close(self) -> None:
        self._closed = True
        for wake in tuple(self._wakers):
            wake()


class MemoryTransport(_Connection):
    """A `Transport` to an in-memory server."""

    async def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        await asyncio.sleep(0)  # let other tasks run, as they do during a real call
        return self._run(call)

    async def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """See `Transport.call_all`."""
        return [await self.call(call) for call in calls]

    async def send_reads(self, key: str | None, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """See `Transport.send_reads`."""
        await asyncio.sleep(0)
        return self._run_reads(commands)

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`. A blocking read ends early if the clock is advanced."""
        await asyncio.sleep(0)
        read = _Read(args)
        reply = self._command(read.command)
        return reply if reply or read.block is None else await self._wait(read)

    async def _wait(self, read: _Read) -> Any:
        loop, here, changed = asyncio.get_running_loop(), threading.get_ident(), asyncio.Event()

        def wake() -> None:
            if threading.get_ident() == here:
                changed.set()
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(changed.set)

        assert read.block is not None
        until = loop.time() + read.block
        self._wakers.add(wake)
        try:
            with self._server.waiting(read.keys, wake) as waiter:
                while True:
                    reply = self._command(read.command)
                    if reply or waiter.over or loop.time() >= until:
                        return reply
                    changed.clear()
                    try:
                        async with asyncio.timeout_at(None if read.block == float("inf") else until):
                            await changed.wait()
                    except TimeoutError:
                        waiter.over = True
        finally:
            self._wakers.discard(wake)

    async def call_after(self, read: Sequence[str], call: Call[T], block: int) -> T:
        """See `Transport.call_after`."""
        with contextlib.suppress(GlideMQError):  # the result or error of the read is ignored
            await self.command(*read)
        return self._run(call)

    async def call_before(
        self, call: Call[T], waits: Sequence[Sequence[str]], block: int, grace: int | None = None
    ) -> tuple[T, list[Any]]:
        """See `Transport.call_before`."""
        await asyncio.sleep(0)
        return self._run_before(call, waits)

    async def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """See `Transport.scan`."""
        cursor = b"0"
        while True:
            cursor, keys = await self.command("SCAN", cursor, "MATCH", pattern, "COUNT", "1000")
            yield keys
            if int(cursor) == 0:
                return

    async def dedicated(self) -> MemoryTransport:
        """See `Transport.dedicated`."""
        return MemoryTransport(self._server, self.library)

    async def elsewhere(self) -> MemoryTransport:
        """See `Transport.elsewhere`."""
        return await self.dedicated()

    async def close(self) -> None:
        """See `Transport.close`."""
        self._close()

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        self._close()


def _encoded(arg: str | bytes) -> bytes:
    return arg if isinstance(arg, bytes) else arg.encode("utf-8", "surrogateescape")
