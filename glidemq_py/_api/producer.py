"""`Producer`: adds jobs and returns their ids; and a pool of producers for serverless functions.

A function that creates a producer per invocation also connects per invocation. The pool has one producer per queue and
set of options, and returns an existing one if all its options are equal.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Never, Protocol, Self, Unpack

from typing_extensions import TypeVar

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.transport import URL_VARIABLE, Connection
from glidemq_py._core.checks import lists_options
from glidemq_py._core.forks import new_lock
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import DEFAULT_PREFIX, validate_queue_name
from glidemq_py._core.logs import get_logger
from glidemq_py._core.misuse import AsyncOnly, known_arguments, reject_positional_options
from glidemq_py._core.option_dicts_twin import JobOptionsDict
from glidemq_py._core.queue_options import Compression, DurableInput, JobInput, QueueOptions, Serializer, SerializerName
from glidemq_py._core.record import ADDED_OUTCOMES
from glidemq_py._job.job import Job
from glidemq_py._job.middleware import Middleware
from glidemq_py.errors import BulkAddError

DataT = TypeVar("DataT", default=Any)


class Producer(AsyncOnly, Generic[DataT]):
    """Add jobs to a queue and return their ids.

    In ``Producer[DataT]``, the parameter is the type of the jobs' data. A producer connects at first use. Close it, or
    use it in an ``async with`` block.

    Args:
        name: Name of the queue.
        connection: A URL, `ConnectionOptions`, an existing GLIDE client (never closed by the producer),
            or None. None means ``GLIDEMQ_URL`` if set, otherwise the server of `glidemq dev`, or a private one.
        prefix: First part of every key.
        default_job_options: Options of added jobs; the options of a single job take precedence.
        compression: "gzip" stores job data compressed; "none" (the default) does not.
        serializer: Serializer of data: "json" (the default), "msgpack", or a `Serializer` object.
        events: If False, no `added` events are written.
        durable: As for `Queue`.
        middleware: As for `Queue`.

    Raises:
        GlideMQValidationError: If an option is invalid. The message contains the option and its value.
    """

    name: str
    """Name of the queue."""

    @known_arguments("queue")
    def __init__(
        self,
        name: str,
        connection: Connection = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        default_job_options: JobOptions | Mapping[str, Any] | None = None,
        compression: Compression = "none",
        serializer: Serializer | SerializerName | None = None,
        events: bool = True,
        durable: DurableInput = None,
        middleware: Sequence[Middleware] | None = None,
    ) -> None:
        self._queue: Queue[DataT, Any] = self._queue_type(
            name, connection, prefix=prefix, default_job_options=default_job_options, compression=compression,
            serializer=serializer, events=events, durable=durable, middleware=middleware,
        )  # fmt: skip
        self.name = self._queue.name
        self._closed = False

    _queue_type: type[Queue] = Queue

    @property
    def is_closed(self) -> bool:
        """True after `close` was called."""
        return self._closed

    @lists_options(JobOptions, JobOptionsDict)
    async def add(
        self,
        name: str,
        data: DataT | None = None,
        *misplaced: Never,
        durable: DurableInput = None,
        **options: Unpack[JobOptionsDict],
    ) -> str | None:
        """Add a job to the queue and return its id.

        Raises the errors of `Queue.add`.

        Args:
            name: Name of the job: which handler or task processes it.
            data: Any value that the serializer accepts.
            *misplaced: Rejected: options are keyword arguments, not a dict.
            durable: As for `Queue`; None means the producer's option.
            **options: Fields of `JobOptions`, for example ``delay=5_000``.

        Returns:
            The id of the job; None if a job with this ``job_id`` or ``deduplication`` id already exists.
        """
        if misplaced:
            reject_positional_options(misplaced)
        return added_id(await self._queue.add(name, data, durable=durable, **options))

    async def add_bulk(
        self,
        jobs: Iterable[JobInput],
        *,
        durable: DurableInput = None,
    ) -> list[str | None]:
        """Add many jobs in few round trips. They are sent in chunks, and each chunk is atomic.

        Args:
            jobs: ``(name, data, options)`` tuples (only the name is needed), mappings of these, or `JobSpec` objects.
            durable: As for `Queue`; None means the producer's option.

        Returns:
            The return value of `Producer.add` per job, in the same order.

        Raises:
            GlideMQValidationError: If a job is invalid. The option names its position (``jobs[3].delay``); nothing was
                sent.
            BulkAddError: If some jobs were not added, or may not have been. Its ``results`` has the id, None, or the
                exception per position.
        """
        return await add_bulk_ids(self._queue, jobs, durable)

    async def close(self) -> None:
        """Send the pending adds, then close the connection unless it was passed as a client. Idempotent."""
        self._closed = True
        await self._queue.close()

    async def __aenter__(self) -> Self:
        await self._queue.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Producer {self.name!r}>"


def abandon(producer: Producer) -> None:
    """Close the connection of a producer whose event loop has ended, so that `close` can no longer run."""
    producer._closed = True
    producer._queue._transport.abandon()


def added_id(job: Job) -> str | None:
    """Return the id of an added job; None if a job already existed."""
    return job.id if job.outcome in ADDED_OUTCOMES else None


async def add_bulk_ids(queue: Queue, jobs: Iterable[Any], durable: DurableInput = None) -> list[str | None]:
    """Call `Queue.add_bulk` and return ids instead of jobs, also in the results of a `BulkAddError`."""
    try:
        return [*map(added_id, await queue.add_bulk(jobs, durable=durable))]
    except BulkAddError as error:
        results: Iterable[Any] = error.results
        raise BulkAddError(
            [one if isinstance(one, Exception) else added_id(one) for one in results]  # pyright: ignore[reportArgumentType]
        ) from error.__cause__


_log = get_logger(__name__)


class _Closable(Protocol):
    @property
    def is_closed(self) -> bool: ...


P = TypeVar("P", bound=_Closable)


def fingerprint(name: str, connection: object, options: QueueOptions) -> tuple[object, ...]:
    """Return the cache key of a producer. It is hashable and must not be logged: it may contain a password.

    Different spellings of the same connection are equal. Client, serializer and middleware objects are compared by
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
        options.durable, tuple(map(id, options.middleware)),
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
                producer = self._make(name, connection, **vars(options))  # those that are given
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
        self._cache: ProducerCache[Producer] = ProducerCache(Producer, abandon)

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
        durable: DurableInput = None,
        middleware: Sequence[Middleware] | None = None,
    ) -> Producer:
        """Return the producer with these arguments, creating it if necessary. Do not close it after use.

        The arguments are those of `Producer`. Client, serializer and middleware objects are compared by identity:
        create them once, not per call.

        Raises:
            GlideMQValidationError: If an option is invalid.
            RuntimeError: If there is no running event loop.
        """
        options = QueueOptions(
            prefix=prefix, default_job_options=default_job_options, compression=compression, serializer=serializer,
            events=events, durable=durable, middleware=middleware,
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
