"""`BaseWorker`: starting, control and events of a worker. It delegates to the other modules of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any, Self, cast

from typing_extensions import TypeVar

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.transport import Connection, check_connection
from glidemq_py._core.checks import check_int
from glidemq_py._core.forks import new_lock
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.misuse import AsyncOnly
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.many_queues import parse_queues
from glidemq_py._job.job import Job
from glidemq_py._job.run import Run
from glidemq_py._worker.handlers import Route, Routes
from glidemq_py._worker.heartbeat import CommandRunner
from glidemq_py._worker.lifecycle import Lifecycle
from glidemq_py._worker.listeners import Listeners, WorkerEvent
from glidemq_py._worker.opening import ServedQueue, WorkerComponents, check_lifespan, consumer_name
from glidemq_py._worker.options import MAX_CONCURRENCY, SandboxDict, SandboxOptions, WorkerOptions
from glidemq_py._worker.sandbox import sandboxed
from glidemq_py._worker.shutdown import closing_on_signals
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError

Listener = TypeVar("Listener", bound=Callable[..., Any])

_SILENT_S = 30.0
_POLL_S = 0.1
_SHOWN = 5


class BaseWorker(AsyncOnly):
    """What `Worker` and `BroadcastWorker` have in common: starting, control and events.

    Args:
        queue_name: Name of the queue or broadcast, or several queues; see `Worker`.
        handler: Function that runs each job, the text that names it, or None.
        connection: As for `Worker`.
        options: Options of the worker.
        queue_options: Options of the queue.
        sandbox: Options of the child processes of a handler given as text.
        lifespan: As for `Worker`.

    Raises:
        GlideMQValidationError: If an option is invalid. The error names the option and its value.
    """

    def __init__(
        self,
        queue_name: str | Sequence[str] | Mapping[str, int],
        handler: Callable[..., Any] | str | None,
        connection: Connection,
        options: WorkerOptions,
        queue_options: QueueOptions,
        sandbox: SandboxOptions | SandboxDict | None,
        lifespan: Callable[[Any], AbstractAsyncContextManager[Any]] | None,
    ) -> None:
        self._selection = parse_queues(queue_name)
        self.queue_names = self._selection.names
        """Names of the queues."""
        self.queue_name = self.queue_names[0]
        """Name of the queue; of several, the first."""
        if connection is not None:
            check_connection(connection)
        self.options = options
        self._queue_options = queue_options
        self._keys = QueueKeys(queue_options.prefix, self.queue_name)
        self._sandbox = sandboxed(handler, sandbox, options, queue_options, self._job_type)
        self._handler = cast("Callable[[Any], Any] | None", handler if self._sandbox is None else self._sandbox)
        self._connection = connection
        self._lifespan = None if lifespan is None else check_lifespan(lifespan)
        failures = options.log_failures
        self._listeners = Listeners(self) if failures is None else Listeners(self, failures.per_minute or 1)
        self._queues: dict[bool, Queue] = {}
        self._concurrency: int | None = None
        self._renew()

    def _renew(self) -> None:
        """Let a closed worker start again."""
        self.consumer = consumer_name()
        self._control = CommandRunner(self)
        self._life = Lifecycle(self.queue_name, self._listeners, self._close_queues)

    _job_type: type[Any] = Job
    """Class of the jobs that handlers are called with."""

    # -- events -----------------------------------------------------------------------------------------

    def on(self, event: WorkerEvent, listener: Listener) -> Listener:
        """Add a listener (plain or async) for an event of this worker.

        Events and arguments: ``active`` (job), ``completed`` (job, result), ``retrying`` (job, error), ``failed``
        (job, error; no retry follows), ``delayed`` (job, signal), ``suspended`` (job, signal), ``waiting-children``
        (job), ``stalled`` (job id), ``drained`` (), ``budget_exceeded`` (job; the budget of its flow), ``error``
        (error), ``closing`` (), ``closed`` (). A listener of ``stalled`` or ``drained`` that requires one more argument
        gets the name of the queue as well.

        Returns:
            The listener.

        Raises:
            GlideMQValidationError: If the event does not exist or the listener cannot be called with its arguments.
        """
        self._listeners.on(event, listener)
        return listener

    def off(self, event: WorkerEvent, listener: Callable[..., Any]) -> None:
        """Remove a listener. Does nothing if it is not registered."""
        self._listeners.off(event, listener)

    def override(
        self, *, concurrency: int | None = None, connection: Connection = None, prefix: str | None = None
    ) -> None:
        """Change options before `start`, as the command line does.

        Args:
            concurrency: Maximum number of jobs at the same time; None keeps the current value.
            connection: Connection of the worker; None keeps the current value.
            prefix: First part of every key; None keeps the current value.

        Raises:
            GlideMQValidationError: If a value is invalid. Nothing is changed.
            GlideMQError: If the worker was started or closed, or its `queue` is already in use.
        """
        if self._life.lanes is not None or self._life.is_closing or self._queues:
            raise GlideMQError(f"{self!r}: options cannot be changed after the worker or its queue is in use")
        if connection is not None:
            check_connection(connection)
        options = self.options if concurrency is None else self.options.with_changes(concurrency=concurrency)
        if prefix is not None:
            self._queue_options = self._queue_options.with_changes(prefix=prefix)
            self._keys = QueueKeys(prefix, self.queue_name)
        self.options = options
        self._connection = self._connection if connection is None else connection

    # -- lifecycle ----------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True between `start` and `close`."""
        return self._life.lanes is not None and not self._life.is_closing

    @property
    def is_paused(self) -> bool:
        """True while this worker is paused (`pause`). Pausing the queue (`Queue.pause`) does not change it."""
        return self._life.is_paused

    @property
    def is_healthy(self) -> bool:
        """False if the worker is not running, or fetches jobs and has had no reply from the server for 30 seconds."""
        return self.is_running and self.unresponsive_seconds < _SILENT_S

    @property
    def unresponsive_seconds(self) -> float:
        """Seconds since the oldest unanswered call, or else since the last reply; 0 if every slot is busy.

        An idle worker calls the server about once per second.
        """
        return 0.0 if self._life.lanes is None else self._life.lanes.unresponsive_seconds

    @property
    def active_count(self) -> int:
        """Number of handlers that are running."""
        return len(self._runs)

    @property
    def concurrency(self) -> int:
        """Maximum number of jobs (of a batch handler: of batches) that run at the same time."""
        return self.options.concurrency if self._concurrency is None else self._concurrency

    @property
    def _runs(self) -> Sequence[Run]:
        """The running jobs."""
        return () if self._life.lanes is None else self._life.lanes.running

    async def start(self) -> None:
        """Connect and start fetching jobs.

        If the server cannot be reached, connecting is retried with growing pauses. Errors of the lifespan are raised
        as they are, and the worker can be started again.

        Raises:
            GlideMQValidationError: If neither a handler nor a task is registered.
            ClosedError: If the worker was closed before or during the start.
        """
        await self._life.start(self._prepare)

    async def wait_until_ready(self) -> None:
        """Wait until the worker has started; start it if nothing else has. Raises the errors of `start`."""
        await self._life.wait_until_ready(self._prepare)

    def _prepare(self) -> WorkerComponents:
        return WorkerComponents(
            keys=self._keys, connection=self._connection, queue_options=self._queue_options, options=self.options,
            routes=self._routes(), consumer=self.consumer, listeners=self._listeners,
            lifespan=None if self._lifespan is None else partial(self._lifespan, self), sandbox=self._sandbox,
            control=self._control, queues=self._served_queues(), weighted=self._selection.weighted,
        )  # fmt: skip

    def _served_queues(self) -> tuple[ServedQueue, ...]:
        options, (names, weights, *_) = self._queue_options, self._selection
        keys = [self._keys] if len(names) == 1 else [QueueKeys(options.prefix, name) for name in names]
        return tuple(ServedQueue(each, options, weight) for each, weight in zip(keys, weights, strict=True))

    def _routes(self) -> Routes:
        """Return the handlers of job names. Raises GlideMQValidationError if there is none."""
        by_name = self._routes_by_name()
        if self._handler is None and not by_name:
            raise GlideMQValidationError("handler", None, "the worker has neither a handler nor tasks")
        return Routes(None if self._handler is None else Route.to(self._handler), by_name)

    def _routes_by_name(self) -> Mapping[str, Route]:
        return {}

    async def run(self) -> None:
        """Run until the worker is closed.

        The first SIGTERM or SIGINT closes it gracefully, a second one releases the running jobs at once. If one worker
        runs like this in the main thread, signals close every worker of the process that runs like this, in any
        thread. A signal repeated within one second counts once, because terminals and service managers repeat signals.

        Cancelling it has the same effect as a signal, and it is cancelled when the worker is closed. A worker that runs
        already, such as within ``async with worker``, is not started again.

        Raises:
            UnsupportedFeatureError: If the queue uses, or begins to use, a feature of a later version of this package.
        """
        cancelled = False
        with closing_on_signals(self) as (closing, close):
            running = asyncio.create_task(self._run(closing), name=f"glidemq-run-{self.queue_name}")
            while not running.done():
                try:
                    await asyncio.wait({running})
                except asyncio.CancelledError:
                    if running.cancelling():
                        raise  # the event loop ends, and has cancelled every task
                    cancelled = True
                    close("cancelled")
        if cancelled:
            running.exception()
            raise asyncio.CancelledError
        running.result()

    async def _run(self, closing: Sequence[object]) -> None:
        try:
            await self.wait_until_ready()
        except ClosedError:
            if not closing:
                raise
        await self.wait_until_closed()
        await self.close()  # raises the error of the lifespan's exit

    async def wait_until_closed(self) -> None:
        """Wait until the worker is closed.

        Raises:
            UnsupportedFeatureError: If it was closed because its queue now uses a feature of a later version.
        """
        await self._life.wait_until_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        if self._selection.several:
            names = ", ".join(map(repr, self.queue_names[:_SHOWN]))
            more = len(self.queue_names) - _SHOWN
            return f"<{type(self).__name__} of queues {names}{f' and {more} more' if more > 0 else ''}>"
        return f"<{type(self).__name__} of queue {self.queue_name!r}>"

    # -- control ------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop fetching jobs. Running jobs continue."""
        self._life.pause()

    def resume(self) -> None:
        """Fetch jobs again."""
        self._life.resume()

    def set_concurrency(self, concurrency: int) -> None:
        """Change how many jobs run at the same time. Running jobs continue. `Queue.workers.resize` does it remotely.

        Args:
            concurrency: Maximum number of jobs, 1..10_000.

        Raises:
            GlideMQValidationError: If ``concurrency`` is invalid.
            GlideMQError: If the worker was not started, or has a batch handler or a sandbox.
        """
        wanted = check_int("concurrency", concurrency, 1, MAX_CONCURRENCY)
        if self._life.lanes is None:
            raise self._not_started()
        if self.options.batch is not None or self._sandbox is not None:
            raise GlideMQError(f"{self!r} has a batch handler or a sandbox; restart it with another concurrency")
        self._concurrency = wanted
        self._life.lanes.resize(wanted)

    def cancel_job(self, job_id: str, queue: str | None = None) -> bool:
        """Cancel a job that this worker runs. `Queue.revoke` cancels a job of any worker.

        The job fails as revoked, without a retry; a result that its handler still returns is discarded. An
        ``async def`` handler is cancelled, the process of a sandboxed handler is killed, and a plain function must
        check ``job.cancelled``.

        Args:
            job_id: Id of the job.
            queue: Queue of the job, for a worker of several queues: jobs of different queues may have equal ids.

        Returns:
            False if this worker does not run the job.

        Raises:
            GlideMQValidationError: If ``queue`` is not a queue of this worker, or is None and jobs of several queues
                with this id are running; none of them is cancelled then.
        """
        if queue is not None and queue not in self.queue_names:
            raise GlideMQValidationError("queue", queue, f"must be a queue of {self!r}")
        return self._life.lanes is not None and self._life.lanes.cancel(str(job_id), queue)

    def rate_limit(self, duration: Milliseconds) -> None:
        """Stop fetching jobs for ``duration``; a longer pause that is already in effect is kept.

        Args:
            duration: Milliseconds or a timedelta.

        Raises:
            GlideMQValidationError: If the duration is invalid.
            GlideMQError: If the worker was not started.
        """
        ms = to_ms("duration", duration)
        if self._life.lanes is None:
            raise self._not_started()
        self._life.lanes.rate_limit(ms)

    async def drain(self) -> None:
        """Run until the queue has no waiting, parked, delayed, prioritized or active jobs, then close.

        Raises:
            GlideMQError: If the worker was not started.
        """
        lanes = self._life.lanes
        if lanes is None:
            raise self._not_started()
        while not self._life.is_closing:
            if await lanes.is_drained() and all(run.attempt.ended for run in self._runs):
                break
            await asyncio.sleep(_POLL_S)
        await self.close()

    def _not_started(self) -> GlideMQError:
        return GlideMQError(f"{self!r} was not started; use 'async with', or await its start() first")

    async def close(self, timeout: Milliseconds | None = None, *, force: bool = False) -> None:
        """Stop fetching jobs, wait for the running ones, report their results and disconnect. Idempotent.

        Jobs that still run after ``timeout``, or at once with ``force``, are cancelled and released: they return to
        the queue and no attempt is counted. A plain function in a thread cannot be stopped; its job is released
        anyway. Errors of the lifespan's exit are raised as they are.

        If the server does not reply once no job runs any more, a WARNING is logged and the results are kept for at
        most the request timeout plus the lock duration; other workers run the jobs again from then on. Each result
        that is not reported by then is logged as an ERROR. Releasing and disconnecting take at most 5 seconds beyond
        ``timeout`` each, and about 2 seconds in all if the server is known to be unreachable.

        Args:
            timeout: Milliseconds or a timedelta; None waits for as long as the jobs run.
            force: True releases the running jobs at once.

        Raises:
            GlideMQError: If called by one of the worker's own handlers, which it would have to wait for.
        """
        await self._life.close(None if timeout is None else to_ms("timeout", timeout) / 1000, force=force)

    async def _close_queues(self) -> None:
        await close_queues(self._queues)

    # -- its queue ------------------------------------------------------------------------------------------

    @property
    def queue(self) -> Queue:
        """A `Queue` with this worker's name and connection options, for adding jobs; created at the first use.

        A process that only adds jobs can close it (``async with worker.queue:``) without running the worker. After
        that, the property returns a new queue.

        Raises:
            GlideMQError: If the worker serves several queues: create a `Queue` with the name of one.
        """
        return self._queue_for(blocking=False)

    def _queue_for(self, *, blocking: bool) -> Queue:
        """Return the queue for coroutines, or that for blocking code. Raises as `queue`."""
        if self._selection.several:
            raise GlideMQError(f"{self!r} has several queues: add jobs through a Queue with the name of one")
        with _creating:
            found = self._queues.get(blocking)
            if found is None or (found._closed and not self._life.is_closing):
                options = self._queue_options
                found = self._queues[blocking] = _queue_type(blocking)(
                    self.queue_name, self._connection, prefix=options.prefix, serializer=options.serializer,
                    compression=options.compression, middleware=options.middleware,
                )  # fmt: skip
            return found

    def _close_blocking_queue(self) -> None:
        """Close the queue for blocking code; `override` may then change its connection."""
        if (queue := self._queues.pop(True, None)) is not None:
            from glidemq_py._client.portal import drive

            drive(queue.close())

    @contextmanager
    def _adding_to(self, queue: Queue) -> Generator[None]:
        """Let tasks add their jobs to another queue."""
        before, self._queues = self._queues, {False: queue}
        try:
            yield
        finally:
            self._queues = before


_creating = new_lock()


def _queue_type(blocking: bool) -> type[Queue]:
    if not blocking:
        return Queue
    from glidemq_py._api.blocking_queue import QueueCore  # imports the portal

    return QueueCore


async def close_queues(queues: Mapping[bool, Queue]) -> None:
    """Close the queues of a worker, by whether they are for blocking code."""
    for blocking, queue in queues.items():
        if blocking:
            from glidemq_py._client.portal import drive

            await asyncio.to_thread(drive, queue.close())
        else:
            await queue.close()
