"""`TaskCore`: adding the jobs of a task, with the types of its function's signature. `Task` also runs them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Self, Unpack, cast

from typing_extensions import ParamSpec, TypeVar

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.misuse import former_names
from glidemq_py._core.option_dicts_twin import JobOptionsDict
from glidemq_py._core.queue_options import TaskCall
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._job.contents import ResultT
from glidemq_py._job.job import Job
from glidemq_py._job.typed_tasks import Parameters, Resolved
from glidemq_py._worker.base_worker import BaseWorker
from glidemq_py.errors import GlideMQValidationError

P = ParamSpec("P", default=...)
CallP = ParamSpec("CallP", default=...)
CallT = TypeVar("CallT", default=Any)

_WAIT_MS = 30_000


@former_names
class TaskCore(Generic[P, ResultT, CallP, CallT]):
    """What `Task` and `BlockingTask` have in common: adding jobs."""

    name: str
    """Name of its jobs."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        owner: BaseWorker,
        parameters: Parameters,
        options: JobOptions = NO_OPTIONS,
    ) -> None:
        """Create a task. Workers do this; use ``@worker.task``."""
        functools.update_wrapper(cast("Any", self), function)
        self.name = name
        self._function = function
        self._owner = owner
        self._parameters = parameters
        self._options = options
        self._wait_ms = _WAIT_MS
        self._is_blocking = False

    def __repr__(self) -> str:
        return f"<Task {self.name!r}>"

    def options(self, *, wait_timeout: Milliseconds | None = None, **options: Unpack[JobOptionsDict]) -> Self:
        """Return a copy of the task with options for the jobs it adds: ``await task.options(delay=5_000).add(...)``.

        These options override those of ``@worker.task``, which override the queue's defaults.

        Args:
            wait_timeout: Timeout of `add_and_wait`, milliseconds or a timedelta; 30 seconds by default.
            **options: See `JobOptions`.

        Raises:
            GlideMQValidationError: If an option is invalid. The error names the option and its value.
        """
        changed = copy.copy(self)
        if wait_timeout is not None:
            changed._wait_ms = to_ms("wait_timeout", wait_timeout, minimum=1)
        changed._options = JobOptions.merge(self._options, JobOptions.parse(cast("Mapping[str, Any]", options)))
        return changed

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall[ResultT]:
        """Return the task with arguments, to be added elsewhere: in bulk, on commit, by a flow, a schedule, a parent.

        Raises:
            TypeError: If an argument is missing, unknown or given twice.
        """
        return TaskCall(self.name, self._resolved.write(args, kwargs), self._options, self)

    async def add(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[dict[str, Any], ResultT]:
        """Add a job that runs the function with these arguments. Raises the errors of `Queue.add` as well.

        Returns:
            The job, as from `Queue.add`. Its result is converted to the type of the function's return annotation.

        Raises:
            TypeError: If an argument is missing, unknown or given twice. Nothing was sent.
        """
        data = self._resolved.write(args, kwargs)
        job = await self.queue.add(self.name, data, **self._options)
        return self._reading(job)

    async def add_bulk(self, calls: Iterable[TaskCall[ResultT]]) -> list[Job[dict[str, Any], ResultT]]:
        """Add many jobs of this task: ``await task.add_bulk(task.call(each) for each in ...)``.

        Raises the errors of `Queue.add_bulk` as well.

        Args:
            calls: Calls of this task. `Queue.add_bulk` accepts calls of different tasks.

        Returns:
            The jobs, in the order of the calls.

        Raises:
            GlideMQValidationError: If one is not a call of this task.
        """
        given = list(calls)
        for i, call in enumerate(given):
            if getattr(call, "name", None) != self.name:
                raise GlideMQValidationError(f"calls[{i}]", call, f"must be a call of task {self.name!r}")
        return [self._reading(job) for job in await self.queue.add_bulk(given)]

    async def add_and_wait(self, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Add a job and wait for its result, for 30 seconds at most (`options` sets another timeout).

        Raises the errors of `Queue.add_and_wait` as well.

        Returns:
            The result, converted to the type of the function's return annotation.

        Raises:
            TypeError: If an argument is missing, unknown or given twice. Nothing was sent.
            JobFailedError: If the job failed.
            WaitTimeoutError: If the job did not end in time.
            SerializationError: If the result does not match the return annotation.
        """
        data = self._resolved.write(args, kwargs)
        value = await self.queue.add_and_wait(self.name, data, wait_timeout=self._wait_ms, **self._options)
        return self.read_result(value)

    def read_result(self, value: Any) -> ResultT:
        """Return the result of the task that is stored as this plain value.

        Raises:
            SerializationError: If it does not match the return annotation.
        """
        return cast("ResultT", self._resolved.read_result(value))

    @property
    def queue_names(self) -> tuple[str, ...]:
        """Names of the queues of the task's worker."""
        return (self._owner.queue_name, *self._owner.queue_names[1:])

    @property
    def queue(self) -> Queue:
        """The queue of the task's worker, see `Worker.queue`."""
        return self._owner._queue_for(blocking=self._is_blocking)

    @property
    def _resolved(self) -> Resolved:
        return self._parameters.resolved

    def _reading(self, job: Job) -> Job[dict[str, Any], ResultT]:
        resolved = self._resolved
        if not resolved.result.is_plain:
            job._read_result = resolved.read_result
        return job
