"""Lets a running worker serve partitions that are created after its start, and give up its blocking reads.

Heartbeats report the number of the layout. A worker of several lanes gets further ones. A worker that was opened for a
queue without partitions is replaced by one with lanes; the jobs that it runs keep their slots until they end. So is a
worker whose connection for blocking reads is claimed: lanes wait for wake-up channels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.layout import Layout
from glidemq_py._partitions.renewing import renewed_layout
from glidemq_py._partitions.stored import read_layout
from glidemq_py._worker.components import Parts, ServedQueue, WorkerComponents
from glidemq_py._worker.lanes import Lanes, open_lanes
from glidemq_py._worker.opening import consumer_name
from glidemq_py.errors import GlideMQError, GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._client.transport import JobTransport
    from glidemq_py._worker.lifecycle import Lifecycle

_log = get_logger(__name__)

_AGAIN_S: Final = 2.0
"""Pause after a connection for reads could not be given up, seconds."""


class LayoutFollower:
    """Follows the layouts of a worker's queues.

    Args:
        life: The worker.
        renamed: Called with the consumer name that the worker gets if it is replaced.
    """

    def __init__(self, life: Lifecycle, renamed: Callable[[str], None]) -> None:
        self._life = life
        self._renamed = renamed
        self._known: dict[str, int] = {}
        self._layouts: dict[str, Layout] = {}
        self._pending: dict[str, int] = {}
        self._leaves_read = False
        self._task: asyncio.Task[None] | None = None

    def seen(self, name: str, number: int) -> None:
        """Serve the partitions of a queue if the number of its layout is a new one."""
        if number != self._known.get(name, 0):
            self._pending[name] = number
        if self._pending or self._leaves_read:
            self._start()

    def leave_read(self) -> None:
        """Wait for wake-up channels from now on: another use has claimed the connection of the worker's reads."""
        self._leaves_read = True
        self._start()

    def _start(self) -> None:
        if self._life.is_closing:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow(), name="glidemq-partitions")

    async def follow(self, transport: JobTransport, keys: QueueKeys) -> None:
        """Serve the present partitions of a queue, for tests, whose workers have no heartbeats. Raises GlideMQError."""
        layout = await read_layout(transport, keys)
        self.seen(keys.name, 0 if layout is None else layout.number)
        if self._task is not None:
            await asyncio.wait({self._task})
        parts = cast("Parts | Lanes | None", self._life.parts)
        if isinstance(parts, Lanes):
            await parts.taken_over()

    async def close(self) -> None:
        """Stop following."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _follow(self) -> None:
        while self._pending:
            name, number = self._pending.popitem()
            try:
                if await self._serve(name):
                    self._known[name] = number
            except GlideMQValidationError as error:
                _log.error(
                    "queue %r: the worker closes when its running jobs have ended, as it cannot serve partitions: %s",
                    name, error,
                )  # fmt: skip
                self._life.close_because(error)
                return
            except GlideMQError as error:  # the next heartbeat tries again
                _log.warning("queue %r: the worker cannot serve the new partitions yet: %s", name, error)
        if self._leaves_read:
            try:
                await self._give_up_read()
            except GlideMQError as error:
                _log.warning("queue %r: the worker keeps its connection for reads: %s", self._life.name, error)
                asyncio.get_running_loop().call_later(_AGAIN_S, self._start)

    async def _give_up_read(self) -> None:
        life, opening = self._life, self._life.opening
        parts = cast("Parts | Lanes | None", life.parts)
        if parts is None or opening is None:
            return  # it is starting
        self._leaves_read = False
        if isinstance(parts, Lanes):
            return
        try:
            await self._replace(opening, parts)
        except BaseException:
            self._leaves_read = True
            raise

    async def _serve(self, name: str) -> bool:
        """Serve the partitions of a queue. Return False if the worker is starting: the next heartbeat tries again."""
        life, opening = self._life, self._life.opening
        parts = cast("Parts | Lanes | None", life.parts)
        if parts is None or opening is None:
            return False
        link = parts.lanes[0].link if isinstance(parts, Lanes) else parts.link
        layout = await renewed_layout(link.transport, QueueKeys(link.keys.prefix, name), self._layouts.get(name))
        if layout is None:
            return True
        self._layouts[name] = layout
        if not isinstance(parts, Lanes):
            await self._replace(opening, parts)
        elif not await parts.serve_layout(name, layout, accepting=not life.is_paused):
            return True
        _log.info("queue %r: the worker serves %d partitions now", name, layout.partitions)
        return True

    async def _replace(self, opening: WorkerComponents, parts: Parts) -> None:
        life, stack, consumer = self._life, AsyncExitStack(), consumer_name()
        only = ServedQueue(opening.keys, opening.queue_options, 1)
        opening = replace(opening, several=(only,), consumer=consumer, lifespan=None, context=parts.context)
        try:
            lanes = await open_lanes(opening, stack)
        except BaseException:
            await stack.aclose()
            raise
        lanes.fetching.on_unsupported = parts.fetching.on_unsupported
        lanes.take_over(parts)
        life.replace_parts(lanes, stack)
        self._renamed(consumer)
