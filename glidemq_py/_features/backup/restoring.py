"""Restore a backup: verify it, write records and keys, and then put the unfinished jobs in their places."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from glidemq_py._core.calls import pieces
from glidemq_py._core.keys import QueueKeys, exact_text
from glidemq_py._features.backup import manifest as calls
from glidemq_py._features.backup.dividing import FEATURE, RestoredBatches, unfinished_jobs
from glidemq_py._features.backup.manifest import (
    LARGE,
    BackedUpJob,
    BackedUpKey,
    BackupInfo,
    BackupPart,
    PlacedJob,
    RestoredKey,
    chunks,
    number_of,
    parse_manifest,
)
from glidemq_py._features.backup.records import BATCH_JOBS, Renaming, job_id_of, pairs_of
from glidemq_py._features.backup.store import BackupStore, in_thread
from glidemq_py._features.consistency.queue_api import repair_all_groups
from glidemq_py._features.job_batches import batch_change
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import BackupError, QueueNotEmptyError

T = TypeVar("T")

PER_CALL: Final = 100
BYTES_PER_CALL: Final = 1_048_576
_TERMINAL: Final = frozenset((b"completed", b"failed"))
_JOB: Final = "job:"
SCAN_PAUSE_S: Final = 0.003
"""Pause between the steps of a search for jobs, which may read the keys of all queues of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """The result of a restore.

    Attributes:
        queue: name of the restored queue.
        backup: the backup.
        jobs: number of jobs written.
        existing: jobs of the backup that were not written, because an earlier restore of it, which was interrupted,
            has written them.
        placed: number of unfinished jobs placed.
        keys: number of other keys written.
        resumed: True if an earlier restore of the same backup was interrupted.
        not_kept: counts of the entries that another number of partitions has no place for: "job links" (of finished
            jobs), "schedulers", "limits of fair keys and names", "deduplication ids"; those without any are not listed.
    """

    queue: str
    backup: BackupInfo
    jobs: int
    existing: int
    placed: int
    keys: int
    resumed: bool
    not_kept: Mapping[str, int] = field(default_factory=dict[str, int])


async def find_backup(store: BackupStore, queue: str, backup: str | None) -> BackupInfo:
    """Return the manifest of a backup; None = the newest complete one.

    Raises:
        BackupError: If there is none, or its manifest is damaged.
    """
    listed = await store.backups(queue)
    for each in [backup] if backup is not None else reversed(listed):
        if each in listed and await store.is_complete(queue, each):
            info = parse_manifest(await store.get(store.manifest_path(queue, each)), each)
            if info.queue != queue or info.id != each:
                raise BackupError(f"the manifest of backup {each!r} of queue {queue!r} belongs to another backup")
            return info
    if backup is None:
        raise BackupError(f"no complete backup of queue {queue!r} in {store.name}")
    shown = ", ".join(listed[-3:]) or "none"
    state = "is incomplete" if backup in listed else "does not exist"
    raise BackupError(f"backup {backup!r} of queue {queue!r} {state} in {store.name}; the newest are: {shown}")


async def fetch_parts(store: BackupStore, info: BackupInfo, folder: Path) -> int:
    """Download the parts of a backup to a folder, verify their checksums, and return the number of jobs in them.

    Raises:
        BackupError: If a part is missing or damaged, or the number of jobs differs from the manifest.
    """
    total = 0
    for section in info.sections:
        jobs, large = 0, set[bytes]()
        for part in section.parts:
            content = await store.get(store.part_path(info.queue, info.id, part.name))
            check = partial(_verified, part, content, info.id, folder / part.name)
            count, names = await in_thread(store.runtime, check)
            jobs += count
            large |= names
        jobs += len(large)
        if jobs != section.jobs:
            raise BackupError(
                f"backup {info.id!r} of queue {section.queue!r} is damaged: it contains {jobs:,} jobs instead of "
                f"{section.jobs:,}"
            )
        total += jobs
    return total


def _verified(part: BackupPart, content: bytes, backup: str, path: Path) -> tuple[int, set[bytes]]:
    """Write a part to a file; return the number of its jobs, and the names of large records. Raises BackupError."""
    if len(content) != part.size or hashlib.sha256(content).hexdigest() != part.sha256:
        raise BackupError(f"part {part.name} of backup {backup!r} is damaged: its checksum differs")
    path.write_bytes(content)
    count, large = 0, set[bytes]()
    for kind, rows in chunks(path, backup):
        if kind == b"jobs":
            count += len(rows)
        else:
            large.update(row.suffix for row in rows if row.suffix.startswith(LARGE))
    return count, large


class _Unplaced(NamedTuple):
    """An unfinished job, sortable into the order of placing."""

    group: int
    first: float
    second: float
    job: PlacedJob


def _order(job: BackedUpJob) -> _Unplaced | None:
    """Return the position of an unfinished job: jobs that were active come first, then waiting ones in their order."""
    record = pairs_of(job.fields)
    state = record.get(b"state", b"")
    if state in _TERMINAL:
        return None
    placed = PlacedJob(job.id, job.due)
    if state == b"active":
        return _Unplaced(0, number_of(record.get(b"processedOn")), number_of(job.id), placed)
    if state == b"prioritized":
        return _Unplaced(1, number_of(job.due), number_of(job.id), placed)
    ms, _, number = record.get(b"eid", b"").partition(b"-")
    if state == b"waiting" and ms:
        return _Unplaced(2, number_of(ms), number_of(number), placed)
    return _Unplaced(2, number_of(record.get(b"timestamp")), number_of(job.id), placed)


class _Restore:
    """The restore of a queue, or of a partition, while it is made."""

    def __init__(self, link: QueueLink, info: BackupInfo, folder: Path, names: Renaming) -> None:
        self._link, self._info, self._folder = link, info, folder
        self._stem = QueueKeys(info.prefix, info.queue).stem.encode()
        self._names = names
        self.resumed = self._writes = self.is_done = False
        self._unplaced: list[_Unplaced] = []
        self._ids: set[str] = set()
        self._large: dict[bytes, list[bytes]] = {}
        self._keys_seen: set[bytes] = set()
        self._groups: list[str] = []
        self._job_batches = RestoredBatches(info.started)
        self._to_close: list[str] = []
        self.jobs = self.keys = self.placed = 0

    async def begin(self) -> None:
        """Check that the queue is empty, or that an earlier restore of this backup was interrupted.

        Raises:
            QueueNotEmptyError: If it has jobs or schedulers, or another backup was being restored.
        """
        link, info = self._link, self._info
        begun = await link.call(calls.restore_begin, info.id, info.features, info.last_id)
        name = link.queue_name
        if begun.status == "other":
            raise QueueNotEmptyError(name, f"the restore of backup {begun.detail!r} into it was interrupted")
        if begun.status == "live":
            raise QueueNotEmptyError(name, f"it has jobs or schedulers (in {begun.detail})")
        if begun.status == "ok" and await self._has_jobs():
            await self.end()
            raise QueueNotEmptyError(name, "it has jobs")
        self.resumed, self._writes = begun.status == "again", begun.detail == "writing"

    async def has_begun(self) -> bool:
        """Return True if a restore of this backup into the queue was interrupted."""
        stored = await self._link.command("HGET", f"{self._link.keys.stem}restore", "backup")
        return bool(stored == self._info.id.encode())

    async def find_shared_batches(self) -> None:
        """Find the job batches with unfinished jobs of other queues, which a copy does not have."""
        if FEATURE not in self._info.features:
            return
        async for keys in self._keys():
            for key in keys:
                if key.suffix.startswith(BATCH_JOBS):
                    self._names.note_batch(self._stem + key.suffix[len(BATCH_JOBS) :], unfinished_jobs(key))

    async def write(self) -> None:
        """Write records and keys."""
        writes = self._writes
        for part in self._info.parts:
            for kind, rows in await self._read(part):
                if kind == b"jobs":
                    await self._write_jobs(rows, writes)
                else:
                    self._collect_large(rows)
        for job_id, fields in self._large.items():
            await self._write_jobs([BackedUpJob(job_id, b"", fields)], writes)
        async for keys in self._keys():
            await self._write_keys(keys, writes)
        batches, self._to_close = self._job_batches.rows(self._ids)
        if writes:
            await self._send_keys(batches)

    async def place(self) -> None:
        """Put the unfinished jobs in their places."""
        await self._place()
        if self._groups:
            await self._start_groups()
        for batch in self._to_close:
            await self._link.call(batch_change, batch, "close")

    async def end(self) -> None:
        """End the restore: workers may fetch the jobs."""
        await self._link.call(calls.restore_end, self._info.id)

    async def _has_jobs(self) -> bool:
        stem = f"{self._link.keys.stem}{_JOB}"
        async for keys in self._link.transport.scan(f"{stem}*"):
            if any(exact_text(key).startswith(stem) for key in keys):
                return True
            await self._link.runtime.there(asyncio.sleep(SCAN_PAUSE_S))
        return False

    async def _keys(self) -> AsyncIterator[list[BackedUpKey]]:
        for part in self._info.parts:
            for kind, rows in await self._read(part):
                if kind == b"keys":
                    yield rows

    async def _read(self, part: BackupPart) -> list[tuple[bytes, list[Any]]]:
        path = self._folder / part.name
        return await in_thread(self._link.runtime, lambda: list(chunks(path, self._info.id)))

    def _collect_large(self, keys: Sequence[BackedUpKey]) -> None:
        """Join the pages of records that were read as other keys."""
        for key in keys:
            if key.suffix.startswith(LARGE):
                self._large.setdefault(key.suffix[len(LARGE) :], []).extend(key.content)

    async def _write_jobs(self, jobs: Sequence[BackedUpJob], writes: bool) -> None:
        rows: list[BackedUpJob] = []
        for job in jobs:
            self._ids.add(exact_text(job.id))
            if (unplaced := _order(job)) is not None:
                self._unplaced.append(unplaced)
            if writes:
                rows.append(job._replace(fields=self._names.record(job.fields)))
        for batch in _batches(rows, lambda row: sum(map(len, row.fields))):
            self.jobs += await self._link.call(calls.restore_jobs, self._info.id, batch)

    async def _write_keys(self, keys: Sequence[BackedUpKey], writes: bool) -> None:
        rows: list[RestoredKey] = []
        for key in keys:
            if key.suffix.startswith(LARGE):
                continue
            job_id = job_id_of(key.suffix)
            if job_id is not None and job_id not in self._ids:
                continue  # the job was removed while the backup was made
            content = self._names.key(self._stem, key.suffix, key.content)
            if content and self._job_batches.take(key):
                continue
            first = key.suffix not in self._keys_seen
            self._keys_seen.add(key.suffix)
            if first and key.suffix.startswith(b"group:"):
                self._groups.append(exact_text(key.suffix[6:]))
            if content and writes:
                rows.append(RestoredKey(key.suffix, key.kind, key.ttl, content, int(first)))
        await self._send_keys(rows)

    async def _send_keys(self, rows: Sequence[RestoredKey]) -> None:
        for batch in _batches(rows, lambda row: sum(map(len, row.content)) + 50 * len(row.content)):
            self.keys += sum(row.first for row in batch)
            await self._link.call(calls.restore_keys, self._info.id, batch)

    async def _place(self) -> None:
        self._unplaced.sort()
        jobs = [each.job for each in self._unplaced]
        for batch in pieces(jobs, PER_CALL):
            self.placed += await self._link.call(calls.restore_place, self._info.id, batch)

    async def _start_groups(self) -> None:
        await repair_all_groups(self._link)
        for names in pieces(self._groups, PER_CALL):
            while await self._link.call(calls.restore_groups, self._info.id, names):
                pass


def _batches(rows: Sequence[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    batch: list[T] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += size_of(row)
        if len(batch) >= PER_CALL or size >= BYTES_PER_CALL:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def restore_backup(
    links: Sequence[QueueLink], store: BackupStore, info: BackupInfo,
    create: Callable[[], Awaitable[None]] | None = None,
    divide: Callable[[BackupInfo, Path], tuple[list[BackupInfo], dict[str, int]]] | None = None,
) -> RestoreReport:  # fmt: skip
    """Restore a backup into an empty queue.

    Everything is downloaded and verified before the first write. No worker gets a job before all records are written.
    An interrupted restore is continued by repeating it.

    Args:
        links: The queue, or its partitions in the order of the backup. If it has another number of them, the jobs are
            divided among these by their keys.
        store: The store.
        info: The backup.
        create: Creates the partitions, before anything is written.
        divide: Divides the parts in a folder among the links; needed if the backup has another number of partitions.

    Raises:
        BackupError: If the backup is damaged, or cannot be divided.
        QueueNotEmptyError: If the queue has jobs or schedulers.
        GlideMQError: If the server cannot be reached or rejects a call.
    """
    sections, not_kept = info.sections, dict[str, int]()
    with tempfile.TemporaryDirectory(prefix="glidemq-restore-") as name:
        folder = Path(name)
        await fetch_parts(store, info, folder)
        if divide is not None:
            sections, not_kept = await in_thread(links[0].runtime, lambda: divide(info, folder))
        if create is not None:
            await create()
        names = Renaming({
            QueueKeys(each.prefix, each.queue): link.keys for each, link in zip(sections, links, strict=True)
        })  # fmt: skip
        restores = [_Restore(link, each, folder, names) for each, link in zip(sections, links, strict=True)]
        await _begin(restores)
        pending = [each for each in restores if not each.is_done]
        for each in restores if names.is_copy else ():
            await each.find_shared_batches()
        for each in pending:
            await each.write()
        for each in pending:
            await each.place()
        for each in reversed(pending):
            await each.end()
    jobs = sum(each.jobs for each in restores)
    return RestoreReport(
        queue=links[0].queue_name, backup=info, jobs=jobs, existing=info.jobs - jobs,
        placed=sum(each.placed for each in restores), keys=sum(each.keys for each in restores),
        resumed=any(each.resumed for each in restores), not_kept=not_kept,
    )  # fmt: skip


async def _begin(restores: Sequence[_Restore]) -> None:
    """Begin with the last partition, and end with the first one, whose mark says that all have begun.

    If it has the mark of an interrupted restore, a partition that is not empty has been restored completely.
    """
    first, *others = restores
    has_begun = others and await first.has_begun()
    begun: list[_Restore] = []
    try:
        for each in reversed(restores):
            try:
                await each.begin()
            except QueueNotEmptyError:
                if not has_begun or each is first:
                    raise
                each.is_done = True
            else:
                begun.append(each)
    except QueueNotEmptyError:
        for each in begun:
            if not each.resumed:
                await each.end()
        raise
