"""Group commit of single adds.

An add that finds nothing under way goes out at once, by itself. Adds that arrive while one is under way wait for
it and then leave together, bounded in rows and bytes. There is no timer, so a lone add waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

from glidemq_py._client.transport import Transport
from glidemq_py._core.calls.adding import AddCall, Row, add
from glidemq_py.errors import AmbiguousResultError, ClosedError

__all__ = ["AddCoalescer", "Added", "Adder"]

Added = tuple[int, Any]
"""Server time of the add, and the row's result: an id, or [outcome, id]."""

MAX_ROWS = 256
MAX_CHARS = 512 * 1024


class Adder(Protocol):
    """What sends single adds of one event loop."""

    @property
    def loop(self) -> object:
        """The event loop; None for code that blocks."""
        ...

    async def add(self, row: Row, /) -> Added:
        """Add one row. Raises what `Transport.call` raises."""
        ...

    async def close(self) -> None:
        """Wait until everything has been sent."""
        ...


class AddCoalescer:
    """Sends rows of one queue from the running event loop.

    Args:
        transport: of the queue.
        meta: the queue's declared key.
        quiet: leave out the `added` events.
        add_call: makes the call.
    """

    __slots__ = ("_add_call", "_idle", "_meta", "_quiet", "_sender", "_transport", "_under_way", "_waiting", "loop")

    def __init__(self, transport: Transport, meta: str, quiet: bool, add_call: AddCall = add) -> None:
        self._transport = transport
        self._meta = meta
        self._quiet = quiet
        self._add_call = add_call
        self.loop: object = asyncio.get_running_loop()
        self._under_way = False
        self._waiting: deque[tuple[Row, asyncio.Future[Added]]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None

    async def add(self, row: Row) -> Added:
        """Add one row. Cancelling one caller touches nobody else: a row that has not left yet is not sent.

        Raises what `Transport.call` raises; AmbiguousResultError where the reply was lost.
        """
        if self._under_way:
            future: asyncio.Future[Added] = asyncio.get_running_loop().create_future()
            self._waiting.append((row, future))
            return await future
        self._under_way = True
        try:
            reply = await self._transport.call(self._add_call(self._meta, (row,), self._quiet))
        finally:
            if self._waiting:
                self._sender = asyncio.create_task(self._send_waiting(), name="glidemq-adds")
                self._sender.add_done_callback(self._sender_ended)
            else:
                self._rest()
        return reply.now, reply.results[0]

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                await self._send(self._next_batch())
        finally:
            self._rest()

    def _sender_ended(self, sender: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs no `finally`.
        if not sender.cancelled() and sender.exception() is None:
            return
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ClosedError("the event loop is ending; the job was not added"))
        self._rest()

    def _rest(self) -> None:
        self._under_way = False
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
                    lost = AmbiguousResultError("cancelled before the reply came; the job may have been added")
                    future.set_exception(error if isinstance(error, Exception) else lost)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), result in zip(batch, reply.results, strict=True):
            if not future.done():
                future.set_result((reply.now, result))

    async def close(self) -> None:
        """Wait until everything that was handed over has been answered."""
        if self._under_way:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)
