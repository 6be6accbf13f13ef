"""Which keys of a queue a backup has, and reading the records of jobs for it.

A record is one hash, so one HGETALL reads it in one atomic step, and a pipeline of them costs the server a third of the
time of a function that does the same. The function ``backup_jobs`` reads the rest exactly: jobs that change while they
are read, and parents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from glidemq_py._core.calls import pieces
from glidemq_py._core.keys import QueueKeys, exact_text
from glidemq_py._features.backup import manifest as calls
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQError

MOST_FIELDS: Final = 2000
"""Records with more fields are read as other keys, page by page, as in ``backup.lua``."""
MOST_RECORDS: Final = 20
"""So a pipeline takes about a tenth of a millisecond."""
PIPELINE_BYTES: Final = 256 * 1024
"""Size of the records of a pipeline, about."""
IDS_PER_CALL: Final = 10
SIZES: Final = 40
_SCHEDULED: Final = (b"delayed", b"prioritized")
_MOST_US: Final = 500
"""Most time of one command, microseconds: a record of 1 MiB."""
_OVERHEAD: Final = 1.6
"""CPU time of reading commands and writing replies, in proportion to that of the commands."""


class RecordReader:
    """Reads records in pieces that are short for the server.

    Args:
        link: the queue.
        add: called with rows of `BackedUpJob`.
        used: called with CPU time of the server, microseconds; may wait.

    Attributes:
        parents: ids of jobs with children, to be read at the end with `read_parents`.
        large: ids of jobs with too many fields, to be read as other keys.
        missing: ids of jobs that were deleted before they were read.
        count: number of rows.
    """

    def __init__(
        self,
        link: QueueLink[Any],
        add: Callable[[Sequence[Any]], Awaitable[None]],
        used: Callable[[float], Awaitable[None]],
    ) -> None:
        self._link = link
        self._add = add
        self._used = used
        self._most = 1
        """Records in the next pipeline."""
        self.parents: list[str] = []
        self.large: list[str] = []
        self.missing: set[str] = set()
        self.count = 0

    async def read(self, ids: Sequence[str]) -> None:
        """Read records; jobs with children and large records are only noted."""
        for piece in pieces(ids, SIZES):
            small = await self._small(piece)
            while small:
                batch, small = small[: self._most], small[self._most :]
                await self._read(batch)

    async def _send(self, commands: list[Sequence[str | bytes]]) -> list[Any]:
        replies: list[Any] = await self._link.transport.send_reads(
            self._link.keys.meta, [("TIME",), *commands, ("TIME",)]
        )
        for reply in replies:
            if isinstance(reply, GlideMQError) and "WRONGTYPE" not in str(reply):
                raise reply
        began, *found, ended = replies
        # Not more than the commands can take: the clock may step, and others may have stopped the server in between.
        elapsed = min(max(0, _microseconds(ended) - _microseconds(began)), _MOST_US * len(found))
        await self._used(elapsed * _OVERHEAD)
        return found

    async def _small(self, ids: Sequence[str]) -> list[str]:
        job = self._link.keys.job
        sizes = await self._send([("HLEN", job(each)) for each in ids])
        found = [(each, size) for each, size in zip(ids, sizes, strict=True) if isinstance(size, int)]  # a hash
        self.large += [each for each, size in found if size > MOST_FIELDS]
        self.missing.update(each for each, size in found if size == 0)
        return [each for each, size in found if 0 < size <= MOST_FIELDS]

    async def _read(self, ids: Sequence[str]) -> None:
        # Without the mark no job of this library has children, and those of a peer matter only while it waits for them.
        link, job = self._link, self._link.keys.job
        marked, *replies = await self._send([
            ("HEXISTS", link.keys.meta, "sideKeys"),
            *(("HGETALL", job(each)) for each in ids),
        ])  # fmt: skip
        records = {each: flat for each, reply in zip(ids, replies, strict=True) if (flat := _flat(reply))}
        self.missing.update(each for each in ids if each not in records)
        largest = max((sum(map(len, flat)) for flat in records.values()), default=1)
        self._most = max(1, min(MOST_RECORDS, 2 * self._most, PIPELINE_BYTES // largest))
        parents = await self._with_children(records, marked=marked is not False and marked != 0)
        self.parents += parents
        scheduled = {each: flat for each, flat in records.items() if _state(flat) in _SCHEDULED and each not in parents}
        rows = [
            calls.BackedUpJob(each.encode(), b"", flat)
            for each, flat in records.items()
            if each not in parents and each not in scheduled and _state(flat)
        ]
        await self._take(rows)
        if scheduled:
            await self._read_scheduled(scheduled)

    async def _with_children(self, records: dict[str, list[bytes]], *, marked: bool) -> set[str]:
        # Read after the records: a job that has no children now had none when its record was read.
        waiting = {each for each, flat in records.items() if _state(flat) == b"waiting-children"}
        others = [each for each in records if each not in waiting] if marked else []
        if not others:
            return waiting
        replies = await self._send([("EXISTS", self._link.keys.stem + "deps:" + each) for each in others])
        return waiting | {each for each, reply in zip(others, replies, strict=True) if reply == 1}

    async def _read_scheduled(self, records: dict[str, list[bytes]]) -> None:
        """Read the due times. A record that is the same before and after belongs to the time read in between."""
        keys, commands = self._link.keys, list[Sequence[str | bytes]]()
        for each in records:
            commands += [("ZSCORE", keys.scheduled, each), ("HGETALL", keys.job(each))]
        replies = await self._send(commands)
        rows, changed = list[calls.BackedUpJob](), list[str]()
        for (each, before), score, after in zip(records.items(), replies[::2], replies[1::2], strict=True):
            if _flat(after) == before and not isinstance(score, GlideMQError):
                rows.append(calls.BackedUpJob(each.encode(), b"" if score is None else b"%.17g" % float(score), before))
            else:
                changed.append(each)
        await self._take(rows)
        await self._call(changed, parents=False)

    async def read_parents(self) -> None:
        """Read the jobs with children: each record counts every child that ended and was removed meanwhile."""
        parents, self.parents = self.parents, []
        await self._call(parents, parents=True)

    async def _call(self, ids: Sequence[str], *, parents: bool) -> None:
        while ids:
            batch = ids[:IDS_PER_CALL]
            reply = await self._link.call(calls.backup_jobs, batch, parents=parents)
            self.parents += (exact_text(each) for each in reply.deferred)
            self.large += (exact_text(each) for each in reply.large)
            read = {exact_text(each) for each in (*reply.deferred, *reply.large, *(name for name, *_ in reply.rows))}
            self.missing.update(each for each in batch[: reply.taken] if each not in read)
            await self._take(reply.rows)
            ids = ids[reply.taken :]
            await self._used(reply.used)

    async def _take(self, rows: Sequence[Any]) -> None:
        self.count += len(rows)
        await self._add(rows)


def _microseconds(reply: Any) -> int:
    seconds, microseconds = reply
    return int(seconds) * 1_000_000 + int(microseconds)


def _flat(reply: Any) -> list[bytes]:
    """Return fields and values by turns; nothing for a key that is not a hash."""
    return flat_of(cast("dict[bytes, bytes]", reply)) if isinstance(reply, dict) else []


def flat_of(fields: Mapping[bytes, bytes]) -> list[bytes]:
    """Return fields and their values by turns."""
    return [text for pair in fields.items() for text in pair]


def pairs_of(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the values by field of fields and values by turns."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _state(flat: list[bytes]) -> bytes | None:
    for i in range(0, len(flat), 2):
        if flat[i] == b"state":
            return flat[i + 1]
    return None


# -- keys, and how names change at a restore ----------------------------------------------------------------

_KEYS: Final = frozenset({
    "meta", "ordering", "dedup", "dedup-expiry", "schedulers", "schedulers-own", "schedulers-due", "schedulers-ended",
    "rate", "ratelimited", "metrics:completed", "metrics:failed", "failure-counts", "fair-limits", "batches",
})  # fmt: skip
_FAMILIES: Final = re.compile(
    r"(?:group|budget|usage|tpm|metrics-by-name|log|deps|depvals|parents|jstream|signals|orderdone:pending|batch"
    r"|batch-jobs):.+",
    re.DOTALL,
)
_SIDE: Final = re.compile(r"(?:log|deps|depvals|parents|jstream|signals):(.+)", re.DOTALL)
READ_LAST: Final = re.compile(r"outbox|remote-parents|remote-children|parents-left(?::.+)?", re.DOTALL)
"""Keys of reports to other queues and parents that are not delivered. Read last: they are written when a job ends."""

BATCH: Final = b"batch:"
BATCH_JOBS: Final = b"batch-jobs:"
"""Beginnings of the keys of a job batch, and of its jobs."""
_MEMBER_FIELDS: Final = (b"depdone:", b"dependency:", b"parentGeneration:")
"""Beginnings of the fields of a record that name another job."""
DROPPED_META: Final = frozenset((
    b"resultsId", b"resultsKept", b"resultsLeft", b"resultsSettled", b"peersSeen", b"groupSweep", b"schedulersCursor",
    b"wakeChannels", b"failureScan", b"partitions", b"layoutNumber",
    b"knownLayout", b"layoutIssued",
))  # fmt: skip
"""Fields of the meta hash that describe the server's present state."""
DROPPED_FIELDS: Final = frozenset((
    b"eid", b"rankedAs", b"lease", b"takenBy", b"resultSeq", b"lastActive", b"building", b"restored",
))  # fmt: skip
"""Fields of a record that describe its place and its attempt."""


def is_backed_up(suffix: str) -> bool:
    """Return whether the key with this suffix is read with the jobs."""
    return suffix in _KEYS or _FAMILIES.fullmatch(suffix) is not None


def job_id_of(suffix: bytes) -> str | None:
    """Return the id of the job that this key belongs to; None for a key of the queue itself."""
    found = _SIDE.fullmatch(exact_text(suffix))
    return None if found is None else found[1]


def _without_share(name: bytes, value: bytes) -> bytes:
    """Return the value of a field of the meta hash without a share of the queue's concurrency.

    The shares of all partitions were not read at the same time. New ones are handed out when all are restored.
    """
    if name != b"temporaryLimits":
        return value
    return re.sub(rb"\A\d+\|share\|", b"1|share|", value)


class Renaming:
    """Names of a backup as they are in the restored queue.

    Under its own name a queue keeps all relations. A copy under another name keeps those within the queue: it neither
    reports to parents in other queues nor waits for children there. It has the job batches whose unfinished jobs are
    all its own.

    Args:
        renamed: Keys of the queue that was backed up, and those of the restored queue; of a partitioned queue, those of
            each partition.
    """

    def __init__(self, renamed: Mapping[QueueKeys, QueueKeys]) -> None:
        self.is_copy = any(old.stem != new.stem for old, new in renamed.items())
        self._stems = {old.stem.encode(): new.stem.encode() for old, new in renamed.items()}
        self._names = {old.name: new.name for old, new in renamed.items()}
        self._shared_batches = set[bytes]()

    def note_batch(self, batch: bytes, unfinished: Iterable[bytes]) -> None:
        """Note a job batch, as ``glide:{orders}:<id>``, and its unfinished jobs."""
        if not all(map(self._is_own, unfinished)):
            self._shared_batches.add(batch)

    def record(self, fields: list[bytes]) -> list[bytes]:
        """Return the fields of a record, flat, without those of its old place."""
        record = pairs_of(fields)
        for name in DROPPED_FIELDS:
            record.pop(name, None)
        if self.is_copy:
            record = {self._field(name): value for name, value in record.items()}
            self._relate(record)
        return flat_of(record)

    def _field(self, name: bytes) -> bytes:
        prefix = next((each for each in _MEMBER_FIELDS if name.startswith(each)), None)
        return name if prefix is None else prefix + self._member(name[len(prefix) :])

    def _is_own(self, text: bytes) -> bool:
        return text[: text.find(b"}:") + 2] in self._stems

    def _member(self, text: bytes) -> bytes:
        end = text.find(b"}:") + 2
        stem = self._stems.get(text[:end])
        return text if stem is None else stem + text[end:]

    def _relate(self, record: dict[bytes, bytes]) -> None:
        for field in (b"budgetKey", b"jobBatch"):
            if field in record:
                text = record.pop(field)
                if self._is_own(text) and text not in self._shared_batches:
                    record[field] = self._member(text)
        if b"parentId" in record or b"parentQueue" in record:
            name = self._names.get(record.get(b"parentQueue", b"").decode("utf-8", "replace"))
            if name is not None:
                record[b"parentQueue"] = name.encode()
            else:
                record.pop(b"parentId", None)
                record.pop(b"parentQueue", None)
        ids, queues = record.pop(b"parentIds", b""), record.pop(b"parentQueues", b"")
        if ids == b"[]":  # of a job that others wait for: the set alone names them
            record[b"parentIds"] = record[b"parentQueues"] = ids
        elif ids and queues and (pairs := self._own_parents(ids, queues)):
            record[b"parentIds"] = json.dumps([each for each, _ in pairs]).encode()
            record[b"parentQueues"] = json.dumps([self._names[queue] for _, queue in pairs]).encode()

    def _own_parents(self, ids: bytes, queues: bytes) -> list[tuple[Any, Any]]:
        try:
            pairs = list(zip(json.loads(ids), json.loads(queues), strict=False))
        except (ValueError, TypeError):
            return []
        return [(each, queue) for each, queue in pairs if queue in self._names]

    def key(self, stem: bytes, suffix: bytes, content: list[bytes]) -> list[bytes] | None:
        """Return the content of a key; None if the restored queue does not have the key.

        Args:
            stem: Beginning of the names of the keys of the queue that was backed up.
            suffix: Rest of this one's.
            content: Its elements, flat.
        """
        if suffix == b"meta":
            pairs = pairs_of(content).items()
            return flat_of({name: _without_share(name, value) for name, value in pairs if name not in DROPPED_META})
        if suffix.startswith(b"group:"):
            # The jobs that hold a slot are counted when they are placed.
            return flat_of({name: value for name, value in pairs_of(content).items() if name != b"active"})
        if not self.is_copy:
            return content
        if READ_LAST.fullmatch(exact_text(suffix)):
            return None
        if suffix.startswith((b"deps:", b"parents:")):
            return [self._member(each) for each in content if self._is_own(each)]
        if suffix.startswith((BATCH, BATCH_JOBS)) and stem + suffix.partition(b":")[2] in self._shared_batches:
            return None
        if suffix.startswith((b"depvals:", BATCH_JOBS)):
            return [self._member(text) if i % 2 == 0 else text for i, text in enumerate(content)]
        return content
