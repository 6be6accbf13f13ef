"""`Producer` for code that blocks.

Written by ``python -m tests.twins``; do not edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, Self, Unpack, cast

from typing_extensions import TypeVar

from glidemq_py._client.connect import BlockingConnection
from glidemq_py._client.runtime import run_immediately
from glidemq_py._core.job_options import JobOptions, JobOptionsDict
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, JobSpec, Serializer, SerializerName
from glidemq_py.sync.driving import ProducerCore

__all__ = ["Producer"]

DataT = TypeVar("DataT", default=Any)


class Producer(Generic[DataT]):
    """Adds jobs to one queue and answers with their ids; any number of threads may share one.

    Names, arguments and errors are those of `glidemq_py.Producer`. A client of your own is one of valkey-glide-sync.
    """

    def __init__(
        self,
        name: str,
        connection: BlockingConnection = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        default_job_options: JobOptions | Mapping[str, Any] | None = None,
        compression: Compression = "none",
        serializer: Serializer | SerializerName | None = None,
        events: bool = True,
    ) -> None:
        self._core: ProducerCore[DataT] = ProducerCore(
            name,
            cast("Any", connection),
            prefix=prefix,
            default_job_options=default_job_options,
            compression=compression,
            serializer=serializer,
            events=events,
        )

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._core.is_closed

    def add(self, name: str, data: DataT | None = None, **options: Unpack[JobOptionsDict]) -> str | None:
        """Add a job; arguments and errors are those of `Queue.add`. See `Producer.add`."""
        return run_immediately(self._core.add(name, data, **options))

    def add_bulk(
        self, jobs: Iterable[JobSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, Mapping[str, Any] | None]]
    ) -> list[str | None]:
        """Add many jobs: ``(name, data, options)`` tuples or `JobSpec` objects, in chunks that are atomic each.
        See `Producer.add_bulk`.
        """
        return run_immediately(self._core.add_bulk(jobs))

    def close(self) -> None:
        """Send what is still to be sent, and close the connection if it is ours; idempotent."""
        run_immediately(self._core.close())

    def __enter__(self) -> Self:
        run_immediately(self._core.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """See `Producer`."""
        return self._core.name

    def __repr__(self) -> str:
        return repr(self._core)
