"""Move the options in a column ``opts`` that often differ in every row into columns of their own.

The rest has few different values then, and `TemplatePacker` packs the rows by the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from glidemq_py._core import json_text as json
from glidemq_py.errors import SerializationError
from glidemq_py.spark.api import pa, pc
from glidemq_py.spark.templates import DEDUPLICATION, SLOTS

__all__ = ["MOVED", "move_options"]

MOVED: Final = ("jobId", "delay", "priority", "ttl", "orderingKey", "fairKey", DEDUPLICATION)
"""Columns that options are moved into. An id of `deduplication` is moved, and its placeholder stays in `opts`."""
_OTHER_NAMES: Final = {"jobId": "job_id", "orderingKey": "ordering", "fairKey": "fair_key"}
_TEXTS: Final = (*_OTHER_NAMES, DEDUPLICATION)
_FEW: Final = 32


def move_options(columns: Sequence[str], arrays: Sequence[Any]) -> list[Any] | None:
    """Return the arrays with the options in ``opts`` moved into the other columns, whose values take precedence.

    Args:
        columns: names of the arrays: ``opts`` and all of `MOVED` among them.
        arrays: values of the columns.

    Returns:
        The arrays; None if a value cannot be moved, or is invalid.
    """
    at = columns.index("opts")
    encoded = arrays[at].dictionary_encode()
    if len(encoded.dictionary) <= _FEW:
        return list(arrays)
    moved: dict[str, list[Any]] = {name: [] for name in MOVED}
    rest: list[str] = []
    for text in encoded.dictionary.to_pylist():
        found = _moved(text)
        if found is None:
            return None
        values, remaining = found
        for name, column in moved.items():
            column.append(values.get(name))
        rest.append(remaining)
    result = list(arrays)
    result[at] = pa.array(rest, pa.string()).take(encoded.indices)
    for name, column in moved.items():
        place = columns.index(name)
        kind = pa.string() if name in _TEXTS else pa.int64()
        try:
            values_of_rows = pa.array(column, kind).take(encoded.indices)
        except (OverflowError, UnicodeEncodeError):
            return None  # rejected by the check of each row
        result[place] = pc.coalesce(arrays[place].cast(kind), values_of_rows)
    return result


def _moved(text: str) -> tuple[dict[str, Any], str] | None:
    """Return the options to move, by column, and the JSON of the others."""
    try:
        loaded = json.loads(text, "opts")
    except SerializationError:
        return None
    if not isinstance(loaded, dict):
        return None
    given = cast("dict[str, Any]", loaded)
    values: dict[str, Any] = {}
    if isinstance(given.get("deduplication"), dict):
        deduplication = cast("dict[str, Any]", given["deduplication"])
        if isinstance(deduplication.get("id"), str):
            values[DEDUPLICATION], deduplication["id"] = deduplication["id"], SLOTS[DEDUPLICATION]
    for name in MOVED:
        other = _OTHER_NAMES.get(name)
        if other is None:
            if type(given.get(name)) is int:
                values[name] = given.pop(name)
            continue
        if name in given and other in given:
            return None
        key = name if name in given and name != "orderingKey" else other
        value: Any = given.get(key)
        if key == "ordering" and isinstance(value, dict):
            group = cast("dict[str, Any]", value)
            value = group["key"] if list(group) == ["key"] else group
        if isinstance(value, str):
            values[name] = value
            del given[key]
    return values, json.dumps(given)
