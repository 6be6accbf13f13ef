"""How replies reach the event loops that wait for them.

**Delivery.** GLIDE's core writes the replies for all clients of a process into one pipe, and GLIDE reads that pipe in
one event loop: the one that created the first client. If that loop stops, is closed or blocks, no other loop receives
replies, not even timeouts. Here every loop that has a client reads the pipe, and passes each reply on to the loop that
waits for it.

**Busy polling.** A server on the same host replies in less time than the operating system needs to suspend and resume a
thread, and GLIDE passes the reply through two threads of its own. While exactly one call is pending, the event loop
therefore polls for the reply at every iteration instead of blocking. Other work of the loop is not delayed. The cost is
processor time of an otherwise idle loop, at most `LONGEST` per call. If replies take longer (a remote server, a shared
processor), polling backs off: each reply that did not arrive in time doubles the number of calls that are not polled
for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from typing import Any

from glidemq_py._client.async_client import glide
from glidemq_py._core.forks import new_lock

__all__ = ["LONGEST", "BusyPoll", "read_replies_in"]

_glide: Any = glide.glide_client
_NEEDED = (
    "_CompatFuture", "_async_pipe_read_fd", "_drain_stale_pipe_frames", "_on_async_pipe_readable", "_resolve_future",
)  # fmt: skip
_installed = False
_installing = new_lock()
_reading = new_lock()


def read_replies_in(loop: asyncio.AbstractEventLoop) -> None:
    """Read GLIDE's replies in this loop, which must be running and have a client. Idempotent."""
    if not _install():
        return
    descriptor: int = _glide._async_pipe_read_fd
    if descriptor >= 0:
        loop.add_reader(descriptor, _glide._on_async_pipe_readable)


def _install() -> bool:
    """Replace the three functions of GLIDE that assume a single event loop. Return False if GLIDE lacks any of them."""
    with _installing:  # two threads would each wrap the other's functions, which then wait for their own lock
        return _installed or _replace()


def _replace() -> bool:
    global _installed
    if not all(hasattr(_glide, name) for name in _NEEDED):
        return False
    read, current_loop, compatible = _glide._on_async_pipe_readable, asyncio._get_running_loop, _glide._CompatFuture

    def read_in_turn() -> None:
        # Two threads must not read parts of one frame. The pipe stays readable, so returning loses nothing.
        if _reading.acquire(blocking=False):
            try:
                read()
            finally:
                _reading.release()

    def resolve(future: Any, result: Any, client: Any) -> None:
        loop = client._loop
        if loop is not None and loop is not current_loop() and not isinstance(future, compatible):  # compatible: trio
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing in it waits any longer
                loop.call_soon_threadsafe(resolve, future, result, client)
        elif not future.done():
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def deliver_stale_frames() -> None:
        # GLIDE discards frames left in the pipe after its loop was closed; they may be for other loops.
        descriptor: int = _glide._async_pipe_read_fd
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while poll.poll(0) and _reading.acquire(timeout=1):
            try:
                read()
            finally:
                _reading.release()

    _glide._resolve_future = resolve
    _glide._on_async_pipe_readable = read_in_turn
    _glide._drain_stale_pipe_frames = deliver_stale_frames
    _installed = True
    return True


LONGEST = 400e-6
"""Longest time to spin for one call, seconds. A lone add takes 60 to 300 microseconds, by the processor."""
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
