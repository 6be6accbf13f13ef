"""Opening a queue: its layout is read, or created by the option ``partitions``."""

from __future__ import annotations

from typing import Final

from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.partitions.layout import Layout, number_after, partition_names
from glidemq_py._features.partitions.repairing import agreed_layout
from glidemq_py._features.partitions.stored import create_partitions, read_layout
from glidemq_py.errors import GlideMQValidationError

__all__ = ["open_layout"]

_OPTION: Final = "partitions"


async def open_layout(transport: Transport, keys: QueueKeys, partitions: int | None) -> Layout | None:
    """Return the layout of the queue's partitions, after creating them if ``partitions`` is at least 2.

    Raises:
        GlideMQValidationError: The queue has another number of partitions, or has jobs and no partitions.
        GlideMQError: The stored layout is damaged.
    """
    found = await read_layout(transport, keys)
    if found is None and partitions is not None and partitions > 1:
        found = await _create(transport, keys, partitions)
    present = 1 if found is None else found.partitions
    if partitions is not None and partitions != present:
        problem = f"queue {keys.name!r} has {present} partition{'s' if present > 1 else ''}"
        raise GlideMQValidationError(_OPTION, partitions, f"{problem}; Queue.set_partitions changes the number")
    return found


async def _create(transport: Transport, keys: QueueKeys, partitions: int) -> Layout | None:
    names = partition_names(keys.name, partitions)
    restored = await agreed_layout(transport, keys, names)  # a failover may have lost it
    if restored is None and not await transport.call(
        create_partitions(keys.meta, Layout(number_after(0), (partitions,), names))
    ):
        problem = f"queue {keys.name!r} has jobs and is not partitioned; call Queue.set_partitions({partitions})"
        raise GlideMQValidationError(_OPTION, partitions, problem)
    return restored or await agreed_layout(transport, keys)
