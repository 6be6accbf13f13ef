"""Data and results of jobs: values of the protocol as JSON, which all clients of the queues read."""

from __future__ import annotations

import math
from typing import Any, Final, cast

from glidemq_py.gateway.table import CommandError

__all__ = ["json_value"]

_SAFE: Final = 2**53


def json_value(field: str, value: Any) -> Any:
    """Return the value as JSON has it. Whole numbers of float type become integers: JavaScript has one type for both.

    Raises:
        CommandError: If JSON cannot represent a part of the value.
    """
    kind: Any = value.__class__
    if value is None or kind is str or kind is bool or kind is int:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise CommandError(f"{field} contains {value}, which JSON cannot represent")
        return int(value) if value == int(value) and abs(value) < _SAFE else value
    if kind is list:
        return [json_value(field, each) for each in value]
    if kind is dict:
        pairs = cast("dict[Any, Any]", value)
        for key in pairs:
            if key.__class__ is not str:
                raise CommandError(f"{field} contains a key of type {key.__class__.__name__}; JSON allows only strings")
        return {key: json_value(field, each) for key, each in pairs.items()}
    what = {"bytes": "bytes", "datetime": "a date"}.get(kind.__name__, f"a value of type {kind.__name__}")
    raise CommandError(f"{field} contains {what}, which JSON cannot represent")
