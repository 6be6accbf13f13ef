"""A worker's first connection: retried while the server is down, is loading its data, or fails over."""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from glidemq_py._client.async_transport import open_transport
from glidemq_py._client.connect import Connection
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import reading
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._worker.listeners import Listeners
from glidemq_py.errors import ConnectionRejectedError, GlideMQConnectionError

__all__ = [
    "connect_patiently",
    "consumer_name",
]

_log = get_logger(__name__)
T = TypeVar("T")

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0


async def connect_patiently(
    connection: Connection,
    keys: QueueKeys,
    life: AsyncExitStack,
    listeners: Listeners,
    prepare: Callable[[Transport], Awaitable[T]],
) -> tuple[Transport, T]:
    """Connect, load the function library, and run ``prepare``; retry transient errors with growing pauses.

    Every transient error is logged as a WARNING and emitted as ``error`` to ``listeners``. ``life`` closes the
    transport.

    Returns:
        The transport and the return value of ``prepare``.

    Raises:
        ConnectionRejectedError: If the server rejects the connection, the password or the library.
    """
    pause, failed = _FIRST_PAUSE_S, False
    while True:
        try:
            transport = await open_transport(connection)
            life.push_async_callback(transport.close)
            await transport.call(reading.version(keys.meta))
            prepared = await prepare(transport)
            if failed:
                transport.interruptions.note()
            return transport, prepared
        except ConnectionRejectedError:
            await life.aclose()
            raise
        except GlideMQConnectionError as error:
            failed = True
            await life.aclose()
            _log.warning("queue %r: worker cannot start yet: %s; retrying in %.1f s", keys.name, error, pause)
            listeners.tell("error", error)
        await asyncio.sleep(pause * (0.5 + random.random()))
        pause = min(pause * 2, _LAST_PAUSE_S)


def consumer_name() -> str:
    """Return a unique consumer name. Node peers use `worker-...`, so recovery can tell the two kinds apart."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:48]
    return f"py-{host}-{os.getpid()}-{secrets.token_hex(4)}"
