"""`TestQueue`: a queue on an in-memory server, with assertions about its jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic

from typing_extensions import TypeVar

from glidemq_py._api.queue import Queue
from glidemq_py._core.times import Milliseconds
from glidemq_py._job import Job
from glidemq_py.testing.enqueued import assert_enqueued, assert_not_enqueued
from glidemq_py.testing.in_memory import InMemory
from glidemq_py.testing.worker import TestWorker

__all__ = ["TestQueue"]

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

    def worker(self, handler: Callable[[Any], Any] | None = None, **options: Any) -> TestWorker:
        """Return a `TestWorker` of this queue."""
        return TestWorker(self, handler, **options)

    async def assert_enqueued(
        self,
        name: str | None = None,
        data: Any = ...,
        *,
        contains: Mapping[str, Any] | None = None,
        count: int | None = None,
        job_id: str | None = None,
        priority: int | None = None,
        delay: Milliseconds | None = None,
        where: Callable[[Job[Any, Any]], bool] | None = None,
    ) -> list[Job[Any, Any]]:
        """Call `glidemq_py.testing.assert_enqueued` for this queue."""
        return await assert_enqueued(
            self, name, data, contains=contains, count=count, job_id=job_id, priority=priority, delay=delay, where=where
        )

    async def assert_not_enqueued(
        self,
        name: str | None = None,
        data: Any = ...,
        *,
        contains: Mapping[str, Any] | None = None,
        where: Callable[[Job[Any, Any]], bool] | None = None,
    ) -> None:
        """Call `glidemq_py.testing.assert_not_enqueued` for this queue."""
        await assert_not_enqueued(self, name, data, contains=contains, where=where)
