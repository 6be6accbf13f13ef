"""Write DataFrames and micro-batches of streams: the parts on the driver and in the tasks.

The driver creates one writer per save; pickled copies write in the tasks, and the original commits or aborts. A stream
has a new writer for each phase of each micro-batch, so shared values are passed in the messages. ``mode("overwrite")``
with ``overwrite=drain`` deletes the waiting jobs before it adds those of the DataFrame.
"""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from glidemq_py._client.portal import BlockingTransport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._features import staged_writes as staging
from glidemq_py._features.staged_writes import (
    Published,
    Winner,
    WriteId,
    decide_write,
    finish_writes,
    publish_write,
    run_blocking,
    undo_write,
)
from glidemq_py._partitions.layout import Layout
from glidemq_py.errors import (
    GlideMQConnectionError,
    GlideMQError,
    LayoutChangedError,
    ServerOutOfMemoryError,
    StagedWriteError,
)
from glidemq_py.spark.api import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
    task_context,
)
from glidemq_py.spark.encoding import RowEncoder
from glidemq_py.spark.options import WriteOptions, forget, transport_of
from glidemq_py.spark.partitioned import agreed_layouts_of, layouts_of
from glidemq_py.spark.placing import Placer, by_whole_queue
from glidemq_py.spark.reports import facts_of
from glidemq_py.spark.sinks import ENDED, AppendSink, Batches, StagedSink, WriteOver, make_sink
from glidemq_py.spark.write_schema import WritePlan

__all__ = ["FrameWriter", "StreamWriter", "Written"]


_log = get_logger(__name__)
_monotonic = time.monotonic
_LEFT_MS = 1_000
_AFTER_A_FAILURE: Final = {
    "atomic": "none of its rows becomes a job",
    "append": "a part of its rows may be jobs; another save adds these twice",
}
_AFTER_AN_ERROR: Final = {
    "decided": "already decided by another save or attempt, so every row becomes a job; do not save again",
    "atomic": f"not committed; if the save fails, {_AFTER_A_FAILURE['atomic']}",
    "append": f"if the save fails, {_AFTER_A_FAILURE['append']}",
}
_FULL: Final = "the server is at its maxmemory"
_NOT_ABORTED: Final = "not aborted; unless it is already decided, its rows expire without becoming jobs"
_COMPLETED: Final = "was decided before the failure, and every row is a job now; do not save again"
_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0
_MANY_PIECES = 20


@dataclass
class Written(WriterCommitMessage):
    """Result of a task.

    Attributes:
        rows: number of rows read. This, `nulls` and `bytes` are 0 if the write was already decided.
        counts: number of jobs added immediately, and of rows that added none, per queue.
        nulls: number of rows whose data is null.
        bytes: size of the packed rows.
        attempt: name of the attempt within the write.
        pieces: number of staged pieces per queue.
        over: whether the write was already decided.
        query: id of the streaming query, or ''.
        batch: number of the micro-batch, or -1.
        driver: token of the writer.
        layouts: number of the layout by which rows were placed, per queue; 0 = it had no partitions.
    """

    rows: int = 0
    counts: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    nulls: int = 0
    bytes: int = 0
    attempt: str = ""
    pieces: dict[str, int] = field(default_factory=dict[str, int])
    over: bool = False
    query: str = ""
    batch: int = -1
    driver: str = ""
    layouts: dict[str, int] = field(default_factory=dict[str, int])


def _layouts(options: WriteOptions, home: Layout | None, queues: Sequence[str]) -> dict[str, Layout | None]:
    """Return the layouts of queues that get rows, read together; ``home``: that of the queue of the option."""
    others = [QueueKeys(options.keys.prefix, queue) for queue in queues if queue != options.keys.name]
    layouts = agreed_layouts_of(transport_of(options.place), others) if others else []
    read = {keys.name: layout for keys, layout in zip(others, layouts, strict=True)}
    return {queue: read.get(queue, home) for queue in queues}


def _run_task(
    options: WriteOptions, plan: WritePlan, write: WriteId | None, batches: Iterator[Any], home: Layout | None,
    *, driver: str = "",
) -> Written:  # fmt: skip
    """Write one task's rows of a DataFrame, or of a micro-batch if ``write`` is None.

    Spark names a micro-batch. A DataFrame written in `foreachBatch` runs in a query too, but keeps its own write id.
    """
    task = task_context()
    create = write is None
    if write is None:
        write = WriteId.of_batch(options.keys, task.query, task.batch, options.staging_ttl, options.remember, driver)
    message = Written(query=task.query, batch=task.batch, driver=write.driver)
    try:
        with make_sink(partial(transport_of, options.place), options, task, write) as sink:
            placer = Placer(partial(_layouts, options, home), task.partition + zlib.crc32(write.id.encode()))
            collected = Batches(sink, options, placer.checked if isinstance(sink, AppendSink) else None)
            encoder = RowEncoder(plan, options, placer)
            try:
                if isinstance(sink, StagedSink):
                    message.attempt = sink.attempt
                    sink.begin(create)
                for batch in batches:
                    for queue, rows in encoder.encode(batch):
                        collected.put(queue, rows)
                    collected.flush()
                collected.end()
            except WriteOver:
                message.over = True
                for _ in batches:  # Spark requires the rows to be consumed
                    pass
    except Exception as caught:  # also of what evaluates the rows
        error = _shown(caught)
        if isinstance(caught, GlideMQError):
            forget(options.place)
        decided = options.guarantee == "atomic" and _state_of(options, write) in ENDED
        error.add_note(f"write {write.id!r}: {_AFTER_AN_ERROR['decided' if decided else options.guarantee]}")
        if error is caught:
            raise
        raise error from None
    if not message.over:  # how many rows were encoded before that reply arrived varies
        message.rows, message.nulls, message.bytes = collected.rows, encoder.nulls, collected.bytes
        message.layouts = placer.numbers
    message.counts, message.pieces = sink.counts, sink.pieces
    return message


def _shown(error: Exception) -> Exception:
    """Return the error to raise: what one call says about its rows is not true of the whole save."""
    if isinstance(error, LayoutChangedError) and error.stored is not None:
        return GlideMQError(
            f"the partitions of queue {error.queue!r} were created or obliterated meanwhile; save again"
        )
    if isinstance(error, ServerOutOfMemoryError):
        error.args = (_FULL,)
    return error


def _check_layouts(options: WriteOptions, write: WriteId, messages: Sequence[Written | None]) -> list[str]:
    """Reject a write whose rows were placed by outdated layouts; return the names of all partitions of its queues."""
    used = sorted({item for message in messages if message is not None for item in message.layouts.items()})
    queues = sorted({options.keys.name, *(queue for queue, _ in used)})
    keys = [QueueKeys(options.keys.prefix, queue) for queue in queues]
    layouts = dict(zip(queues, layouts_of(transport_of(options.place), keys), strict=True))
    for queue, number in used:
        layout = layouts[queue]
        if number != (0 if layout is None else layout.number):
            raise StagedWriteError(write.id, queue, "repartitioned")
    return [name for queue, layout in layouts.items() for name in ([queue] if layout is None else layout.names)]


def _cause(error: GlideMQError) -> str:
    """Return the text of an error after which a part of the write may have become jobs."""
    return _FULL if isinstance(error, ServerOutOfMemoryError) else str(error)


def _state_of(options: WriteOptions, write: WriteId) -> str:
    """Return 'committed', 'done', or another state; '' if it cannot be read. A full server replies too."""
    try:
        # A ballot for a driver that is not registered changes nothing.
        return transport_of(options.place).call(staging.claim(replace(write, driver="-"), "-", 0)).state
    except GlideMQError:
        return ""


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
            _log.warning("queue %r: retrying in %.1f s: %s", options.keys.name, pause, _cause(error))
        forget(options.place)
        staging.pause(pause)
        pause = min(2 * pause, _PAUSE_MAX_S)


def _end(
    options: WriteOptions, write: WriteId, messages: Sequence[Written | None], *, overwrite: bool = False
) -> Published:
    """Commit a staged write; finish publishing it if it was already decided. ``overwrite``: delete the waiting jobs.

    Raises:
        StagedWriteError: state 'unknown': it may be decided; 'decided': its jobs will be added; 'repeated': the option
            `onRepeat` is 'fail'; otherwise the write is not decided.
    """
    try:
        decided_here = _persist(options, lambda: _decide(options, write, messages, overwrite), GlideMQConnectionError)
    except GlideMQConnectionError as error:
        raise StagedWriteError(write.id, write.home.name, "unknown", str(error)) from error
    except GlideMQError as error:
        if not isinstance(error, StagedWriteError):
            error.add_note(f"write {write.id!r}: {_AFTER_AN_ERROR['atomic']}")
        raise
    pieces = sum(pieces for each in _winners(messages).values() for _, pieces in each)
    try:
        published = _persist(options, lambda: _publish(options, write, pieces), GlideMQError)
    except GlideMQError as error:
        raise StagedWriteError(write.id, write.home.name, "decided", _cause(error)) from error
    if not decided_here:
        _report_repetition(options, write)
    return published if decided_here else Published(0, 0)


def _decide(options: WriteOptions, write: WriteId, messages: Sequence[Written | None], overwrite: bool) -> bool:
    transport = transport_of(options.place)
    if not any(message is not None and message.over for message in messages):
        check = partial(_check_layouts, options, write, messages)
        winners, facts = _winners(messages), facts_of(messages)
        if overwrite:
            return run_blocking(transport, staging.overwrite(write, winners, facts, check))
        check()
        return run_blocking(transport, decide_write(write, winners, facts))
    state = transport.call(staging.open_write(write, create=False)).state
    if state not in ENDED:
        raise StagedWriteError(write.id, write.home.name, state)
    return False


def _publish(options: WriteOptions, write: WriteId, pieces: int) -> Published:
    transport = transport_of(options.place)
    if pieces < _MANY_PIECES:
        return run_blocking(transport, publish_write(write))
    # A second connection keeps the server busy between two pieces. Each piece is published once, by any writer.
    counts: dict[str, Published] = {}
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(_publish_beside, options, write, counts)
        run_blocking(transport, staging.publish_queues(write, counts))
        beside.result()
    return staging.total(counts)


def _report_repetition(options: WriteOptions, write: WriteId) -> None:
    """Report that another save of the same id, or an earlier try of the same micro-batch, decided the write."""
    error = StagedWriteError(write.id, write.home.name, "repeated")
    _report_now(options, write, {}, facts_of(()), repeated=True)
    if write.query:
        _log.info("%s", error)  # the batch of a restarted query
        return
    if options.write_id is not None and options.on_repeat == "fail":
        raise error
    if options.write_id is not None and options.on_repeat == "warn":
        _log.warning("%s", error)


def _report_now(
    options: WriteOptions, write: WriteId, counts: dict[str, tuple[int, int]], facts: str, *, repeated: bool = False
) -> None:
    """Store a report; the save has succeeded, so a failure is only logged."""
    try:
        transport_of(options.place).call(staging.add_report(write, counts, facts, repeated=repeated))
    except GlideMQError as error:
        _log.warning("write %r: its report could not be stored: %s", write.id, error)


def _report_added(options: WriteOptions, write: WriteId, messages: Sequence[Written | None]) -> None:
    """Report a write that added its jobs while its tasks ran."""
    counts: dict[str, tuple[int, int]] = {}
    found = [message for message in messages if message is not None]
    for message in found:
        for queue, (jobs, others) in message.counts.items():
            jobs_before, others_before = counts.get(queue, (0, 0))
            counts[queue] = jobs_before + jobs, others_before + others
    published = Published(sum(jobs for jobs, _ in counts.values()), sum(others for _, others in counts.values()))
    counts = by_whole_queue(counts)
    _log_published(options, published)
    _report_now(options, write, counts, facts_of(messages))


def _abort(options: WriteOptions, write: WriteId) -> None:
    """Abort a write; if it is already decided, try to publish it.

    The outcome is logged with the id of the write: the error that Spark raises contains no id if a process was killed,
    or if the rows could not be evaluated.
    """
    try:
        transport = transport_of(options.place)
        if run_blocking(transport, undo_write(write)):
            outcome = "a restarted query writes its rows" if write.query else _AFTER_A_FAILURE["atomic"]
            _log.warning("write %r in queue %r: failed, and was aborted; %s", write.id, write.home.name, outcome)
            return
    except GlideMQError as error:
        if not isinstance(error, StagedWriteError):
            error.add_note(f"write {write.id!r}: {_NOT_ABORTED}")
        raise
    try:
        run_blocking(transport, publish_write(write))
    except GlideMQError as error:
        _log.warning("%s", StagedWriteError(write.id, write.home.name, "decided", _cause(error)))
    else:
        _log.warning("write %r in queue %r: %s", write.id, write.home.name, _COMPLETED)


def _publish_beside(options: WriteOptions, write: WriteId, counts: dict[str, Published]) -> None:
    try:
        run_blocking(transport_of(options.place, 1), staging.publish_queues(write, counts, backward=True))
    except GlideMQError as error:
        _log.debug("write %s: second publishing connection failed: %s", write.id, error)  # the first raises its errors


def _log_published(options: WriteOptions, published: Published) -> None:
    _log.info("queue %r: added %d jobs, skipped %d rows", options.keys.name, published.jobs, published.others)


class FrameWriter(DataSourceArrowWriter):
    """Writes one DataFrame.

    Args:
        options: options of the write.
        plan: assignment of the columns.
        overwrite: whether to delete the waiting jobs first.

    Raises:
        GlideMQError: before any task starts, if the server cannot be reached or its configuration is rejected.
    """

    def __init__(self, options: WriteOptions, plan: WritePlan, overwrite: bool = False) -> None:
        self._options = options
        self._plan = plan
        self._overwrite = overwrite
        self._write = WriteId(
            id=options.write_id or secrets.token_hex(16),
            home=options.keys,
            ttl=options.staging_ttl,
            keep=options.remember,
            driver=secrets.token_hex(8),
        )
        try:
            state = self._begin()
        except GlideMQError as error:
            if not isinstance(error, StagedWriteError):
                error.add_note(f"write {self._write.id!r}: this save did not start, and added nothing")
            raise
        if state in ENDED and options.on_repeat == "fail":
            _report_now(options, self._write, {}, facts_of(()), repeated=True)
            raise StagedWriteError(self._write.id, options.keys.name, "repeated")

    def _begin(self) -> str:
        """Return the state of the write; '' unless it is staged."""
        transport = transport_of(self._options.place, check=True)
        (self._layout,) = agreed_layouts_of(transport, [self._options.keys])
        _finish_others(self._options)
        return self._open(transport) if self._options.guarantee == "atomic" else ""

    def _open(self, transport: BlockingTransport) -> str:
        write = self._write
        try:
            return transport.call(staging.open_write(write, create=True)).state
        except GlideMQError as error:
            # A full server begins no write, but the write may have been decided by an earlier save.
            state = {"committed": "decided", "done": "repeated"}.get(_state_of(self._options, write), "")
            if state:
                raise StagedWriteError(write.id, write.home.name, state, _cause(error)) from error
            raise

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of one task."""
        return _run_task(self._options, self._plan, self._write, iterator, self._layout)

    def commit(self, messages: list[Written | None]) -> None:
        """Commit the write after all tasks succeeded."""
        if self._options.guarantee == "atomic":
            _log_published(self._options, _end(self._options, self._write, messages, overwrite=self._overwrite))
        else:
            _report_added(self._options, self._write, messages)

    def abort(self, messages: list[Written | None]) -> None:
        """Abort the write after a task or `commit` failed; a decided write is still published."""
        if self._options.guarantee == "atomic":
            _abort(self._options, self._write)
        else:
            outcome = _AFTER_A_FAILURE[self._options.guarantee]
            _log.warning("write %r in queue %r: failed; %s", self._write.id, self._options.keys.name, outcome)


def _finish_others(options: WriteOptions) -> None:
    """Finish abandoned writes of the queue; an obstacle to them is none to this write."""
    try:
        run_blocking(transport_of(options.place), finish_writes(options.keys, _LEFT_MS))
    except GlideMQConnectionError:
        raise
    except GlideMQError as error:
        _log.warning("queue %r: an abandoned write could not be finished: %s", options.keys.name, _cause(error))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query, each once."""

    def __init__(self, options: WriteOptions, plan: WritePlan) -> None:
        self._options = options
        self._plan = plan
        self._driver = secrets.token_hex(8)
        # Fail now if the server is unreachable.
        transport = transport_of(options.place, check=True)
        (self._layout,) = agreed_layouts_of(transport, [options.keys])
        transport.call(staging.writes(options.keys.meta))

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of one task of a micro-batch."""
        return _run_task(self._options, self._plan, None, iterator, self._layout, driver=self._driver)

    def commit(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        """Commit the micro-batch after all its tasks succeeded."""
        write = self._write_of(messages)
        if write is None:
            return
        if self._options.guarantee == "atomic":
            _log_published(self._options, _end(self._options, write, messages))
        else:
            _report_added(self._options, write, messages)

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
