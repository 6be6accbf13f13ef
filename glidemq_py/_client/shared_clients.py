"""Clients that several objects share: one per event loop and server, and one for all threads of the process.

Every `Queue`, `Worker` or `FlowProducer` with the same connection options gets a transport of its own over a shared
client. The client is closed with its last transport. A blocking read delays all other calls of its client, so it needs
a separate one (`Transport.dedicated`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final, TypeVar

from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.blocking_transport import ThreadTransport
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.failures import Interruptions
from glidemq_py._core.calls import Call
from glidemq_py._core.forks import new_lock
from glidemq_py.errors import ClosedError

__all__ = ["SharedThreadTransport", "connect_shared", "connect_thread"]

T = TypeVar("T")


class _LoopClient:
    """The shared client of one event loop, and the number of transports over it."""

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.users = 0
        self.transport: AsyncTransport | None = None


_LoopKey = tuple[ConnectionOptions, bool]
_by_loop: Final[dict[asyncio.AbstractEventLoop, dict[_LoopKey, _LoopClient]]] = {}


async def connect_shared(options: ConnectionOptions, *, check: bool) -> AsyncTransport:
    """Return a transport over the running loop's client for these options; connect if it is the first one.

    Args:
        options: how to connect.
        check: check the server's configuration when the client connects.

    Raises:
        GlideMQConnectionError: if the server cannot be reached now.
        ServerConfigurationError: if the server may evict jobs.
    """
    loop = asyncio.get_running_loop()
    for ended in [each for each in list(_by_loop) if each.is_closed()]:
        _by_loop.pop(ended, None)
    clients = _by_loop.setdefault(loop, {})
    key = options, check
    client = clients.get(key)
    if client is None or (client.transport is not None and client.transport.is_closed):
        client = clients[key] = _LoopClient()

    def release() -> AsyncTransport | None:
        """Count one user less; return the transport to close if it was the last one."""
        client.users -= 1
        if client.users:
            return None
        if clients.get(key) is client:
            del clients[key]
        return client.transport

    client.users += 1
    try:
        async with client.opening:
            if client.transport is None:
                client.transport = await AsyncTransport.connect(options, check=check)
        sharing = client.transport.shared(release, lambda source: connect_thread(options, source))
        sharing.server = options
        return sharing
    except BaseException:
        unused = release()
        if unused is not None:
            await unused.close()
        raise


class _ThreadClient:
    def __init__(self, transport: ThreadTransport) -> None:
        self.transport = transport
        self.users = 0


_of_threads: Final[dict[Hashable, _ThreadClient]] = {}
_lock = new_lock()


def connect_thread(options: ConnectionOptions, source: AsyncTransport | None = None) -> SharedThreadTransport:
    """Return a transport over the process's client for threads; connect if it is the first one.

    Args:
        options: how to connect.
        source: a transport of an event loop with the same options; its configuration and library are used.

    Raises:
        GlideMQConnectionError: if the server cannot be reached now.
    """
    with _lock:
        client = _of_threads.get(options)
        if client is None:
            made = ThreadTransport.for_options(options) if source is None else source.own_thread()
            client = _of_threads[options] = _ThreadClient(made)
        client.users += 1

    def release() -> None:
        with _lock:
            client.users -= 1
            if client.users:
                return
            if _of_threads.get(options) is client:
                del _of_threads[options]
        client.transport.close()

    return SharedThreadTransport(client.transport, release, None if source is None else source.interruptions)


class SharedThreadTransport:
    """A `BlockingTransport` over a shared client.

    Args:
        transport: the transport that owns the client.
        release: called once, at `close`.
        interruptions: record of outages; None uses the client's.
    """

    def __init__(
        self, transport: ThreadTransport, release: Callable[[], None], interruptions: Interruptions | None
    ) -> None:
        self._transport = transport
        self._release: Callable[[], None] | None = release
        self.interruptions = transport.interruptions if interruptions is None else interruptions

    def _open(self) -> ThreadTransport:
        if self._release is None:
            raise ClosedError("the connection was closed")
        return self._transport

    @property
    def is_cluster(self) -> bool:
        """See `BlockingTransport.is_cluster`."""
        return self._transport.is_cluster

    @property
    def config(self) -> Any:
        """The client's configuration."""
        return self._transport.config

    def call(self, call: Call[T]) -> T:
        """See `BlockingTransport.call`."""
        return self._open().call(call)

    def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """See `BlockingTransport.call_all`."""
        return self._open().call_all(calls)

    def command(self, *args: str | bytes) -> Any:
        """See `BlockingTransport.command`."""
        return self._open().command(*args)

    def send_reads(self, key: str | None, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """See `BlockingTransport.send_reads`."""
        return self._open().send_reads(key, commands)

    def call_before(
        self, call: Call[T], waits: Sequence[Sequence[str]], block: int, grace: int | None = None
    ) -> tuple[T, list[Any]]:
        """See `BlockingTransport.call_before`."""
        return self._open().call_before(call, waits, block, grace)

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """See `BlockingTransport.scan`."""
        return self._open().scan(pattern)

    def dedicated(self) -> ThreadTransport:
        """See `BlockingTransport.dedicated`."""
        return self._open().dedicated()

    def close(self) -> None:
        """See `BlockingTransport.close`; closes the client with its last transport."""
        release, self._release = self._release, None
        if release is not None:
            release()


def _after_fork() -> None:
    # The parent's clients must be neither closed nor garbage-collected in the child.
    _inherited.append((dict(_by_loop), dict(_of_threads)))
    _by_loop.clear()
    _of_threads.clear()


_inherited: list[object] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
