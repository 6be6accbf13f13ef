"""`MemoryServer`: keys, functions, clock and blocking reads in one object, with the reply types of GLIDE.

`MemoryTransport` is a connection of a queue or a worker to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from typing import Any, Final, TypeVar, cast

from glidemq_py._client.failures import Interruptions, meaning_of
from glidemq_py._client.library_source import Library, assemble
from glidemq_py._client.memory.store import Clock, CommandError, ScriptEngine, Store
from glidemq_py._core.calls import Call
from glidemq_py._core.forks import new_rlock
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError

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


class MemoryTransport:
    """A `Transport` to an in-memory server."""

    is_cluster = False

    def __init__(self, server: MemoryServer, library: Library) -> None:
        self._server = server
        self.library = library
        self.interruptions = Interruptions()
        self._closed = False
        self._wakers: set[Callable[[], None]] = set()

    @property
    def listeners(self) -> list[Callable[[bytes], bool]]:
        """The subscribers of channels: called with the channel of each message; they return whether it is theirs."""
        return self._server._store.listeners

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a function of the server."""
        if self._closed:
            raise ClosedError("the connection was closed")
        try:
            return function(*args)
        except CommandError as error:
            raise meaning_of(str(error), self.library) from error

    def _read(self, command: Sequence[str | bytes]) -> Any:
        try:
            return self._run(self._server.command, _Read(command).command)
        except GlideMQError as error:
            if self._closed:
                raise
            return error

    async def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        await asyncio.sleep(0)  # let other tasks run, as they do during a real call
        return cast("T", self._run(self._server.run, self.library, call))

    async def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """See `Transport.call_all`."""
        return [await self.call(call) for call in calls]

    async def send_reads(self, key: str | None, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """See `Transport.send_reads`."""
        await asyncio.sleep(0)
        return [self._read(command) for command in commands]

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`. A blocking read ends early if the clock is advanced."""
        await asyncio.sleep(0)
        read = _Read(args)
        reply = self._run(self._server.command, read.command)
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
                    reply = self._run(self._server.command, read.command)
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

    async def call_with(
        self, call: Call[T], waits: Sequence[Sequence[str]], block: int, grace: int | None = None,
        read: Sequence[str] | None = None,
    ) -> tuple[T, list[Any]]:  # fmt: skip
        """See `Transport.call_with`. The data needs no disk, and there is no replica."""
        if read is None:
            await asyncio.sleep(0)
        else:
            with contextlib.suppress(GlideMQError):
                await self.command(*read)
        return self._run(self._server.run, self.library, call), [_WAIT_REPLIES[wait[0]] for wait in waits]

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
        self.abandon()

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        self._closed = True
        for wake in tuple(self._wakers):
            wake()


def _encoded(arg: str | bytes) -> bytes:
    return arg if isinstance(arg, bytes) else arg.encode("utf-8", "surrogateescape")


def as_glide_shows(name: bytes, args: list[bytes], reply: Any) -> Any:
    """Convert a fakeredis reply (RESP3) to the command ``name`` with ``args`` to the type that GLIDE returns."""
    if reply is None:
        return None
    shape = _SHAPES.get(name)
    if shape is not None:
        return shape(args, reply)
    status = getattr(reply, "value", None)
    return status.decode() if isinstance(status, bytes) else reply


def _truth(_: list[bytes], reply: Any) -> bool:
    return bool(reply)


def _entries(_: list[bytes], reply: Any) -> dict[bytes, list[list[bytes]]]:
    return {entry: _pairs(fields) for entry, fields in reply}


def _pairs(flat: list[bytes]) -> list[list[bytes]]:
    return [[flat[at], flat[at + 1]] for at in range(0, len(flat), 2)]


def _streams(args: list[bytes], reply: Any) -> dict[bytes, Any] | None:
    found: dict[bytes, Any] = dict(reply)
    return {stream: _entries(args, entries) for stream, entries in found.items() if entries} or None


def _scored(args: list[bytes], reply: Any) -> Any:
    if not any(arg.upper() == b"WITHSCORES" for arg in args):
        return reply
    pairs = reply if not reply or isinstance(reply[0], list) else _pairs(reply)
    return {member: float(score) for member, score in pairs}


def _map(_: list[bytes], reply: Any) -> dict[Any, Any]:
    flat: Any = reply
    return dict(flat if isinstance(reply, dict) else _pairs(flat))


def _maps(args: list[bytes], reply: Any) -> list[dict[Any, Any]]:
    return [_map(args, each) for each in reply]


def _set(_: list[bytes], reply: Any) -> set[bytes]:
    return set(reply)


def _number(_: list[bytes], reply: Any) -> float:
    return float(reply)


def _info(args: list[bytes], reply: Any) -> Any:
    return _map(args, reply) if args and args[0].upper() == b"STREAM" else _maps(args, reply)


_SHAPES: Final[dict[bytes, Callable[[list[bytes], Any], Any]]] = {
    **dict.fromkeys(
        (b"HEXISTS", b"SISMEMBER", b"HSETNX", b"SETNX", b"EXPIRE", b"PEXPIRE", b"EXPIREAT", b"PEXPIREAT", b"PERSIST",
         b"RENAMENX", b"MOVE", b"COPY"), _truth,
    ),
    **dict.fromkeys((b"XRANGE", b"XREVRANGE"), _entries),
    **dict.fromkeys((b"XREAD", b"XREADGROUP"), _streams),
    **dict.fromkeys((b"ZRANGE", b"ZREVRANGE", b"ZRANGEBYSCORE", b"ZREVRANGEBYSCORE"), _scored),
    **dict.fromkeys((b"HGETALL", b"CONFIG"), _map),
    **dict.fromkeys((b"SMEMBERS", b"SINTER", b"SUNION", b"SDIFF"), _set),
    **dict.fromkeys((b"ZSCORE", b"ZINCRBY", b"INCRBYFLOAT", b"HINCRBYFLOAT"), _number),
    b"XINFO": _info,
}  # fmt: skip


class _Acting:
    """Holds the lock of a server, then wakes up the blocked reads whose keys have changed."""

    __slots__ = ("_server",)

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def __enter__(self) -> None:
        self._server._lock.acquire()

    def __exit__(self, *_: object) -> None:
        server = self._server
        try:
            if server._dirty:
                dirty, server._dirty = server._dirty, set()
                for waiter in tuple(server._waiters):
                    if not waiter.keys.isdisjoint(dirty):
                        waiter.wake()
        finally:
            server._lock.release()


class MemoryServer:
    """A server inside this process; pass it as the ``connection`` of a queue, worker or listener.

    It runs the real function library, so a queue behaves as on a Valkey server: the same keys, events and order. Not
    supported: vector search, other processes, persistence, memory limits, users, cluster slots. Two servers share no
    data. A server can be used from several threads and event loops.

    Args:
        clock: its clock; None creates one that runs in real time and can be advanced.

    Raises:
        GlideMQValidationError: if ``clock`` is not a Clock.
        EmbeddedServerError: if the extra `testing` is not installed.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        if clock is not None and not isinstance(clock, Clock):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("clock", clock, f"must be a Clock, not {type(clock).__name__}")
        self.clock = clock or Clock(running=True)
        self._lock = new_rlock()
        self._waiters: dict[Waiter, None] = {}
        self._dirty: set[bytes] = set()
        self._store = Store(self.clock, self._touched)
        self._engine = ScriptEngine(self._store)
        self.clock.on_advance(self._moved)

    # -- connections of queues and workers --------------------------------------------------------------------

    def open_transport(self) -> MemoryTransport:
        """Return a connection for an event loop."""
        return MemoryTransport(self, assemble())

    # -- inspection of keys -------------------------------------------------------------------------------------

    def execute(self, *args: str | bytes | float) -> Any:
        """Run one command and return its reply: bytes, numbers, lists or None. For tests that inspect keys.

        Raises:
            RuntimeError: if the reply is an error.
        """
        try:
            return self.command([a if isinstance(a, bytes) else str(a).encode() for a in args], shown=False)
        except CommandError as error:
            raise RuntimeError(str(error)) from None

    def keys(self, pattern: str = "*") -> list[str]:
        """Return the keys that match a glob pattern, sorted."""
        found: list[bytes] = self.execute("KEYS", pattern)
        return sorted(key.decode("utf-8", "surrogateescape") for key in found)

    def flush(self) -> None:
        """Delete all keys. Workers keep running."""
        self.execute("FLUSHALL")

    def __repr__(self) -> str:
        return f"<MemoryServer {self.clock!r}>"

    # -- for transports -----------------------------------------------------------------------------------------

    def run(self, library: Library, call: Call[T]) -> T:
        """Run a call of our library and return its decoded result. Raises CommandError."""
        with self._acting():
            self._engine.load(library)
            args = [a if isinstance(a, bytes) else a.encode("utf-8", "surrogateescape") for a in call.args]
            key = call.key.encode("utf-8", "surrogateescape")
            reply = self._engine.call(library.function(call.function), [key], args)
        return call.read(reply)

    def command(self, args: list[bytes], *, shown: bool = True) -> Any:
        """Run a plain command. Raises CommandError.

        Args:
            args: name and arguments.
            shown: convert the reply to GLIDE's types; otherwise return it as RESP2.
        """
        name, rest = args[0].upper(), args[1:]
        with self._acting():
            if name in (b"FCALL", b"FCALL_RO"):
                count = int(rest[1])
                return self._engine.call(rest[0].decode(), rest[2 : 2 + count], rest[2 + count :])
            if name == b"FUNCTION" and rest and rest[0].upper() == b"LOAD":
                return self._engine.load_code(rest[-1].decode())
            if name == b"FUNCTION" and rest and rest[0].upper() == b"LIST":
                return [[b"functions", self._engine.functions]]
            with self._store.moment():
                reply = self._store.execute(name, rest, script=not shown)
        return as_glide_shows(name, rest, reply) if shown else self._store.as_resp2(reply)

    @contextlib.contextmanager
    def waiting(self, keys: Iterable[bytes], wake: Callable[[], None]) -> Generator[Waiter]:
        """Within this context, call ``wake`` (on any thread) when one of ``keys`` changes or the clock is advanced."""
        waiter = Waiter(frozenset(keys), wake)
        with self._lock:
            self._waiters[waiter] = None
        try:
            yield waiter
        finally:
            with self._lock:
                del self._waiters[waiter]

    def _acting(self) -> _Acting:
        return _Acting(self)

    def _touched(self, key: bytes) -> None:
        if self._waiters:
            self._dirty.add(key)

    def _moved(self) -> None:
        with self._lock:
            for waiter in tuple(self._waiters):
                waiter.over = True
                waiter.wake()
