"""Filters that Spark pushes down to a read of jobs.

A filter that is accepted holds for every row that the read returns, and Spark does not apply it again. It is applied
three times, and only the last one is exact: the index of finished jobs is read from the earliest to the latest time;
the server leaves out jobs whose records cannot match; the tasks compare the columns as Spark would. Other filters
stay with Spark.

PySpark rejects a reader with a method `pushFilters` while ``spark.sql.python.filterPushdown.enabled`` is off, which is
the default. It compares ``__func__`` of the method with that of the base class; the attribute set by `offer_filters`
passes this check and is still called if pushdown is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, cast

from glidemq_py._core.calls.administration import Condition
from glidemq_py.spark.api import pa, pc
from glidemq_py.spark.columns import Columns, ours

__all__ = ["Accepted", "Wanted", "accept", "offer_filters", "without_filters"]

_TEXTS: Final = ("id", "name", "state", "parentId", "groupKey")
_NUMBERS: Final = ("attemptsMade", "priority", "timestamp", "processedOn", "finishedOn")
_COMPARED: Final = {
    "GreaterThan": "greater", "GreaterThanOrEqual": "greater_equal", "LessThan": "less",
    "LessThanOrEqual": "less_equal", "EqualTo": "equal", "EqualNullSafe": "equal",
}  # fmt: skip
"""PySpark's filters, and the functions of Arrow that compare in the same way."""
_KEPT: Final = frozenset({"name", "parentId", "groupKey", "timestamp"})
"""Fields that do not change while a job is in the queue."""
_REPLACEMENT: Final = "\ufffd"
"""A text that is not UTF-8 has this character in its column, but not on the server."""
_TEXTS_MAX: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_SAFE: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A filter that the read applies.

    Attributes:
        column: canonical name of the column.
        compare: 'in', 'null', 'not null', or the name of an Arrow function that compares numbers.
        values: the allowed texts or numbers of 'in', or the one number to compare with. Numbers have the unit of the
            column: microseconds for timestamps.
        unit: how many of these units are one unit of the job's record; 1,000 for timestamps.
    """

    column: str
    compare: str
    values: tuple[Any, ...] = ()
    unit: int = 1

    def mask(self, column: Any) -> Any:
        """Return which values of an Arrow column pass; null = it does not."""
        if self.compare in ("null", "not null"):
            return column.is_null() if self.compare == "null" else column.is_valid()
        if self.column not in _TEXTS:
            column = column.cast(pa.int64())
        if self.compare == "in":
            return pc.is_in(column, value_set=pa.array(self.values, column.type), skip_nulls=True)
        return getattr(pc, self.compare)(column, pa.scalar(self.values[0], pa.int64()))

    def bounds(self) -> tuple[int | Literal[False], int | Literal[False]]:
        """Return the least and the greatest whole number of a record that may pass; False = no bound."""
        if not self.values:
            return False, False
        least, greatest = min(self.values) // self.unit, -(-max(self.values) // self.unit)
        low = self.compare in ("in", "equal", "greater", "greater_equal")
        high = self.compare in ("in", "equal", "less", "less_equal")
        return (least if low and least > 0 else False), (greatest if high and abs(greatest) < _SAFE else False)


def accept(given: Any, columns: Columns) -> Accepted | None:
    """Return the filter if the read can apply it exactly, else None."""
    path = tuple(getattr(given, "attribute", ()))
    kinds = {ours(name, "jobs"): kind for name, kind in columns}
    lowers = {name.lower(): name for name in kinds}
    if len(path) != 1 or path[0].lower() not in lowers:
        return None
    column, kind = lowers[path[0].lower()], type(given).__name__
    if kind in ("IsNull", "IsNotNull"):
        return Accepted(column=column, compare="null" if kind == "IsNull" else "not null")
    value = getattr(given, "value", None)
    values = [value] if kind in _COMPARED else list(cast("Iterable[Any]", value)) if kind == "In" else []
    if kind == "In":
        values = [each for each in values if each is not None]  # null equals nothing
    if not values:
        return None
    if column in _TEXTS:
        return _accept_texts(column, kind, values)
    return _accept_numbers(column, kind, values, kinds[column] == "timestamp") if column in _NUMBERS else None


def _accept_texts(column: str, kind: str, values: Sequence[Any]) -> Accepted | None:
    if kind not in ("EqualTo", "EqualNullSafe", "In"):
        return None
    if not all(isinstance(each, str) and _REPLACEMENT not in each for each in values):
        return None
    return Accepted(column=column, compare="in", values=tuple(dict.fromkeys(values)))


def _accept_numbers(column: str, kind: str, values: Sequence[Any], is_time: bool) -> Accepted | None:
    numbers: list[int] = []
    for each in values:
        if is_time and isinstance(each, datetime) and each.tzinfo is not None:
            numbers.append((each - _EPOCH) // _US)
        elif not is_time and isinstance(each, int) and not isinstance(each, bool):
            numbers.append(each)
        else:
            return None
    unit = 1_000 if is_time else 1
    return Accepted(column=column, compare=_COMPARED.get(kind, "in"), values=tuple(numbers), unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The jobs that a read returns: those that pass all accepted filters.

    Attributes:
        accepted: the filters.
        states: matching states; None = all.
        ids: matching ids; None = all.
        finished_from: earliest finish time, epoch ms, inclusive; None = any.
        finished_to: latest finish time, epoch ms, inclusive; None = any.
        where: conditions for the server.
        kept: those of them on fields that do not change.
        finished: whether only finished jobs match.
    """

    accepted: tuple[Accepted, ...] = ()
    states: frozenset[str] | None = None
    ids: frozenset[str] | None = None
    finished_from: int | None = None
    finished_to: int | None = None
    where: tuple[Condition, ...] = ()
    kept: tuple[Condition, ...] = ()
    finished: bool = False

    @classmethod
    def of(cls, accepted: Sequence[Accepted]) -> Wanted:
        """Return what passes all these filters."""
        texts: dict[str, frozenset[str]] = {}
        earliest: list[int] = []
        latest: list[int] = []
        finished = False
        where: list[Condition] = []
        for each in accepted:
            if each.compare in ("null", "not null"):
                finished |= each.column == "finishedOn" and each.compare == "not null"
            elif each.column in ("id", "state"):
                found = frozenset(each.values)
                texts[each.column] = texts.get(each.column, found) & found
            elif each.column in _TEXTS:
                if len(each.values) <= _TEXTS_MAX:
                    where.append(Condition(each.column, list(each.values), False, False))
            else:
                low, high = each.bounds()
                where.append(Condition(each.column, False, low, high))
                if each.column == "finishedOn":
                    finished = True
                    earliest += [low] if low is not False else []
                    latest += [high + 1] if high is not False else []  # a foreign client may write fractions
        return cls(
            accepted=tuple(accepted),
            states=texts.get("state"),
            ids=texts.get("id"),
            finished_from=max(earliest, default=None),
            finished_to=min(latest, default=None),
            where=tuple(where),
            kept=tuple(each for each in where if each.field in _KEPT),
            finished=finished,
        )

    def filtered(self, batch: Any, fields: Sequence[str]) -> Any:
        """Return the rows of an Arrow batch that pass; ``fields`` are the canonical names of its columns."""
        places: Mapping[str, int] = {name: n for n, name in enumerate(fields)}
        for each in self.accepted:
            batch = batch.filter(each.mask(batch.column(places[each.column])))
        return batch


class _Offer:
    """A callable that PySpark takes for the method of the base class."""

    def __init__(self, method: Any, take: Callable[[list[Any]], Iterable[Any]]) -> None:
        self.__func__ = method
        self._take = take

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        return self._take(filters)


def offer_filters(reader: Any, base: type, take: Callable[[list[Any]], Iterable[Any]]) -> None:
    """Call ``take`` with the filters if pushdown is on; it returns those that Spark must apply.

    The reader must be pickled through `without_filters`.
    """
    method = getattr(base, "pushFilters", None)
    if method is not None:
        reader.pushFilters = _Offer(method, take)


def without_filters(state: dict[str, Any]) -> dict[str, Any]:
    """Return a reader's attributes without that of `offer_filters`, for `__getstate__`."""
    return {name: value for name, value in state.items() if name != "pushFilters"}
