"""`Producer`: adds jobs and hands back their ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, Self, Unpack, cast

from typing_extensions import TypeVar

from glidemq_py._api.queue import Queue
from glidemq_py._client.connect import Connection
from glidemq_py._core.job_options import JobOptions, JobOptionsDict
from glidemq_py._core.job_states import JobOutcome
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, JobSpec, Serializer, SerializerName
from glidemq_py._job import Job
from glidemq_py.errors import BulkAddError

__all__ = ["Producer", "added_id", "bulk_ids"]

DataT = TypeVar("DataT", default=Any)


class Producer(Generic[DataT]):
    """Adds jobs to one queue and answers with their ids; ``Producer[DataT]`` names what the jobs carry.

    It connects when it is first used. Close it, or use it as ``async with``.

    Args:
        name: of the queue.
        connection, prefix, default_job_options, compression, serializer, events: as for `Queue`.

    Raises:
        GlideMQValidationError: an option cannot be; it is named with its value.
    """

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
        """True once `close` was called."""
        return self._closed

    async def add(self, name: str, data: DataT | None = None, **options: Unpack[JobOptionsDict]) -> str | None:
        """Add a job; arguments and errors are those of `Queue.add`.

        Returns:
            The job's id; None where nothing was added: one of that ``job_id`` or ``deduplication`` stands already.
        """
        return added_id(await self._queue.add(name, data, **options))

    async def add_bulk(
        self, jobs: Iterable[JobSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, Mapping[str, Any] | None]]
    ) -> list[str | None]:
        """Add many jobs: ``(name, data, options)`` tuples or `JobSpec` objects, in chunks that are atomic each.

        Returns:
            For every position what `add` would have returned.

        Raises:
            GlideMQValidationError: a row cannot be; it is named by its position, and nothing was sent.
            BulkAddError: some rows were not added, or may not have been. Its ``results`` have for every position
                the id, None, or the exception that kept the job out.
        """
        return await add_bulk_ids(self._queue, jobs)

    async def close(self) -> None:
        """Send what is still to be sent, and close the connection if it is ours; idempotent."""
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
    """Close the connection of a producer whose event loop has ended, where `close` cannot run any more."""
    producer._closed = True
    producer._queue._transport.abandon()


def added_id(job: Job[Any, Any]) -> str | None:
    """Id of a job that was added; None where another one stands."""
    return job.id if job.outcome in (JobOutcome.ADDED, JobOutcome.REPLACED) else None


async def add_bulk_ids(queue: Queue[Any, Any], jobs: Iterable[Any]) -> list[str | None]:
    """`Queue.add_bulk` for those who want ids alone, in its results and in those of its failure."""
    try:
        added = await queue.add_bulk(jobs)
    except BulkAddError as error:
        raise BulkAddError(bulk_ids(error.results)) from error.__cause__
    return [added_id(job) for job in added]


def bulk_ids(results: Iterable[object]) -> list[object]:
    """The same for the results of a bulk in which exceptions may stand."""
    return [each if isinstance(each, BaseException) else added_id(cast("Job[Any, Any]", each)) for each in results]
