"""The layouts of partitioned queues in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from glidemq_py._client.portal import BlockingTransport, drive
from glidemq_py._core.keys import QueueKeys
from glidemq_py._partitions.layout import Layout, Partition
from glidemq_py._partitions.routing import candidates
from glidemq_py._partitions.stored import FIELD, layout_in, write_again
from glidemq_py.errors import GlideMQError
from glidemq_py.spark.read_options import ReadOptions

__all__ = ["agreed_layouts_of", "ids_in", "layout_of", "layouts_of", "options_of"]

_READS: Final = 1_000
"""Commands that are sent together."""


def layout_of(transport: BlockingTransport, keys: QueueKeys) -> Layout | None:
    """Return the layout of a queue; None if it has no partitions."""
    (layout,) = layouts_of(transport, [keys])
    return layout


def layouts_of(transport: BlockingTransport, queues: Sequence[QueueKeys]) -> list[Layout | None]:
    """Return the layouts of queues, read together; None for a queue without partitions."""
    replies = _fields_of(transport, queues, FIELD)
    return [layout_in(keys.name, reply) for keys, reply in zip(queues, replies, strict=True)]


def agreed_layouts_of(transport: BlockingTransport, queues: Sequence[QueueKeys]) -> list[Layout | None]:
    """Return the layouts of queues, after writing them again into partitions that have lost them in a failover."""
    layouts = layouts_of(transport, queues)
    others = [
        QueueKeys(keys.prefix, name)
        for keys, layout in zip(queues, layouts, strict=True)
        for name in (() if layout is None else layout.names[1:])
    ]
    stored = iter(_fields_of(transport, others, "layoutNumber"))
    for n, (keys, layout) in enumerate(zip(queues, layouts, strict=True)):
        if layout is not None and any(
            isinstance(reply, GlideMQError) or int(reply[0] or 0) != layout.number
            for reply in list(islice(stored, layout.partitions - 1))
        ):
            layouts[n] = drive(write_again(transport.transport, keys, layout))
    return layouts


def _fields_of(transport: BlockingTransport, queues: Sequence[QueueKeys], field: str) -> list[Any]:
    """Return a field of the meta key of each queue: the reply to HMGET, or its error."""
    commands = [("HMGET", keys.meta, field) for keys in queues]
    return [
        reply
        for first in range(0, len(commands), _READS)
        for reply in transport.send_reads(None, commands[first : first + _READS])
    ]


def options_of(options: ReadOptions, name: str) -> ReadOptions:
    """Return the options for one partition."""
    return replace(options, keys=QueueKeys(options.keys.prefix, name))


def ids_in(ids: frozenset[str], number: int, layout: Layout) -> frozenset[str]:
    """Return the ids in a partition of the wanted jobs that it may have."""
    queue = layout.names[0]
    return frozenset(
        own
        for wanted in ids
        for place, own in candidates(wanted, layout)
        if place == number and wanted in (own, Partition(number, queue).id_of(own))
    )
