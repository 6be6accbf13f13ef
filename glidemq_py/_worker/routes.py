"""Selects the handler of a job: the task with the job's name, else the worker's handler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glidemq_py._core.checks import check_callable
from glidemq_py.errors import GlideMQValidationError

__all__ = ["Handler", "Route", "Routes", "check_handler", "is_async"]

Handler = Callable[[Any], Any]


def is_async(function: Callable[..., Any]) -> bool:
    """Return True for coroutine functions, partials of them and objects whose ``__call__`` is one."""
    called = getattr(function, "__call__", None)  # noqa: B004 - inspects the method, not whether it exists
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def check_handler(function: Any, argument: str) -> Handler:
    """Return the function if it can be a handler.

    Args:
        function: The candidate.
        argument: Name of the argument it is called with, for error messages.

    Raises:
        GlideMQValidationError: If it cannot be called with one argument, or is a generator function.
    """
    if not callable(function):
        raise GlideMQValidationError("handler", function, 'must be a function, or a string such as "module:function"')
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise GlideMQValidationError("handler", function, "must return its result; generators are not supported")
    handler: Handler = check_callable("handler", function, argument)
    return handler


@dataclass(frozen=True, slots=True)
class Route:
    """A handler, called with the job.

    Attributes:
        handler: The function.
        in_thread: True to run it in a thread; False to await it on the event loop.
    """

    handler: Handler
    in_thread: bool

    @classmethod
    def to(cls, handler: Handler) -> Route:
        """Return the route of a user's handler."""
        return cls(handler, not is_async(handler))


class Routes:
    """The handlers of a worker.

    Args:
        default: Handler of job names without their own; None fails those jobs.
        by_name: Handlers by job name.
    """

    __slots__ = ("_by_name", "_default", "only")

    def __init__(self, default: Route | None, by_name: Mapping[str, Route]) -> None:
        self._default = default
        self._by_name = dict(by_name)
        self.only = None if by_name else default
        """The handler, if it is the only one."""

    def find(self, job_name: str) -> Route | None:
        """Return the handler of a job name, or None."""
        return self._by_name.get(job_name, self._default)
