"""A `Transport` with one connection per event loop, and the cleanup at the end of a loop.

A GLIDE client and everything that waits for it (locks, futures, reader tasks) belongs to one event loop. Objects used
in several loops have a `LoopTransport`: it opens a connection when it is first used in a loop, and finds it again by
comparing the running loop with that of the last call.

A loop that has ended cannot run the ``close`` of its clients. `asyncio.run`, `asyncio.Runner`, uvicorn, pytest-asyncio
and asgiref shut down the asynchronous generators of a loop before they close it, so a suspended generator serves as the
notification. A loop that is closed without that is detected when the next connection is opened in any loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar, cast

from glidemq_py._client.failures import Interruptions
from glidemq_py._client.runtime import ASYNC_RUNTIME, Runtime
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import Call
from glidemq_py._core.forks import call_in_child, keep, new_lock
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import ClosedError, EventLoopError


class LoopResource(Protocol):
    """A connection that belongs to one event loop."""

    async def close(self) -> None:
        """Close the connection, in its loop; idempotent."""
        ...

    def abandon(self) -> None:
        """Close the connection after its loop was closed, or from outside the loop; idempotent."""
        ...


class _LoopEnd:
    """The open connections of one event loop.

    Attributes:
        closing: tasks that close connections for other threads.
        has_begun: whether the loop ends; it closes its connections itself.
    """

    def __init__(self) -> None:
        self.open: weakref.WeakSet[LoopResource] = weakref.WeakSet()
        self.closing: set[asyncio.Task[None]] = set()
        self.has_begun = False
        self._generator = self._until_shutdown()
        # Advance it to its `yield`, so that the loop registers it.
        with contextlib.suppress(StopIteration):
            self._generator.asend(None).send(None)

    def abandon(self) -> None:
        for resource in list(self.open):
            resource.abandon()

    async def _until_shutdown(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self.has_begun = True
            if self.closing:
                await asyncio.wait(self.closing)
            for resource in list(self.open):
                await resource.close()


_ends: dict[asyncio.AbstractEventLoop, _LoopEnd] = {}
_lock = new_lock()


def close_at_loop_end(loop: asyncio.AbstractEventLoop, resource: LoopResource) -> None:
    """Close ``resource`` when the running loop, ``loop``, ends. Also abandon connections of loops already closed."""
    with _lock:
        ended = [_ends.pop(each) for each in list(_ends) if each.is_closed()]
        end = _ends.get(loop)
        if end is None:
            end = _ends[loop] = _LoopEnd()
    for each in ended:
        each.abandon()
    end.open.add(resource)


def free_socket(transport: Any) -> None:
    """Free the socket of asyncio's transport after its loop was closed. Idempotent."""
    # Its own last step, which a closed loop does not run any more; uvloop has closed the socket itself.
    finish = getattr(transport, "_call_connection_lost", None)
    if finish is not None and getattr(transport, "_sock", None) is not None:
        finish(None)


def _after_fork() -> None:
    keep(dict(_ends))
    _ends.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_log = get_logger(__name__)

_OTHER_LOOP_S = 10.0
"""Longest wait of `close` for the loop of another thread to close its connection, seconds."""

_LOOP_CHECK_S = 0.1
"""How often that `close` looks whether the loop has ended, which then answers nothing, seconds."""

T = TypeVar("T")


class LoopPart(Protocol):
    """An object built over the connection of one loop."""

    async def close(self) -> None:
        """Close the part, in its loop; idempotent."""
        ...


P = TypeVar("P", bound=LoopPart)


class LoopConnection:
    """The connection of one event loop, and the parts built over it.

    Attributes:
        loop: the event loop.
        transport: the connection; None until it is open.
    """

    def __init__(self, loop: object) -> None:
        self.loop = loop
        self.opening = asyncio.Lock()
        self.transport: Transport | None = None
        self._parts: dict[object, LoopPart] = {}

    def part(self, key: object, make: Callable[[Transport], P]) -> P:
        """Return the part with this key; create it on first use. Parts are closed before the connection, in order."""
        found = self._parts.get(key)
        if found is None:
            assert self.transport is not None
            found = self._parts[key] = make(self.transport)
        return cast("P", found)

    async def close_part(self, key: object) -> None:
        """Close the part with this key, if it exists."""
        part = self._parts.pop(key, None)
        if part is not None:
            await part.close()

    async def close(self) -> None:
        """Close the parts and the connection; must be called in its loop."""
        for key in list(self._parts):
            await self.close_part(key)
        if self.transport is not None:
            await self.transport.close()

    def abandon(self) -> None:
        """Close the connection from outside its loop, which is closed or not running."""
        self._parts.clear()
        if self.transport is not None:
            self.transport.abandon()


def _closed_there(loop: asyncio.AbstractEventLoop, connection: LoopConnection) -> Future[None]:
    """Close a connection in the loop of another thread; the result is never given if the loop ends before it begins."""
    closed: Future[None] = Future()

    def begin() -> None:
        end = _ends.get(loop)
        if end is None or end.has_begun:
            closed.set_result(None)
        else:
            task = loop.create_task(connection.close())
            end.closing.add(task)
            task.add_done_callback(end.closing.discard)
            task.add_done_callback(ended)

    def ended(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        closed.set_result(None) if error is None else closed.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(begin)
    return closed


async def next_of(items: AsyncIterator[Any], end: Any) -> Any:
    """Return the next item; ``end`` after the last."""
    try:
        return await items.__anext__()
    except StopAsyncIteration:
        return end


class ForwardingTransport:
    """A `Transport` whose calls run on another one, which may be opened first.

    Args:
        runtime: where they run.
    """

    def __init__(self, runtime: Runtime = ASYNC_RUNTIME) -> None:
        self.there = runtime.there

    async def here(self) -> Transport:
        """Return the other transport."""
        raise NotImplementedError

    async def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        return await self.there((await self.here()).call(call), call.unclaimed)

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        return await self.there((await self.here()).command(*args))

    async def send_reads(self, key: str | None, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """See `Transport.send_reads`."""
        return await self.there((await self.here()).send_reads(key, commands))

    async def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """See `Transport.call_all`."""
        return await self.there((await self.here()).call_all(calls))

    async def call_with(
        self, call: Call[T], waits: Sequence[Sequence[str]], block: int, grace: int | None = None,
        read: Sequence[str] | None = None,
    ) -> tuple[T, list[Any]]:  # fmt: skip
        """See `Transport.call_with`."""
        return await self.there((await self.here()).call_with(call, waits, block, grace, read))

    async def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """See `Transport.scan`."""
        pages = (await self.here()).scan(pattern)
        while (keys := await self.there(next_of(pages, None))) is not None:
            yield keys

    async def dedicated(self) -> Transport:
        """See `Transport.dedicated`; the connection belongs to the running loop only."""
        return await (await self.here()).dedicated()

    async def elsewhere(self) -> Transport:
        """See `Transport.elsewhere`."""
        return await (await self.here()).elsewhere()


class LoopTransport(ForwardingTransport):
    """A `Transport` with one connection per event loop.

    Args:
        owner: the object that uses it, for error messages: ``queue 'emails'``.
        open_: opens the connection of the running loop and sets `LoopConnection.transport`.
        runtime: where the calls run.
    """

    def __init__(
        self, owner: str, open_: Callable[[LoopConnection], Awaitable[None]], runtime: Runtime = ASYNC_RUNTIME
    ) -> None:
        self._owner = owner
        self._open = open_
        super().__init__(runtime)
        self._current_loop = runtime.current_loop
        self._connections: dict[object, LoopConnection] = {}
        self._last: LoopConnection | None = None
        self._closed = False
        self._own_interruptions = Interruptions()
        call_in_child(self)

    @property
    def interruptions(self) -> Interruptions:
        """The interruptions of the most recently used connection."""
        last = self._last
        return self._own_interruptions if last is None or last.transport is None else last.transport.interruptions

    @property
    def config(self) -> Any:
        """The configuration of the most recently used connection; None before the first, and in memory."""
        return None if self._last is None else getattr(self._last.transport, "config", None)

    async def connected(self) -> LoopConnection:
        """Return the connection of the loop in which calls run; open it on first use.

        Raises:
            ClosedError: if this transport is closed.
            EventLoopError: if the process was forked inside the running loop.
            GlideMQConnectionError: if the server cannot be reached.
        """
        last = self._last
        if last is not None and last.loop is self._current_loop():
            return last
        return await self.there(self._connect())

    async def _connect(self) -> LoopConnection:
        self._check_open()
        loop = asyncio._get_running_loop()
        if loop is None or loop in _loops_of_parent:
            raise EventLoopError(
                self._owner, "the process was forked inside a running event loop, which the child cannot use",
                "start a new loop in the child (asyncio.run), or use multiprocessing with 'spawn'",
            )  # fmt: skip
        self._abandon_ended()
        connection = self._connections.setdefault(loop, LoopConnection(loop))
        async with connection.opening:
            if connection.transport is None:
                await self._open(connection)
        self._last = connection
        if self._connections.get(loop) is not connection:  # it was closed while connecting
            self._last = None
            await connection.close()
            return await self._connect()
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._owner} is closed")

    def _abandon_ended(self) -> None:
        """Free the connections of closed loops."""
        for loop in list(self._connections):
            if isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed():
                ended = self._connections.pop(loop, None)
                if ended is not None:
                    ended.abandon()

    async def here(self) -> Transport:
        """Return the transport of the loop in which calls run."""
        transport = (await self.connected()).transport
        assert transport is not None
        return transport

    @property
    def is_cluster(self) -> bool:
        """See `Transport.is_cluster`; of the most recently used connection."""
        return self._last is not None and self._last.transport is not None and self._last.transport.is_cluster

    async def elsewhere(self) -> Transport:
        """See `Transport.elsewhere`."""
        if self._last is None or self._last.transport is None:
            raise ClosedError(f"{self._owner} is not connected")
        return await self._last.transport.elsewhere()

    def abandon(self) -> None:
        """Close all connections without waiting, for loops that have ended."""
        self._closed = True
        self._last = None
        while self._connections:
            self._connections.popitem()[1].abandon()

    async def close(self) -> None:
        """Close the connections of all loops; idempotent.

        Connections of other threads' loops are closed in those loops. Connections of loops that are not running are
        closed immediately: a task still waiting in such a loop gets ClosedError when the loop runs again.
        """
        self._closed = True
        await self.disconnect()

    async def disconnect(self) -> None:
        """Close the connections as `close`, but let the next call in a loop open one again."""
        with contextlib.suppress(ClosedError):  # the interpreter ends, and with it the portal
            await self.there(self._disconnect())

    async def _disconnect(self) -> None:
        here = asyncio._get_running_loop()
        closing, self._connections = self._connections, {}
        self._last = None  # last: before the swap, another thread may set it again
        try:
            while closing:
                loop, connection = closing.popitem()
                if loop is here:
                    await connection.close()
                elif isinstance(loop, asyncio.AbstractEventLoop) and loop.is_running():
                    await self._close_in(loop, connection)
                else:
                    connection.abandon()
        finally:  # if it was cancelled, the next call closes the others
            for loop, connection in closing.items():
                self._connections.setdefault(loop, connection)

    async def _close_in(self, loop: asyncio.AbstractEventLoop, connection: LoopConnection) -> None:
        closed, until = asyncio.wrap_future(_closed_there(loop, connection)), time.monotonic() + _OTHER_LOOP_S
        try:
            while not (await asyncio.wait([closed], timeout=_LOOP_CHECK_S))[0]:
                if not loop.is_running():  # it has ended, and never answers
                    return connection.abandon()
                if time.monotonic() > until:
                    raise TimeoutError(f"not closed within {_OTHER_LOOP_S:g} s")
            closed.result()
        except (Exception, asyncio.CancelledError) as error:
            connection.abandon()
            if isinstance(error, asyncio.CancelledError):
                raise
            _log.warning("%s: connection of another thread's event loop was closed forcibly: %r", self._owner, error)

    def _forked(self) -> None:
        """See `Forkable`. Detach the parent's connections."""
        self._last = None
        for loop in list(self._connections):
            keep(self._connections.pop(loop))
            _loops_of_parent.add(loop)


_loops_of_parent: weakref.WeakSet[Any] = weakref.WeakSet()
