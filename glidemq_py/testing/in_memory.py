"""In-memory queues and broadcasts with assertions, and their workers, which a test advances step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from glidemq_py._api.broadcast import Broadcast
from glidemq_py._api.job_queue import Queue
from glidemq_py._client.memory import Clock, MemoryServer
from glidemq_py._job.job import Job
from glidemq_py._worker.broadcasts import BroadcastWorker
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.testing import enqueued
from glidemq_py.testing.stepping import Stepping

__all__ = [
    "InMemory",
    "TestBroadcast",
    "TestBroadcastWorker",
    "TestQueue",
    "TestWorker",
    "server_of",
]


class InMemory:
    """Base of classes that take a name and a connection: uses an in-memory server of its own or a shared one.

    Attributes:
        server: the in-memory server.
    """

    __test__ = False  # not a test class for pytest

    def __init__(
        self, name: str = "test", server: MemoryServer | None = None, *, clock: Clock | None = None, **options: Any
    ) -> None:
        self.server = _own_server(server, clock)
        super().__init__(name, self.server, **options)  # type: ignore[call-arg]

    @property
    def clock(self) -> Clock:
        """The server's clock."""
        return self.server.clock


def server_of(option: str, holder: object, queue: object, say: str) -> MemoryServer:
    """Return the in-memory server of a queue. Raises GlideMQValidationError if it has another connection."""
    server: object = getattr(queue, "_connection", None)
    if not isinstance(server, MemoryServer):
        raise GlideMQValidationError(option, holder, f"must be {say}")
    return server


def _own_server(server: MemoryServer | None, clock: Clock | None) -> MemoryServer:
    """Return the given server, or a new one with the clock. Raises GlideMQValidationError."""
    if server is None:
        return MemoryServer(Clock() if clock is None else clock)
    if not isinstance(server, MemoryServer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GlideMQValidationError("server", server, f"must be a MemoryServer, not {type(server).__name__}")
    if clock is not None:
        raise GlideMQValidationError("clock", clock, "options 'clock' and 'server' are mutually exclusive")
    return server


class TestWorker(Stepping, Worker):
    """A `Worker` that runs jobs only while a step is awaited: nothing happens in the background.

    Handlers run by the same code as in the real worker: concurrency, timeouts, retries, signals, lifespan. Use it with
    ``async with``, or close it.

    Args:
        queue: a queue on a `MemoryServer`, such as a `TestQueue`.
        handler: function that runs each job; None if tasks are registered.
        **options: options of `Worker`.

    Attributes:
        runs: all attempts made so far.

    Raises:
        GlideMQValidationError: if the queue is on a real server, or an option is invalid.
    """

    __test__ = False  # not a test class for pytest

    def __init__(self, queue: Queue, handler: Callable[[Any], Any] | None = None, **options: Any) -> None:
        server = server_of("queue", queue, queue, "a queue on a MemoryServer, such as a TestQueue")
        for name in ("prefix", "serializer", "compression"):
            options.setdefault(name, getattr(queue.options, name))
        Worker.__init__(self, queue.name, handler, server, **options)
        self._step_on(server)

    @classmethod
    def of(cls, worker: Worker, queue: Queue) -> Self:
        """Return a test worker with the handler, tasks, options and lifespan of an existing worker.

        Until the test worker is closed, jobs that the existing worker's tasks add go to ``queue``, regardless of the
        name of the worker's own queue. The existing worker must not be running. It is not started, and can be used in
        any number of tests.

        Raises:
            GlideMQValidationError: if it is a `BroadcastWorker` (use `TestBroadcastWorker.of`), or the queue is on a
                real server.
            GlideMQError: if the worker is running.
        """
        if not isinstance(worker, Worker):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("worker", worker, "must be a Worker (else: TestBroadcastWorker.of)")
        test = cls(queue, worker._handler)
        test._take_over(worker, queue)
        test._tasks = worker._tasks
        return test


DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)


class TestQueue(InMemory, Queue[DataT, ResultT], Generic[DataT, ResultT]):
    """An in-memory `Queue` for tests, with all features of a queue.

    Its clock is frozen until the test advances it (``queue.clock.advance(...)``), so a delayed job does not become due
    by itself, however long the test takes.

    Args:
        name: name of the queue.
        server: a server to share with other queues; None creates one.
        clock: the clock of the created server; None creates a frozen clock at the current time.
        **options: options of `Queue`.

    Raises:
        EmbeddedServerError: if the extra `testing` is not installed.
        GlideMQValidationError: if an option is invalid.
    """

    @classmethod
    def like(cls, queue: Queue[DataT, ResultT], server: MemoryServer) -> Self:
        """Return a queue on an in-memory server with the name and the options of another, except `durable`."""
        given: dict[str, Any] = {option.name: getattr(queue.options, option.name) for option in fields(queue.options)}
        given.update(durable=None, partitions=queue._wanted_partitions)
        return cls(queue.name, server, **given)

    def worker(self, handler: Callable[[Any], Any] | None = None, **options: Any) -> TestWorker:
        """Return a `TestWorker` of this queue."""
        return TestWorker(self, handler, **options)

    assert_enqueued = enqueued.assert_enqueued
    assert_not_enqueued = enqueued.assert_not_enqueued


class TestBroadcastWorker(Stepping, BroadcastWorker):
    """A `BroadcastWorker` that runs messages only while a step is awaited; it has the steps of `TestWorker`.

    Its subscription is created when it starts (``async with``, or its first step): it receives messages published
    before that only with ``start_from="0-0"``.

    Args:
        broadcast: a broadcast on a `MemoryServer`, such as a `TestBroadcast`.
        handler: function that runs each message.
        subscription: name of the subscription.
        **options: options of `BroadcastWorker`.

    Attributes:
        runs: all attempts made so far.

    Raises:
        GlideMQValidationError: if the broadcast is on a real server, or an option is invalid.
    """

    __test__ = False  # not a test class for pytest

    def __init__(
        self, broadcast: Broadcast[Any], handler: Callable[[Any], Any] | str, *, subscription: str, **options: Any
    ) -> None:
        server = _server(broadcast)
        for name in ("prefix", "serializer", "compression"):
            options.setdefault(name, getattr(broadcast.queue.options, name))
        BroadcastWorker.__init__(self, broadcast.name, handler, server, subscription=subscription, **options)
        self._step_on(server)

    @classmethod
    def of(cls, worker: BroadcastWorker, broadcast: Broadcast[Any]) -> Self:
        """Return a test worker with the handler, subscription, options and lifespan of an existing worker.

        The existing worker must not be running. It is not started, and can be used in any number of tests.

        Raises:
            GlideMQError: if the worker is running.
            GlideMQValidationError: if it is not a `BroadcastWorker`, or the broadcast is on a real server.
        """
        if not isinstance(worker, BroadcastWorker):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("worker", worker, "must be a BroadcastWorker")
        assert worker._handler is not None
        test = cls(
            broadcast, worker._handler, subscription=worker.subscription, start_from=worker.start_from,
            subjects=worker.subjects or None,
        )  # fmt: skip
        test._take_over(worker, broadcast.queue)
        return test


class TestBroadcast(InMemory, Broadcast[DataT], Generic[DataT]):
    """An in-memory `Broadcast` for tests, with all features of a broadcast.

    Its clock is frozen until the test advances it (``broadcast.clock.advance(...)``).

    Args:
        name: name of the broadcast.
        server: a server to share with queues and other broadcasts; None creates one.
        clock: the clock of the created server; None creates a frozen clock at the current time.
        **options: options of `Broadcast`.

    Raises:
        EmbeddedServerError: if the extra `testing` is not installed.
        GlideMQValidationError: if an option is invalid.
    """

    def worker(
        self, handler: Callable[[Any], Any] | str, *, subscription: str = "test", **options: Any
    ) -> TestBroadcastWorker:
        """Return a `TestBroadcastWorker` of this broadcast."""
        return TestBroadcastWorker(self, handler, subscription=subscription, **options)

    async def assert_published(
        self,
        subject: str | None = None,
        data: Any = ...,
        *,
        contains: Mapping[str, Any] | None = None,
        count: int | None = None,
        message_id: str | None = None,
        where: Callable[[Job], bool] | None = None,
    ) -> list[Job]:
        """Assert that messages have been published and are still stored, processed or not.

        Arguments, result and errors are those of `assert_enqueued`.
        """
        return await enqueued.assert_enqueued(
            self.queue, subject, data, contains=contains, count=count, job_id=message_id, where=where
        )

    async def assert_not_published(
        self,
        subject: str | None = None,
        data: Any = ...,
        *,
        contains: Mapping[str, Any] | None = None,
        where: Callable[[Job], bool] | None = None,
    ) -> None:
        """Assert that no matching message is stored. Raises AssertionError."""
        await enqueued.assert_not_enqueued(self.queue, subject, data, contains=contains, where=where)


def _server(broadcast: Broadcast[Any]) -> MemoryServer:
    queue = getattr(broadcast, "queue", None)
    return server_of("broadcast", broadcast, queue, "a broadcast on a MemoryServer, such as a TestBroadcast")
