"""Reading finished jobs as a stream, by the numbers of the queue's result sequence (``docs/design/results.md``).

A position is the id of the sequence, a number, and the job with that number. The server gives the numbers, so clocks do
not matter. The job shows that a failover has lost numbers which were read before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_py._core.calls import Call
from glidemq_py._features import results
from glidemq_py.errors import DataLostError, GlideMQValidationError
from glidemq_py.spark.api import InputPartition
from glidemq_py.spark.columns import Columns, Frame, column_batch, ours
from glidemq_py.spark.options import transport_of
from glidemq_py.spark.partitioned import layout_of
from glidemq_py.spark.read_options import ReadOptions
from glidemq_py.spark.stream_reader import Part, Position, QueueStreamReader

__all__ = ["Numbers", "ResultsReader"]

_SEARCHED: Final = 1_000
"""Jobs per call of a search: about a millisecond of server time."""
_TOGETHER: Final = 8
"""Partitions that are searched at once, so the cost of a search does not grow with their number."""
_BATCH_ROWS: Final = 5_000


def _position(sequence: str, number: int, job: str = "") -> Position:
    return {"sequence": sequence, "number": number, "job": job}


@dataclass
class Numbers(InputPartition):
    """The results of a partition after one number, up to and including another."""

    part: Part
    after: int
    until: int


class ResultsReader(QueueStreamReader):
    """Reads the finished jobs of a queue.

    Args:
        options: options of the read.
        columns: requested columns.
    """

    _BEGINNING = _position("", 0)

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        super().__init__(options, columns)
        self._cursors: dict[str, str] = {}
        self._all_searched: set[str] = set()
        self._turn = 0

    # -- positions, on the driver -------------------------------------------------------------------------------

    def _start(self, part: Part) -> Position:
        starting, now = self._options.starting, self._range(part)
        if self._options.starting_at is not None:
            return self._at(part, now, self._since(part, self._options.starting_at, now.first - 1))
        if starting == "earliest":
            return _position(now.id, now.first - 1)
        if starting == "latest":
            return _position(now.id, now.last, now.stop_job)
        if part.home is not None:
            problem = "must be earliest or latest in a partitioned queue; or give startingTimestamp"
            raise GlideMQValidationError("startingOffsets", starting, problem)
        if not starting.isdigit() or int(starting) > now.last:
            problem = f"must be earliest, latest or a number from 0 to {now.last}, that of the last finished job"
            raise GlideMQValidationError("startingOffsets", starting, problem)
        return self._at(part, now, int(starting))

    def _at(self, part: Part, now: results.Range, number: int) -> Position:
        return _position(now.id, number, self._range(part, number).start_job)

    def _since(self, part: Part, at: int, number: int) -> int:
        transport = transport_of(self._options.place)
        while True:
            number, done = transport.call(results.since(part.keys.meta, at, number, _SEARCHED))
            if done:
                return number

    def _newest(self, parts: Sequence[Part]) -> list[Position]:
        found = transport_of(self._options.place, check=True).call_all(
            [results.range_of(part.keys.meta) for part in parts]
        )
        return [_position(now.id, now.last, now.stop_job) for now in found]

    def _ends(self, parts: Sequence[tuple[Part, Position]]) -> list[Position]:
        calls = [self._range_call(part, start, 0) for part, start in parts]
        found = transport_of(self._options.place, check=True).call_all(calls)
        return [self._end(part, start, 0, now) for (part, start), now in zip(parts, found, strict=True)]

    def _ahead(self, part: Part, start: Position, most: int) -> Position:
        now = transport_of(self._options.place).call(self._range_call(part, start, most))
        return self._end(part, start, most, now)

    def _end(self, part: Part, start: Position, most: int, now: results.Range) -> Position:
        if not now.id:
            if self._is_gone(part):
                return start
            self._search_all(part)  # a new partition, or the queue was deleted
            now = transport_of(self._options.place).call(self._range_call(part, start, most))
        if now.id != start["sequence"]:
            asked, start = start, _position(now.id, 0)
            if asked["number"] or part.keys.name in self._targets:
                now = transport_of(self._options.place).call(self._range_call(part, start, most))
        if not _renumbered(start, now):
            target = self._target(part, start)
            if now.stop == start["number"] or (target is not None and target <= start["number"] <= now.last):
                return start
        return _position(now.id, now.stop, now.stop_job)

    def _is_gone(self, part: Part) -> bool:
        """Return whether a partition has left the layout. Nothing is written to it then: its keys would come back."""
        if part.keys.name not in self._parts:
            return True
        if part.home is None:
            return False
        layout = layout_of(transport_of(self._options.place), self._options.keys)
        return layout is None or part.keys.name not in layout.names

    def _range_call(self, part: Part, start: Position, most: int) -> Call[results.Range]:
        return results.range_of(part.keys.meta, start["number"], most, self._target(part, start) or 0)

    def _target(self, part: Part, start: Position) -> int | None:
        """Return the number where to stop in the sequence of a position; None = at its end."""
        target = self._targets.get(part.keys.name)
        return int(target["number"]) if target is not None and target["sequence"] == start["sequence"] else None

    def _range(self, part: Part, start: int = 0) -> results.Range:
        return transport_of(self._options.place, check=True).call(results.range_of(part.keys.meta, start))

    def _count(self, start: Position, end: Position) -> int:
        if start["sequence"] != end["sequence"]:
            return int(end["number"])
        return super()._count(start, end)

    # -- searching for results without a number, on the driver ---------------------------------------------------

    def _search(self, *, whole: bool) -> None:
        """Search the newest jobs, and one further part of all finished ones; in some partitions, which take turns.

        ``whole``: in all partitions. Where it is the first search, give a number to every job that has finished.
        """
        names = [*self._parts]
        if not whole and len(names) > _TOGETHER:
            names = [names[(self._turn + n) % len(names)] for n in range(_TOGETHER)]
            self._turn += _TOGETHER
        new = [name for name in names if whole and name not in self._all_searched]
        for name in new:
            self._search_all(self._parts[name])
        some = [name for name in names if name not in new]
        calls = [results.find(self._parts[name].keys.meta, self._cursors.get(name, ""), _SEARCHED) for name in some]
        if calls:
            found = transport_of(self._options.place).call_all(calls)
            self._cursors.update(zip(some, (each.cursor for each in found), strict=True))

    def _search_all(self, part: Part) -> None:
        """Turn the sequence on, and number every job that has finished."""
        transport, meta, cursor = transport_of(self._options.place), part.keys.meta, ""
        transport.call(results.start_sequence(meta))
        while True:
            cursor, _ = transport.call(results.find(meta, cursor, _SEARCHED))
            if not cursor:
                break
        self._cursors[part.keys.name] = ""
        self._all_searched.add(part.keys.name)

    # -- planning, on the driver --------------------------------------------------------------------------------

    def _pieces(self, part: Part, start: Position, end: Position, most: int) -> list[InputPartition]:
        """Return ranges of numbers, of about equal size."""
        after, until = self._checked_start(part, start, end), end["number"]
        count = until - after
        cuts = max(1, min(most, -(-count // self._options.fetch_size)))
        edges = [after + count * n // cuts for n in range(cuts + 1)]
        return [Numbers(part=part, after=edges[n], until=edges[n + 1]) for n in range(cuts)] if count > 0 else []

    def _checked_start(self, part: Part, start: Position, end: Position) -> int:
        """Return the number after which the batch begins.

        Raises:
            DataLostError: if results are missing.
        """
        now, number = self._range(part, start["number"]), int(start["number"])
        if now.id != end["sequence"]:  # its numbers are those of other jobs now, which the next batch reads
            self._lost(None)
            return int(end["number"])
        if start["sequence"] not in ("", end["sequence"]):
            self._lost(None)
            return 0
        if number > end["number"] or _renumbered(start, now):
            self._lost(None)
        elif number < now.first - 1:
            lost = min(now.first - 1, int(end["number"])) - number
            self._lost(lost)
            return number + lost
        return number

    # -- reading, in tasks --------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the jobs of one partition as Arrow batches."""
        assert isinstance(partition, Numbers)
        options, frame = self._options, Frame(self._columns, self._options.serializer)
        part, transport = partition.part, transport_of(options.place)
        fields = [ours(name, "jobs") for name, _ in self._columns]
        names = [field for field in fields if field not in ("id", "state")]
        after, lost = partition.after, 0
        rows: list[list[str | bool]] = []
        while after < partition.until:
            page = transport.call(
                results.page(part.keys.meta, after, partition.until, options.fetch_size, options.states, names)
            )
            last = page.last if page.scanned else partition.until
            lost += last - after - page.scanned + page.removed
            after = last
            rows += page.rows
            if len(rows) >= _BATCH_ROWS or (rows and after >= partition.until):
                ids, *others = zip(*rows, strict=True)
                yield column_batch(frame, fields, [[part.id_of(str(job_id)) for job_id in ids], *others])
                rows = []
        if lost:
            self._lost(lost)

    def _lost(self, count: int | None) -> None:
        """Report lost results; None: the sequence is another one, or has lost numbers."""
        self._report(DataLostError(self._options.keys.name, "results", count))


def _renumbered(start: Position, now: results.Range) -> bool:
    """Return whether another job has the number of a position."""
    return bool(start["job"] and now.start_job and now.start_job != start["job"])
