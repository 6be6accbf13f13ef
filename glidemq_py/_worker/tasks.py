"""Tasks: functions that handle the jobs of one name and add such jobs with the types of their own signature.

`glidemq_py._job.typed_tasks` converts arguments to job data; `handlers` selects the handler of a job.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Unpack, cast, overload

from typing_extensions import ParamSpec, TypeVar

from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import validate_job_name
from glidemq_py._core.option_dicts_twin import JobOptionsDict
from glidemq_py._job.contents import ResultT
from glidemq_py._job.job import Job
from glidemq_py._job.typed_tasks import Parameters
from glidemq_py._worker.base_worker import BaseWorker
from glidemq_py._worker.handlers import Route, is_async
from glidemq_py._worker.task_core import CallP, CallT, P, TaskCore
from glidemq_py._worker.task_twin import BlockingTask
from glidemq_py.errors import GlideMQError, GlideMQValidationError

GivenP = ParamSpec("GivenP")
GivenT = TypeVar("GivenT")


class Task(TaskCore[P, ResultT, CallP, CallT]):
    """A function that runs the jobs of one name; created by ``@worker.task``.

    ``Task[P, ResultT]``: the parameters of `add`, and the type of the result. (Two more type parameters are for
    calling the task itself: its parameters, with the job if the function has one, and its return type, a coroutine
    for an ``async def``.)

    Jobs are added on the worker's connection, which is opened at the first use; the worker need not run. Arguments
    are stored by parameter name. Arguments that are not given are not stored, so the defaults in the worker's code
    apply.
    """

    def __call__(self, /, *args: CallP.args, **kwargs: CallP.kwargs) -> CallT:
        """Call the function directly, without a job: in tests, or from another task."""
        return cast("CallT", self._function(*args, **kwargs))

    @property
    def blocking(self) -> BlockingTask[P, ResultT, CallP, CallT]:
        """This task with blocking methods, for code without an event loop: ``task.blocking.add(...)`` in a view."""
        core = copy.copy(self)
        core._is_blocking = True
        return BlockingTask(core)

    # -- running ------------------------------------------------------------------------------------------

    def route(self) -> Route:
        """Return the route by which a worker runs the task's jobs.

        Raises:
            GlideMQValidationError: If an annotation of the function is not supported or cannot be resolved.
        """
        in_thread = not is_async(self._function)
        if not self._resolved.result.special:
            return Route(self._run, in_thread)
        return Route(self._run_and_write if in_thread else self._await_and_write, in_thread)

    def _run(self, job: Job) -> Any:
        resolved = self._resolved
        own = resolved.read_own_keys(job._own_keys_text)
        arguments = resolved.read(job.data, own)
        job._own_keys = functools.partial(resolved.own_keys, arguments.keys(), own)
        if resolved.has_step:
            job._check_step = resolved.check_step
        return self._function(job, **arguments) if resolved.takes_job else self._function(**arguments)

    def _run_and_write(self, job: Job) -> Any:
        return self._resolved.result.write(self._run(job))

    async def _await_and_write(self, job: Job) -> Any:
        return self._resolved.result.write(await self._run(job))


class TaskRegistry:
    """The tasks of one worker."""

    def __init__(self, owner: BaseWorker) -> None:
        self._owner = owner
        self._tasks: dict[str, Task[..., Any, ..., Any]] = {}

    def routes(self) -> dict[str, Route]:
        """Return the routes of the tasks by job name. Raises the errors of `Task.route`."""
        return {name: task.route() for name, task in self._tasks.items()}

    def register(
        self, function: Any, name: str | None, options: JobOptions, namespace: Mapping[str, Any] | None
    ) -> Task[..., Any, ..., Any]:
        """Register a function as a task.

        Args:
            function: The function.
            name: Job name; None uses the function's name.
            options: Options of the jobs added through the task.
            namespace: Local names for annotations that are text.

        Raises:
            GlideMQValidationError: If it is not a function, has no name, has parameters that job data cannot express,
                or another task has the name.
            GlideMQError: If the worker is running.
        """
        if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise GlideMQValidationError("task", function, "must be a function (async or plain), not a generator")
        name = validate_job_name(name or getattr(function, "__name__", None), "task")
        if name in self._tasks:
            raise GlideMQValidationError("task", name, "is already the name of another task of this worker")
        if self._owner.is_running:
            raise GlideMQError(f"task {name!r} must be registered before the worker starts")
        self._tasks[name] = Task(function, name, self._owner, Parameters(function, name, namespace), options)
        return self._tasks[name]


class TaskDecorator:
    """Registers functions as tasks: ``@worker.task``, ``@worker.task()`` or ``@worker.task("name", attempts=3)``."""

    def __init__(self, registry: TaskRegistry, name: str | None, options: JobOptions) -> None:
        """Create a decorator. Workers do this; use ``worker.task``."""
        self._registry = registry
        self._name = name
        self._options = options

    @overload
    def __call__(
        self, function: Callable[Concatenate[Job, GivenP], Coroutine[Any, Any, GivenT]], /
    ) -> Task[GivenP, GivenT, Concatenate[Job, GivenP], Coroutine[Any, Any, GivenT]]: ...
    @overload
    def __call__(
        self, function: Callable[GivenP, Coroutine[Any, Any, GivenT]], /
    ) -> Task[GivenP, GivenT, GivenP, Coroutine[Any, Any, GivenT]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Job, GivenP], GivenT], /
    ) -> Task[GivenP, GivenT, Concatenate[Job, GivenP], GivenT]: ...
    @overload
    def __call__(self, function: Callable[GivenP, GivenT], /) -> Task[GivenP, GivenT, GivenP, GivenT]: ...
    @overload
    def __call__(self, name: str | None = None, /, **options: Unpack[JobOptionsDict]) -> TaskDecorator: ...
    def __call__(self, given: Any = None, /, **options: Any) -> Any:
        """Register a function, or return a decorator with a name and options; see `Worker.task`."""
        if given is not None and not isinstance(given, str):
            return self._registry.register(given, self._name, self._options, _locals(given, sys._getframe(1)))
        parsed = JobOptions.merge(self._options, JobOptions.parse(options))
        parsed.check_place("task", "would give every job of the task the same {}")
        return TaskDecorator(self._registry, None if given is None else validate_job_name(given, "task"), parsed)


def _locals(function: Callable[..., Any], frame: Any) -> dict[str, Any] | None:
    """Return the local names at the task's definition, for annotations that are text; None if not needed."""
    try:
        annotations = getattr(function, "__annotations__", {}).values()
    except NameError:  # evaluated lazily (Python 3.14), in the scope that has the names
        return None
    local = frame.f_locals
    return None if local is frame.f_globals or not any(isinstance(each, str) for each in annotations) else dict(local)
