"""The layouts of partitioned queues in Spark, and the queues that are rejected because they have one."""

from __future__ import annotations

from dataclasses import replace

from glidemq_py._client.driven_transport import DrivenTransport
from glidemq_py._client.runtime import run_immediately
from glidemq_py._client.transport import BlockingTransport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.partitions.layout import Layout, Partition
from glidemq_py._features.partitions.repairing import agreed_layout
from glidemq_py._features.partitions.routing import candidates
from glidemq_py._features.partitions.stored import read_layout
from glidemq_py.errors import PartitionedQueueError
from glidemq_py.spark.read_options import ReadOptions

__all__ = ["agreed_layout_of", "ids_in", "layout_of", "options_of", "reject_partitions"]


def layout_of(transport: BlockingTransport, keys: QueueKeys) -> Layout | None:
    """Return the layout of a queue; None if it has no partitions."""
    return run_immediately(read_layout(DrivenTransport(transport), keys))


def agreed_layout_of(transport: BlockingTransport, keys: QueueKeys) -> Layout | None:
    """Let all partitions of a queue have the same layout, and return it; None if it has no partitions."""
    if layout_of(transport, keys) is None:
        return None
    return run_immediately(agreed_layout(DrivenTransport(transport), keys))


def reject_partitions(transport: BlockingTransport, keys: QueueKeys) -> None:
    """Reject a partitioned queue.

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
