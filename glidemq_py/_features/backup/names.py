"""Which keys of a queue belong to a backup, and how names change if it is restored to another queue."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from glidemq_py._core.keys import QueueKeys

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


def text_of(name: str | bytes) -> str:
    """Return a name as text; bytes that are not UTF-8 become surrogates."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def is_backed_up(suffix: str) -> bool:
    """Return whether the key with this suffix is read with the jobs."""
    return suffix in _KEYS or _FAMILIES.fullmatch(suffix) is not None


def job_id_of(suffix: bytes) -> str | None:
    """Return the id of the job that this key belongs to; None for a key of the queue itself."""
    found = _SIDE.fullmatch(text_of(suffix))
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
        record = dict(zip(fields[::2], fields[1::2], strict=True))
        for name in DROPPED_FIELDS:
            record.pop(name, None)
        if self.is_copy:
            record = {self._field(name): value for name, value in record.items()}
            self._relate(record)
        return [text for pair in record.items() for text in pair]

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
            pairs = zip(content[::2], content[1::2], strict=True)
            kept = ((name, value) for name, value in pairs if name not in DROPPED_META)
            return [text for name, value in kept for text in (name, _without_share(name, value))]
        if suffix.startswith(b"group:"):
            # The jobs that hold a slot are counted when they are placed.
            pairs = zip(content[::2], content[1::2], strict=True)
            return [text for name, value in pairs if name != b"active" for text in (name, value)]
        if not self.is_copy:
            return content
        if READ_LAST.fullmatch(text_of(suffix)):
            return None
        if suffix.startswith((b"deps:", b"parents:")):
            return [self._member(each) for each in content if self._is_own(each)]
        if suffix.startswith((BATCH, BATCH_JOBS)) and stem + suffix.partition(b":")[2] in self._shared_batches:
            return None
        if suffix.startswith((b"depvals:", BATCH_JOBS)):
            return [self._member(text) if i % 2 == 0 else text for i, text in enumerate(content)]
        return content
