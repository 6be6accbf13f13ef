"""Filters that Spark pushes down, as far as they exclude jobs. Spark applies all filters again.

This is the only module that depends on PySpark's detection of filter pushdown: PySpark rejects a reader with a method
`pushFilters` while ``spark.sql.python.filterPushdown.enabled`` is off, which is the default. It compares ``__func__``
of the method with that of the base class; the attribute set by `offer_filters` passes this check and is still called
if pushdown is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any, Final

__all__ = ["Wanted", "offer_filters", "read_filters"]

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
