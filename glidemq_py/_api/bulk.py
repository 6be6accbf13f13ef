"""Adding many jobs in few calls: bulk adds, and the coalescer (group commit) of single adds.

All jobs of a bulk are validated and encoded first, then sent in sequential chunks. A chunk is atomic, and small enough
not to block the server. The next chunk is packed while one is in flight. There is never more than one in flight: GLIDE
does not keep the order of concurrent commands, and jobs must keep theirs.

A single add is sent immediately if no other is in flight. Adds that arrive while one is in flight wait for its reply
and are then sent together, limited in rows and characters. There is no timer, so a single add is never delayed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from glidemq_py._core.calls import Call
from glidemq_py._core.calls.adding import DATA, AddCall, Added, AddReply, Row, add, encode_row
from glidemq_py._core.checks import check_iterable, name_within
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.job_states import ADDED_OUTCOMES, JobOutcome
from glidemq_py._core.layout_errors import JobMovedError, LayoutChangedError
from glidemq_py._core.queue_options import JobSpec
from glidemq_py._features.dependencies.dependencies import (
    RemoteDependencies,
    add_order,
    check_dependencies,
    register_dependents,
    remote_dependencies,
)
from glidemq_py._features.flows.adding import attach_children, check_remote_parents, invalid_parent, remote_parents
from glidemq_py._features.flows.parent_option import JobRef
from glidemq_py._features.flows.references import placed_options
from glidemq_py._job.job import Job
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import (
    AmbiguousResultError,
    BulkAddError,
    ClosedError,
    FairKeyFullError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    JobCostError,
    JobNotFoundError,
    JobStateError,
)

__all__ = [
    "AddCoalescer",
    "AddTransport",
    "BulkAdd",
    "added_job",
    "pair_of",
    "spec_of",
]

MAX_ROWS = 256
MAX_CHARS = 512 * 1024


_Waiting = tuple[Sequence[Row], "asyncio.Future[tuple[int, list[Any]]]"]
"""Rows to add together, and their results."""


class AddTransport(Protocol):
    """The part of a `Transport` that adders use."""

    async def call(self, call: Call[AddReply], /) -> AddReply:
        """See `Transport.call`."""
        ...


class AddCoalescer:
    """Sends rows of one queue from the running event loop.

    Args:
        transport: The queue's transport.
        meta: The queue's declared key.
        quiet: If True, no `added` events are written.
        add_call: Builds the server calls.
        gather: Let callers that add again at once share the next call, instead of sending the first row alone. Faster
            only for calls that wait for a disk: otherwise the server works while the other rows are prepared.
    """

    __slots__ = (
        "_add_call",
        "_begin",
        "_gather",
        "_idle",
        "_in_flight",
        "_meta",
        "_quiet",
        "_sender",
        "_transport",
        "_waiting",
        "loop",
    )

    def __init__(
        self, transport: AddTransport, meta: str, quiet: bool, add_call: AddCall = add, gather: bool = False
    ) -> None:
        self._transport = transport
        self._meta = meta
        self._quiet = quiet
        self._add_call = add_call
        self._gather = gather
        self._begin: Callable[..., bool] | None = getattr(transport, "begin", None)
        """`AsyncTransport.begin`, which sends a call without a task; None if the transport has none."""
        self.loop = asyncio.get_running_loop()
        self._in_flight = False
        self._waiting: deque[_Waiting] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """True while a call is in flight: further rows are sent together when its reply has come."""
        return self._in_flight

    async def add(self, row: Row) -> Added:
        """Add one row; see `start`. A lone one takes the shortest way."""
        if self._in_flight or self._gather:
            now, (result,) = await self.start((row,))
            return now, result
        self._in_flight = True
        try:
            reply = await self._transport.call(self._add_call(self._meta, (row,), self._quiet))
        finally:
            if self._waiting:
                self._send_waiting()
            else:
                self._in_flight = False
                if self._idle is not None:
                    self._rest()
        return reply.now, reply.results[0]

    def start(self, rows: Sequence[Row]) -> asyncio.Future[tuple[int, list[Any]]]:
        """Add rows in one call: all, or none.

        If the future is cancelled, its rows are not sent if they are still pending; others are not affected.

        Returns:
            A future of the server time of the add in epoch ms, and the result of each row. It raises the errors of
            `Transport.call`, such as AmbiguousResultError if the reply was lost: the rows may have been added.
        """
        future: asyncio.Future[tuple[int, list[Any]]] = self.loop.create_future()
        if self._in_flight:
            self._waiting.append((rows, future))
        else:
            self._in_flight = True
            self._send([(rows, future)])
        return future

    def _send(self, batch: list[_Waiting]) -> None:
        sent = batch[0][0] if len(batch) == 1 else [row for rows, _ in batch for row in rows]
        try:
            call = self._add_call(self._meta, sent, self._quiet)
            if self._begin is not None and self._begin(call, partial(self._replied, batch)):
                return
        except Exception as error:  # it cannot be sent
            self._replied(batch, None, error)
            return
        self._sender = asyncio.create_task(self._call(call, batch), name="glidemq-adds")
        self._sender.add_done_callback(partial(self._sender_ended, batch))

    async def _call(self, call: Call[AddReply], batch: list[_Waiting]) -> None:
        try:
            reply = await self._transport.call(call)
        except Exception as error:
            self._replied(batch, None, error)
        except BaseException:
            lost = AmbiguousResultError("cancelled before the reply arrived; the job may have been added")
            self._replied(batch, None, lost, is_last=True)
            raise
        else:
            self._replied(batch, reply, None)

    def _replied(
        self, batch: list[_Waiting], reply: AddReply | None, error: Exception | None, *, is_last: bool = False
    ) -> None:  # fmt: skip
        """Send the rows that wait, and pass the results of a call on."""
        if not is_last and not self._gather:
            self._send_waiting()
        done = 0
        for rows, future in batch:
            if future.done():
                pass
            elif reply is None:
                future.set_exception(error or ClosedError("the connection was closed"))
            else:
                future.set_result((reply.now, reply.results[done : done + len(rows)]))
            done += len(rows)
        if not is_last and self._gather:
            self.loop.call_soon(self._send_waiting)  # the callers resume first, and add their next rows

    def _send_waiting(self) -> None:
        batch = self._next_batch()
        if batch:
            self._send(batch)
        else:
            self._rest()

    def _sender_ended(self, batch: list[_Waiting], sender: asyncio.Task[None]) -> None:
        # A task cancelled before its first step does not run its `except`.
        if not sender.cancelled() and sender.exception() is None:
            return
        waiting = [*batch, *self._waiting]
        self._waiting.clear()
        for _, future in waiting:
            if not future.done():
                future.set_exception(ClosedError("the event loop is shutting down; the job was not added"))
        self._rest()

    def _rest(self) -> None:
        self._in_flight = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        count = chars = 0
        while self._waiting:
            rows, future = self._waiting[0]
            if batch and not future.done() and (count + len(rows) > MAX_ROWS or chars >= MAX_CHARS):
                break
            self._waiting.popleft()
            if not future.done():
                batch.append((rows, future))
                count += len(rows)
                for row in rows:
                    chars += len(row[DATA])  # type: ignore[arg-type]
        return batch

    async def close(self) -> None:
        """Wait until all pending adds have been answered."""
        if self._in_flight:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)


def added_job(link: QueueLink, name: str, data: Any, options: JobOptions, now: int, result: Any) -> Job[Any, Any]:
    """Return the job of a row's result.

    Raises:
        JobCostError: If the job was rejected because of its ``cost``.
        FairKeyFullError: If the fair key of the job has its maximum backlog.
        JobNotFoundError: If its parent, or a job that it depends on, does not exist.
        JobStateError: If its parent has already ended.
        JobMovedError: If it belongs to another partition.
    """
    if type(result) is str:
        job: Job[Any, Any] = Job(link, result, name)
        job.timestamp = now
    else:
        outcome, job_id = result
        if outcome == "cost":
            raise JobCostError(options.cost, options.ordering.key if options.ordering else None)
        if outcome == "backlog":
            raise FairKeyFullError(options.fair_key, int(job_id))
        if outcome == "parent":
            assert options.parent is not None
            raise invalid_parent(options.parent, job_id)
        if outcome == "dependency":
            is_given = link.partition is None or any(ref.id == job_id for ref in options.depends_on or ())
            shown = job_id if is_given or link.partition is None else link.partition.id_of(job_id)
            raise JobNotFoundError(shown, f"in queue {link.queue_name!r} (depends_on)")
        if outcome == "moved":
            raise JobMovedError(name)
        job = Job(link, job_id, name)
        job.outcome = JobOutcome(outcome)
        if job.outcome in ADDED_OUTCOMES:
            job.timestamp = now
    job._data = data
    if options is NO_OPTIONS:
        return job
    if job.outcome is JobOutcome.ADDED or job.outcome in ADDED_OUTCOMES:
        job._given = options
        job._delay = options.delay or 0
    if options.priority or options.rank:
        job.priority, job._rank = options.placed_priority, options.placed_rank
    return job


CHUNK_ROWS = 250
CHUNK_CHARS = 512 * 1024


def spec_of(job: object, position: int, defaults: JobOptions) -> tuple[str, Any, JobOptions]:
    """Return name, data and options of one job of a bulk.

    Raises:
        GlideMQValidationError: If it is invalid; the option names its position (``jobs[3].delay``).
    """
    where = f"jobs[{position}]"
    try:
        spec = JobSpec.parse(job, where)
        return spec.name, spec.data, JobOptions.of_job(defaults, spec.options)
    except GlideMQValidationError as error:
        name_within(error, where)
        raise


class BulkAdd:
    """One bulk add.

    Args:
        link: The queue's link.
        jobs: `JobSpec` objects or tuples (name, data, options).
        defaults: The queue's default job options.
        quiet: If True, no `added` events are written.
        add_call: Builds the server calls.
        before_chunk: Awaited before each chunk.

    Raises:
        GlideMQValidationError: If a job is invalid. The option names its position; nothing was sent.
    """

    def __init__(
        self, link: QueueLink, jobs: Iterable[Any], defaults: JobOptions, quiet: bool, add_call: AddCall = add,
        before_chunk: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        self._link = link
        self._quiet = quiet
        self._add_call = add_call
        self._before_chunk = before_chunk
        self._names: list[str] = []
        self._data: list[Any] = []
        self._options: list[JobOptions] = []
        self.rows: list[Row] = []
        """The encoded jobs."""
        self.order: list[int] | None = None
        """Positions of the jobs in the order of sending, if dependencies within the bulk require another one."""
        self._have_parents = False
        self._have_dependencies = False
        self._read(jobs, defaults)
        if self._have_dependencies:
            self._sort()
        self._results: list[Any] = [None] * len(self.rows)
        self._connection_error: BaseException | None = None
        self._rejection: GlideMQError | None = None
        self._missing: dict[str, JobNotFoundError] = {}
        self._remote_parents: dict[JobRef, list[int]] = {}
        self._remote_dependencies: list[RemoteDependencies] = []

    def _read(self, jobs: Iterable[Any], defaults: JobOptions) -> None:
        """Validate and encode all jobs, with a fast path for (name, data) tuples whose name was validated before."""
        link, known = self._link, set[str]()
        names, data, chosen, rows = self._names, self._data, self._options, self.rows
        for i, job in enumerate(check_iterable("jobs", jobs, "jobs")):
            pair = pair_of(job)
            name, value = pair or (None, None)
            if type(name) is str and name in known:
                options = defaults
            else:
                name, value, options = spec_of(job, i, defaults)
                known.add(name)
                if options.parent is not None:
                    self._have_parents = True
                if options.depends_on is not None:
                    self._have_dependencies = True
            try:
                rows.append(encode_row(link, name, value, options))
            except GlideMQValidationError:
                encode_row(link, name, value, options, f"jobs[{i}].data")  # raises again, with the position
                raise
            names.append(name)
            data.append(value)
            chosen.append(options)

    def _sort(self) -> None:
        """Put dependencies before the jobs that wait for them."""
        order = self.order = add_order(self._link, self._options)
        if order is not None:
            self._names = [self._names[i] for i in order]
            self._data = [self._data[i] for i in order]
            self._options = [self._options[i] for i in order]
            self.rows = [self.rows[i] for i in order]

    async def _place(self) -> None:
        """Find the queues of parents and dependencies, of which partitions are some, and check that the jobs exist."""
        link, given = self._link, self._options
        placed = await placed_options(link, given, {each.job_id for each in given if each.job_id})
        for i, options in enumerate(placed):
            if options is not given[i]:
                self.rows[i] = encode_row(link, self._names[i], self._data[i], options)
        if self._have_parents:
            self._remote_parents = remote_parents(link, placed)
            await check_remote_parents(link, self._remote_parents)
        if self._have_dependencies:
            self._remote_dependencies = [remote_dependencies(link, each) for each in placed]
            await check_dependencies(link, self._remote_dependencies)

    def _in_given_order(self, results: list[Any]) -> list[Any]:
        if self.order is None:
            return results
        given: list[Any] = [None] * len(results)
        for i, result in zip(self.order, results, strict=True):
            given[i] = result
        return given

    def _chunks(self) -> Iterator[tuple[int, list[Row]]]:
        start = chars = 0
        for i, row in enumerate(self.rows):
            if i > start and (i - start >= CHUNK_ROWS or chars >= CHUNK_CHARS):
                yield start, self.rows[start:i]
                start, chars = i, 0
            chars += len(row[DATA])  # type: ignore[arg-type]
        if start < len(self.rows):
            yield start, self.rows[start:]

    async def run(self) -> list[Job[Any, Any]]:
        """Send all jobs and return them in order.

        Raises:
            BulkAddError: If some jobs were not added, or may not have been.
        """
        in_flight: Awaitable[AddReply | None] | None = None
        first = 0
        if self._have_parents or self._have_dependencies:
            await self._place()
        for start, rows in self._chunks():
            if self._before_chunk is not None:
                await self._before_chunk()
            call = self._add_call(self._link.keys.meta, rows, self._quiet)
            reply = None if in_flight is None else await in_flight
            if self._connection_error is not None:
                break
            if len(self.rows) == len(rows):
                self._read_reply(start, await self._send(start, len(rows), call))
                break
            # Send it before creating the previous chunk's jobs and before packing the next chunk.
            in_flight = await self._link.runtime.begin(self._send(start, len(rows), call))
            self._read_reply(first, reply)
            first = start
        if in_flight is not None and self._connection_error is None:
            self._read_reply(first, await in_flight)
        if self._connection_error is not None:
            raise self._failure() from self._connection_error
        if self._rejection is not None:
            raise self._failure() from self._rejection
        return self._in_given_order(self._results)

    async def _notify_parents(self, start: int, results: list[Any]) -> None:
        for parent, positions in self._remote_parents.items():
            mine = [results[i - start] for i in positions if start <= i < start + len(results)]
            await attach_children(self._link, parent, mine)

    async def _send(self, start: int, count: int, call: Any) -> AddReply | None:
        try:
            reply: AddReply = await self._link.transport.call(call)
            if self._remote_parents:
                await self._notify_parents(start, reply.results)
            if self._have_dependencies:
                of_chunk = self._remote_dependencies[start : start + count]
                self._missing.update(await register_dependents(self._link, zip(reply.results, of_chunk, strict=True)))
        except GlideMQError as error:
            self._connection_error = error
            self._results[start : start + count] = [error] * count
            return None
        return reply

    def _read_reply(self, start: int, reply: AddReply | None) -> None:
        if reply is None:
            return
        link, now, names, data, options = self._link, reply.now, self._names, self._data, self._options
        for i, result in enumerate(reply.results, start):
            try:
                job = added_job(link, names[i], data[i], options[i], now, result)
                if self._missing and job._stored_id in self._missing:
                    raise self._missing[job._stored_id]
                self._results[i] = job
            except (FairKeyFullError, JobCostError, JobMovedError, JobNotFoundError, JobStateError) as error:
                self._results[i] = self._rejection = error

    def _failure(self) -> BulkAddError:
        skipped: Any = GlideMQConnectionError("not sent: an earlier part of the bulk failed")
        if isinstance(self._connection_error, LayoutChangedError):
            skipped = self._connection_error
        results = [skipped if result is None else result for result in self._results]
        return BulkAddError(self._in_given_order(results))


def pair_of(job: Any) -> Any:
    """Return the job if it is a (name, data) tuple, or None."""
    return job if type(job) is tuple and len(job) == 2 else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
