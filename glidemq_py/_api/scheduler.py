"""`Scheduler`: adds the jobs of a queue's schedulers in a process without a worker."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self

from glidemq_py._api.job_queue import Queue
from glidemq_py._features.schedulers.firing import SchedulerTask
from glidemq_py.errors import GlideMQError, GlideMQValidationError

__all__ = ["Scheduler"]

_POLL_S: Final = 1.0
"""A worker learns of changed schedulers when it fetches jobs; this class has to poll."""


class Scheduler:
    """Add the due jobs of a queue's schedulers.

    Every `Worker` does this too. Use this class if only workers of other languages run, or if jobs must be added while
    no worker runs.

    ``async with Scheduler(queue):`` runs during the block, ``await Scheduler(queue).run()`` until cancelled.

    Args:
        queue: The queue with the schedulers. Closing the scheduler does not close the queue.

    Raises:
        GlideMQValidationError: If ``queue`` is not a `Queue`.
    """

    def __init__(self, queue: Queue[Any, Any]) -> None:
        if not isinstance(queue, Queue):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("queue", queue, f"must be a Queue, not {type(queue).__name__}")
        self._queue = queue
        self._task: SchedulerTask | None = None

    async def start(self) -> None:
        """Connect and start.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
            GlideMQError: If the scheduler was already started.
        """
        if self._task is not None:
            raise GlideMQError("the scheduler was already started")
        link, quiet = await self._queue._connected(), not self._queue.options.events
        self._task = SchedulerTask(link=link, quiet=quiet, longest_s=_POLL_S)
        self._task.start()

    async def run(self) -> None:
        """Start, and run until cancelled."""
        async with self:
            await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Stop. Idempotent."""
        if self._task is not None:
            await self._task.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
