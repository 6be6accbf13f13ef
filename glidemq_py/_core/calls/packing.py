"""The shape of a call, and the packing of its argument and reply.

Arguments are old-style MessagePack without the ``bin`` type and without nil in arrays: the server's decoder
refuses the first and turns an array with the second into a map (ARCHITECTURE, "Lua codec").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgpack

__all__ = ["TEXT_MARK", "Call", "array_head", "declared_keys", "pack", "unpack"]

T_co = TypeVar("T_co", covariant=True)


_GUARD: Final = ":slot-guard"


def declared_keys(key: str) -> list[str]:
    """Return ``key`` and its slot guard: a key of the same hash slot that never exists.

    While a slot moves key by key, a call of several keys of which one is not there is answered TRYAGAIN before the
    function runs, at both nodes, from MIGRATING until SETSLOT NODE. Without the guard a function would run with some of
    the keys it derives elsewhere, and fail half-way. The guard begins with ``key``, so that every rule of an ACL that
    allows the one allows the other.
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
        args: arguments, already text or packed bytes.
        decode: turns the raw reply into the value a caller wants.
        repeatable: running it twice is as good as once, so a lost reply may simply be asked for again.
    """

    __slots__ = ("args", "decode", "function", "key", "keys", "repeatable")

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


# msgpack brings no types.
_msgpack: Any = msgpack
_Packer: Any = _msgpack.Packer
_packb: Callable[..., bytes] = _msgpack.packb
_unpackb: Callable[..., Any] = _msgpack.unpackb


def pack(value: Any) -> bytes:
    """Pack an argument for the server's decoder."""
    return _packb(value, use_bin_type=False, unicode_errors="surrogateescape")


TEXT_MARK: Final = 0xDB
"""First byte of a text whose length, 4 bytes with the highest first, comes next: what holds a text of any length."""


def array_head(length: int) -> bytes:
    """What stands before the packed elements of an array."""
    return _Packer().pack_array_header(length)  # type: ignore[no-any-return]


def unpack(reply: bytes) -> Any:
    """Unpack a reply. Bytes that are not UTF-8 survive as surrogates."""
    return _unpackb(reply, raw=False, unicode_errors="surrogateescape", strict_map_key=False)
