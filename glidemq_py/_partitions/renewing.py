"""Reading a layout again that partitions have refused, and repairing it after a failover has lost a part of it.

The layout that a client has used shows the cause: see docs/design/partitions.md, "Adding".
"""

from __future__ import annotations

from typing import Any, Final

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.layout import Layout
from glidemq_py._partitions.stored import read_layout, restore_layout, store_layout, stored
from glidemq_py.errors import GlideMQError

_log = get_logger(__name__)
_NUMBER: Final = "layoutNumber"


async def renewed_layout(
    transport: JobTransport, keys: QueueKeys, known: Layout | None, *, refused: bool = False
) -> Layout | None:
    """Read the layout of a queue again; None if it has no partitions.

    Args:
        transport: The connection.
        keys: Keys of the queue.
        known: The layout that the client has used; None if it knew of no partitions.
        refused: True if a partition has refused it.

    Raises:
        LayoutChangedError: If the queue is being obliterated.
        GlideMQError: If the stored layout is damaged.
    """
    layout = await read_layout(transport, keys)
    if known is None:
        return layout
    if layout is None or layout.number < known.number:
        if known.number in await _numbers(transport, keys, known):
            if await transport.call(restore_layout(keys.meta, *stored(known))):
                _log.warning("queue %r: partition 0 had lost the layout of its partitions; restored", keys.name)
            layout = await read_layout(transport, keys)
    elif refused and layout == known:
        layout = await write_again(transport, keys, layout)
    return layout


async def write_again(transport: JobTransport, keys: QueueKeys, layout: Layout) -> Layout | None:
    """Write the number of the present layout into the partitions that have lost it. Return the layout that applies.

    A partition has a later number if partition 0 had lost the layout, and got it back while another client created the
    partitions again: then that number becomes the one of all.

    Raises:
        LayoutChangedError: If the queue is being obliterated.
    """
    numbers = await _numbers(transport, keys, layout)
    if max(numbers) > layout.number:
        before, layout = layout.number, Layout(max(numbers), layout.names)
        if not await transport.call(restore_layout(keys.meta, *stored(layout), before)):
            return await read_layout(transport, keys)
    for name, number in zip(layout.names[1:], numbers, strict=True):
        if number != layout.number:
            await transport.call(store_layout(QueueKeys(keys.prefix, name).meta, *stored(layout)))
            _log.warning("queue %r: partition %r had lost its layout; restored", keys.name, name)
    return layout


async def _numbers(transport: JobTransport, keys: QueueKeys, layout: Layout) -> list[int]:
    """Return the numbers of the layouts that the further partitions have."""
    return [await _number(transport, QueueKeys(keys.prefix, name)) for name in layout.names[1:]]


async def _number(transport: JobTransport, part: QueueKeys) -> int:
    reply: Any
    (reply,) = await transport.send_reads(part.meta, [("HMGET", part.meta, _NUMBER)])  # repeatable
    if isinstance(reply, GlideMQError):
        raise reply
    (number,) = reply
    return int(number or 0)
