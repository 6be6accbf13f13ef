"""Serializers by name: JSON, and MessagePack as text. What is compressed, and how large it may be, is `payload`'s.

Stored values are text, because every other reader of a queue takes them for text. MessagePack is therefore written as
`mp:` and the base64 of its bytes. No JSON text begins so, which is how the two are told apart when they are read.
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

# msgpack brings no types.
_msgpack: Any = msgpack
_packb: Final[Callable[..., bytes]] = _msgpack.packb
_unpackb: Final[Callable[..., Any]] = _msgpack.unpackb


class _MsgpackSerializer:
    """MessagePack with bytes, times and keys of any type; what it does not know goes the way that JSON takes it."""

    __slots__ = ()

    def serialize(self, value: Any, /) -> str:
        """`mp:` and base64. A datetime with a time zone stays one (in UTC); one without becomes ISO text."""
        return _MARK + base64.b64encode(_packb(value, default=to_plain, datetime=True)).decode("ascii")

    def deserialize(self, text: str, /) -> Any:
        """The value. Text without the mark is what a producer with JSON wrote."""
        if not text.startswith(_MARK):
            return json.loads(text)
        return _unpackb(base64.b64decode(text[len(_MARK) :], validate=True), strict_map_key=False, timestamp=3)

    def __repr__(self) -> str:
        return "MSGPACK_SERIALIZER"


MSGPACK_SERIALIZER: Final[Serializer] = _MsgpackSerializer()
"""``serializer="msgpack"``: carries bytes and times, and reads what was written as JSON too."""


def serializer_of(given: Serializer | str | None) -> Serializer:
    """The serializer that an option means: one itself, or the name of one of ours; None is JSON."""
    if given is None or given == "json":
        return JSON_SERIALIZER
    if given == "msgpack":
        return MSGPACK_SERIALIZER
    assert not isinstance(given, str)  # QueueOptions has checked it
    return given
