"""Write DataFrames and micro-batches of streams: the parts on the driver and in the tasks.

The driver creates one writer per save; pickled copies write in the tasks, and the original commits or aborts. A stream
has a new writer for each phase of each micro-batch, so shared values are passed in the messages. A task sends its rows
through a sink, one class per guarantee; calls are bounded in rows and bytes. ``mode("overwrite")`` with
``overwrite=drain`` deletes the waiting jobs before it adds those of the DataFrame.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from glidemq_py._client.transport import BlockingTransport
from glidemq_py._core.calls import administration
from glidemq_py._core.calls.adding import AddedOther, add_packed, packed_request
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._features import staged_writes as staging
from glidemq_py._features.staged_writes import (
    Published,
    Steps,
    Winner,
    WriteId,
    decide_write,
    finish_writes,
    publish_write,
    run_blocking,
    undo_write,
)
from glidemq_py.errors import ColumnError, GlideMQConnectionError, GlideMQError, StagedWriteError
from glidemq_py.spark.api import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    TaskFacts,
    WriterCommitMessage,
    task_context,
)
from glidemq_py.spark.encoding import PackedRows, RowEncoder
from glidemq_py.spark.options import WriteOptions, forget, transport_of
from glidemq_py.spark.reports import facts_of
from glidemq_py.spark.write_schema import WritePlan

__all__ = ["Batches", "FrameWriter", "Sink", "StreamWriter", "WriteOver", "Written", "drain_first", "make_sink"]

_ENDED: Final = ("committed", "done")


class WriteOver(Exception):  # noqa: N818  # a signal, not an error
    """Raised when the write was decided without this task; its rows are not needed."""


class Sink(Protocol):
    """Receives the batches of a task."""

    @property
    def pieces(self) -> dict[str, int]:
        """Return the number of staged pieces per queue."""
        ...

    @property
    def added(self) -> int:
        """Return the number of jobs added so far."""
        ...

    @property
    def skipped(self) -> int:
        """Return the number of rows that added no job so far."""
        ...

    def send(self, queue: str, request: bytes) -> None:
        """Send one batch, packed as for `add`.

        Raises:
            GlideMQError: if the call fails or a job is rejected.
            WriteOver: if the write was already decided.
        """
        ...


class _Sink:
    def __init__(self, transport: BlockingTransport, options: WriteOptions, task: TaskFacts) -> None:
        self._transport = transport
        self._options = options
        self._task = task
        self._keys: dict[str, QueueKeys] = {options.keys.name: options.keys}
        self.pieces: dict[str, int] = {}
        self.added = self.skipped = 0

    def _keys_of(self, queue: str) -> QueueKeys:
        keys = self._keys.get(queue)
        if keys is None:
            keys = self._keys[queue] = QueueKeys(self._options.keys.prefix, queue)
        return keys


class AppendSink(_Sink):
    """Adds each batch immediately; a retried task adds its rows again."""

    def send(self, queue: str, request: bytes) -> None:
        """Add the batch."""
        results = self._transport.call(add_packed(self._keys_of(queue).meta, request)).results
        added = sum(isinstance(result, str) or AddedOther(*result).outcome == "replaced" for result in results)
        self.added += added
        self.skipped += len(results) - added


class OnceSink(_Sink):
    """Adds each batch immediately, and once by its number, however often its task runs."""

    def __init__(self, transport: BlockingTransport, options: WriteOptions, task: TaskFacts, write: WriteId) -> None:
        super().__init__(transport, options, task)
        self._write = write
        self._numbers: dict[str, int] = {}

    def send(self, queue: str, request: bytes) -> None:
        """Add the batch unless it was added before."""
        number = self._numbers.get(queue, 0)
        call = staging.add_once(self._keys_of(queue), self._write, str(self._task.partition), number, request)
        reply = self._transport.call(call)
        if reply.status == "gap":
            raise StagedWriteError(self._write.id, queue, "gap")
        self._numbers[queue] = number + 1
        self.added += reply.jobs
        self.skipped += reply.others


class StagedSink(_Sink):
    """Stages each batch; the driver commits or aborts."""

    def __init__(self, transport: BlockingTransport, options: WriteOptions, task: TaskFacts, write: WriteId) -> None:
        super().__init__(transport, options, task)
        self._write = write
        self._registered = 0.0
        # A restarted application counts attempts from zero again, so the name has a random part.
        self.attempt = f"{write.driver}.{task.partition}.{task.attempt}.{secrets.token_hex(6)}"

    def begin(self, create: bool, queue: str = "") -> None:
        """Check that the write is open, and register a further queue at its home queue."""
        state = self._transport.call(staging.open_write(self._write, create=create, queue=queue)).state
        if state in _ENDED:
            raise WriteOver
        if state != "open":
            raise StagedWriteError(self._write.id, self._write.home.name, state)

    def send(self, queue: str, request: bytes) -> None:
        """Stage the batch."""
        keys, seq = self._keys_of(queue), self.pieces.get(queue, 0)
        if keys != self._write.home and (seq == 0 or _monotonic() >= self._registered + self._write.ttl / 4_000):
            self._registered = _monotonic()
            self.begin(False, queue)  # also extends the life of the write at its home queue
        call = staging.stage(self._write, keys, self.attempt, seq, request, self._options.unique)
        reply = self._transport.call(call)
        if reply.state == "duplicate":
            raise ColumnError("jobId", reply.id, f"is {reply.id!r}: queue {queue!r} already has a job with this id")
        if reply.state in _ENDED:
            raise WriteOver
        if reply.state != "open":
            raise StagedWriteError(self._write.id, queue, reply.state)
        self.pieces[queue] = seq + 1


_QUEUES_MAX: Final = 1_000
"""Queues of one write besides that of the option; S.QUEUES_MAX of the server."""


class _Batch:
    """Buffered rows of a queue."""

    __slots__ = ("count", "parts", "size")

    def __init__(self) -> None:
        self.count = self.size = 0
        self.parts: list[bytes] = []


class Batches:
    """Collects rows by queue and sends full batches."""

    def __init__(self, sink: Sink, options: WriteOptions) -> None:
        self._sink = sink
        self._quiet = options.quiet
        self._rows_max = options.batch_size
        self._bytes_max = options.max_batch_bytes
        self._waiting: dict[str, _Batch] = {}
        self.rows = self.bytes = 0

    def put(self, queue: str, rows: PackedRows) -> None:
        """Add rows of one queue. The split into batches depends on the rows only, not on the calls."""
        batch = self._waiting.get(queue)
        if batch is None:
            if len(self._waiting) > _QUEUES_MAX:
                # Known before most rows are sent; the server counts the queues of all tasks.
                raise ColumnError("queue", queue, f"is one too many: a write can use {_QUEUES_MAX:,} queues")
            batch = self._waiting[queue] = _Batch()
        first, count = 0, len(rows)
        while first < count:
            end = min(count, first + self._rows_max - batch.count, rows.fitting(first, self._bytes_max - batch.size))
            if end == first and not batch.count:
                end += 1  # a row larger than a batch is sent alone
            batch.count += end - first
            batch.size += rows.size(first, end)
            batch.parts.append(rows.copy(first, end))
            if end < count or batch.count >= self._rows_max:
                self._send(queue, batch)
                batch = self._waiting[queue] = _Batch()
            first = end

    def end(self) -> None:
        """Send the incomplete batches."""
        for queue, batch in self._waiting.items():
            if batch.count:
                self._send(queue, batch)

    def _send(self, queue: str, batch: _Batch) -> None:
        self.rows += batch.count
        self.bytes += batch.size
        self._sink.send(queue, packed_request(batch.count, batch.parts, self._quiet))


def make_sink(
    transport: BlockingTransport, options: WriteOptions, task: TaskFacts, write: WriteId | None
) -> AppendSink | OnceSink | StagedSink:
    """Return the sink for the write's guarantee."""
    if write is None or options.guarantee == "append":
        return AppendSink(transport, options, task)
    kind = OnceSink if options.guarantee == "task" else StagedSink
    return kind(transport, options, task, write)


_PIECE: Final = 100


def drain_first(write: WriteId, queues: Iterable[str]) -> Steps[int]:
    """Delete the waiting jobs of the write's home queue and of its other queues; return their number.

    A write that was already decided deletes nothing: the waiting jobs may be its own.
    """
    deleted = 0
    for queue in sorted({write.home.name, *queues}):
        meta, here, cursor = QueueKeys(write.home.prefix, queue).meta, 0, ""
        while True:
            if (yield staging.open_write(write, create=False)).state != "open":
                return deleted + here
            piece = yield administration.drain(meta, False, cursor, _PIECE, here)
            here, cursor = here + piece.deleted, piece.cursor
            if not cursor:
                break
        deleted += here
    return deleted


_log = get_logger(__name__)
_monotonic = time.monotonic
_LEFT_MS = 1_000
_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0
_MANY_PIECES = 20


@dataclass
class Written(WriterCommitMessage):
    """Result of a task.

    Attributes:
        rows: number of rows read.
        added: number of jobs added immediately.
        skipped: number of rows that added no job immediately.
        nulls: number of rows whose data is null.
        bytes: size of the packed rows.
        attempt: name of the attempt within the write.
        pieces: number of staged pieces per queue.
        over: whether the write was already decided.
        query: id of the streaming query, or ''.
        batch: number of the micro-batch, or -1.
        driver: token of the writer.
    """

    rows: int = 0
    added: int = 0
    skipped: int = 0
    nulls: int = 0
    bytes: int = 0
    attempt: str = ""
    pieces: dict[str, int] = field(default_factory=dict[str, int])
    over: bool = False
    query: str = ""
    batch: int = -1
    driver: str = ""


def _run_task(
    options: WriteOptions, plan: WritePlan, write: WriteId | None, batches: Iterator[Any], *, driver: str = ""
) -> Written:
    """Write one task's rows of a DataFrame, or of a micro-batch if ``write`` is None.

    Spark names a micro-batch. A DataFrame written in `foreachBatch` runs in a query too, but keeps its own write id.
    """
    task = task_context()
    create = write is None
    if write is None:
        write = WriteId.of_batch(options.keys, task.query, task.batch, options.staging_ttl, options.remember, driver)
    message = Written(query=task.query, batch=task.batch, driver=write.driver)
    try:
        sink = make_sink(transport_of(options.place), options, task, write)
        collected = Batches(sink, options)
        encoder = RowEncoder(plan, options)
        try:
            if isinstance(sink, StagedSink):
                message.attempt = sink.attempt
                sink.begin(create)
            for batch in batches:
                for queue, rows in encoder.encode(batch):
                    collected.put(queue, rows)
            collected.end()
        except WriteOver:
            message.over = True
            for _ in batches:  # Spark requires the rows to be consumed
                pass
    except GlideMQError as error:
        forget(options.place)
        if options.guarantee == "atomic":
            error.add_note(f"write {write.id!r}: not committed; if the save fails, none of its rows becomes a job")
        raise
    message.rows, message.nulls, message.bytes = collected.rows, encoder.nulls, collected.bytes
    message.added, message.skipped, message.pieces = sink.added, sink.skipped, sink.pieces
    return message


def _winners(messages: Sequence[Written | None]) -> dict[str, list[Winner]]:
    winners: dict[str, list[Winner]] = {}
    for message in messages:
        if message is not None:
            for queue, pieces in message.pieces.items():
                winners.setdefault(queue, []).append((message.attempt, pieces))
    return winners


_T = TypeVar("_T")


def _persist(options: WriteOptions, work: Callable[[], _T], errors: type[GlideMQError]) -> _T:
    """Retry ``work`` after these errors for the publish timeout; then raise the last one."""
    deadline, pause = _monotonic() + options.publish_timeout / 1_000, _PAUSE_S
    while True:
        try:
            return work()
        except errors as error:
            if isinstance(error, StagedWriteError) or _monotonic() + pause > deadline:
                raise
            _log.warning("queue %r: retrying in %.1f s: %s", options.keys.name, pause, error)
        forget(options.place)
        staging.pause(pause)
        pause = min(2 * pause, _PAUSE_MAX_S)


def _end(options: WriteOptions, write: WriteId, messages: Sequence[Written | None]) -> Published:
    """Commit a staged write; finish publishing it if it was already decided.

    Raises:
        StagedWriteError: state 'unknown': it may be decided; 'decided': its jobs will be added; 'repeated': the option
            `onRepeat` is 'fail'; otherwise the write is not decided.
    """
    try:
        decided_here = _persist(options, lambda: _decide(options, write, messages), GlideMQConnectionError)
    except GlideMQConnectionError as error:
        raise StagedWriteError(write.id, write.home.name, "unknown", str(error)) from error
    pieces = sum(pieces for each in _winners(messages).values() for _, pieces in each)
    try:
        published = _persist(options, lambda: _publish(options, write, pieces), GlideMQError)
    except GlideMQError as error:
        raise StagedWriteError(write.id, write.home.name, "decided", str(error)) from error
    if not decided_here:
        _report_repetition(options, write, messages)
    return published if decided_here else Published(0, 0)


def _decide(options: WriteOptions, write: WriteId, messages: Sequence[Written | None]) -> bool:
    transport = transport_of(options.place)
    if not any(message is not None and message.over for message in messages):
        return run_blocking(transport, decide_write(write, _winners(messages), facts_of(messages)))
    state = transport.call(staging.open_write(write, create=False)).state
    if state not in _ENDED:
        raise StagedWriteError(write.id, write.home.name, state)
    return False


def _publish(options: WriteOptions, write: WriteId, pieces: int) -> Published:
    transport = transport_of(options.place)
    if pieces < _MANY_PIECES:
        return run_blocking(transport, publish_write(write))
    # A second connection keeps the server busy between two pieces. Each piece is published once, by any writer.
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(_publish_beside, options, write)
        return max(run_blocking(transport, publish_write(write)), beside.result())


def _report_repetition(options: WriteOptions, write: WriteId, messages: Sequence[Written | None]) -> None:
    """Report that another save of the same id, or an earlier try of the same micro-batch, decided the write."""
    error = StagedWriteError(write.id, write.home.name, "repeated")
    if write.query:
        _log.info("%s", error)  # the batch of a restarted query
        return
    _report_now(options, write, Published(0, 0), facts_of(messages, repeated=True))
    if options.write_id is not None and options.on_repeat == "fail":
        raise error
    if options.write_id is not None and options.on_repeat == "warn":
        _log.warning("%s", error)


def _report_now(options: WriteOptions, write: WriteId, published: Published, facts: str) -> None:
    """Store a report; the save has succeeded, so a failure is only logged."""
    try:
        transport_of(options.place).call(staging.add_report(write, published.jobs, published.others, facts))
    except GlideMQError as error:
        _log.warning("write %r: its report could not be stored: %s", write.id, error)


def _abort(options: WriteOptions, write: WriteId) -> None:
    """Abort a write; if it is already decided, try to publish it."""
    transport = transport_of(options.place)
    if run_blocking(transport, undo_write(write)):
        return
    try:
        run_blocking(transport, publish_write(write))
    except GlideMQError as error:
        _log.warning("%s", StagedWriteError(write.id, write.home.name, "decided", str(error)))


def _publish_beside(options: WriteOptions, write: WriteId) -> Published:
    try:
        return run_blocking(transport_of(options.place, 1), publish_write(write))
    except GlideMQError as error:
        _log.debug("write %s: second publishing connection failed: %s", write.id, error)  # the first raises its errors
        return Published(0, 0)


def _log_published(options: WriteOptions, published: Published) -> None:
    _log.info("queue %r: added %d jobs, skipped %d rows", options.keys.name, published.jobs, published.others)


class FrameWriter(DataSourceArrowWriter):
    """Writes one DataFrame.

    Args:
        options: options of the write.
        plan: assignment of the columns.
        replace: whether to delete the waiting jobs first.

    Raises:
        GlideMQError: before any task starts, if the server cannot be reached or its configuration is rejected.
    """

    def __init__(self, options: WriteOptions, plan: WritePlan, replace: bool = False) -> None:
        self._options = options
        self._plan = plan
        self._replace = replace
        self._write = WriteId(
            id=options.write_id or secrets.token_hex(16),
            home=options.keys,
            ttl=options.staging_ttl,
            keep=options.remember,
            driver=secrets.token_hex(8),
        )
        transport = transport_of(options.place)
        _finish_others(options)
        if options.guarantee == "atomic":
            state = transport.call(staging.open_write(self._write, create=True)).state
            if state in _ENDED and options.on_repeat == "fail":
                _report_now(options, self._write, Published(0, 0), facts_of((), repeated=True))
                raise StagedWriteError(self._write.id, options.keys.name, "repeated")

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of one task."""
        return _run_task(self._options, self._plan, self._write, iterator)

    def commit(self, messages: list[Written | None]) -> None:
        """Commit the write after all tasks succeeded."""
        if self._options.guarantee == "atomic":
            if self._replace:
                run_blocking(transport_of(self._options.place), drain_first(self._write, _winners(messages)))
            _log_published(self._options, _end(self._options, self._write, messages))
        else:
            self._report(messages)

    def abort(self, messages: list[Written | None]) -> None:
        """Abort the write after a task or `commit` failed; a decided write is still published."""
        if self._options.guarantee == "atomic":
            _abort(self._options, self._write)

    def _report(self, messages: list[Written | None]) -> None:
        """Report a write that added its jobs while its tasks ran."""
        options, found = self._options, [message for message in messages if message is not None]
        published = Published(sum(each.added for each in found), sum(each.skipped for each in found))
        _log_published(options, published)
        if options.guarantee == "task" and published == (0, 0) and any(each.rows for each in found):
            _report_repetition(options, self._write, messages)
        else:
            _report_now(options, self._write, published, facts_of(messages))


def _finish_others(options: WriteOptions) -> None:
    """Finish abandoned writes of the queue; an obstacle to them is none to this write."""
    try:
        run_blocking(transport_of(options.place), finish_writes(options.keys, _LEFT_MS))
    except GlideMQConnectionError:
        raise
    except GlideMQError as error:
        _log.warning("queue %r: an abandoned write could not be finished: %s", options.keys.name, error)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query, each once."""

    def __init__(self, options: WriteOptions, plan: WritePlan) -> None:
        self._options = options
        self._plan = plan
        self._driver = secrets.token_hex(8)
        transport_of(options.place).call(staging.writes(options.keys))  # fail now if the server is unreachable

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of one task of a micro-batch."""
        return _run_task(self._options, self._plan, None, iterator, driver=self._driver)

    def commit(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        """Commit the micro-batch after all its tasks succeeded."""
        write = self._write_of(messages)
        if write is not None and self._options.guarantee == "atomic":
            _log_published(self._options, _end(self._options, write, messages))

    def abort(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        """Abort a failed micro-batch; Spark retries it with its number. Staged rows without a message expire."""
        write = self._write_of(messages)
        if write is not None and self._options.guarantee == "atomic":
            _abort(self._options, write)

    def _write_of(self, messages: Sequence[Written | None]) -> WriteId | None:
        options = self._options
        for message in messages:
            if message is not None and message.query:
                return WriteId.of_batch(
                    options.keys,
                    message.query,
                    message.batch,
                    options.staging_ttl,
                    options.remember,
                    message.driver,
                )
        return None
