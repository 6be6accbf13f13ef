"""Producers that outlive the call that asked for them: one for each queue and set of options.

A cloud function that makes a producer for every event connects for every event. Here it asks a pool, which hands out
the one it has. Which options a producer was made with is part of what it is found by: all of them (W99).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from glidemq_py._api.producer import Producer, abandon
from glidemq_py._client.connect import URL_VARIABLE, Connection
from glidemq_py._client.connection_options import ConnectionOptions
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
    """What tells one producer from another. Hashable, and not to be shown: it may hold a password.

    Two ways to write the same connection are one. Clients and serializers of the user's own are told apart by
    identity.
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
    """Open producers by fingerprint and owner; safe to use from many threads.

    The owner is the event loop that a producer belongs to, or a process id: whatever a connection cannot leave.

    Args:
        make: the kind of producer, called as `Producer` is.
        abandon: closes one whose event loop has ended.
    """

    def __init__(self, make: Callable[..., P], abandon: Callable[[P], None] | None = None) -> None:
        self._make = make
        self._abandon = abandon
        self._held: dict[tuple[object, ...], tuple[P, object]] = {}
        self._lock = threading.Lock()

    def get(self, owner: object, name: str, connection: object, options: QueueOptions) -> P:
        """The producer of that owner made with these arguments; made now where there is none."""
        key = fingerprint(validate_queue_name(name), connection, options)
        with self._lock:
            self._sweep()
            found = self._held.get((id(owner), *key))
            if found is None:
                producer = self._make(
                    name, connection, prefix=options.prefix, default_job_options=options.default_job_options,
                    compression=options.compression, serializer=options.serializer, events=options.events,
                )  # fmt: skip
                found = self._held[(id(owner), *key)] = producer, owner
            return found[0]

    def take(self, owner: object) -> list[P]:
        """Forget the producers of that owner and hand them out, to be closed."""
        with self._lock:
            self._sweep()
            mine = [key for key, (_, whose) in self._held.items() if whose is owner]
            return [self._held.pop(key)[0] for key in mine]

    def __len__(self) -> int:
        with self._lock:
            self._sweep()
            return len(self._held)

    def _sweep(self) -> None:
        """Forget producers that were closed, and let those go whose loop has ended: nobody can use them any more."""
        gone = [
            key
            for key, (producer, owner) in self._held.items()
            if producer.is_closed or (isinstance(owner, asyncio.AbstractEventLoop) and owner.is_closed())
        ]
        for key in gone:
            producer, _ = self._held.pop(key)
            if self._abandon is not None and not producer.is_closed:
                self._abandon(producer)


class ServerlessPool:
    """Hands out one open `Producer` for each queue and set of options; ``len`` is how many are open.

    A producer belongs to the event loop in which it is used; another loop gets another one. The blocking pool,
    `glidemq_py.sync.ServerlessPool`, has no such bound and suits handlers that are plain functions.
    """

    def __init__(self) -> None:
        self._shelf: ProducerCache[Producer[Any]] = ProducerCache(Producer, abandon)

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
        """The producer made with these arguments (those of `Producer`), or a new one. Do not close it after use.

        A client or serializer object of your own is known by its identity: make it once, not for every call.

        Raises:
            GlideMQValidationError: an option cannot be.
            RuntimeError: there is no running event loop.
        """
        options = QueueOptions(
            prefix=prefix, default_job_options=default_job_options, compression=compression, serializer=serializer,
            events=events,
        )  # fmt: skip
        return self._shelf.get(asyncio.get_running_loop(), name, connection, options)

    async def close_all(self) -> None:
        """Close the producers of the running event loop. One that cannot be closed is logged and forgotten."""
        producers = self._shelf.take(asyncio.get_running_loop())
        outcomes = await asyncio.gather(*(producer.close() for producer in producers), return_exceptions=True)
        for producer, outcome in zip(producers, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                _log.warning("%r could not be closed: %s", producer, outcome)

    def __len__(self) -> int:
        return len(self._shelf)


serverless_pool = ServerlessPool()
"""The pool of this process."""
