"""Opening a queue: its layout is read, or created by the option ``partitions`` (docs/design/partitions.md)."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._partitions.deleting import delete_keys
from glidemq_py._partitions.layout import Layout, partition_names
from glidemq_py._partitions.stored import (
    AGAIN,
    Beginning,
    begin_partitions,
    create_partitions,
    parse_layout,
    read_layout,
    store_layout,
    stored,
)
from glidemq_py.errors import GlideMQError, QueuePartitionsError

_ATTEMPTS: Final = 20
"""Times that partitions are created. More than one are needed only if other clients do the same, or change settings."""
_LONGEST_PAUSE_S: Final = 1.0


async def open_layout(transport: JobTransport, keys: QueueKeys, partitions: int | None) -> Layout | None:
    """Return the layout of the queue's partitions, after creating them if ``partitions`` is at least 2.

    Raises:
        QueuePartitionsError: The queue has another number of partitions; one without partitions has had jobs, or has
            limits.
        GlideMQError: The stored layout is damaged.
    """
    found = await read_layout(transport, keys)
    if found is None and partitions is not None and partitions > 1:
        found = await create_layout(transport, keys, partition_names(keys.name, partitions))
    present = 1 if found is None else found.partitions
    if partitions is not None and partitions != present:
        raise QueuePartitionsError(keys.name, present, partitions)
    return found


async def create_layout(transport: JobTransport, keys: QueueKeys, names: tuple[str, ...]) -> Layout | None:
    """Create the partitions of a queue that has had no job. Return its layout, which another client may have created.

    Returns None if the queue has had jobs, or has limits. If the process ends in between, the queue has no partitions.
    """
    above, pause = 0, 0.02
    for _ in range(_ATTEMPTS):
        beginning = await transport.call(begin_partitions(keys.meta, above))
        if not beginning.number:
            return parse_layout(keys.name, beginning.layout) if beginning.layout else None
        layout, settings = Layout(beginning.number, names), beginning.settings
        reply = AGAIN
        try:
            await _prepare(transport, keys.prefix, layout, beginning)
            reply = await transport.call(create_partitions(keys.meta, *stored(layout), settings))
        except LayoutChangedError as error:  # a partition has a later number, by a clock that was ahead
            above = error.stored or 0
        if reply != AGAIN:
            return parse_layout(keys.name, reply.decode("utf-8", "replace")) if reply else None
        await asyncio.sleep(random.uniform(0, pause))
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    raise GlideMQError(f"queue {keys.name!r}: other clients keep creating its partitions; open the queue again")


async def _prepare(transport: JobTransport, prefix: str, layout: Layout, beginning: Beginning) -> None:
    """Give all partitions but the first the layout."""
    for name in layout.names[1:]:
        part = QueueKeys(prefix, name)
        call = store_layout(part.meta, *stored(layout), beginning.settings, beginning.deleted)
        if not await transport.call(call):
            # A deletion was interrupted, or a call of a client that still knew a deleted queue came later.
            await delete_keys(transport, part, force=True, layout=layout.number - 1)
            await transport.call(call)
