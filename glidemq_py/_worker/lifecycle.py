"""The lifecycle of one worker: start, pause, resume and close, safe to call in any order and by several callers.

A `LayoutFollower` lets a running worker serve partitions that are created after its start, and give up its blocking
reads. Heartbeats report the number of the layout. A worker of several lanes gets further ones. A worker that was opened
for a queue without partitions is replaced by one with lanes; the jobs that it runs keep their slots until they end. So
is a worker whose connection for blocking reads is claimed: lanes wait for wake-up channels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final

from glidemq_py._client.runtime import uncancelled
from glidemq_py._client.transport import JobTransport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.layout import Layout
from glidemq_py._partitions.stored import read_layout, renewed_layout
from glidemq_py._worker.components import Parts
from glidemq_py._worker.lanes import Lanes, open_lanes, open_worker
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.opening import ServedQueue, WorkerComponents, consumer_name
from glidemq_py.errors import ClosedError, EventLoopError, GlideMQError, GlideMQValidationError

_log = get_logger(__name__)

_AGAIN_S: Final = 2.0
"""Pause after a connection for reads could not be given up, seconds."""


class Lifecycle:
    """Starts and closes one worker.

    Args:
        name: Name of the queue.
        listeners: Get the events ``closing`` and ``closed``.
        close_rest: Closes the worker's other resources after its components.
        renamed: Called with the consumer name of the worker if it gets another one.
    """

    def __init__(
        self, name: str, listeners: Listeners, close_rest: Callable[[], Awaitable[None]],
        renamed: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.name = name
        self._listeners = listeners
        self._close_rest = close_rest
        self._stack = AsyncExitStack()
        self.parts: Parts | Lanes | None = None
        """The running components; None before the start."""
        self.is_paused = False
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closers: set[asyncio.Task[Any]] = set()
        self._force: asyncio.Event | None = None
        self._closed: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop it was started in."""
        self.opening: WorkerComponents | None = None
        """How the components were opened."""
        self.follower = LayoutFollower(self, renamed)
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
        if self.parts is not None and self._force is not None:  # it had just started
            self._force.set()
            await self.parts.close(self._force)
        await self._stack.aclose()
        self.parts = self._starting = self._loop = None

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
        follower = self.follower
        self.opening = opening = replace(
            opening, layout_seen=follower.seen, read_claimed=follower.leave_read, unsupported=self._fail
        )
        self.parts = await open_worker(opening, self._stack)
        if not self.is_paused:
            self.resume()
        reservation = getattr(self.parts, "reservation", None)
        if reservation is not None and reservation.is_claimed:
            follower.leave_read()  # it was claimed while the worker started

    def replace_parts(self, lanes: Lanes, stack: AsyncExitStack) -> None:
        """Use other components from now on; ``stack`` closes what they have opened."""
        self._stack.push_async_exit(stack)
        self.parts = lanes
        self._take_jobs()

    def _fail(self, error: GlideMQError) -> None:
        """Close the worker once it has started, without waiting for its jobs, whose results would be rejected."""
        if self.parts is not None:
            self.close_because(error, force=True)

    def close_because(self, error: GlideMQError, *, force: bool = False) -> None:
        """Close the worker; without ``force``, its running jobs end first. `wait_until_closed` raises the error."""
        self._failure = error
        self._failing = asyncio.create_task(self.close(None, force=force), name=f"glidemq-fail-{self.name}")

    def pause(self) -> None:
        """Stop fetching jobs."""
        self.is_paused = True
        if self.parts is not None:
            self.parts.fetching.pause()

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
        if self.parts is not None and not self.is_closing and not self.is_paused:
            self.parts.fetching.resume()

    async def close(self, limit: float | None, *, force: bool) -> None:
        """See `Worker.close`; ``limit`` in seconds."""
        if self._closing is not None and self._closing.done():
            await self._closing  # raises the error of the first call, in any event loop
            return
        self.check_loop()
        caller = asyncio.current_task()
        if caller is not None and self.parts is not None and any(r.task is caller for r in self.parts.runner.running):
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
        if self.parts is not None:
            self.parts.interrupt()
        self._listeners.emit("closing")
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        await self.follower.close()
        if self.parts is not None:
            assert self._force is not None
            await self.parts.close(self._force)
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


class LayoutFollower:
    """Follows the layouts of a worker's queues.

    Args:
        life: The worker.
        renamed: Called with the consumer name that the worker gets if it is replaced.
    """

    def __init__(self, life: Lifecycle, renamed: Callable[[str], None]) -> None:
        self._life = life
        self._renamed = renamed
        self._known: dict[str, int] = {}
        self._layouts: dict[str, Layout] = {}
        self._pending: dict[str, int] = {}
        self._leaves_read = False
        self._task: asyncio.Task[None] | None = None

    def seen(self, name: str, number: int) -> None:
        """Serve the partitions of a queue if the number of its layout is a new one."""
        if number != self._known.get(name, 0):
            self._pending[name] = number
        if self._pending or self._leaves_read:
            self._start()

    def leave_read(self) -> None:
        """Wait for wake-up channels from now on: another use has claimed the connection of the worker's reads."""
        self._leaves_read = True
        self._start()

    def _start(self) -> None:
        if self._life.is_closing:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow(), name="glidemq-partitions")

    async def follow(self, transport: JobTransport, keys: QueueKeys) -> None:
        """Serve the present partitions of a queue, for tests, whose workers have no heartbeats. Raises GlideMQError."""
        layout = await read_layout(transport, keys)
        self.seen(keys.name, 0 if layout is None else layout.number)
        if self._task is not None:
            await asyncio.wait({self._task})
        parts = self._life.parts
        if isinstance(parts, Lanes):
            await parts.taken_over()

    async def close(self) -> None:
        """Stop following."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _follow(self) -> None:
        while self._pending:
            name, number = self._pending.popitem()
            try:
                if await self._serve(name):
                    self._known[name] = number
            except GlideMQValidationError as error:
                _log.error(
                    "queue %r: the worker closes when its running jobs have ended, as it cannot serve partitions: %s",
                    name, error,
                )  # fmt: skip
                self._life.close_because(error)
                return
            except GlideMQError as error:  # the next heartbeat tries again
                _log.warning("queue %r: the worker cannot serve the new partitions yet: %s", name, error)
        if self._leaves_read:
            try:
                await self._give_up_read()
            except GlideMQError as error:
                _log.warning("queue %r: the worker keeps its connection for reads: %s", self._life.name, error)
                asyncio.get_running_loop().call_later(_AGAIN_S, self._start)

    async def _give_up_read(self) -> None:
        life, opening = self._life, self._life.opening
        parts = life.parts
        if parts is None or opening is None:
            return  # it is starting
        self._leaves_read = False
        if isinstance(parts, Lanes):
            return
        try:
            await self._replace(opening, parts)
        except BaseException:
            self._leaves_read = True
            raise

    async def _serve(self, name: str) -> bool:
        """Serve the partitions of a queue. Return False if the worker is starting: the next heartbeat tries again."""
        life, opening = self._life, self._life.opening
        parts = life.parts
        if parts is None or opening is None:
            return False
        link = parts.lanes[0].link if isinstance(parts, Lanes) else parts.link
        layout = await renewed_layout(link.transport, QueueKeys(link.keys.prefix, name), self._layouts.get(name))
        if layout is None:
            return True
        self._layouts[name] = layout
        if not isinstance(parts, Lanes):
            await self._replace(opening, parts)
        elif not await parts.serve_layout(name, layout, accepting=not life.is_paused):
            return True
        _log.info("queue %r: the worker serves %d partitions now", name, layout.partitions)
        return True

    async def _replace(self, opening: WorkerComponents, parts: Parts) -> None:
        life, stack, consumer = self._life, AsyncExitStack(), consumer_name()
        only = ServedQueue(opening.keys, opening.queue_options, 1)
        opening = replace(opening, several=(only,), consumer=consumer, lifespan=None, context=parts.context)
        try:
            lanes = await open_lanes(opening, stack)
        except BaseException:
            await stack.aclose()
            raise
        lanes.take_over(parts)
        life.replace_parts(lanes, stack)
        self._renamed(consumer)
