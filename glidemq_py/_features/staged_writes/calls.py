"""Calls about staged writes: many jobs, put down by many processes, that become jobs together or not at all.

The protocol is `docs/reference/functions.md`, "Staged writes"; ``_features/staged_writes/resolve.py`` decides
what to call next.
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
    """A write: one frame, or one micro-batch of a streaming query.

    Attributes:
        id: what it is called on the server.
        home: keys of the queue in whose slot it is decided.
        query: of a streaming query, else ''.
        batch: number of the micro-batch.
        ttl: ms that what is staged lives without anybody touching it.
        keep: ms for which the end of the write is remembered.
    """

    id: str
    home: QueueKeys
    query: str = ""
    batch: int = 0
    ttl: int = DAY_MS
    keep: int = DAY_MS

    @classmethod
    def of_batch(cls, home: QueueKeys, query: str, batch: int, ttl: int, keep: int) -> WriteId:
        """The write of one micro-batch."""
        return cls(id=f"{query}.{batch}", home=home, query=query, batch=batch, ttl=ttl, keep=keep)

    def tombstone(self, keys: QueueKeys, done: bool) -> int:
        """Ms for which a queue remembers how the write ended.

        What was given up may come again under its name, so beside the home nothing keeps it away. The end of a
        streaming batch is remembered by its query's ledger.
        """
        if not done and (self.query or keys != self.home):
            return 0
        if not self.query:
            return self.keep
        return 0 if keys == self.home else _BATCH_TOMBSTONE_MS


Winner = tuple[str, int]
"""An attempt that counts, and how many pieces it has staged."""


class StageReply(NamedTuple):
    """Reply of `stage`."""

    state: str
    """'open': it is there; 'duplicate'; else the state in which the write takes no more."""
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
    """Ms since anything moved."""
    queues: list[str]
    keep: int
    """Ms for which its end is to be remembered."""


def open_write(write: WriteId, *, create: bool, queue: str = "") -> Call[str]:
    """Where the write stands; begin it where it is not and ``create``; enlist a further queue."""
    request = (write.id, write.home.name, write.query, write.batch, write.ttl, int(create), queue, write.keep)
    return Call("write_open", write.home.meta, (pack(request),), bytes.decode, repeatable=True)


def stage(write: WriteId, keys: QueueKeys, attempt: str, seq: int, blob: bytes, unique: bool) -> Call[StageReply]:
    """Put the ``seq``-th piece of an attempt down in a queue: the request of an `add`."""
    create = int(keys != write.home)
    where = (write.id, write.home.name, write.query, write.batch)
    request = (*where, attempt, seq, write.ttl, create, int(unique), write.keep)
    return Call("write_stage", keys.meta, (pack(request), blob), _stage, repeatable=True)


def commit(write: WriteId, keys: QueueKeys, winners: Sequence[Winner], first: int, total: int) -> Call[StageReply]:
    """Verify some of the ``total`` attempts that count; the last of these calls decides, or prepares."""
    request = (write.id, write.query, write.batch, winners, first, total, int(keys == write.home), write.keep)
    return Call("write_commit", keys.meta, (pack(request),), _stage, repeatable=True)


def publish(write: WriteId, keys: QueueKeys, decided: bool) -> Call[PublishReply]:
    """Turn the next piece into jobs. Not repeatable as such: the count of pieces left says whether it happened."""
    request = (write.id, write.query, write.batch, int(decided), write.tombstone(keys, True))
    return Call("write_publish", keys.meta, (pack(request),), _published, repeatable=True)


def settled(write: WriteId, queue: str) -> Call[str]:
    """Tell the home that all of a queue's jobs are there."""
    request = (write.id, write.query, write.batch, queue, write.tombstone(write.home, True))
    return Call("write_settled", write.home.meta, (pack(request),), bytes.decode, repeatable=True)


def abort(write: WriteId, keys: QueueKeys) -> Call[tuple[str, list[str]]]:
    """Give the write up in a queue; its state, and the further queues that it touches. 'more' = call again."""
    request = (write.id, write.query, write.batch, write.home.name, write.tombstone(keys, False))
    return Call("write_abort", keys.meta, (pack(request),), _aborted, repeatable=True)


def writes(keys: QueueKeys) -> Call[list[WriteEntry]]:
    """The writes of a queue that have not ended."""
    return Call("writes", keys.meta, (), _entries, repeatable=True)


def add_once(keys: QueueKeys, write: WriteId, sequence: str, number: int, blob: bytes) -> Call[AddOnceReply]:
    """Add the ``number``-th piece of a sequence, the request of an `add`, once."""
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
