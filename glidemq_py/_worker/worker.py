"""`Worker`: what a service holds. It names, wires up and delegates; the work is in the files beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from glidemq_py._api.queue import Queue
from glidemq_py._client.connect import Connection
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.names import validate_prefix, validate_queue_name
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, QueueOptions, Serializer, SerializerName
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.dead_letters.options import DeadLetterInput, parse_dead_letter_queue
from glidemq_py._features.limits.options import RateLimit, RateLimitDict, TokenLimiter, TokenLimiterDict
from glidemq_py._job import Job, QueueLink
from glidemq_py._worker.batch_options import BatchDict, BatchOptions
from glidemq_py._worker.components import WorkerComponents
from glidemq_py._worker.connecting import consumer_name
from glidemq_py._worker.drain import is_drained
from glidemq_py._worker.exchange import ExchangeLoop
from glidemq_py._worker.failure_log_options import FailureLogDict, FailureLogOptions
from glidemq_py._worker.lifecycle import Lifecycle
from glidemq_py._worker.lifespan import check_lifespan
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.options import BackoffStrategy, ExceptionTypes, WorkerOptions
from glidemq_py._worker.routes import Route, Routes
from glidemq_py._worker.sandbox import sandboxed
from glidemq_py._worker.sandbox.options import SandboxDict, SandboxOptions
from glidemq_py._worker.shutdown import closing_on_signals
from glidemq_py._worker.tasks import TaskDecorator, TaskRegistry
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError, UnsupportedOptionError

__all__ = ["Worker"]

Listener = TypeVar("Listener", bound=Callable[..., Any])

Lifespan = Callable[["Worker"], AbstractAsyncContextManager[Any]]

_SILENT_S = 30.0
_POLL_S = 0.1


class Worker:
    """Runs the jobs of one queue in this process.

    A handler is ``async def`` (runs in a task) or a plain ``def`` (runs in a thread); it takes the job and its
    return value is the job's result; with ``batch``, a list of jobs and a list of results. Without a handler,
    register functions by job name with `task`.

    ``await worker.run()`` works until it is closed or the process gets SIGTERM or SIGINT; ``async with worker:``
    works while the block lasts.

    Args:
        queue_name: the queue.
        handler: what runs each job; ``"module:function"`` or the path of a file runs it in processes of its own.
        connection: URL, `ConnectionOptions`, an existing GLIDE client, or None (``GLIDEMQ_URL``, else embedded).
        prefix: first part of every key.
        serializer, compression: as the queue's producers use them.
        dead_letter_queue: as for `Queue`.
        sandbox: those processes: a `SandboxOptions`, or a mapping of its fields.
        lifespan: ``async with lifespan(worker) as context`` around the worker's life in this process; handlers
            find what it yields in ``job.context``.
        concurrency, lock_duration, stalled_interval, max_stalled_count, retry_on, no_retry_on,
        backoff_strategies, limiter, token_limiter, batch, events, metrics, log_failures: see `WorkerOptions`.

    Raises:
        GlideMQValidationError: an option cannot be; it is named with its value.
    """

    def __init__(
        self,
        queue_name: str,
        handler: Callable[[Any], Any] | str | None = None,
        connection: Connection = None,
        *,
        concurrency: int = 1,
        prefix: str = DEFAULT_PREFIX,
        lock_duration: Milliseconds = 30_000,
        stalled_interval: Milliseconds = 30_000,
        max_stalled_count: int = 1,
        retry_on: ExceptionTypes | None = None,
        no_retry_on: ExceptionTypes | None = None,
        backoff_strategies: Mapping[str, BackoffStrategy] | None = None,
        limiter: RateLimit | RateLimitDict | None = None,
        token_limiter: TokenLimiter | TokenLimiterDict | None = None,
        batch: BatchOptions | BatchDict | None = None,
        sandbox: SandboxOptions | SandboxDict | None = None,
        lifespan: Lifespan | None = None,
        serializer: Serializer | SerializerName | None = None,
        compression: Compression = "none",
        dead_letter_queue: DeadLetterInput = None,
        events: bool = True,
        metrics: bool = True,
        log_failures: bool | FailureLogOptions | FailureLogDict = True,
    ) -> None:
        self.queue_name = validate_queue_name(queue_name)
        self.options = WorkerOptions(
            concurrency=concurrency, lock_duration=lock_duration, stalled_interval=stalled_interval,
            max_stalled_count=max_stalled_count, retry_on=retry_on, no_retry_on=no_retry_on,
            backoff_strategies=backoff_strategies, limiter=limiter, token_limiter=token_limiter, batch=batch,
            events=events, metrics=metrics, log_failures=log_failures,
        )  # fmt: skip
        self._queue_options = QueueOptions(
            prefix=validate_prefix(prefix), serializer=serializer, compression=compression,
            dead_letter_queue=parse_dead_letter_queue(dead_letter_queue, queue_name),
        )  # fmt: skip
        self._keys = QueueKeys(prefix, queue_name)
        self._sandbox = sandboxed(handler, sandbox, self.options, self._queue_options, self._job_type)
        self._handler: Callable[[Any], Any] | None = handler if self._sandbox is None else self._sandbox  # type: ignore[assignment]
        self._tasks = TaskRegistry(self)
        self._connection = connection
        self._lifespan = None if lifespan is None else check_lifespan(lifespan)
        self._listeners = Listeners()
        self.consumer = consumer_name()
        self._queue: Queue[Any, Any] | None = None
        self._life = Lifecycle(self.queue_name, self._listeners, self._close_queue)

    _job_type: type[Job[Any, Any]] = Job
    """What its handlers get."""

    # -- what it tells and takes --------------------------------------------------------------------------

    def on(self, event: str, listener: Listener) -> Listener:
        """Call ``listener`` (plain or async) at an event of this worker:

        ``active`` (job), ``completed`` (job, result), ``retrying`` (job, error), ``failed`` (job, error; for good),
        ``delayed`` (job, signal), ``suspended`` (job, signal), ``waiting-children`` (job), ``stalled`` (job id),
        ``drained`` (), ``budget_exceeded`` (job; of its flow), ``error`` (error), ``closing`` (), ``closed`` ().

        Raises GlideMQValidationError for an event there is not, or what cannot be called.
        """
        self._listeners.on(event, listener)
        return listener

    def off(self, event: str, listener: Callable[..., Any]) -> None:
        """Take a listener away again."""
        self._listeners.off(event, listener)

    @property
    def task(self) -> TaskDecorator:
        """Decorator that makes a function the handler of one job name, with adding typed by its signature.

        ``@worker.task`` takes the function's own name, ``@worker.task("welcome", attempts=3)`` another, with options
        for the jobs that are added through it. See `Task`.

        Raises:
            GlideMQValidationError: the function or an option cannot be, or the name is another task's.
            UnsupportedOptionError: the worker has a ``batch``: a task runs one job.
            GlideMQError: the worker is running.
        """
        if self.options.batch is not None:
            raise UnsupportedOptionError("batch", self.options.batch, "tasks run one job each: use a handler")
        return self._tasks.decorator

    def override(
        self, *, concurrency: int | None = None, connection: Connection = None, prefix: str | None = None
    ) -> None:
        """Change options before `start`, as a command line does; None keeps what there is.

        Raises:
            GlideMQValidationError: a value cannot be; nothing is changed.
            GlideMQError: the worker has been started or closed, or its `queue` is in use already.
        """
        if self._life.parts is not None or self._life.is_closing or self._queue is not None:
            raise GlideMQError(f"the options of {self!r} cannot be changed any more: it is in use")
        options = self.options if concurrency is None else replace(self.options, concurrency=concurrency)
        if prefix is not None:
            self._queue_options = replace(self._queue_options, prefix=validate_prefix(prefix))
            self._keys = QueueKeys(prefix, self.queue_name)
        self.options = options
        self._connection = self._connection if connection is None else connection

    # -- life ---------------------------------------------------------------------------------------------

    @property
    def _exchange(self) -> ExchangeLoop | None:
        return None if self._life.parts is None else self._life.parts.exchange

    @property
    def is_running(self) -> bool:
        """True from start to the beginning of close."""
        return self._life.parts is not None and not self._life.is_closing

    @property
    def is_paused(self) -> bool:
        """True while this worker takes no jobs (`pause`); the queue's own pause is another thing."""
        return self._life.is_paused

    @property
    def is_healthy(self) -> bool:
        """False if this worker should be taking jobs but has had no answer from the server for 30 seconds."""
        return self.is_running and self.unresponsive_seconds < _SILENT_S

    @property
    def unresponsive_seconds(self) -> float:
        """Seconds for which the server has owed an answer; 0 with every slot busy. An idle worker asks each second."""
        return 0.0 if self._exchange is None else self._exchange.unresponsive_seconds

    @property
    def active_count(self) -> int:
        """Handlers that are running."""
        return 0 if self._life.parts is None else len(self._life.parts.runner.running)

    @property
    def jobs_ended(self) -> int:
        """Attempts whose outcome this worker has handed in."""
        return 0 if self._exchange is None else self._exchange.answers.jobs_ended

    async def start(self) -> None:
        """Connect and begin to take jobs. A server that is not there yet is waited for, with growing pauses.

        Raises:
            GlideMQValidationError: neither a handler nor a task is registered.
            ClosedError: it was closed, before or meanwhile.
            and whatever the lifespan raises; such a worker may be started again.
        """
        await self._life.start(self._prepare)

    async def wait_until_ready(self) -> None:
        """Wait until it works: for the `start` that is under way, or by starting it. Raises as `start`."""
        await self._life.wait_until_ready(self._prepare)

    def _prepare(self) -> WorkerComponents:
        return WorkerComponents(
            keys=self._keys, connection=self._connection, queue_options=self._queue_options, options=self.options,
            routes=self._routes(), consumer=self.consumer, listeners=self._listeners,
            lifespan=None if self._lifespan is None else partial(self._lifespan, self), sandbox=self._sandbox,
        )  # fmt: skip

    def _routes(self) -> Routes:
        by_name = self._tasks.routes()
        if self._handler is None and not by_name:
            raise GlideMQValidationError("handler", None, "the worker has neither a handler nor tasks")
        return Routes(None if self._handler is None else Route.to(self._handler), by_name)

    async def run(self) -> None:
        """Work until closed. SIGTERM or SIGINT closes gracefully, a second one hands running jobs back at once.

        Signals reach every worker of the process that runs so, in any thread, if one of them runs in the main thread.
        The same signal within a second counts once: terminals and service managers repeat it.
        """
        with closing_on_signals(self) as closing:
            try:
                await self.start()
            except ClosedError:
                if not closing:
                    raise
            await self.wait_until_closed()
        await self.close()  # raises what the lifespan raised at its end

    async def wait_until_closed(self) -> None:
        """Wait for the end of `close`, whoever called it."""
        await self._life.wait_until_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Worker of queue {self.queue_name!r}>"

    # -- steering -----------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Take no more jobs; what is running runs on."""
        self._life.pause()

    def resume(self) -> None:
        """Take jobs again."""
        self._life.resume()

    def abort_job(self, job_id: str) -> bool:
        """Stop the attempt of a job that this worker runs, as `Queue.revoke` does wherever it runs.

        The job fails for good as revoked, whatever its handler still returns: an ``async def`` is cancelled, in a
        sandbox its process is killed, a plain function finds ``job.cancelled`` set.

        Returns:
            False if this worker does not run the job.
        """
        return self._life.parts is not None and self._life.parts.runner.abort(str(job_id))

    def rate_limit(self, duration: Milliseconds) -> None:
        """Take no more jobs for a while, ms or timedelta; a pause of that kind that lasts longer stands.

        Raises GlideMQError if the worker does not run.
        """
        ms = to_ms("duration", duration)
        if self._exchange is None:
            raise GlideMQError("the worker has not been started")
        self._exchange.rate_limit(ms)

    async def drain(self) -> None:
        """Work until the queue has nothing waiting, parked, delayed, prioritized or active any more, then close."""
        if self._life.parts is None:
            raise GlideMQError("the worker has not been started")
        parts = self._life.parts
        while not self._life.is_closing:
            if not parts.runner.running and await self._is_drained(parts.link):
                break
            await asyncio.sleep(_POLL_S)
        await self.close()

    async def _is_drained(self, link: QueueLink) -> bool:
        """True if nothing waits, runs, is due later, or is parked."""
        return await is_drained(link)

    async def close(self, timeout: Milliseconds | None = None, *, force: bool = False) -> None:
        """Take no more jobs, wait for the running ones, hand everything in, leave. Idempotent.

        Nothing is stranded and no attempt is spent: what is still running when ``timeout`` (ms or timedelta; None =
        as long as it takes) is over, or at once with ``force``, is stopped and handed back to the queue. Plain
        functions in threads cannot be stopped; their jobs are handed back all the same.

        Raises:
            GlideMQError: called by one of its own handlers, for which it would have to wait.
            and whatever the lifespan raises at its end.
        """
        await self._life.close(None if timeout is None else to_ms("timeout", timeout) / 1000, force=force)

    async def _close_queue(self) -> None:
        if self._queue is not None:
            await self._queue.close()

    # -- for its tasks --------------------------------------------------------------------------------------

    @property
    def queue(self) -> Queue[Any, Any]:
        """A queue on this worker's connection, for adding jobs to it; made when first asked for.

        A process that only adds may close it (``async with worker.queue:``) without the worker ever running, and
        gets a new one afterwards.
        """
        if self._queue is None or (self._queue._closed and not self._life.is_closing):
            options = self._queue_options
            self._queue = Queue(
                self.queue_name, self._connection, prefix=options.prefix, serializer=options.serializer,
                compression=options.compression,
            )  # fmt: skip
        return self._queue
