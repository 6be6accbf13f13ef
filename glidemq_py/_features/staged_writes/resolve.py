"""Finish staged writes: commit, publish or abort them (docs/reference/functions.md, "Staged writes").

Every operation is a generator that yields calls and receives their replies, so a worker's event loop and a Spark thread
run the same protocol. It may stop anywhere: the next process continues from the state on the server.
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
        reply = yield staging.commit(write, keys, chunk, first, total)
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
        state, found = yield staging.abort(write, keys)
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
            return 0  # its writer may come back; otherwise the write expires
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
