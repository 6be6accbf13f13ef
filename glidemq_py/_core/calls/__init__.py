"""Server calls, and the packing of their arguments and replies.

Arguments are old-style MessagePack without the ``bin`` type and without nil in arrays: the server's decoder rejects
``bin``, and decodes an array with nil as a map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Generic, Self, TypeVar

import msgpack

from glidemq_py._core.rows import FIELDS
from glidemq_py.errors import GlideMQError, ScriptError

__all__ = [
    "TEXT_MARK",
    "Call",
    "array_head",
    "declared",
    "declared_keys",
    "pack",
    "unpack",
]


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
RowT = TypeVar("RowT", bound=tuple[Any, ...])


_GUARD: Final = ":slot-guard"


@lru_cache(maxsize=4096)
def declared_keys(key: str) -> list[str]:
    """Return ``key`` and its slot guard: a key of the same hash slot that never exists.

    While a slot migrates key by key (from MIGRATING until SETSLOT NODE), both nodes reply TRYAGAIN to a call with
    several declared keys if one of them does not exist, before the function runs. Without the guard, a function would
    run while some of the keys it derives are on the other node, and fail half-way. The guard starts with ``key``, so
    that an ACL rule that allows ``key`` also allows the guard.

    The returned list is cached: do not change it.
    """
    if "{" in key:
        return [key, key + _GUARD]
    return [key, f"{key}:{{{key}}}{_GUARD}"]  # the hash tag of a key without braces is the whole key


class Call(Generic[T_co]):
    """One FCALL of our library: ``function`` with its declared keys and at most a few packed arguments.

    Attributes:
        function: name without the library's prefix.
        key: the first declared key; every other key of the call derives from it on the server.
        keys: all declared keys, see `declared_keys`.
        args: arguments, as text or packed bytes.
        decode: converts the raw reply to the result.
        repeatable: True if a second execution is harmless: the call is sent again if its reply was lost.
        unclaimed: gets the raw reply if the caller was cancelled while the call was under way; None discards it.
    """

    __slots__ = ("args", "decode", "function", "key", "keys", "repeatable", "unclaimed")

    def __init__(
        self,
        function: str,
        key: str,
        args: tuple[bytes | str, ...],
        decode: Callable[[Any], T_co],
        repeatable: bool = False,
    ) -> None:
        self.function = function
        self.key = key
        self.keys = declared_keys(key)
        self.args = args
        self.decode = decode
        self.repeatable = repeatable
        self.unclaimed: Callable[[Any], None] | None = None

    def once(self) -> Self:
        """Return this call, not repeatable: its arguments let it have a second effect."""
        self.repeatable = False
        return self

    def read(self, reply: Any) -> T_co:
        """Return the result of a reply.

        Raises:
            ScriptError: the reply does not have the form of this function's replies.
        """
        try:
            return self.decode(reply)
        except GlideMQError:
            raise
        except Exception as error:
            raise self.malformed(error) from error

    def malformed(self, error: Exception) -> ScriptError:
        """Return the error to raise if decoding a reply failed with `error`."""
        return ScriptError(f"call {self.function!r}: malformed reply of the server ({error!r})")


# msgpack has no type annotations.
_msgpack: Any = msgpack
_Packer: Any = _msgpack.Packer

pack: Final[Callable[[Any], bytes]] = partial(_msgpack.packb, use_bin_type=False, unicode_errors="surrogateescape")
"""Pack an argument for the server's decoder."""

unpack: Final[Callable[[bytes], Any]] = partial(
    _msgpack.unpackb, raw=False, unicode_errors="surrogateescape", strict_map_key=False
)
"""Unpack a reply. Bytes that are not UTF-8 become surrogates."""

TEXT_MARK: Final = 0xDB
"""First byte of a text with a 4-byte big-endian length (str 32), which fits a text of any length."""


def declared(name: str) -> Callable[[type[RowT]], type[RowT]]:
    """Decorate a NamedTuple that has the fields of the row ``name`` of tools/rows.py.

    Raises:
        TypeError: If the fields or their order differ.
    """

    def check(kind: type[RowT]) -> type[RowT]:
        fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
        if fields != FIELDS[name]:
            raise TypeError(f"{kind.__name__}: has the fields {fields}; row {name!r} has {FIELDS[name]}")
        return kind

    return check


def pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield items in pieces of at most ``size``, one for each call."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def array_head(length: int) -> bytes:
    """Return the header that precedes the packed elements of an array."""
    return _Packer().pack_array_header(length)  # type: ignore[no-any-return]
