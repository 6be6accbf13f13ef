"""Base classes of background tasks: they repeat some work until they are closed."""

from __future__ import annotations

import asyncio
import contextlib
import random

from glidemq_py._client.runtime import stop_task
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQError

__all__ = ["BackgroundTask", "PeriodicTask"]


class BackgroundTask:
    """An asyncio task that runs from `start` to `close`.

    Args:
        name: suffix of the task's name.
    """

    def __init__(self, name: str) -> None:
        self._name = f"glidemq-{name}"
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task in the running event loop."""
        self._task = asyncio.create_task(self._repeat(), name=self._name)

    def end_with_loop(self) -> None:
        """Allow the started task to be pending when its event loop is closed: asyncio then logs no error."""
        with contextlib.suppress(AttributeError):  # a task of another class, made by a task factory
            self._task._log_destroy_pending = False  # type: ignore[union-attr]

    async def _repeat(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Stop the task and wait for its end."""
        if self._task is not None:
            await stop_task(self._task)


class PeriodicTask(BackgroundTask):
    """A task that calls `look` periodically, with 10% jitter so that workers do not poll in step.

    Args:
        name: part of the task's name.
        queue: name of the queue, for the task's name and the log.
        what: description of the work, for the log.
        every: interval between calls, seconds.
        at_once: make the first call immediately, instead of after one interval.
    """

    def __init__(self, name: str, *, queue: str, what: str, every: float, at_once: bool = True) -> None:
        super().__init__(f"{name}-{queue}")
        self._queue = queue
        self._what = what
        self._every = every
        self._pause = 0.0 if at_once else every

    async def run_once(self) -> object:
        """Do the work once. It may set ``_pause`` to change the next interval. Raises GlideMQError."""
        raise NotImplementedError

    async def _repeat(self) -> None:
        while True:
            if self._pause:
                await asyncio.sleep(self._pause * random.uniform(0.9, 1.1))
            self._pause = self._every
            try:
                await self.run_once()
            except GlideMQError as error:
                log = get_logger(type(self).__module__)
                log.warning("queue %r: %s: %s", self._queue, self._what, error)
