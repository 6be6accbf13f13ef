"""The coalescer (group commit) of single adds.

A single add is sent immediately if no other is in flight. Adds that arrive while one is in flight wait for its reply
and are then sent together, limited in rows and characters. There is no timer, so a single add is never delayed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from glidemq_py._client.threads import Entry
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import Call
from glidemq_py._core.calls.adding import DATA, AddCall, Added, AddReply, Row, add
from glidemq_py._features.durability import Confirmer
from glidemq_py.errors import AmbiguousResultError, ClosedError

MAX_ROWS = 256
MAX_CHARS = 512 * 1024


_Outcome = asyncio.Future[tuple[int, list[Any]]] | Entry[Any]
"""Gets the server time of the add in epoch ms, and the result of each row."""
_Waiting = tuple[Sequence[Row], _Outcome]
"""Rows to add together, and their results."""


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
        self, transport: Transport | Confirmer, meta: str, quiet: bool, add_call: AddCall = add, gather: bool = False
    ) -> None:
        self._transport = transport
        self._meta = meta
        self._quiet = quiet
        self._add_call = add_call
        self._gather = gather
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
        """Add rows in one call: all, or none; at the end of this turn of the event loop, with others of the turn.

        If the future is cancelled, its rows are not sent if they are still pending; others are not affected.

        Returns:
            A future of the server time of the add in epoch ms, and the result of each row. It raises the errors of
            `Transport.call`, such as AmbiguousResultError if the reply was lost: the rows may have been added.
        """
        future: asyncio.Future[tuple[int, list[Any]]] = self.loop.create_future()
        self._waiting.append((rows, future))
        if not self._in_flight:
            self._in_flight = True
            self.loop.call_soon(self._send_waiting)
        return future

    def put(self, rows: Sequence[Row], future: _Outcome) -> None:
        """Add rows in one call, and set the result or error of ``future``; see `start`."""
        if self._in_flight:
            self._waiting.append((rows, future))
        else:
            self._in_flight = True
            self._send([(rows, future)])

    def _send(self, batch: list[_Waiting]) -> None:
        sent = [row for rows, _ in batch for row in rows]
        try:
            call = self._add_call(self._meta, sent, self._quiet)
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
