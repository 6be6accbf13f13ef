"""Busy polling: keep the event loop spinning while a single call is pending.

A server on the same host replies in less time than the operating system needs to suspend and resume a thread, and GLIDE
passes the reply through two threads of its own. While exactly one call is pending, the event loop therefore polls for
the reply at every iteration instead of blocking. Other work of the loop is not delayed. The cost is processor time of
an otherwise idle loop, at most `LONGEST` per call.

If replies take longer (a remote server, a shared processor), polling backs off: each reply that did not arrive in time
doubles the number of calls that are not polled for.
"""

from __future__ import annotations

import asyncio
import os

__all__ = ["LONGEST", "BusyPoll"]

LONGEST = 200e-6
"""Longest time to spin for one call, seconds."""
_MOST_SKIPPED = 10
"""Limit of the backoff: at most 2**10 calls are skipped before the next trial."""


class BusyPoll:
    """Keeps the running event loop spinning between `begin` and `end`.

    Disabled in a process that may use one processor only: the server and GLIDE's threads may need it.

    Args:
        wanted: False disables polling.
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
        """Start spinning, because the only pending call is about to be sent."""
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
        """Stop spinning, because the reply has arrived or another call was sent."""
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
