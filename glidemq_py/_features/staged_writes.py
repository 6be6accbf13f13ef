"""Staged writes: rows staged by many processes that become jobs atomically, all or none.

The protocol is described in docs/reference/functions.md, "Staged writes". The operations that commit, publish or abort
a write are generators that yield calls and receive their replies, so the event loop of a worker and a Spark thread run
the same code. They may stop anywhere: the next process continues from the state on the server.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

from glidemq_py._client.transport import BlockingTransport, Transport
from glidemq_py._core.calls import Call, pack, unpack
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.times import DAY_MS
from glidemq_py.errors import StagedWriteError

__all__ = [
    "LEFT_ALONE_MS",
    "AddOnceReply",
    "PublishReply",
    "Published",
    "StageReply",
    "Steps",
    "Winner",
    "WriteEntry",
    "WriteId",
    "WriteState",
    "abort",
    "abort_write",
    "add_once",
    "commit",
    "commit_write",
    "decide_write",
    "finish_staged_write",
    "finish_writes",
    "open_write",
    "publish",
    "publish_write",
    "run_async",
    "run_blocking",
    "stage",
    "writes",
]

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


def finish_staged_write(write: WriteId, queue: str) -> Call[str]:
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


T = TypeVar("T")

Steps = Generator[Call[Any], Any, T]

WINNERS_A_CALL: Final = 500
LEFT_ALONE_MS: Final = 5_000
"""A write that changed within this time is still in progress elsewhere."""


class Published(NamedTuple):
    """The result of a published write."""

    jobs: int
    others: int
    """Number of rows that added no job: the id exists, or the cost exceeds the group's token bucket."""

    def plus(self, other: Published) -> Published:
        """Return the sum of both."""
        return Published(self.jobs + other.jobs, self.others + other.others)


def run_blocking(transport: BlockingTransport, steps: Steps[T]) -> T:
    """Run the steps in this thread."""
    reply: Any = None
    while True:
        try:
            call = steps.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply = transport.call(call)


async def run_async(transport: Transport, steps: Steps[T]) -> T:
    """Run the steps in this event loop."""
    reply: Any = None
    while True:
        try:
            call = steps.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply = await transport.call(call)


def commit_write(write: WriteId, winners: Mapping[str, Sequence[Winner]]) -> Steps[Published]:
    """Commit the write and publish it in all its queues; arguments and errors as for `decide_write`."""
    yield from decide_write(write, winners)
    return (yield from publish_write(write))


def decide_write(write: WriteId, winners: Mapping[str, Sequence[Winner]]) -> Steps[None]:
    """Commit the write. Afterwards it will be published, by this process or by another one.

    Args:
        write: the write.
        winners: for each queue, the attempts whose rows become jobs.

    Raises:
        StagedWriteError: the write can no longer be committed; none of its rows became a job.
    """
    home = write.home
    for queue in sorted(winners):
        if queue != home.name:
            yield from _name_winners(write, _beside(home, queue), winners[queue], "prepared")
    yield from _name_winners(write, home, winners.get(home.name, ()), "committed")


def _name_winners(write: WriteId, keys: QueueKeys, winners: Sequence[Winner], state: str) -> Steps[None]:
    first, total = 0, len(winners)
    while True:
        chunk = winners[first : first + WINNERS_A_CALL]
        reply = yield commit(write, keys, chunk, first, total)
        if reply.state in (state, "committed", "done"):
            return
        if reply.state != "open":
            raise StagedWriteError(write.id, keys.name, reply.state)
        first += len(chunk)


def publish_write(write: WriteId) -> Steps[Published]:
    """Publish a committed write in all its queues."""
    home, beside = write.home, Published(0, 0)
    while True:
        queues, here = yield from _publish(write, home, decided=False)
        if not queues:
            return here.plus(beside)
        for queue in queues:
            beside = beside.plus((yield from _publish_beside(write, _beside(home, queue))))


def _publish_beside(write: WriteId, keys: QueueKeys) -> Steps[Published]:
    _, published = yield from _publish(write, keys, decided=True)
    yield finish_staged_write(write, keys.name)
    return published


def _publish(write: WriteId, keys: QueueKeys, decided: bool) -> Steps[tuple[list[str], Published]]:
    published = Published(0, 0)
    while True:
        reply = yield publish(write, keys, decided)
        if reply.jobs or reply.others:
            published = Published(reply.jobs, reply.others)
        if reply.state != "committed":
            return (reply.queues if reply.state == "published" else []), published


def abort_write(write: WriteId) -> Steps[Published | None]:
    """Abort a write and return None; if it is already committed, publish it and return the result."""
    state, queues = yield from _abort(write, write.home)
    if state in ("committed", "done"):
        return (yield from publish_write(write))
    for queue in queues:
        yield from _abort(write, _beside(write.home, queue))
    return None


def _abort(write: WriteId, keys: QueueKeys) -> Steps[tuple[str, list[str]]]:
    queues: list[str] = []
    while True:
        state, found = yield abort(write, keys)
        queues = queues or found
        if state != "more":
            return state, queues


def finish_writes(keys: QueueKeys, idle: int = LEFT_ALONE_MS) -> Steps[int]:
    """Finish abandoned writes of a queue, publishing committed ones and aborting aborted ones; return their number.

    Args:
        keys: the queue.
        idle: minimum time since the last change of a write, ms.
    """
    ended = 0
    for entry in (yield writes(keys)):
        if entry.idle >= idle and entry.state in ("open", "prepared", "committed"):
            try:
                ended += yield from _finish(keys, entry)
            except StagedWriteError:
                continue
    return ended


def _finish(keys: QueueKeys, entry: WriteEntry) -> Steps[int]:
    home = keys if entry.home == keys.name else _beside(keys, entry.home)
    batch = entry.id.rpartition(".")[2] if entry.query else "0"
    write = WriteId(id=entry.id, home=home, query=entry.query, batch=int(batch), keep=entry.keep)
    if home is keys:
        if entry.state != "committed":
            return 0  # its writer may come back; otherwise the write expires
        yield from publish_write(write)
        return 1
    state = yield open_write(write, create=False)
    if state in ("committed", "done"):
        yield from _publish_beside(write, keys)
    elif state in ("aborted", "absent"):
        yield from _abort(write, keys)
    else:
        return 0
    return 1


def _beside(home: QueueKeys, queue: str) -> QueueKeys:
    return QueueKeys(home.prefix, queue)
