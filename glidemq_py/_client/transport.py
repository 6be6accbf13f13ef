"""What the rest of the package may ask of a server connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from glidemq_py._client.interruptions import Interruptions
from glidemq_py._core.calls.packing import Call

__all__ = ["BlockingTransport", "ConnectionSource", "Transport"]

T = TypeVar("T")


class Transport(Protocol):
    """A connection of an event loop."""

    @property
    def interruptions(self) -> Interruptions:
        """What this connection, and those made from it, have noticed of a server that was away."""
        ...

    async def call(self, call: Call[T]) -> T:
        """Run a call of our library; loads the library if the server lacks it.

        A call that was certainly not executed (the server loads, fails over, moves the queue's slot) is sent again for
        as long as the request timeout; a call that was perhaps executed only if it is repeatable.

        Raises:
            GlideMQConnectionError: the server cannot be reached; the call did not happen.
            ServerNotReadyError: the server did not get ready within the request timeout; the call did not happen.
            AmbiguousResultError: the reply was lost; the call may have happened.
            ServerOutOfMemoryError: the server is at maxmemory and the call adds jobs.
            ScriptError: the function failed; names the Lua file and line.
            ClosedError: the connection was closed.
        """
        ...

    async def command(self, *args: str | bytes) -> Any:
        """Run a plain command, routed by its key. Raises as `call` does."""
        ...

    async def call_after(self, read: Sequence[str], call: Call[T], block: int) -> T:
        """Send a blocking ``read`` and ``call`` together: the call runs on the server the moment the read ends, be it
        by what it waited for or after ``block`` ms. What the read brings, or its failure, does not matter.

        For a dedicated connection. Raises as `call` does; a lost reply is not asked for again.
        """
        ...

    def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Keys that match a glob pattern, in batches, from every primary; for repairs, not for daily work."""
        ...

    async def dedicated(self) -> Transport:
        """A connection of its own to the same server, for reads that block."""
        ...

    def for_thread(self) -> BlockingTransport:
        """A connection of its own to the same server, for the thread that calls this. Raises GlideMQConnectionError."""
        ...

    async def close(self) -> None:
        """Close the connection if it is ours; idempotent."""
        ...

    def abandon(self) -> None:
        """Close it from outside its event loop, which is closed or does not run; idempotent."""
        ...


class BlockingTransport(Protocol):
    """The same for a thread."""

    @property
    def interruptions(self) -> Interruptions:
        """See `Transport.interruptions`."""
        ...

    def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        ...

    def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        ...

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """See `Transport.scan`."""
        ...

    def dedicated(self) -> BlockingTransport:
        """See `Transport.dedicated`."""
        ...

    def close(self) -> None:
        """See `Transport.close`."""
        ...


@runtime_checkable
class ConnectionSource(Protocol):
    """What opens connections of its own kind, such as the in-memory server; given where a URL could be."""

    def open_transport(self) -> Transport:
        """A connection for an event loop."""
        ...

    def open_blocking_transport(self) -> BlockingTransport:
        """A connection for a thread."""
        ...
