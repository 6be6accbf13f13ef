"""Sinks send the rows of a task to the server, one class per guarantee; calls are bounded in rows and bytes."""

from __future__ import annotations

import secrets
import time
from typing import Final, Protocol

from glidemq_py._client.transport import BlockingTransport
from glidemq_py._core.calls.adding import AddedOther, add_packed, packed_request
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features import staged_writes as staging
from glidemq_py._features.staged_writes import WriteId
from glidemq_py.errors import ColumnError, StagedWriteError
from glidemq_py.spark.api import TaskFacts
from glidemq_py.spark.encoding import PackedRows
from glidemq_py.spark.options import WriteOptions

__all__ = ["ENDED", "Batches", "Sink", "StagedSink", "WriteOver", "make_sink"]

ENDED: Final = ("committed", "done")
_monotonic = time.monotonic


class WriteOver(Exception):  # noqa: N818  # a signal, not an error
    """Raised when the write was decided without this task; its rows are not needed."""


class Sink(Protocol):
    """Receives the batches of a task."""

    @property
    def pieces(self) -> dict[str, int]:
        """Return the number of staged pieces per queue."""
        ...

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the number of jobs added so far, and of rows that added none, per queue."""
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
        self.counts: dict[str, tuple[int, int]] = {}

    def _keys_of(self, queue: str) -> QueueKeys:
        keys = self._keys.get(queue)
        if keys is None:
            keys = self._keys[queue] = QueueKeys(self._options.keys.prefix, queue)
        return keys

    def _count(self, queue: str, added: int, skipped: int) -> None:
        jobs, others = self.counts.get(queue, (0, 0))
        self.counts[queue] = jobs + added, others + skipped


class AppendSink(_Sink):
    """Adds each batch immediately; a retried task adds its rows again."""

    def send(self, queue: str, request: bytes) -> None:
        """Add the batch."""
        results = self._transport.call(add_packed(self._keys_of(queue).meta, request)).results
        others = [AddedOther(*result) for result in results if not isinstance(result, str)]
        skipped = sum(other.outcome != "replaced" for other in others)
        self._count(queue, len(results) - skipped, skipped)


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
        self._count(queue, reply.jobs, reply.others)


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
        if state in ENDED:
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
        if reply.state in ENDED:
            raise WriteOver
        if reply.state != "open":
            raise StagedWriteError(self._write.id, queue, reply.state)
        self.pieces[queue] = seq + 1


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
