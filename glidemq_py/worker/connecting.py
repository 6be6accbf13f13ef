"""A worker's first connection: a server that is not there yet is waited for."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

from glidemq_py.client.connect import Connection
from glidemq_py.client.opening import open_transport
from glidemq_py.client.transport import Transport
from glidemq_py.errors import GlideMQConnectionError
from glidemq_py.logs import get_logger
from glidemq_py.wire.calls import reading
from glidemq_py.wire.keys import QueueKeys
from glidemq_py.worker.listeners import Listeners

__all__ = ["connect_patiently"]

_log = get_logger(__name__)

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0


async def connect_patiently(
    connection: Connection, keys: QueueKeys, life: AsyncExitStack, listeners: Listeners
) -> Transport:
    """A transport to a server that answers and has our library, tried for with growing, scattered pauses.

    ``life`` closes it; ``listeners`` hear of every failure as ``error``. Raises what is no matter of time, such as a
    refused library.
    """
    pause = _FIRST_PAUSE_S
    while True:
        try:
            transport = await open_transport(connection)
            life.push_async_callback(transport.close)
            await transport.call(reading.version(keys.meta))
            return transport
        except GlideMQConnectionError as error:
            await life.aclose()
            _log.warning("worker of queue %r: %s; trying again in %.1f s", keys.name, error, pause)
            listeners.tell("error", error)
        await asyncio.sleep(pause * (0.5 + random.random()))
        pause = min(pause * 2, _LAST_PAUSE_S)
