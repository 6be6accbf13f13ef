"""Convert the strings of records to Arrow batches with exactly the declared types."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from glidemq_py._core.payload import stored_text
from glidemq_py._core.record import whole_number
from glidemq_py.errors import SerializationError
from glidemq_py.spark.api import arrow_types, pa
from glidemq_py.spark.read_schema import Columns

__all__ = ["Frame"]


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


def plain_data(column: list[Any]) -> list[Any]:
    """Return decompressed data; values that cannot be decompressed are returned as stored."""
    return [_unpacked(text) if text and text.startswith("gz:") else text for text in column]


def _unpacked(text: str) -> str:
    try:
        return stored_text(text)
    except SerializationError:
        return text
