"""The layout of a partitioned queue as the server stores it: the field `partitions` of the meta key of partition 0."""

from __future__ import annotations

from typing import Any, Final, cast

from glidemq_py._client.transport import JobTransport
from glidemq_py._core import json_text as json
from glidemq_py._core import requests
from glidemq_py._core.calls import Call
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.names import validate_queue_name
from glidemq_py._features.partitions.layout import MAX_PARTITIONS, Layout
from glidemq_py.errors import (
    GlideMQError,
    GlideMQValidationError,
    PermissionDeniedError,
    SerializationError,
    UnsupportedFeatureError,
)

__all__ = [
    "CREATABLE",
    "FIELD",
    "SETTINGS_NUMBER",
    "UNIQUE",
    "create_partitions",
    "layout_in",
    "layout_text",
    "may_create_partitions",
    "parse_layout",
    "read_layout",
    "read_layout_and",
    "read_meta",
]

FIELD: Final = "partitions"
"""Field of the meta key."""
SETTINGS_NUMBER: Final = "settingsNumber"
"""Field of the meta key: how often settings, limits or schedulers have changed."""
CREATABLE: Final = b"empty"
"""Reply of `may_create_partitions`, and of `create_partitions` if settings have changed."""
_VERSION: Final = 2


def layout_text(layout: Layout) -> str:
    """Return the text of a layout: the inverse of `parse_layout`."""
    return json.dumps(
        {"version": _VERSION, "number": layout.number, "counts": list(layout.counts), "names": list(layout.names)}
    )


def parse_layout(queue: str, text: str) -> Layout:
    """Return a stored layout.

    Raises:
        UnsupportedFeatureError: A later version of this package wrote it.
        GlideMQError: It is damaged.
    """
    try:
        read: Any = json.loads(text)
    except SerializationError:
        read = None
    layout = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    version, names = layout.get("version"), layout.get("names")
    if isinstance(version, int) and version > _VERSION:
        raise UnsupportedFeatureError(queue, "partitions", f"with layouts of version {version}")
    listed = cast("list[object]", names) if isinstance(names, list) else []
    number, counts = layout.get("number"), layout.get("counts")
    valid = version == _VERSION and 2 <= len(listed) <= MAX_PARTITIONS and listed[0] == queue
    if not (valid and isinstance(number, int) and number > 0 and _are_counts(counts, len(listed))):
        raise GlideMQError(f"queue {queue!r}: the layout of its partitions is damaged: {text[:200]!r}")
    try:
        found = tuple(validate_queue_name(name) for name in listed)
    except GlideMQValidationError as error:
        raise GlideMQError(f"queue {queue!r}: the layout of its partitions is damaged: {error}") from error
    if len(set(found)) < len(found):
        raise GlideMQError(f"queue {queue!r}: the layout of its partitions is damaged: a name occurs twice")
    return Layout(number, tuple(cast("list[int]", counts)), found)


def _are_counts(counts: object, most: int) -> bool:
    if not isinstance(counts, list) or not counts:
        return False
    return all(isinstance(count, int) and 1 <= count <= most for count in cast("list[object]", counts))


UNIQUE: Final = b"unique"


def create_partitions(meta: str, layout: Layout, settings: int) -> Call[bytes]:
    """Store the layout of an empty queue.

    Returns the layout that applies; empty if the queue has jobs or limits; `CREATABLE` if settings have changed since
    ``settings``, their number of changes, was read; `UNIQUE` if an add may still be deduplicated and the layout has no
    former ones: then keys must be looked for in the plain queue first.
    """
    has_former = len(layout.counts) > 1
    request = requests.create_partitions(
        layout=layout_text(layout), epoch=layout.number, settings=settings, has_former=has_former
    )  # fmt: skip
    return Call("create_partitions", meta, request, bytes, repeatable=True)


def may_create_partitions(meta: str) -> Call[bytes]:
    """Return the layout of a queue, "" if it has jobs or limits, or "empty" if `create_partitions` may follow."""
    request = requests.create_partitions(layout="", epoch=0, settings=0, has_former=False)
    return Call("create_partitions", meta, request, bytes, repeatable=True)


async def read_layout(transport: JobTransport, keys: QueueKeys) -> Layout | None:
    """Return the layout of the queue's partitions, or None. Raises the errors of `parse_layout`."""
    return (await read_layout_and(transport, keys))[0]


async def read_layout_and(
    transport: JobTransport, keys: QueueKeys, *fields: str
) -> tuple[Layout | None, list[bytes | None]]:
    """Return the layout of the queue's partitions, and other fields of the meta key, in one command.

    Raises the errors of `parse_layout`.
    """
    (reply,) = await transport.send_reads(keys.meta, [("HMGET", keys.meta, FIELD, *fields)])  # repeatable
    layout = layout_in(keys.name, reply)
    return layout, [None] * len(fields) if isinstance(reply, GlideMQError) else reply[1:]


def layout_in(queue: str, reply: Any) -> Layout | None:
    """Return the layout in the reply to a read of `FIELD`, which comes first.

    Raises:
        GlideMQError: As `parse_layout`; or the reply is an error.
    """
    if isinstance(reply, PermissionDeniedError):
        # Every function needs this permission, so its first call reports that it is missing.
        return None
    if isinstance(reply, GlideMQError):
        raise reply
    text, *_ = cast("list[bytes | None]", reply)
    return parse_layout(queue, text.decode("utf-8", "replace")) if text else None


async def read_meta(transport: JobTransport, keys: QueueKeys, *fields: str) -> list[bytes | None]:
    """Return fields of the meta key. Raises the errors of the command."""
    (reply,) = await transport.send_reads(keys.meta, [("HMGET", keys.meta, *fields)])  # repeatable
    if isinstance(reply, GlideMQError):
        raise reply
    return cast("list[bytes | None]", reply)
