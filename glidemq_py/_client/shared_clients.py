"""Clients that several objects share: one per event loop and server.

Every `Queue`, `Worker` or `FlowProducer` with the same connection options gets a transport of its own over a shared
client. The client is closed with its last transport. A blocking read delays all other calls of its client, so it needs
a separate one (`Transport.dedicated`).
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Final

from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.direct import accelerated
from glidemq_py._client.transport import Connection, ConnectionSource, GlideClient, Transport
from glidemq_py._core.forks import keep


class _LoopClient:
    """The shared client of one event loop, and the number of transports over it."""

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.users = 0
        self.transport: AsyncTransport | None = None


_LoopKey = tuple[ConnectionOptions, bool]
_by_loop: Final[dict[asyncio.AbstractEventLoop, dict[_LoopKey, _LoopClient]]] = {}


async def connect(found: ConnectionOptions | GlideClient, *, check: bool) -> Transport:
    """Return a transport of the running loop. Raises the errors of `open_transport`."""
    if isinstance(found, ConnectionOptions) and found.share_clients:
        return accelerated(await connect_shared(found, check=check))
    return accelerated(await AsyncTransport.connect(found, check=check))


class SharedClient:
    """A `ConnectionSource` whose transports share one client of the running loop. Create it with `open`.

    Args:
        transport: a transport over the client.
    """

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    @classmethod
    async def open(cls, connection: Connection) -> ConnectionSource:
        """Connect, or return the connection if it is already a source. Raises GlideMQConnectionError."""
        if isinstance(connection, ConnectionSource):
            return connection
        return cls(await AsyncTransport.connect(connection))

    def open_transport(self) -> Transport:
        """See `ConnectionSource`."""
        return accelerated(self._transport.shared())

    async def close(self) -> None:
        """Close the client, unless it was given by the user."""
        await self._transport.close()


async def connect_shared(
    options: ConnectionOptions, *, check: bool, source: AsyncTransport | None = None
) -> AsyncTransport:
    """Return a transport over the running loop's client for these options; connect if it is the first one.

    Args:
        options: how to connect.
        check: check the server's configuration when the client connects.
        source: a transport of another loop with the same options, whose library and record of outages are used.

    Raises:
        GlideMQConnectionError: if the server cannot be reached now.
        ConnectionRejectedError: if the server may evict jobs.
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
                library = None if source is None else source.library
                client.transport = await AsyncTransport.connect(options, library=library, check=check)
        sharing = client.transport.shared(release, None if source is None else source.interruptions)
        sharing.server = options
        sharing.connect_elsewhere = partial(connect_shared, options, check=False)
        return sharing
    except BaseException:
        unused = release()
        if unused is not None:
            await unused.close()
        raise


def _after_fork() -> None:
    keep(dict(_by_loop))
    _by_loop.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
