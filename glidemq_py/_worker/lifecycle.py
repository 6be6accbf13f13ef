"""The lifecycle of one worker: start, pause, resume and close, safe to call in any order and by several callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from glidemq_py._client.runtime import uncancelled
from glidemq_py._worker.lanes import Lanes
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.opening import WorkerComponents
from glidemq_py.errors import ClosedError, EventLoopError, GlideMQError, UnsupportedFeatureError


class Lifecycle:
    """Starts and closes one worker.

    Args:
        name: Name of the queue.
        listeners: Get the events ``closing`` and ``closed``.
        close_rest: Closes the worker's other resources after its components.
    """

    def __init__(self, name: str, listeners: Listeners, close_rest: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self._listeners = listeners
        self._close_rest = close_rest
        self._stack = AsyncExitStack()
        self.lanes: Lanes | None = None
        """The running components; None before the start."""
        self.is_paused = False
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closers: set[asyncio.Task[Any]] = set()
        self._force: asyncio.Event | None = None
        self._closed: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop it was started in."""
        self._failure: GlideMQError | None = None
        self._failing: asyncio.Task[None] | None = None

    def check_loop(self) -> None:
        """Raise EventLoopError if the worker was started in another event loop."""
        loop = self._loop
        if loop is None or loop is asyncio._get_running_loop():
            return
        subject = f"worker of queue {self.name!r}"
        if loop.is_closed():
            raise EventLoopError(subject, "it was started in an event loop that is closed", "create another Worker")
        raise EventLoopError(
            subject, "it was started in another event loop",
            "use it there (asyncio.run_coroutine_threadsafe), or create another Worker",
        )  # fmt: skip

    @property
    def is_closing(self) -> bool:
        """True once `close` was called."""
        return self._closing is not None

    async def start(self, prepare: Callable[[], WorkerComponents]) -> None:
        """Open the components that ``prepare`` describes, then fetch jobs. Raises the errors of `Worker.start`."""
        if self.is_closing:
            raise ClosedError(f"worker of queue {self.name!r} is closed; create another Worker")
        self.check_loop()
        if self._starting is not None:
            raise GlideMQError(f"worker of queue {self.name!r} is already started")
        opening = prepare()
        self._loop = asyncio.get_running_loop()
        self._force, self._closed = asyncio.Event(), asyncio.Event()
        starting = self._starting = asyncio.create_task(self._start(opening), name=f"glidemq-start-{self.name}")
        try:
            await asyncio.shield(starting)
        except BaseException:
            if self.is_closing:
                raise ClosedError(f"worker of queue {self.name!r} was closed while it started") from None
            await uncancelled(self._abort_start(starting), lambda _: None)
            raise

    async def _abort_start(self, starting: asyncio.Task[None]) -> None:
        """Close the resources of a failed or cancelled start. A second cancellation must not interrupt this."""
        starting.cancel()
        await asyncio.wait({starting})
        if self.lanes is not None and self._force is not None:  # it had just started
            self._force.set()
            await self.lanes.close(self._force)
        await self._stack.aclose()
        self.lanes = self._starting = self._loop = None

    async def wait_until_ready(self, prepare: Callable[[], WorkerComponents]) -> None:
        """Wait for a running start, or call `start`."""
        self.check_loop()
        starting = self._starting
        if starting is None or self.is_closing:
            await self.start(prepare)
            return
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():
                raise ClosedError(f"worker of queue {self.name!r} was closed while it started") from None
            raise

    async def _start(self, opening: WorkerComponents) -> None:
        lanes = Lanes(replace(opening, failed=self._fail))
        await lanes.open(self._stack)
        self.lanes = lanes
        if self._failure is not None:
            self._fail(self._failure)  # a queue was refused while the worker started
        elif not self.is_paused:
            self.resume()

    def _fail(self, error: GlideMQError) -> None:
        """Close the worker, once it has started; `wait_until_closed` raises the error.

        Its jobs end first, but for those of a queue that rejects every result.
        """
        self._failure = error
        if self.lanes is not None:
            closing = self.close(None, force=isinstance(error, UnsupportedFeatureError))
            self._failing = asyncio.create_task(closing, name=f"glidemq-fail-{self.name}")

    def pause(self) -> None:
        """Stop fetching jobs."""
        self.is_paused = True
        if self.lanes is not None:
            self.lanes.pause()

    def resume(self) -> None:
        """Fetch jobs."""
        self.is_paused = False
        if self._loop is None or self._loop is asyncio._get_running_loop():
            self._take_jobs()
            return
        try:
            self._loop.call_soon_threadsafe(self._take_jobs)
        except RuntimeError:
            self.check_loop()

    def _take_jobs(self) -> None:
        if self.lanes is not None and not self.is_closing and not self.is_paused:
            self.lanes.resume()

    async def close(self, limit: float | None, *, force: bool) -> None:
        """See `Worker.close`; ``limit`` in seconds."""
        if self._closing is not None and self._closing.done():
            await self._closing  # raises the error of the first call, in any event loop
            return
        self.check_loop()
        caller = asyncio.current_task()
        if caller is not None and self.lanes is not None and any(r.task is caller for r in self.lanes.running):
            raise GlideMQError(
                "a handler cannot wait for its own worker to close; use asyncio.create_task(worker.close())"
            )
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"glidemq-close-{self.name}")
        if force and self._force is not None:
            self._force.set()
        handle = None
        if limit is not None and self._force is not None:
            handle = asyncio.get_running_loop().call_later(limit, self._force.set)
        if caller is not None:
            self._closers.add(caller)
        try:
            await asyncio.shield(self._closing)
        finally:
            if handle is not None:
                handle.cancel()

    async def _close(self) -> None:
        if self.lanes is not None:
            self.lanes.interrupt()
        self._listeners.emit("closing")
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        if self.lanes is not None:
            assert self._force is not None
            await self.lanes.close(self._force)
        await self._close_rest()
        await self._listeners.wait_until_done(self._closers)
        try:
            await self._stack.aclose()
        finally:
            self._listeners.emit("closed")
            await self._listeners.wait_until_done(self._closers)
            if self._closed is not None:
                self._closed.set()

    async def wait_until_closed(self) -> None:
        """Wait until the worker is closed. Raises the error that closed it, if there is one."""
        if self._closed is not None and not self._closed.is_set():
            self.check_loop()
            await self._closed.wait()
        if self._failure is not None:
            raise self._failure
