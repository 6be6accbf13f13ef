"""`SharedRead`: reads of all queues, which many clients may request at the same time, and which cost a call per queue.

Each caller gets the result of a read that began after its request, so it sees what was changed before. One read runs at
a time, and all requests that arrive during it share the next one. Reads take at most a fifth of the time, so that a
client that repeats them does not delay the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

__all__ = ["SharedRead"]

T = TypeVar("T")

_PAUSE_PART: Final = 4.0
"""Length of the pause after a read, as a multiple of the read's duration."""
_SHORT_S: Final = 0.005
"""A shorter read needs no pause."""
_MOST_PAUSE_S: Final = 2.0


class SharedRead(Generic[T]):
    """A read that concurrent callers share.

    Args:
        read: Reads.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._waiting: asyncio.Task[T] | None = None
        """The read that has not begun."""
        self._last: asyncio.Task[T] | None = None
        self._free_at = 0.0

    async def get(self) -> T:
        """Return the result of a read that begins after this call. Raises the errors of the read."""
        task = self._waiting
        if task is None:
            task = self._waiting = self._last = asyncio.create_task(self._run(self._last), name="gateway-shared-read")
            task.add_done_callback(_ignore_result)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Stop reading. Idempotent."""
        tasks = {task for task in (self._waiting, self._last) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, before: asyncio.Task[T] | None) -> T:
        if before is not None and not before.done():
            await asyncio.wait((before,))
        await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))
        self._waiting = None
        began = time.monotonic()
        try:
            return await self._read()
        finally:
            now = time.monotonic()
            took = now - began
            self._free_at = now + min(_MOST_PAUSE_S, _PAUSE_PART * took) if took >= _SHORT_S else now


def _ignore_result(task: asyncio.Task[T]) -> None:
    """Retrieve the error of a read whose callers have left."""
    if not task.cancelled():
        task.exception()
