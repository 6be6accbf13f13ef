"""JSON text of values and values of JSON text: compact, UTF-8 not escaped, NaN and the infinities as null.

orjson does the work where it is installed, the standard library where not; what either cannot do is left to
`plain`. Both accept the same values and texts, and differ at most in how a float's exponent is written. Which
options a job carries, size limits and compression are not decided here.
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


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_encode: Final = _json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=to_plain).encode
_decode: Final = _json.JSONDecoder(parse_constant=_refuse_constant).decode

# orjson reads integers beyond 64 bits as floats. A run of 20 characters that could be one covers two
# neighbours of every tenth character, and looking at those is eight times cheaper than looking at all.
_maybe_huge: Final = re.compile(r"[-0-9]{2}").search
_huge: Final = re.compile(r"[-0-9][0-9]{19}").search


def _dumps_stdlib(value: Any, option: str = "value") -> str:
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
    except Exception:
        # NaN, a lone surrogate, an odd key, a broken model: plain tells them apart, and says where it is.
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
        # Escaped lone surrogates and 1e400 are JSON to everyone else: let the standard library decide.
        pass
    return _loads_stdlib(text, option)


_has_orjson: Final[bool] = bool(_orjson)
if _has_orjson:
    # Passed through, so that these read the same with and without orjson: it skips underscored fields and
    # knows only some time zones.
    _ORJSON_OPTIONS = _orjson.OPT_PASSTHROUGH_DATACLASS | _orjson.OPT_PASSTHROUGH_DATETIME
_dumps: Final = _dumps_orjson if _has_orjson else _dumps_stdlib
_loads: Final = _loads_orjson if _has_orjson else _loads_stdlib


def dumps(value: Any, option: str = "value") -> str:
    """JSON text of a value.

    Beside plain data: dataclasses, pydantic models, msgspec Structs, datetime, date and time (ISO 8601),
    UUID, Enum (its value), Decimal (as a string: it is exact) and named tuples. Dict keys that are int,
    float, bool or None become strings as the standard library writes them; integers may have any size.

    Args:
        value: what to write.
        option: what it is, for the error.

    Raises:
        SerializationError: names the path and the type that cannot be written.
    """
    return _dumps(value, option)


def are_texts(count: int, join: Callable[[str], bytes]) -> bool:
    """True if each of some texts is JSON, looked at all at once. False may also mean that one by one they might be.

    Between any two of them stands a mark that no text can hold; only where each text is one whole value do the marks
    come out in every second place.

    Args:
        count: of the texts, 1 at least.
        join: joins them, in UTF-8, with what it is given between any two.
    """
    if not _has_orjson:
        return False
    mark = secrets.token_hex(16)
    try:
        values = _orjson.loads(b"[" + join(f',"{mark}",') + b"]")
    except (ValueError, TypeError):
        return False
    return len(values) == 2 * count - 1 and values[1::2] == [mark] * (count - 1)


def loads(text: str | bytes, option: str = "value") -> Any:
    """The value of a JSON text; bytes must be UTF-8. NaN and Infinity are no JSON.

    Raises:
        SerializationError: it is not JSON.
    """
    return _loads(text, option)
