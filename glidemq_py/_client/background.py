"""What is done over and over beside everything else: in a task of its own, until it is closed."""

from __future__ import annotations

import asyncio
import random

from glidemq_py._client.runtime import stop_task
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQError

__all__ = ["BackgroundTask", "PeriodicTask"]


class BackgroundTask:
    """Something that runs from `start` to `close`.

    Args:
        name: of its task.
    """

    def __init__(self, name: str) -> None:
        self._name = f"glidemq-{name}"
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._repeat(), name=self._name)

    async def _repeat(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            await stop_task(self._task)


class PeriodicTask(BackgroundTask):
    """A look now and then, give or take a tenth, so that those who started together do not look together.

    Args:
        name: of its task.
        queue: whose duty it is, and ``what`` it does, for the log.
        every: how long from one look to the next, seconds.
        at_once: the first look is at the start.
    """

    def __init__(self, name: str, *, queue: str, what: str, every: float, at_once: bool = True) -> None:
        super().__init__(f"{name}-{queue}")
        self._queue = queue
        self._what = what
        self._every = every
        self._pause = 0.0 if at_once else every

    async def look(self) -> object:
        """What is to be done. It may change ``_pause``, for once. Raises GlideMQError."""
        raise NotImplementedError

    async def _repeat(self) -> None:
        while True:
            if self._pause:
                await asyncio.sleep(self._pause * random.uniform(0.9, 1.1))
            self._pause = self._every
            try:
                await self.look()
            except GlideMQError as error:
                log = get_logger(type(self).__module__)
                log.warning("queue %r: %s: %s", self._queue, self._what, error)
