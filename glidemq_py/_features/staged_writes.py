"""Staged writes: rows staged by many processes that become jobs atomically, all or none.

The protocol is described in docs/reference/functions.md, "Staged writes". The operations that commit, publish or abort
a write are generators that yield calls and receive their replies, so the event loop of a worker and a Spark thread run
the same code. They may stop anywhere: the next process continues from the state on the server.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import Argument, Call, Flag, call, declared, unpack
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.times import DAY_MS
from glidemq_py.errors import StagedWriteError

_BATCH_TOMBSTONE_MS: Final = 600_000
_DRAINED_A_CALL: Final = 100
_QUEUES_REPORTED: Final = 100


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
        driver: token of the process that writes; several may share a write. '' = all of them.
    """

    id: str
    home: QueueKeys
    query: str = ""
    batch: int = 0
    ttl: int = DAY_MS
    keep: int = DAY_MS
    driver: str = ""

    @classmethod
    def of_batch(cls, home: QueueKeys, query: str, batch: int, ttl: int, keep: int, driver: str = "") -> WriteId:
        """Return the write of one micro-batch."""
        return cls(id=f"{query}.{batch}", home=home, query=query, batch=batch, ttl=ttl, keep=keep, driver=driver)

    @property
    def key(self) -> tuple[str, str, int]:
        """Id, query and batch, as most calls send them."""
        return self.id, self.query, self.batch

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


class WriteStatus(NamedTuple):
    """Reply of `open_write` and `claim`."""

    state: str
    ballot: str
    """The ballot that decided, or may decide, the write; ''."""


class PublishReply(NamedTuple):
    """Reply of `publish`."""

    state: str
    jobs: int
    others: int
    queues: list[str]
    ballot: str


class DrainReply(NamedTuple):
    """Reply of `drain_queue`."""

    state: str
    """'ok' or 'changed'."""
    deleted: int
    cursor: str
    last_commit: int
    """Number of the last commit in the queue."""


class WriteReport(NamedTuple):
    """One row of `write_reports`."""

    id: str
    query: str
    at: int
    """When all its jobs were added, epoch ms."""
    jobs: int
    others: int
    """Number of rows that added no job."""
    facts: str
    """Text given by the committing process."""
    queues: dict[str, tuple[int, int]]
    """Jobs and other rows per queue, at most 100 queues besides the home. Partitions of a queue count as one."""
    repeats: int
    """How often the write had been repeated, this time included; 0: it was not a repetition."""


@declared("write")
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
    ttl: int
    """Lifetime of its rows without any change, ms."""
    changes: int
    """Number of changes, to reject a cleanup planned before the last one."""


@call("write_open", repeatable=True)
def _write_open(
    write: str, home: str, query: str, batch: int, ttl: int, create: Flag, queue: str, keep: int, driver: str
) -> WriteStatus:
    """Return the state of a write; start it."""
    ...


def open_write(write: WriteId, *, create: bool, queue: str = "") -> Call[WriteStatus]:
    """Return the state of the write; starts it if ``create`` is set and adds ``queue`` to it if given."""
    home = write.home
    return _write_open(
        home.meta, write.id, home.name, write.query, write.batch, write.ttl, create, queue, write.keep, write.driver
    )


@call("write_claim", repeatable=True)
def _write_claim(write: str, query: str, batch: int, token: str, floor: int, driver: str) -> WriteStatus:
    """Get a ballot."""
    ...


def claim(write: WriteId, token: str, floor: int) -> Call[WriteStatus]:
    """Get a ballot with a number above ``floor``; commits with earlier ballots fail."""
    return _write_claim(write.home.meta, *write.key, token, floor, write.driver)


@call("write_stage", repeatable=True)
def _write_stage(
    write: str, home: str, query: str, batch: int, attempt: str, seq: int, ttl: int, create: Flag, unique: Flag,
    keep: int, driver: str, jobs: Argument[bytes],
) -> StageReply:  # fmt: skip
    """Stage a piece of an attempt."""
    ...


def stage(write: WriteId, keys: QueueKeys, attempt: str, seq: int, blob: bytes, unique: bool) -> Call[StageReply]:
    """Stage the ``seq``-th piece of an attempt in a queue; ``blob`` is the request of an `add`."""
    return _write_stage(
        keys.meta, write.id, write.home.name, write.query, write.batch, attempt, seq, write.ttl, keys != write.home,
        unique, write.keep, write.driver, blob,
    )  # fmt: skip


@call("write_commit", repeatable=True)
def _write_commit(
    write: str, query: str, batch: int, winners: Sequence[Winner], first: int, total: int, is_home: Flag, keep: int,
    ballot: str, facts: str, last_commit: int, queues: Sequence[str],
) -> StageReply:  # fmt: skip
    """Verify winning attempts, and commit or prepare."""
    ...


def commit(
    write: WriteId, keys: QueueKeys, winners: Sequence[Winner], first: int, total: int, ballot: str, facts: str = "",
    last_commit: int = -1, queues: Sequence[str] = (),
) -> Call[StageReply]:  # fmt: skip
    """Verify some of the ``total`` winning attempts; the last call commits (home queue) or prepares (other queues).

    ``queues``: for the home, all other queues with winners. With the ``last_commit`` of `drain_queue`, state 'changed'
    if another write was committed in the queue since.
    """
    return _write_commit(
        keys.meta, *write.key, winners, first, total, keys == write.home, write.keep, ballot,
        facts, last_commit, queues,
    )  # fmt: skip


@call("write_drain", repeatable=True)
def drain_queue(last_commit: int = -1, cursor: str = "", batch: int = _DRAINED_A_CALL, total: int = 0) -> DrainReply:
    """Delete some waiting jobs unless a write was committed in the queue since ``last_commit``; -1: return that."""
    ...


@call("write_publish", repeatable=True)
def _write_publish(write: str, query: str, batch: int, decided: Flag, keep: int, ballot: str) -> PublishReply:
    """Turn the next piece into jobs."""
    ...


def publish(write: WriteId, keys: QueueKeys, decided: bool, ballot: str = "") -> Call[PublishReply]:
    """Turn the next piece into jobs. Safe to repeat: the server tracks which pieces are published."""
    return _write_publish(keys.meta, *write.key, decided, write.tombstone(keys, True), ballot)


@call("write_finished", repeatable=True)
def _write_finished(write: str, query: str, batch: int, queue: str, keep: int, jobs: int, others: int) -> str:
    """Report that all jobs of a queue are added."""
    ...


def finish_staged_write(write: WriteId, queue: str, jobs: int, others: int) -> Call[str]:
    """Report to the home queue that all jobs of a queue are added."""
    home = write.home
    return _write_finished(home.meta, *write.key, queue, write.tombstone(home, True), jobs, others)


class Aborted(NamedTuple):
    """Reply of `abort`."""

    state: str
    """'more': call again with the cursor."""
    queues: list[str]
    """The other queues of the write."""
    cursor: str


@call("write_abort", repeatable=True)
def _write_abort(
    write: str, query: str, batch: int, home: str, keep: int, driver: str, cursor: str, changes: int, is_home: Flag
) -> Aborted:
    """Abort a write in a queue."""
    ...


def abort(write: WriteId, keys: QueueKeys, cursor: str = "0", changes: int = -1) -> Call[Aborted]:
    """Abort the write in a queue, or the part of its driver.

    Without a driver: nothing happens if the count of ``changes`` differs; -1 = any.
    """
    home = write.home
    return _write_abort(
        keys.meta, *write.key, home.name, write.tombstone(keys, False), write.driver, cursor,
        changes, keys == home,
    )  # fmt: skip


@call("writes", repeatable=True)
def writes() -> list[WriteEntry]:
    """Return the unfinished writes of a queue."""
    ...


@call("write_reports", repeatable=True)
def _write_reports(first: int, count: int) -> list[list[Any]]:
    """Return the reports of the finished writes of a home queue."""
    ...


def write_reports(keys: QueueKeys, first: int = 0, count: int = 100) -> Call[list[WriteReport]]:
    """Return the reports of the finished writes of a home queue, newest first; at most 100 per call."""
    made = _write_reports(keys.meta, first, count)
    return Call(made.function, keys.meta, made.args, lambda reply: _reports(keys, reply), made.repeatable)


@call("write_report")
def _write_report(
    write: str, query: str, jobs: int, others: int, facts: str, own: tuple[int, int],
    queues: Sequence[tuple[str, int, int]], repeated: Flag,
) -> int:  # fmt: skip
    """Store the report of a save."""
    ...


def add_report(write: WriteId, counts: Mapping[str, tuple[int, int]], facts: str, *, repeated: bool) -> Call[int]:
    """Store the report of a save that staged nothing, or that repeated a write; counts: jobs, other rows per queue."""
    home = write.home
    queues = [(queue, *numbers) for queue, numbers in counts.items() if queue != home.name][:_QUEUES_REPORTED]
    jobs, others = (sum(column) for column in zip(*counts.values(), strict=True)) if counts else (0, 0)
    return _write_report(
        home.meta, write.id, write.query, jobs, others, facts, counts.get(home.name, (0, 0)), queues, repeated
    )


def _reports(keys: QueueKeys, reply: bytes) -> list[WriteReport]:
    return [
        WriteReport(write, query, at, jobs, others, facts, _counts(keys.name, own, queues), repeats)
        for write, query, at, jobs, others, facts, own, queues, repeats in unpack(reply)
    ]


def _counts(home: str, own: Sequence[int], queues: Sequence[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    """Return jobs and other rows per queue; those of the home's other partitions are in ``queues``."""
    found = {queue: (jobs, others) for queue, jobs, others in queues}
    jobs, others = found.pop(home, (0, 0))
    return {home: (own[0] + jobs, own[1] + others), **found}


if TYPE_CHECKING:
    from glidemq_py._client.portal import BlockingTransport

T = TypeVar("T")

Steps = Generator["Call[Any] | Pause | Together", Any, T]

WINNERS_A_CALL: Final = 500
_QUEUES_TOGETHER: Final = 32
"""Queues whose calls are sent together: about 2 ms of server time to prepare or finish them."""
_ROWS_TOGETHER: Final = 250
"""Rows that are published together: about 2 ms of server time. A larger piece is published alone."""
_TRIES: Final = 50
_PAUSE_S: Final = 0.005
_PAUSE_MAX_S: Final = 2.0
"""Pauses of drivers that decide the same write at the same time; random, up to a bound that doubles."""
LEFT_ALONE_MS: Final = 5_000
"""A write that changed within this time is still in progress elsewhere."""


class Published(NamedTuple):
    """The result of a published write."""

    jobs: int
    others: int
    """Number of rows that added no job: the id exists, or the cost exceeds the group's token bucket."""


class Pause(NamedTuple):
    """A step that waits instead of calling."""

    seconds: float


class Together(NamedTuple):
    """A step of several repeatable calls, one per queue, in any order. Its reply is the list of their replies."""

    calls: list[Call[Any]]


_sleep = time.sleep


def pause(seconds: float) -> None:
    """Wait, as `run_blocking` does between the steps."""
    _sleep(seconds)


def run_blocking(transport: BlockingTransport, steps: Steps[T]) -> T:
    """Run the steps in this thread."""
    reply: Any = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if isinstance(step, Together):
            reply = transport.call_all(step.calls)
        else:
            reply = _sleep(step.seconds) if isinstance(step, Pause) else transport.call(step)


async def run_async(transport: Transport, steps: Steps[T]) -> T:
    """Run the steps in this event loop."""
    reply: Any = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if isinstance(step, Together):
            reply = [await transport.call(call) for call in step.calls]
        else:
            reply = await (asyncio.sleep(step.seconds) if isinstance(step, Pause) else transport.call(step))


def _all(calls: list[Call[Any]]) -> Steps[list[Any]]:
    """Make calls of different queues, together if there are several."""
    if len(calls) == 1:
        return [(yield calls[0])]
    return (yield Together(calls)) if calls else []


def _pause_before(tries: int) -> Steps[None]:
    if tries:
        yield Pause(random.uniform(0, min(_PAUSE_MAX_S, _PAUSE_S * 2**tries)))


def decide_write(
    write: WriteId, winners: Mapping[str, Sequence[Winner]], facts: str = "",
    last_commits: Mapping[str, int] | None = None,
) -> Steps[bool]:  # fmt: skip
    """Commit the write. Afterwards it will be published, by this process or by another one.

    Every try has a ballot of its own from the home queue. The other queues are prepared with it, then the home queue
    commits if no later ballot was issued meanwhile. A queue prepared by a process that died is prepared again.

    Args:
        write: the write.
        winners: for each queue, the attempts whose rows become jobs.
        facts: text stored in the report of the write.
        last_commits: of an overwrite, the number of the last commit in each queue when it was drained.

    Returns:
        True if this call decided; False if the write was decided before, with the rows of another driver or attempt.

    Raises:
        StagedWriteError: the write cannot be committed; none of its rows became a job. State 'changed': another write
            was committed in a queue since it was drained.
    """
    # The driver's token: a repeated call after a lost reply recognizes its own decision.
    token, floor = write.driver or secrets.token_hex(6), 0
    for tries in range(_TRIES):
        yield from _pause_before(tries)
        state, ballot = yield claim(write, token, floor)
        if state in ("committed", "done"):
            return bool(ballot.endswith(f":{token}"))
        if state != "open":
            raise StagedWriteError(write.id, write.home.name, state)
        failure: StagedWriteError | None = None
        others = sorted(winners.keys() - {write.home.name})
        chunks = [others[i : i + _QUEUES_TOGETHER] for i in range(0, len(others), _QUEUES_TOGETHER)]
        for queues in (*chunks, [write.home.name]):
            steps: list[Callable[..., Call[StageReply]]] = []
            for queue in queues:
                last_commit = -1 if last_commits is None else last_commits[queue]
                named = others if queue == write.home.name else ()
                steps.append(
                    partial(
                        commit, write, _beside(write.home, queue), ballot=ballot, facts=facts, last_commit=last_commit,
                        queues=named,
                    )
                )  # fmt: skip
            replies = yield from _name_all_winners(steps, [winners.get(queue, ()) for queue in queues])
            fenced = [reply for reply in replies if reply.state == "fenced"]
            floor = max(floor, *(_number_of(reply.id) for reply in fenced), 0)
            if fenced:
                break
            for queue, reply in zip(queues, replies, strict=True):
                if failure is None and reply.state not in ("committed", "prepared", "done"):
                    failure = StagedWriteError(write.id, queue, reply.state)
            if failure is not None:
                break
            if queues == [write.home.name]:
                return True
        if failure is not None:
            # Another driver may have committed, and deleted these rows.
            state, _ = yield open_write(replace(write, driver=""), create=False)
            if state not in ("committed", "done"):
                raise failure
    raise StagedWriteError(write.id, write.home.name, "contended")


def _number_of(ballot: str) -> int:
    digits = ballot.partition(":")[0]
    return int(digits) if digits.isdigit() else 0


def _name_all_winners(
    steps: Sequence[Callable[..., Call[StageReply]]], winners: Sequence[Sequence[Winner]]
) -> Steps[list[StageReply]]:
    """Name the winners of several queues."""
    if all(len(each) <= WINNERS_A_CALL for each in winners):
        return (yield from _all([step(each, 0, len(each)) for step, each in zip(steps, winners, strict=True)]))
    replies: list[StageReply] = []
    for step, each in zip(steps, winners, strict=True):
        replies.append((yield from _name_winners(step, each)))
    return replies


def _name_winners(step: Callable[..., Call[StageReply]], winners: Sequence[Winner]) -> Steps[StageReply]:
    first, total = 0, len(winners)
    while True:
        chunk = winners[first : first + WINNERS_A_CALL]
        reply: StageReply = yield step(chunk, first, total)
        if reply.state != "open":
            return reply
        first += len(chunk)


def overwrite(
    write: WriteId,
    winners: Mapping[str, Sequence[Winner]],
    facts: str = "",
    emptied: Callable[[], Collection[str]] = tuple,
) -> Steps[bool]:
    """Delete the waiting jobs of the write's queues, then commit the write; arguments and result as for `decide_write`.

    ``emptied`` returns the names of further queues whose waiting jobs are deleted: the partitions of the queues that
    get no rows. It is called before and after each deletion, and may raise an error: jobs may be deleted by then.

    Other writes count as one step each: one that is committed before this one is published first, so that all of its
    waiting jobs are deleted; if one is committed while jobs are deleted, the deletion starts again. So of several
    overwrites with one home, the rows of the last one that commits remain. A write that is already decided deletes
    nothing.
    """
    for tries in range(_TRIES):
        yield from _pause_before(tries)
        last_commits = yield from _drain_all(write, winners, emptied)
        if last_commits is None:
            continue
        try:
            return (yield from decide_write(write, winners, facts, last_commits))
        except StagedWriteError as error:
            if error.state != "changed":
                raise
    raise StagedWriteError(write.id, write.home.name, "changed")


def _drain_all(
    write: WriteId, winners: Collection[str], emptied: Callable[[], Collection[str]]
) -> Steps[dict[str, int] | None]:
    """Delete the waiting jobs; return the last commit in each queue.

    None: another write was committed, or there are further queues, meanwhile.

    The home comes first: another write with this home, which is committed there while a queue without winners is
    drained, is found by the commit.
    """
    home = write.home.name
    found = {home: -1} | dict.fromkeys(sorted({*winners, *emptied()}), -1)
    for queue in found:
        keys, cursor, deleted = _beside(write.home, queue), "", 0
        last_commit: int = (yield drain_queue(keys.meta)).last_commit
        yield from finish_writes(keys, 0)  # jobs of a write that is committed would appear afterwards
        while True:
            if (yield open_write(write, create=False)).state != "open":
                return found  # decided, or rejected by the commit
            reply: DrainReply = yield drain_queue(keys.meta, last_commit, cursor, total=deleted)
            if reply.state != "ok":
                return None
            cursor, deleted = reply.cursor, deleted + reply.deleted
            if not cursor:
                break
        found[queue] = last_commit
    return found if found.keys() >= {*emptied()} else None


def publish_write(write: WriteId) -> Steps[Published]:
    """Publish a committed write in all its queues."""
    counts = yield from publish_queues(write)
    return total(counts)


def total(counts: Mapping[str, Published]) -> Published:
    """Return the sum of the results of several queues."""
    return Published(sum(each.jobs for each in counts.values()), sum(each.others for each in counts.values()))


def publish_queues(
    write: WriteId, counts: dict[str, Published] | None = None, *, backward: bool = False
) -> Steps[dict[str, Published]]:
    """Publish a committed write in all its queues; return the result of each queue published here.

    Args:
        write: the write.
        counts: receives the results, also those before an error; shared by several processes of one write.
        backward: begin with the last queue. Of two connections, each publishes its half.
    """
    home, found = write.home, {} if counts is None else counts
    while True:
        reply, here = yield from _publish(write, home)
        if here != Published(0, 0) or home.name not in found:  # later replies do not count its jobs again
            found[home.name] = here
        if reply.state != "published" or not reply.queues:
            return found
        some = reply.queues[-_QUEUES_TOGETHER:] if backward else reply.queues[:_QUEUES_TOGETHER]
        yield from _publish_beside(write, [_beside(home, queue) for queue in some], reply.ballot, found)


def _publish(write: WriteId, keys: QueueKeys) -> Steps[tuple[PublishReply, Published]]:
    published = Published(0, 0)
    while True:
        reply: PublishReply = yield publish(write, keys, False)
        if reply.jobs or reply.others:
            published = Published(reply.jobs, reply.others)
        if reply.state != "committed":
            return reply, published


def _publish_beside(
    write: WriteId, queues: Sequence[QueueKeys], ballot: str, counts: dict[str, Published]
) -> Steps[None]:
    """Publish the parts of queues besides the home, and report them to the home."""
    pending, together = list(queues), 1
    while pending:
        some = pending[:together]
        replies: list[PublishReply] = yield from _all([publish(write, keys, True, ballot) for keys in some])
        rows = 0
        for keys, reply in zip(some, replies, strict=True):
            before = counts.get(keys.name, Published(0, 0))
            if reply.jobs or reply.others:
                counts[keys.name] = Published(reply.jobs, reply.others)
                rows += reply.jobs + reply.others - before.jobs - before.others
            if reply.state != "committed":
                pending.remove(keys)
        # As many pieces as are together no longer than one large piece.
        together = max(1, min(2 * together, len(some) * _ROWS_TOGETHER // max(rows, 1), _QUEUES_TOGETHER))
    ended = [(keys.name, counts.get(keys.name, Published(0, 0))) for keys in queues]
    yield from _all([finish_staged_write(write, name, *published) for name, published in ended])


def undo_write(write: WriteId) -> Steps[bool]:
    """Abort a write, or its driver's part; return False if it is already committed, and change nothing then."""
    state, queues = yield from _abort(write, write.home)
    if state in ("committed", "done"):
        return False
    for queue in queues:
        yield from _abort(write, _beside(write.home, queue))
    return True


def _abort(write: WriteId, keys: QueueKeys, changes: int = -1) -> Steps[tuple[str, list[str]]]:
    queues: list[str] = []
    cursor = "0"
    while True:
        state, found, cursor = yield abort(write, keys, cursor, changes)
        queues = queues or found
        if state != "more":
            return state, queues


def finish_writes(keys: QueueKeys, idle: int = LEFT_ALONE_MS) -> Steps[int]:
    """Finish abandoned writes of a queue, publishing decided ones and deleting aborted and expired ones.

    Args:
        keys: the queue.
        idle: minimum time since the last change of a write, ms.

    Returns:
        The number of writes finished in this queue.
    """
    ended = 0
    for entry in (yield writes(keys.meta)):
        if entry.idle >= idle:
            ended += yield from _finish(keys, entry)
    return ended


def _finish(keys: QueueKeys, entry: WriteEntry) -> Steps[int]:
    home = keys if entry.home == keys.name else _beside(keys, entry.home)
    batch = entry.id.rpartition(".")[2] if entry.query else "0"
    write = WriteId(id=entry.id, home=home, query=entry.query, batch=int(batch), keep=entry.keep)
    state = entry.state
    if home is not keys and state != "aborted":
        decision = yield open_write(write, create=False)
        if entry.state == "committed" or decision.state == "committed":
            yield from _publish_beside(write, [keys], decision.ballot, {})
            return 1
        state = "open" if decision.state == "open" else "aborted"
    elif state == "committed":
        yield from publish_write(write)
        return 1
    if state == "open" and (home is not keys or entry.idle < max(entry.ttl, LEFT_ALONE_MS)):
        return 0  # its writer may come back; otherwise the write expires
    after, _ = yield from _abort(write, keys, entry.changes)
    return int(after == "aborted")


def _beside(home: QueueKeys, queue: str) -> QueueKeys:
    return QueueKeys(home.prefix, queue)
