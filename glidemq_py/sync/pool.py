"""`ServerlessPool` for blocking code: its producers are not bound to event loops; and the open queues of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glidemq_py._api.producer import ProducerCache
from glidemq_py._client.transport import BlockingConnection
from glidemq_py._core.forks import new_lock
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import DEFAULT_PREFIX
from glidemq_py._core.logs import get_logger
from glidemq_py._core.queue_options import Compression, DurableInput, QueueOptions, Serializer, SerializerName
from glidemq_py._job.middleware import Middleware
from glidemq_py.errors import GlideMQError
from glidemq_py.sync.producer_twin import Producer
from glidemq_py.sync.queue_twin import Queue

__all__ = ["OpenQueues", "ServerlessPool", "serverless_pool"]

_log = get_logger(__name__)


class ServerlessPool:
    """Share one open `Producer` per queue and set of options; ``len(pool)`` is the number of open producers.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._cache: ProducerCache[Producer[Any]] = ProducerCache(Producer)

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
    ) -> Producer[Any]:
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


class OpenQueues:
    """The open queues of a program: one object per name, which all threads share.

    Args:
        make: Creates the queue of a name.
    """

    def __init__(self, make: Callable[[str], Queue[Any, Any]]) -> None:
        self._make = make
        self._lock = new_lock()
        self._opened: dict[str, Queue[Any, Any]] = {}

    def get(self, name: str) -> Queue[Any, Any]:
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
