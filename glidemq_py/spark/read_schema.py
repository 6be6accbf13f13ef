"""The columns of a read: all of them, or those in the user's schema. Fewer columns are faster to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from glidemq_py.errors import ColumnError
from glidemq_py.spark.given import Given

__all__ = ["EVENT_COLUMNS", "JOB_COLUMNS", "Columns", "read_columns", "schema_of"]

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

_SQL: Final = {"integer": "int", "long": "bigint", "map": "map<string,string>"}


def schema_of(options: Mapping[str, str]) -> str:
    """Return the columns of a read without a schema, as SQL."""
    columns = EVENT_COLUMNS if Given(options).choice("view", "jobs", ("jobs", "events")) == "events" else JOB_COLUMNS
    return ", ".join(f"{name} {_SQL.get(kinds[0], kinds[0])}" for name, kinds in columns.items())


def read_columns(schema: Any, view: str) -> Columns:
    """Check the requested columns.

    Raises:
        ColumnError: if a column does not exist or has another type.
    """
    known = JOB_COLUMNS if view == "jobs" else EVENT_COLUMNS
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
    known = JOB_COLUMNS if view == "jobs" else EVENT_COLUMNS
    return next(each for each in known if each.lower() == name.lower())
