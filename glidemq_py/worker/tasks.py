"""Routing by job name to typed functions. (In the making: registers plain functions that take the job.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A function that is the handler of one job name."""


class TaskRouter:
    """The tasks of one worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def register(self, name: Any) -> Any:
        raise NotImplementedError

    def handler(self) -> Callable[[Any], Any]:
        from glidemq_py.errors import GlideMQValidationError

        raise GlideMQValidationError("handler", None, "the worker has neither a handler nor tasks")
