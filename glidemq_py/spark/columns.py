"""The columns of a read, and their conversion to Arrow. Fewer columns are faster to read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from glidemq_py._core.payload import stored_text
from glidemq_py._core.record import whole_number
from glidemq_py.errors import ColumnError, GlideMQValidationError, SerializationError
from glidemq_py.spark.api import arrow_types, pa
from glidemq_py.spark.options import Given
from glidemq_py.spark.read_options import VIEWS
from glidemq_py.spark.serializers import JSON, read_data, read_result

__all__ = ["EVENT_COLUMNS", "JOB_COLUMNS", "Columns", "Frame", "column_batch", "job_batch", "read_columns", "schema_of"]

Columns = tuple[tuple[str, str], ...]
"""Name of each column as in the user's schema, and its Spark type."""

JOB_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
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

EVENT_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "eventId": ("string",),
    "timestamp": ("timestamp", "long"),
    "event": ("string",),
    "jobId": ("string",),
    "fields": ("map",),
}
"""Columns of events with their allowed types, the default first."""

WRITE_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
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

COUNT_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "queue": ("string",),
    "state": ("string",),
    "jobs": ("long",),
}
"""Columns of job counts with their types."""

_OF_VIEW: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "jobs": JOB_COLUMNS, "counts": COUNT_COLUMNS, "events": EVENT_COLUMNS, "writes": WRITE_COLUMNS,
}  # fmt: skip
_SQL: Final = {"integer": "int", "long": "bigint", "map": "map<string,string>"}


def schema_of(options: Mapping[str, str]) -> str:
    """Return the columns of a read without a schema, as SQL: those of the option `columns`, or all.

    Raises:
        GlideMQValidationError: if an option is invalid.
    """
    given = Given(options)
    view = given.choice("view", "jobs", VIEWS)
    chosen = _chosen(given, view)
    known = _OF_VIEW[view]
    return ", ".join(f"{name} {_SQL.get(known[name][0], known[name][0])}" for name in chosen or known)


def _chosen(given: Given, view: str) -> tuple[str, ...] | None:
    """Return the canonical names in the option `columns`, or None if it is not given."""
    if "columns" not in given:
        return None
    known = {name.lower(): name for name in _OF_VIEW[view]}
    text, chosen = given.text("columns"), list[str]()
    for part in text.split(","):
        name = known.get(part.strip().lower())
        if name is None:
            problem = f"must be a comma-separated list of columns of {view}: {', '.join(known.values())}"
            raise GlideMQValidationError("columns", part.strip(), problem)
        if name in chosen:
            raise GlideMQValidationError("columns", text, f"contains {name!r} twice")
        chosen.append(name)
    return tuple(chosen)


def read_columns(schema: Any, options: Mapping[str, str]) -> Columns:
    """Check the requested columns.

    Raises:
        ColumnError: if a column does not exist or has another type.
        GlideMQValidationError: if the option `columns` is invalid, or names others than the schema.
    """
    given = Given(options)
    view = given.choice("view", "jobs", VIEWS)
    chosen = _chosen(given, view)
    if chosen is not None and [name.lower() for name in chosen] != [field.name.lower() for field in schema.fields]:
        problem = "cannot be given together with a schema of other columns; use one of them"
        raise GlideMQValidationError("columns", given.text("columns"), problem)
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
        serializer: the option `serializer`, by which data and results of jobs are read.
    """

    def __init__(self, columns: Columns, serializer: str = JSON) -> None:
        self.serializer = serializer
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
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


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
    return column_batch(frame, fields, [ids, states, *zip(*values, strict=True)])


def column_batch(frame: Frame, fields: Sequence[str], given: Sequence[Sequence[Any]]) -> Any:
    """Return jobs as an Arrow batch.

    Args:
        frame: builder of the batch.
        fields: canonical names of all columns, in order.
        given: ids, states, and the values of each other column, in order.
    """
    ids, states, *others = given
    columns = iter(others)
    found: list[Any] = []
    for field in fields:
        if field == "id":
            found.append(ids)
        elif field == "state":
            found.append(states)
        else:
            found.append(_plain(next(columns), field, frame.serializer))
    return frame.batch(found, len(ids))


def _plain(column: Sequence[Any], field: str, serializer: str) -> Sequence[Any]:
    """Return decompressed and deserialized values; those for which that is not possible are returned as stored."""
    if serializer != JSON and field in ("data", "returnvalue"):
        read = read_data if field == "data" else read_result
        return [read(text, serializer) if text else text for text in column]
    if field == "data":
        return [_unpacked(text) if text and text.startswith("gz:") else text for text in column]
    return column


def _unpacked(text: str) -> str:
    try:
        return stored_text(text)
    except SerializationError:
        return text
