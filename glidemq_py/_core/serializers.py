"""Serializers by name: JSON, and MessagePack as text.

Stored values must be text, because all other readers of a queue expect text. MessagePack is therefore stored as `mp:`
and the base64 of its bytes. No JSON text starts with `mp:`, so readers can distinguish the two.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

import msgpack

from glidemq_py._core import json_text as json
from glidemq_py._core.payload import JSON_SERIALIZER
from glidemq_py._core.plain_values import to_plain
from glidemq_py._core.queue_options import Serializer

__all__ = ["MSGPACK_SERIALIZER", "serializer_of"]

_MARK: Final = "mp:"

# msgpack has no type annotations.
_msgpack: Any = msgpack
_packb: Final[Callable[..., bytes]] = _msgpack.packb
_unpackb: Final[Callable[..., Any]] = _msgpack.unpackb


class _MsgpackSerializer:
    """MessagePack with bytes, times and keys of any type. Other types are converted as for JSON."""

    __slots__ = ()

    def serialize(self, value: Any, /) -> str:
        """Return `mp:` and base64. An aware datetime stays a datetime (in UTC); a naive one becomes ISO text."""
        return _MARK + base64.b64encode(_packb(value, default=to_plain, datetime=True)).decode("ascii")

    def deserialize(self, text: str, /) -> Any:
        """Return the value. Text without `mp:` is read as JSON."""
        if not text.startswith(_MARK):
            return json.loads(text)
        return _unpackb(base64.b64decode(text[len(_MARK) :], validate=True), strict_map_key=False, timestamp=3)

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
