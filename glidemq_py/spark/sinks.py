"""Where a task's rows go: by guarantee, through the same calls as every other add. Bounded in rows and bytes a call."""

from __future__ import annotations

import secrets
from typing import Final, Protocol

from glidemq_py.client.transport import BlockingTransport
from glidemq_py.errors import ColumnError, StagedWriteError
from glidemq_py.spark.api import TaskFacts
from glidemq_py.spark.write_options import WriteOptions
from glidemq_py.wire.calls import staging
from glidemq_py.wire.calls.adding import Row, add
from glidemq_py.wire.calls.staging import WriteId
from glidemq_py.wire.keys import QueueKeys

__all__ = ["Batches", "Sink", "WriteOver", "make_sink"]

_ENDED: Final = ("committed", "done")


class WriteOver(Exception):  # noqa: N818  # a signal is no error
    """The write has been decided without this task: nothing of it is needed any more."""


class Sink(Protocol):
    """Takes a task's batches."""

    @property
    def pieces(self) -> dict[str, int]:
        """Queue -> pieces staged there."""
        ...

    @property
    def added(self) -> int:
        """Jobs added so far."""
        ...

    def send(self, queue: str, rows: list[Row]) -> None:
        """Send one batch. Raises GlideMQError; WriteOver where the write needs nothing more."""
        ...


class _Sink:
    def __init__(self, transport: BlockingTransport, options: WriteOptions, task: TaskFacts) -> None:
        self._transport = transport
        self._options = options
        self._task = task
        self._keys: dict[str, QueueKeys] = {options.keys.name: options.keys}
        self.pieces: dict[str, int] = {}
        self.added = 0

    def _keys_of(self, queue: str) -> QueueKeys:
        keys = self._keys.get(queue)
        if keys is None:
            keys = self._keys[queue] = QueueKeys(self._options.keys.prefix, queue)
        return keys


class AppendSink(_Sink):
    """Each batch is added at once; a task that is run again adds its rows again."""

    def send(self, queue: str, rows: list[Row]) -> None:
        """Add the batch."""
        results = self._transport.call(add(self._keys_of(queue).meta, rows, self._options.quiet)).results
        self.added += sum(type(result) is str or result[0] == "replaced" for result in results)


class OnceSink(_Sink):
    """Each batch is added at once, and by its number only once, however often its task is run."""

    def __init__(self, transport: BlockingTransport, options: WriteOptions, task: TaskFacts, write: WriteId) -> None:
        super().__init__(transport, options, task)
        self._write = write
        self._numbers: dict[str, int] = {}

    def send(self, queue: str, rows: list[Row]) -> None:
        """Add the batch, if it has not been."""
        number = self._numbers.get(queue, 0)
        blob = staging.piece(rows, self._options.quiet)
        call = staging.add_once(self._keys_of(queue), self._write, str(self._task.partition), number, blob)
        reply = self._transport.call(call)
        if reply.status == "gap":
            raise StagedWriteError(self._write.id, queue, "gap")
        self._numbers[queue] = number + 1
        self.added += reply.jobs


class StagedSink(_Sink):
    """Each batch is put down; the driver decides."""

    def __init__(self, transport: BlockingTransport, options: WriteOptions, task: TaskFacts, write: WriteId) -> None:
        super().__init__(transport, options, task)
        self._write = write
        # Attempts are counted from zero again in an application that was restarted, so a random part is needed.
        self.attempt = f"{task.partition}.{task.attempt}.{secrets.token_hex(6)}"

    def begin(self, create: bool, queue: str = "") -> None:
        """Ask whether the write still takes anything, and tell its home of a further queue."""
        state = self._transport.call(staging.open_write(self._write, create=create, queue=queue))
        if state in _ENDED:
            raise WriteOver
        if state != "open":
            raise StagedWriteError(self._write.id, self._write.home.name, state)

    def send(self, queue: str, rows: list[Row]) -> None:
        """Put the batch down."""
        keys, seq = self._keys_of(queue), self.pieces.get(queue, 0)
        if seq == 0 and keys != self._write.home:
            self.begin(False, queue)
        blob, unique = staging.piece(rows, self._options.quiet), self._options.unique
        reply = self._transport.call(staging.stage(self._write, keys, self.attempt, seq, blob, unique))
        if reply.state == "duplicate":
            raise ColumnError("jobId", reply.id, f"is {reply.id!r}, and queue {queue!r} has a job of this id already")
        if reply.state in _ENDED:
            raise WriteOver
        if reply.state != "open":
            raise StagedWriteError(self._write.id, queue, reply.state)
        self.pieces[queue] = seq + 1


def _size(row: Row) -> int:
    return len(row[1]) + len(row[2])  # type: ignore[arg-type]  # texts: data, options


class Batches:
    """Collects rows by queue, and sends a queue's batch when it is full."""

    def __init__(self, sink: Sink, options: WriteOptions) -> None:
        self._sink = sink
        self._home = options.keys.name
        self._rows_max = options.batch_size
        self._bytes_max = options.max_batch_bytes
        self._waiting: dict[str, list[Row]] = {}
        self._largest: dict[str, int] = {}
        self.rows = 0

    def put(self, queue: str | None, rows: list[Row]) -> None:
        """Rows of one queue. How they fall into batches follows from the rows alone, not from how they come here."""
        name = queue or self._home
        waiting = self._waiting.setdefault(name, [])
        sizes = list(map(_size, rows))
        if self._largest.get(name, 0) < (largest := max(sizes, default=0)):
            self._largest[name] = largest
        if self._largest[name] * self._rows_max <= self._bytes_max:
            # No batch can become too large in bytes: only rows count.
            waiting += rows
            full = len(waiting) // self._rows_max * self._rows_max
            for i in range(0, full, self._rows_max):
                self._send(name, waiting[i : i + self._rows_max])
            self._waiting[name] = waiting[full:]
            return
        self._put_by_bytes(name, rows, sizes)

    def _put_by_bytes(self, name: str, rows: list[Row], sizes: list[int]) -> None:
        waiting = self._waiting[name]
        filled = sum(map(_size, waiting))
        for row, size in zip(rows, sizes, strict=True):
            if waiting and (filled + size > self._bytes_max or len(waiting) >= self._rows_max):
                self._send(name, waiting)
                waiting, filled = [], 0
            waiting.append(row)
            filled += size
        if len(waiting) >= self._rows_max:
            self._send(name, waiting)
            waiting = []
        self._waiting[name] = waiting

    def end(self) -> None:
        """Send what is left."""
        for name, rows in self._waiting.items():
            if rows:
                self._send(name, rows)

    def _send(self, name: str, rows: list[Row]) -> None:
        self.rows += len(rows)
        self._sink.send(name, rows)


def make_sink(
    transport: BlockingTransport, options: WriteOptions, task: TaskFacts, write: WriteId | None
) -> AppendSink | OnceSink | StagedSink:
    """The sink of the write's guarantee."""
    if write is None or options.guarantee == "append":
        return AppendSink(transport, options, task)
    kind = OnceSink if options.guarantee == "task" else StagedSink
    return kind(transport, options, task, write)
