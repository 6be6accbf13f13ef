"""The limit of the frames of a connection."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["FrameLimit"]


class FrameLimit:
    """At most a number of frames per window, which slides: frames of the window before count by its remaining part.

    Args:
        most: Number of frames.
        window: Length of the window, s.
        now: Returns the time, s.
    """

    __slots__ = ("_before", "_count", "_most", "_now", "_start", "_window")

    def __init__(self, most: int, window: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._window, self._now = most, window, now
        self._start, self._count, self._before = now(), 0, 0

    def allows(self) -> bool:
        """Count a frame; return False if it is one too many."""
        passed = self._now() - self._start
        if passed >= self._window:
            self._before = self._count if passed < 2 * self._window else 0
            self._start += passed // self._window * self._window
            self._count, passed = 0, passed % self._window
        if self._before * (1 - passed / self._window) + self._count >= self._most:
            return False
        self._count += 1
        return True
