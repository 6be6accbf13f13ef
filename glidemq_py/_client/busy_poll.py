"""Waiting awake for the answer of a lone call.

A call to a server on the same host is answered in less time than it takes to put a processor to sleep and wake it
again, and GLIDE passes the answer through two threads of its own. While one call is under way, and nothing else is,
the event loop therefore looks for the answer at every turn instead of sleeping until it is told. All other work of the
loop goes on as ever; what it costs is processor time of a loop that has nothing to do, `LONGEST` at most per call.

Where answers take longer than that (a server further away, a processor that is shared), it stops by itself: each answer
that did not come in time doubles the number of calls for which nothing is tried again.
"""

from __future__ import annotations

import asyncio
import os

__all__ = ["LONGEST", "BusyPoll"]

LONGEST = 200e-6
"""Seconds that a loop stays awake for one call."""
_MOST_SKIPPED = 10
"""As a power of two: so many calls at most go without, before the next trial."""


class BusyPoll:
    """Keeps the running event loop awake between `begin` and `end`.

    A process with one processor only never does so: the server, and GLIDE's threads, may need it.

    Args:
        wanted: False = never.
    """

    __slots__ = ("_awake", "_loop", "_misses", "_possible", "_posted", "_skip", "_until")

    def __init__(self, *, wanted: bool = True) -> None:
        self._possible = wanted and _processors() > 1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._awake = False
        self._posted = False
        self._until = 0.0
        self._misses = 0
        self._skip = 0

    def begin(self) -> None:
        """A call is about to be sent, the only one."""
        if not self._possible:
            return
        if self._skip:
            self._skip -= 1
            return
        loop = self._loop = asyncio.get_running_loop()
        self._awake = True
        self._until = loop.time() + LONGEST
        if not self._posted:
            self._posted = True
            loop.call_soon(self._turn)

    def end(self) -> None:
        """It was answered, or is no longer the only one."""
        if self._awake:
            self._awake = False
            self._misses = 0

    def _turn(self) -> None:
        loop = self._loop
        if self._awake and loop is not None:
            if loop.time() < self._until:
                loop.call_soon(self._turn)
                return
            self._awake = False
            self._skip = 1 << self._misses
            self._misses = min(self._misses + 1, _MOST_SKIPPED)
        self._posted = False


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
