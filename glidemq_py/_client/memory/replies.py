"""Convert replies of plain commands to the types that GLIDE returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["as_glide_shows"]


def as_glide_shows(name: bytes, args: list[bytes], reply: Any) -> Any:
    """Convert a fakeredis reply (RESP3) to the command ``name`` with ``args`` to the type that GLIDE returns."""
    if reply is None:
        return None
    shape = _SHAPES.get(name)
    if shape is not None:
        return shape(args, reply)
    status = getattr(reply, "value", None)
    return status.decode() if isinstance(status, bytes) else reply


def _truth(_: list[bytes], reply: Any) -> bool:
    return bool(reply)


def _entries(_: list[bytes], reply: Any) -> dict[bytes, list[list[bytes]]]:
    return {entry: _pairs(fields) for entry, fields in reply}


def _pairs(flat: list[bytes]) -> list[list[bytes]]:
    return [[flat[at], flat[at + 1]] for at in range(0, len(flat), 2)]


def _streams(args: list[bytes], reply: Any) -> dict[bytes, Any] | None:
    found: dict[bytes, Any] = dict(reply)
    return {stream: _entries(args, entries) for stream, entries in found.items() if entries} or None


def _scored(args: list[bytes], reply: Any) -> Any:
    if not any(arg.upper() == b"WITHSCORES" for arg in args):
        return reply
    pairs = reply if not reply or isinstance(reply[0], list) else _pairs(reply)
    return {member: float(score) for member, score in pairs}


def _map(_: list[bytes], reply: Any) -> dict[Any, Any]:
    flat: Any = reply
    return dict(flat if isinstance(reply, dict) else _pairs(flat))


def _maps(args: list[bytes], reply: Any) -> list[dict[Any, Any]]:
    return [_map(args, each) for each in reply]


def _set(_: list[bytes], reply: Any) -> set[bytes]:
    return set(reply)


def _number(_: list[bytes], reply: Any) -> float:
    return float(reply)


def _info(args: list[bytes], reply: Any) -> Any:
    return _map(args, reply) if args and args[0].upper() == b"STREAM" else _maps(args, reply)


_SHAPES: Final[dict[bytes, Callable[[list[bytes], Any], Any]]] = {
    **dict.fromkeys(
        (b"HEXISTS", b"SISMEMBER", b"HSETNX", b"SETNX", b"EXPIRE", b"PEXPIRE", b"EXPIREAT", b"PEXPIREAT", b"PERSIST",
         b"RENAMENX", b"MOVE", b"COPY"), _truth,
    ),
    **dict.fromkeys((b"XRANGE", b"XREVRANGE"), _entries),
    **dict.fromkeys((b"XREAD", b"XREADGROUP"), _streams),
    **dict.fromkeys((b"ZRANGE", b"ZREVRANGE", b"ZRANGEBYSCORE", b"ZREVRANGEBYSCORE"), _scored),
    **dict.fromkeys((b"HGETALL", b"CONFIG"), _map),
    **dict.fromkeys((b"SMEMBERS", b"SINTER", b"SUNION", b"SDIFF"), _set),
    **dict.fromkeys((b"ZSCORE", b"ZINCRBY", b"INCRBYFLOAT", b"HINCRBYFLOAT"), _number),
    b"XINFO": _info,
}  # fmt: skip
