"""Deliver GLIDE's replies to all event loops of the process.

GLIDE's core writes the replies for all clients of a process into one pipe, and GLIDE reads that pipe in one event loop:
the one that created the first client. If that loop stops, is closed or blocks, no other loop receives replies, not even
timeouts. Here every loop that has a client reads the pipe, and passes each reply on to the loop that waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from typing import Any

from glidemq_py._client.glide_modules import glide
from glidemq_py._core.forks import new_lock

__all__ = ["read_replies_in"]

_glide: Any = glide.glide_client
_NEEDED = (
    "_CompatFuture", "_async_pipe_read_fd", "_drain_stale_pipe_frames", "_on_async_pipe_readable", "_resolve_future",
)  # fmt: skip
_installed = False
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
    global _installed
    if _installed:
        return True
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
        if isinstance(future, compatible):  # trio
            _settle(future, result)
            return
        loop = client._loop
        if loop is None or loop is current_loop():
            _settle(future, result)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing in it waits any longer
            loop.call_soon_threadsafe(_settle, future, result)

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


def _settle(future: Any, result: Any) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
