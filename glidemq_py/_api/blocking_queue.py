"""`QueueCore`: a queue for blocking code. The blocking `Queue` and blocking tasks are faces of it."""

from __future__ import annotations

from typing import Any, Generic

from typing_extensions import TypeVar

from glidemq_py._api.coalescer import AddCoalescer
from glidemq_py._api.job_queue import Queue
from glidemq_py._client.portal import BLOCKING_RUNTIME, portal
from glidemq_py._client.threads import Entry, LoopThread
from glidemq_py._core.calls.adding import Added, Row

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)


class _Add(Entry[Added]):
    """A row that a thread adds, as the future that an `AddCoalescer` sets."""

    __slots__ = ("_adds", "_row")

    def __init__(self, thread: LoopThread, adds: AddCoalescer, row: Row) -> None:
        super().__init__(thread)
        self._adds = adds
        self._row = row

    def begin(self) -> None:
        """See `Entry.begin`."""
        if not self._is_done:
            self._adds.put((self._row,), self)

    def _abandon(self) -> None:
        self.cancel()  # at once: the loop may be about to send it

    def set_result(self, result: tuple[int, list[Any]]) -> None:
        """See `Entry.set_result`."""
        now, (row,) = result
        super().set_result((now, row))

    def set_exception(self, error: BaseException) -> None:
        """See `Entry.set_exception`. Each thread raises an object of its own, with its own traceback."""
        own = type(error).__new__(type(error), *error.args)
        own.args = error.args
        own.__dict__.update(error.__dict__)
        own.__cause__ = error.__cause__
        super().set_exception(own)


class _Adds(AddCoalescer):
    """Sends the adds of threads: a lone one in its thread, if the connection can, and others together in the portal."""

    __slots__ = ()

    async def add(self, row: Row) -> Added:
        """See `Adder.add`."""
        thread = portal()
        if thread.is_here():
            return await super().add(row)
        lone = None if self._in_flight else getattr(self._transport, "call_in_thread", None)
        reply = lone and lone(self._add_call(self._meta, (row,), self._quiet))
        return (reply.now, reply.results[0]) if reply else await _Add(thread, self, row)


class QueueCore(Queue[DataT, ResultT], Generic[DataT, ResultT]):
    """A queue whose coroutines are stepped in threads, and wait in the portal."""

    _runtime = BLOCKING_RUNTIME
    _adder_type = _Adds


QueueCore._part_type = QueueCore
