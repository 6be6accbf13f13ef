"""The order in which the jobs of a connection arrive in a queue, although they take different ways."""

from __future__ import annotations

import asyncio
import enum
from typing import Self

__all__ = ["Place", "PushOrder", "Way"]


class Way(enum.Enum):
    """How a job is added. Jobs that take the same way arrive in their order, except those that go alone."""

    TOGETHER = "together with others"
    DURABLE = "together with other durable ones"
    ALONE = "in calls of its own"


class _Passing:
    __slots__ = ("count", "is_empty", "way")

    def __init__(self, way: Way) -> None:
        self.way = way
        self.count = 0
        self.is_empty: asyncio.Future[None] | None = None


class Place:
    """The place of a job among those of its connection; as a context manager, it is left at the end of the block."""

    __slots__ = ("_order", "_queue")

    def __init__(self, order: PushOrder, queue: str) -> None:
        self._order: PushOrder | None = order
        self._queue = queue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Let later jobs follow: this one was added, or will not be. Idempotent."""
        order, self._order = self._order, None
        if order is not None:
            order._leave(self._queue)


class PushOrder:
    """Lets a job wait for earlier ones of its queue that take another way.

    Use it within a lock: `enter` for one job at a time.
    """

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[str, _Passing] = {}

    def enter_now(self, queue: str, way: Way) -> Place | None:
        """Return the place of a job that can be sent at once; None if it must wait."""
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = _Passing(way)
        elif found.way is not way or found.is_empty is not None:
            return None
        found.count += 1
        return Place(self, queue)

    async def enter(self, queue: str, way: Way) -> Place:
        """Wait until a job can be sent."""
        found = self._queues.get(queue)
        if found is not None and (found.way is not way or way is Way.ALONE):
            found.is_empty = asyncio.get_running_loop().create_future()
            await found.is_empty
            found = None
        if found is None:
            found = self._queues[queue] = _Passing(way)
        found.count += 1
        return Place(self, queue)

    def _leave(self, queue: str) -> None:
        found = self._queues[queue]
        found.count -= 1
        if not found.count:
            del self._queues[queue]
            if found.is_empty is not None and not found.is_empty.done():
                found.is_empty.set_result(None)
