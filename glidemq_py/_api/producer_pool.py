"""A pool of producers for serverless functions: one per queue and set of options.

A function that creates a producer per invocation also connects per invocation. The pool returns an existing producer
if all its options are equal.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from glidemq_py._api.producer import Producer, abandon
from glidemq_py._client.connect import URL_VARIABLE, Connection
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._core.forks import new_lock
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.logs import get_logger
from glidemq_py._core.names import validate_queue_name
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, QueueOptions, Serializer, SerializerName

__all__ = ["ProducerCache", "ServerlessPool", "fingerprint", "serverless_pool"]

_log = get_logger(__name__)


class _Closable(Protocol):
    @property
    def is_closed(self) -> bool: ...


P = TypeVar("P", bound=_Closable)


def fingerprint(name: str, connection: object, options: QueueOptions) -> tuple[object, ...]:
    """Return the cache key of a producer. It is hashable and must not be logged: it may contain a password.

    Different spellings of the same connection are equal. Client and serializer objects are compared by identity.
    """
    where: object = connection
    if connection is None:
        where = os.environ.get(URL_VARIABLE)
    if isinstance(where, str):
        where = ConnectionOptions.from_url(where)
    elif where is not None and not isinstance(where, ConnectionOptions):
        where = id(where)
    serializer: object = options.serializer
    if not (serializer is None or isinstance(serializer, str)):
        serializer = id(serializer)
    return (
        name, where, options.prefix, options.default_job_options, options.compression, serializer, options.events,
    )  # fmt: skip


class ProducerCache(Generic[P]):
    """Open producers by fingerprint and owner. Thread-safe.

    The owner is the event loop that a producer is bound to; None for blocking producers.

    Args:
        make: Producer class, called like `Producer`.
        abandon: Closes a producer whose event loop has ended.
    """

    def __init__(self, make: Callable[..., P], abandon: Callable[[P], None] | None = None) -> None:
        self._make = make
        self._abandon = abandon
        self._producers: dict[tuple[object, ...], tuple[P, object]] = {}
        self._lock = new_lock()

    def get(self, owner: object, name: str, connection: object, options: QueueOptions) -> P:
        """Return the owner's producer with these arguments, creating it if necessary."""
        key = fingerprint(validate_queue_name(name), connection, options)
        with self._lock:
            self._sweep()
            found = self._producers.get((id(owner), *key))
            if found is None:
                producer = self._make(
                    name, connection, prefix=options.prefix, default_job_options=options.default_job_options,
                    compression=options.compression, serializer=options.serializer, events=options.events,
                )  # fmt: skip
                found = self._producers[(id(owner), *key)] = producer, owner
            return found[0]

    def take(self, owner: object) -> list[P]:
        """Remove the owner's producers from the cache and return them for closing."""
        with self._lock:
            self._sweep()
            mine = [key for key, (_, whose) in self._producers.items() if whose is owner]
            return [self._producers.pop(key)[0] for key in mine]

    def __len__(self) -> int:
        with self._lock:
            self._sweep()
            return len(self._producers)

    def _sweep(self) -> None:
        """Remove closed producers, and abandon those whose event loop has ended."""
        gone = [
            key
            for key, (producer, owner) in self._producers.items()
            if producer.is_closed or (isinstance(owner, asyncio.AbstractEventLoop) and owner.is_closed())
        ]
        for key in gone:
            producer, _ = self._producers.pop(key)
            if self._abandon is not None and not producer.is_closed:
                self._abandon(producer)


class ServerlessPool:
    """Share one open `Producer` per queue and set of options; ``len(pool)`` is the number of open producers.

    Each event loop has its own producers. The blocking pool, `glidemq_py.sync.ServerlessPool`, is not bound to event
    loops and suits handlers that are plain functions.
    """

    def __init__(self) -> None:
        self._cache: ProducerCache[Producer[Any]] = ProducerCache(Producer, abandon)

    def get_producer(
        self,
        name: str,
        connection: Connection = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        default_job_options: JobOptions | Mapping[str, Any] | None = None,
        compression: Compression = "none",
        serializer: Serializer | SerializerName | None = None,
        events: bool = True,
    ) -> Producer[Any]:
        """Return the producer with these arguments, creating it if necessary. Do not close it after use.

        The arguments are those of `Producer`. Client and serializer objects are compared by identity: create them once,
        not per call.

        Raises:
            GlideMQValidationError: If an option is invalid.
            RuntimeError: If there is no running event loop.
        """
        options = QueueOptions(
            prefix=prefix, default_job_options=default_job_options, compression=compression, serializer=serializer,
            events=events,
        )  # fmt: skip
        return self._cache.get(asyncio.get_running_loop(), name, connection, options)

    async def close_all(self) -> None:
        """Close the producers of the running event loop. Errors are logged, and the producer is removed."""
        producers = self._cache.take(asyncio.get_running_loop())
        outcomes = await asyncio.gather(*(producer.close() for producer in producers), return_exceptions=True)
        for producer, outcome in zip(producers, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                _log.warning("closing %r failed: %s", producer, outcome)

    def __len__(self) -> int:
        return len(self._cache)


serverless_pool = ServerlessPool()
"""The pool of this process."""
