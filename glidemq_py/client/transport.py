"""What the rest of the package may ask of a server connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol, TypeVar

from glidemq_py.wire.calls import Call

__all__ = ["BlockingTransport", "Transport"]

T = TypeVar("T")


class Transport(Protocol):
    """A connection of an event loop."""

    async def call(self, call: Call[T]) -> T:
        """Run a call of our library; loads the library where the server lacks it, and then runs it once more.

        Raises:
            GlideMQConnectionError: the server cannot be reached; the call did not happen.
            AmbiguousResultError: the reply was lost; the call may have happened.
            ServerOutOfMemoryError: the server is at maxmemory and the call adds jobs.
            ScriptError: the function failed; names the Lua file and line.
            ClosedError: the connection was closed.
        """
        ...

    async def command(self, *args: str | bytes) -> Any:
        """Run a plain command, routed by its key. Raises as `call` does."""
        ...

    def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Keys that match a glob pattern, in batches, from every primary; for repairs, not for daily work."""
        ...

    async def dedicated(self) -> Transport:
        """A connection of its own to the same server, for reads that block."""
        ...

    async def close(self) -> None:
        """Close the connection if it is ours; idempotent."""
        ...


class BlockingTransport(Protocol):
    """The same for a thread."""

    def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        ...

    def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        ...

    def close(self) -> None:
        """See `Transport.close`."""
        ...
