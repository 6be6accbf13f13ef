"""Read jobs as a DataFrame: planned on the driver as ranges of an index, read in tasks, one page per call.

An index that is ordered by time (finished, delayed, prioritized, suspended jobs) is split at its quantiles: at a score
and a member, not at a rank, so that jobs added or removed meanwhile move no boundary. Waiting jobs are split into equal
ranges of their add time. Other states are one partition each.

A read of several states would meet a job again that moves from one to another. So one task reads all jobs that can
still move, and remembers their ids. Finished jobs stay where they are: all but the newest are read by ranges.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from glidemq_py._client.portal import BlockingTransport
from glidemq_py._core.calls import administration, pieces
from glidemq_py._partitions.layout import Partition
from glidemq_py.spark.api import DataSourceReader, InputPartition
from glidemq_py.spark.columns import Columns, Frame, job_batch, ours
from glidemq_py.spark.filters import Accepted, Wanted, accept, offer_filters, without_filters
from glidemq_py.spark.options import transport_of
from glidemq_py.spark.partitioned import ids_in, layout_of, options_of
from glidemq_py.spark.read_options import FINISHED, ReadOptions

__all__ = ["JobsReader", "Range"]

_BAND: Final = 2**42
_BATCH_ROWS: Final = 5_000
_IDS_A_PARTITION: Final = 10_000
_SETTLED_MS: Final = 60_000
"""Age of finished jobs that are surely before those that finish from now on, if all clocks are this exact."""

_PASSED: Final = (
    "waiting-children", "suspended", "delayed", "prioritized", "group-waiting", "waiting", "active", *FINISHED,
)  # fmt: skip
"""The states in the order in which most jobs pass through them."""

Place = tuple[float, bytes]
"""Score and member: a position in a sorted set."""


@dataclass
class Range(InputPartition):
    """The jobs that one task reads.

    Attributes:
        state: the index to read; '' = the jobs in `ids`, or those in `moving`.
        after: exclusive start; None = the beginning of the index.
        until: inclusive end; None = the end of the index.
        lowest: lowest score, inclusive.
        highest: highest score, inclusive.
        ids: ids of jobs.
        moving: states to read one after another; of finished jobs, those that are newer than `highest`.
        name: name of the partition, as a queue; '' = the queue has none.
        number: number of the partition.
    """

    state: str
    after: tuple[str, str] | None = None
    until: tuple[str, str] | None = None
    lowest: int | None = None
    highest: int | None = None
    ids: tuple[str, ...] = ()
    moving: tuple[str, ...] = ()
    name: str = ""
    number: int = 0


class JobsReader(DataSourceReader):
    """Reads the jobs of a queue.

    Args:
        options: options of the read.
        columns: the requested columns.
    """

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._wanted = Wanted()
        offer_filters(self, DataSourceReader, self._take_filters)

    def __getstate__(self) -> dict[str, Any]:
        return without_filters(self.__dict__)

    def _take_filters(self, filters: list[Any]) -> list[Any]:
        """Accept filters, and return the others."""
        accepted: list[Accepted] = []
        others: list[Any] = []
        for each in filters:
            found = accept(each, self._columns)
            if found is None:
                others.append(each)
            else:
                accepted.append(found)
        self._wanted = Wanted.of(accepted)
        return others

    # -- planning, on the driver --------------------------------------------------------------------------------

    def partitions(self) -> list[InputPartition]:
        """Return the ranges that the tasks read."""
        layout = layout_of(transport_of(self._options.place, check=True), self._options.keys)
        if layout is None:
            return [*self._own_partitions()]
        found: list[InputPartition] = []
        for number, name in enumerate(layout.names):
            ids = self._wanted.ids
            wanted = self._wanted if ids is None else replace(self._wanted, ids=ids_in(ids, number, layout))
            for each in self._of(name, wanted)._own_partitions():
                each.name, each.number = name, number
                found.append(each)
        return found

    def _of(self, name: str, wanted: Wanted) -> JobsReader:
        """Return the reader of one partition."""
        reader = copy.copy(self)
        reader._options, reader._wanted = options_of(self._options, name), wanted
        return reader

    def _own_partitions(self) -> list[Range]:
        wanted, options = self._wanted, self._options
        if wanted.ids is not None:
            return [*_by_id(sorted(wanted.ids))] or [Range(state="")]
        transport = transport_of(options.place, check=True)
        states = [state for state in options.states if wanted.states is None or state in wanted.states]
        if wanted.finished:
            states = [state for state in states if state in FINISHED]
        found: list[Range] = []
        if len(states) > 1 and any(state not in FINISHED for state in states):
            seconds, _ = transport.command("TIME")
            settled = int(seconds) * 1_000 - _SETTLED_MS
            found.append(Range("", moving=tuple(state for state in _PASSED if state in states), highest=settled))
            for state in states:
                found += self._cut(transport, state, settled) if state in FINISHED else []
        else:
            for state in states:
                found += self._cut(transport, state)
        return found or [Range(state="")]

    def _cut(self, transport: BlockingTransport, state: str, settled: int | None = None) -> list[Range]:
        """Return the ranges of one state; ``settled``: only up to this time of finishing."""
        keys, wanted = self._options.keys, self._wanted
        low, high = "-inf", "+inf"
        lowest = highest = None
        if state in FINISHED:
            index = keys.completed if state == "completed" else keys.failed
            lowest, highest = wanted.finished_from, wanted.finished_to
            if settled is not None:
                highest = settled if highest is None else min(highest, settled)
            low = low if lowest is None else str(lowest)
            high = high if highest is None else str(highest)
        elif state in ("delayed", "prioritized"):
            index = keys.scheduled
            low, high = ("-inf", f"({_BAND}") if state == "delayed" else (str(_BAND), "+inf")
        elif state in ("suspended", "waiting-children"):
            index = keys.suspended if state == "suspended" else keys.stem + state
        elif state == "waiting":
            return _ranges(state, self._times(transport))
        else:
            return [Range(state=state)]
        count = int(transport.command("ZCOUNT", index, low, high))
        first = int(transport.command("ZCOUNT", index, "-inf", f"({low}")) if not low.startswith("-") else 0
        cuts = min(self._options.partitions, -(-count // self._options.fetch_size))
        places: list[tuple[str, str] | None] = [None]
        for n in range(1, cuts):
            rank = str(first + count * n // cuts - 1)
            member = transport.command("ZRANGE", index, rank, rank, "WITHSCORES")
            place = _place(member)
            if place is not None and place != places[-1]:
                places.append(place)
        return _ranges(state, places, lowest, highest)

    def _times(self, transport: BlockingTransport) -> list[tuple[str, str] | None]:
        """Return stream ids that split the waiting jobs into equal time ranges; jobs outside the stream come last."""
        options, stream = self._options, self._options.keys.stream
        places: list[tuple[str, str] | None] = [None]
        cuts = min(options.partitions, -(-int(transport.command("XLEN", stream)) // options.fetch_size))
        if cuts > 1:
            first = _time_of(transport.command("XRANGE", stream, "-", "+", "COUNT", "1"))
            last = _time_of(transport.command("XREVRANGE", stream, "+", "-", "COUNT", "1"))
            times = sorted({first + (last - first) * n // cuts for n in range(1, cuts)})
            places += [(f"{at}-0", "") for at in times]
        return places

    # -- reading, in tasks --------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the jobs of one partition as Arrow batches."""
        assert isinstance(partition, Range)
        fields = [ours(name, "jobs") for name, _ in self._columns]
        names = [field for field in fields if field not in ("id", "state")]
        reader, home = self, Partition(partition.number, self._options.keys.name)
        if partition.name:
            reader = self._of(partition.name, self._wanted)
        read = reader._by_index if partition.state else reader._moving if partition.moving else reader._by_ids
        most = self._options.fetch_size  # of the first batch: a task of LIMIT 5 ends with it
        frame = Frame(self._columns, self._options.serializer)
        rows: list[tuple[str, str, list[Any]]] = []
        for page in read(partition, names):
            rows += [(home.id_of(job_id), state, values) for job_id, state, values in page] if partition.name else page
            if len(rows) >= most:
                yield self._wanted.filtered(job_batch(frame, fields, rows), fields)
                rows, most = [], min(2 * most, _BATCH_ROWS)
        if rows:
            yield self._wanted.filtered(job_batch(frame, fields, rows), fields)

    def _moving(self, partition: Range, names: list[str]) -> Iterator[list[tuple[str, str, list[Any]]]]:
        """Yield the jobs that may change their state during the read, each once.

        The states are read in the order in which jobs pass through them, and twice: a job that moves back during the
        first pass, to be retried, is found by the second. The newest finished jobs are read last.
        """
        options, wanted, seen, stream = self._options, self._wanted, set[str](), ""
        transport = transport_of(options.place)
        for again in (False, True):
            fields, where = (["state"], wanted.kept) if again else (names or ["name"], wanted.where)
            for state in partition.moving:
                cursor = stream if state == "waiting" else f"({partition.highest}@" if state in FINISHED else ""
                while True:
                    call = administration.page(
                        options.keys.meta, state, cursor, options.fetch_size, fields, where=where or None
                    )
                    page = transport.call(call)
                    rows = {job_id: values for job_id, _, values in page.rows if job_id not in seen}
                    seen |= rows.keys()
                    if again:
                        yield from self._by_ids(Range("", ids=tuple(rows)), names)
                    else:
                        yield [(job_id, state, values if names else []) for job_id, values in rows.items()]
                    cursor = page.cursor
                    if not cursor:
                        break
                    if state == "waiting" and cursor[0].isdigit():
                        stream = cursor  # jobs that return to waiting come after it

    def _by_ids(self, partition: Range, names: list[str]) -> Iterator[list[tuple[str, str, list[Any]]]]:
        options = self._options
        transport = transport_of(options.place)
        for ids in pieces(partition.ids, options.fetch_size):
            found = transport.call(administration.records(options.keys.meta, ids, ["state", *names]))
            rows = [(job_id, str(state or ""), values) for job_id, (state, *values) in found]
            yield [(job_id, state, values) for job_id, state, values in rows if state in options.states]

    def _by_index(self, partition: Range, names: list[str]) -> Iterator[list[tuple[str, str, list[Any]]]]:
        options, state = self._options, partition.state
        transport = transport_of(options.place)
        cursor, bounds, seen = _first_cursor(partition), _Bounds(partition), _Seen()
        while True:
            call = administration.page(
                options.keys.meta,
                state,
                cursor,
                options.fetch_size,
                names or ["name"],
                where=self._wanted.where or None,
            )
            page = transport.call(call)
            rows: list[tuple[str, str, list[Any]]] = []
            for job_id, position, values in page.rows:
                if bounds.any and not bounds.hold(position, job_id):
                    if bounds.ended:
                        break
                    continue
                if seen.is_new(job_id):
                    rows.append((job_id, state, values if names else []))
            yield rows
            seen.turn()
            cursor = page.cursor
            if not cursor or bounds.ended or bounds.past(cursor):
                return


def _by_id(ids: list[str]) -> list[Range]:
    """Return partitions of so many ids each."""
    step = _IDS_A_PARTITION
    return [Range(state="", ids=tuple(ids[i : i + step])) for i in range(0, len(ids), step)]


def _ranges(
    state: str, places: list[tuple[str, str] | None], lowest: int | None = None, highest: int | None = None
) -> list[Range]:
    """Return the ranges between consecutive places; the last one is open."""
    return [
        Range(state=state, after=after, until=until, lowest=lowest, highest=highest)
        for after, until in pairwise([*places, None])
    ]


def _time_of(entries: Any) -> int:
    """Return the time of the first entry's id, ms; 0 if there is no entry."""
    return next((int(bytes(entry).partition(b"-")[0]) for entry in entries or ()), 0)


def _place(member: Any) -> tuple[str, str] | None:
    """Return score and member of a ZRANGE WITHSCORES reply, in any of the forms that GLIDE returns."""
    if not member:
        return None
    pair: Any = member
    if hasattr(member, "items"):
        (pair,) = member.items()
    elif len(member) == 1:
        (pair,) = member
    name, score = pair
    number = float(score)
    text = f"{number:.0f}" if number == int(number) else repr(number)
    return text, name.decode() if isinstance(name, bytes) else str(name)


def _first_cursor(partition: Range) -> str:
    if partition.after is not None:
        score, member = partition.after
        return score if partition.state == "waiting" else f"{score}@{member}"
    # No job has an empty id, so this position is before the first job of that score.
    return "" if partition.lowest is None else f"{partition.lowest}@"


class _Bounds:
    """Checks whether a member of an index is within a partition."""

    def __init__(self, partition: Range) -> None:
        self._in_stream = partition.state == "waiting"
        self._last = _entry(partition.until[0]) if self._in_stream and partition.until else None
        self._after = None if self._in_stream else _order(partition.after)
        self._until = None if self._in_stream else _order(partition.until)
        self._highest = partition.highest
        self.any = partition.after is not None or partition.until is not None or partition.highest is not None
        self.ended = False

    def hold(self, position: str, member: str) -> bool:
        if self._in_stream:
            return self._holds_entry(position)
        place = (float(position), member.encode("utf-8", "surrogateescape"))
        if self._after is not None and place <= self._after:
            return False
        if (self._until is not None and place > self._until) or (
            self._highest is not None and place[0] > self._highest
        ):
            self.ended = True
            return False
        return True

    def past(self, cursor: str) -> bool:
        """Return whether a page from this cursor on is behind the end of a stream partition."""
        return self._last is not None and (not cursor[0].isdigit() or _entry(cursor) >= self._last)

    def _holds_entry(self, position: str) -> bool:
        """Check the end only: pages start in the partition. The last partition reads jobs without an entry (lists)."""
        self.ended = self._last is not None and (not position or _entry(position) > self._last)
        return not self.ended


def _entry(position: str) -> tuple[int, int]:
    at, _, number = position.partition("-")
    return int(at), int(number or 0)


def _order(place: tuple[str, str] | None) -> Place | None:
    return None if place is None else (float(place[0]), place[1].encode("utf-8", "surrogateescape"))


class _Seen:
    """Jobs of this page and the previous one; some repeat if the job at the cursor left (`administration.page`)."""

    def __init__(self) -> None:
        self._before: set[str] = set()
        self._now: set[str] = set()

    def is_new(self, job_id: str) -> bool:
        if job_id in self._before or job_id in self._now:
            return False
        self._now.add(job_id)
        return True

    def turn(self) -> None:
        self._before, self._now = self._now, set()
