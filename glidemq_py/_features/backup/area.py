"""`Backups`: creating, listing, verifying and restoring backups of a queue."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from glidemq_py._core.checks import check_int
from glidemq_py._core.keys import validate_queue_name
from glidemq_py._core.logs import get_logger
from glidemq_py._core.misuse import known_methods
from glidemq_py._features.backup.creating import apply_retention, create_backup
from glidemq_py._features.backup.dividing import Division, divide
from glidemq_py._features.backup.manifest import BackupInfo, parse_manifest, time_of
from glidemq_py._features.backup.restoring import RestoreReport, fetch_parts, find_backup, restore_backup
from glidemq_py._features.backup.store import BackupStore, Destination
from glidemq_py._features.queue_list import register
from glidemq_py._partitions.layout import Layout, partition_names
from glidemq_py._partitions.parts import Area, ConnectedQueue, PartQueues
from glidemq_py._partitions.stored import create_layout
from glidemq_py.errors import BackupError, GlideMQValidationError, QueueNotEmptyError, QueuePartitionsError

_log = get_logger(__name__)

MAX_SERVER_CPU: Final = 0.1
_LEAST_CPU: Final = 0.001
_KEEP_MOST: Final = 100_000
_MOST_PARTITIONS: Final = 256


def check_share(value: object) -> float:
    """Return the option ``max_server_cpu``. Raises GlideMQValidationError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST_CPU <= value <= 1:
        raise GlideMQValidationError("max_server_cpu", value, f"must be a number from {_LEAST_CPU} to 1")
    return float(value)


async def list_backups(
    queue: ConnectedQueue, destination: Destination, storage_options: Mapping[str, str] | None
) -> tuple[list[BackupInfo], list[BackupError]]:
    """Return the complete backups as `backups.get_all`, and an error for each whose manifest cannot be used."""
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


def _checked_id(backup_id: object) -> str | None:
    if backup_id is None or (isinstance(backup_id, str) and time_of(backup_id) is not None):
        return backup_id
    raise GlideMQValidationError("backup_id", backup_id, "must be the id of a backup, such as BackupInfo.id")


async def _restore(
    home: ConnectedQueue, store: BackupStore, info: BackupInfo, wanted: int | None
) -> RestoreReport:  # fmt: skip
    """Restore a backup into the parts of a queue. See `Backups.restore`.

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
        await register(link)
    return report


def _names(home: ConnectedQueue, info: BackupInfo, wanted: int | None) -> tuple[str, ...]:
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


async def _create(home: ConnectedQueue, names: tuple[str, ...]) -> None:
    """Create the partitions before anything is written."""
    layout = await home._runtime.there(create_layout(home._transport, home._keys, names))
    if layout is None:
        raise QueueNotEmptyError(home.name, "it has had jobs, or has limits; obliterate it first")
    if layout.names != names:
        raise QueuePartitionsError(home.name, layout.partitions, len(names))
    await home._use_layout(layout)


@known_methods
class Backups(Area):
    """``queue.backups``: backups of the queue in a directory or an object store."""

    __slots__ = ()

    async def create(
        self,
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
        store = BackupStore(destination, storage_options, self._queue._runtime, writes=True)
        await self._queue._check_layout(always=True)
        first, *others = await self._queue._links()
        info = await create_backup(first, store, max_server_cpu=share, others=others)
        if most is not None:
            await apply_retention(store, self._queue.name, most, info.ended)
        return info

    async def get_all(
        self, destination: Destination, *, storage_options: Mapping[str, str] | None = None
    ) -> list[BackupInfo]:
        """Return the complete backups of this queue in a store, oldest first. The server is not needed.

        A backup whose manifest cannot be used is left out, and a warning names it: one that is damaged, or written by a
        later release in another format. `backups.verify` and `restore` raise BackupError for it.

        Args:
            destination: See `backup`.
            storage_options: See `backup`.

        Raises:
            GlideMQValidationError: If an argument is invalid.
            BackupError: If the store fails.
        """
        found, unusable = await list_backups(self._queue, destination, storage_options)
        for error in unusable:
            _log.warning("queue %r: %s", self._queue.name, error)
        return found

    async def verify(
        self,
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
        store = BackupStore(destination, storage_options, self._queue._runtime)
        info = await find_backup(store, self._queue.name, _checked_id(backup_id))
        with tempfile.TemporaryDirectory(prefix="glidemq-verify-") as folder:
            await fetch_parts(store, info, Path(folder))
        return info

    async def restore(
        self,
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
        name = self._queue.name if source is None else validate_queue_name(source, "source")
        wanted = _checked_id(backup_id)
        count = None if partitions is None else check_int("partitions", partitions, 1, _MOST_PARTITIONS)
        store = BackupStore(destination, storage_options, self._queue._runtime)
        info = await find_backup(store, name, wanted)
        present = len(info.sections)
        if count not in (None, present) and info.queue == self._queue.name:
            problem = f"must be that of the backup, {present}, under the same name; restore it under another name"
            raise GlideMQValidationError("partitions", count, problem)
        await self._queue._check_layout(always=True)
        await self._queue._plain_link()
        return await _restore(self._queue, store, info, count)
