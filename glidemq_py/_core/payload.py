"""Job data and return values as stored text: serializer, limit, compression (spec/data-model section 4.2).

Sizes are UTF-8 bytes of the serialized text before compression. Keys, options and calls are made elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._core.queue_options import Compression, Serializer
from glidemq_py.errors import GlideMQValidationError, PayloadTooLargeError, SerializationError

__all__ = [
    "JSON_SERIALIZER",
    "PAYLOAD_LIMIT",
    "Compression",
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
    "stored_text",
]

PAYLOAD_LIMIT: Final = 1_048_576
"""Most bytes of data, a return value, progress, a log line or a stream chunk."""

_GZIP_MARK: Final = "gz:"
_GZIP_LEVEL: Final = 6
_GZIP_WINDOW: Final = 31  # zlib's largest window, with a gzip header
_NULL: Final = "null"
_UTF8_MAX: Final = 4  # bytes of the longest code point


class _JsonSerializer:
    """The default serializer."""

    __slots__ = ()

    def serialize(self, value: Any, /) -> str:
        """JSON text of a value."""
        return json.dumps(value)

    def deserialize(self, text: str, /) -> Any:
        """The value of a JSON text."""
        return json.loads(text)

    def __repr__(self) -> str:
        return "JSON_SERIALIZER"


JSON_SERIALIZER: Final[Serializer] = _JsonSerializer()
"""Plain JSON; what a queue uses when it is given no serializer."""


def check_size(option: str, text: str, limit: int = PAYLOAD_LIMIT) -> None:
    """Raise `PayloadTooLargeError` if the text has more than `limit` bytes in UTF-8."""
    length = len(text)
    if text.isascii():
        size = length
    elif length * _UTF8_MAX <= limit:
        return  # cannot be too large, whatever characters it has
    else:
        size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise PayloadTooLargeError(option, size, limit)


def check_line(option: str, line: object) -> None:
    """Raise `GlideMQValidationError` unless this is text, and `PayloadTooLargeError` if there is too much of it."""
    if not isinstance(line, str):
        raise GlideMQValidationError(option, line, f"must be a str, not {type(line).__name__}")
    try:
        size = len(line.encode())
    except UnicodeEncodeError:
        raise GlideMQValidationError(option, line, "holds a lone surrogate, which is not text") from None
    if size > PAYLOAD_LIMIT:
        raise PayloadTooLargeError(option, size, PAYLOAD_LIMIT)


def encode_data(
    value: Any,
    serializer: Serializer = JSON_SERIALIZER,
    compression: Compression = "none",
    limit: int = PAYLOAD_LIMIT,
    option: str = "data",
) -> str:
    """Text of a job's data, as its hash holds it.

    Args:
        value: the data.
        serializer: what turns it into text.
        compression: "gzip" stores `gz:` and the base64 of the gzip.
        limit: most bytes before compression.
        option: what it is, for the error.

    Raises:
        SerializationError: it cannot be turned into text.
        PayloadTooLargeError: the text is too large.
    """
    text = json.dumps(value, option) if serializer is JSON_SERIALIZER else _serialize(value, serializer, option)
    return encode_text(text, compression, limit, option)


def encode_text(text: str, compression: Compression = "none", limit: int = PAYLOAD_LIMIT, option: str = "data") -> str:
    """The same for a value that is serialized already. Raises PayloadTooLargeError."""
    check_size(option, text, limit)
    # A text that only looks compressed would be unpacked by every reader, so it is compressed in earnest.
    if compression == "gzip" or text.startswith(_GZIP_MARK):
        return _compress(text)
    return text


def decode_data(text: str, serializer: Serializer = JSON_SERIALIZER, limit: int = PAYLOAD_LIMIT) -> Any:
    """The value of a job's stored data; compressed data is recognised by its `gz:`.

    Raises:
        SerializationError: broken text, broken compression, or more than `limit` bytes when unpacked.
    """
    text = stored_text(text, limit)
    return json.loads(text, "data") if serializer is JSON_SERIALIZER else _deserialize(text, serializer, "data")


def stored_text(text: str, limit: int = PAYLOAD_LIMIT) -> str:
    """The text of a job's stored data before its compression. Raises SerializationError."""
    return _decompress(text, limit) if text.startswith(_GZIP_MARK) else text


def encode_result(value: Any, serializer: Serializer = JSON_SERIALIZER, limit: int = PAYLOAD_LIMIT) -> str:
    """Text of a return value. None is stored as `null` whatever the serializer; results are never compressed.

    Raises `SerializationError` or `PayloadTooLargeError`.
    """
    if value is None:
        return _NULL
    if serializer is JSON_SERIALIZER:
        text = json.dumps(value, "result")
    else:
        text = _serialize(value, serializer, "result")
    check_size("result", text, limit)
    return text


def decode_result(text: str, serializer: Serializer = JSON_SERIALIZER) -> Any:
    """The value of a stored return value. Raises `SerializationError`."""
    if text == _NULL:
        return None
    return json.loads(text, "result") if serializer is JSON_SERIALIZER else _deserialize(text, serializer, "result")


def encode_json(option: str, value: Any, limit: int = PAYLOAD_LIMIT) -> str:
    """JSON text of what never goes through a serializer, such as progress, within the limit.

    Raises `SerializationError` or `PayloadTooLargeError`.
    """
    text = json.dumps(value, option)
    check_size(option, text, limit)
    return text


def decode_progress(text: str | None) -> Any:
    """A job's progress: its JSON, else the number its text begins with, else 0. Raises nothing."""
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
    try:
        return serializer.deserialize(text)
    except Exception as error:
        raise SerializationError(option, text, f"the serializer failed: {error!r}") from error


def _compress(text: str) -> str:
    packed = zlib.compress(text.encode(), _GZIP_LEVEL, _GZIP_WINDOW)
    return _GZIP_MARK + base64.b64encode(packed).decode("ascii")


def _decompress(text: str, limit: int) -> str:
    try:
        packed = base64.b64decode(text[len(_GZIP_MARK) :], validate=True)
        unpacker = zlib.decompressobj(_GZIP_WINDOW)
        raw = unpacker.decompress(packed, limit + 1)  # one more than allowed shows that there is too much
        if len(raw) > limit:
            raise SerializationError("data", text, f"unpacks to more than {limit} bytes")
        if not unpacker.eof:
            raise SerializationError("data", text, "its gzip is cut short")
        return raw.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, SerializationError):
            raise
        raise SerializationError("data", text, f"its gzip is broken: {error}") from error
