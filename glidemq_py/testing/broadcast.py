"""`TestBroadcast` and `TestBroadcastWorker`: subscriptions that take a step when the test says so, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from glidemq_py._client.memory import MemoryServer
from glidemq_py._features.broadcast.broadcast import Broadcast
from glidemq_py._features.broadcast.worker import BroadcastWorker
from glidemq_py._job import Job
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.testing.enqueued import assert_enqueued, assert_not_enqueued
from glidemq_py.testing.in_memory import InMemory, server_of
from glidemq_py.testing.stepping import Stepping

__all__ = ["TestBroadcast", "TestBroadcastWorker"]

DataT = TypeVar("DataT", default=Any)


class TestBroadcastWorker(Stepping, BroadcastWorker):
    """A `BroadcastWorker` that runs messages only while one of its steps is awaited; the steps of a `TestWorker`.

    Its subscription is made when it is started (``async with``, or its first step): what is published before that
    comes to it only with ``start_from="0-0"``.

    Args:
        broadcast: on a `MemoryServer`, for instance a `TestBroadcast`.
        handler: what runs each message.
        subscription: whose messages.
        **options: as for `BroadcastWorker`.

    Attributes:
        runs: every attempt made so far.

    Raises:
        GlideMQValidationError: the broadcast is on a real server, or an option cannot be.
    """

    __test__ = False  # pytest: no test class

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
        """Return a test worker with the handler, subscription, options and lifespan of a worker that is not running.

        The worker itself is not started, and can be given to any number of tests.

        Raises:
            GlideMQError: the worker is running.
            GlideMQValidationError: it is none of a broadcast, or the broadcast is on a real server.
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
    """A `Broadcast` in memory, for tests: everything that a broadcast does, without a server.

    Its clock stands still until it is moved (``broadcast.clock.advance(...)``).

    Args:
        name: of the broadcast.
        server: to share one with queues and other broadcasts; None = one of its own.
        clock: of its own server; None = one that stands still at the time of now.
        **options: as for `Broadcast`.

    Raises:
        EmbeddedServerError: the extra `testing` is not installed.
        GlideMQValidationError: an option cannot be.
    """

    def worker(
        self, handler: Callable[[Any], Any] | str, *, subscription: str = "test", **options: Any
    ) -> TestBroadcastWorker:
        """A `TestBroadcastWorker` of this broadcast."""
        return TestBroadcastWorker(self, handler, subscription=subscription, **options)

    async def assert_published(
        self,
        subject: str | None = None,
        data: Any = ...,
        *,
        contains: Mapping[str, Any] | None = None,
        count: int | None = None,
        message_id: str | None = None,
        where: Callable[[Job[Any, Any]], bool] | None = None,
    ) -> list[Job[Any, Any]]:
        """Assert that messages have been published and are still kept, whoever has worked on them.

        Args, result and errors are those of `assert_enqueued`.
        """
        return await assert_enqueued(
            self.queue, subject, data, contains=contains, count=count, job_id=message_id, where=where
        )

    async def assert_not_published(
        self,
        subject: str | None = None,
        data: Any = ...,
        *,
        contains: Mapping[str, Any] | None = None,
        where: Callable[[Job[Any, Any]], bool] | None = None,
    ) -> None:
        """Assert that no such message is there. Raises AssertionError."""
        await assert_not_enqueued(self.queue, subject, data, contains=contains, where=where)


def _server(broadcast: Broadcast[Any]) -> MemoryServer:
    queue = getattr(broadcast, "queue", None)
    return server_of("broadcast", broadcast, queue, "a broadcast on a MemoryServer, such as a TestBroadcast")
