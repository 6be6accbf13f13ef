"""Read the number of jobs per state, which the server keeps: one call for a queue of any size, or per partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from glidemq_py._client.counting import FIGURES, complete_counts
from glidemq_py._client.portal import drive
from glidemq_py._core.calls import administration
from glidemq_py.spark.api import DataSourceReader, InputPartition
from glidemq_py.spark.columns import Columns, Frame, ours
from glidemq_py.spark.options import transport_of
from glidemq_py.spark.partitioned import layout_of, options_of
from glidemq_py.spark.read_options import ReadOptions

__all__ = ["CountsReader"]


class CountsReader(DataSourceReader):
    """Reads one row per state, in one partition.

    Args:
        options: options of the read.
        columns: the requested columns.
    """

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return the only partition."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the counts as one Arrow batch."""
        options, transport = self._options, transport_of(self._options.place)
        layout = layout_of(transport, options.keys)
        names = (options.keys.name,) if layout is None else layout.names
        found: Counter[str] = Counter()
        for each in names:
            meta = options_of(options, each).keys.meta
            counts = transport.call(administration.counts(meta))
            numbers = drive(complete_counts(transport.transport, meta, counts))
            found.update(dict(zip(FIGURES, numbers, strict=True)))
        rows = [{"queue": options.keys.name, "state": state, "jobs": str(found[state])} for state in options.states]
        columns = [ours(name, "counts") for name, _ in self._columns]
        yield Frame(self._columns).batch([[row[name] for row in rows] for name in columns], len(rows))
