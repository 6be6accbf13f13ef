"""JSON serialization: compact, non-ASCII characters not escaped, NaN and infinities as null.

It uses orjson if it is installed, else the standard library. Values that these reject go through the slow path, which
converts objects to JSON types (dict, list, str, int, float, bool, None) and encodes them: it supports every accepted
type, and its errors have the path of the invalid part. Both accept the same values and texts; only the format of a
float's exponent may differ.
"""

from __future__ import annotations

import dataclasses
import json as _json
import math
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from uuid import UUID

from glidemq_py.errors import SerializationError

if TYPE_CHECKING:
    import orjson as _orjson
else:
    try:
        import orjson as _orjson
    except ImportError:
        _orjson = None

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
            return cast("Any", value).model_dump(mode="json", round_trip=True)  # no computed fields
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


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_encode: Final = _json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=to_plain).encode
_decode: Final = _json.JSONDecoder(parse_constant=_reject_constant).decode

# orjson reads integers beyond 64 bits as floats, so texts with 20 digits in a row go to the standard library. Such a
# run covers two consecutive characters of every tenth one; testing only these is eight times cheaper.
_maybe_huge: Final = re.compile(r"[-0-9]{2}").search
_huge: Final = re.compile(r"[-0-9][0-9]{19}").search


def _dumps_stdlib(value: Any, option: str = "value") -> str:
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
    except Exception:
        # NaN, a lone surrogate, an unusual key or a broken model: either it can be written, or the error has its path.
        return encode_carefully(value, option)
    return text


def _dumps_orjson(value: Any, option: str = "value") -> str:
    try:
        return _orjson.dumps(value, to_plain, _ORJSON_OPTIONS).decode()
    except Exception:
        return encode_carefully(value, option)


def _loads_stdlib(text: str | bytes, option: str = "value") -> Any:
    try:
        return _decode(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError, TypeError, AttributeError) as error:
        raise SerializationError(option, text, f"is not JSON: {error}") from error


def _loads_orjson(text: str | bytes, option: str = "value") -> Any:
    try:
        if isinstance(text, bytes):
            text = text.decode()
        if _maybe_huge(text[9::10]) is None or _huge(text) is None:
            return _orjson.loads(text)
    except (ValueError, TypeError):
        # The standard library accepts escaped lone surrogates and 1e400, as other JSON readers do.
        pass
    return _loads_stdlib(text, option)


_has_orjson: Final[bool] = bool(_orjson)
if _has_orjson:
    # Passed through for the same output with and without orjson: it skips underscored fields and supports only some
    # time zones.
    _ORJSON_OPTIONS = _orjson.OPT_PASSTHROUGH_DATACLASS | _orjson.OPT_PASSTHROUGH_DATETIME
dumps: Final = _dumps_orjson if _has_orjson else _dumps_stdlib
"""Return the JSON text of a value.

Besides plain data it accepts dataclasses, pydantic models, msgspec Structs, datetime, date and time (ISO 8601), UUID,
Enum (its value), Decimal (as a string, to stay exact) and named tuples. Dict keys of the types int, float, bool and
None become strings, as in the standard library. Integers may have any size.

Args:
    value: the value to serialize.
    option: name of the value, for the error.

Raises:
    SerializationError: the value cannot be serialized; the message has the path and the type.
"""
loads: Final = _loads_orjson if _has_orjson else _loads_stdlib
"""Return the value of a JSON text; bytes must be UTF-8. NaN and Infinity are rejected.

Raises:
    SerializationError: the text is not JSON.
"""


def are_texts(count: int, join: Callable[[str], bytes]) -> bool:
    """Return True if every one of several texts is valid JSON, checked in one pass.

    False may be returned for valid texts too: check them one by one then. The texts are joined with a random separator
    value. The separators are at every second position of the parsed array only if each text is one complete value.

    Args:
        count: number of texts, at least 1.
        join: function that joins the texts in UTF-8 with the given separator.
    """
    if not _has_orjson:
        return False
    mark = secrets.token_hex(16)
    try:
        values = _orjson.loads(b"[" + join(f',"{mark}",') + b"]")
    except (ValueError, TypeError):
        return False
    return len(values) == 2 * count - 1 and values[1::2] == [mark] * (count - 1)
