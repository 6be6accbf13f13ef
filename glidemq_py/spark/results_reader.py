"""Reading finished jobs as a stream, by the numbers of the queue's result sequence (``docs/design/results.md``).

An offset is the id of the sequence, a number, and the job with that number. The server gives the numbers, so clocks do
not matter. The job shows that a failover has lost numbers which were read before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from glidemq_py._features import results
from glidemq_py.errors import GlideMQValidationError, ResultsLostError
from glidemq_py.spark.api import InputPartition
from glidemq_py.spark.columns import Columns, Frame, column_batch, ours
from glidemq_py.spark.options import transport_of
from glidemq_py.spark.partitioned import reject_partitions
from glidemq_py.spark.read_options import ReadOptions
from glidemq_py.spark.stream_reader import Offset, QueueStreamReader

__all__ = ["Numbers", "ResultsReader"]

_SEARCHED: Final = 1_000
"""Jobs per call of a search: about a millisecond of server time."""
_BATCH_ROWS: Final = 5_000
_SEARCH_PAUSE_S: Final = 0.25
"""Spark requests the end of a stream every 10 ms while it waits for rows."""


@dataclass
class Numbers(InputPartition):
    """The results after one number, up to and including another."""

    after: int
    until: int


class ResultsReader(QueueStreamReader):
    """Reads the finished jobs of a queue.

    Args:
        options: options of the read.
        columns: requested columns.
    """

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        super().__init__(options, columns)
        self._cursor = ""
        self._next_search = 0.0
        self._all_searched = False

    # -- offsets, on the driver ---------------------------------------------------------------------------------

    def _start(self) -> Offset:
        reject_partitions(transport_of(self._options.place, check=True), self._options.keys)
        self._search_once()
        starting, now = self._options.starting, self._range()
        if self._options.starting_at is not None:
            return self._at(now, self._since(self._options.starting_at, now.first - 1))
        if starting == "earliest":
            return _offset(now.id, now.first - 1)
        if starting == "latest":
            return _offset(now.id, now.last, now.stop_job)
        if not starting.isdigit() or int(starting) > now.last:
            problem = f"must be earliest, latest or a number from 0 to {now.last}, that of the last finished job"
            raise GlideMQValidationError("startingOffsets", starting, problem)
        return self._at(now, int(starting))

    def _at(self, now: results.Range, number: int) -> Offset:
        return _offset(now.id, number, self._range(start=number).start_job)

    def _since(self, at: int, number: int) -> int:
        transport, meta = transport_of(self._options.place), self._options.keys.meta
        while True:
            number, done = transport.call(results.since(meta, at, number, _SEARCHED))
            if done:
                return number

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802  # PySpark's name
        """Return the end of the next micro-batch."""
        self._search_some()
        start, most = start or _offset("", 0), self._most(limit) or 0
        now = self._up_to(start, most)
        if not now.id:  # the queue was deleted
            self._search_all()
        if now.id != start["sequence"] or not now.id:
            start = _offset(self._range().id, 0)
            now = self._up_to(start, most)
        if now.stop == start["number"] and not _renumbered(start, now):
            return start
        return _offset(now.id, now.stop, now.stop_job)

    def _up_to(self, start: Offset, most: int) -> results.Range:
        target = 0
        if self._target is not None and self._target["sequence"] == start["sequence"]:
            target = self._target["number"]
        return self._range(start["number"], most, target)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # PySpark's name
        """Stop at the newest result that exists now."""
        self._search_once()
        super().prepareForTriggerAvailableNow()

    def _newest(self) -> Offset:
        now = self._range()
        return _offset(now.id, now.last, now.stop_job)

    def _range(self, start: int = 0, most: int = 0, target: int = 0) -> results.Range:
        call = results.range_of(self._options.keys.meta, start, most, target)
        return transport_of(self._options.place, check=True).call(call)

    # -- searching for results without a number, on the driver ---------------------------------------------------

    def _search_once(self) -> None:
        """Give a number to every job that has finished when the query starts; later, only to the newest ones."""
        if self._all_searched:
            self._next_search = 0.0
            self._search_some()
        else:
            self._search_all()

    def _search_all(self) -> None:
        """Turn the sequence on, and number every job that has finished."""
        transport, meta = transport_of(self._options.place), self._options.keys.meta
        transport.call(results.start_sequence(meta))
        self._cursor = ""
        while True:
            self._cursor, _ = transport.call(results.find(meta, self._cursor, _SEARCHED))
            if not self._cursor:
                break
        self._all_searched = True
        self._next_search = time.monotonic() + _SEARCH_PAUSE_S

    def _search_some(self) -> None:
        """Search the newest jobs, and one further part of all finished ones."""
        if time.monotonic() < self._next_search:
            return
        transport = transport_of(self._options.place)
        self._cursor, _ = transport.call(results.find(self._options.keys.meta, self._cursor, _SEARCHED))
        self._next_search = time.monotonic() + _SEARCH_PAUSE_S

    # -- planning, on the driver --------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return ranges of numbers, of about equal size."""
        if start == end:
            return []
        after, until = self._checked_start(start, end), end["number"]
        count = until - after
        cuts = max(1, min(self._options.partitions, -(-count // self._options.fetch_size)))
        edges = [after + count * n // cuts for n in range(cuts + 1)]
        return [Numbers(after=edges[n], until=edges[n + 1]) for n in range(cuts)] if count > 0 else []

    def _checked_start(self, start: Offset, end: Offset) -> int:
        """Return the number after which the batch begins.

        Raises:
            ResultsLostError: if results are missing.
        """
        if start["sequence"] != end["sequence"]:
            self._lost(None)
            return 0
        now, number = self._range(start["number"]), int(start["number"])
        if now.id != end["sequence"] or number > end["number"] or _renumbered(start, now):
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
        transport = transport_of(options.place)
        fields = [ours(name, "jobs") for name, _ in self._columns]
        names = [field for field in fields if field not in ("id", "state")]
        after, lost = partition.after, 0
        rows: list[list[str | bool]] = []
        while after < partition.until:
            page = transport.call(
                results.page(options.keys.meta, after, partition.until, options.fetch_size, options.states, names)
            )
            last = page.last if page.scanned else partition.until
            lost += last - after - page.scanned + page.removed
            after = last
            rows += page.rows
            if len(rows) >= _BATCH_ROWS or (rows and after >= partition.until):
                yield column_batch(frame, fields, list(zip(*rows, strict=True)))
                rows = []
        if lost:
            self._lost(lost)

    def _lost(self, count: int | None) -> None:
        """Report lost results; None: the sequence is another one, or has lost numbers."""
        self._report(ResultsLostError(self._options.keys.name, count))


def _renumbered(start: Offset, now: results.Range) -> bool:
    """Return whether another job has the number of an offset."""
    return bool(start["job"] and now.start_job and now.start_job != start["job"])


def _offset(sequence: str, number: int, job: str = "") -> Offset:
    return {"sequence": sequence, "number": number, "job": job}
