"""Create a backup: read a queue in bounded pieces while it is in use, and write the parts and the manifest."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Final

from glidemq_py._client.runtime import Runtime
from glidemq_py._core.calls import pack
from glidemq_py._core.keys import exact_text, issued_number
from glidemq_py._core.logs import get_logger
from glidemq_py._features.backup import manifest as calls
from glidemq_py._features.backup.manifest import (
    BackedUpPartition,
    BackupInfo,
    BackupPart,
    new_backup_id,
    parse_manifest,
    time_of,
)
from glidemq_py._features.backup.records import READ_LAST, RecordReader, is_backed_up
from glidemq_py._features.backup.store import BackupStore, in_thread
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import BackupError

_log = get_logger(__name__)

JOBS_AT_ONCE: Final = 200
KEYS_PER_CALL: Final = 50
PART_BYTES: Final = 8 * 1024 * 1024
"""Size of a part before compression, about."""
SCAN_US: Final = 300
"""Estimated CPU time of one step of SCAN, which the server does not report."""
INCOMPLETE_MS: Final = 24 * 60 * 60 * 1000
"""Age from which a backup without a manifest was given up."""
ROUNDING_S: Final = 1e-6
"""Two readings of the time of the same interruption differ by less."""
SCANS: Final = 5


class _Throttle:
    """Pauses so that the calls use at most a share of one core of the server."""

    def __init__(self, runtime: Runtime, share: float) -> None:
        self._there = runtime.there
        self._pause_per_us = (1 / share - 1) / 1_000_000
        self._pause = 0.0

    async def used(self, microseconds: float) -> None:
        self._pause += microseconds * self._pause_per_us
        if self._pause >= 0.002:
            pause, self._pause = self._pause, 0.0
            await self._there(asyncio.sleep(pause))


class _Parts:
    """Collects rows and writes them as parts."""

    def __init__(self, store: BackupStore, queue: str, backup: str, beginning: str = "") -> None:
        self._store, self._queue, self._backup, self._beginning = store, queue, backup, beginning
        self._chunks: list[bytes] = []
        self._size = 0
        self.written: list[BackupPart] = []

    async def add(self, kind: str, rows: Sequence[Any]) -> None:
        if not rows:
            return
        chunk = pack((kind, rows))
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size >= PART_BYTES:
            await self.flush()

    async def flush(self) -> None:
        if not self._chunks:
            return
        chunks, self._chunks, self._size = self._chunks, [], 0
        content = await in_thread(self._store.runtime, lambda: gzip.compress(b"".join(chunks), 1, mtime=0))
        name = f"{self._beginning}part-{len(self.written) + 1:05}.msgpack.gz"
        await self._store.put(self._store.part_path(self._queue, self._backup, name), content)
        part = BackupPart(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        self.written.append(part)


class _Reading:
    """One backup while it is made."""

    def __init__(self, link: QueueLink, parts: _Parts, throttle: _Throttle) -> None:
        self._link, self._parts, self._throttle = link, parts, throttle
        self._stem = link.keys.stem
        self._records = RecordReader(link, lambda rows: parts.add("jobs", rows), throttle.used)
        self._seen: set[str] = set()
        self._jobs: list[str] = []
        self._keys: list[str] = []
        self._last: list[str] = []
        self._missing: set[str] = set()
        """Keys that were deleted before they were read."""
        self._large_records = 0
        self.keys = 0
        self.last_id = 0

    @property
    def jobs(self) -> int:
        """Number of records read."""
        return self._records.count + self._large_records

    async def run(self) -> None:
        records = self._records
        for _ in range(SCANS):
            started = self._interruption() + ROUNDING_S
            await self._scan()
            if self._interruption() <= started:
                await records.read_parents()
                large, records.large = records.large, []
                await self._read_keys([f"job:{each}" for each in large], records=True)
                if self._interruption() <= started:
                    break
            # After a failover, SCAN continues in another order: keys may have been missed. And what was deleted before
            # it was read may exist again, if the new primary did not have the deletion.
            self._seen -= self._missing | {f"job:{each}" for each in records.missing}
            self._missing.clear()
            records.missing.clear()
        else:
            raise BackupError(f"queue {self._stem[:-1]!r}: the connection was interrupted in each of {SCANS} scans")
        await self._read_keys(self._last)

    def _interruption(self) -> float:
        """Return when the connection was interrupted last, on the clock of `time.monotonic`; -inf = never."""
        return time.monotonic() - self._link.transport.interruptions.age_s(self._link.keys.name)

    async def _scan(self) -> None:
        async for suffixes in self._batches():
            await self._throttle.used(SCAN_US)
            for suffix in suffixes:
                if suffix not in self._seen:
                    self._seen.add(suffix)
                    self._sort(suffix)
            await self._read_full()
        await self._read_full(all_=True)

    async def _batches(self) -> AsyncIterator[list[str]]:
        stem = self._stem
        async for keys in self._link.transport.scan(f"{stem}*"):
            names = [exact_text(key) for key in keys]
            yield [name[len(stem) :] for name in names if name.startswith(stem)]

    def _sort(self, suffix: str) -> None:
        if suffix.startswith("job:"):
            job_id = suffix[4:]
            if ":" not in job_id:
                self._jobs.append(job_id)
                self.last_id = max(self.last_id, issued_number(job_id))
        elif READ_LAST.fullmatch(suffix):
            self._last.append(suffix)
        elif is_backed_up(suffix):
            self._keys.append(suffix)

    async def _read_full(self, *, all_: bool = False) -> None:
        while len(self._jobs) >= JOBS_AT_ONCE or (all_ and self._jobs):
            batch = self._jobs[:JOBS_AT_ONCE]
            del self._jobs[:JOBS_AT_ONCE]
            await self._records.read(batch)
        while len(self._keys) >= KEYS_PER_CALL or (all_ and self._keys):
            batch = self._keys[:KEYS_PER_CALL]
            del self._keys[:KEYS_PER_CALL]
            await self._read_keys(batch)

    async def _read_keys(self, suffixes: list[str], *, records: bool = False) -> None:
        cursor, found = b"", set[str]()
        while suffixes:
            batch = suffixes[:KEYS_PER_CALL]
            reply = await self._link.call(calls.backup_keys, batch, cursor)
            await self._parts.add("keys", reply.rows)
            found.update(exact_text(key) for key, *_ in reply.rows)
            self._missing.update(each for each in batch[: reply.taken] if each not in found)
            suffixes, cursor = suffixes[reply.taken :], reply.cursor
            await self._throttle.used(reply.used)
        if records:
            self._large_records += len(found)
        else:
            self.keys += len(found)


async def create_backup(
    link: QueueLink, store: BackupStore, *, max_server_cpu: float, others: Sequence[QueueLink] = ()
) -> BackupInfo:
    """Create a backup of the queue.

    Args:
        link: the queue; of a partitioned one, its partition 0.
        others: the other partitions, which are read one after the other.
        store: where the backup is kept.
        max_server_cpu: share of one core of the server that reading may use, above 0 to 1.

    Raises:
        BackupError: If the queue is a broadcast, the store fails, or the connection was interrupted again and again.
        GlideMQError: If the server cannot be reached or rejects a call.
    """
    keys = link.keys
    facts = await link.call(calls.backup_facts)
    if facts.broadcast:
        raise BackupError(f"queue {keys.name!r} is a broadcast; only queues can be backed up")
    backup = new_backup_id(facts.now)
    throttle = _Throttle(link.runtime, max_server_cpu)
    sections: list[BackupInfo] = []
    for number, each in enumerate([link, *others]):
        beginning = f"partition-{number:03}-" if others else ""
        parts = _Parts(store, keys.name, backup, beginning)
        sections.append(await _read(each, parts, throttle, backup, facts.now))
    info = sections[0] if not others else _joined(sections)
    await store.put(store.manifest_path(keys.name, backup), info.to_json())
    return info


async def _read(link: QueueLink, parts: _Parts, throttle: _Throttle, backup: str, started: int) -> BackupInfo:
    """Write the parts of a queue, or a partition, and return their contents."""
    keys = link.keys
    reading = _Reading(link, parts, throttle)
    await reading.run()
    await parts.flush()
    ended = await link.call(calls.backup_facts)
    counter = exact_text(await link.command("GET", keys.id) or b"")
    last_id = max(reading.last_id, int(counter) if counter.isascii() and counter.isdigit() else 0)
    return BackupInfo(
        id=backup, queue=keys.name, prefix=keys.prefix, started=started, ended=ended.now, jobs=reading.jobs,
        keys=reading.keys, size=sum(part.size for part in parts.written), last_id=last_id, features=ended.features,
        parts=tuple(parts.written),
    )  # fmt: skip


def _joined(sections: Sequence[BackupInfo]) -> BackupInfo:
    """Return the backup of a partitioned queue."""
    partitions = tuple(
        BackedUpPartition(
            name=each.queue,
            jobs=each.jobs,
            keys=each.keys,
            last_id=each.last_id,
            features=each.features,
            parts=tuple(part.name for part in each.parts),
        )
        for each in sections
    )
    return replace(
        sections[0], ended=sections[-1].ended, jobs=sum(each.jobs for each in sections),
        keys=sum(each.keys for each in sections), size=sum(each.size for each in sections),
        last_id=max(each.last_id for each in sections), parts=tuple(part for each in sections for part in each.parts),
        partitions=partitions, counts=(len(partitions),),
    )  # fmt: skip


async def apply_retention(store: BackupStore, queue: str, keep: int, now: int) -> list[str]:
    """Delete all but the newest ``keep`` complete backups, and those given up a day ago. Return the deleted ids.

    The newest backup that has jobs is kept in addition, if the newest ones are empty: the queue may have been deleted
    by mistake. A warning is logged then.

    Raises:
        BackupError: If the store fails.
    """
    complete, deleted, has_jobs = 0, list[str](), False
    for backup in reversed(await store.backups(queue)):
        started = time_of(backup)
        if started is None:
            continue
        if await store.is_complete(queue, backup):
            complete += 1
            if not has_jobs and (jobs := await _jobs_in(store, queue, backup)):
                has_jobs = True
                if complete > 1:
                    message = "queue %r: the newest backup is empty, the one before with jobs (%s) has %d; it is kept"
                    _log.warning(message, queue, backup, jobs)
                continue
            if complete <= keep:
                continue
        elif started > now - INCOMPLETE_MS:
            continue
        await store.delete(queue, backup)
        deleted.append(backup)
    return deleted


async def _jobs_in(store: BackupStore, queue: str, backup: str) -> int:
    try:
        return parse_manifest(await store.get(store.manifest_path(queue, backup)), backup).jobs
    except BackupError:  # a damaged manifest does not protect a backup
        return 0
