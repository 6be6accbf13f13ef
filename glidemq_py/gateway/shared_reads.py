"""`SharedRead`: reads of all queues, which many clients may request at the same time, and which cost a call per queue.

Each caller gets the result of a read that began after its request, so it sees what was changed before. One read runs at
a time, and all requests that arrive during it share the next one. Reads take at most a fifth of the time, so that a
client that repeats them does not delay the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, TypeVar

__all__ = ["KEPT_S", "SharedRead", "Totals"]

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


KEPT_S: Final = 10.0
"""How old the numbers may be before they are counted again."""
_WAIT_S: Final = 1.0
"""How long a check waits for new numbers before it is answered with the last ones."""


class Totals:
    """Counts at most once per `KEPT_S`, and one count at a time.

    Args:
        count: Counts the jobs of all queues, and returns {} if that failed.
    """

    def __init__(self, count: Callable[[], Awaitable[Mapping[str, int]]]) -> None:
        self._count = count
        self._found: Mapping[str, int] = {}
        self._counted_at: float | None = None
        self._counting: asyncio.Task[None] | None = None

    async def get(self) -> Mapping[str, int]:
        """Return the latest numbers; {} if none are known yet."""
        if self._counting is None and (self._counted_at is None or time.monotonic() - self._counted_at >= KEPT_S):
            self._counting = asyncio.create_task(self._run(), name="gateway-totals")
        if self._counting is not None:
            await asyncio.wait((self._counting,), timeout=_WAIT_S)
        return self._found

    async def close(self) -> None:
        """Stop counting. Idempotent."""
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.wait((self._counting,))

    async def _run(self) -> None:
        try:
            found = await self._count()
            if found:
                self._found = found
        finally:
            self._counted_at, self._counting = time.monotonic(), None
