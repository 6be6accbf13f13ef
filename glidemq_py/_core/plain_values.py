"""Conversion of objects to JSON types (dict, list, str, int, float, bool, None), and a slow but complete JSON encoder.

This is the slow path of `json_text`: it supports every accepted type, and its errors have the path of the invalid part.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn, cast
from uuid import UUID

from glidemq_py.errors import SerializationError

_MAX_DEPTH: Final = 300  # well below Python's recursion limit and the limits of readers
_PATH_WIDTH: Final = 200


def to_plain(value: object) -> Any:
    """Convert an object one level towards plain data; its members may need further conversion.

    Raises:
        TypeError: the type has no JSON form, such as bytes, set and timedelta.
    """
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(cast("tuple[object, ...]", value))
    if not isinstance(value, type):
        if hasattr(value, "__struct_fields__"):
            # A Struct exists only if msgspec is imported.
            return sys.modules["msgspec"].to_builtins(value)
        if hasattr(value, "model_dump") and hasattr(value, "__pydantic_fields_set__"):
            return cast("Any", value).model_dump(mode="json")
        if isinstance(value, Mapping):
            return dict(cast("Mapping[object, object]", value))
    for base in (str, int, float):  # subclasses that encoders do not treat as their base
        if isinstance(value, base):
            return base(value)
    raise TypeError(f"objects of type {type(value).__name__} cannot be serialized to JSON")


def encode_carefully(value: Any, option: str) -> str:
    """Return the compact JSON text of a value.

    It accepts values that fast encoders reject: integers of any size, keys that are not strings, NaN (as null), lone
    surrogates (escaped, as in JavaScript).

    Raises:
        SerializationError: a part of the value has no JSON form; the message has its path.
    """
    writer = _Writer(value, option)
    try:
        writer.write(value)
    except RecursionError:
        writer.reject(value, "is nested too deeply")
    return "".join(writer.parts)


class _Writer:
    __slots__ = ("open", "option", "parts", "path", "whole")

    def __init__(self, whole: Any, option: str) -> None:
        self.whole = whole
        self.option = option
        self.parts: list[str] = []
        self.path: list[Any] = []
        self.open: set[int] = set()

    def reject(self, value: Any, problem: str, cause: BaseException | None = None) -> NoReturn:
        where = self.option + "".join(map(_step, self.path))
        if len(where) > _PATH_WIDTH:
            where = "..." + where[-_PATH_WIDTH:]
        place = f"at {where}: " if self.path else ""
        raise SerializationError(self.option, value, place + problem) from cause

    def write(self, value: object) -> None:
        if value is None or value is True or value is False:
            self.parts.append("null" if value is None else "true" if value else "false")
            return
        if isinstance(value, Enum):
            self._write_other(value)
        elif isinstance(value, str):
            self.parts.append(_text(value))
        elif isinstance(value, int):
            self.parts.append(self._integer(value))
        elif isinstance(value, float):
            self.parts.append(float.__repr__(value) if math.isfinite(value) else "null")
        elif isinstance(value, (dict, list, tuple)):
            self._write_container(cast("object", value))
        else:
            self._write_other(value)

    def _integer(self, value: int) -> str:
        try:
            return int.__repr__(value)
        except ValueError as error:  # more digits than sys.get_int_max_str_digits()
            self.reject("<int>", str(error), error)

    def _enter(self, value: object) -> int:
        """Record that `value` is being written. Return its mark, to be removed from `open` afterwards."""
        if id(value) in self.open:
            self.reject(value, "it contains itself")
        if len(self.open) >= _MAX_DEPTH:
            self.reject(value, f"is nested more than {_MAX_DEPTH} deep")
        self.open.add(id(value))
        return id(value)

    def _write_container(self, value: object) -> None:
        mark = self._enter(value)
        write: Callable[[Any], None] = self._write_dict if isinstance(value, dict) else self._write_list
        write(cast("Any", value))
        self.open.discard(mark)

    def _write_dict(self, value: dict[Any, Any]) -> None:
        separator = "{"
        for key, item in value.items():
            self.parts.append(separator)
            self.path.append(key)
            self.parts.append(_text(self._key(key)))
            self.parts.append(":")
            self.write(item)
            self.path.pop()
            separator = ","
        self.parts.append("{}" if separator == "{" else "}")

    def _write_list(self, value: Any) -> None:
        separator = "["
        for index, item in enumerate(value):
            self.parts.append(separator)
            self.path.append(index)
            self.write(item)
            self.path.pop()
            separator = ","
        self.parts.append("[]" if separator == "[" else "]")

    def _write_other(self, value: Any) -> None:
        mark = self._enter(value)
        try:
            plain = to_plain(value)
        except Exception as error:  # a model's own code may raise anything
            self.reject(value, str(error) or type(error).__name__, error)
        self.write(plain)
        self.open.discard(mark)

    def _key(self, key: Any) -> str:
        """Return a dict key as text, in the format of the standard library."""
        if isinstance(key, Enum):
            key = key.value
        if isinstance(key, str):
            return key
        if key is None or key is True or key is False:
            return "null" if key is None else "true" if key else "false"
        if isinstance(key, int):
            return self._integer(key)
        if isinstance(key, float):
            if not math.isfinite(key):
                self.reject(key, "a dict key must not be NaN or infinite")
            return float.__repr__(key)
        if isinstance(key, (UUID, datetime, date, time)):
            return cast("str", to_plain(key))
        return self.reject(key, f"a dict key of type {type(key).__name__} cannot be serialized to JSON")


def _step(key: Any) -> str:
    """Return one step of a path: `.name` or `[3]`."""
    if isinstance(key, str) and key.isidentifier():
        return f".{key}"
    return f"[{key!r}]" if isinstance(key, (str, int, float)) else f"[{type(key).__name__}]"


def _text(value: str) -> str:
    quoted = encode_basestring(value)
    if not quoted.isascii():
        try:
            quoted.encode()
        except UnicodeEncodeError:
            return "".join(f"\\u{ord(each):04x}" if 0xD800 <= ord(each) <= 0xDFFF else each for each in quoted)
    return quoted
