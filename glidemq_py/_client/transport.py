"""Protocols of server connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from glidemq_py._client.failures import Interruptions
from glidemq_py._core.calls import Call

T = TypeVar("T")


class JobTransport(Protocol):
    """The part of a connection that jobs use: single calls, commands and reads."""

    async def call(self, call: Call[T]) -> T:
        """Run a call of our library; load the library if the server lacks it.

        A call that was certainly not executed (the server is loading, failing over, or moving the queue's slot) is
        retried until the request timeout; a call that was possibly executed is retried only if it is repeatable. Over
        the connection of a worker, repeatable calls are retried until the locks of its jobs could have expired.

        Raises:
            GlideMQConnectionError: if the server cannot be reached; the call was not executed.
            ServerNotReadyError: if the server was not ready within the request timeout; the call was not executed.
            AmbiguousResultError: if the reply was lost; the call may have been executed.
            ServerOutOfMemoryError: if the server is at maxmemory and the call adds jobs.
            ScriptError: if the function failed; names the Lua file and line.
            ClosedError: if the connection was closed.
        """
        ...

    async def command(self, *args: str | bytes) -> Any:
        """Run a plain command, routed by its key. Raises the errors of `call`."""
        ...

    async def send_reads(self, key: str | None, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """Send commands that only read together, to the primary of ``key``; all their keys are in its slot.

        With the key None, the first argument of each command is its only key, and the keys may be in several slots:
        one round trip per primary. The server may serve other clients between the commands. They are all repeated, as a
        repeatable `call` is, if replies are lost or the server is not ready.

        Returns:
            One reply per command: a GlideMQError for a command that failed.

        Raises:
            GlideMQError: as `call`, if there are no replies.
        """
        ...


class Transport(JobTransport, Protocol):
    """A connection of an event loop."""

    @property
    def interruptions(self) -> Interruptions:
        """Recorded outages of the server, shared by this connection and those derived from it."""
        ...

    async def call_after(self, read: Sequence[str], call: Call[T], block: int) -> T:
        """Send a blocking ``read`` and ``call`` together.

        The server runs the call immediately after the read ends, either because data arrived or after ``block`` ms.
        The reply or error of the read is ignored.

        For a dedicated connection. Raises the errors of `call`; a call whose reply was lost is not retried.
        """
        ...

    async def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """Run several calls, sent together; return their replies.

        The server may serve other clients between them. After a call that failed and was retried, repeatable calls are
        repeated, so that they run in order. In a cluster, calls of different slots have no order.

        Raises:
            GlideMQError: as `call`, for the first call that fails. Later calls may have been executed.
        """
        ...

    @property
    def is_cluster(self) -> bool:
        """Whether the server is a cluster."""
        ...

    async def call_before(
        self, call: Call[T], waits: Sequence[Sequence[str]], block: int, grace: int | None = None
    ) -> tuple[T, list[Any]]:
        """Send ``call`` and behind it commands without keys, over one connection to the primary of the call's key.

        In a cluster the call may still be redirected to another node; compare its node id with ``CLUSTER MYID``.

        For a dedicated connection. Raises the errors of `call`; a call whose reply was lost is not retried.

        Args:
            call: The call.
            waits: Commands that may block for ``block`` ms together.
            block: Longest time of the commands, ms.
            grace: How much later the reply may come, ms; at most, and None is, the request timeout of the connection.

        Returns:
            The reply to the call, and one reply per command: a GlideMQError for a command that failed.
        """
        ...

    def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Yield batches of keys that match a glob pattern, from every primary. For repairs only: it reads all keys."""
        ...

    async def dedicated(self) -> Transport:
        """Return a separate connection to the same server, for blocking reads."""
        ...

    async def elsewhere(self) -> Transport:
        """Return a connection of the running loop to the same server, for a loop in another thread.

        Raises:
            GlideMQConnectionError: if the server cannot be reached.
        """
        ...

    async def close(self) -> None:
        """Close the connection, unless it was given by the user; idempotent."""
        ...

    def abandon(self) -> None:
        """Close the connection from outside its event loop, which is closed or not running; idempotent."""
        ...


@runtime_checkable
class ConnectionSource(Protocol):
    """An object that opens its own kind of connections, such as the in-memory server; accepted instead of a URL."""

    def open_transport(self) -> Transport:
        """Return a connection for an event loop."""
        ...
