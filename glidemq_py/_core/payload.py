"""Job data and return values as stored text: serializers, size limit, compression.

Sizes are UTF-8 bytes of the serialized text before compression.

Stored values must be text, because all other readers of a queue expect text. MessagePack is therefore stored as `mp:`
and the base64 of its bytes. No JSON text starts with `mp:`, so readers can distinguish the two, and every
queue reads both.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import msgpack

from glidemq_py._core import json_text as json
from glidemq_py._core.json_text import to_plain
from glidemq_py._core.queue_options import Compression, Serializer
from glidemq_py.errors import GlideMQValidationError, PayloadTooLargeError, SerializationError, show_value

__all__ = [
    "JSON_SERIALIZER",
    "MSGPACK_SERIALIZER",
    "PAYLOAD_LIMIT",
    "Compression",
    "PackedValue",
    "Serializer",
    "check_line",
    "check_size",
    "decode_data",
    "decode_progress",
    "decode_result",
    "encode_data",
    "encode_json",
    "encode_result",
    "encode_text",
    "serializer_of",
    "stored_text",
]

PAYLOAD_LIMIT: Final = 1_048_576
"""Maximum size of data, a return value, progress, a log line or a stream chunk, in bytes."""

_GZIP_MARK: Final = "gz:"
_GZIP_LEVEL: Final = 6
_GZIP_WINDOW: Final = 31  # zlib's largest window, with a gzip header
_NULL: Final = "null"
_UTF8_MAX: Final = 4  # bytes of the longest code point


class PackedValue(NamedTuple):
    """Data or a result that is stored as MessagePack, whatever the serializer of the queue.

    Attributes:
        value: The value.
    """

    value: Any


class _JsonSerializer:
    """The default serializer."""

    __slots__ = ()

    def serialize(self, value: Any, /) -> str:
        """Return the JSON text of a value."""
        return json.dumps(value)

    def deserialize(self, text: str, /) -> Any:
        """Return the value of a JSON text."""
        return json.loads(text)

    def __repr__(self) -> str:
        return "JSON_SERIALIZER"


JSON_SERIALIZER: Final[Serializer] = _JsonSerializer()
"""JSON; the default serializer of a queue."""


def check_size(option: str, text: str, limit: int = PAYLOAD_LIMIT) -> None:
    """Raise `PayloadTooLargeError` if the text exceeds `limit` bytes in UTF-8."""
    length = len(text)
    if text.isascii():
        size = length
    elif length * _UTF8_MAX <= limit:
        return  # within the limit even if every character has 4 bytes
    else:
        size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise PayloadTooLargeError(option, size, limit)


def check_line(option: str, line: object) -> None:
    """Check a log line or chunk.

    Raises:
        GlideMQValidationError: it is not a string, or contains a lone surrogate.
        PayloadTooLargeError: it exceeds `PAYLOAD_LIMIT`.
    """
    if not isinstance(line, str):
        raise GlideMQValidationError(option, line, f"must be a string, not {type(line).__name__}")
    try:
        size = len(line.encode())
    except UnicodeEncodeError:
        raise GlideMQValidationError(option, line, "must not contain a lone surrogate") from None
    if size > PAYLOAD_LIMIT:
        raise PayloadTooLargeError(option, size, PAYLOAD_LIMIT)


def encode_data(
    value: Any,
    serializer: Serializer = JSON_SERIALIZER,
    compression: Compression = "none",
    limit: int = PAYLOAD_LIMIT,
    option: str = "data",
) -> str:
    """Return the text of a job's data, as stored in its hash.

    Args:
        value: the data.
        serializer: serializer of the data.
        compression: "gzip" stores `gz:` and the base64 of the gzip.
        limit: maximum size before compression, in bytes.
        option: name of the value, for the error.

    Raises:
        SerializationError: the data cannot be serialized.
        PayloadTooLargeError: the text exceeds the limit.
    """
    if value.__class__ is PackedValue:
        text = _pack(value, limit, option)
        limit = len(text)
    else:
        text = json.dumps(value, option) if serializer is JSON_SERIALIZER else _serialize(value, serializer, option)
    if compression == "none" and len(text) * _UTF8_MAX <= limit and not text.startswith(_GZIP_MARK):
        return text  # the usual case of `encode_text`
    return encode_text(text, compression, limit, option)


def encode_text(text: str, compression: Compression = "none", limit: int = PAYLOAD_LIMIT, option: str = "data") -> str:
    """Return the text of a serialized value, as stored in the job's hash.

    Raises:
        PayloadTooLargeError: the text exceeds the limit.
    """
    if len(text) * _UTF8_MAX > limit:
        check_size(option, text, limit)
    # Readers would unpack a plain text that starts with the mark, so such a text is compressed too.
    if compression == "gzip" or text.startswith(_GZIP_MARK):
        return _compress(text)
    return text


def decode_data(text: str, serializer: Serializer = JSON_SERIALIZER) -> Any:
    """Return the value of a job's stored data; compressed data starts with `gz:`.

    Raises:
        SerializationError: invalid text, invalid compression, or more than `PAYLOAD_LIMIT` bytes when unpacked.
    """
    if text.startswith(_GZIP_MARK):
        text = _decompress(text)
    if serializer is JSON_SERIALIZER and not text.startswith(_MARK):
        return json.loads(text, "data")
    return _deserialize(text, serializer, "data")


def stored_text(text: str) -> str:
    """Return the uncompressed text of a job's stored data.

    Raises:
        SerializationError: invalid compression, or more than `PAYLOAD_LIMIT` bytes when unpacked.
    """
    return _decompress(text) if text.startswith(_GZIP_MARK) else text


def encode_result(value: Any, serializer: Serializer = JSON_SERIALIZER, limit: int = PAYLOAD_LIMIT) -> str:
    """Return the text of a return value. None is `null` with every serializer; results are never compressed.

    Raises:
        SerializationError: the result cannot be serialized.
        PayloadTooLargeError: the text exceeds the limit.
    """
    if value is None:
        return _NULL
    if value.__class__ is PackedValue:
        return _pack(value, limit, "result")
    if serializer is JSON_SERIALIZER:
        text = json.dumps(value, "result")
    else:
        text = _serialize(value, serializer, "result")
    if len(text) * _UTF8_MAX > limit:
        check_size("result", text, limit)
    return text


def decode_result(text: str, serializer: Serializer = JSON_SERIALIZER) -> Any:
    """Return the value of a stored return value.

    Raises:
        SerializationError: the text cannot be deserialized.
    """
    if text == _NULL:
        return None
    if serializer is JSON_SERIALIZER and not text.startswith(_MARK):
        return json.loads(text, "result")
    return _deserialize(text, serializer, "result")


def encode_json(option: str, value: Any, limit: int = PAYLOAD_LIMIT) -> str:
    """Return the JSON text of a value that never uses the queue's serializer, such as progress.

    Raises:
        SerializationError: the value cannot be serialized.
        PayloadTooLargeError: the text exceeds the limit.
    """
    text = json.dumps(value, option)
    check_size(option, text, limit)
    return text


def decode_progress(text: str | None) -> Any:
    """Return a job's progress: its JSON value, else the leading number of its text, else 0. Never raises."""
    if not text:
        return 0
    try:
        return json.loads(text, "progress")
    except SerializationError:
        stripped = text.lstrip()
        sign, digits = (stripped[:1], stripped[1:]) if stripped[:1] in ("-", "+") else ("", stripped)
        whole = digits[: len(digits) - len(digits.lstrip("0123456789"))]
        return int(sign + whole) if 0 < len(whole) <= 300 else 0


def _serialize(value: Any, serializer: Serializer, option: str) -> str:
    try:
        text: Any = serializer.serialize(value)
    except Exception as error:
        raise SerializationError(option, value, f"the serializer failed: {error!r}") from error
    if not isinstance(text, str):
        raise SerializationError(option, value, f"the serializer returned {type(text).__name__}, not str")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise SerializationError(option, value, f"the serializer's text is not UTF-8: {error}") from error
    return text


def _deserialize(text: str, serializer: Serializer, option: str) -> Any:
    if serializer is JSON_SERIALIZER:  # another client has stored MessagePack
        serializer = MSGPACK_SERIALIZER
    try:
        return serializer.deserialize(text)
    except Exception as error:
        raise SerializationError(option, text, f"the serializer failed: {error!r}") from error


def _pack(value: PackedValue, limit: int, option: str) -> str:
    """Return the text of a value that is stored as MessagePack; the limit is that of its bytes, before Base64."""
    text = _serialize(value.value, MSGPACK_SERIALIZER, option)
    size = (len(text) - len(_MARK)) * 3 // 4
    if size > limit:
        raise PayloadTooLargeError(option, size, limit)
    return text


def _compress(text: str) -> str:
    packed = zlib.compress(text.encode(), _GZIP_LEVEL, _GZIP_WINDOW)
    return _GZIP_MARK + base64.b64encode(packed).decode("ascii")


def _decompress(text: str) -> str:
    try:
        packed = base64.b64decode(text[len(_GZIP_MARK) :], validate=True)
        unpacker = zlib.decompressobj(_GZIP_WINDOW)
        raw = unpacker.decompress(packed, PAYLOAD_LIMIT + 1)  # one byte more, to detect that the limit is exceeded
        if len(raw) > PAYLOAD_LIMIT:
            raise SerializationError("data", text, f"unpacks to more than {PAYLOAD_LIMIT} bytes")
        if not unpacker.eof:
            raise SerializationError("data", text, "its gzip data is truncated")
        return raw.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, SerializationError):
            raise
        raise SerializationError("data", text, f"its gzip data is invalid: {error}") from error


_MARK: Final = "mp:"

# msgpack has no type annotations.
_msgpack: Any = msgpack
_packb: Final[Callable[..., bytes]] = _msgpack.packb
_unpackb: Final[Callable[..., Any]] = _msgpack.unpackb


_LOCAL_TIME: Final = 1
"""Extension type of a naive datetime, as ISO text."""


def _unpack(packed: bytes) -> Any:
    try:
        return _unpackb(packed, strict_map_key=False, timestamp=3, ext_hook=_extension)
    except TypeError:  # a key that is a list
        return _unpackb(packed, strict_map_key=False, timestamp=3, ext_hook=_extension, object_pairs_hook=_mapping)


def _extension(code: int, data: bytes) -> Any:
    return datetime.fromisoformat(data.decode()) if code == _LOCAL_TIME else _msgpack.ExtType(code, data)


def _mapping(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_hashable(key): value for key, value in pairs}


def _hashable(key: Any) -> Any:
    if isinstance(key, dict):
        raise TypeError(f"{key!r} cannot be the key of a mapping")
    return tuple(map(_hashable, cast("list[object]", key))) if isinstance(key, list) else key


class _MsgpackSerializer:
    """MessagePack with bytes, times and keys of any type. Other types are converted as for JSON."""

    __slots__ = ()

    def serialize(self, value: Any, /) -> str:
        """Return `mp:` and base64. A datetime stays one; an aware one is in UTC then."""
        objects: list[object] = []

        def plain(part: object) -> Any:
            if isinstance(part, datetime):
                return _msgpack.ExtType(_LOCAL_TIME, part.isoformat().encode())
            if isinstance(part, Hashable):
                objects.append(part)
            return to_plain(part)

        packed = _packb(value, default=plain, datetime=True)
        if objects:  # they may be keys, and without a hashable form
            _unpack(packed)
        return _MARK + base64.b64encode(packed).decode("ascii")

    def deserialize(self, text: str, /) -> Any:
        """Return the value. Text without `mp:` is read as JSON."""
        if not text.startswith(_MARK):
            return json.loads(text)
        return _unpack(base64.b64decode(text[len(_MARK) :], validate=True))

    def __repr__(self) -> str:
        return "MSGPACK_SERIALIZER"


MSGPACK_SERIALIZER: Final[Serializer] = _MsgpackSerializer()
"""``serializer="msgpack"``: supports bytes and times, and also reads JSON."""


def serializer_of(given: Serializer | str | None) -> Serializer:
    """Return the serializer of an option: a serializer or the name of a built-in one; None is JSON."""
    if given is None or given == "json":
        return JSON_SERIALIZER
    if given == "msgpack":
        return MSGPACK_SERIALIZER
    assert not isinstance(given, str)  # QueueOptions has checked it
    return given


class Mismatch(ValueError):  # noqa: N818 - callers that know the parameter turn it into an error
    """A value does not match its annotation."""

    def __init__(self, value: object, problem: str) -> None:
        super().__init__(value, problem)
        self.value = value
        self.problem = problem

    def describe(self, where: str) -> str:
        """Return the problem and its place, such as "times = 'x': Expected `int`, got `str`"."""
        return f"{where} = {show_value(self.value)}: {self.problem}"
