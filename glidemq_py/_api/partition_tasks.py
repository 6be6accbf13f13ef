"""Background tasks that serve a whole queue: one task per partition, also if it gets partitions later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from glidemq_py._client.failures import repeated_level
from glidemq_py._client.runtime import BackgroundTask
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import ClosedError, GlideMQError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue

_log = get_logger(__name__)

_RETRY_S: Final = 5.0


class PartitionTasks(BackgroundTask):
    """Runs a task for each partition of a queue, or one for a queue without partitions.

    Call `open` before `start`.

    Args:
        queue: The queue, which another client may give partitions.
        make: Makes the task of a partition. The first argument is its link.
        every: Interval at which the layout that the queue knows is compared, seconds; it is read if it is old. None:
            only after `check`.
    """

    def __init__(self, queue: Queue, make: Callable[[QueueLink], BackgroundTask], every: float | None = None) -> None:
        super().__init__(f"partitions-{queue.name}")
        self._queue, self._make, self._every = queue, make, every
        self._asked = asyncio.Event()
        self._tasks: dict[tuple[str, bool], BackgroundTask] = {}
        """By name of the partition, and whether it is one: the queue that becomes partition 0 gets another task."""

    @property
    def tasks(self) -> list[BackgroundTask]:
        """The tasks of all partitions."""
        return list(self._tasks.values())

    async def open(self) -> None:
        """Connect the queue, and make the tasks. Raises GlideMQConnectionError, ClosedError."""
        await self._queue._plain_link()
        await self._follow()

    def check(self) -> None:
        """Read the layout now: another client may have created partitions."""
        self._asked.set()

    def start(self) -> None:
        """Start the tasks in the running event loop."""
        for task in self._tasks.values():
            task.start()
        super().start()

    async def _repeat(self) -> None:
        pause = self._every
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._asked.wait()
            pause, is_asked = self._every, self._asked.is_set()
            self._asked.clear()
            try:
                await self._queue._check_layout(always=is_asked)
                for task in await self._follow():
                    task.start()
            except ClosedError:
                return
            except GlideMQError as error:
                level = repeated_level(self._queue._transport, error)
                _log.log(level, "queue %r: reading its partitions failed: %s; retried", self._queue.name, error)
                pause = _RETRY_S

    async def _follow(self) -> list[BackgroundTask]:
        """End the task of a queue that has got partitions; return new tasks, which are not started yet."""
        links = await self._queue._links()
        wanted = {(link.keys.name, link.partition is not None): link for link in links}
        for key in [key for key in self._tasks if key not in wanted]:
            await self._tasks[key].close()
            del self._tasks[key]
        made = {key: self._make(link) for key, link in wanted.items() if key not in self._tasks}
        self._tasks |= made
        return list(made.values())

    async def close(self) -> None:
        """Stop the tasks and wait for their end."""
        await super().close()
        await asyncio.gather(*(task.close() for task in self._tasks.values()))
