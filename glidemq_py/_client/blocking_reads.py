"""Connections for blocking reads."""

from __future__ import annotations

from typing import Any, Protocol

from glidemq_py._client.connect import glide_of
from glidemq_py._client.loop_transport import LoopTransport
from glidemq_py._client.shared_reads import SharedReader
from glidemq_py._client.transport import Transport


class ReadConnection(Protocol):
    """A connection for the reads of one reader, one after the other."""

    @property
    def is_cluster(self) -> bool:
        """See `Transport.is_cluster`."""
        ...

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        ...

    async def close(self) -> None:
        """See `Transport.close`; a read that waits raises `ClosedError`."""
        ...

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        ...


def shares_client(transport: Transport) -> bool:
    """Return whether other transports of the loop use the same client."""
    glide = glide_of(transport)
    return glide is not None and glide.server is not None


async def open_reader(transport: Transport) -> ReadConnection:
    """Return a connection for blocking reads.

    Args:
        transport: The reader's transport. If it shares its client, the connection is shared with other readers.

    Raises:
        GlideMQConnectionError: If the server cannot be reached.
    """
    if isinstance(transport, LoopTransport):
        transport = await transport.here()
    glide = glide_of(transport)
    if glide is None or glide.server is None:
        return await transport.dedicated()
    return SharedReader(transport, glide)
