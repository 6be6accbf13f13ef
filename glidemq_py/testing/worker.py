"""`TestWorker`: a worker that takes a step when the test says so, on a server in memory."""

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
    """A `Worker` that runs jobs only while one of its steps is awaited: nothing happens in the background.

    The handlers run as in the real worker, by the same code: concurrency, time-outs, retries, signals, lifespan. Use
    it as ``async with``, or close it.

    Args:
        queue: on a `MemoryServer`, for instance a `TestQueue`.
        handler: what runs each job; None where tasks are registered.
        **options: as for `Worker`.

    Attributes:
        runs: every attempt made so far.

    Raises:
        GlideMQValidationError: the queue is on a real server, or an option cannot be.
    """

    __test__ = False  # pytest: no test class

    def __init__(self, queue: Queue[Any, Any], handler: Callable[[Any], Any] | None = None, **options: Any) -> None:
        server = server_of("queue", queue, queue, "a queue on a MemoryServer, such as a TestQueue")
        for name in ("prefix", "serializer", "compression"):
            options.setdefault(name, getattr(queue.options, name))
        super().__init__(queue.name, handler, server, **options)
        self._step_on(server)

    @classmethod
    def of(cls, worker: Worker, queue: Queue[Any, Any]) -> Self:
        """Return a test worker with the handler, tasks, options and lifespan of a worker that is not running.

        Until the test worker is closed, the jobs that the worker's tasks add go to ``queue``, whatever the worker's own
        queue is called. The worker itself is not started, and can be given to any number of tests.

        Raises:
            GlideMQValidationError: it is one of a broadcast (`TestBroadcastWorker.of`), or the queue is on a real
                server.
            GlideMQError: the worker is running.
        """
        if not isinstance(worker, Worker):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("worker", worker, "must be a Worker")
        if isinstance(worker, BroadcastWorker):
            raise GlideMQValidationError("worker", worker, "is of a broadcast: use TestBroadcastWorker.of")
        test = cls(queue, worker._handler)
        test._take_over(worker, queue)
        return test
