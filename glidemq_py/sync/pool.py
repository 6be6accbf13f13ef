"""`ServerlessPool` for code that blocks: its producers outlive event loops, so it suits plain functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glidemq_py._api.producer_pool import ProducerCache
from glidemq_py._client.connect import BlockingConnection
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.logs import get_logger
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, QueueOptions, Serializer, SerializerName
from glidemq_py.errors import GlideMQError
from glidemq_py.sync.producer import Producer

__all__ = ["ServerlessPool", "serverless_pool"]

_log = get_logger(__name__)


class ServerlessPool:
    """Hands out one open `Producer` for each queue and set of options, to any thread; ``len`` is how many are open."""

    def __init__(self) -> None:
        self._shelf: ProducerCache[Producer[Any]] = ProducerCache(Producer)

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
    ) -> Producer[Any]:
        """The producer made with these arguments (those of `Producer`), or a new one. Do not close it after use.

        A client or serializer object of your own is known by its identity: make it once, not for every call.

        Raises:
            GlideMQValidationError: an option cannot be.
        """
        options = QueueOptions(
            prefix=prefix, default_job_options=default_job_options, compression=compression, serializer=serializer,
            events=events,
        )  # fmt: skip
        return self._shelf.get(None, name, connection, options)

    def close_all(self) -> None:
        """Close the producers. One that cannot be closed is logged and forgotten."""
        for producer in self._shelf.take(None):
            try:
                producer.close()
            except GlideMQError as error:
                _log.warning("%r could not be closed: %s", producer, error)

    def __len__(self) -> int:
        return len(self._shelf)


serverless_pool = ServerlessPool()
"""The pool of this process."""
