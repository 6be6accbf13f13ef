"""The `connection` option of a user: its types and its validation, without connecting and without importing GLIDE.

GLIDE takes longer to import than the rest of this package together. So a program imports GLIDE when it connects
(async_client.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NewType, cast

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.embedded import shared_embedded
from glidemq_py._client.threads import in_thread
from glidemq_py._client.transport import ConnectionSource, Transport
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.errors.base import SECRET

if TYPE_CHECKING:
    import glide

URL_VARIABLE = "GLIDEMQ_URL"
"""Environment variable read if no connection is given."""

if TYPE_CHECKING:
    GlideClient = glide.GlideClient | glide.GlideClusterClient
else:  # names for `typing.get_type_hints`, which must not import GLIDE either
    GlideClient = NewType("GlideClient", object) | NewType("GlideClusterClient", object)

ServerConnection = str | ConnectionOptions | GlideClient | None
"""A URL, options, an existing GLIDE client (never closed by us), or None: `GLIDEMQ_URL`, else an embedded server."""

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
    """Return the options for the given value, or the client itself. May start the embedded server (blocks ~10 ms)."""
    if isinstance(connection, ConnectionOptions):
        return connection
    if _is_client_of("glide", connection):
        return cast("GlideClient", connection)
    if isinstance(connection, str):
        return ConnectionOptions.from_url(connection)
    if connection is not None:
        raise _invalid(connection)
    url = os.environ.get(URL_VARIABLE)
    return ConnectionOptions.from_url(url) if url else ConnectionOptions.from_url(shared_embedded().url)


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
