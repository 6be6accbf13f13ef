"""Threads for handlers that are plain functions.

All threads share one queue, and results that arrive together are delivered to the event loop in one callback. This
costs several times less per job than an executor. Threads are added only while jobs wait for one: quick handlers share
a few threads, slow ones get one each, up to the concurrency.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from glidemq_py._core.logs import get_logger

__all__ = ["HandlerThreads"]

_log = get_logger(__name__)

_GROW_AFTER_S = 0.002
_LOOP_CHECK_S = 10.0
"""Time between checks of an idle thread whether its event loop was closed."""

WorkT = TypeVar("WorkT")


class HandlerThreads(Generic[WorkT]):
    """Runs handlers in daemon threads.

    Args:
        size: Maximum number of threads.
        invoke: Runs a piece of work, in a thread.
        deliver: Called on the event loop with (work, result, error) for each piece that ended.
        name: First part of the threads' names.
    """

    def __init__(
        self,
        size: int,
        invoke: Callable[[WorkT], Any],
        deliver: Callable[[WorkT, Any, BaseException | None], None],
        name: str,
    ) -> None:
        self._size = size
        self._invoke = invoke
        self._deliver = deliver
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[WorkT | None] = queue.SimpleQueue()
        self._ended: deque[tuple[WorkT, Any, BaseException | None]] = deque()
        self._woken = False
        self._growing = False
        self._threads = 0

    def submit(self, work: WorkT) -> None:
        """Run ``work`` in a thread as soon as one is free."""
        self._waiting.put(work)
        if self._threads == 0:
            self._add_thread()
        if not self._growing and self._threads < self._size:
            self._growing = True
            self._loop.call_later(_GROW_AFTER_S, self._grow)

    def _grow(self) -> None:
        self._growing = False
        missing = min(self._waiting.qsize(), self._size - self._threads)
        for _ in range(missing):
            self._add_thread()
        if missing > 0 and self._threads < self._size:
            self._growing = True
            self._loop.call_later(_GROW_AFTER_S, self._grow)

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        take, invoke = self._take, self._invoke
        while (work := take()) is not None:
            context = contextvars.copy_context()
            try:
                result, error = context.run(invoke, work), None
            except BaseException as raised:
                # SystemExit and similar exceptions end the attempt, not the thread.
                result, error = None, raised
            self._ended.append((work, result, error))
            work = None
            if not self._woken:
                self._woken = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver_all)
                except RuntimeError:
                    return  # the loop is closed

    def _take(self) -> WorkT | None:
        """Return the next piece of work; None to end the thread."""
        while True:
            try:
                return self._waiting.get(timeout=_LOOP_CHECK_S)
            except queue.Empty:
                if self._loop.is_closed():
                    return None

    def _deliver_all(self) -> None:
        self._woken = False
        ended = self._ended
        while ended:
            self._deliver(*ended.popleft())

    def close(self) -> None:
        """End idle threads; busy ones end after their handler."""
        for _ in range(self._threads):
            self._waiting.put(None)
