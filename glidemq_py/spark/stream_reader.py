"""The common part of the streams of a queue: Spark's protocol of offsets, limits and losses, for all partitions.

Each partition has a stream of its own, with consecutive numbers. An offset of the queue is the position in each of
them. A partition that is not in an offset was created later, so it is read from its beginning. One that has left the
layout stays in the offset, and is read to its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.layout import Partition
from glidemq_py.errors import GlideMQError
from glidemq_py.spark.api import (
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from glidemq_py.spark.columns import Columns
from glidemq_py.spark.options import transport_of
from glidemq_py.spark.partitioned import layout_of
from glidemq_py.spark.read_options import ReadOptions

__all__ = ["Offset", "Part", "Position", "QueueStreamReader", "divided"]

_log = get_logger(__name__)
_PAUSE_S: Final = 0.25
"""The server is asked for the end of a stream that gets no entries so often; Spark requests it every 10 ms."""

Position = dict[str, Any]
"""Where the stream of one partition is read to. `number` is that of the last entry read."""
Offset = dict[str, Any]
"""What Spark stores: the position; of a partitioned queue, `partitions`: number, name and position of each."""


class Part(NamedTuple):
    """A queue without partitions, or one partition.

    Attributes:
        keys: its keys.
        home: number of the partition, and name of the queue; None = the queue has no partitions.
    """

    keys: QueueKeys
    home: Partition | None

    def id_of(self, job_id: str) -> str:
        """Return the id in the whole queue."""
        return job_id if self.home is None else self.home.id_of(job_id)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of a queue's entries. The server trims them, so `commit` does nothing.

    Args:
        options: options of the read.
        columns: requested columns.
    """

    _BEGINNING: ClassVar[Position]
    """Before the first entry of a partition."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._initial: Offset | None = None
        self._targets: dict[str, Position] = {}
        """Where to stop, with the trigger availableNow."""
        self._parts: dict[str, Part] = {}
        """The partitions of the present layout, by their names."""
        self._next_look = 0.0
        self._last_end: Offset | None = None
        """The end that was returned last."""
        self._pause = 0.0
        """How long the stream is not looked at, as it has no new entries; 0 = it had some."""

    # -- one partition, implemented for each kind of entries ---------------------------------------------------------

    def _start(self, part: Part) -> Position:
        """Return the position at which a query without a checkpoint starts."""
        raise NotImplementedError

    def _newest(self, parts: Sequence[Part]) -> list[Position]:
        """Return the position of the newest entry of each partition."""
        raise NotImplementedError

    def _ends(self, parts: Sequence[tuple[Part, Position]]) -> list[Position]:
        """Return the newest position of each partition, at most its target, given where it is read to."""
        raise NotImplementedError

    def _ahead(self, part: Part, start: Position, most: int) -> Position:
        """Return the position at most so many entries later."""
        raise NotImplementedError

    def _count(self, start: Position, end: Position) -> int:
        """Return the number of entries between two positions; 0 if the numbers have begun again."""
        return max(0, int(end["number"]) - int(start["number"]))

    def _pieces(self, part: Part, start: Position, end: Position, most: int) -> list[InputPartition]:
        """Return what tasks read, at most so many."""
        raise NotImplementedError

    def _lost(self, count: int | None) -> None:
        """Report lost entries."""
        raise NotImplementedError

    def _search(self, *, whole: bool) -> None:
        """Look for entries that are not in the streams yet."""

    # -- the queue, on the driver ------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802  # PySpark's name
        """Return the start of a query without a checkpoint; cached, because Spark calls it twice."""
        if self._initial is None:
            self._look(whole=True)
            self._initial = self._joined(self._parts, {name: self._start(part) for name, part in self._parts.items()})
        return self._initial

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # PySpark's name
        """Return the limit set by `maxOffsetsPerTrigger`."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802  # PySpark's name
        """Return the end of the next micro-batch. PySpark before 4.2 gives no start."""
        if self._is_idle() and start in (None, self._last_end):
            assert self._last_end is not None
            return self._last_end
        self._look()
        before = self._split(start)
        parts = {name: part for name, (part, _) in before.items()} | self._parts
        starts = self._starts(before, parts)
        found = self._ends([(part, starts[name]) for name, part in parts.items()])
        ends, most = dict(zip(parts, found, strict=True)), self._most(limit)
        counts = {name: self._count(starts[name], end) for name, end in ends.items()}
        if most is not None and sum(counts.values()) > most:
            for name, share in divided(counts, most).items():
                if share < counts[name]:
                    ends[name] = self._ahead(parts[name], starts[name], share) if share else starts[name]
        end = self._joined(parts, ends)
        self._pause = min(2 * self._pause or _PAUSE_S / 16, _PAUSE_S) if end == (start or self._last_end) else 0.0
        if self._pause:
            self._next_look = time.monotonic() + self._pause
        self._last_end = end
        return end

    def _is_idle(self) -> bool:
        """Return whether the stream had no new entries a short while ago."""
        return self._pause > 0 and time.monotonic() < self._next_look

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802  # PySpark's name
        """Return the newest offset, for the query's progress report."""
        if self._is_idle():
            return self._last_end
        self._look()
        return self._joined(self._parts, self._newest_of_all())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # PySpark's name
        """Stop at the newest entries that exist now."""
        self._targets, self._last_end, self._pause = {}, None, 0.0
        self._look(whole=True)
        self._targets = self._newest_of_all()

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return what the tasks of a micro-batch read."""
        before, after = self._split(start), self._split(end)
        if before.keys() - after.keys():  # PySpark before 4.2: a partition has left the layout
            self._lost(None)
        starts = self._starts(before, after)
        changed = [(part, starts[name], to) for name, (part, to) in after.items() if starts[name] != to]
        most = max(1, self._options.partitions // max(1, len(changed)))
        return [piece for part, at, to in changed for piece in self._pieces(part, at, to, most)]

    def commit(self, end: Offset) -> None:
        """Do nothing: the server trims the entries."""

    def stop(self) -> None:
        """Do nothing."""

    def _look(self, *, whole: bool = False) -> None:
        """Read the layout of the queue, and search for entries; a few times per second, or now if ``whole``.

        A run with targets has the partitions of its beginning.
        """
        if not whole and time.monotonic() < self._next_look:
            return
        if not self._targets:
            keys = self._options.keys
            layout = layout_of(transport_of(self._options.place, check=True), keys)
            rows = [(None, keys.name)] if layout is None else enumerate(layout.names)
            self._parts = {name: self._part(number, name) for number, name in rows}
        self._search(whole=whole)
        self._next_look = time.monotonic() + _PAUSE_S

    def _newest_of_all(self) -> dict[str, Position]:
        return dict(zip(self._parts, self._newest([*self._parts.values()]), strict=True))

    def _part(self, number: int | None, name: str) -> Part:
        keys = self._options.keys
        return Part(QueueKeys(keys.prefix, name), None if number is None else Partition(number, keys.name))

    def _split(self, offset: Offset | None) -> dict[str, tuple[Part, Position]]:
        """Return the partitions in an offset, and the position in each, by their names."""
        if offset is None:
            return {}
        rows = offset.get("partitions", [[None, self._options.keys.name, offset]])
        return {name: (self._part(number, name), position) for number, name, position in rows}

    def _starts(self, before: Mapping[str, tuple[Part, Position]], names: Iterable[str]) -> dict[str, Position]:
        """Return where partitions are read to; those that are not in the offset are new."""
        return {name: before[name][1] if name in before else self._BEGINNING for name in names}

    def _joined(self, parts: Mapping[str, Part], positions: Mapping[str, Position]) -> Offset:
        """Return an offset: the inverse of `_split`."""
        if all(part.home is None for part in parts.values()):
            (position,) = positions.values()
            return position
        numbers = {name: 0 if part.home is None else part.home.number for name, part in parts.items()}
        in_order = sorted(parts, key=lambda name: (numbers[name], name))
        return {"partitions": [[parts[name].home and numbers[name], name, positions[name]] for name in in_order]}

    def _most(self, limit: Any) -> int | None:
        """Return how many entries Spark's limit allows, or None for all."""
        if isinstance(limit, ReadAllAvailable):
            return None
        return limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets

    def _report(self, loss: GlideMQError) -> None:
        """Raise the error of a loss, or log it if the user chose to continue."""
        if self._options.fail_on_loss:
            raise loss
        _log.warning("%s", loss)


def divided(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """Return how many of each are read, together at most ``most``: equal shares, and the rest of those with few.

    If not all can be read, those with the most are, so that none waits for ever.
    """
    if most < sum(count > 0 for count in counts.values()):
        fullest = sorted(counts, key=lambda each: -counts[each])[:most]
        return {name: int(name in fullest) for name in counts}
    found: dict[str, int] = {}
    for left, name in enumerate(sorted(counts, key=lambda each: counts[each])):
        found[name] = min(counts[name], -(-most // (len(counts) - left)))
        most -= found[name]
    return found
