"""The layout of a partitioned queue as the server stores it: the field `partitions` of the meta key of partition 0.

The calls that create and restore it are in lua/features/partitions/functions/partitions.lua.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

from glidemq_py._client.transport import JobTransport, Transport
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import call
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.names import partition_home, validate_queue_name
from glidemq_py._partitions.layout import MAX_PARTITIONS, Layout
from glidemq_py.errors import (
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    PermissionDeniedError,
    SerializationError,
    UnsupportedFeatureError,
)

FIELD: Final = "partitions"
"""Field of the meta key."""
AGAIN: Final = b"again"
"""Reply of `create_partitions` if settings have changed, or another client has begun later."""
_VERSION: Final = 2


def layout_text(layout: Layout) -> str:
    """Return the text of a layout: the inverse of `parse_layout`."""
    return json.dumps(
        {
            "version": _VERSION,
            "number": layout.number,
            "counts": [layout.partitions],
            "names": list(layout.names),
        }
    )


def stored(layout: Layout) -> tuple[int, str]:
    """Return number and text of a layout, as the calls that store it take them."""
    return layout.number, layout_text(layout)


def parse_layout(queue: str, text: str) -> Layout:
    """Return a stored layout.

    Raises:
        UnsupportedFeatureError: A later version of this package wrote it.
        GlideMQError: It is damaged, or an earlier version wrote it while the number of partitions was being changed.
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
    valid = version == _VERSION and 1 <= len(listed) <= MAX_PARTITIONS and listed[0] == queue
    if not (valid and isinstance(number, int) and number > 0 and _are_counts(counts, len(listed))):
        raise GlideMQError(f"queue {queue!r}: the layout of its partitions is damaged: {text[:200]!r}")
    *former, count = cast("list[int]", counts)
    if former:
        raise GlideMQError(
            f"queue {queue!r}: an earlier version has begun to change its number of partitions to {count}, and jobs "
            "may be left in former ones; complete the change with that version, then use this one"
        )
    try:
        found = tuple(validate_queue_name(name) for name in listed)
    except GlideMQValidationError as error:
        raise GlideMQError(f"queue {queue!r}: the layout of its partitions is damaged: {error}") from error
    if len(set(found)) < len(found):
        raise GlideMQError(f"queue {queue!r}: the layout of its partitions is damaged: a name occurs twice")
    return Layout(number, found[:count])


def _are_counts(counts: object, most: int) -> bool:
    if not isinstance(counts, list) or not counts:
        return False
    return all(isinstance(count, int) and 1 <= count <= most for count in cast("list[object]", counts))


class Beginning(NamedTuple):
    """Reply of `begin_partitions`."""

    layout: str
    """The layout that the queue has; "" = none."""
    number: int
    """Number of the layout that may be created; 0 = the queue has a layout, has had jobs, or has limits."""
    settings: list[str]
    """Settings for the further partitions: fields and values."""
    deleted: int
    """Number of the last layout that the queue was deleted with; 0 = none, or long ago."""


@call("begin_partitions", repeatable=True)
def begin_partitions(above: int) -> Beginning:
    """Issue the number of a layout, larger than ``above``."""
    ...


@call("store_layout", repeatable=True)
def store_layout(number: int, layout: str, settings: Sequence[str] | None = None, deleted: int = 0) -> int:
    """Give a partition, but the first, a layout.

    Returns 0, and changes nothing, if a deleted queue has left jobs in it. Raises `LayoutChangedError` if it has a
    later layout, or a queue was deleted with this or a later one.

    Args:
        number: Number of the layout.
        layout: Its text.
        settings: Fields and values, if the queue is created; None if the partition has lost its number.
        deleted: As of `Beginning`. A partition of a later layout keeps its jobs: only partition 0 has lost that.
    """
    ...


@call("create_partitions", read=bytes, repeatable=True)
def create_partitions(number: int, layout: str, settings: Sequence[str]) -> bytes:
    """Store the layout of a queue that has had no job, after `store_layout` for all other partitions.

    Returns the layout that applies; empty if the queue has jobs or limits; or `AGAIN`.
    """
    ...


@call("restore_layout", repeatable=True)
def restore_layout(number: int, layout: str, before: int = 0) -> int:
    """Store a layout in partition 0, which has lost it. Returns 0 if it has a later one or was deleted with it.

    ``before``: the number that it must have; 0 = any.
    """
    ...


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


async def whole_queues(transport: Transport, prefix: str, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the queues that have these names or partitions, each with the names of its partitions.

    A queue without partitions has its own name only. It costs a short read per name that looks like a partition's.

    Args:
        transport: The connection.
        prefix: Key prefix of the queues.
        names: The names.

    Raises:
        GlideMQConnectionError: The server cannot be reached.
    """
    found: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
    for home in sorted({home for name in found if (home := partition_home(name)) is not None}):
        layout = await _layout_of(transport, prefix, home)
        if layout is not None:
            for name in layout.names:
                found.pop(name, None)
            found[home] = layout.names
    return found


async def layout_or_name(transport: Transport, prefix: str, name: str) -> tuple[str, ...]:
    """Return the names of the partitions of a queue; its own name if it has none, or its layout is damaged.

    Args:
        transport: The connection.
        prefix: Key prefix of the queue.
        name: The queue.

    Raises:
        GlideMQConnectionError: The server cannot be reached.
    """
    layout = await _layout_of(transport, prefix, name)
    if layout is None:
        return (name,)
    return layout.names


async def _layout_of(transport: Transport, prefix: str, name: str) -> Layout | None:
    try:
        return await read_layout(transport, QueueKeys(prefix, name))
    except GlideMQConnectionError:
        raise
    except GlideMQError:  # opening the queue reports it
        return None
