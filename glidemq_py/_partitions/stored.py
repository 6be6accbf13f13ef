"""The layout of a partitioned queue as the server stores it: the field `partitions` of the meta key of partition 0.

The calls that create and restore it are in lua/features/partitions/functions/partitions.lua.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

from glidemq_py._client.transport import JobTransport, Transport
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import administration, call
from glidemq_py._core.keys import QueueKeys, partition_home, usage_registry_key, validate_queue_name
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.layout import MAX_PARTITIONS, Layout, partition_names
from glidemq_py.errors import (
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    JobStateError,
    LayoutChangedError,
    PermissionDeniedError,
    QueuePartitionsError,
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


# -- opening a queue ----------------------------------------------------------------------------------------

_ATTEMPTS: Final = 20
"""Times that partitions are created. More than one are needed only if other clients do the same, or change settings."""
_LONGEST_PAUSE_S: Final = 1.0


async def open_layout(transport: JobTransport, keys: QueueKeys, partitions: int | None) -> Layout | None:
    """Return the layout of the queue's partitions, after creating them if ``partitions`` is at least 2.

    Raises:
        QueuePartitionsError: The queue has another number of partitions; one without partitions has had jobs, or has
            limits.
        GlideMQError: The stored layout is damaged.
    """
    found = await read_layout(transport, keys)
    if found is None and partitions is not None and partitions > 1:
        found = await create_layout(transport, keys, partition_names(keys.name, partitions))
    present = 1 if found is None else found.partitions
    if partitions is not None and partitions != present:
        raise QueuePartitionsError(keys.name, present, partitions)
    return found


async def create_layout(transport: JobTransport, keys: QueueKeys, names: tuple[str, ...]) -> Layout | None:
    """Create the partitions of a queue that has had no job. Return its layout, which another client may have created.

    Returns None if the queue has had jobs, or has limits. If the process ends in between, the queue has no partitions.
    """
    above, pause = 0, 0.02
    for _ in range(_ATTEMPTS):
        beginning = await transport.call(begin_partitions(keys.meta, above))
        if not beginning.number:
            return parse_layout(keys.name, beginning.layout) if beginning.layout else None
        layout, settings = Layout(beginning.number, names), beginning.settings
        reply = AGAIN
        try:
            await _prepare(transport, keys.prefix, layout, beginning)
            reply = await transport.call(create_partitions(keys.meta, *stored(layout), settings))
        except LayoutChangedError as error:  # a partition has a later number, by a clock that was ahead
            above = error.stored or 0
        if reply != AGAIN:
            return parse_layout(keys.name, reply.decode("utf-8", "replace")) if reply else None
        await asyncio.sleep(random.uniform(0, pause))
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    raise GlideMQError(f"queue {keys.name!r}: other clients keep creating its partitions; open the queue again")


async def _prepare(transport: JobTransport, prefix: str, layout: Layout, beginning: Beginning) -> None:
    """Give all partitions but the first the layout."""
    for name in layout.names[1:]:
        part = QueueKeys(prefix, name)
        call = store_layout(part.meta, *stored(layout), beginning.settings, beginning.deleted)
        if not await transport.call(call):
            # A deletion was interrupted, or a call of a client that still knew a deleted queue came later.
            await delete_keys(transport, part, force=True, layout=layout.number - 1)
            await transport.call(call)


# -- deleting -----------------------------------------------------------------------------------------------

_BATCH: Final = 250


async def delete_keys(transport: JobTransport, keys: QueueKeys, *, force: bool, layout: int = 0) -> int:
    """Delete all keys that those of a queue or partition name, in bounded steps.

    Args:
        transport: The connection.
        keys: Keys of the queue or partition.
        force: Delete active jobs too.
        layout: Number of the layout of a partitioned queue, which is deleted with it; 0 = another queue.

    Returns:
        The number of deleted jobs.

    Raises:
        JobStateError: If jobs are active and ``force`` is False. Nothing was deleted.
        LayoutChangedError: If it has another layout, or a partition a later one. Nothing more was deleted.
        LibraryError: If the user lacks a permission. Nothing was deleted.
        GlideMQError: If a step deleted nothing although the queue is not empty.
    """
    registry, name = usage_registry_key(keys.prefix), keys.name
    has_usage = bool(await transport.command("SISMEMBER", registry, name))
    deleted, status, cursor = 0, "more", ""
    while status == "more":
        call = administration.obliterate(keys.meta, force or deleted > 0, _BATCH, cursor, has_usage, layout)
        step = await transport.call(call)
        if step.status == "active":
            raise jobs_active_error(name, step.deleted)
        if step.status == "partitioned":
            raise LayoutChangedError(f"queue {name!r}: its partitions were created meanwhile")
        if step.status == "more" and not step.deleted and not step.removed and step.cursor == cursor:
            raise GlideMQError(
                f"queue {name!r}: obliterate stopped after {deleted} deleted jobs: a step deleted nothing"
            )
        status, cursor, deleted = step.status, step.cursor, deleted + step.deleted
    await transport.command("SREM", registry, name)
    return deleted


def jobs_active_error(name: str, active: int) -> JobStateError:
    """Return the error for a queue that is not deleted because of its active jobs."""
    jobs = "1 job is" if active == 1 else f"{active} jobs are"
    return JobStateError(
        "*", "active", "obliterate",
        f"cannot obliterate queue {name!r}: {jobs} active. Close or pause its workers and wait until their jobs have "
        "ended; or use force=True, which deletes active jobs too",
    )  # fmt: skip


# -- reading a layout again that partitions have refused ----------------------------------------------------

_log = get_logger(__name__)
_NUMBER: Final = "layoutNumber"


async def renewed_layout(
    transport: JobTransport, keys: QueueKeys, known: Layout | None, *, refused: bool = False
) -> Layout | None:
    """Read the layout of a queue again; None if it has no partitions.

    Args:
        transport: The connection.
        keys: Keys of the queue.
        known: The layout that the client has used; None if it knew of no partitions.
        refused: True if a partition has refused it.

    Raises:
        LayoutChangedError: If the queue is being obliterated.
        GlideMQError: If the stored layout is damaged.
    """
    layout = await read_layout(transport, keys)
    if known is None:
        return layout
    if layout is None or layout.number < known.number:
        if known.number in await _numbers(transport, keys, known):
            if await transport.call(restore_layout(keys.meta, *stored(known))):
                _log.warning("queue %r: partition 0 had lost the layout of its partitions; restored", keys.name)
            layout = await read_layout(transport, keys)
    elif refused and layout == known:
        layout = await write_again(transport, keys, layout)
    return layout


async def write_again(transport: JobTransport, keys: QueueKeys, layout: Layout) -> Layout | None:
    """Write the number of the present layout into the partitions that have lost it. Return the layout that applies.

    A partition has a later number if partition 0 had lost the layout, and got it back while another client created the
    partitions again: then that number becomes the one of all.

    Raises:
        LayoutChangedError: If the queue is being obliterated.
    """
    numbers = await _numbers(transport, keys, layout)
    if max(numbers) > layout.number:
        before, layout = layout.number, Layout(max(numbers), layout.names)
        if not await transport.call(restore_layout(keys.meta, *stored(layout), before)):
            return await read_layout(transport, keys)
    for name, number in zip(layout.names[1:], numbers, strict=True):
        if number != layout.number:
            await transport.call(store_layout(QueueKeys(keys.prefix, name).meta, *stored(layout)))
            _log.warning("queue %r: partition %r had lost its layout; restored", keys.name, name)
    return layout


async def _numbers(transport: JobTransport, keys: QueueKeys, layout: Layout) -> list[int]:
    """Return the numbers of the layouts that the further partitions have."""
    return [await _number(transport, QueueKeys(keys.prefix, name)) for name in layout.names[1:]]


async def _number(transport: JobTransport, part: QueueKeys) -> int:
    reply: Any
    (reply,) = await transport.send_reads(part.meta, [("HMGET", part.meta, _NUMBER)])  # repeatable
    if isinstance(reply, GlideMQError):
        raise reply
    (number,) = reply
    return int(number or 0)
