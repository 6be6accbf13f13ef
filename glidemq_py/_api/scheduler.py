"""`Scheduler`: fires the schedulers of a queue in a process that runs no jobs of it."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self

from glidemq_py._api.queue import Queue
from glidemq_py._features.schedulers.maintenance import SchedulerTask
from glidemq_py.errors import GlideMQError, GlideMQValidationError

__all__ = ["Scheduler"]

_LOOK_S: Final = 1.0
"""A worker hears of changes with its jobs; here somebody has to look."""


class Scheduler:
    """Fires the schedulers of a queue while it is open. Every `Worker` does that too; this is for the case that no
    worker of ours runs, or that jobs are to be added while no worker is up.

    ``async with Scheduler(queue):`` fires while the block lasts, ``await Scheduler(queue).run()`` until cancelled.

    Args:
        queue: whose schedulers. It stays open when this is closed.

    Raises:
        GlideMQValidationError: it is no `Queue`.
    """

    def __init__(self, queue: Queue[Any, Any]) -> None:
        if not isinstance(queue, Queue):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("queue", queue, f"must be a Queue, not {type(queue).__name__}")
        self._queue = queue
        self._duty: SchedulerTask | None = None

    async def start(self) -> None:
        """Connect and begin. Raises GlideMQConnectionError; GlideMQError if it has been started."""
        if self._duty is not None:
            raise GlideMQError("the scheduler has been started already")
        link, quiet = await self._queue._connected(), not self._queue.options.events
        self._duty = SchedulerTask(link=link, quiet=quiet, longest_s=_LOOK_S)
        self._duty.start()

    async def run(self) -> None:
        """Fire until cancelled."""
        async with self:
            await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Stop; idempotent."""
        if self._duty is not None:
            await self._duty.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
