"""One timer for the earliest time at which a job of the queue is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["DueTimer"]


class DueTimer:
    """Calls ``due`` at the earliest of the times it was set to.

    Args:
        due: Called on the event loop.
    """

    def __init__(self, due: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = due
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def set(self, milliseconds: int) -> None:
        """Call ``due`` after so many ms, unless it is set to an earlier time."""
        at = self._loop.time() + milliseconds / 1000
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._due()

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
