"""Assign the columns of a DataFrame to options and data, on the driver: an invalid DataFrame starts no task."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from glidemq_py._core.logs import get_logger
from glidemq_py.errors import ColumnError, GlideMQValidationError
from glidemq_py.spark.columns import JOB_COLUMNS
from glidemq_py.spark.options import COLUMNS, OPTS_COLUMN, PYTHON_NAMES, WHOLE, WriteOptions

__all__ = ["WritePlan", "plan_write"]

_log = get_logger(__name__)
_BY_LOWER: Final = {name.lower(): name for name in COLUMNS}
_OTHER_NAMES: Final = {"jobname": "name", "deduplication": "deduplicationId"}
_TECHNICAL: Final = _OTHER_NAMES | {
    name.lower(): name for name in (*PYTHON_NAMES, "opts") if COLUMNS.get(name) != WHOLE
}
"""Names that are hardly those of data, and the options that they look like."""
_NO_JSON: Final = {
    "variant": "has no JSON form; convert it with to_json()",
    "void": "is always null; give it a type with cast()",
    "interval": "has no JSON form; cast it to a number",
}
_JSON: Final = (
    "byte", "short", "integer", "long", "boolean", "float", "double", "decimal", "string", "char", "varchar", "binary",
    "date", "timestamp", "timestamp_ntz", "time", "struct", "array", "map",
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
    fields: dict[str, tuple[int, Any]] = {}
    for position, each in enumerate(schema.fields):
        if each.name.lower() in fields:
            raise ColumnError(each.name, None, "is duplicated: column names must differ by more than case")
        fields[each.name.lower()] = (position, each)
    data, names = fields.get(options.data_column.lower()), [each.name for each in schema.fields]
    if data is None and options.data_column != "data":
        problem = f"column does not exist; columns: {_listed(names)}"
        raise GlideMQValidationError("dataColumn", options.data_column, problem)
    found: dict[str, tuple[int, Any]] = {}
    for name, column in options.columns:
        if column.lower() not in fields:
            problem = f"column does not exist; columns: {_listed(names)}"
            raise GlideMQValidationError(f"column.{name}", column, problem)
        found[name] = fields[column.lower()]
    taken = {position for position, _ in (*found.values(), *([] if data is None else [data]))}
    others = [field for field in fields.values() if field[0] not in taken]
    unused: tuple[tuple[int, str], ...] = ()
    if data is not None:
        own = {_BY_LOWER[name]: field for name, field in fields.items() if name in _BY_LOWER and field in others}
        for name in own.keys() & found.keys():
            problem = f"is given twice: by the column {own[name][1].name!r} too; leave one of them out"
            raise GlideMQValidationError(f"column.{name}", found[name][1].name, problem)
        found |= own
        others = [field for field in others if field not in own.values()]
        # INSERT INTO a view without columns passes all columns of a read, with null in those that it does not name.
        if names == list(JOB_COLUMNS):
            unused, others = tuple((position, each.name) for position, each in others), []
    for name, (_, each) in found.items():
        _check_type(each, COLUMNS[name])
    if "name" not in found and options.job_name is None:
        problem = 'is required: .option("jobName", "welcome"), or .option("column.name", "<column>")'
        raise GlideMQValidationError("jobName", None, problem)
    kind, columns = _data(data, others, options)
    assigned = ", ".join(f"{name} from {each.name!r}" for name, (_, each) in found.items()) or "none"
    _show(f"queue {options.keys.name!r}: options: {assigned}; data: {_listed([name for _, name in columns]) or 'none'}")
    places = {name: position for name, (position, _) in found.items()}
    return WritePlan(columns=places, data_kind=kind, data_columns=columns, unused=unused)


@lru_cache(maxsize=64)  # not for each micro-batch
def _show(assignment: str) -> None:
    if _log.hasHandlers():
        _log.info("%s", assignment)
    else:  # Spark plans in a Python process without any; what that writes to stderr appears in the driver's
        sys.stderr.write(f"{assignment}\n")


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
    _refuse_technical([field.name for _, field in others])
    for _, field in others:
        _check_json(field.dataType, field.name)
    return ("object" if others else "none"), tuple((position, field.name) for position, field in others)


def _refuse_others(names: list[str], data: str) -> None:
    """Refuse columns beside a column of data."""
    if names[0].lower() == "opts":
        raise ColumnError(names[0], None, OPTS_COLUMN)
    plain = {_plain(name): name for name in COLUMNS}
    near = difflib.get_close_matches(_plain(names[0]), plain, 1)
    hint = f"; did you mean {plain[near[0]]!r}?" if near else "."
    problem = (
        f"is neither an option of a job nor the data, which is in the column {data!r}{hint} Leave it out, or leave "
        f"{data!r} out: without it all columns together are the data"
    )
    raise ColumnError(names[0], None, problem)


def _refuse_technical(names: list[str]) -> None:
    """Refuse columns that look like options and would become data."""
    for column in names:
        name = _TECHNICAL.get(_plain(column))
        if name is None:
            continue
        if name == "opts":
            raise ColumnError(column, None, f"{OPTS_COLUMN}; if it is data, rename it")
        way = f'.option("column.{name}", "{column}")'
        problem = f"is data without a column 'data', but looks like an option. If it is one: {way}; else rename it"
        raise ColumnError(column, None, problem)


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


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
