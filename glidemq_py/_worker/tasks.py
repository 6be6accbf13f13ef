"""Tasks: functions that are the handlers of one job name each, and whose own signature types the adding of jobs.

How parameters become data is in `parameters`, who runs what in `routes`; nothing is sent or run here.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Concatenate, Generic, Protocol, Unpack, cast, overload

from typing_extensions import ParamSpec, TypeVar

from glidemq_py._api.queue import Queue
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions, JobOptionsDict
from glidemq_py._core.names import validate_job_name
from glidemq_py._core.queue_options import JobSpec
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.typed_tasks.parameters import Parameters, Resolved
from glidemq_py._job import Job
from glidemq_py._worker.routes import Route, is_async
from glidemq_py.errors import GlideMQError, GlideMQValidationError

__all__ = ["Task", "TaskRegistry"]

P = ParamSpec("P", default=...)
ResultT = TypeVar("ResultT", default=Any)
CallP = ParamSpec("CallP", default=...)
CallT = TypeVar("CallT", default=Any)
GivenP = ParamSpec("GivenP")
GivenT = TypeVar("GivenT")

_OPTIONS = tuple(JobOptionsDict.__annotations__)
_WAIT_MS = 30_000


class TaskOwner(Protocol):
    """What tasks need of their worker."""

    @property
    def queue(self) -> Queue[Any, Any]:
        """Where jobs are added."""
        ...

    @property
    def is_running(self) -> bool:
        """Its handlers are settled."""
        ...


class Task(Generic[P, ResultT, CallP, CallT]):
    """A function that runs the jobs of one name; made by ``@worker.task``.

    ``Task[P, ResultT]``: the parameters of `add`, and the result. (Two more say how calling the task itself is
    typed: with the job where the function takes it, and what an ``async def`` returns before it is awaited.)

    Jobs are added on the worker's connection, which is made when first used; the worker need not run. Arguments
    travel by parameter name, those not given are left out, so that the worker's defaults count.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        owner: TaskOwner,
        parameters: Parameters,
        options: JobOptions = NO_OPTIONS,
        wait_ms: int = _WAIT_MS,
    ) -> None:
        """Made by workers."""
        functools.update_wrapper(self, function)
        self.name = name
        self._function = function
        self._owner = owner
        self._parameters = parameters
        self._options = options
        self._wait_ms = wait_ms

    def __call__(self, /, *args: CallP.args, **kwargs: CallP.kwargs) -> CallT:
        """Run the function here and now, without any job: for tests, and for one task that does another's work."""
        return cast("CallT", self._function(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<Task {self.name!r}>"

    # -- adding -------------------------------------------------------------------------------------------

    def options(
        self, *, wait_timeout: Milliseconds | None = None, **options: Unpack[JobOptionsDict]
    ) -> Task[P, ResultT, CallP, CallT]:
        """The same task with options for the jobs it adds: ``await task.options(delay=5_000).add(...)``.

        They go over those that the task was registered with, and these over the queue's.

        Args:
            wait_timeout: for `add_and_wait`, ms or timedelta; 30 seconds by default.
            **options: see `JobOptions`.

        Raises:
            GlideMQValidationError: an option cannot be; it is named with its value.
        """
        wait_ms = self._wait_ms if wait_timeout is None else to_ms("wait_timeout", wait_timeout, minimum=1)
        merged = JobOptions.merge(self._options, JobOptions.parse(cast("Mapping[str, Any]", options)))
        return Task(self._function, self.name, self._owner, self._parameters, merged, wait_ms)

    def spec(self, /, *args: P.args, **kwargs: P.kwargs) -> JobSpec:
        """A job of this task for `add_bulk`, or for `Queue.add_bulk`. Raises TypeError as a call would."""
        return JobSpec(self.name, self._resolved.write(args, kwargs), self._options)

    async def add(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[dict[str, Any], ResultT]:
        """Add a job that runs the function with these arguments.

        Returns:
            The job, as from `Queue.add`; its result is read back as the function's return annotation says.

        Raises:
            TypeError: an argument is missing, unknown or given twice; nothing was sent.
            and what `Queue.add` raises.
        """
        data = self._resolved.write(args, kwargs)
        job = await self._owner.queue.add(self.name, data, **self._given)
        return self._reading(job)

    async def add_bulk(self, jobs: Iterable[JobSpec]) -> list[Job[dict[str, Any], ResultT]]:
        """Add many jobs of this task: ``await task.add_bulk(task.spec(each) for each in ...)``.

        Raises:
            GlideMQValidationError: a spec is of another task (`Queue.add_bulk` takes a mixture).
            and what `Queue.add_bulk` raises.
        """
        specs = list(jobs)
        for i, spec in enumerate(specs):
            if getattr(spec, "name", None) != self.name:
                raise GlideMQValidationError(f"jobs[{i}]", spec, f"must be a spec of task {self.name!r}")
        return [self._reading(job) for job in await self._owner.queue.add_bulk(specs)]

    async def add_and_wait(self, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Add a job and return its result once a worker has completed it, 30 seconds at most (see `options`).

        Raises:
            TypeError: as `add`. JobFailedError: it failed for good. WaitTimeoutError: it did not end in time.
            SerializationError: the result is not what the return annotation says.
            and what `Queue.add_and_wait` raises.
        """
        resolved = self._resolved
        data = resolved.write(args, kwargs)
        value = await self._owner.queue.add_and_wait(self.name, data, wait_timeout=self._wait_ms, **self._given)
        return cast("ResultT", resolved.read_result(value))

    @property
    def _resolved(self) -> Resolved:
        return self._parameters.resolved

    @property
    def _given(self) -> JobOptionsDict:
        if self._options is NO_OPTIONS:
            return {}
        values = ((name, getattr(self._options, name)) for name in _OPTIONS)
        return cast("JobOptionsDict", {name: value for name, value in values if value is not None})

    def _reading(self, job: Job[Any, Any]) -> Job[dict[str, Any], ResultT]:
        resolved = self._resolved
        if not resolved.result.is_plain:
            job._read_result = resolved.read_result
        return job

    # -- running ------------------------------------------------------------------------------------------

    def route(self) -> Route:
        """How a worker runs its jobs. Raises GlideMQValidationError if its annotations cannot be resolved."""
        in_thread = not is_async(self._function)
        resolved = self._resolved
        if not resolved.result.special:
            return Route(self._run, in_thread)
        return Route(self._run_and_write if in_thread else self._await_and_write, in_thread)

    def _run(self, job: Job[Any, Any]) -> Any:
        resolved = self._resolved
        arguments = resolved.read(job.data)
        if resolved.has_step:
            job._check_step = resolved.check_step
        return self._function(job, **arguments) if resolved.takes_job else self._function(**arguments)

    def _run_and_write(self, job: Job[Any, Any]) -> Any:
        return self._resolved.result.write(self._run(job))

    async def _await_and_write(self, job: Job[Any, Any]) -> Any:
        return self._resolved.result.write(await self._run(job))


class TaskRegistry:
    """The tasks of one worker."""

    def __init__(self, owner: TaskOwner) -> None:
        self._owner = owner
        self._tasks: dict[str, Task[..., Any, ..., Any]] = {}

    def routes(self) -> dict[str, Route]:
        """The tasks' routes by job name. Raises GlideMQValidationError as `Task.route`."""
        return {name: task.route() for name, task in self._tasks.items()}

    @property
    def decorator(self) -> TaskDecorator:
        """``worker.task``."""
        return TaskDecorator(self, None, NO_OPTIONS)

    def register(
        self, function: Any, name: str | None, options: JobOptions, namespace: Mapping[str, Any] | None
    ) -> Task[..., Any, ..., Any]:
        """Make a function a task.

        Raises:
            GlideMQValidationError: it is no function, has no name, takes what a job's data cannot express, or its
                name is another task's.
            GlideMQError: the worker is running.
        """
        if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise GlideMQValidationError("task", function, "must be a function, async or plain, and no generator")
        name = validate_job_name(name or getattr(function, "__name__", None), "task")
        if name in self._tasks:
            raise GlideMQValidationError("task", name, "is the name of another task of this worker already")
        if self._owner.is_running:
            raise GlideMQError(f"task {name!r} must be registered before the worker starts")
        parameters = Parameters(function, name, namespace)
        task: Task[..., Any, ..., Any] = Task(function, name, self._owner, parameters, options)
        self._tasks[name] = task
        return task


class TaskDecorator:
    """Makes functions tasks: ``@worker.task``, ``@worker.task()`` or ``@worker.task("name", attempts=3)``."""

    def __init__(self, registry: TaskRegistry, name: str | None, options: JobOptions) -> None:
        """Made by workers."""
        self._registry = registry
        self._name = name
        self._options = options

    @overload
    def __call__(
        self, function: Callable[Concatenate[Job[Any, Any], GivenP], Coroutine[Any, Any, GivenT]], /
    ) -> Task[GivenP, GivenT, Concatenate[Job[Any, Any], GivenP], Coroutine[Any, Any, GivenT]]: ...
    @overload
    def __call__(
        self, function: Callable[GivenP, Coroutine[Any, Any, GivenT]], /
    ) -> Task[GivenP, GivenT, GivenP, Coroutine[Any, Any, GivenT]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Job[Any, Any], GivenP], GivenT], /
    ) -> Task[GivenP, GivenT, Concatenate[Job[Any, Any], GivenP], GivenT]: ...
    @overload
    def __call__(self, function: Callable[GivenP, GivenT], /) -> Task[GivenP, GivenT, GivenP, GivenT]: ...
    @overload
    def __call__(self, name: str | None = None, /, **options: Unpack[JobOptionsDict]) -> TaskDecorator: ...
    def __call__(self, given: Any = None, /, **options: Any) -> Any:
        """See `Worker.task`."""
        if given is not None and not isinstance(given, str):
            return self._registry.register(given, self._name, self._options, _locals(given, sys._getframe(1)))
        parsed = JobOptions.merge(self._options, JobOptions.parse(options))
        if parsed.job_id is not None:
            raise GlideMQValidationError("job_id", parsed.job_id, "would give every job of the task the same id")
        return TaskDecorator(self._registry, None if given is None else validate_job_name(given, "task"), parsed)


def _locals(function: Callable[..., Any], frame: Any) -> dict[str, Any] | None:
    """Local names where the task is defined, for annotations that are text; a module's are found without them."""
    try:
        annotations = getattr(function, "__annotations__", {}).values()
    except NameError:  # evaluated late (Python 3.14), and then with the names in reach
        return None
    local = frame.f_locals
    return None if local is frame.f_globals or not any(isinstance(each, str) for each in annotations) else dict(local)
