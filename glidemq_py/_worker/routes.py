"""Which handler runs a job: by the job's name, else the worker's own. Running them is the runner's business."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glidemq_py._core.callables import check_callable
from glidemq_py.errors import GlideMQValidationError

__all__ = ["Handler", "Route", "Routes", "check_handler", "is_async"]

Handler = Callable[[Any], Any]


def is_async(function: Callable[..., Any]) -> bool:
    """True for coroutine functions, partials of them and objects whose ``__call__`` is one."""
    called = getattr(function, "__call__", None)  # noqa: B004 - its own kind is asked for, not whether it is there
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def check_handler(function: Any, argument: str) -> Handler:
    """A handler that can be called with ``argument``. Raises GlideMQValidationError."""
    if not callable(function):
        raise GlideMQValidationError("handler", function, "must be a function, or a text that names one")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise GlideMQValidationError("handler", function, "must return its result: it is a generator")
    handler: Handler = check_callable("handler", function, argument)
    return handler


@dataclass(frozen=True, slots=True)
class Route:
    """A handler, called with the job.

    Attributes:
        in_thread: it blocks, and so runs in a thread; otherwise what it returns is awaited on the loop.
    """

    handler: Handler
    in_thread: bool

    @classmethod
    def to(cls, handler: Handler) -> Route:
        """The route to a user's handler."""
        return cls(handler, not is_async(handler))


class Routes:
    """The handlers of a worker.

    Args:
        default: for every job name that has no handler of its own; None if those fail.
        by_name: handlers of job names.
    """

    __slots__ = ("_by_name", "_default", "only")

    def __init__(self, default: Route | None, by_name: Mapping[str, Route]) -> None:
        self._default = default
        self._by_name = dict(by_name)
        self.only = None if by_name else default
        """The handler, where there is just one."""

    def find(self, job_name: str) -> Route | None:
        """The handler of a job name."""
        return self._by_name.get(job_name, self._default)
