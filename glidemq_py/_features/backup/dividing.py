"""Divide a downloaded backup among another number of partitions (docs/operate/backup.md); restore job batches.

Each job goes to the partition that the hash of its key chooses, with its log, its chunks, and the ordering group. The
others take turns, and generated ids are numbered again, in the order of the old ones: so the result is always the same,
and an interrupted restore can be repeated.
"""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from glidemq_py._core.calls import pack
from glidemq_py._core.job_options import read_stored_options
from glidemq_py._core.keys import QueueKeys, exact_text
from glidemq_py._features.backup.manifest import (
    LARGE,
    BackedUpJob,
    BackedUpKey,
    BackupInfo,
    BackupPart,
    RestoredKey,
    chunks,
    number_of,
)
from glidemq_py._features.backup.records import BATCH, BATCH_JOBS, flat_of, pairs_of
from glidemq_py._partitions.layout import partition_of_key
from glidemq_py.errors import BackupError

FEATURE: Final = "job-batches"
"""Feature of a queue that has, or had, batches."""
_UNFINISHED: Final = b"batches"
_NO_TTL: Final = -1
_PENDING: Final = b"p"
_COUNTS: Final = {b"pending": _PENDING, b"completed": b"c", b"failed": b"f"}
"""Fields of a batch, and the state of the jobs that each counts (``lua/features/job_batches``)."""
_EVENTS: Final = (b"complete", b"success", b"failure")
"""Callbacks. The field ``<event>At`` says when one was added, as the job ``<stem>-<event>``."""


def unfinished_jobs(key: BackedUpKey) -> list[bytes]:
    """Return the jobs that have not ended, of a key that starts with `BATCH_JOBS`."""
    return [job for job, state in pairs_of(key.content).items() if state == _PENDING]


class RestoredBatches:
    """The batches of a queue while it is restored.

    A batch, its jobs and its callbacks are backed up one after the other, and may change in between. So the jobs of
    each batch are counted again. If a callback was added during the backup but is not in it, the batch is restored
    open; it is closed after its jobs were restored, which adds the callback again.

    Args:
        started: When the backup began, epoch ms.
    """

    def __init__(self, started: int) -> None:
        self._started = started
        self._states: defaultdict[bytes, dict[bytes, bytes]] = defaultdict(dict)
        self._batches: list[BackedUpKey] = []

    def take(self, key: BackedUpKey) -> bool:
        """Note the key if it is one of a batch. Return True if it must be written later, as one of `rows`."""
        if key.suffix.startswith(BATCH_JOBS):
            # A page of many jobs may repeat some of another page.
            self._states[key.suffix[len(BATCH_JOBS) :]].update(pairs_of(key.content))
        if not key.suffix.startswith(BATCH):
            return False
        self._batches.append(key)
        return True

    def rows(self, jobs: AbstractSet[str]) -> tuple[list[RestoredKey], list[str]]:
        """Return the batches, and the ids of those to close, after all other keys were noted.

        Args:
            jobs: Ids of all jobs of the backup.
        """
        rows: list[RestoredKey] = []
        to_close: list[str] = []
        unfinished: list[bytes] = []
        for key in self._batches:
            batch = key.suffix[len(BATCH) :]
            fields = pairs_of(key.content)
            states = Counter(self._states[batch].values())
            fields.update({field: b"%d" % states[state] for field, state in _COUNTS.items()})
            for event in _EVENTS:
                if self._was_missed(fields, batch, event, jobs):
                    del fields[event + b"At"]
            is_open = b"closed" not in fields or b"completeAt" not in fields
            if is_open and b"closed" in fields:
                del fields[b"closed"]
                to_close.append(exact_text(batch))
            is_finished = not is_open and not states[_PENDING]
            if not is_finished:
                unfinished += batch, b"0"
            content = flat_of(fields)
            rows.append(RestoredKey(key.suffix, key.kind, key.ttl if is_finished else _NO_TTL, content, 1))
        if unfinished:  # in addition to those that the backup has
            rows.append(RestoredKey(_UNFINISHED, b"zset", _NO_TTL, unfinished, 0))
        return rows, to_close

    def _was_missed(self, fields: dict[bytes, bytes], batch: bytes, event: bytes, jobs: AbstractSet[str]) -> bool:
        """Return whether the callback of an event was added during the backup, and is not in it."""
        added = fields.get(event + b"At", b"")
        return (
            added.isdigit()
            and int(added) >= self._started
            and exact_text(fields.get(b"stem", batch) + b"-" + event) not in jobs
        )


_TERMINAL: Final = (b"completed", b"failed")
_RELATIONS: Final = (b"parentId", b"parentIds", b"jobBatch", b"budgetKey", b"stagedBehind", b"building")
"""Fields of a record that relate the job to other jobs, or to what these use together."""
_PREFIXES: Final = (b"depdone:", b"dependency:", b"parentGeneration:")
_LOST_FIELDS: Final = frozenset((
    *_RELATIONS, b"parentQueue", b"parentQueues", b"generation", b"depsCompleted", b"childFailed", b"flowId",
    b"schedulerName",
))  # fmt: skip
_OF_JOB: Final = (b"log:", b"jstream:", b"signals:")
_GROUP: Final = b"group:"
_BY_KEY: Final = frozenset((b"ordering", b"ratelimited", b"dedup", b"dedup-expiry"))
"""Keys with an element per ordering or deduplication key: pairs of the key and a value or score."""
_SCHEDULERS: Final = (b"schedulers", b"schedulers-own")
_OWN_KEYS: Final = b"\0"
"""Beginning of the fair keys that stand for limits of names."""


class Division(NamedTuple):
    """A backup as if it were one of a queue with other partitions."""

    sections: list[BackupInfo]
    not_kept: dict[str, int]
    """See `RestoreReport.not_kept`."""


class _Numbered(NamedTuple):
    """A job with a generated id, sortable into the order of the adds."""

    added: float
    section: int
    number: int
    id: bytes
    key: str | None


def divide(info: BackupInfo, folder: Path, targets: Sequence[QueueKeys]) -> Division:
    """Divide the parts in the folder among partitions, or join them, and write the results there.

    Raises:
        BackupError: If unfinished jobs have relations, or the backup has a key or an id in two partitions.
    """
    return _Dividing(info, folder, targets).run()


class _Dividing:
    def __init__(self, info: BackupInfo, folder: Path, targets: Sequence[QueueKeys]) -> None:
        self._info, self._folder, self._targets = info, folder, targets
        self._sections = info.sections
        self._places: list[dict[bytes, tuple[int, bytes]]] = [{} for _ in self._sections]
        """The partition and the new id of each job, by its old id."""
        self._owners: dict[tuple[bytes, bytes], int] = {}
        self._last_ids = [0] * len(targets)
        self._jobs = [0] * len(targets)
        self._files: list[list[BackupPart]] = [[] for _ in targets]
        self._not_kept: Counter[str] = Counter()

    def run(self) -> Division:
        self._place()
        features = {each for section in self._sections for each in section.features.split(",") if each}
        shown = ",".join(sorted(each for each in features if not each.startswith(("partitions:", "job-batches:"))))
        meta = [b"sideKeys", b"1", *([b"features", shown.encode()] if shown else ())]
        self._write([(part, "keys", BackedUpKey(b"meta", b"hash", -1, meta)) for part in range(len(self._targets))])
        for number, section in enumerate(self._sections):
            large: defaultdict[bytes, list[bytes]] = defaultdict(list)
            for part in section.parts:
                self._write([row for kind, rows in self._chunks(part) for row in self._rows(number, kind, rows, large)])
            self._write([self._job(number, BackedUpJob(job_id, b"", fields)) for job_id, fields in large.items()])
        sections = [
            replace(
                self._info, prefix=keys.prefix, queue=keys.name, jobs=self._jobs[part], last_id=self._last_ids[part],
                features=shown, parts=tuple(self._files[part]), partitions=(), counts=(),
            )
            for part, keys in enumerate(self._targets)
        ]  # fmt: skip
        return Division(sections, {what: count for what, count in self._not_kept.items() if count})

    def _chunks(self, part: BackupPart) -> Iterator[tuple[bytes, list[Any]]]:
        return chunks(self._folder / part.name, self._info.id)

    def _part(self, key: bytes | str) -> int:
        return partition_of_key(exact_text(key), len(self._targets))

    # -- the partition and the id of each job -------------------------------------------------------------------

    def _place(self) -> None:
        numbered: list[_Numbered] = []
        related: list[bytes] = []
        for number, section in enumerate(self._sections):
            for job_id, record in self._records(section):
                if record.get(b"state") not in _TERMINAL and _has_relations(record):
                    related.append(job_id)
                key = _key_of(record)
                if job_id.isdigit():
                    numbered.append(_Numbered(number_of(record.get(b"timestamp")), number, int(job_id), job_id, key))
                    continue
                self._check_owner(LARGE, job_id, number)
                self._places[number][job_id] = self._part(job_id if key is None else key), job_id
        if related:
            shown = ", ".join(repr(exact_text(each)) for each in related[:3])
            raise BackupError(
                f"backup {self._info.id!r}: {len(related):,} unfinished jobs ({shown}{', ...' if related[3:] else ''}) "
                "have a parent, children, dependencies, a batch or a budget, which are not kept with another number of "
                "partitions; let them end and create another backup, or let workers serve both queues"
            )
        for turn, each in enumerate(sorted(numbered, key=lambda job: job[:3])):
            part = turn % len(self._targets) if each.key is None else self._part(each.key)
            self._last_ids[part] += 1
            self._places[each.section][each.id] = part, b"%d" % self._last_ids[part]

    def _records(self, section: BackupInfo) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        large: defaultdict[bytes, dict[bytes, bytes]] = defaultdict(dict)
        for part in section.parts:
            for kind, rows in self._chunks(part):
                for row in rows:
                    if kind == b"jobs":
                        yield row.id, pairs_of(row.fields)
                    elif row.suffix.startswith(LARGE):
                        large[row.suffix[len(LARGE) :]] |= pairs_of(row.content)
        yield from large.items()

    def _check_owner(self, kind: bytes, key: bytes, section: int) -> None:
        if self._owners.setdefault((kind, key), section) != section:
            what = "job" if kind == LARGE else "ordering key"
            raise BackupError(
                f"backup {self._info.id!r}: {what} {exact_text(key)!r} is in two partitions, as a client that knows of "
                "no partitions has added jobs; let them end and create another backup"
            )

    # -- rows ---------------------------------------------------------------------------------------------------

    def _rows(
        self, section: int, kind: bytes, rows: Sequence[Any], large: defaultdict[bytes, list[bytes]]
    ) -> Iterator[tuple[int, str, Any]]:
        for row in rows:
            if kind == b"jobs":
                yield self._job(section, row)
            elif row.suffix.startswith(LARGE):
                large[row.suffix[len(LARGE) :]] += row.content
            else:
                yield from ((part, "keys", each) for part, each in self._key(section, row))

    def _job(self, section: int, job: BackedUpJob) -> tuple[int, str, Any]:
        part, new_id = self._places[section][job.id]
        record = pairs_of(job.fields)
        self._not_kept["job links"] += _has_relations(record)
        kept = {
            name: value for name, value in record.items() if name not in _LOST_FIELDS and not name.startswith(_PREFIXES)
        }
        if b"id" in kept:
            kept[b"id"] = new_id
        if kept.get(b"fairKey", b"").startswith(_OWN_KEYS):
            del kept[b"fairKey"]
        self._jobs[part] += 1
        return part, "jobs", job._replace(id=new_id, fields=flat_of(kept))

    def _key(self, section: int, key: BackedUpKey) -> Iterator[tuple[int, BackedUpKey]]:
        suffix = key.suffix
        if suffix.startswith(_OF_JOB):
            prefix, _, job_id = suffix.partition(b":")
            if (place := self._places[section].get(job_id)) is not None:
                yield place[0], key._replace(suffix=prefix + b":" + place[1])
        elif suffix.startswith(_GROUP):
            name = suffix[len(_GROUP) :]
            self._check_owner(_GROUP, name, section)
            yield self._part(name), key
        elif suffix in _BY_KEY:
            divided: defaultdict[int, list[bytes]] = defaultdict(list)
            for name, value in pairs_of(key.content).items():
                part = self._part(name)
                new = value if suffix != b"dedup" else self._owner_of_dedup(section, part, value)
                if new:
                    divided[part] += name, new
            yield from ((part, key._replace(content=content)) for part, content in divided.items())
        elif suffix in _SCHEDULERS:
            self._not_kept["schedulers"] += len(key.content) // 2
        elif suffix == b"fair-limits":
            self._not_kept["limits of fair keys and names"] += len(key.content) // 2

    def _owner_of_dedup(self, section: int, part: int, value: bytes) -> bytes | None:
        """Return the job of a deduplication id and the time of its add, if the job is in the same partition."""
        job_id, _, added = value.rpartition(b":")
        place = self._places[section].get(job_id)
        if place is None or place[0] != part:
            self._not_kept["deduplication ids"] += 1
            return None
        return place[1] + b":" + added

    def _write(self, rows: Sequence[tuple[int, str, Any]]) -> None:
        """Write a part for each partition that has some of the rows."""
        divided: defaultdict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for part, kind, row in rows:
            divided[part][kind].append(row)
        for part, kinds in divided.items():
            files = self._files[part]
            files.append(BackupPart(name=f"divided-{part:03}-{len(files):05}", size=0, sha256=""))
            content = gzip.compress(b"".join(pack(each) for each in kinds.items()), 1)
            (self._folder / files[-1].name).write_bytes(content)


def _has_relations(record: dict[bytes, bytes]) -> bool:
    return (
        record.get(b"state") == b"waiting-children"
        or any(record.get(each) for each in _RELATIONS)
        or any(each.startswith(_PREFIXES) for each in record)
    )


def _key_of(record: dict[bytes, bytes]) -> str | None:
    """Return the text whose hash chooses the partition of a job, other than its id; None if it has none."""
    fair = record.get(b"fairKey", b"")
    key = record.get(b"groupKey") or record.get(b"orderingKey") or (b"" if fair.startswith(_OWN_KEYS) else fair)
    if key:
        return exact_text(key)
    opts = record.get(b"opts", b"")
    deduplication = read_stored_options(exact_text(opts)).deduplication if b'"deduplication"' in opts else None
    return None if deduplication is None else deduplication.id
