"""Running a handler that takes lists of jobs: gathering what was taken into batches, and ending job by job.

A batch begins when it is full, when the first of its jobs has waited long enough, or, where no wait is wanted, when
nothing more is ready. One that begins with fewer jobs than it may have withholds the slots that it leaves empty, so
that no more batches run than the worker may have. Each job keeps its own attempt: a time-out or a revocation ends
that job's alone, and the handler is stopped when no job of its batch is wanted any more.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any, Final, cast

from glidemq_py._core.logs import get_logger
from glidemq_py._job.job import Job
from glidemq_py._worker.batch_options import BatchOptions
from glidemq_py._worker.ending import AttemptRunner, ResultSink
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.outcome import Outcomes
from glidemq_py._worker.routes import Handler, Route
from glidemq_py._worker.run import Run
from glidemq_py._worker.threads import HandlerThreads
from glidemq_py.errors import (
    BatchError,
    BatchMismatchError,
    GlideMQError,
    JobSignal,
    SuspendError,
    UnsupportedOptionError,
)
from glidemq_py.telemetry.processing import observed_batch_handler
from glidemq_py.telemetry.state import TELEMETRY

__all__ = [
    "NO_CONTINUATIONS",
    "BatchRunner",
    "Ending",
    "endings_of",
]

_log = get_logger(__name__)

NO_CONTINUATIONS: Final = "a job that was suspended in a batch comes back in another one, where `job.signals` says so"


class _Batch:
    """Jobs that one call of the handler runs."""

    __slots__ = ("runs", "task")

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self.task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """No job of it is wanted any more."""
        return all(run.attempt.ended for run in self.runs)


class BatchRunner(AttemptRunner):
    """Runs the jobs that a worker took, in batches.

    Args:
        route: the handler.
        options: size of a batch, and how long it is waited for.
        outcomes, hand_in, listeners, name: as for `AttemptRunner`.
        concurrency: most batches at a time.
    """

    def __init__(
        self,
        *,
        route: Route,
        options: BatchOptions,
        outcomes: Outcomes,
        report_result: ResultSink,
        listeners: Listeners,
        concurrency: int,
        name: str,
    ) -> None:
        super().__init__(outcomes=outcomes, report_result=report_result, listeners=listeners, name=name)
        self._route = route
        self._options = options
        self._threads = HandlerThreads(concurrency, self._invoke, self._batch_ended, f"glidemq-{name}")
        self._gathered: list[Run] = []
        self._batch_of: dict[Run, _Batch] = {}
        self._deadline: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._retired = False

    # -- gathering ------------------------------------------------------------------------------------------

    def start(self, run: Run) -> None:
        """Put a job into the batch that is being gathered."""
        if self._retired:
            self._hand_in.report_result(self._outcomes.released(run), run, None, None)
            return
        self.running.add(run)
        self._gathered.append(run)
        if len(self._gathered) >= self._options.size:
            self._begin()
        elif len(self._gathered) == 1:
            if self._options.timeout:
                self._deadline = self._loop.call_later(self._options.timeout / 1000, self._wait, False)
            else:
                self._wait(True)

    def _wait(self, patient: bool) -> None:
        self._waiting = self._loop.create_task(self._begin_later(patient))

    async def _begin_later(self, patient: bool) -> None:
        # What has been asked for may still come, and would find no slot once this batch has withheld them.
        await self._hand_in.caught_up(patient)
        self._waiting = None
        if self._gathered:
            self._begin()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def retire(self) -> None:
        """No batch begins from now on; what has been gathered, and what still comes, is handed back."""
        self._retired = True
        self._stop_waiting()
        for run in list(self._gathered):
            self._give_back(run)
        self._gathered.clear()

    # -- running --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._stop_waiting()
        batch = _Batch(self._gathered)
        self._gathered = []
        self._hand_in.withhold(self._options.size - len(batch.runs))
        for run in batch.runs:
            self._batch_of[run] = batch
            if self._listeners.wanted("active"):
                self._listeners.tell("active", run.job)
            if run.options.timeout is not None:
                run.timer = self._loop.call_later(run.options.timeout / 1000, self._time_out, run)
        if self._route.in_thread:
            self._threads.submit(batch)
            return
        batch.task = self._loop.create_task(self._run(batch))
        for run in batch.runs:
            run.task = batch.task

    async def _run(self, batch: _Batch) -> None:
        try:
            answer = await self._handler([run.job for run in batch.runs])
        except KeyboardInterrupt:
            self._leave(batch)
            for run in batch.runs:
                self._give_back(run)
            raise
        except BaseException as error:
            # As for a single job: neither cancellation nor SystemExit may take the worker down.
            self._batch_ended(batch, None, error)
        else:
            self._batch_ended(batch, answer, None)

    @property
    def _handler(self) -> Handler:
        route = self._route
        return observed_batch_handler(route.handler, route.in_thread) if TELEMETRY.on else route.handler

    def _invoke(self, batch: _Batch) -> Any:
        if batch.is_over:
            return None
        return self._handler([run.job for run in batch.runs])

    def _batch_ended(self, batch: _Batch, answer: Any, error: BaseException | None) -> None:
        self._leave(batch)
        endings = endings_of([run.job for run in batch.runs], answer, error)
        for run, (result, failure) in zip(batch.runs, endings, strict=True):
            self._ended(run, result, failure)

    def _leave(self, batch: _Batch) -> None:
        self._hand_in.withhold(len(batch.runs) - self._options.size)
        for run in batch.runs:
            del self._batch_of[run]

    def _suspends(self, run: Run, signal: SuspendError) -> None:
        if signal.on_resume is not None:
            raise UnsupportedOptionError("on_resume", signal.on_resume, NO_CONTINUATIONS)

    def _cancel(self, run: Run, why: str) -> None:
        batch = self._batch_of.get(run)
        if batch is None and run not in self._gathered:
            if run.task is not None:
                run.task.cancel()  # it was not started yet (budgets.py)
        elif batch is None:
            # No handler has it yet.
            self._gathered.remove(run)
            self.running.discard(run)
            if not self._gathered:
                self._stop_waiting()
        elif batch.is_over:
            if batch.task is not None:
                batch.task.cancel()
            else:
                _log.warning(
                    "the attempts of all %d jobs of a batch of queue %r are over (%s), but a plain function cannot be "
                    "stopped: it keeps its slots until it returns; let it look at job.cancelled",
                    len(batch.runs), self._name, why,
                )  # fmt: skip

    def close(self) -> None:
        """Let idle threads end."""
        self._stop_waiting()
        self._threads.close()


Ending = tuple[Any, BaseException | None]
"""Result, or None; exception, or None."""


def endings_of(jobs: Sequence[Job[Any, Any]], answer: Any, error: BaseException | None) -> list[Ending]:
    """How each job ended, by what the handler returned (``answer``) or raised (``error``)."""
    if isinstance(error, BatchError):
        return _of_batch_error(jobs, error.results)
    if isinstance(error, JobSignal) and error.job_id is not None:
        return _of_stray_signal(jobs, error)
    if error is not None:
        return [(None, error)] * len(jobs)
    if inspect.isawaitable(answer):
        getattr(answer, "close", lambda: None)()
        return _all(jobs, GlideMQError("a plain handler returned an awaitable: make it `async def`"))
    if not isinstance(answer, (list, tuple)):
        text = f"the batch handler returned {type(answer).__name__}, not a list of {len(jobs)} results"
        return _all(jobs, BatchMismatchError(text))
    results = cast("Sequence[Any]", answer)
    if len(results) != len(jobs):
        text = f"the batch handler returned {len(results)} results for {len(jobs)} jobs"
        return _all(jobs, BatchMismatchError(text))
    return [_ending(job, result) for job, result in zip(jobs, results, strict=True)]


def _of_batch_error(jobs: Sequence[Job[Any, Any]], results: Any) -> list[Ending]:
    if not isinstance(results, (list, tuple)):
        text = f"BatchError holds {type(results).__name__}, not a list of results"
        return _all(jobs, BatchMismatchError(text))
    given = cast("Sequence[Any]", results)
    if len(given) > len(jobs):
        text = f"BatchError holds {len(given)} results for {len(jobs)} jobs"
        return _all(jobs, BatchMismatchError(text))
    endings = [_ending(job, result) for job, result in zip(jobs, given, strict=False)]
    for index in range(len(given), len(jobs)):
        missing = f"no result in BatchError: it holds {len(given)}, and this job is number {index + 1} of the batch"
        endings.append((None, BatchMismatchError(missing)))
    return endings


def _of_stray_signal(jobs: Sequence[Job[Any, Any]], signal: JobSignal) -> list[Ending]:
    """One job's signal ended the handler, so nothing is known of the others."""
    text = (
        f"the batch ended when job {signal.job_id!r} raised {type(signal).__name__}: a batch handler returns a job's "
        "signal in the place of its result"
    )
    return [(None, signal if job.id == signal.job_id else BatchMismatchError(text)) for job in jobs]


def _ending(job: Job[Any, Any], result: Any) -> Ending:
    if not isinstance(result, BaseException):
        return result, None
    if isinstance(result, JobSignal) and result.job_id not in (None, job.id):
        text = f"{type(result).__name__} of job {result.job_id!r} stands in the place of job {job.id!r}"
        return None, BatchMismatchError(text)
    return None, result


def _all(jobs: Sequence[Job[Any, Any]], error: GlideMQError) -> list[Ending]:
    return [(None, error)] * len(jobs)
