"""Partitioned queues in Spark: jobs and counts are read from all partitions; other uses are rejected."""

from __future__ import annotations

from dataclasses import replace

from glidemq_py._client.transport import BlockingTransport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.partitions.layout import Layout, Partition
from glidemq_py._features.partitions.routing import candidates
from glidemq_py._features.partitions.stored import FIELD, parse_layout
from glidemq_py.errors import PartitionedQueueError
from glidemq_py.spark.read_options import ReadOptions

__all__ = ["ids_in", "layout_of", "options_of", "reject_partitions"]


def layout_of(transport: BlockingTransport, keys: QueueKeys) -> Layout | None:
    """Return the layout of a queue; None if it has no partitions."""
    text = transport.command("HGET", keys.meta, FIELD)
    return parse_layout(keys.name, bytes(text).decode("utf-8", "replace")) if text else None


def reject_partitions(transport: BlockingTransport, keys: QueueKeys) -> None:
    """Reject a partitioned queue: the jobs of a save would be in partition 0, whatever their keys are.

    Raises:
        PartitionedQueueError: If the queue is partitioned.
    """
    layout = layout_of(transport, keys)
    if layout is not None:
        raise PartitionedQueueError(keys.name, len(layout.served))


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
