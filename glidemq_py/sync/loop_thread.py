"""An event loop in a thread of its own, in which the background services of blocking code run.

Background tasks wait for several things at once, so they need an event loop (runtime.py). A blocking service runs the
asynchronous one in such a thread, over connections that belong to its loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from glidemq_py._api.job_queue import Queue as AsyncQueue
from glidemq_py._client.background_service import BackgroundService
from glidemq_py._client.connect import BlockingConnection, Connection, client_or_options
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.transport import ConnectionSource
from glidemq_py._core.checks import check_iterable
from glidemq_py._core.forks import call_in_child, new_event, new_lock
from glidemq_py._core.misuse import BlockingOnly
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError
from glidemq_py.sync.job_queue import Queue

__all__ = ["BlockingService", "LoopThread", "checked_queue", "checked_queues"]

T = TypeVar("T")
ServiceT = TypeVar("ServiceT", bound=BackgroundService)

_JOIN_S = 10.0
"""Longest wait for the end of the thread, seconds."""


class LoopThread:
    """A daemon thread that runs an event loop until it is closed.

    Args:
        owner: the object that uses it, for the thread's name.
    """

    def __init__(self, owner: str) -> None:
        self._stopped = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"glidemq-{owner}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._stopped.wait())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result. An interruption of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, without waiting for it."""
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Stop the loop and wait for the end of the thread."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(_JOIN_S)


def checked_queue(option: str, queue: Any) -> Queue[Any, Any]:
    """Return a blocking queue; reject anything else."""
    if not isinstance(queue, Queue):
        kind = f"{type(queue).__module__}.{type(queue).__name__}"
        raise GlideMQValidationError(option, queue, f"must be a glidemq_py.sync.Queue, not {kind}")
    return queue  # pyright: ignore[reportUnknownVariableType]


def checked_queues(queues: Iterable[Queue[Any, Any]]) -> list[Queue[Any, Any]]:
    """Return the blocking queues of the option ``queues``, of which there must be one at least."""
    found = [checked_queue("queues", queue) for queue in check_iterable("queues", queues, "queues")]
    if not found:
        raise GlideMQValidationError("queues", [], "must contain at least one queue")
    return found


class BlockingService(BlockingOnly, Generic[ServiceT]):
    """Runs an asynchronous service in a thread.

    Args:
        queues: the queues of the service.
        make: creates the service for asynchronous queues; raises GlideMQValidationError.
    """

    _title: ClassVar[str]
    """Its name in messages."""

    def __init__(
        self, queues: Sequence[Queue[Any, Any]], make: Callable[[Sequence[AsyncQueue[Any, Any]]], ServiceT]
    ) -> None:
        make([queue._core for queue in queues])  # invalid options are rejected now
        self._queues = queues
        self._make = make
        self._changing = new_lock()
        self._was_started = False
        self._running: tuple[LoopThread, ServiceT, AsyncExitStack] | None = None
        self._ended = new_event()
        call_in_child(self)

    def _forked(self) -> None:
        self._running = None  # a child does not have the thread

    def start(self) -> None:
        """Connect and start in a separate thread.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
            GlideMQError: If it was already started.
            ClosedError: If a queue is closed.
        """
        with self._changing:
            if self._was_started:
                raise GlideMQError(f"the {self._title} was already started; make a new one")
            running = self._opened()
            thread, service, _ = running
            try:
                thread.run(service.start())
            except BaseException:
                self._end(running)
                raise
            self._running, self._was_started = running, True

    def run(self) -> None:
        """Start, and run until interrupted, or until `close` is called in another thread."""
        with self:
            self._ended.wait()

    def close(self) -> None:
        """Stop. Idempotent."""
        with self._changing:
            running, self._running = self._running, None
            self._ended.set()
            if running is not None:
                self._end(running)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> tuple[LoopThread, ServiceT, AsyncExitStack]:
        """Start the thread and create the service in it, without starting the service."""
        for queue in self._queues:
            if queue._core._closed:
                raise ClosedError(f"queue {queue.name!r} is closed")
        thread, stack = LoopThread(self._title), AsyncExitStack()

        async def create() -> ServiceT:
            return self._make([await _queue_here(queue, stack) for queue in self._queues])

        try:
            return thread, thread.run(create()), stack
        except BaseException:
            thread.run(stack.aclose())
            thread.close()
            raise

    @staticmethod
    def _end(running: tuple[LoopThread, ServiceT, AsyncExitStack]) -> None:
        thread, service, stack = running

        async def end() -> None:
            try:
                await service.close()
            finally:
                await stack.aclose()

        try:
            thread.run(end())
        finally:
            thread.close()


async def _queue_here(queue: Queue[Any, Any], stack: AsyncExitStack) -> AsyncQueue[Any, Any]:
    """Return an asynchronous queue of the running loop with the name and options of a blocking one."""
    core, options = queue._core, queue.options
    connection = await _connection_here(cast("BlockingConnection", core._connection), stack)
    return await stack.enter_async_context(
        AsyncQueue(
            queue.name, connection, prefix=options.prefix, compression=options.compression,
            serializer=options.serializer, events=options.events, dead_letter_queue=options.dead_letter_queue,
            partitions=None if core._layout_known else core._wanted_partitions,
        )
    )  # fmt: skip


async def _connection_here(connection: BlockingConnection, stack: AsyncExitStack) -> Connection:
    """Return the connection for the running loop; a client of the user is the template of another one."""
    if connection is None or isinstance(connection, (str, ConnectionOptions, ConnectionSource)):
        return connection
    # GLIDE is imported to connect, not before.
    from glidemq_py._client.async_client import create_async
    from glidemq_py._client.async_transport import AsyncTransport, SharedClient

    config = cast("Any", client_or_options(connection))._config
    source = SharedClient(AsyncTransport(await create_async(config), config, owned=True))
    stack.push_async_callback(source.close)
    return source
