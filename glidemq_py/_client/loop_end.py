"""Cleanup at the end of an event loop: close its connections and fail its overdue calls.

A loop that has ended cannot run the ``close`` of its clients. `asyncio.run`, `asyncio.Runner`, uvicorn, pytest-asyncio
and asgiref shut down the asynchronous generators of a loop before they close it, so a suspended generator serves as the
notification. A loop that is closed without that is detected when the next connection is opened in any loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator
from typing import Protocol

from glidemq_py._core.forks import new_lock

__all__ = ["LoopResource", "close_at_loop_end"]

_TICK_S = 5.0


class LoopResource(Protocol):
    """A connection that belongs to one event loop."""

    async def close(self) -> None:
        """Close the connection, in its loop; idempotent."""
        ...

    def abandon(self) -> None:
        """Close the connection after its loop was closed, or from outside the loop; idempotent."""
        ...

    def fail_overdue(self) -> None:
        """Fail calls whose reply is overdue. Called every `_TICK_S` seconds."""
        ...


class _LoopEnd:
    """The open connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.open: weakref.WeakSet[LoopResource] = weakref.WeakSet()
        self._ticking = False
        self._generator = _until_shutdown(self.open)
        # Advance it to its `yield`, so that the loop registers it.
        with contextlib.suppress(StopIteration):
            self._generator.asend(None).send(None)

    def add(self, resource: LoopResource) -> None:
        self.open.add(resource)
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        resources = list(self.open)
        for resource in resources:
            resource.fail_overdue()
        self._ticking = bool(resources)
        if resources:
            self._loop.call_later(_TICK_S, self._tick)

    def abandon(self) -> None:
        for resource in list(self.open):
            resource.abandon()


async def _until_shutdown(resources: weakref.WeakSet[LoopResource]) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        for resource in list(resources):
            await resource.close()


_ends: dict[asyncio.AbstractEventLoop, _LoopEnd] = {}
_lock = new_lock()


def close_at_loop_end(loop: asyncio.AbstractEventLoop, resource: LoopResource) -> None:
    """Close ``resource`` when the running loop, ``loop``, ends. Also abandon connections of loops already closed."""
    with _lock:
        ended = [_ends.pop(each) for each in list(_ends) if each.is_closed()]
        end = _ends.get(loop)
        if end is None:
            end = _ends[loop] = _LoopEnd(loop)
    for each in ended:
        each.abandon()
    end.add(resource)


def _after_fork() -> None:
    _inherited.append(dict(_ends))  # the parent's: must be neither closed nor garbage-collected here
    _ends.clear()


_inherited: list[object] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
