"""Sinks send the rows of a task to the server, one class per guarantee; calls are bounded in rows and bytes."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from glidemq_py._core.calls import Call
from glidemq_py._core.calls.adding import AddedOther, add_packed, packed_request
from glidemq_py._core.keys import QueueKeys, partition_home
from glidemq_py._features import staged_writes as staging
from glidemq_py._features.staged_writes import StageReply, WriteId
from glidemq_py.errors import ColumnError, FairKeyFullError, StagedWriteError
from glidemq_py.spark.api import TaskFacts
from glidemq_py.spark.encoding import PackedRows
from glidemq_py.spark.options import WriteOptions

if TYPE_CHECKING:
    from glidemq_py._client.portal import BlockingTransport

__all__ = ["ENDED", "AppendSink", "Batches", "Request", "Sink", "StagedSink", "WriteOver", "make_sink"]

ENDED: Final = ("committed", "done")


class Together(NamedTuple):
    """When requests are sent: they are sent together."""

    rows: int
    bytes: int
    requests: int


_ADDED: Final = Together(rows=1_000, bytes=192 * 1024, requests=32)
"""About four requests of the default size. The server serves other clients between large ones; it may run small ones,
which arrive in one read, without a pause. So fewer rows are sent together if the replies take long (`_REPLY_S`)."""
_REPLY_S: Final = 0.006
"""How long the replies to a group should take; other clients wait about as long."""
_STAGED: Final = Together(rows=5_000, bytes=2 * 1024 * 1024, requests=128)
"""A staged row costs the server a tenth of an added one."""
_AHEAD: Final = 2
"""Groups of requests that are sent, or about to be, while the next one is collected."""
_monotonic = time.monotonic


class Request(NamedTuple):
    """One batch of rows."""

    queue: str
    """The queue, or the partition."""
    jobs: bytes
    """The rows, packed as for `add`."""
    rows: int
    """The number of the rows."""


class WriteOver(Exception):  # noqa: N818  # a signal, not an error
    """Raised when the write was decided without this task; its rows are not needed."""


class Sink(ABC):
    """Sends the batches of a task in a thread, while Spark evaluates the rows and the next ones are encoded.

    Attributes:
        together: how much is sent together, at least; less if the last replies took long.
        pieces: the number of staged pieces per queue.
        counts: the number of jobs added so far, and of rows that added none, per queue.
    """

    together = _ADDED

    def __init__(self, connect: Callable[[], BlockingTransport], options: WriteOptions, task: TaskFacts) -> None:
        self._thread = ThreadPoolExecutor(1, "glidemq-sink")
        self._connected = self._thread.submit(connect)
        self._sent: deque[tuple[Sequence[Request], Future[list[Any]]]] = deque()
        self._failure: BaseException | None = None
        self._options = options
        self._task = task
        self._keys: dict[str, QueueKeys] = {options.keys.name: options.keys}
        self.pieces: dict[str, int] = {}
        self.counts: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        """Return the sink."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the calls that were sent, of a task that failed."""
        self._thread.shutdown()

    def send(self, requests: Sequence[Request]) -> None:
        """Send batches, after the replies to those sent before; the replies to these are awaited later.

        Raises:
            GlideMQError: if an earlier call failed or one of its jobs was rejected.
            WriteOver: if the write was already decided.
        """
        calls = self._calls(requests)
        while len(self._sent) >= _AHEAD:
            self._receive_next()
        rows = sum(request.rows for request in requests)
        self._sent.append((requests, self._thread.submit(self._call_all, calls, rows)))

    def finish(self) -> None:
        """Wait for the replies to the last batches; errors as for `send`."""
        self._connected.result()
        while self._sent:
            self._receive_next()

    def _call_all(self, calls: list[Call[Any]], rows: int = 0) -> list[Any]:
        if self._failure is not None:
            raise self._failure  # of the group before this one: what follows it is not sent
        try:
            transport, began = self._connected.result(), _monotonic()
            replies = transport.call_all(calls)
        except BaseException as failure:
            self._failure = failure
            raise
        if rows:
            fitting = int(rows * _REPLY_S / max(_monotonic() - began, 1e-6))
            self.together = self.together._replace(rows=min(fitting, type(self).together.rows))
        return replies

    def _receive_next(self) -> None:
        requests, replies = self._sent.popleft()
        for request, reply in zip(requests, replies.result(), strict=True):
            self._receive(request.queue, reply)

    @abstractmethod
    def _calls(self, requests: Sequence[Request]) -> list[Call[Any]]:
        """Return the calls that write the batches."""

    @abstractmethod
    def _receive(self, queue: str, reply: Any) -> None:
        """Check and count the reply to one batch."""

    def _keys_of(self, queue: str) -> QueueKeys:
        keys = self._keys.get(queue)
        if keys is None:
            keys = self._keys[queue] = QueueKeys(self._options.keys.prefix, queue)
        return keys

    def _count(self, queue: str, added: int, skipped: int) -> None:
        jobs, others = self.counts.get(queue, (0, 0))
        self.counts[queue] = jobs + added, others + skipped


class AppendSink(Sink):
    """Adds each batch immediately; a retried task adds its rows again."""

    def _calls(self, requests: Sequence[Request]) -> list[Call[Any]]:
        return [add_packed(self._keys_of(request.queue).meta, request.jobs) for request in requests]

    def _receive(self, queue: str, reply: Any) -> None:
        others = [AddedOther(*result) for result in reply.results if not isinstance(result, str)]
        if any(other.outcome == "backlog" for other in others):
            raise FairKeyFullError
        skipped = sum(other.outcome != "replaced" for other in others)
        self._count(queue, len(reply.results) - skipped, skipped)


class StagedSink(Sink):
    """Stages each batch; the driver commits or aborts."""

    together = _STAGED

    def __init__(
        self, connect: Callable[[], BlockingTransport], options: WriteOptions, task: TaskFacts, write: WriteId
    ) -> None:
        super().__init__(connect, options, task)
        self._write = write
        self._opened: Future[list[Any]] | None = None
        self._registered: dict[str, float] = {}
        # A restarted application counts attempts from zero again, so the name has a random part.
        self.attempt = f"{write.driver}.{task.partition}.{task.attempt}.{secrets.token_hex(6)}"

    def begin(self, create: bool) -> None:
        """Check that the write is open, or open it. The first `send` or `finish` that awaits a reply raises errors."""
        self._opened = self._thread.submit(self._call_all, [staging.open_write(self._write, create=create)])

    def finish(self) -> None:
        """See `Sink.finish`."""
        self._check_begun()
        super().finish()

    def _receive_next(self) -> None:
        self._check_begun()
        super()._receive_next()

    def _check_begun(self) -> None:
        if self._opened is not None:
            opened, self._opened = self._opened, None
            self._check_open(opened.result()[0].state)

    def _check_open(self, state: str) -> None:
        if state in ENDED:
            raise WriteOver
        if state != "open":
            raise StagedWriteError(self._write.id, self._write.home.name, state)

    def _calls(self, requests: Sequence[Request]) -> list[Call[Any]]:
        self._register(dict.fromkeys(request.queue for request in requests))
        calls: list[Call[Any]] = []
        for queue, jobs, _ in requests:
            keys, seq = self._keys_of(queue), self.pieces.get(queue, 0)
            calls.append(staging.stage(self._write, keys, self.attempt, seq, jobs, self._options.unique))
            self.pieces[queue] = seq + 1
        return calls

    def _receive(self, queue: str, reply: StageReply) -> None:
        if reply.state == "duplicate":
            whole = partition_home(queue) or queue
            raise ColumnError("jobId", reply.id, f"is {reply.id!r}: queue {whole!r} already has a job with this id")
        if reply.state in ENDED:
            raise WriteOver
        if reply.state != "open":
            raise StagedWriteError(self._write.id, queue, reply.state)

    def _register(self, queues: Iterable[str]) -> None:
        """Add queues to the write at its home queue, which also extends the life of the write there."""
        now, again = _monotonic(), self._write.ttl / 4_000
        home = self._write.home.name
        due = [name for name in queues if name != home and now >= self._registered.get(name, -again) + again]
        if due:
            self._registered.update(dict.fromkeys(due, now))
            calls = [staging.open_write(self._write, create=False, queue=queue) for queue in due]
            self._check_begun()
            for status in self._connected.result().call_all(calls):
                self._check_open(status.state)


class _Batch:
    """Buffered rows of a queue."""

    __slots__ = ("count", "parts", "size")

    def __init__(self) -> None:
        self.count = self.size = 0
        self.parts: list[bytes] = []


class Batches:
    """Collects rows by queue and sends full batches."""

    def __init__(self, sink: Sink, options: WriteOptions, layouts: Mapping[str, int] | None = None) -> None:
        self._sink = sink
        self._layouts: Mapping[str, int] = {} if layouts is None else layouts
        """Number of the layout by which the rows of each queue or partition were placed, which the server
        compares; none for rows that are staged. Entries are added while rows are placed."""
        self._quiet = options.quiet
        self._rows_max = options.batch_size
        self._bytes_max = options.max_batch_bytes
        self._waiting: dict[str, _Batch] = {}
        self._full: list[Request] = []
        self._few = 1
        """Requests that are sent together at first, so that the server has work soon; doubles each time."""
        self._full_bytes = self._full_rows = 0
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

    def flush(self) -> None:
        """Send the full batches."""
        if self._full:
            self._sink.send(self._full)
            self._full, self._full_bytes, self._full_rows = [], 0, 0

    def end(self) -> None:
        """Send all batches, and wait for the replies."""
        for queue, batch in self._waiting.items():
            if batch.count:
                self._send(queue, batch)
        self.flush()
        self._sink.finish()

    def _send(self, queue: str, batch: _Batch) -> None:
        self.rows += batch.count
        self.bytes += batch.size
        jobs = packed_request(batch.count, batch.parts, self._quiet, self._layouts.get(queue))
        self._full.append(Request(queue, jobs, batch.count))
        self._full_bytes += batch.size
        self._full_rows += batch.count
        size = Together(self._full_rows, self._full_bytes, len(self._full))
        few = len(self._full) >= self._few
        if few or any(have >= limit for have, limit in zip(size, self._sink.together, strict=True)):
            self._few = min(2 * self._few, self._sink.together.requests)
            self.flush()


def make_sink(
    connect: Callable[[], BlockingTransport], options: WriteOptions, task: TaskFacts, write: WriteId | None
) -> AppendSink | StagedSink:
    """Return the sink for the write's guarantee, which connects in a thread of its own."""
    if write is None or options.guarantee == "append":
        return AppendSink(connect, options, task)
    return StagedSink(connect, options, task, write)
