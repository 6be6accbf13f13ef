"""The columns of a read, and their conversion to Arrow. Fewer columns are faster to read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from glidemq_py._core.payload import stored_text
from glidemq_py._core.record import whole_number
from glidemq_py.errors import ColumnError, SerializationError
from glidemq_py.spark.api import arrow_types, pa
from glidemq_py.spark.options import Given
from glidemq_py.spark.read_options import VIEWS

__all__ = ["EVENT_COLUMNS", "JOB_COLUMNS", "Columns", "Frame", "job_batch", "read_columns", "schema_of"]

Columns = tuple[tuple[str, str], ...]
"""Name of each column as in the user's schema, and its Spark type."""

JOB_COLUMNS: Final = {
    "id": ("string",),
    "name": ("string",),
    "state": ("string",),
    "data": ("string",),
    "returnvalue": ("string",),
    "failedReason": ("string",),
    "opts": ("string",),
    "attemptsMade": ("integer", "long"),
    "priority": ("integer", "long"),
    "timestamp": ("timestamp", "long"),
    "processedOn": ("timestamp", "long"),
    "finishedOn": ("timestamp", "long"),
    "progress": ("string",),
    "parentId": ("string",),
    "groupKey": ("string",),
}
"""Columns of jobs with their allowed types, the default first."""

EVENT_COLUMNS: Final = {
    "eventId": ("string",),
    "timestamp": ("timestamp", "long"),
    "event": ("string",),
    "jobId": ("string",),
    "fields": ("map",),
}
"""Columns of events with their allowed types, the default first."""

WRITE_COLUMNS: Final = {
    "writeId": ("string",),
    "state": ("string",),
    "query": ("string",),
    "home": ("string",),
    "finishedAt": ("timestamp", "long"),
    "idle": ("long",),
    "jobs": ("long",),
    "skipped": ("long",),
    "rows": ("long",),
    "nullRows": ("long",),
    "bytes": ("long",),
    "repetitions": ("long",),
    "queues": ("map",),
}
"""Columns of the reports of saves with their allowed types, the default first."""

_OF_VIEW: Final = {"jobs": JOB_COLUMNS, "events": EVENT_COLUMNS, "writes": WRITE_COLUMNS}
_SQL: Final = {"integer": "int", "long": "bigint", "map": "map<string,string>"}


def schema_of(options: Mapping[str, str]) -> str:
    """Return the columns of a read without a schema, as SQL."""
    columns = _OF_VIEW[Given(options).choice("view", "jobs", VIEWS)]
    return ", ".join(f"{name} {_SQL.get(kinds[0], kinds[0])}" for name, kinds in columns.items())


def read_columns(schema: Any, view: str) -> Columns:
    """Check the requested columns.

    Raises:
        ColumnError: if a column does not exist or has another type.
    """
    known = _OF_VIEW[view]
    by_lower = {name.lower(): name for name in known}
    columns: list[tuple[str, str]] = []
    for field in schema.fields:
        name = by_lower.get(field.name.lower())
        if name is None:
            problem = f"does not exist: {view} have {', '.join(known)}"
            raise ColumnError(field.name, None, problem)
        kind = field.dataType.typeName()
        if kind not in known[name] or (kind == "map" and field.dataType.simpleString() != _SQL["map"]):
            allowed = " or ".join(_SQL.get(each, each) for each in known[name])
            problem = f"must be {allowed}, not {field.dataType.simpleString()}"
            raise ColumnError(field.name, None, problem)
        columns.append((field.name, kind))
    return tuple(columns)


def ours(name: str, view: str) -> str:
    """Return the canonical name of a column, ignoring case."""
    known = _OF_VIEW[view]
    return next(each for each in known if each.lower() == name.lower())


class Frame:
    """Builds Arrow batches.

    Args:
        columns: names and types of the columns.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._schema = arrow_types(columns)

    def batch(self, values: Sequence[Sequence[Any]], rows: int) -> Any:
        """Return a batch from one list per column: strings; None or False if absent."""
        arrays = [
            _array(list(column), kind, self._schema.field(i).type)
            for i, (column, (_, kind)) in enumerate(zip(values, self._columns, strict=True))
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema) if arrays else _empty(rows)


def _empty(rows: int) -> Any:
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def _array(column: list[Any], kind: str, arrow: Any) -> Any:
    if kind == "map":
        return pa.array([[_clean(pair) for pair in value] for value in column], arrow)
    column = [value if value is not False else None for value in column]
    if kind == "string":
        try:
            return pa.array(column, arrow)
        except UnicodeEncodeError:
            return pa.array([None if value is None else _text(value) for value in column], arrow)
    numbers = _numbers(column)
    if kind == "timestamp":
        return numbers.cast(pa.timestamp("ms", tz="UTC")).cast(arrow)
    return numbers.cast(arrow, safe=False)


def _numbers(column: list[Any]) -> Any:
    texts = [value or None for value in column]
    with contextlib.suppress(pa.ArrowInvalid, UnicodeEncodeError):
        return pa.array(texts, pa.string()).cast(pa.int64())
    # Another client wrote a fraction, or an invalid number.
    return pa.array([None if text is None else whole_number(text) for text in texts], pa.int64())


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode()


def _clean(pair: tuple[str, str]) -> tuple[str, str]:
    return _text(pair[0]), _text(pair[1])


def job_batch(frame: Frame, fields: Sequence[str], rows: Sequence[tuple[str, str, list[Any]]]) -> Any:
    """Return jobs as an Arrow batch.

    Args:
        frame: builder of the batch.
        fields: canonical names of all columns, in order.
        rows: id, state, and values of the other columns, of each job.
    """
    ids, states, values = zip(*rows, strict=True)
    columns = iter(zip(*values, strict=True)) if values[0] else iter(())
    found: list[Any] = []
    for field in fields:
        if field == "id":
            found.append(ids)
        elif field == "state":
            found.append(states)
        else:
            column = next(columns)
            found.append(plain_data(list(column)) if field == "data" else column)
    return frame.batch(found, len(rows))


def plain_data(column: list[Any]) -> list[Any]:
    """Return decompressed data; values that cannot be decompressed are returned as stored."""
    return [_unpacked(text) if text and text.startswith("gz:") else text for text in column]


def _unpacked(text: str) -> str:
    try:
        return stored_text(text)
    except SerializationError:
        return text
