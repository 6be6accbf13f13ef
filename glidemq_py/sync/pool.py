"""`ServerlessPool` for blocking code: its producers are not bound to event loops; and the open queues of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from glidemq_py._api.producer import ProducerCache
from glidemq_py._client.transport import BlockingConnection
from glidemq_py._core.forks import new_lock
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import DEFAULT_PREFIX
from glidemq_py._core.logs import get_logger
from glidemq_py._core.queue_options import Compression, DurableInput, QueueOptions, Serializer, SerializerName, TaskCall
from glidemq_py._job.middleware import Middleware
from glidemq_py.errors import GlideMQError
from glidemq_py.sync.producer_twin import Producer
from glidemq_py.sync.queue_twin import Queue

__all__ = ["LaterAdd", "OpenQueues", "ServerlessPool", "serverless_pool"]

_log = get_logger(__name__)


class ServerlessPool:
    """Share one open `Producer` per queue and set of options; ``len(pool)`` is the number of open producers.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._cache: ProducerCache[Producer] = ProducerCache(Producer)

    def get_producer(
        self,
        name: str,
        connection: BlockingConnection = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        default_job_options: JobOptions | Mapping[str, Any] | None = None,
        compression: Compression = "none",
        serializer: Serializer | SerializerName | None = None,
        events: bool = True,
        durable: DurableInput = None,
        middleware: Sequence[Middleware] | None = None,
    ) -> Producer:
        """Return the producer with these arguments, creating it if necessary. Do not close it after use.

        The arguments are those of `Producer`. Client, serializer and middleware objects are compared by identity:
        create them once, not per call.

        Raises:
            GlideMQValidationError: If an option is invalid.
        """
        options = QueueOptions(
            prefix=prefix, default_job_options=default_job_options, compression=compression, serializer=serializer,
            events=events, durable=durable, middleware=middleware,
        )  # fmt: skip
        return self._cache.get(None, name, connection, options)

    def close_all(self) -> None:
        """Close all producers. Errors are logged, and the producer is removed."""
        for producer in self._cache.take(None):
            try:
                producer.close()
            except GlideMQError as error:
                _log.warning("closing %r failed: %s", producer, error)

    def __len__(self) -> int:
        return len(self._cache)


serverless_pool = ServerlessPool()
"""The pool of this process."""


class LaterAdd:
    """A job that is added after a commit: a call of a task, or the arguments of `Queue.add` for a blocking queue."""

    def __init__(self, job: TaskCall | Queue, name: str, data: Any, options: Mapping[str, Any]) -> None:
        if isinstance(job, TaskCall):
            self._add: Callable[[], object] = partial(job.task.blocking.add_bulk, [job])
            name, queue = job.name, job.task.queue_names[0]
        else:
            self._add, queue = partial(job.add, name, data, **options), job.name
        self._place = name, queue

    def add(self) -> None:
        """Add the job. Raises the errors of `Queue.add`, of a call those of `Queue.add_bulk`."""
        self._add()

    def add_after_commit(self) -> None:
        """Add the job; an error is logged, since the commit cannot be undone."""
        try:
            self._add()
        except Exception:
            _log.exception("job %r of queue %r could not be added after the commit", *self._place)


class OpenQueues:
    """The open queues of a program: one object per name, which all threads share.

    Args:
        make: Creates the queue of a name.
    """

    def __init__(self, make: Callable[[str], Queue]) -> None:
        self._make = make
        self._lock = new_lock()
        self._opened: dict[str, Queue] = {}

    def get(self, name: str) -> Queue:
        """Return the queue of a name."""
        with self._lock:
            if name not in self._opened:
                self._opened[name] = self._make(name)
            return self._opened[name]

    def close(self) -> None:
        """Close the queues. A later use opens them again."""
        with self._lock:
            opened, self._opened = self._opened, {}
        for queue in opened.values():
            queue.close()
