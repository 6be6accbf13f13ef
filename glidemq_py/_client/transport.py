"""Protocols of server connections, and the `connection` option of a user: its types and validation, without connecting.

GLIDE takes longer to import than the rest of this package together. So a program imports GLIDE when it connects
(async_client.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NewType, Protocol, TypeVar, cast, runtime_checkable

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.embedded import shared_embedded
from glidemq_py._client.failures import Interruptions
from glidemq_py._client.project import project_url
from glidemq_py._client.threads import in_thread
from glidemq_py._core.calls import Call
from glidemq_py.errors import SECRET, GlideMQValidationError

if TYPE_CHECKING:
    import glide

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

    async def call_with(
        self, call: Call[T], waits: Sequence[Sequence[str]], block: int, grace: int | None = None,
        read: Sequence[str] | None = None,
    ) -> tuple[T, list[Any]]:  # fmt: skip
        """Send ``call`` and behind it commands without keys, or before it a blocking read, over one connection.

        In a cluster, commands behind a call go to the primary of its key, but the call may still be redirected to
        another node; compare its node id with ``CLUSTER MYID``. The server runs a call behind a read immediately after
        the read ends, either because data arrived or after ``block`` ms.

        For a dedicated connection. Raises the errors of `call`; a call whose reply was lost is not retried.

        Args:
            call: The call.
            waits: Commands that may block for ``block`` ms together.
            block: Longest time of the commands, ms.
            grace: How much later the reply may come, ms; at most, and None is, the request timeout of the connection.
            read: The read to send before the call, whose reply or error is ignored; then there are no ``waits``.

        Returns:
            The reply to the call, and one reply per command in ``waits``: a GlideMQError for a command that failed.
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


URL_VARIABLE = "GLIDEMQ_URL"
"""Environment variable read if no connection is given."""

if TYPE_CHECKING:
    GlideClient = glide.GlideClient | glide.GlideClusterClient
else:  # names for `typing.get_type_hints`, which must not import GLIDE either
    GlideClient = NewType("GlideClient", object) | NewType("GlideClusterClient", object)

ServerConnection = str | ConnectionOptions | GlideClient | None
"""A URL, options, an existing GLIDE client (never closed by us), or None: `GLIDEMQ_URL`, else the project's
server (`glidemq dev`), else a private one."""

Connection = ServerConnection | ConnectionSource
"""A connection given by a user: how to reach a server, or an object that creates its own transports."""

BlockingConnection = str | ConnectionOptions | ConnectionSource | None
"""The same for the blocking API, which has no use for a client of the caller."""


def check_connection(connection: object, *, blocking: bool = False) -> None:
    """Reject a `connection` value that can never work, without connecting.

    Args:
        connection: the value.
        blocking: True for the blocking API, which connects by itself.

    Raises:
        GlideMQValidationError: if it is not a URL, options or a client; or if `GLIDEMQ_URL` is used and is not a URL.
    """
    if isinstance(connection, ConnectionSource):
        return
    if connection is not None or os.environ.get(URL_VARIABLE):
        if blocking and (_is_client_of("glide", connection) or _is_client_of("glide_sync", connection)):
            raise GlideMQValidationError(
                "connection", SECRET,
                "is a GLIDE client; the blocking API makes its own, in an event loop that all its objects share: pass "
                "a URL or ConnectionOptions",
            )  # fmt: skip
        resolve(cast("ServerConnection", connection))


def resolve(connection: ServerConnection) -> ConnectionOptions | GlideClient:
    """Return the options for the given value, or the client itself. May start a server (blocks for 10 to 300 ms)."""
    if isinstance(connection, ConnectionOptions):
        return connection
    if _is_client_of("glide", connection):
        return cast("GlideClient", connection)
    if isinstance(connection, str):
        return ConnectionOptions.from_url(connection)
    if connection is not None:
        raise _invalid(connection)
    return ConnectionOptions.from_url(default_url())


def known_url(url: str | None = None) -> str | None:
    """Return a given URL, else `GLIDEMQ_URL`, else that of the project's server, else None.

    Raises:
        EmbeddedServerError: if the project's server does not start.
    """
    return url or os.environ.get(URL_VARIABLE) or project_url()


def default_url() -> str:
    """Return the URL that is used without a connection: a known one, else that of a private server.

    Raises:
        EmbeddedServerError: if it does not start.
    """
    return known_url() or shared_embedded().url


def _invalid(connection: object) -> GlideMQValidationError:
    problem = f"must be a URL, ConnectionOptions or a GLIDE client, not {type(connection).__name__}"
    if isinstance(connection, Mapping):
        problem += "; pass options as keyword arguments"
    return GlideMQValidationError("connection", SECRET, problem)


def _is_client_of(package: str, client: object) -> bool:
    module = sys.modules.get(package)  # no client exists before its package is imported
    return isinstance(client, (getattr(module, "GlideClient", ()), getattr(module, "GlideClusterClient", ())))


_SHARED: Final = "glidemq_py._client.shared_clients"
_imported: set[str] = set()
"""Modules of GLIDE's clients whose import is complete."""


async def _import(module: str) -> None:
    """Import a module in a thread: GLIDE's take tenths of a second, which must not block the event loop."""
    if module not in _imported:
        await in_thread(import_module, module)
        _imported.add(module)


async def open_transport(connection: Connection, *, check: bool = True) -> Transport:
    """Return a transport of the running loop. The first one of a process imports GLIDE, in a thread.

    All transports of the loop with the same options share one client, unless these disable it.

    Args:
        connection: the user's option.
        check: check the server's configuration.

    Raises:
        GlideMQConnectionError: if the server cannot be reached now.
        ConnectionRejectedError: if the server rejects this configuration; the subclass names the cause.
        ConnectionRejectedError: if the server may evict jobs.
    """
    if isinstance(connection, ConnectionSource):
        return connection.open_transport()
    await _import(_SHARED)
    # Starting the embedded server blocks, so it runs in a thread.
    starts = connection is None or isinstance(connection, str)
    found = await in_thread(resolve, connection) if starts else resolve(connection)
    transport: Transport = await cast("Any", sys.modules[_SHARED]).connect(found, check=check)
    return transport
