"""Partitioned queues in lists: one queue instead of its partitions."""

from __future__ import annotations

from collections.abc import Iterable

from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.names import partition_home
from glidemq_py._partitions.layout import Layout
from glidemq_py._partitions.stored import read_layout
from glidemq_py.errors import GlideMQConnectionError, GlideMQError


async def whole_queues(transport: Transport, prefix: str, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the queues that have these names or partitions, each with the names of its partitions.

    A queue without partitions has its own name only. It costs a short read per name that looks like a partition's.

    Args:
        transport: The connection.
        prefix: Key prefix of the queues.
        names: The names.

    Raises:
        GlideMQConnectionError: The server cannot be reached.
    """
    found: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
    for home in sorted({home for name in found if (home := partition_home(name)) is not None}):
        layout = await _layout_of(transport, prefix, home)
        if layout is not None:
            for name in layout.names:
                found.pop(name, None)
            found[home] = layout.names
    return found


async def layout_or_name(transport: Transport, prefix: str, name: str) -> tuple[str, ...]:
    """Return the names of the partitions of a queue; its own name if it has none, or its layout is damaged.

    Args:
        transport: The connection.
        prefix: Key prefix of the queue.
        name: The queue.

    Raises:
        GlideMQConnectionError: The server cannot be reached.
    """
    layout = await _layout_of(transport, prefix, name)
    if layout is None:
        return (name,)
    return layout.names


async def _layout_of(transport: Transport, prefix: str, name: str) -> Layout | None:
    try:
        return await read_layout(transport, QueueKeys(prefix, name))
    except GlideMQConnectionError:
        raise
    except GlideMQError:  # opening the queue reports it
        return None
