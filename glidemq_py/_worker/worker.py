"""`Worker`: the public class that runs the jobs of one queue, by a handler or by tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic

from typing_extensions import TypeVar

from glidemq_py._client.transport import Connection
from glidemq_py._core.job_options import NO_OPTIONS
from glidemq_py._core.keys import DEFAULT_PREFIX, validate_prefix
from glidemq_py._core.limits import RateLimit, RateLimitDict, TokenLimiter, TokenLimiterDict
from glidemq_py._core.misuse import known_arguments
from glidemq_py._core.option_values import BackoffStrategy
from glidemq_py._core.queue_options import (
    Compression,
    DeadLetterInput,
    QueueOptions,
    Serializer,
    SerializerName,
    parse_dead_letter_queue,
)
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.many_queues import parse_queues
from glidemq_py._job.job import Job
from glidemq_py._job.middleware import Middleware
from glidemq_py._worker.base_worker import BaseWorker
from glidemq_py._worker.handlers import Route
from glidemq_py._worker.options import (
    BatchDict,
    BatchOptions,
    ExceptionTypes,
    FailureLogDict,
    FailureLogOptions,
    SandboxDict,
    SandboxOptions,
    WorkerOptions,
)
from glidemq_py._worker.tasks import TaskDecorator, TaskRegistry
from glidemq_py.errors import GlideMQValidationError

ContextT = TypeVar("ContextT", default=Any)

Handler = Callable[[Job[Any, Any, ContextT]], Any] | Callable[[list[Job[Any, Any, ContextT]]], Any]
"""A function that runs a job, or with the option ``batch`` a list of jobs."""
Lifespan = Callable[["Worker"], AbstractAsyncContextManager[ContextT]]
"""A function that returns the context manager of a worker's lifespan."""


class Worker(BaseWorker, Generic[ContextT]):
    """Runs the jobs of one or several queues in this process.

    A handler is ``async def`` (runs in a task) or a plain ``def`` (runs in a thread). It is called with the job and
    returns the job's result; with ``batch``, it is called with a list of jobs and returns a list of results. Instead
    of a handler, functions can be registered by job name with `task`.

    ``await worker.run()`` runs the worker until it is closed or the process gets SIGTERM or SIGINT.
    ``async with worker:`` runs it for the duration of the block.

    In ``Worker[ContextT]``, the parameter is the type of `Job.context`: what ``lifespan`` yields. Type checkers infer
    it, and compare it with handlers that are annotated with ``Job[DataT, ResultT, ContextT]``.

    Durations are milliseconds or a timedelta.

    Args:
        queue_name: Name of the queue. A list of names serves several queues in strict order: a queue is served only
            while the earlier ones have no ready job, so later ones may starve. A mapping of names to weights (1..1_000)
            shares the slots by weight and starves none.
        handler: Function that runs each job. ``"module:function"`` or the path of a file runs it in child processes
            (a sandbox).
        connection: URL, `ConnectionOptions`, an existing GLIDE client, or None (as for `Queue`).
        concurrency: Maximum number of jobs at the same time.
        prefix: First part of every key.
        lock_duration: Time after the last heartbeat until a job counts as stalled.
        stalled_interval: Time between checks for stalled jobs. None: the policy of the queue, else 30 seconds.
        max_stalled_count: Number of times a job may stall before it fails. None: the policy of the queue, else 1.
        stalled_grace: Time after the end of a job's lock until the job counts as stalled. None: the policy of the
            queue, else 0.
        retry_on: Exception types that are retried; None retries all.
        no_retry_on: Exception types that are not retried.
        backoff_strategies: Functions for ``backoff={"type": name}``.
        limiter: Maximum number of jobs fetched per window.
        token_limiter: Maximum number of tokens used per window.
        fair_key_preference: Turns by which jobs with the fair keys of this worker's last jobs may be early; 0: none.
        batch: Call the handler with lists of jobs.
        sandbox: Options of the child processes of a handler given as text: a `SandboxOptions` or a mapping.
        lifespan: Called with the worker; returns an async context manager that is entered before the first job and
            left after the last. Handlers get the value it yields as ``job.context``.
        serializer: Serializer of job data and results; must be the one of the queue's producers.
        compression: Compression of job data; must be the one of the queue's producers.
        dead_letter_queue: Queue that gets a copy of each failed job; see `Queue`.
        events: False disables the queue events of this worker's jobs.
        metrics: False excludes this worker's jobs from the queue's metrics.
        log_failures: Log jobs that fail, stall or expire.
        middleware: Instances of `Middleware` around every run, the outermost first, in this process; and around the
            adds of tasks.

    `WorkerOptions` has the ranges and defaults.

    Raises:
        GlideMQValidationError: If an option is invalid. The error names the option and its value.
    """

    @known_arguments("worker")
    def __init__(
        self,
        queue_name: str | Sequence[str] | Mapping[str, int],
        handler: Handler[ContextT] | str | None = None,
        connection: Connection = None,
        *,
        concurrency: int = 1,
        prefix: str = DEFAULT_PREFIX,
        lock_duration: Milliseconds = 30_000,
        stalled_interval: Milliseconds | None = None,
        max_stalled_count: int | None = None,
        stalled_grace: Milliseconds | None = None,
        retry_on: ExceptionTypes | None = None,
        no_retry_on: ExceptionTypes | None = None,
        backoff_strategies: Mapping[str, BackoffStrategy] | None = None,
        limiter: RateLimit | RateLimitDict | None = None,
        token_limiter: TokenLimiter | TokenLimiterDict | None = None,
        fair_key_preference: int = 0,
        batch: BatchOptions | BatchDict | None = None,
        sandbox: SandboxOptions | SandboxDict | None = None,
        lifespan: Lifespan[ContextT] | None = None,
        serializer: Serializer | SerializerName | None = None,
        compression: Compression = "none",
        dead_letter_queue: DeadLetterInput = None,
        events: bool = True,
        metrics: bool = True,
        log_failures: bool | FailureLogOptions | FailureLogDict = True,
        middleware: Sequence[Middleware] | None = None,
    ) -> None:
        options = WorkerOptions(
            concurrency=concurrency, lock_duration=lock_duration, stalled_interval=stalled_interval,
            max_stalled_count=max_stalled_count, stalled_grace=stalled_grace, retry_on=retry_on,
            no_retry_on=no_retry_on, backoff_strategies=backoff_strategies, limiter=limiter,
            token_limiter=token_limiter, fair_key_preference=fair_key_preference, batch=batch, events=events,
            metrics=metrics, log_failures=log_failures,
        )  # fmt: skip
        selection = parse_queues(queue_name)
        if selection.several:
            _check_several(options)
        dead_letters = parse_dead_letter_queue(dead_letter_queue, *selection.names)
        queue_options = QueueOptions(
            prefix=validate_prefix(prefix), serializer=serializer, compression=compression,
            dead_letter_queue=dead_letters, middleware=middleware,
        )  # fmt: skip
        super().__init__(queue_name, handler, connection, options, queue_options, sandbox, lifespan)
        self._tasks = TaskRegistry(self)

    @property
    def task(self) -> TaskDecorator:
        """Decorator that registers a function as the handler of one job name.

        Jobs are added through the decorated function, with the types of its signature; see `Task`. ``@worker.task``
        uses the function's name as the job name; ``@worker.task("welcome", attempts=3)`` sets another name and
        options of the jobs added through it.

        Raises:
            GlideMQValidationError: If the function or an option is invalid, or another task has the name.
            GlideMQValidationError: If the worker has the option ``batch``: a task runs one job.
            GlideMQError: If the worker is running.
        """
        if self.options.batch is not None:
            raise GlideMQValidationError("batch", self.options.batch, "tasks run one job each: use a handler")
        return TaskDecorator(self._tasks, None, NO_OPTIONS)

    def _routes_by_name(self) -> Mapping[str, Route]:
        return self._tasks.routes()


def _check_several(options: WorkerOptions) -> None:
    """Reject options that need a single queue."""
    if options.batch is not None:
        raise GlideMQValidationError("batch", options.batch, "a batch has jobs of one queue: use a worker per queue")
    limit = options.token_limiter
    if limit is not None and limit.scope != "queue":
        raise GlideMQValidationError(
            "token_limiter.scope", limit.scope, "a worker of several queues supports the scope 'queue' only"
        )
