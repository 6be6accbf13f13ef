"""Turn the `connection` option of a user into a transport, or a source of transports that share one client."""

from __future__ import annotations

from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.blocking_transport import ThreadTransport
from glidemq_py._client.connect import Connection, resolve_async
from glidemq_py._client.transport import ConnectionSource, Transport

__all__ = ["SharedClient", "open_transport"]


async def open_transport(connection: Connection, *, check: bool = True) -> Transport:
    """Return a transport of the running loop. Raises the errors of `resolve_async`.

    Args:
        connection: the user's option.
        check: check the server's configuration.
    """
    if isinstance(connection, ConnectionSource):
        return connection.open_transport()
    return await AsyncTransport.connect(connection, check=check)


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
        found = await resolve_async(connection)
        return cls(AsyncTransport(found.client, found.config, owned=found.owned, busy_poll=found.busy_poll))

    def open_transport(self) -> AsyncTransport:
        """See `ConnectionSource`."""
        return self._transport.shared()

    def open_blocking_transport(self) -> ThreadTransport:
        """See `ConnectionSource`; the transport has a client of its own."""
        return self._transport.for_thread()

    async def close(self) -> None:
        """Close the client, unless it was given by the user."""
        await self._transport.close()
