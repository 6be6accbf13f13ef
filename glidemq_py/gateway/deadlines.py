"""`Deadlines`: ends commands that have run for the request timeout while the server of the queues does not reply.

A command may need several calls, may repeat one whose reply was lost, and may wait for the call of another command.
Each call has the request timeout, so together they would take a multiple of it. While the server replies, nothing is
limited: a long command may take its time, and a short outage does not end it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from glidemq_py._client.failures import DEFAULT_REQUEST_TIMEOUT_MS
from glidemq_py._client.transport import Transport
from glidemq_py.errors import GlideMQConnectionError
from glidemq_py.gateway.table import CommandError

T = TypeVar("T")

WAIT_MARGIN_S: Final = 0.5
"""How much longer than its `timeout` a command takes that waits for a job, if the server does not reply."""
_TICK_S: Final = 0.1
_AGAIN_S: Final = 1.0
"""How long a command may clean up before it is cancelled again."""
_WAITING: Final = frozenset(("PULL", "PULLB", "WaitJob"))
"""Commands whose `timeout` is the time for which they wait."""

_Running = tuple[float, str, Mapping[str, Any]]


class Deadlines:
    """The running commands of all connections.

    Attributes:
        running: Start by ``time.perf_counter``, name and fields of each command, by its task.
    """

    def __init__(self) -> None:
        self.running: dict[asyncio.Future[Any] | None, _Running] = {}
        self._ended: WeakKeyDictionary[asyncio.Future[Any], float] = WeakKeyDictionary()
        """Tasks and futures that were cancelled, and when."""
        self._message = ""

    async def watch(self, transport: Transport) -> None:
        """End overdue commands while the server of this connection does not reply."""
        server = transport.interruptions.server
        config: Any = getattr(transport, "config", None)
        limit_s = (getattr(config, "request_timeout", None) or DEFAULT_REQUEST_TIMEOUT_MS) / 1_000
        while True:
            await asyncio.sleep(_TICK_S)
            if server.is_doubted and self.running and (problem := server.problem):
                self._message = problem
                self._end_overdue(limit_s, server.doubted_s)

    def _end_overdue(self, limit_s: float, silent_s: float) -> None:
        now = time.perf_counter()
        for task, (start, name, fields) in tuple(self.running.items()):
            wait_s = (fields.get("timeout") or 0) / 1_000 if name in _WAITING else 0
            ran_s = now - start
            is_overdue = ran_s >= wait_s + WAIT_MARGIN_S + _TICK_S if wait_s else min(ran_s, silent_s) >= limit_s
            if task is None or not is_overdue:
                continue
            cancelled_at = self._ended.get(task)
            if cancelled_at is None or now - cancelled_at >= _AGAIN_S:
                self._ended[task] = now
                task.cancel()

    def has_ended(self, task: asyncio.Future[Any] | None) -> bool:
        """Return whether the command of a task was ended."""
        return task in self._ended

    def error_of(self, name: str, *, changes_nothing: bool) -> CommandError | None:
        """Return the error of the command that the current task executes if it was ended; else None.

        The task is not cancelled any more then.
        """
        task = asyncio.current_task()
        if task is None or self._ended.pop(task, None) is None:
            return None
        while task.uncancel():
            pass
        return CommandError(f"{self._message}{'' if changes_nothing else f'; {name} may have been executed'}")

    async def bounded(self, work: Awaitable[T]) -> T:
        """Return the result of a read that is no command.

        Raises:
            GlideMQConnectionError: If it took too long.
        """
        task = asyncio.current_task()
        self.running[task] = time.perf_counter(), "", {}
        try:
            return await work
        except asyncio.CancelledError:
            late = self.error_of("", changes_nothing=True)
            if late is None:
                raise
            raise GlideMQConnectionError(str(late)) from None
        finally:
            self.running.pop(task, None)
