"""Assign the columns of a DataFrame to options and data, on the driver: an invalid DataFrame starts no task."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Final, Literal

from glidemq_py.errors import ColumnError, GlideMQValidationError
from glidemq_py.spark.columns import JOB_COLUMNS
from glidemq_py.spark.options import WriteOptions

__all__ = ["COLUMNS", "WritePlan", "plan_write"]

_WHOLE: Final = ("byte", "short", "integer", "long")

COLUMNS: Final = {
    "queue": ("string",),
    "name": ("string",),
    "jobId": ("string",),
    "delay": _WHOLE,
    "priority": _WHOLE,
    "attempts": _WHOLE,
    "ttl": _WHOLE,
    "orderingKey": ("string",),
    "lifo": ("boolean",),
    "rank": _WHOLE,
    "fairKey": ("string",),
    "opts": ("string",),
}
"""Columns that are job options, with their allowed types. All other columns are data."""
_BY_LOWER: Final = {name.lower(): name for name in COLUMNS}
_NO_JSON: Final = {
    "variant": "has no JSON form; convert it with to_json()",
    "void": "is always null; give it a type with cast()",
    "interval": "has no JSON form; cast it to a number",
}
_JSON: Final = (
    *_WHOLE, "boolean", "float", "double", "decimal", "string", "char", "varchar", "binary", "date", "timestamp",
    "timestamp_ntz", "time", "struct", "array", "map",
)  # fmt: skip
"""Types that have a JSON form: stems of their names, which may have a length or a collation."""

DataKind = Literal["none", "json", "text", "value", "object"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Positions of the columns of a DataFrame.

    Attributes:
        columns: position of each column that is a job option.
        data_kind: source of the data: none; a column of JSON strings; a column of plain strings; a column of any
            values; an object of several columns.
        data_columns: positions and names of the data columns.
        unused: positions and names of columns that must be null: those of a read that a write does not have.
    """

    columns: dict[str, int]
    data_kind: DataKind
    data_columns: tuple[tuple[int, str], ...]
    unused: tuple[tuple[int, str], ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """Return the columns that are job options, without queue and name."""
        return tuple(name for name in self.columns if name not in ("queue", "name"))


def plan_write(schema: Any, options: WriteOptions) -> WritePlan:
    """Check the columns of a DataFrame and plan the write.

    Raises:
        GlideMQValidationError: if a column is invalid or missing.
    """
    if not schema.fields:
        raise ColumnError("data", None, "is required: the DataFrame has no columns, and Spark passes no rows")
    found: dict[str, int] = {}
    others: list[tuple[int, Any]] = []
    unused: list[tuple[int, str]] = []
    data: tuple[int, Any] | None = None
    seen: set[str] = set()
    # INSERT INTO a view without columns passes all columns of a read, with null in those that it does not name.
    of_view = [each.name for each in schema.fields] == list(JOB_COLUMNS)
    for position, each in enumerate(schema.fields):
        lower = each.name.lower()
        if lower in seen:
            raise ColumnError(each.name, None, "is duplicated: column names must differ by more than case")
        seen.add(lower)
        if lower == options.data_column.lower():
            data = (position, each)
        elif lower in _BY_LOWER:
            name = _BY_LOWER[lower]
            _check_type(each, COLUMNS[name])
            found[name] = position
        elif of_view:
            unused.append((position, each.name))
        else:
            others.append((position, each))
    if "name" not in found and options.job_name is None:
        raise GlideMQValidationError("jobName", None, "is required without a column 'name'")
    if data is None and options.data_column != "data":
        problem = f"column does not exist; columns: {_listed([each.name for each in schema.fields])}"
        raise GlideMQValidationError("dataColumn", options.data_column, problem)
    kind, columns = _data(data, others, options)
    return WritePlan(columns=found, data_kind=kind, data_columns=columns, unused=tuple(unused))


def _data(
    data: tuple[int, Any] | None, others: list[tuple[int, Any]], options: WriteOptions
) -> tuple[DataKind, tuple[tuple[int, str], ...]]:
    if data is not None:
        if others:
            _refuse_others([each.name for _, each in others], data[1].name)
        position, field = data
        if field.dataType.typeName() == "string" or field.dataType.typeName().startswith(("varchar", "char")):
            return ("text" if options.data_format == "text" else "json"), ((position, field.name),)
        if options.data_format != "auto":
            problem = f"requires a string column; {field.name!r} is {field.dataType.simpleString()}"
            raise GlideMQValidationError("dataFormat", options.data_format, problem)
        _check_json(field.dataType, field.name)
        return "value", ((position, field.name),)
    if options.data_format != "auto":
        raise GlideMQValidationError(
            "dataFormat", options.data_format, f"requires a string column {options.data_column!r}"
        )
    for _, field in others:
        _check_json(field.dataType, field.name)
    return ("object" if others else "none"), tuple((position, field.name) for position, field in others)


def _refuse_others(names: list[str], data: str) -> None:
    known = ["name", *COLUMNS]
    near = difflib.get_close_matches(names[0], known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    problem = (
        f"is neither an option of a job nor the data, which is in the column {data!r}{hint}. Leave it out, or leave "
        f"{data!r} out: without it all such columns together are the data"
    )
    raise ColumnError(names[0], None, problem)


def _check_type(field: Any, allowed: tuple[str, ...]) -> None:
    kind = field.dataType.typeName()
    if kind not in allowed:
        problem = f"must be {' or '.join(allowed)}, not {field.dataType.simpleString()}"
        raise ColumnError(field.name, None, problem)


def _check_json(kind: Any, where: str) -> None:
    """Reject types that have no JSON form, at any depth."""
    if hasattr(kind, "sqlType"):
        kind = kind.sqlType()  # a user-defined type
    name = kind.typeName()
    for stem, problem in _NO_JSON.items():
        if name.startswith(stem) or (stem == "interval" and "interval" in name):
            raise ColumnError(where, None, f"is {kind.simpleString()}, which {problem}")
    if not name.startswith(_JSON):
        raise ColumnError(where, None, f"is {kind.simpleString()}, which has no JSON form; cast it to a string")
    if name == "struct":
        names = [each.name for each in kind.fields]
        repeated = next((each for each in names if names.count(each) > 1), None)
        if repeated is not None:
            raise ColumnError(f"{where}.{repeated}", None, "is duplicated: a JSON object has each name once")
        for each in kind.fields:
            _check_json(each.dataType, f"{where}.{each.name}")
    elif name == "array":
        _check_json(kind.elementType, f"{where}[]")
    elif name == "map":
        if kind.keyType.typeName() != "string":
            problem = (
                f"has keys of type {kind.keyType.simpleString()}; those of a JSON object are strings: "
                "cast them with transform_keys()"
            )
            raise ColumnError(where, None, problem)
        _check_json(kind.valueType, f"{where}{{}}")


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
