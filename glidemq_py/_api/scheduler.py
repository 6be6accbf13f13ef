"""`Scheduler`: fires the schedulers of a queue in a process that runs no worker."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self

from glidemq_py._api.queue import Queue
from glidemq_py._features.schedulers.maintenance import SchedulerTask
from glidemq_py.errors import GlideMQError, GlideMQValidationError

__all__ = ["Scheduler"]

_POLL_S: Final = 1.0
"""Maximum pause between polls: unlike a worker, this process is not notified of changed schedulers."""


class Scheduler:
    """Fires the schedulers of a queue while it is open.

    Every `Worker` does this too. Use a `Scheduler` if no Python worker of the queue runs, or if scheduled jobs must be
    added while all workers are down.

    ``async with Scheduler(queue):`` fires until the block ends, ``await Scheduler(queue).run()`` until cancelled.

    Args:
        queue: the queue. Closing the scheduler does not close the queue.

    Raises:
        GlideMQValidationError: ``queue`` is not a `Queue`.
    """

    def __init__(self, queue: Queue[Any, Any]) -> None:
        if not isinstance(queue, Queue):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("queue", queue, f"must be a Queue, not {type(queue).__name__}")
        self._queue = queue
        self._task: SchedulerTask | None = None

    async def start(self) -> None:
        """Connect and start firing.

        Raises:
            GlideMQConnectionError: the connection failed.
            GlideMQError: the scheduler was already started.
        """
        if self._task is not None:
            raise GlideMQError("the scheduler was already started")
        link, quiet = await self._queue._connected(), not self._queue.options.events
        self._task = SchedulerTask(link=link, quiet=quiet, longest_s=_POLL_S)
        self._task.start()

    async def run(self) -> None:
        """Start, and run until canceled."""
        async with self:
            await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Stop firing. Idempotent."""
        if self._task is not None:
            await self._task.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
