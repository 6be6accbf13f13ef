"""`TestWorker`: a worker on an in-memory server that the test advances step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from glidemq_py._api.queue import Queue
from glidemq_py._features.broadcast.worker import BroadcastWorker
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.testing.in_memory import server_of
from glidemq_py.testing.stepping import Stepping

__all__ = ["TestWorker"]


class TestWorker(Stepping):
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

    def __init__(self, queue: Queue[Any, Any], handler: Callable[[Any], Any] | None = None, **options: Any) -> None:
        server = server_of("queue", queue, queue, "a queue on a MemoryServer, such as a TestQueue")
        for name in ("prefix", "serializer", "compression"):
            options.setdefault(name, getattr(queue.options, name))
        super().__init__(queue.name, handler, server, **options)
        self._step_on(server)

    @classmethod
    def of(cls, worker: Worker, queue: Queue[Any, Any]) -> Self:
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
            raise GlideMQValidationError("worker", worker, "must be a Worker")
        if isinstance(worker, BroadcastWorker):
            raise GlideMQValidationError("worker", worker, "is a BroadcastWorker: use TestBroadcastWorker.of")
        test = cls(queue, worker._handler)
        test._take_over(worker, queue)
        return test
