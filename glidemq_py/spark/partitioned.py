"""The layouts of partitioned queues in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final

from glidemq_py._client.driven_transport import DrivenTransport
from glidemq_py._client.runtime import run_immediately
from glidemq_py._client.transport import BlockingTransport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.partitions.layout import Layout, Partition
from glidemq_py._features.partitions.repairing import agreed_layout
from glidemq_py._features.partitions.routing import candidates
from glidemq_py._features.partitions.stored import FIELD, layout_in
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
    """Let all partitions of each queue have its layout, and return the layouts; None for a queue without partitions."""
    layouts = layouts_of(transport, queues)
    others = [
        [] if layout is None else [QueueKeys(keys.prefix, name) for name in layout.names[1:]]
        for keys, layout in zip(queues, layouts, strict=True)
    ]
    replies = iter(_fields_of(transport, list(chain.from_iterable(others)), "layoutNumber"))
    found: list[Layout | None] = []
    for keys, layout, partitions in zip(queues, layouts, others, strict=True):
        stored = list(islice(replies, len(partitions)))
        if layout is not None and not _is_agreed(layout, stored):
            layout = run_immediately(agreed_layout(DrivenTransport(transport), keys))
        found.append(layout)
    return found


def _is_agreed(layout: Layout, stored: Sequence[Any]) -> bool:
    """Return whether the partitions have the layout, given their replies; False if one is an error."""
    if any(isinstance(reply, GlideMQError) for reply in stored):
        return False
    numbers = [int(number or 0) for (number,) in stored]
    serving = numbers[: len(layout.served) - 1]
    return all(number == layout.number for number in serving) and max(numbers, default=0) <= layout.number


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
