"""What the generated blocking classes use: the asynchronous classes over the portal, and background services.

A blocking service (`BlockingService`) runs the asynchronous one in the portal.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from glidemq_py._api.blocking_queue import QueueCore
from glidemq_py._api.broadcast import Broadcast
from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._api.job_queue import Queue
from glidemq_py._api.lease import Lease as LeaseCore
from glidemq_py._api.leasing import LeaseReport
from glidemq_py._api.producer import Producer
from glidemq_py._api.queue_events import QueueEvents
from glidemq_py._client.portal import BLOCKING_RUNTIME, portal
from glidemq_py._client.runtime import BackgroundService, Twin
from glidemq_py._core.checks import check_iterable
from glidemq_py._core.forks import call_in_child, new_event, new_lock
from glidemq_py._core.misuse import BlockingOnly
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError

__all__ = [
    "BlockingService",
    "BroadcastCore",
    "FlowProducerCore",
    "LeaseTwin",
    "ProducerCore",
    "QueueCore",
    "QueueEventsCore",
]  # fmt: skip

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)
T = TypeVar("T")
ServiceT = TypeVar("ServiceT", bound=BackgroundService)


class ProducerCore(Producer[DataT], Generic[DataT]):
    """A producer whose coroutines are stepped in threads."""

    _queue_type = QueueCore


class FlowProducerCore(FlowProducer):
    """A flow producer whose coroutines are stepped in threads."""

    _runtime = BLOCKING_RUNTIME


class BroadcastCore(Broadcast[DataT], Generic[DataT]):
    """A broadcast whose coroutines are stepped in threads."""

    _queue_type = QueueCore


class QueueEventsCore(QueueEvents):
    """Events whose coroutines are stepped in threads."""

    _runtime = BLOCKING_RUNTIME


def _core_of(option: str, queue: Any) -> QueueCore[Any, Any]:
    core = getattr(queue, "_core", None)
    if not isinstance(core, QueueCore):
        kind = f"{type(queue).__module__}.{type(queue).__name__}"
        raise GlideMQValidationError(option, queue, f"must be a glidemq_py.sync.Queue, not {kind}")
    return core  # pyright: ignore[reportUnknownVariableType]


class LeaseTwin(Twin[LeaseCore[DataT, ResultT]], Generic[DataT, ResultT]):
    """Base of the blocking `Lease`."""

    __slots__ = ()

    @classmethod
    def from_token(cls, queue: Any, token: str) -> Self:
        """Return the lease of a token, in any process that can reach the queue's server. Nothing is sent.

        Args:
            queue: The queue from which the job was fetched.
            token: The `token` of the lease.

        Raises:
            GlideMQValidationError: If the token is malformed, or of another queue, or ``queue`` is not a queue.
        """
        return cls(LeaseCore.from_token(_core_of("queue", queue), token))

    @classmethod
    def _of_report(cls, report: LeaseReport[LeaseCore[Any, Any]]) -> LeaseReport[Self]:
        """Return a report with leases that have blocking methods."""
        return LeaseReport(report.outcomes, [cls(each) for each in report.leases])


class BlockingService(BlockingOnly, Generic[ServiceT]):
    """Runs an asynchronous service in the portal.

    Args:
        kind: the class of the service.
        arguments: its arguments; the first one is the option ``queue`` or ``queues``.

    Raises:
        GlideMQValidationError: an argument is invalid.
    """

    def __init__(self, kind: type[ServiceT], **arguments: Any) -> None:
        option, given = next(iter(arguments.items()))
        queues = [given] if option == "queue" else check_iterable(option, given, "queues")
        self._queues = [_core_of(option, queue) for queue in queues]
        self._kind, self._option, self._arguments = kind, option, arguments
        self._make(self._queues)  # invalid options are rejected now
        self._changing = new_lock()
        self._was_started = False
        self._running: tuple[ServiceT, AsyncExitStack] | None = None
        self._ended = new_event()
        call_in_child(self)

    def _make(self, queues: Sequence[Queue]) -> ServiceT:
        found = queues[0] if self._option == "queue" else queues
        return self._kind(**{**self._arguments, self._option: found})

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
                raise GlideMQError(f"the {self._kind._title} was already started; make a new one")
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
        """Stop, and let another process take over at once; a backup under way is left incomplete. Idempotent."""
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
            if queue._closed:
                raise ClosedError(f"queue {queue.name!r} is closed")
        stack = AsyncExitStack()

        async def create() -> ServiceT:
            return self._make([await _queue_here(queue, stack) for queue in self._queues])

        try:
            return portal().run(create()), stack
        except BaseException:
            portal().run(stack.aclose())
            raise

    def _notify(self, act: Callable[[ServiceT], object]) -> None:
        """Call a function with the service, if it runs."""
        if self._running is not None:
            portal().call(act, self._running[0])

    def _ask(self, work: Callable[[ServiceT], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a coroutine of the service; if it does not run, of one that ends then."""
        running = self._running
        if running is not None:
            return portal().run(work(running[0]))
        opened = self._opened()
        try:
            return portal().run(work(opened[0]))
        finally:
            self._end(opened)

    @staticmethod
    def _end(running: tuple[ServiceT, AsyncExitStack]) -> None:
        service, stack = running

        async def end() -> None:
            try:
                await service.close()
            finally:
                await stack.aclose()

        portal().run(end())


async def _queue_here(queue: QueueCore[Any, Any], stack: AsyncExitStack) -> Queue:
    """Return an asynchronous queue of the running loop with the name and options of a blocking one."""
    options = queue.options
    return await stack.enter_async_context(
        Queue(
            queue.name, queue._connection, prefix=options.prefix, compression=options.compression,
            serializer=options.serializer, events=options.events, dead_letter_queue=options.dead_letter_queue,
            partitions=None if queue._layout_known else queue._wanted_partitions,
        )
    )  # fmt: skip
