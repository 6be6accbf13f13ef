"""Data and results of jobs: values of the protocol as JSON, which all clients of the queues read, or as MessagePack."""

from __future__ import annotations

import math
import time
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.payload import PackedValue
from glidemq_py._features.consistency.calls import check_scope
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.table import CommandError

__all__ = ["LIMIT", "check_readers", "json_value", "stored_value"]

LIMIT: Final = 10 * 1_048_576
"""Maximum size of data and results that clients of a gateway store, bytes."""
_SAFE: Final = 2**53
_PEERS_KNOWN_S: Final = 5.0
_UNCHANGED: Final[frozenset[Any]] = frozenset((str, int, bool, type(None)))
"""Types whose values JSON has as they are."""

_peers: WeakKeyDictionary[Queue[Any, Any], tuple[float, bool]] = WeakKeyDictionary()
"""Until when it is known whether workers of another library are registered at a queue."""


class _NotJsonError(Exception):
    """JSON cannot represent a value; the text says which part."""


def json_value(field: str, value: Any) -> Any:
    """Return the value as JSON has it, converted in place.

    Whole numbers of float type become integers: JavaScript has one type for both.

    Raises:
        CommandError: If JSON cannot represent a part of the value.
    """
    try:
        return _plain(value)
    except _NotJsonError as error:
        raise CommandError(f"{field} contains {error}, which JSON cannot represent") from None


def stored_value(value: Any) -> Any:
    """Return the value as JSON has it, converted in place, or a `PackedValue` if JSON cannot represent a part of it."""
    try:
        return _plain(value)
    except _NotJsonError:
        return PackedValue(_packable(value))


async def check_readers(field: str, value: Any, queue: Queue[Any, Any]) -> None:
    """Check that all workers of a queue can read a value of `stored_value`.

    Raises:
        CommandError: If it is a `PackedValue`, and workers of glide-mq for Node are registered, which read only JSON.
        GlideMQConnectionError: If the server cannot be reached.
    """
    if value.__class__ is not PackedValue:
        return
    until, has_peers = _peers.get(queue, (0.0, False))
    if time.monotonic() >= until:
        link = await queue._first_connected()
        _, peers = await link.call(check_scope)
        has_peers = bool(peers)
        _peers[queue] = time.monotonic() + _PEERS_KNOWN_S, has_peers
    if has_peers:
        try:
            _plain(value.value)
        except _NotJsonError as error:
            problem = f"which the Node workers of queue {wire_name(queue.name)!r} cannot read"
            raise CommandError(f"{field} contains {error}, {problem}") from None


def _plain(value: Any) -> Any:
    """Convert a decoded value in place: a copy of many lists and maps would take as long as decoding them."""
    kind: Any = value.__class__
    if value is None or kind is str or kind is bool or kind is int:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise _NotJsonError(str(value))
        return _number(value)
    if kind is list:
        for at, each in enumerate(value):
            if each.__class__ not in _UNCHANGED:
                value[at] = _plain(each)
        return value
    if kind is dict:
        pairs = cast("dict[Any, Any]", value)
        for key, each in pairs.items():
            if key.__class__ is not str:
                raise _NotJsonError(f"a key of type {key.__class__.__name__}")
            if each.__class__ not in _UNCHANGED:
                pairs[key] = _plain(each)
        return pairs
    raise _NotJsonError({"bytes": "bytes", "datetime": "a date"}.get(kind.__name__, f"a value of type {kind.__name__}"))


def _number(value: float) -> int | float:
    if value == int(value) and abs(value) < _SAFE and (value or math.copysign(1.0, value) > 0):
        return int(value)
    return value


def _packable(value: Any) -> Any:
    """Return the value with whole numbers as integers, as JSON has them."""
    kind: Any = value.__class__
    if kind is float:
        return _number(value) if math.isfinite(value) else value
    if kind is list:
        return [_packable(each) for each in value]
    if kind is dict:
        return {_packable(key): _packable(each) for key, each in cast("dict[Any, Any]", value).items()}
    return value
