"""Runs a handler that takes lists of jobs: collects fetched jobs into batches and reports each job on its own.

A batch starts when it is full, when its first job has waited for the timeout, or, without a timeout, when no more jobs
are ready. A batch with fewer jobs than its size withholds the unused slots, so that no more than ``concurrency``
batches run. Each job keeps its own attempt: a timeout or a cancellation ends that job's attempt alone, and the handler
is stopped when the attempts of all jobs of its batch have ended.

The partitions of a queue have a runner each and fill the same batches: a runner adds the jobs of its partition to the
collector, which calls the handler, and reports their results to that partition.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any, Final, cast

from glidemq_py._client.runtime import wait_for_event
from glidemq_py._core.logs import get_logger
from glidemq_py._job.job import Job
from glidemq_py._job.middleware import Middleware, batch_within
from glidemq_py._job.run import Run
from glidemq_py._worker.handlers import Handler, HandlerThreads, Route
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.options import BatchOptions
from glidemq_py._worker.results import Outcomes
from glidemq_py._worker.runner import AttemptRunner, ResultSink
from glidemq_py._worker.slot_pool import SlotPool
from glidemq_py._worker.timeouts import cancel_task, start_timeout
from glidemq_py.errors import (
    BatchError,
    GlideMQError,
    HandlerError,
    JobSignal,
    SuspendError,
    UnrecoverableError,
)
from glidemq_py.telemetry.spans import observed_batch_handler
from glidemq_py.telemetry.state import TELEMETRY

_log = get_logger(__name__)

_RELEASED: Final[Any] = object()
"""In place of the result of a job that is released."""


class _Batch:
    """The jobs of one call of the handler, each with the runner that reports it."""

    __slots__ = ("runs", "task")

    def __init__(self, runs: dict[Run, BatchRunner]) -> None:
        self.runs = runs
        self.task: asyncio.Task[None] | None = None

    @property
    def jobs(self) -> list[Job]:
        """The jobs, in the order of their arrival."""
        return [run.job for run in self.runs]

    @property
    def is_over(self) -> bool:
        """True if the attempts of all its jobs have ended."""
        return all(run.attempt.ended for run in self.runs)


class BatchCollector:
    """Collects the jobs of one or more runners into batches, and calls the handler.

    Args:
        route: The handler.
        options: Size and timeout of batches.
        slots: The slots of the worker.
        listeners: Get the worker events.
        concurrency: Maximum number of batches at the same time.
        name: Name of the queue, for threads.
        middleware: Entered around each batch, the outermost first.
    """

    def __init__(
        self,
        *,
        route: Route,
        options: BatchOptions,
        slots: BatchSlots,
        listeners: Listeners,
        concurrency: int,
        name: str,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        handler = batch_within(middleware, route.handler, route.in_thread) if middleware else route.handler
        self._route = Route(handler, route.in_thread)
        self.options = options
        self._slots = slots
        self._listeners = listeners
        self._concurrency = concurrency
        self._loop = asyncio.get_running_loop()
        self._threads = HandlerThreads(concurrency, self._invoke, self._ended, f"glidemq-{name}")
        self._runners: set[BatchRunner] = set()
        self._gathered: dict[Run, BatchRunner] = {}
        self._batch_of: dict[Run, _Batch] = {}
        self._running = 0
        """Number of running batches."""
        self._overdue = False
        """True if the collected jobs start as soon as another batch has ended."""
        self._deadline: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Task[None] | None = None

    def attach(self, runner: BatchRunner) -> None:
        """Register a runner, which will add jobs."""
        self._runners.add(runner)

    def detach(self, runner: BatchRunner) -> None:
        """Unregister a runner. After the last one, idle threads end."""
        self._runners.discard(runner)
        if not self._runners:
            self._stop_waiting()
            self._threads.close()

    # -- collecting -----------------------------------------------------------------------------------------

    def add(self, run: Run, runner: BatchRunner) -> None:
        """Add a job to the batch that is being collected."""
        self._gathered[run] = runner
        if len(self._gathered) >= self.options.size:
            self._begin()
        elif len(self._gathered) == 1:
            if self.options.timeout:
                self._deadline = self._loop.call_later(self.options.timeout / 1000, self._wait, False)
            else:
                self._wait(True)

    def remove(self, run: Run) -> bool:
        """Remove a job whose batch has not started; return False if it is not collected."""
        if self._gathered.pop(run, None) is None:
            return False
        if not self._gathered:
            self._stop_waiting()
        return True

    def collected_by(self, runner: BatchRunner) -> list[Run]:
        """Return the jobs of a runner whose batch has not started."""
        return [run for run, its in self._gathered.items() if its is runner]

    def _wait(self, patient: bool) -> None:
        self._waiting = self._loop.create_task(self._begin_later(patient))

    async def _begin_later(self, patient: bool) -> None:
        await asyncio.sleep(0)  # an eager task must not start a batch before all jobs of the reply are added
        # Calls in flight may still fetch jobs, which would find no slot once this batch withholds its unused ones.
        await self._slots.caught_up(patient)
        self._waiting = None
        if self._gathered:
            self._begin()

    def _stop_waiting(self) -> None:
        self._overdue = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    # -- running --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the collected jobs, in several batches if there are more than fit into one."""
        self._stop_waiting()
        while self._gathered:
            if self._running >= self._concurrency:
                # Their calls were in flight, or their budgets were checked, when the last batch started.
                self._overdue = True
                return
            size = self.options.size
            runs = self._gathered
            self._gathered = dict(islice(runs.items(), size, None))
            self._start(_Batch(dict(islice(runs.items(), size))))

    def _start(self, batch: _Batch) -> None:
        self._running += 1
        self._slots.withhold(self.options.size - len(batch.runs))
        for run, runner in batch.runs.items():
            self._batch_of[run] = batch
            if self._listeners.wanted("active"):
                self._listeners.emit("active", run.job)
            if run.options.timeout is not None:
                start_timeout(run, self._loop, runner._cancel_attempt)
        if self._route.in_thread:
            self._threads.submit(batch)
            return
        batch.task = self._loop.create_task(self._run(batch))
        for run in batch.runs:
            run.task = batch.task

    async def _run(self, batch: _Batch) -> None:
        try:
            answer = await self._handler(batch.jobs)
        except KeyboardInterrupt:
            self._leave(batch)
            for run, runner in batch.runs.items():
                runner._release(run)
            raise
        except BaseException as error:
            # As for a single job: neither cancellation nor SystemExit may take the worker down.
            self._ended(batch, None, error)
        else:
            self._ended(batch, answer, None)

    @property
    def _handler(self) -> Handler:
        route = self._route
        return observed_batch_handler(route.handler, route.in_thread) if TELEMETRY.on else route.handler

    def _invoke(self, batch: _Batch) -> Any:
        if batch.is_over:
            return None
        return self._handler(batch.jobs)

    def _ended(self, batch: _Batch, answer: Any, error: BaseException | None) -> None:
        self._leave(batch)
        try:
            results = results_by_job(batch.jobs, answer, error)
        except BaseException as raised:  # by what the handler returned or raised
            results = [runner._unprepared(run, raised) for run, runner in batch.runs.items()]
        for (run, runner), result in zip(batch.runs.items(), results, strict=True):
            if result is _RELEASED:
                runner._release(run)
                continue
            try:
                failure = _failure_in(result, run.job)
            except BaseException as raised:  # by this result alone: those of the other jobs are kept
                failure = runner._unprepared(run, raised)
            runner._ended(run, result if failure is None else None, failure)
        if self._overdue:
            self._begin()

    def _end_unstarted(self, batch: _Batch) -> None:
        """Free the slots of a batch whose task was cancelled before its first step."""
        if any(run in self._batch_of for run in batch.runs):
            self._ended(batch, None, asyncio.CancelledError())

    def _leave(self, batch: _Batch) -> None:
        self._running -= 1
        self._slots.withhold(len(batch.runs) - self.options.size)
        for run in batch.runs:
            del self._batch_of[run]

    def cancel(self, run: Run, why: str) -> bool:
        """Stop the batch of an ended attempt if the attempts of all its jobs have ended.

        Returns:
            False if the job is in no batch.
        """
        batch = self._batch_of.get(run)
        if batch is None:
            return False
        if batch.is_over:
            if batch.task is not None:
                cancel_task(run, batch.task, why, lambda _: self._end_unstarted(batch), len(batch.runs) - 1)
            else:
                _log.warning(
                    "queue %r: the attempts of all %d jobs of a batch ended (%s), but the handler is a plain function "
                    "and cannot be stopped; it occupies its slots until it returns (check job.cancelled)",
                    run.job.queue_name, len(batch.runs), why,
                )  # fmt: skip
        return True


class BatchRunner(AttemptRunner):
    """Runs the jobs that a worker fetched from one queue, in batches.

    Args:
        collector: Collects the jobs.
        outcomes: See `AttemptRunner`.
        sink: See `AttemptRunner`.
        running: See `AttemptRunner`.
        listeners: See `AttemptRunner`.
        name: See `AttemptRunner`.
    """

    def __init__(
        self,
        *,
        collector: BatchCollector,
        outcomes: Outcomes,
        sink: ResultSink,
        running: AbstractSet[Run],
        listeners: Listeners,
        name: str,
    ) -> None:
        super().__init__(outcomes=outcomes, sink=sink, running=running, listeners=listeners, name=name)
        self._collector = collector
        self._stopped = False
        collector.attach(self)

    def start(self, run: Run) -> None:
        """Add a job to the batch that is being collected."""
        if self._stopped:
            self._release(run)
        else:
            self._collector.add(run, self)

    def stop_accepting(self) -> None:
        """Start no more jobs; release the collected ones and those that still arrive."""
        self._stopped = True
        for run in self._collector.collected_by(self):
            self._collector.remove(run)
            self._release(run)

    def _suspends(self, run: Run, signal: SuspendError) -> None:
        raise UnrecoverableError(
            f"job {run.job.id!r} cannot be suspended in a batch handler; let a worker without 'batch' wait for signals"
        ) from signal

    def _cancel(self, run: Run, why: str) -> None:
        if self._collector.remove(run):
            self._sink.free_slot(run)
        elif not self._collector.cancel(run, why) and run.task is not None:
            run.task.cancel()  # not started yet: its budget is being checked

    def close(self) -> None:
        """Let idle threads end."""
        super().close()
        self._collector.detach(self)


def results_by_job(jobs: Sequence[Job], answer: Any, error: BaseException | None) -> list[Any]:
    """Return the result of each job, or an exception in its place.

    Args:
        jobs: The jobs.
        answer: The handler's return value.
        error: The exception that it raised instead, or None.
    """
    if isinstance(error, BatchError):
        return _of_batch_error(jobs, error.results)
    if isinstance(error, JobSignal) and error.job_id is not None:
        return _of_stray_signal(jobs, error)
    if error is None:
        if inspect.isawaitable(answer):
            getattr(answer, "close", lambda: None)()
            error = GlideMQError("a plain handler returned an awaitable; declare it `async def`")
        elif not isinstance(answer, (list, tuple)):
            error = HandlerError(
                f"batch handler must return a list of {len(jobs)} results (got {type(answer).__name__})"
            )
        else:
            results = list(cast("Sequence[Any]", answer))
            if len(results) == len(jobs):
                return results
            error = HandlerError(
                f"batch handler must return one result per job (got {len(results)} results for {len(jobs)} jobs)"
            )
    return [error] * len(jobs)


def _of_batch_error(jobs: Sequence[Job], results: Any) -> list[Any]:
    if not isinstance(results, (list, tuple)):
        text = f"BatchError must have a list of results (got {type(results).__name__})"
        return [HandlerError(text)] * len(jobs)
    given = list(cast("Sequence[Any]", results))
    if len(given) > len(jobs):
        text = f"BatchError must have at most one result per job (got {len(given)} results for {len(jobs)} jobs)"
        return [HandlerError(text)] * len(jobs)
    return given + [
        HandlerError(f"BatchError has no result for this job (job {index + 1} of the batch, {len(given)} results)")
        for index in range(len(given), len(jobs))
    ]


def _of_stray_signal(jobs: Sequence[Job], signal: JobSignal) -> list[Any]:
    """Return the results after one job's signal was raised: the other jobs have no result, and run again."""
    _log.warning(
        "queue %r: the batch handler raised %s of job %s, so the other %d jobs of the batch are released; return a "
        "job's signal in place of its result", jobs[0].queue_name, type(signal).__name__, signal.job_id, len(jobs) - 1,
    )  # fmt: skip
    return [signal if job.id == signal.job_id else _RELEASED for job in jobs]


def _failure_in(result: Any, job: Job) -> BaseException | None:
    """Return the exception that is in place of a job's result, or None."""
    if not isinstance(result, BaseException):
        return None
    if isinstance(result, JobSignal) and result.job_id not in (None, job.id):
        text = f"{type(result).__name__} of job {result.job_id!r} was returned in place of the result of job {job.id!r}"
        return HandlerError(text)
    return result


class BatchSlots:
    """The slots of a worker that runs batches.

    Args:
        pool: The slots.
    """

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()

    def withhold(self, slots: int) -> None:
        """Take ``slots`` out of use; a negative number returns them."""
        self._pool.free -= slots
        if slots < 0:
            self._loop.call_soon(self._pool.pump)

    async def caught_up(self, patient: bool) -> None:
        """Wait until no call in flight may fetch jobs and, if ``patient``, until no job is ready.

        One of several queues, or parts, whose server is slow, or does not reply, is not waited for.
        """
        pool, changed = self._pool, asyncio.Event()
        pool.changed = changed.set
        try:
            while self._is_behind(patient):
                changed.clear()
                await wait_for_event(changed, pool.late_s)
        finally:
            pool.changed = None

    def _is_behind(self, patient: bool) -> bool:
        pool = self._pool
        earliest = self._loop.time() - pool.late_s if pool.is_shared else 0.0
        for each in pool.engines:
            since = each.unanswered_since
            if since is not None and since < earliest:
                continue
            if each.requested_slots or (patient and pool.free > 0 and each.may_request):
                return True
        return False
