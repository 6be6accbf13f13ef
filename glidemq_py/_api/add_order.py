"""The order of the adds of one event loop to a queue whose partitions change.

An add that is refused is added again to another partition, while later ones may already go there directly. So adds that
begin after a change of the layout wait until those before it have ended. The adds of a key that may move have turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue

__all__ = ["AddOrder"]


class AddOrder:
    """Order of the adds of one event loop.

    Args:
        home: The queue of the user.
    """

    def __init__(self, home: Queue[Any, Any]) -> None:
        self._home = home
        self._layout: object = None
        """What routed the adds in progress: the queue's `PartitionedQueue`; None if it was a plain queue."""
        self._running = 0
        self._idle: asyncio.Future[None] | None = None
        self._entry = asyncio.Lock()
        self._entering = 0
        self._turns: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        self.rerouting = asyncio.Lock()
        """Held by the add that is routed again, one after the other."""

    async def begin(self) -> None:
        """Begin an add, after those that a former layout has routed. Follow it by `end`."""
        if self._layout is not self._home._partitions or self._entering:
            self._entering += 1
            try:
                async with self._entry:
                    await self._end_of_former()
                    self._running += 1
            finally:
                self._entering -= 1
        else:
            self._running += 1

    def resume(self) -> None:
        """Continue an add that was refused. Follow it by `end`."""
        self._running += 1

    def end(self) -> None:
        """End an add."""
        self._running -= 1
        if not self._running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def _end_of_former(self) -> None:
        while self._layout is not self._home._partitions:
            present = self._home._partitions
            if self._layout is None:  # adds of a plain queue are not counted, but its adder knows of them
                await (await self._home._adder_here()).close()
            while self._running:
                self._idle = asyncio.get_running_loop().create_future()
                await self._idle
            self._layout = present

    def is_in_turn(self, key: str) -> bool:
        """Return whether adds of this key have turns now."""
        return key in self._turns

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncGenerator[None]:
        """Wait until all former turns of this key have ended; the adds in the block are one turn."""
        lock, users = self._turns.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._turns[key]
