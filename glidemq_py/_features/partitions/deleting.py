"""Deleting a queue with its partitions (docs/design/partitions.md, "A queue that was deleted").

The layout is deleted first, then the partitions, which refuse clients with that layout from then on. For a day, each
of them stores the number of the deletion and refuses layouts up to it, and clients read from partition 0 that such a
layout was not lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple, cast

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import administration
from glidemq_py._core.keys import QueueKeys, usage_registry_key
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._features.partitions.changing import delete_layout, end_deletion
from glidemq_py._features.partitions.layout import Layout, number_after
from glidemq_py._features.partitions.stored import parse_layout, read_meta
from glidemq_py.errors import GlideMQError, JobStateError, PermissionDeniedError

__all__ = [
    "Deletion",
    "begin_deletion",
    "delete_keys",
    "finish_deletion",
    "jobs_active_error",
    "read_deletion",
    "remove_remains",
]

_BATCH: Final = 250


class Deletion(NamedTuple):
    """The last deletion of a partitioned queue of this name."""

    number: int
    """Layouts up to it are deleted; 0 = there was no deletion, or long ago."""
    names: tuple[str, ...]
    """The further partitions that may still exist; empty if they are deleted."""


async def read_deletion(transport: JobTransport, keys: QueueKeys) -> Deletion:
    """Return the last deletion of a queue. Raises the errors of the command."""
    (reply,) = await transport.send_reads(  # repeatable
        keys.meta, [("HMGET", keys.deleted_layout, "number", "layout")]
    )
    if isinstance(reply, GlideMQError):
        raise reply
    number, text = cast("list[bytes | None]", reply)
    names = parse_layout(keys.name, text.decode("utf-8", "replace")).names[1:] if text else ()
    return Deletion(int(number or 0), names)


async def begin_deletion(transport: JobTransport, keys: QueueKeys, layout: Layout) -> None:
    """Delete the layout of a queue; `finish_deletion` deletes the partitions.

    Raises:
        LayoutChangedError: The queue has another layout. Nothing was changed.
    """
    before = await read_deletion(transport, keys)
    epoch = number_after(max(layout.number, before.number))
    if not await transport.call(delete_layout(keys.meta, layout, epoch)):
        raise LayoutChangedError(f"queue {keys.name!r}: another client changed its partitions")


Delete = Callable[[QueueKeys, int], Awaitable[int]]
"""Deletes all keys of a partition, given the number of the deletion. Returns the number of deleted jobs."""


async def finish_deletion(transport: JobTransport, keys: QueueKeys, delete: Delete | None = None) -> int:
    """Delete the further partitions of a queue of which the layout is deleted, if there are any.

    A process may have stopped before it did so. Partitions that a later layout uses again are left out.

    Args:
        transport: The connection.
        keys: Keys of the queue.
        delete: Deletes a partition; None: only the keys that its own ones name.

    Returns:
        The number of deleted jobs.
    """
    number, names = await read_deletion(transport, keys)
    deleted = 0
    for name in reversed(names):
        part = QueueKeys(keys.prefix, name)
        with contextlib.suppress(LayoutChangedError):
            if delete is None:
                deleted += await delete_keys(transport, part, force=True, epoch=number)
            else:
                deleted += await delete(part, number)
    if names:
        await transport.call(end_deletion(keys.meta, number))
    return deleted


async def delete_keys(transport: JobTransport, keys: QueueKeys, *, force: bool, epoch: int = 0) -> int:
    """Delete all keys that those of a queue or partition name, in bounded steps.

    Args:
        transport: The connection.
        keys: Keys of the queue or partition.
        force: Delete active jobs too.
        epoch: Number of the deletion of a partitioned queue, for its further partitions; 0 = another queue.

    Returns:
        The number of deleted jobs.

    Raises:
        JobStateError: If jobs are active and ``force`` is False. Nothing was deleted.
        LayoutChangedError: If it has a layout, or a partition has a later one. Nothing more was deleted.
        LibraryError: If the user lacks a permission. Nothing was deleted.
        GlideMQError: If a step deleted nothing although the queue is not empty.
    """
    registry, name = usage_registry_key(keys.prefix), keys.name
    has_usage = bool(await transport.command("SISMEMBER", registry, name))
    deleted, status, cursor = 0, "more", ""
    while status == "more":
        call = administration.obliterate(keys.meta, force or deleted > 0, _BATCH, cursor, has_usage, epoch)
        step = await transport.call(call)
        if step.status == "active":
            raise jobs_active_error(name, step.deleted)
        if step.status == "partitioned":
            raise LayoutChangedError(f"queue {name!r}: another client created its partitions")
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


async def remove_remains(transport: JobTransport, keys: QueueKeys, names: Iterable[str]) -> int:
    """Delete the remains of a deleted queue in partitions, before they get another layout.

    Its deletion was interrupted, or a call of a client that still knew the layout came later.

    Args:
        transport: The connection.
        keys: Keys of the queue.
        names: Names of the partitions. Those that have, or will have, a later layout are left out.

    Returns:
        A number that the next layout must exceed; 0 if no queue of this name was deleted in the last day. It is the one
        after that of the deletion: a partition that gets settings for the next layout stores it (`copy_settings`), and
        several clients may prepare that layout.

    Raises:
        GlideMQError: As `delete_keys`.
    """
    number, unfinished = await read_deletion(transport, keys)
    if unfinished:
        await finish_deletion(transport, keys)
    for name in names if number else ():
        part = QueueKeys(keys.prefix, name)
        if name == keys.name or not await transport.command("EXISTS", *part.static):
            continue
        (stored,) = await read_meta(transport, part, "layoutNumber")
        try:
            await delete_keys(transport, part, force=True, epoch=number)
        except LayoutChangedError:
            continue
        except PermissionDeniedError:
            if stored:  # its jobs would be in the new queue
                raise
    return number + 1 if number else 0
