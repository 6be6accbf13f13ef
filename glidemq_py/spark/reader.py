"""Read jobs as a DataFrame: planned on the driver as ranges of an index, read in tasks, one page per call.

An index that is ordered by time (finished, delayed, prioritized, suspended jobs) is split at its quantiles: at a score
and a member, not at a rank, so that jobs added or removed meanwhile move no boundary. Waiting jobs are split into equal
ranges of their add time. Other states are one partition each.

Filters that Spark pushes down exclude jobs; Spark applies all filters again. PySpark rejects a reader with a method
`pushFilters` while ``spark.sql.python.filterPushdown.enabled`` is off, which is the default. It compares ``__func__``
of the method with that of the base class; the attribute set by `offer_filters` passes this check and is still called
if pushdown is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any, Final

from glidemq_py._client.transport import BlockingTransport
from glidemq_py._core.calls import reading
from glidemq_py.spark.api import DataSourceReader, InputPartition
from glidemq_py.spark.columns import Columns, Frame, job_batch, ours
from glidemq_py.spark.options import transport_of
from glidemq_py.spark.read_options import ReadOptions

__all__ = ["JobsReader", "Range", "Wanted", "offer_filters", "read_filters"]

_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which jobs may match.

    Attributes:
        states: matching states; None = all.
        ids: matching ids; None = all.
        finished_from: earliest finish time, epoch ms, inclusive; None = any.
        finished_to: latest finish time, epoch ms, inclusive; None = any.
    """

    states: frozenset[str] | None = None
    ids: frozenset[str] | None = None
    finished_from: int | None = None
    finished_to: int | None = None


def read_filters(filters: Iterable[Any]) -> Wanted:
    """Return the jobs that can match all of these filters."""
    wanted = Wanted()
    for each in filters:
        path = tuple(getattr(each, "attribute", ()))
        if len(path) != 1:
            continue
        column, kind = path[0].lower(), type(each).__name__
        value: Any = getattr(each, "value", None)
        if column in ("state", "id") and kind in ("EqualTo", "EqualNullSafe", "In"):
            given: list[Any] = list(value) if kind == "In" else [value]
            values = frozenset(item for item in given if isinstance(item, str))
            wanted = _narrow(wanted, "states" if column == "state" else "ids", values)
        elif column == "finishedon":
            wanted = _bound(wanted, kind, value)
    return wanted


def _narrow(wanted: Wanted, name: str, values: frozenset[str]) -> Wanted:
    known: frozenset[str] | None = getattr(wanted, name)
    narrowed = values if known is None else known & values
    return replace(wanted, states=narrowed) if name == "states" else replace(wanted, ids=narrowed)


def _bound(wanted: Wanted, kind: str, value: Any) -> Wanted:
    at = _ms(value)
    if at is None:
        return wanted
    low, high = wanted.finished_from, wanted.finished_to
    # One millisecond wider than the filter: Spark compares again, and times of jobs are whole milliseconds.
    if kind in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"):
        low = at if low is None else max(low, at)
    if kind in ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"):
        high = at + 1 if high is None else min(high, at + 1)
    return replace(wanted, finished_from=low, finished_to=high)


def _ms(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, datetime):
        # Spark gives timestamps as naive datetimes in its own time zone, which is that of this process.
        aware = value if value.tzinfo is not None else value.astimezone(UTC)
        return int(aware.timestamp() * _MS)
    if isinstance(value, date):
        return None
    return None


class _Offer:
    """A callable that PySpark takes for the method of the base class."""

    def __init__(self, method: Any, take: Callable[[list[Any]], None]) -> None:
        self.__func__ = method
        self._take = take

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        self._take(filters)
        return filters  # Spark applies all of them again


def offer_filters(reader: Any, base: type, take: Callable[[list[Any]], None]) -> None:
    """Call ``take`` with the filters if pushdown is on. The reader must be pickled through `without_filters`."""
    method = getattr(base, "pushFilters", None)
    if method is not None:
        reader.pushFilters = _Offer(method, take)


def without_filters(state: dict[str, Any]) -> dict[str, Any]:
    """Return a reader's attributes without that of `offer_filters`, for `__getstate__`."""
    return {name: value for name, value in state.items() if name != "pushFilters"}


_BAND: Final = 2**42
_BATCH_ROWS: Final = 5_000
_IDS_A_PARTITION: Final = 10_000
_FINISHED: Final = ("completed", "failed")

Place = tuple[float, bytes]
"""Score and member: a position in a sorted set."""


@dataclass
class Range(InputPartition):
    """The jobs that one task reads.

    Attributes:
        state: the index to read; '' = the jobs in `ids`.
        after: exclusive start; None = the beginning of the index.
        until: inclusive end; None = the end of the index.
        lowest: lowest score, inclusive.
        highest: highest score, inclusive.
        ids: ids of jobs.
    """

    state: str
    after: tuple[str, str] | None = None
    until: tuple[str, str] | None = None
    lowest: int | None = None
    highest: int | None = None
    ids: tuple[str, ...] = ()


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

    def _take_filters(self, filters: list[Any]) -> None:
        self._wanted = read_filters(filters)

    # -- planning, on the driver --------------------------------------------------------------------------------

    def partitions(self) -> list[InputPartition]:
        """Return the ranges that the tasks read."""
        wanted, options = self._wanted, self._options
        if wanted.ids is not None:
            ids = sorted(wanted.ids)
            pieces = [ids[i : i + _IDS_A_PARTITION] for i in range(0, len(ids), _IDS_A_PARTITION)]
            return [Range(state="", ids=tuple(piece)) for piece in pieces] or [Range(state="")]
        transport = transport_of(options.place)
        states = [state for state in options.states if wanted.states is None or state in wanted.states]
        if wanted.finished_from is not None or wanted.finished_to is not None:
            states = [state for state in states if state in _FINISHED]
        found: list[InputPartition] = []
        for state in states:
            found += self._cut(transport, state)
        return found or [Range(state="")]

    def _cut(self, transport: BlockingTransport, state: str) -> list[Range]:
        keys, wanted = self._options.keys, self._wanted
        low, high = "-inf", "+inf"
        lowest = highest = None
        if state in _FINISHED:
            index = keys.completed if state == "completed" else keys.failed
            lowest, highest = wanted.finished_from, wanted.finished_to
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
        pages = self._by_ids(partition, names) if not partition.state else self._by_index(partition, names)
        frame = Frame(self._columns)
        rows: list[tuple[str, str, list[Any]]] = []
        for page in pages:
            rows += page
            if len(rows) >= _BATCH_ROWS:
                yield job_batch(frame, fields, rows)
                rows = []
        if rows:
            yield job_batch(frame, fields, rows)

    def _by_ids(self, partition: Range, names: list[str]) -> Iterator[list[tuple[str, str, list[Any]]]]:
        options = self._options
        transport = transport_of(options.place)
        for i in range(0, len(partition.ids), options.fetch_size):
            ids = partition.ids[i : i + options.fetch_size]
            found = transport.call(reading.records(options.keys.meta, ids, ["state", *names]))
            # Spark applies its own filters again, but not the option `state`.
            rows = [(job_id, str(state or ""), values) for job_id, (state, *values) in found]
            yield [(job_id, state, values) for job_id, state, values in rows if state in options.states]

    def _by_index(self, partition: Range, names: list[str]) -> Iterator[list[tuple[str, str, list[Any]]]]:
        options, state = self._options, partition.state
        transport = transport_of(options.place)
        cursor, bounds, seen = _first_cursor(partition), _Bounds(partition), _Seen()
        while True:
            page = transport.call(reading.page(options.keys.meta, state, cursor, options.fetch_size, names or ["name"]))
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
    """Jobs of this page and the previous one; some repeat if the job at the cursor left (`reading.page`)."""

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
