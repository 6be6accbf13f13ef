"""From what a user gives as `connection` to a transport."""

from __future__ import annotations

from glidemq_py.client.async_transport import AsyncTransport
from glidemq_py.client.connect import Connection
from glidemq_py.client.transport import ConnectionSource, Transport

__all__ = ["open_transport"]


async def open_transport(connection: Connection) -> Transport:
    """A transport of the running loop. Raises GlideMQConnectionError."""
    if isinstance(connection, ConnectionSource):
        return connection.open_transport()
    return await AsyncTransport.connect(connection)
