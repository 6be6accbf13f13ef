"""JSON serialization: compact, non-ASCII characters not escaped, NaN and infinities as null.

It uses orjson if it is installed, else the standard library. Values that these reject go through `plain_values`. Both
accept the same values and texts; only the format of a float's exponent may differ.
"""

from __future__ import annotations

import json as _json
import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from glidemq_py._core.plain_values import encode_carefully, to_plain
from glidemq_py.errors import SerializationError

if TYPE_CHECKING:
    import orjson as _orjson
else:
    try:
        import orjson as _orjson
    except ImportError:
        _orjson = None

__all__ = ["are_texts", "dumps", "loads"]


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
