"""Messages between a worker and its sandbox: MessagePack maps, each after its length in four bytes.

Worker: `start`, `job`, `answer`, `cancel`. Sandbox: `ready` or `refused`, `ask`, `ended`. Job data and results are the
text written by the queue's serializer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

import msgpack

__all__ = ["Message", "pack_message", "packable", "read_message", "receive_message"]

Message = dict[str, Any]

_HEAD: Final = struct.Struct(">I")
_PLAIN: Final = (str, int, float, bool, bytes, type(None))

# msgpack has no type annotations.
_msgpack: Any = msgpack
_packb: Callable[..., bytes] = _msgpack.packb
_unpackb: Callable[..., Any] = _msgpack.unpackb


def pack_message(kind: str, **fields: Any) -> bytes:
    """Return the bytes of a message."""
    body = _packb({"kind": kind, **fields}, use_bin_type=True, unicode_errors="surrogateescape", default=_rare)
    return _HEAD.pack(len(body)) + body


def _rare(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return list(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    raise TypeError(f"{type(value).__name__} cannot cross into a sandbox")


def packable(fields: dict[str, Any]) -> Message:
    """Return the fields that have plain values."""
    return {name: value for name, value in fields.items() if isinstance(value, _PLAIN)}


def _unpack(body: bytes) -> Message:
    message: Message = _unpackb(body, raw=False, unicode_errors="surrogateescape", strict_map_key=False)
    return message


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message; None if the connection is closed."""
    try:
        (length,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        return _unpack(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError):
        return None


def receive_message(sock: socket.socket) -> Message | None:
    """Return the next message of a blocking socket; None if the connection is closed."""
    head = _receive(sock, _HEAD.size)
    body = None if head is None else _receive(sock, _HEAD.unpack(head)[0])
    return None if body is None else _unpack(body)


def _receive(sock: socket.socket, length: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < length:
        try:
            part = sock.recv(length - len(parts))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
