"""Which rows of a task are jobs already, by the counts of the partitions (docs/design/partitions.md)."""

from __future__ import annotations

from collections.abc import Sequence

from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._features.partitions.layout import Layout
from glidemq_py._features.staged_writes import OnceCounts, OnceLayout
from glidemq_py.errors import StagedWriteError
from glidemq_py.spark.placing import Earlier

__all__ = ["earlier_rows"]


def earlier_rows(
    write: str, queue: str, layout: Layout, replies: Sequence[OnceCounts]
) -> tuple[list[Earlier], OnceLayout]:
    """Return the rows that were added by each other layout, oldest first, and how rows are placed now.

    Args:
        write: id of the write.
        queue: name of the queue.
        layout: its layout.
        replies: the counts of each of its partitions, also of former ones.

    Raises:
        StagedWriteError: Rows may have been added, and it is unknown which: a part of the counts was lost.
        LayoutChangedError: An attempt has a later layout.
    """
    found: list[Earlier] = []
    before = 0
    for number, (own, rows) in sorted(_by_layout(write, queue, replies).items()):
        if number > layout.number:
            raise LayoutChangedError(queue, number, layout.number)
        if own.before != before:
            raise StagedWriteError(write, queue, "gap")
        if number < layout.number:
            found.append(Earlier([rows.get(position, 0) for position in range(own.partitions)]))
            before += sum(rows.values())
    return found, OnceLayout(layout.number, layout.partitions, before)


def _by_layout(write: str, queue: str, replies: Sequence[OnceCounts]) -> dict[int, tuple[OnceLayout, dict[int, int]]]:
    """Return the rows added by each layout, by the position of the partition.

    Raises:
        StagedWriteError: Version 0.1.0 has counted calls, or the counts contradict each other.
    """
    found: dict[int, tuple[OnceLayout, dict[int, int]]] = {}
    for position, reply in enumerate(replies):
        if reply.state == "unknown":
            raise StagedWriteError(write, queue, "gap")
        for layout, rows in reply.rows():
            own, by_position = found.setdefault(layout.number, (layout, {}))
            by_position[position] = rows
            if own != layout or position >= layout.partitions:
                raise StagedWriteError(write, queue, "gap")
    return found
