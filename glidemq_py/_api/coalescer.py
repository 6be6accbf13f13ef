"""The coalescer: group commit of single adds.

An add is sent immediately if no other is in flight. Adds that arrive while one is in flight wait for its reply and are
then sent together, limited in rows and characters. There is no timer, so a single add is never delayed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

from glidemq_py._client.transport import Transport
from glidemq_py._core.calls.adding import AddCall, Row, add
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.job_states import JobOutcome
from glidemq_py._features.flows.adding import invalid_parent
from glidemq_py._job import Job, QueueLink
from glidemq_py.errors import AmbiguousResultError, ClosedError, JobCostError

__all__ = ["AddCoalescer", "Added", "Adder", "added_job"]

Added = tuple[int, Any]
"""Server time of the add in epoch ms, and the row's result: an id, or [outcome, id]."""

MAX_ROWS = 256
MAX_CHARS = 512 * 1024


class Adder(Protocol):
    """Sends the single adds of one event loop."""

    @property
    def loop(self) -> object:
        """The event loop; None for blocking code."""
        ...

    async def add(self, row: Row, /) -> Added:
        """Add one row; raises the errors of `Transport.call`."""
        ...

    async def close(self) -> None:
        """Wait until all pending adds have been sent."""
        ...


class AddCoalescer:
    """Sends rows of one queue from the running event loop.

    Args:
        transport: The queue's transport.
        meta: The queue's declared key.
        quiet: If True, no `added` events are written.
        add_call: Builds the server calls.
    """

    __slots__ = ("_add_call", "_idle", "_in_flight", "_meta", "_quiet", "_sender", "_transport", "_waiting", "loop")

    def __init__(self, transport: Transport, meta: str, quiet: bool, add_call: AddCall = add) -> None:
        self._transport = transport
        self._meta = meta
        self._quiet = quiet
        self._add_call = add_call
        self.loop: object = asyncio.get_running_loop()
        self._in_flight = False
        self._waiting: deque[tuple[Row, asyncio.Future[Added]]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None

    async def add(self, row: Row) -> Added:
        """Add one row; raises the errors of `Transport.call`.

        Canceling one caller does not affect others; its row is not sent if it is still pending.

        Raises:
            AmbiguousResultError: If the reply was lost. The row may have been added.
        """
        if self._in_flight:
            future: asyncio.Future[Added] = asyncio.get_running_loop().create_future()
            self._waiting.append((row, future))
            return await future
        self._in_flight = True
        try:
            reply = await self._transport.call(self._add_call(self._meta, (row,), self._quiet))
        finally:
            if self._waiting:
                self._sender = asyncio.create_task(self._send_waiting(), name="glidemq-adds")
                self._sender.add_done_callback(self._sender_ended)
            else:
                self._in_flight = False
                if self._idle is not None:
                    self._rest()
        return reply.now, reply.results[0]

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                await self._send(self._next_batch())
        finally:
            self._rest()

    def _sender_ended(self, sender: asyncio.Task[None]) -> None:
        # A task canceled before its first step does not run its `finally`.
        if not sender.cancelled() and sender.exception() is None:
            return
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ClosedError("the event loop is shutting down; the job was not added"))
        self._rest()

    def _rest(self) -> None:
        self._in_flight = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _next_batch(self) -> list[tuple[Row, asyncio.Future[Added]]]:
        batch: list[tuple[Row, asyncio.Future[Added]]] = []
        chars = 0
        while self._waiting and len(batch) < MAX_ROWS and chars < MAX_CHARS:
            row, future = self._waiting.popleft()
            if not future.done():
                batch.append((row, future))
                chars += len(row[1])  # type: ignore[arg-type]
        return batch

    async def _send(self, batch: list[tuple[Row, asyncio.Future[Added]]]) -> None:
        if not batch:
            return
        try:
            reply = await self._transport.call(self._add_call(self._meta, [row for row, _ in batch], self._quiet))
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    lost = AmbiguousResultError("canceled before the reply arrived; the job may have been added")
                    future.set_exception(error if isinstance(error, Exception) else lost)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), result in zip(batch, reply.results, strict=True):
            if not future.done():
                future.set_result((reply.now, result))

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
        JobNotFoundError: If its parent does not exist.
        JobStateError: If its parent has already ended.
    """
    if type(result) is str:
        job: Job[Any, Any] = Job(link, result, name)
        job.timestamp = now
    else:
        outcome, job_id = result
        if outcome == "cost":
            raise JobCostError(options.cost, options.ordering.key if options.ordering else None)
        if outcome == "parent":
            assert options.parent is not None
            raise invalid_parent(options.parent, job_id)
        job = Job(link, job_id, name)
        job.outcome = JobOutcome(outcome)
        if job.outcome is JobOutcome.REPLACED:
            job.timestamp = now
    job._data = data
    if options is NO_OPTIONS:
        return job
    if job.outcome is JobOutcome.ADDED or job.outcome is JobOutcome.REPLACED:
        job._given = options
        job._delay = options.delay or 0
    if options.priority:
        job.priority = options.priority
    return job
