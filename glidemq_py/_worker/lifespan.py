"""The user's lifespan, entered and left in a task of its own.

Some context managers (task groups, cancel scopes, timeouts) must be left by the task that entered them, but a worker
may be started and closed by different tasks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

from glidemq_py._core.checks import check_callable
from glidemq_py.errors import GlideMQValidationError

__all__ = ["LifespanTask", "check_lifespan", "entered"]

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
