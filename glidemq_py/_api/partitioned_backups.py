"""Restoring a backup of a partitioned queue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from glidemq_py._api.parts import PartQueues
from glidemq_py._features import queue_list
from glidemq_py._features.backup.dividing import Division, divide
from glidemq_py._features.backup.manifest import BackupInfo
from glidemq_py._features.backup.restoring import RestoreReport, restore_backup
from glidemq_py._features.backup.store import BackupStore
from glidemq_py._partitions.creating import create_layout
from glidemq_py._partitions.layout import Layout, partition_names
from glidemq_py.errors import BackupError, QueueNotEmptyError, QueuePartitionsError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue


async def restore_partitions(
    home: Queue[Any, Any], store: BackupStore, info: BackupInfo, wanted: int | None
) -> RestoreReport:  # fmt: skip
    """Restore a backup of a partitioned queue, or one into it. See `Queue.restore`.

    Raises:
        QueuePartitionsError: The queue has another number of partitions than the backup, or than is wanted.
        BackupError: The backup was made during a change of the number; or, under the queue's own name, the partitions
            have other names, as records name them.
    """
    present = None if home._partitions is None else home._partitions.layout
    names = _names(home, info, wanted)
    if present is not None:
        if present.partitions != len(names):
            raise QueuePartitionsError(home.name, present.partitions, len(names))
        if info.queue == home.name and present.names != names:
            raise BackupError(f"backup {info.id!r}: the queue has other partitions; obliterate it first")
        names = present.names
    if len(names) == 1:
        links = [await home._connected()]
    else:
        links = [await queue._connected() for queue in PartQueues(home, present or Layout(0, names)).queues]

    async def create() -> None:
        await _create(home, names)

    def divided(info: BackupInfo, folder: Path) -> Division:
        return divide(info, folder, [link.keys for link in links])

    report = await restore_backup(
        links, store, info, create if present is None and len(links) > 1 else None,
        None if len(links) == len(info.sections) else divided,
    )  # fmt: skip
    for link in links:
        await queue_list.register(link)
    return report


def _names(home: Queue[Any, Any], info: BackupInfo, wanted: int | None) -> tuple[str, ...]:
    """Return the names of the restored partitions: of the backup, or new ones under another name."""
    if len(info.counts) > 1:
        raise BackupError(
            f"backup {info.id!r} was made while the number of partitions was being changed; restore it with the "
            "version that has written it, and complete the change"
        )
    sections = info.sections
    if info.queue == home.name:
        return tuple(each.queue for each in sections)
    return partition_names(home.name, wanted or len(sections))


async def _create(home: Queue[Any, Any], names: tuple[str, ...]) -> None:
    """Create the partitions before anything is written."""
    layout = await home._runtime.there(create_layout(home._transport, home._keys, names))
    if layout is None:
        raise QueueNotEmptyError(home.name, "it has had jobs, or has limits; obliterate it first")
    if layout.names != names:
        raise QueuePartitionsError(home.name, layout.partitions, len(names))
    await home._use_layout(layout)
