"""Reading a queue's events as a stream.

A position is an event's id and its number among all events ever written. The server keeps the newest thousand, or as
many as `Queue.settings.set_event_retention` sets. The numbers show exactly how many unread events were trimmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_py._core.calls.administration import EventSlice, event_slice
from glidemq_py.errors import DataLostError
from glidemq_py.spark.api import InputPartition
from glidemq_py.spark.columns import Frame, ours
from glidemq_py.spark.options import transport_of
from glidemq_py.spark.stream_reader import Part, Position, QueueStreamReader

__all__ = ["EventsReader", "Slice"]

_PAGE: Final = 500
_FIRST: Final = "0-0"
_LAST: Final = 2**64 - 1
"""The last event of a millisecond."""


def _position(event_id: str, number: int) -> Position:
    return {"id": event_id, "number": number}


@dataclass
class Slice(InputPartition):
    """Events of a partition after one position, up to and including another."""

    part: Part
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

    _BEGINNING = _position(_FIRST, 0)

    # -- positions, on the driver -------------------------------------------------------------------------------

    def _start(self, part: Part) -> Position:
        starting, now = self._options.starting, self._page(part, _FIRST, 0)
        if starting == "latest" and self._options.starting_at is None:
            return _position(now.last, now.added)
        if starting == "earliest":
            return _position(_FIRST, now.added - now.kept)
        if self._options.starting_at is not None:
            after = f"{self._options.starting_at - 1}-{_LAST}" if self._options.starting_at else _FIRST
        else:  # ids are times, so one is good for all partitions
            after = starting if "-" in starting else f"{starting}-0"
        return _position(after, self._number_of(part, after))

    def _number_of(self, part: Part, event_id: str) -> int:
        """Return the number of an event: it follows from the number of later events."""
        behind, page = 0, self._page(part, event_id, _PAGE, ids_only=True)
        while page.entries:
            behind += len(page.entries)
            page = self._page(part, page.entries[-1][0], _PAGE, ids_only=True)
        return page.added - behind

    def _newest(self, parts: Sequence[Part]) -> list[Position]:
        calls = [event_slice(part.keys.meta, _FIRST, 0) for part in parts]
        found = transport_of(self._options.place, check=True).call_all(calls)
        return [_position(now.last, now.added) for now in found]

    def _ends(self, parts: Sequence[tuple[Part, Position]]) -> list[Position]:
        newest = self._newest([part for part, _ in parts])
        return [self._targets.get(part.keys.name, end) for (part, _), end in zip(parts, newest, strict=True)]

    def _ahead(self, part: Part, start: Position, most: int) -> Position:
        after, number, left = start["id"], start["number"], most
        while left > 0:
            page = self._page(part, after, min(left, _PAGE), ids_only=True)
            if not page.entries:
                break
            number = max(number, page.added - page.kept) + len(page.entries)
            after, _ = page.entries[-1]
            left -= len(page.entries)
        target = self._targets.get(part.keys.name)
        return _position(after, number) if target is None or _key(after) < _key(target["id"]) else target

    def _pieces(self, part: Part, start: Position, end: Position, most: int) -> list[InputPartition]:
        """Return one slice: events are read in order."""
        if end["number"] < start["number"]:
            # The queue was deleted and created again, or a failover has lost events. Ids are times, so what is left
            # after the start was not read.
            self._lost(None)
            start = _position(start["id"], self._number_of(part, start["id"]))
        return [
            Slice(
                part=part, after=start["id"], after_number=start["number"], until=end["id"], until_number=end["number"]
            )
        ]  # fmt: skip

    # -- reading, in tasks --------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the events of a slice as Arrow batches."""
        assert isinstance(partition, Slice)
        part, frame = partition.part, Frame(self._columns)
        after, number = partition.after, partition.after_number
        more = True
        while more:
            page = self._page(part, after, _PAGE)
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
                yield self._batch(part, frame, rows)
        if number != partition.until_number:
            self._lost(partition.until_number - number)

    def _lost(self, count: int | None) -> None:
        """Report lost events; None or a negative count: the queue was deleted, or a failover has lost some."""
        self._report(DataLostError(self._options.keys.name, "events", count))

    def _batch(self, part: Part, frame: Frame, entries: list[tuple[str, list[str]]]) -> Any:
        pairs = [dict(zip(flat[::2], flat[1::2], strict=False)) for _, flat in entries]
        found: list[Any] = []
        for name, _ in self._columns:
            field = ours(name, "events")
            if field == "eventId":
                found.append([part.id_of(entry) for entry, _ in entries])
            elif field == "timestamp":
                found.append([entry.partition("-")[0] for entry, _ in entries])
            elif field == "fields":
                found.append([[(k, v) for k, v in each.items() if k not in ("event", "jobId")] for each in pairs])
            elif field == "jobId" and part.home is not None:
                shown = part.home.id_in_event
                found.append([(job := each.get("jobId")) and shown(each.get("event", ""), job) for each in pairs])
            else:
                found.append([each.get(field) for each in pairs])
        return frame.batch(found, len(entries))

    def _page(self, part: Part, after: str, count: int, *, ids_only: bool = False) -> EventSlice:
        return transport_of(self._options.place).call(event_slice(part.keys.meta, after, count, ids_only))


def _key(event_id: str) -> tuple[int, int]:
    ms, _, seq = event_id.partition("-")
    return int(ms), int(seq or 0)
