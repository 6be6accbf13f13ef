"""`TestBroadcast` and `TestBroadcastWorker`: in-memory broadcasts that a test advances step by step."""

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
        where: Callable[[Job[Any, Any]], bool] | None = None,
    ) -> list[Job[Any, Any]]:
        """Assert that messages have been published and are still stored, processed or not.

        Arguments, result and errors are those of `assert_enqueued`.
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
        """Assert that no matching message is stored. Raises AssertionError."""
        await assert_not_enqueued(self.queue, subject, data, contains=contains, where=where)


def _server(broadcast: Broadcast[Any]) -> MemoryServer:
    queue = getattr(broadcast, "queue", None)
    return server_of("broadcast", broadcast, queue, "a broadcast on a MemoryServer, such as a TestBroadcast")
