"""Ending staged writes: deciding them, publishing what was decided, giving up the rest (functions.md, "Staged writes").

Every step is a generator that yields calls and is sent their replies, so that a worker's event loop and a thread of
Spark run the same protocol. Each may stop anywhere: whoever comes next goes on from what the server knows.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from glidemq_py._client.transport import BlockingTransport, Transport
from glidemq_py._core.calls.packing import Call
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.staged_writes import calls as staging
from glidemq_py._features.staged_writes.calls import Winner, WriteEntry, WriteId
from glidemq_py.errors import StagedWriteError

__all__ = [
    "LEFT_ALONE_MS", "Published", "Steps", "abort_write", "commit_write", "decide_write", "finish_writes",
    "publish_write", "run_async", "run_blocking",
]  # fmt: skip

T = TypeVar("T")

Steps = Generator[Call[Any], Any, T]

WINNERS_A_CALL: Final = 500
LEFT_ALONE_MS: Final = 5_000
"""A write in which something moved since then is somebody's at this moment."""


class Published(NamedTuple):
    """What a write has become."""

    jobs: int
    others: int
    """Rows that added no job: an id that stands, a cost that its group can never pay."""

    def plus(self, other: Published) -> Published:
        """Both."""
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
    """Decide the write, and publish it everywhere. As `decide_write`."""
    yield from decide_write(write, winners)
    return (yield from publish_write(write))


def decide_write(write: WriteId, winners: Mapping[str, Sequence[Winner]]) -> Steps[None]:
    """Decide the write. From then on it is published, if not by us.

    Args:
        write: the write.
        winners: queue -> the attempts that count there.

    Raises:
        StagedWriteError: it cannot be decided any more; nothing of it has become a job.
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
        reply = yield staging.commit(write, keys, chunk, first, total)
        if reply.state in (state, "committed", "done"):
            return
        if reply.state != "open":
            raise StagedWriteError(write.id, keys.name, reply.state)
        first += len(chunk)


def publish_write(write: WriteId) -> Steps[Published]:
    """Publish a write that is decided, all queues of it."""
    home, beside = write.home, Published(0, 0)
    while True:
        queues, here = yield from _publish(write, home, decided=False)
        if not queues:
            return here.plus(beside)
        for queue in queues:
            beside = beside.plus((yield from _publish_beside(write, _beside(home, queue))))


def _publish_beside(write: WriteId, keys: QueueKeys) -> Steps[Published]:
    _, published = yield from _publish(write, keys, decided=True)
    yield staging.settled(write, keys.name)
    return published


def _publish(write: WriteId, keys: QueueKeys, decided: bool) -> Steps[tuple[list[str], Published]]:
    published = Published(0, 0)
    while True:
        reply = yield staging.publish(write, keys, decided)
        if reply.jobs or reply.others:
            published = Published(reply.jobs, reply.others)
        if reply.state != "committed":
            return (reply.queues if reply.state == "published" else []), published


def abort_write(write: WriteId) -> Steps[Published | None]:
    """Give a write up; one that is decided is published instead, and what became of it returned."""
    state, queues = yield from _abort(write, write.home)
    if state in ("committed", "done"):
        return (yield from publish_write(write))
    for queue in queues:
        yield from _abort(write, _beside(write.home, queue))
    return None


def _abort(write: WriteId, keys: QueueKeys) -> Steps[tuple[str, list[str]]]:
    queues: list[str] = []
    while True:
        state, found = yield staging.abort(write, keys)
        queues = queues or found
        if state != "more":
            return state, queues


def finish_writes(keys: QueueKeys, idle: int = LEFT_ALONE_MS) -> Steps[int]:
    """Publish what others have decided and left, give up what they have given up; the number of writes ended here.

    Args:
        keys: the queue.
        idle: ms for which nothing must have moved in a write.
    """
    ended = 0
    for entry in (yield staging.writes(keys)):
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
            return 0  # its writer may come back; if not, it runs out
        yield from publish_write(write)
        return 1
    state = yield staging.open_write(write, create=False)
    if state in ("committed", "done"):
        yield from _publish_beside(write, keys)
    elif state in ("aborted", "absent"):
        yield from _abort(write, keys)
    else:
        return 0
    return 1


def _beside(home: QueueKeys, queue: str) -> QueueKeys:
    return QueueKeys(home.prefix, queue)
