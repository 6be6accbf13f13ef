"""The methods of `Queue` that create, list, verify and restore backups."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from glidemq_py._client.runtime import Runtime
from glidemq_py._core.checks import check_int
from glidemq_py._core.logs import get_logger
from glidemq_py._core.names import validate_queue_name
from glidemq_py._features.backup.creating import apply_retention, create_backup
from glidemq_py._features.backup.manifest import BackupInfo, parse_manifest, time_of
from glidemq_py._features.backup.restoring import RestoreReport, fetch_parts, find_backup, restore_backup
from glidemq_py._features.backup.store import BackupStore, Destination
from glidemq_py._features.queue_list import register
from glidemq_py._partitions.link import ConnectedQueue, QueueLink
from glidemq_py.errors import BackupError, GlideMQValidationError

_log = get_logger(__name__)

MAX_SERVER_CPU: Final = 0.1
_LEAST_CPU: Final = 0.001
_KEEP_MOST: Final = 100_000
_MOST_PARTITIONS: Final = 256


class QueueWithBackups(ConnectedQueue, Protocol):
    """A `Queue` as the methods of this module use it."""

    _runtime: Runtime

    async def _check_layout(self, *, always: bool = False) -> None:
        """Read the partitions again, unless they were never read."""
        ...

    async def _plain_link(self) -> QueueLink | None:
        """Return the queue's link; None if it is partitioned."""
        ...

    async def _backup_layout(self) -> Sequence[QueueLink]:
        """Return the partitions; of a queue without partitions, its link."""
        ...

    async def _restore_partitions(self, store: BackupStore, info: BackupInfo, wanted: int | None) -> RestoreReport:
        """Restore a backup of a partitioned queue, or one into it."""
        ...


async def backup(
    self: QueueWithBackups,
    destination: Destination,
    *,
    keep: int | None = None,
    max_server_cpu: float = MAX_SERVER_CPU,
    storage_options: Mapping[str, str] | None = None,
) -> BackupInfo:
    """Write a backup of this queue to a directory or an object store, while the queue is in use.

    Each record is read in one atomic step. Every job that exists from the beginning to the end is in the backup
    exactly once; a job that is added or removed meanwhile may be in it or not. Reading costs the server some 6
    microseconds per job.

    Args:
        destination: A directory, a URL such as ``s3://bucket/prefix``, or a store of obstore. Each queue has a
            folder there.
        keep: Number of complete backups of this queue to keep; older ones are deleted afterwards. None keeps
            all.
        max_server_cpu: Share of one core of the server that reading may use, 0.001 to 1.
        storage_options: Settings of an object store, such as ``{"endpoint": ...}``; obstore documents them.
            Credentials are also read from the environment.

    Returns:
        The backup.

    Raises:
        GlideMQValidationError: If an argument is invalid.
        GlideMQValidationError: If obstore, the extra ``backup``, is not installed.
        BackupError: If the store fails, or the queue is a broadcast. An incomplete backup is never restored.
        GlideMQError: If the server cannot be reached or rejects a call.
    """
    most = None if keep is None else check_int("keep", keep, 1, _KEEP_MOST)
    share = check_share(max_server_cpu)
    store = BackupStore(destination, storage_options, self._runtime, writes=True)
    first, *others = await self._backup_layout()
    info = await create_backup(first, store, max_server_cpu=share, others=others)
    if most is not None:
        await apply_retention(store, self.name, most, info.ended)
    return info


def check_share(value: object) -> float:
    """Return the option ``max_server_cpu``. Raises GlideMQValidationError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST_CPU <= value <= 1:
        raise GlideMQValidationError("max_server_cpu", value, f"must be a number from {_LEAST_CPU} to 1")
    return float(value)


async def get_backups(
    self: QueueWithBackups, destination: Destination, *, storage_options: Mapping[str, str] | None = None
) -> list[BackupInfo]:
    """Return the complete backups of this queue in a store, oldest first. The server is not needed.

    A backup whose manifest cannot be used is left out, and a warning names it: one that is damaged, or written by a
    later release in another format. `verify_backup` and `restore` raise BackupError for it.

    Args:
        destination: See `backup`.
        storage_options: See `backup`.

    Raises:
        GlideMQValidationError: If an argument is invalid.
        BackupError: If the store fails.
    """
    found, unusable = await list_backups(self, destination, storage_options)
    for error in unusable:
        _log.warning("queue %r: %s", self.name, error)
    return found


async def list_backups(
    queue: QueueWithBackups, destination: Destination, storage_options: Mapping[str, str] | None
) -> tuple[list[BackupInfo], list[BackupError]]:
    """Return the complete backups as `get_backups`, and an error for each whose manifest cannot be used."""
    store = BackupStore(destination, storage_options, queue._runtime)
    found, unusable = list[BackupInfo](), list[BackupError]()
    for backup in await store.backups(queue.name):
        if time_of(backup) is None or not await store.is_complete(queue.name, backup):
            continue
        manifest = await store.get(store.manifest_path(queue.name, backup))
        try:
            found.append(parse_manifest(manifest, backup))
        except BackupError as error:
            unusable.append(error)
    return found, unusable


async def verify_backup(
    self: QueueWithBackups,
    destination: Destination,
    *,
    backup_id: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> BackupInfo:
    """Read a backup of this queue completely, and verify its checksums and the number of jobs.

    The server is not needed.

    Args:
        destination: See `backup`.
        backup_id: Id of the backup; None is the newest complete one.
        storage_options: See `backup`.

    Raises:
        GlideMQValidationError: If an argument is invalid.
        BackupError: If the backup does not exist, is incomplete or damaged, or the store fails.
    """
    store = BackupStore(destination, storage_options, self._runtime)
    info = await find_backup(store, self.name, _checked_id(backup_id))
    with tempfile.TemporaryDirectory(prefix="glidemq-verify-") as folder:
        await fetch_parts(store, info, Path(folder))
    return info


def _checked_id(backup_id: object) -> str | None:
    if backup_id is None or (isinstance(backup_id, str) and time_of(backup_id) is not None):
        return backup_id
    raise GlideMQValidationError("backup_id", backup_id, "must be the id of a backup, such as BackupInfo.id")


async def restore(
    self: QueueWithBackups,
    destination: Destination,
    *,
    backup_id: str | None = None,
    source: str | None = None,
    partitions: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> RestoreReport:
    """Restore a backup into this queue, which must be empty.

    The restored queue has as many partitions as the backup, or ``partitions``.

    The backup is read and verified before anything is written. Jobs that were active return to waiting, with a new
    attempt. Workers get no job before all are written. If the restore is interrupted, repeat it: it continues.

    Args:
        destination: See `backup`.
        backup_id: Id of the backup; None is the newest complete one.
        source: Name of the queue that was backed up; None is this queue's name. A copy under another name keeps
            the flows within the queue, and neither reports to parents in other queues nor waits for children there.
        partitions: Number of partitions of this queue, 1 to 256; 1 = a queue without. None is that of the backup.
            With another one, which needs another name, the jobs are divided by their keys: those without a custom
            id get new ids, and links, schedulers and settings are not kept.
        storage_options: See `backup`.

    Returns:
        The number of jobs and keys written.

    Raises:
        GlideMQValidationError: If an argument is invalid.
        BackupError: If the backup is missing, incomplete or damaged, or the store fails; or if unfinished jobs have
            links, and ``partitions`` is another number. Nothing was written.
        QueueNotEmptyError: If the queue has jobs or schedulers; nothing was written.
        QueuePartitionsError: If the queue has another number of partitions; nothing was written.
        GlideMQError: If the server cannot be reached or rejects a call.
    """
    name = self.name if source is None else validate_queue_name(source, "source")
    wanted = _checked_id(backup_id)
    count = None if partitions is None else check_int("partitions", partitions, 1, _MOST_PARTITIONS)
    store = BackupStore(destination, storage_options, self._runtime)
    info = await find_backup(store, name, wanted)
    present = len(info.sections)
    if count not in (None, present) and info.queue == self.name:
        problem = f"must be that of the backup, {present}, under the same name; restore it under another name"
        raise GlideMQValidationError("partitions", count, problem)
    await self._check_layout(always=True)
    link = await self._plain_link()
    if link is None or (count or present, present) != (1, 1):
        return await self._restore_partitions(store, info, count)
    report = await restore_backup([link], store, info)
    await register(link)
    return report
