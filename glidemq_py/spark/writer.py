"""Writing frames, and the micro-batches of streams: what runs on the driver, and what runs in each task.

One writer is made on the driver for each save; the same, pickled, writes in every task, and commits or aborts. A stream
has a new one for each phase of each micro-batch, so what they must share goes through the messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from glidemq_py._core.logs import get_logger
from glidemq_py._features.staged_writes import calls as staging
from glidemq_py._features.staged_writes.calls import Winner, WriteId
from glidemq_py._features.staged_writes.resolve import (
    Published,
    abort_write,
    decide_write,
    finish_writes,
    publish_write,
    run_blocking,
)
from glidemq_py.errors import GlideMQError
from glidemq_py.spark.api import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage, task_context
from glidemq_py.spark.connection import forget, transport_of
from glidemq_py.spark.encoding import RowEncoder
from glidemq_py.spark.replacing import drain_first
from glidemq_py.spark.sinks import Batches, StagedSink, WriteOver, make_sink
from glidemq_py.spark.write_options import WriteOptions
from glidemq_py.spark.write_schema import WritePlan

__all__ = ["FrameWriter", "StreamWriter", "Written"]

_log = get_logger(__name__)

_LEFT_MS = 1_000
_MANY_PIECES = 20


@dataclass
class Written(WriterCommitMessage):
    """What a task has done.

    Attributes:
        rows: rows read.
        added: jobs that were added at once.
        attempt: its name among the write's attempts.
        pieces: queue -> pieces staged there.
        over: the write had been decided before.
        query, batch: of a stream.
    """

    rows: int = 0
    added: int = 0
    attempt: str = ""
    pieces: dict[str, int] = field(default_factory=dict[str, int])
    over: bool = False
    query: str = ""
    batch: int = -1


def _run_task(
    options: WriteOptions, plan: WritePlan, write: WriteId | None, batches: Iterator[Any], *, create: bool
) -> Written:
    """The share of one task of a frame, or where ``write`` is None of a micro-batch, which has its name from Spark.

    A frame that is written within `foreachBatch` runs in a query too, and goes by its own name all the same.
    """
    task = task_context()
    if write is None:
        write = WriteId.of_batch(options.keys, task.query, task.batch, options.staging_ttl, options.remember)
    message = Written(query=task.query, batch=task.batch)
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
            for _ in batches:  # Spark wants its rows taken
                pass
    except GlideMQError:
        forget(options.place)
        raise
    message.rows, message.added, message.pieces = collected.rows, sink.added, sink.pieces
    return message


def _winners(messages: Sequence[Written | None]) -> dict[str, list[Winner]]:
    winners: dict[str, list[Winner]] = {}
    for message in messages:
        if message is not None:
            for queue, pieces in message.pieces.items():
                winners.setdefault(queue, []).append((message.attempt, pieces))
    return winners


def _end(options: WriteOptions, write: WriteId, messages: Sequence[Written | None]) -> Published:
    """Commit a staged write; one that had been decided before is published to its end."""
    transport, winners = transport_of(options.place), _winners(messages)
    if not any(message is not None and message.over for message in messages):
        run_blocking(transport, decide_write(write, winners))
    if sum(pieces for each in winners.values() for _, pieces in each) < _MANY_PIECES:
        return run_blocking(transport, publish_write(write))
    # A second lane, so that the server does not wait for us between two pieces. Whoever publishes, it counts once.
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(_publish_beside, options, write)
        return max(run_blocking(transport, publish_write(write)), beside.result())


def _publish_beside(options: WriteOptions, write: WriteId) -> Published:
    try:
        return run_blocking(transport_of(options.place, 1), publish_write(write))
    except GlideMQError as error:
        _log.debug("the second lane of write %s: %s", write.id, error)  # the first one tells of what matters
        return Published(0, 0)


def _tell(options: WriteOptions, published: Published) -> None:
    _log.info("queue %r: added %d jobs, skipped %d rows", options.keys.name, published.jobs, published.others)


class FrameWriter(DataSourceArrowWriter):
    """Writes one frame.

    Args:
        options: of the write.
        plan: what its columns are.
        replace: the jobs that wait are deleted before the frame's are there.

    Raises:
        GlideMQError: the server cannot be reached, or is not to be used so: before any task starts.
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
        )
        transport = transport_of(options.place)
        run_blocking(transport, finish_writes(options.keys, _LEFT_MS))
        if options.guarantee == "atomic":
            state = transport.call(staging.open_write(self._write, create=True))
            if state == "committed":
                run_blocking(transport, publish_write(self._write))

    def write(self, iterator: Iterator[Any]) -> Written:
        """One task's share."""
        return _run_task(self._options, self._plan, self._write, iterator, create=False)

    def commit(self, messages: list[Written | None]) -> None:
        """All tasks have done their share."""
        if self._options.guarantee == "atomic":
            if self._replace:
                run_blocking(transport_of(self._options.place), drain_first(self._write, _winners(messages)))
            _tell(self._options, _end(self._options, self._write, messages))
        else:
            _tell(self._options, Published(sum(message.added for message in messages if message is not None), 0))

    def abort(self, messages: list[Written | None]) -> None:
        """A task failed for good, or `commit` did: what was decided is published all the same."""
        if self._options.guarantee == "atomic":
            run_blocking(transport_of(self._options.place), abort_write(self._write))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query, each once."""

    def __init__(self, options: WriteOptions, plan: WritePlan) -> None:
        self._options = options
        self._plan = plan
        transport_of(options.place).call(staging.writes(options.keys))  # a server that is not there is told of at once

    def write(self, iterator: Iterator[Any]) -> Written:
        """One task's share of a micro-batch."""
        return _run_task(self._options, self._plan, None, iterator, create=True)

    def commit(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        """All tasks of the micro-batch have done their share."""
        write = self._write_of(messages)
        if write is not None and self._options.guarantee == "atomic":
            _tell(self._options, _end(self._options, write, messages))

    def abort(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803  # PySpark's name
        """The micro-batch has failed, and will come again under its number. What no message tells of runs out."""
        write = self._write_of(messages)
        if write is not None and self._options.guarantee == "atomic":
            run_blocking(transport_of(self._options.place), abort_write(write))

    def _write_of(self, messages: Sequence[Written | None]) -> WriteId | None:
        options = self._options
        for message in messages:
            if message is not None and message.query:
                return WriteId.of_batch(
                    options.keys, message.query, message.batch, options.staging_ttl, options.remember
                )
        return None
