"""`Producer`: adds jobs and returns their ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, Never, Self, Unpack, cast

from typing_extensions import TypeVar

from glidemq_py._api.queue import Queue
from glidemq_py._client.connect import Connection
from glidemq_py._core.job_options import JobOptions, JobOptionsDict
from glidemq_py._core.job_states import JobOutcome
from glidemq_py._core.misuse import AsyncOnly, known_arguments, reject_positional_options
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, JobSpec, Serializer, SerializerName
from glidemq_py._job import Job
from glidemq_py.errors import BulkAddError

__all__ = ["Producer", "added_id", "bulk_ids"]

DataT = TypeVar("DataT", default=Any)


class Producer(AsyncOnly, Generic[DataT]):
    """Add jobs to a queue and return their ids.

    In ``Producer[DataT]``, the parameter is the type of the jobs' data. A producer connects at first use. Close it, or
    use it in an ``async with`` block.

    Args:
        name: Name of the queue.
        connection: A URL, `ConnectionOptions`, an existing GLIDE client (never closed by the producer),
            or None. None means ``GLIDEMQ_URL`` if set, otherwise a private embedded server.
        prefix: First part of every key.
        default_job_options: Options of added jobs; the options of a single job take precedence.
        compression: "gzip" stores job data compressed; "none" (the default) does not.
        serializer: Serializer of data: "json" (the default), "msgpack", or a `Serializer` object.
        events: If False, no `added` events are written.

    Raises:
        GlideMQValidationError: If an option is invalid. The message contains the option and its value.
    """

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
    ) -> None:
        self._queue: Queue[DataT, Any] = self._queue_type(
            name, connection, prefix=prefix, default_job_options=default_job_options, compression=compression,
            serializer=serializer, events=events,
        )  # fmt: skip
        self.name = self._queue.name
        self._closed = False

    _queue_type: type[Queue[Any, Any]] = Queue

    @property
    def is_closed(self) -> bool:
        """True after `close` was called."""
        return self._closed

    async def add(
        self, name: str, data: DataT | None = None, *misplaced: Never, **options: Unpack[JobOptionsDict]
    ) -> str | None:
        """Add a job to the queue and return its id.

        Raises the errors of `Queue.add`.

        Args:
            name: Name of the job: which handler or task processes it.
            data: Any value that the serializer accepts.
            *misplaced: Rejected: options are keyword arguments, not a dict.
            **options: Fields of `JobOptions`, for example ``delay=5_000``.

        Returns:
            The id of the job; None if a job with this ``job_id`` or ``deduplication`` id already exists.
        """
        if misplaced:
            reject_positional_options(misplaced)
        return added_id(await self._queue.add(name, data, **options))

    async def add_bulk(
        self, jobs: Iterable[JobSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, Mapping[str, Any] | None]]
    ) -> list[str | None]:
        """Add many jobs in few round trips. They are sent in chunks, and each chunk is atomic.

        Args:
            jobs: ``(name, data, options)`` tuples, of which the last items are optional, or `JobSpec` objects.

        Returns:
            The return value of `Producer.add` per job, in the same order.

        Raises:
            GlideMQValidationError: If a job is invalid. The option names its position (``jobs[3].delay``); nothing was
                sent.
            BulkAddError: If some jobs were not added, or may not have been. Its ``results`` has the id, None, or the
                exception per position.
        """
        return await add_bulk_ids(self._queue, jobs)

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


def abandon(producer: Producer[Any]) -> None:
    """Close the connection of a producer whose event loop has ended, so that `close` can no longer run."""
    producer._closed = True
    producer._queue._transport.abandon()


def added_id(job: Job[Any, Any]) -> str | None:
    """Return the id of an added job; None if a job already existed."""
    return job.id if job.outcome in (JobOutcome.ADDED, JobOutcome.REPLACED) else None


async def add_bulk_ids(queue: Queue[Any, Any], jobs: Iterable[Any]) -> list[str | None]:
    """Call `Queue.add_bulk` and return ids instead of jobs, also in the results of a `BulkAddError`."""
    try:
        added = await queue.add_bulk(jobs)
    except BulkAddError as error:
        raise BulkAddError(bulk_ids(error.results)) from error.__cause__
    return [added_id(job) for job in added]


def bulk_ids(results: Iterable[object]) -> list[object]:
    """Return the ids of the results of a bulk add; exceptions are kept."""
    return [each if isinstance(each, BaseException) else added_id(cast("Job[Any, Any]", each)) for each in results]
