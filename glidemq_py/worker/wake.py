"""Waiting for a wake-up: a blocking read in the second consumer group (docs/reference/functions.md, "Waking").

The read takes nothing: jobs are taken by exchange alone. It is made on a connection of its own, because a blocked
read stands in the way of everything else on its connection; closing that connection ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
import random

from glidemq_py.client.transport import Transport
from glidemq_py.errors import ClosedError, GlideMQError
from glidemq_py.job.link import QueueLink
from glidemq_py.worker.exchange import ExchangeLoop

__all__ = ["WakeReader"]

_log = logging.getLogger(__name__)

_GROUP = "wakers"
_CONSUMER = "w"
_BLOCK_MS = 1_000
"""An idle worker looks at least this often, whatever it was told: a lost wake-up costs a second."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 1.0


class WakeReader:
    """Reads while the exchange loop is idle, and tells it when there may be something."""

    def __init__(self, link: QueueLink, exchange: ExchangeLoop) -> None:
        self._link = link
        self._exchange = exchange
        self._transport: Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._watch(), name=f"glidemq-wake-{self._link.keys.name}")

    async def _watch(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            await self._exchange.idle.wait()
            try:
                woken = await self._read()
                pause = _FIRST_PAUSE_S
            except ClosedError:
                if self._closed:
                    return
                self._transport = None
                woken = False
            except GlideMQError as error:
                # Most often a missing group (FLUSHALL): the next exchange makes it anew.
                _log.debug("queue %r: wake read: %s", self._link.keys.name, error)
                await asyncio.sleep(pause * (0.5 + random.random()))
                pause = min(pause * 2, _LAST_PAUSE_S)
                woken = False
            if woken and self._exchange.free <= 0:
                await self._pass_on()
            self._exchange.look_for_jobs()

    async def _read(self) -> bool:
        if self._transport is None:
            self._transport = await self._link.transport.dedicated()
        keys = self._link.keys
        reply = await self._transport.command(
            "XREADGROUP", "GROUP", _GROUP, _CONSUMER, "COUNT", "1", "BLOCK", str(_BLOCK_MS), "NOACK",
            "STREAMS", keys.stream, keys.wake, ">", ">",
        )  # fmt: skip
        return bool(reply)

    async def _pass_on(self) -> None:
        """Every slot got busy while we waited: the wake-up is somebody else's."""
        try:
            await self._link.transport.command("XADD", self._link.keys.wake, "MAXLEN", "~", "64", "*", "w", "1")
        except GlideMQError as error:
            _log.debug("queue %r: a wake-up could not be passed on: %s", self._link.keys.name, error)

    async def close(self) -> None:
        """End the read by closing its connection."""
        self._closed = True
        if self._transport is not None:
            await self._transport.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
