"""Reading a queue's events as a stream.

An offset is an event's id and its number among all events ever written. The server keeps the newest thousand, or as
many as `Queue.set_event_retention` sets. The numbers show exactly how many unread events were trimmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from glidemq_py._client.transport import BlockingTransport
from glidemq_py._core.calls.reading import EventSlice, event_slice
from glidemq_py.errors import EventsLostError
from glidemq_py.spark.api import InputPartition
from glidemq_py.spark.columns import Columns, Frame, ours
from glidemq_py.spark.options import transport_of
from glidemq_py.spark.partitioned import reject_partitions
from glidemq_py.spark.read_options import ReadOptions
from glidemq_py.spark.stream_reader import Offset, QueueStreamReader

__all__ = ["EventsReader", "Slice"]

_PAGE: Final = 500
_BEGINNING: Final = "0-0"
_LAST: Final = 2**64 - 1
"""The last event of a millisecond."""


@dataclass
class Slice(InputPartition):
    """Events after one offset, up to and including another."""

    after: str
    after_number: int
    until: str
    until_number: int


class EventsReader(QueueStreamReader):
    """Reads the events of a queue.

    Args:
        options: options of the read.
        columns: requested columns.
    """

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        super().__init__(options, columns)
        self._last: Offset | None = None

    # -- offsets, on the driver ---------------------------------------------------------------------------------

    def _start(self) -> Offset:
        transport, starting = transport_of(self._options.place, check=True), self._options.starting
        reject_partitions(transport, self._options.keys)
        now = self._page(transport, _BEGINNING, 0)
        if starting == "latest" and self._options.starting_at is None:
            return _offset(now.last, now.added)
        if starting == "earliest":
            return _offset(_BEGINNING, now.added - now.kept)
        if self._options.starting_at is not None:
            after = f"{self._options.starting_at - 1}-{_LAST}" if self._options.starting_at else _BEGINNING
        else:
            after = starting if "-" in starting else f"{starting}-0"
        # The number of an event follows from the number of later events.
        behind, at, page = 0, after, self._page(transport, after, _PAGE)
        while page.entries:
            behind += len(page.entries)
            at, _ = page.entries[-1]
            page = self._page(transport, at, _PAGE)
        return _offset(after, page.added - behind)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802  # PySpark's name
        """Return the end of the next micro-batch."""
        start = start or self._last or self.initialOffset()
        end = self._target or self._newest()
        most = self._most(limit)
        if most is None or end["number"] - start["number"] <= most:
            return end if end["number"] >= start["number"] else self._after_reset(start, end)
        return self._ahead(start, most)

    def _newest(self) -> Offset:
        now = self._page(transport_of(self._options.place, check=True), _BEGINNING, 0)
        return _offset(now.last, now.added)

    def _after_reset(self, start: Offset, end: Offset) -> Offset:
        """Handle a total below the number of events read: the queue was deleted and recreated."""
        self._lost(end["number"] - start["number"])
        return end

    def _ahead(self, start: Offset, most: int) -> Offset:
        transport = transport_of(self._options.place)
        after, number, left = start["id"], start["number"], most
        while left > 0:
            page = self._page(transport, after, min(left, _PAGE), ids_only=True)
            if not page.entries:
                break
            number = max(number, page.added - page.kept) + len(page.entries)
            after, _ = page.entries[-1]
            left -= len(page.entries)
        return _offset(after, number)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return one slice: events are read in order."""
        self._last = end
        if start == end:
            return []
        number = start["number"]
        after = start["id"]
        if end["number"] < number:  # the queue was recreated
            after, number = _BEGINNING, 0
        return [Slice(after=after, after_number=number, until=end["id"], until_number=end["number"])]

    # -- reading, in tasks --------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the events of a slice as Arrow batches."""
        assert isinstance(partition, Slice)
        transport, frame = transport_of(self._options.place), Frame(self._columns)
        after, number = partition.after, partition.after_number
        more = True
        while more:
            page = self._page(transport, after, _PAGE)
            trimmed = min(page.added - page.kept, partition.until_number)
            if trimmed > number:
                self._lost(trimmed - number)
                number = trimmed
            rows = [(entry, flat) for entry, flat in page.entries if _key(entry) <= _key(partition.until)]
            number += len(rows)
            if rows:
                after, _ = rows[-1]
            more = len(rows) == _PAGE and after != partition.until
            if rows:
                yield self._batch(frame, rows)
        if number != partition.until_number:
            self._lost(partition.until_number - number)

    def _lost(self, count: int) -> None:
        """Report lost events; a negative count means that the queue was deleted and recreated."""
        self._report(EventsLostError(self._options.keys.name, count if count > 0 else None))

    def _batch(self, frame: Frame, entries: list[tuple[str, list[str]]]) -> Any:
        pairs = [dict(zip(flat[::2], flat[1::2], strict=False)) for _, flat in entries]
        found: list[Any] = []
        for name, _ in self._columns:
            field = ours(name, "events")
            if field == "eventId":
                found.append([entry for entry, _ in entries])
            elif field == "timestamp":
                found.append([entry.partition("-")[0] for entry, _ in entries])
            elif field == "fields":
                found.append([[(k, v) for k, v in each.items() if k not in ("event", "jobId")] for each in pairs])
            else:
                found.append([each.get(field) for each in pairs])
        return frame.batch(found, len(entries))

    def _page(self, transport: BlockingTransport, after: str, count: int, *, ids_only: bool = False) -> EventSlice:
        return transport.call(event_slice(self._options.keys.meta, after, count, ids_only))


def _offset(event_id: str, number: int) -> Offset:
    return {"id": event_id, "number": number}


def _key(event_id: str) -> tuple[int, int]:
    ms, _, seq = event_id.partition("-")
    return int(ms), int(seq or 0)
