"""Frames of the protocol, and their values: MessagePack as JavaScript clients write and read it.

A frame is a length of 4 bytes, big endian, and a value of that length.

Numbers outside 32 bits are sent as float64, because the clients' codec decodes 64-bit integers to BigInt, which they
reject. `undefined` is the extension type 0: absent in a map, null in a list. Dates are timestamps (type -1).
"""

from __future__ import annotations

import base64
import math
from datetime import datetime
from typing import Any, Final, cast

import msgpack

MAX_DEPTH: Final = 200
"""Deepest nesting of lists and maps in a received value."""
MAX_ELEMENTS: Final = 2_000_000
"""Largest number of elements of all lists and maps in a received value."""

_msgpack: Any = msgpack  # it has no type annotations
_MANY: Final = f"more than {MAX_ELEMENTS:,} elements"
_DEEP: Final = f"nested deeper than {MAX_DEPTH} lists and maps"
_LONGEST_ID: Final = 1_000
"""Elements of a list or map in a `reqId` that is returned with the error of a command above the limits."""
_INT_MIN, _INT_MAX = -(2**31), 2**32
_SAFE: Final = 2**53
_UNDEFINED_CODE: Final = 0
_FEW: Final = 16
"""Elements of a list up to which their types are not looked at beforehand."""
_UNCHANGED: Final = frozenset((str, float, bool, bytes, type(None)))
_INTEGERS: Final[frozenset[Any]] = frozenset((int,))
_CONTAINERS: Final[frozenset[Any]] = frozenset((dict, list))


class InvalidValueError(ValueError):
    """The bytes are not one MessagePack value."""


class ValueLimitError(InvalidValueError):
    """The value exceeds `MAX_DEPTH` or `MAX_ELEMENTS`; the message names the limit."""


UNDEFINED: Final[Any] = _msgpack.ExtType(_UNDEFINED_CODE, b"\0")
"""JavaScript's `undefined`, in an answer."""


class Encoded:
    """A part of an answer that is encoded already, for the protocol of its client.

    Args:
        content: The part.
        job_id: The id of the job whose object it is.
    """

    __slots__ = ("content", "job_id")

    def __init__(self, content: bytes, job_id: str | None = None) -> None:
        self.content, self.job_id = content, job_id


class PackedList(list[bytes]):
    """A list of an answer whose elements are MessagePack already."""


class LargeAnswer(dict[str, Any]):
    """An answer in which values, or all elements of lists, are `Encoded`; or that contains a `PackedList`."""


class PortableMap(dict[str, Any]):
    """A map of an answer, or an answer, that `portable` need not convert: numbers that exceed 32 bits are floats."""


class _Counter:
    """Counts elements while a value is decoded, and replaces `undefined`."""

    __slots__ = ("containers", "elements", "has_undefined")

    def __init__(self) -> None:
        self.containers = 0
        self.elements = 0
        self.has_undefined = False
        """Whether the value contains `undefined` so far. Few do, so most maps and lists are not searched for it."""

    def map(self, found: dict[Any, Any]) -> dict[Any, Any]:
        self._add(len(found))
        if self.has_undefined:
            return {key: each for key, each in found.items() if each is not UNDEFINED}
        return found

    def list(self, found: list[Any]) -> list[Any]:
        self._add(len(found))
        return [None if each is UNDEFINED else each for each in found] if self.has_undefined else found

    def extension(self, code: int, data: bytes) -> Any:
        if code == _UNDEFINED_CODE:
            self.has_undefined = True
            return UNDEFINED
        return _msgpack.ExtType(code, data)

    def _add(self, elements: int) -> None:
        self.containers += 1
        self.elements += elements + 1
        if self.elements > MAX_ELEMENTS:
            raise ValueLimitError(_MANY)


_HEADERS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""First bytes of lists and maps."""


class _ExtensionError(Exception):
    """The value contains an extension, such as `undefined`."""


def _reject_extension(code: int, data: bytes) -> Any:
    raise _ExtensionError


def value_of(payload: bytes) -> Any:
    """Return the value of a frame.

    Raises:
        ValueLimitError: If the value exceeds `MAX_DEPTH` or `MAX_ELEMENTS`.
        InvalidValueError: If the bytes are not one MessagePack value.
    """
    # A usual value has so few lists and maps that it cannot be too deep, fewer bytes than the elements that are
    # allowed, and no extension: then nothing needs to be counted or replaced. (A text may contain the bytes, too.)
    size = len(payload)
    if size <= MAX_ELEMENTS and size - len(payload.translate(None, _HEADERS)) <= MAX_DEPTH:
        try:
            return _msgpack.unpackb(
                payload, raw=False, strict_map_key=False, timestamp=3, ext_hook=_reject_extension, max_array_len=size,
                max_map_len=size,
            )  # fmt: skip
        except _ExtensionError:
            pass
        except (ValueError, TypeError, OverflowError, _msgpack.UnpackException) as error:
            raise InvalidValueError(str(error)) from None
    return _counted_value(payload)


def _counted_value(payload: bytes) -> Any:
    counter = _Counter()
    longest = min(MAX_ELEMENTS, len(payload))  # no list of a complete value has more elements than the value bytes
    try:
        value: Any = _msgpack.unpackb(
            payload, raw=False, strict_map_key=False, timestamp=3, ext_hook=counter.extension, object_hook=counter.map,
            list_hook=counter.list, max_array_len=longest, max_map_len=longest,
        )  # fmt: skip
    except ValueLimitError:
        raise
    except _msgpack.StackError:
        raise ValueLimitError(_DEEP) from None
    except (ValueError, TypeError, OverflowError, _msgpack.UnpackException) as error:
        if longest == MAX_ELEMENTS and str(error).partition(" exceeds ")[2].startswith(
            ("max_array_len", "max_map_len")
        ):
            raise ValueLimitError(_MANY) from None
        raise InvalidValueError(str(error)) from None
    # A value cannot be deeper than it has lists and maps, so most need no walk.
    if counter.containers > MAX_DEPTH and is_too_deep(value):
        raise ValueLimitError(_DEEP)
    return None if value is UNDEFINED else value


def request_id_of(payload: bytes) -> dict[str, Any]:
    """Return the `reqId` of a frame whose value exceeds the limits, in a map; an empty one if it was not found.

    The other members are skipped, not built.
    """
    unpacker = _msgpack.Unpacker(
        raw=False, strict_map_key=False, timestamp=3, max_buffer_size=len(payload), max_array_len=_LONGEST_ID,
        max_map_len=_LONGEST_ID,
    )  # fmt: skip
    try:
        unpacker.feed(payload)
        for _ in range(unpacker.read_map_header()):
            if unpacker.unpack() == "reqId":
                return {"reqId": unpacker.unpack()}
            unpacker.skip()
    except (ValueError, TypeError, OverflowError, _msgpack.UnpackException):
        pass
    return {}


def is_too_deep(value: Any) -> bool:
    """Return whether a value is nested deeper than `MAX_DEPTH`."""
    level: list[Any] = [value] if value.__class__ in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for each in level
            for child in (each.values() if each.__class__ is dict else each)
            if child.__class__ in _CONTAINERS
        ]
        if not level:
            return False
    return True


# One packer, as a new one takes longer than most values; it may be used only by the thread of the event loop.
_pack: Final[Any] = _msgpack.Packer(datetime=True, unicode_errors="replace").pack


def packed_value(value: Any) -> bytes:
    """Return the value as MessagePack."""
    packed: bytes = _pack(portable(value))
    return packed


def packed_portable(value: Any) -> bytes:
    """Return a value that `portable` need not convert as MessagePack."""
    packed: bytes = _pack(value)
    return packed


def frame_of(value: Any) -> bytes:
    """Return the frame of an answer."""
    packed: bytes = _pack(value if value.__class__ is PortableMap else portable(value))
    return len(packed).to_bytes(4, "big") + packed


def framed(packed: bytes) -> bytes:
    """Return the frame of a value that is packed."""
    return len(packed).to_bytes(4, "big") + packed


def portable(value: Any) -> Any:
    """Return the value with every integer outside 32 bits as a float."""
    kind: Any = value.__class__
    if kind is str or kind is PortableMap:
        return value
    if kind is int:
        return value if _INT_MIN <= value < _INT_MAX else _float(value)
    if kind is dict:
        return {
            key if key.__class__ is str else portable(key): each if each.__class__ is str else portable(each)
            for key, each in cast("dict[Any, Any]", value).items()
        }
    if kind is list or kind is tuple:
        if len(value) > _FEW:
            kinds: set[Any] = set(map(type, value))
            if kinds <= _UNCHANGED or (kinds <= _INTEGERS and min(value) >= _INT_MIN and max(value) < _INT_MAX):
                return value
        return [each if each.__class__ is str else portable(each) for each in value]
    if isinstance(value, datetime):
        return value if value.tzinfo else value.isoformat()
    if value is None or kind in (str, bytes, float, bool):
        return value
    return value if kind is _msgpack.ExtType or kind is _msgpack.Timestamp else str(value)


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def plain(value: Any) -> Any:
    """Return a value as JavaScript writes it to JSON.

    `undefined` is absent in objects and null in lists, whole numbers have no fraction, and bytes are Base64.
    """
    if isinstance(value, dict):
        members: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {str(name): plain(each) for name, each in members.items() if each is not UNDEFINED}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _SAFE else value if math.isfinite(value) else None
    if value is UNDEFINED:
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value if value is None or isinstance(value, str | int | float) else str(value)


MAX_FRAME: Final = 67_108_864
"""Largest value of a frame, in bytes."""
MAX_UNAUTHENTICATED_FRAME: Final = 65_536
"""The same before `Auth`, so that an unknown client cannot fill the memory."""

_HEADER: Final = 4


class FrameReader:
    """Splits the bytes of one connection into the values of its frames.

    Attributes:
        limit: Largest value, in bytes.
        has_partial: Whether a frame has begun and is incomplete.
        oversized: Length of the first value above the limit, or 0. No frame is read after it, unless `limit` grows:
            then the next `feed` continues with it.
    """

    __slots__ = ("_buffer", "_needed", "has_partial", "limit", "oversized")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._buffer = bytearray()
        self._needed = _HEADER
        self.limit = limit
        self.has_partial = False
        self.oversized = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes; return the values of the frames that are complete."""
        buffer = self._buffer
        if self.oversized > MAX_FRAME:
            return []
        buffer += data
        if self.oversized:
            if self.oversized > self.limit:
                return []
            self.oversized = 0
        if len(buffer) < self._needed:
            self.has_partial = bool(buffer)
            return []
        found: list[bytes] = []
        start, end = 0, len(buffer)
        while True:
            if end - start < _HEADER:
                self._needed = _HEADER
                break
            length = int.from_bytes(buffer[start : start + _HEADER], "big")
            if length > self.limit:
                self.oversized = length
                if length > MAX_FRAME:
                    start = end
                break
            after = start + _HEADER + length
            if after > end:
                self._needed = after - start
                break
            found.append(bytes(buffer[start + _HEADER : after]))
            start = after
        del buffer[:start]
        self.has_partial = start < end and not self.oversized
        return found
