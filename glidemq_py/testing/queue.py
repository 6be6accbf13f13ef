"""`TestQueue`: a queue on a server of its own inside this process, and what it has been given."""

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
    """A `Queue` in memory, for tests: everything that a queue does, without a server.

    Its clock stands still until it is moved (``queue.clock.advance(...)``), so a delayed job is not due, however long
    the test takes.

    Args:
        name: of the queue.
        server: to share one with other queues; None = one of its own.
        clock: of its own server; None = one that stands still at the time of now.
        **options: as for `Queue`.

    Raises:
        EmbeddedServerError: the extra `testing` is not installed.
        GlideMQValidationError: an option cannot be.
    """

    def worker(self, handler: Callable[[Any], Any] | None = None, **options: Any) -> TestWorker:
        """A `TestWorker` of this queue."""
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
        """`glidemq_py.testing.assert_enqueued` for this queue."""
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
        """`glidemq_py.testing.assert_not_enqueued` for this queue."""
        await assert_not_enqueued(self, name, data, contains=contains, where=where)
