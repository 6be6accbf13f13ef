"""Jobs of all queues by state, for health checks, which are frequent: counted once for all checks of some seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

__all__ = ["KEPT_S", "Totals"]

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
