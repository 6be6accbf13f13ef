"""A `Transport` whose coroutines never suspend: it runs the coroutines of queues in a thread (runtime.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from glidemq_py._client.connect import BlockingConnection
from glidemq_py._client.failures import Interruptions
from glidemq_py._client.transport import BlockingTransport, ConnectionSource
from glidemq_py._core.calls import Call

if TYPE_CHECKING:
    from glidemq_py._client.blocking_transport import ThreadTransport
    from glidemq_py._client.library_source import Library

__all__ = ["DrivenTransport"]

T = TypeVar("T")


class DrivenTransport:
    """The asynchronous interface of a blocking transport."""

    __slots__ = ("_blocking",)

    def __init__(self, blocking: BlockingTransport) -> None:
        self._blocking = blocking

    @classmethod
    def connect(cls, connection: BlockingConnection) -> DrivenTransport:
        """Return a transport for the `connection` option of a user. Raises GlideMQConnectionError."""
        if isinstance(connection, ConnectionSource):
            return cls(connection.open_blocking_transport())
        # GLIDE is imported to connect, not before.
        from glidemq_py._client.blocking_transport import ThreadTransport

        return cls(ThreadTransport.connect(connection))

    @property
    def interruptions(self) -> Interruptions:
        """See `Transport.interruptions`."""
        return self._blocking.interruptions

    @property
    def server(self) -> Hashable | None:
        """Identifies the server if the connection was opened with options; None for a client of the user."""
        return getattr(self._blocking, "server", None)

    @property
    def config(self) -> Any:
        """The client's configuration; None in memory."""
        return getattr(self._blocking, "config", None)

    @property
    def library(self) -> Library:
        """The rendering of the function library that is called; only for connections of GLIDE."""
        return cast("ThreadTransport", self._blocking).library

    async def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        return self._blocking.call(call)

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        return self._blocking.command(*args)

    async def send_reads(self, key: str, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """See `Transport.send_reads`."""
        return self._blocking.send_reads(key, commands)

    async def call_after(self, read: Sequence[str], call: Call[T], block: int) -> T:
        """See `Transport.call_after`; here the call is sent after the read has returned."""
        await self.command(*read)
        return await self.call(call)

    @property
    def is_cluster(self) -> bool:
        """See `Transport.is_cluster`."""
        return self._blocking.is_cluster

    async def call_before(
        self, call: Call[T], waits: Sequence[Sequence[str]], block: int, grace: int | None = None
    ) -> tuple[T, list[Any]]:
        """See `Transport.call_before`."""
        return self._blocking.call_before(call, waits, block, grace)

    async def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """See `Transport.scan`."""
        for keys in self._blocking.scan(pattern):
            yield keys

    async def dedicated(self) -> DrivenTransport:
        """See `Transport.dedicated`."""
        return DrivenTransport(self._blocking.dedicated())

    def for_thread(self) -> BlockingTransport:
        """See `Transport.for_thread`."""
        return self._blocking.dedicated()

    async def close(self) -> None:
        """See `Transport.close`."""
        self._blocking.close()

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        self._blocking.close()
