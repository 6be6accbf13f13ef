"""Opening a worker before its first job: its connection, and the user's lifespan.

The first connection is retried while the server is down, is loading its data, or fails over. The lifespan is entered
and left in a task of its own: some context managers (task groups, cancel scopes, timeouts) must be left by the task
that entered them, but a worker may be started and closed by different tasks.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar, cast

from glidemq_py._client.connect import Connection, open_transport
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import reading
from glidemq_py._core.checks import check_callable
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._worker.listeners import Listeners
from glidemq_py.errors import ConnectionRejectedError, GlideMQConnectionError, GlideMQValidationError

_log = get_logger(__name__)

T = TypeVar("T")

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0


async def connect_patiently(
    connection: Connection,
    keys: QueueKeys,
    life: AsyncExitStack,
    listeners: Listeners,
    prepare: Callable[[Transport], Awaitable[T]],
) -> tuple[Transport, T]:
    """Connect, load the function library, and run ``prepare``; retry transient errors with growing pauses.

    Every transient error is logged as a WARNING and emitted as ``error`` to ``listeners``. ``life`` closes the
    transport.

    Returns:
        The transport and the return value of ``prepare``.

    Raises:
        ConnectionRejectedError: If the server rejects the connection, the password or the library.
    """
    pause, failed = _FIRST_PAUSE_S, False
    while True:
        try:
            transport = await open_transport(connection)
            life.push_async_callback(transport.close)
            await transport.call(reading.version(keys.meta))
            prepared = await prepare(transport)
            if failed:
                transport.interruptions.record()
            return transport, prepared
        except ConnectionRejectedError:
            await life.aclose()
            raise
        except GlideMQConnectionError as error:
            failed = True
            await life.aclose()
            jittered = pause * (0.5 + random.random())
            _log.warning("queue %r: worker cannot start yet: %s; retrying in %.1f s", keys.name, error, jittered)
            listeners.emit("error", error)
        await asyncio.sleep(jittered)
        pause = min(pause * 2, _LAST_PAUSE_S)


def consumer_name() -> str:
    """Return a unique consumer name. Node peers use `worker-...`, so recovery can distinguish the two kinds."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:48]
    return f"py-{host}-{os.getpid()}-{secrets.token_hex(4)}"


_DECORATE = "must be decorated with contextlib.asynccontextmanager"
_F = TypeVar("_F", bound=Callable[..., Any])


def check_lifespan(function: _F) -> _F:
    """Return the lifespan function if it is valid.

    Raises:
        GlideMQValidationError: If it cannot be called with the worker, or is an async (generator) function without
            `contextlib.asynccontextmanager`.
    """
    check_callable("lifespan", function, "worker")
    if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
        raise GlideMQValidationError("lifespan", function, _DECORATE)
    return function


def entered(made: Any) -> LifespanTask:
    """Return a task that enters the context manager ``made`` by the lifespan function.

    Raises:
        GlideMQValidationError: If ``made`` is not an async context manager.
    """
    if not isinstance(made, AbstractAsyncContextManager):
        raise GlideMQValidationError("lifespan", made, f"is not an async context manager: the function {_DECORATE}")
    return LifespanTask(cast("AbstractAsyncContextManager[Any]", made))


class LifespanTask:
    """Enters a context manager at `open` and leaves it at `close`, both in one task."""

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self._manager = manager
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._hold(), name="glidemq-lifespan")

    async def _hold(self) -> None:
        try:
            async with self._manager as context:
                self._opened.set_result(context)
                await self._over.wait()
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    async def open(self) -> Any:
        """Return the value that the manager yields. Its errors are raised; cancellation cancels the entering."""
        try:
            return await asyncio.shield(self._opened)
        except BaseException:
            if not self._opened.done():
                self._task.cancel()
                await asyncio.wait({self._task})
                if not self._opened.cancelled():
                    self._opened.exception()  # marks it as retrieved
            raise

    async def close(self) -> None:
        """Leave the manager. Its errors are raised."""
        self._over.set()
        await self._task
