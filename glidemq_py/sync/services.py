"""The background services of blocking code: a blocking service runs the asynchronous one in the portal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Generic, Self, TypeVar

from glidemq_py._api.job_queue import Queue as AsyncQueue
from glidemq_py._client.portal import portal
from glidemq_py._client.runtime import BackgroundService
from glidemq_py._core.checks import check_iterable
from glidemq_py._core.forks import call_in_child, new_event, new_lock
from glidemq_py._core.misuse import BlockingOnly
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError
from glidemq_py.sync.queue_twin import Queue

__all__ = ["BlockingService", "checked_queue", "checked_queues"]

ServiceT = TypeVar("ServiceT", bound=BackgroundService)


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
    """Runs an asynchronous service in the portal.

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
        self._running: tuple[ServiceT, AsyncExitStack] | None = None
        self._ended = new_event()
        call_in_child(self)

    def _forked(self) -> None:
        self._running = None  # a child does not have the tasks

    def start(self) -> None:
        """Connect and start in the background.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
            GlideMQError: If it was already started.
            ClosedError: If a queue is closed.
        """
        with self._changing:
            if self._was_started:
                raise GlideMQError(f"the {self._title} was already started; make a new one")
            running = self._opened()
            try:
                portal().run(running[0].start())
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

    def _opened(self) -> tuple[ServiceT, AsyncExitStack]:
        """Create the service over queues of its own, without starting it."""
        for queue in self._queues:
            if queue._core._closed:
                raise ClosedError(f"queue {queue.name!r} is closed")
        stack = AsyncExitStack()

        async def create() -> ServiceT:
            return self._make([await _queue_here(queue, stack) for queue in self._queues])

        try:
            return portal().run(create()), stack
        except BaseException:
            portal().run(stack.aclose())
            raise

    @staticmethod
    def _end(running: tuple[ServiceT, AsyncExitStack]) -> None:
        service, stack = running

        async def end() -> None:
            try:
                await service.close()
            finally:
                await stack.aclose()

        portal().run(end())


async def _queue_here(queue: Queue[Any, Any], stack: AsyncExitStack) -> AsyncQueue[Any, Any]:
    """Return an asynchronous queue of the running loop with the name and options of a blocking one."""
    core, options = queue._core, queue.options
    return await stack.enter_async_context(
        AsyncQueue(
            queue.name, core._connection, prefix=options.prefix, compression=options.compression,
            serializer=options.serializer, events=options.events, dead_letter_queue=options.dead_letter_queue,
            partitions=None if core._layout_known else core._wanted_partitions,
        )
    )  # fmt: skip
