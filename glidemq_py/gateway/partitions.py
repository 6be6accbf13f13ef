"""The names of partitions in the gateway, and of the queues that they are parts of."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from glidemq_py._client.transport import Transport
from glidemq_py._core.names import partition_home
from glidemq_py._features.queue_list import find_queues
from glidemq_py._partitions.stored import whole_queues

__all__ = ["MARK", "listed_queues", "queue_of_part"]

MARK: Final = "||"
"""Stands in every id that names a partition; ids that this package makes and new ids of users do not contain it."""


@lru_cache(maxsize=4_096)
def queue_of_part(name: str) -> str:
    """Return the name of the queue that may have a partition of this name; the name itself if it is not reserved."""
    return partition_home(name) or name


async def listed_queues(transport: Transport, prefix: str) -> list[str]:
    """Return the names of the listed queues, without those of partitions.

    Raises:
        GlideMQConnectionError: If the server cannot be reached.
    """
    return sorted(await whole_queues(transport, prefix, await find_queues(transport, prefix)))
