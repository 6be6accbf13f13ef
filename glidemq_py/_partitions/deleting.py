"""Deleting a queue or a partition, in bounded steps."""

from __future__ import annotations

from typing import Final

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import administration
from glidemq_py._core.keys import QueueKeys, usage_registry_key
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py.errors import GlideMQError, JobStateError

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
