"""Server calls of staged writes: rows staged by many processes that become jobs atomically, all or none.

The protocol is described in docs/reference/functions.md, "Staged writes"; ``_features/staged_writes/resolve.py`` runs
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.times import DAY_MS

__all__ = [
    "AddOnceReply", "PublishReply", "StageReply", "Winner", "WriteEntry", "WriteId", "WriteState", "abort", "add_once",
    "commit", "open_write", "publish", "settled", "stage", "writes",
]  # fmt: skip

WriteState = Literal["absent", "open", "prepared", "committed", "published", "done", "aborted", "more", "full", "lost"]

_BATCH_TOMBSTONE_MS: Final = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteId:
    """A write: one data frame, or one micro-batch of a streaming query.

    Attributes:
        id: id of the write on the server.
        home: keys of the queue in whose slot it is committed.
        query: id of the streaming query; '' for a data frame.
        batch: number of the micro-batch.
        ttl: lifetime of staged rows without any change, ms.
        keep: how long the outcome of the write is stored, ms.
    """

    id: str
    home: QueueKeys
    query: str = ""
    batch: int = 0
    ttl: int = DAY_MS
    keep: int = DAY_MS

    @classmethod
    def of_batch(cls, home: QueueKeys, query: str, batch: int, ttl: int, keep: int) -> WriteId:
        """Return the write of one micro-batch."""
        return cls(id=f"{query}.{batch}", home=home, query=query, batch=batch, ttl=ttl, keep=keep)

    def tombstone(self, keys: QueueKeys, done: bool) -> int:
        """Return how long a queue stores the outcome of the write, in ms.

        An aborted write may be started again with the same id, so only its home queue stores the abort. The outcome of
        a streaming batch is stored in the ledger of its query.
        """
        if not done and (self.query or keys != self.home):
            return 0
        if not self.query:
            return self.keep
        return 0 if keys == self.home else _BATCH_TOMBSTONE_MS


Winner = tuple[str, int]
"""An attempt whose rows become jobs, and the number of pieces it has staged."""


class StageReply(NamedTuple):
    """Reply of `stage`."""

    state: str
    """'open': staged; 'duplicate'; any other state: the write accepts no more rows."""
    id: str


class PublishReply(NamedTuple):
    """Reply of `publish`."""

    state: str
    jobs: int
    others: int
    queues: list[str]


class AddOnceReply(NamedTuple):
    """Reply of `add_once`."""

    status: str
    jobs: int
    others: int


class WriteEntry(NamedTuple):
    """One row of `writes`."""

    id: str
    state: str
    home: str
    query: str
    idle: int
    """Ms since the last change."""
    queues: list[str]
    keep: int
    """How long its outcome is stored, ms."""


def open_write(write: WriteId, *, create: bool, queue: str = "") -> Call[str]:
    """Return the state of the write; starts it if ``create`` is set and adds ``queue`` to it if given."""
    request = (write.id, write.home.name, write.query, write.batch, write.ttl, int(create), queue, write.keep)
    return Call("write_open", write.home.meta, (pack(request),), bytes.decode, repeatable=True)


def stage(write: WriteId, keys: QueueKeys, attempt: str, seq: int, blob: bytes, unique: bool) -> Call[StageReply]:
    """Stage the ``seq``-th piece of an attempt in a queue; ``blob`` is the request of an `add`."""
    create = int(keys != write.home)
    where = (write.id, write.home.name, write.query, write.batch)
    request = (*where, attempt, seq, write.ttl, create, int(unique), write.keep)
    return Call("write_stage", keys.meta, (pack(request), blob), _stage, repeatable=True)


def commit(write: WriteId, keys: QueueKeys, winners: Sequence[Winner], first: int, total: int) -> Call[StageReply]:
    """Verify some of the ``total`` winning attempts; the last call commits (home queue) or prepares (other queues)."""
    request = (write.id, write.query, write.batch, winners, first, total, int(keys == write.home), write.keep)
    return Call("write_commit", keys.meta, (pack(request),), _stage, repeatable=True)


def publish(write: WriteId, keys: QueueKeys, decided: bool) -> Call[PublishReply]:
    """Turn the next piece into jobs. Safe to repeat: the server tracks which pieces are published."""
    request = (write.id, write.query, write.batch, int(decided), write.tombstone(keys, True))
    return Call("write_publish", keys.meta, (pack(request),), _published, repeatable=True)


def settled(write: WriteId, queue: str) -> Call[str]:
    """Report to the home queue that all jobs of a queue are added."""
    request = (write.id, write.query, write.batch, queue, write.tombstone(write.home, True))
    return Call("write_settled", write.home.meta, (pack(request),), bytes.decode, repeatable=True)


def abort(write: WriteId, keys: QueueKeys) -> Call[tuple[str, list[str]]]:
    """Abort the write in a queue; returns its state ('more' = call again) and the other queues of the write."""
    request = (write.id, write.query, write.batch, write.home.name, write.tombstone(keys, False))
    return Call("write_abort", keys.meta, (pack(request),), _aborted, repeatable=True)


def writes(keys: QueueKeys) -> Call[list[WriteEntry]]:
    """Return the unfinished writes of a queue."""
    return Call("writes", keys.meta, (), _entries, repeatable=True)


def add_once(keys: QueueKeys, write: WriteId, sequence: str, number: int, blob: bytes) -> Call[AddOnceReply]:
    """Add the ``number``-th piece of a sequence exactly once; ``blob`` is the request of an `add`."""
    ledger, batch = (write.query, write.batch) if write.query else (write.id, -1)
    request = (ledger, batch, sequence, number, write.keep)
    return Call("add_once", keys.meta, (pack(request), blob), _added_once, repeatable=True)


def _stage(reply: bytes) -> StageReply:
    return StageReply(*unpack(reply))


def _published(reply: bytes) -> PublishReply:
    state, jobs, others, queues = unpack(reply)
    return PublishReply(state, jobs, others, list(queues))


def _aborted(reply: bytes) -> tuple[str, list[str]]:
    state, queues = unpack(reply)
    return state, list(queues)


def _added_once(reply: bytes) -> AddOnceReply:
    return AddOnceReply(*unpack(reply))


def _entries(reply: bytes) -> list[WriteEntry]:
    return [
        WriteEntry(write, state, home, query, idle, list(queues), keep)
        for write, state, home, query, idle, queues, keep in unpack(reply)
    ]
