"""Runs handlers: coroutine functions in tasks, plain functions in threads, both with timeouts.

An attempt may end before its handler does (timeout, cancellation, lost lock). Its result is then reported at once and
a later result of the handler is discarded; the slot stays occupied until the handler has ended.

`BudgetGate` checks the budgets of flows before an attempt, and charges them after it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol, cast

from glidemq_py._core.calls.working import AttemptStatus, BudgetCharge, BudgetVerdicts, Finished
from glidemq_py._core.logs import ForeignFailures, get_logger, show_id
from glidemq_py._job.attempt import unstored_error
from glidemq_py._job.current import running_job
from glidemq_py._job.middleware import Middleware, handler_within
from glidemq_py._job.reports import UNKNOWN, budget_charges, budget_elsewhere, refusal
from glidemq_py._job.run import FinishedAttempt, Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.handlers import Continuations, HandlerThreads, Routes
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.results import Outcomes
from glidemq_py._worker.timeouts import cancel_task, start_timeout, stop_timeout
from glidemq_py.errors import (
    BudgetExceededError,
    EventLoopError,
    GlideMQError,
    HandlerError,
    JobInterruptedError,
    JobRevokedError,
    JobSignal,
    RateLimitError,
    StaleAttemptError,
    SuspendError,
)
from glidemq_py.telemetry.spans import observed_handler
from glidemq_py.telemetry.state import TELEMETRY

_log = get_logger(__name__)


class ResultSink(Protocol):
    """Receiver of results."""

    def job_ended(self, row: Finished, run: Run, result: Any, error: BaseException | None) -> None:
        """Report a row with the next exchange call, and free the slot of the job."""
        ...

    def attempt_ended(self, row: Finished, run: Run, result: Any, error: BaseException | None) -> None:
        """Report a row with the next exchange call. The slot stays occupied until `free_slot`."""
        ...

    def free_slot(self, run: Run) -> None:
        """Free the slot of a job whose attempt had ended before its handler."""
        ...

    def rate_limit(self, milliseconds: int) -> None:
        """Stop fetching for so many ms."""
        ...

    def pause(self) -> None:
        """Stop fetching."""
        ...


class AttemptRunner:
    """The running jobs of a worker and the end of their attempts. Subclasses run the handlers.

    Args:
        outcomes: Builds the rows that report results.
        sink: Gets the results.
        running: The running jobs; the sink adds and removes them.
        listeners: Get the worker events.
        name: Name of the queue, for threads.
    """

    def __init__(
        self, *, outcomes: Outcomes, sink: ResultSink, running: AbstractSet[Run], listeners: Listeners, name: str
    ) -> None:
        self._outcomes = outcomes
        self._sink = sink
        self._listeners = listeners
        self._failures = ForeignFailures(_log)
        self._loop = asyncio.get_running_loop()
        # Cancelled only by the end of the event loop: `asyncio.run` cancels the tasks of a worker that was not closed.
        self._until_loop_ends = self._loop.create_task(asyncio.Event().wait(), name=f"glidemq-runner-{name}")
        self.running = running
        """Every job whose handler has not ended; each occupies a slot."""

    def start(self, run: Run) -> None:
        """Start a fetched job."""
        raise NotImplementedError

    def close(self) -> None:
        """Let idle threads end."""
        self._until_loop_ends.cancel()
        for run in self.running:
            if run.timer is not None:
                stop_timeout(run)

    def refuse(self, run: Run, error: BaseException) -> None:
        """Fail the attempt of a job that was not started, with ``error``."""
        self._ended(run, None, error)

    def _ended(self, run: Run, result: Any, error: BaseException | None) -> None:
        """Free the slot of a handler that has ended, and report its result.

        Results and errors are objects of the application, and anything may raise when they are touched. So everything
        between the end of a handler and its report is done in `_outcome`, and what that raises fails the attempt.
        """
        if run.timer is not None:
            stop_timeout(run)
        if run.attempt.ended:
            self._sink.free_slot(run)
            return
        plain = error is None and run.attempt.calls is None and run.job._memo is None and not run.job._interrupted
        try:
            if plain and not inspect.isawaitable(result):
                row = self._outcomes.completed(run, result)
            else:
                row, result, error = self._outcome(run, result, error)
        except BaseException as raised:
            result, error = None, self._unprepared(run, raised)
            row = self._outcomes.failed(run, error)
        self._sink.job_ended(row, run, result, error)

    def _outcome(
        self, run: Run, result: Any, error: BaseException | None
    ) -> tuple[Finished, Any, BaseException | None]:
        """Return the row that reports the end of a handler, and the result and error for listeners."""
        if self._until_loop_ends.cancelling() and isinstance(error, (asyncio.CancelledError, EventLoopError)):
            self._sink.pause()  # or the call that releases the job would fetch it again
            run.attempt.end()
            # Interrupted, not failed; if the release is not delivered, the job stalls.
            return self._outcomes.released(run), None, None
        if run.attempt.calls is not None:
            missing = run.attempt.missing_await()
            error = missing if error is None else error
        if run.job._memo is not None:
            error = run.job._memo.outcome(error)
        if run.job._interrupted and not isinstance(error, JobInterruptedError):
            _log.warning(
                "queue %r: the handler of job %s %r caught JobInterruptedError (result %r, error %r); the job is "
                "released, and continues in another worker", run.job.queue_name, run.job.id, run.job.name, result,
                error,
            )  # fmt: skip
            error = JobInterruptedError()
        if error is None:
            if inspect.isawaitable(result):
                getattr(result, "close", lambda: None)()
                raise GlideMQError("a plain handler returned an awaitable; declare it `async def`")
            return self._outcomes.completed(run, result), result, None
        if isinstance(error, JobSignal):
            return self._report_signal(run, error), None, error
        return self._outcomes.failed(run, error), None, error

    def _unprepared(self, run: Run, raised: BaseException) -> GlideMQError:
        """Return the error of an attempt whose outcome could not be prepared."""
        # Not a subclass of the application, which may raise again, as its metaclass may.
        if vars(type)["__module__"].__get__(type(raised)) == GlideMQError.__module__:
            return cast("GlideMQError", raised)  # such as a result that cannot be serialized
        error, job = unstored_error("outcome of the handler", raised), run.job
        self._failures.log(
            job.name,
            raised,
            "queue %r: job %s %r: %s; its attempt fails",
            job.queue_name,
            show_id(job.id),
            job.name,
            error,
        )
        return error

    def _report_signal(self, run: Run, signal: JobSignal) -> Finished:
        row = self._outcomes.signalled(run, signal)
        if isinstance(signal, RateLimitError):
            self._sink.rate_limit(self._outcomes.pause_of(signal))
        elif isinstance(signal, SuspendError):
            self._suspends(run, signal)
        return row

    def _suspends(self, run: Run, signal: SuspendError) -> None:
        """Process the suspension of a job; called before it is reported."""

    # -- attempts that end before their handler -----------------------------------------------------------

    def _cancel_attempt(self, run: Run, error: BaseException) -> None:
        if run.attempt.ended or run not in self.running:
            return
        self._stop(run, type(error).__name__)
        self._sink.attempt_ended(self._outcomes.failed(run, error), run, None, error)

    def _stop(self, run: Run, why: str) -> None:
        run.attempt.end()
        if run.timer is not None:
            stop_timeout(run)
        self._cancel(run, why)

    def _cancel(self, run: Run, why: str) -> None:
        """Stop the handler of an ended attempt, if possible."""
        raise NotImplementedError

    def resize(self, concurrency: int) -> None:
        """Change the maximum number of handlers at the same time."""
        raise NotImplementedError

    def cancel(self, job_id: str, _: str | None = None) -> bool:
        """Cancel a running job (it fails as revoked); return False if this worker does not run it."""
        for run in self.running:
            if run.job.id == job_id and not run.attempt.ended:
                self._cancel_attempt(run, JobRevokedError("revoked"))
                return True
        return False

    def stop_accepting(self) -> None:
        """Start no more batches; jobs that still arrive are released."""

    def lost(self, run: Run, status: int) -> None:
        """Stop an attempt: a heartbeat found that it is not the current one any more, or that the job is revoked."""
        if status == AttemptStatus.REVOKED:
            self._cancel_attempt(run, JobRevokedError("revoked"))
        elif not run.attempt.ended and run in self.running:
            self._stop(run, AttemptStatus(status).name.lower())
            self._listeners.emit("error", StaleAttemptError(run.job.id))

    def _release(self, run: Run) -> None:
        if run.attempt.ended:
            self._sink.free_slot(run)
        else:
            run.attempt.end()
            if run.timer is not None:
                stop_timeout(run)
            self._sink.job_ended(self._outcomes.released(run), run, None, None)

    def release_all(self) -> None:
        """Stop every handler and release its job; no attempt is counted."""
        for run in sorted(self.running, key=_age):
            if not run.attempt.ended:
                self._stop(run, "the worker is closing")
                self._sink.attempt_ended(self._outcomes.released(run), run, None, None)

    @property
    def is_idle(self) -> bool:
        """True if no attempt is active; handlers of ended attempts may still run."""
        return all(run.attempt.ended for run in self.running)

    async def cancelled_ended(self, seconds: float = 1.0) -> None:
        """Wait up to so many seconds for cancelled tasks. Threads cannot be waited for."""
        tasks = {run.task for run in self.running if run.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)


def _age(run: Run) -> tuple[int, int, str]:
    """Return a sort key for the order of adding: entry ids of one millisecond differ in the last number."""
    return run.job.timestamp, len(run.attempt.entry), run.attempt.entry


class Runner(AttemptRunner):
    """Runs the jobs that a worker fetched.

    Args:
        routes: Handlers by job name.
        outcomes: Builds the rows that report results.
        sink: Gets the results.
        running: See `AttemptRunner`.
        listeners: Get the worker events.
        concurrency: Maximum number of handlers at the same time.
        name: Name of the queue, for threads and logs.
        middleware: Entered around each run, the outermost first.
    """

    def __init__(
        self,
        *,
        routes: Routes,
        outcomes: Outcomes,
        sink: ResultSink,
        running: AbstractSet[Run],
        listeners: Listeners,
        concurrency: int,
        name: str,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        super().__init__(outcomes=outcomes, sink=sink, running=running, listeners=listeners, name=name)
        self._routes = routes
        self._only = routes.only
        self._middleware = middleware
        self._continuations = Continuations()
        self._threads = HandlerThreads(concurrency, _invoke, self._ended, f"glidemq-{name}")

    def resize(self, concurrency: int) -> None:
        """See `AttemptRunner`."""
        self._threads.resize(concurrency)

    def start(self, run: Run) -> None:
        """Start the handler of a job."""
        if self._listeners.wanted("active"):
            self._listeners.emit("active", run.job)
        route = self._only or self._routes.find(run.job.name)
        if self._continuations.kept:
            route = self._continuations.route(run) or route
        if route is None:
            self._ended(run, None, HandlerError(f"this worker has no handler for jobs named {run.job.name!r}"))
            return
        handler = route.handler
        if self._middleware:
            handler = handler_within(self._middleware, handler, route.in_thread)
        run.handler = handler if not TELEMETRY.on else observed_handler(handler, route.in_thread)
        if run.options.timeout is not None:
            start_timeout(run, self._loop, self._cancel_attempt)
        if route.in_thread:
            run.attempt.owner = True
            self._threads.submit(run)
        else:
            run.task = run.attempt.owner = self._loop.create_task(self._run(run))

    async def _run(self, run: Run) -> None:
        running_job.set(run.job)
        try:
            result = await run.handler(run.job)
        except asyncio.CancelledError as error:
            self._ended(run, None, error)
        except KeyboardInterrupt:
            self._release(run)
            raise
        except BaseException as error:
            # Includes SystemExit: a handler must not end the worker and its other jobs.
            self._ended(run, None, error)
        else:
            self._ended(run, result, None)

    def _suspends(self, run: Run, signal: SuspendError) -> None:
        self._continuations.keep(run, signal)

    def _cancel(self, run: Run, why: str) -> None:
        if run.task is not None:
            cancel_task(run, run.task, why, lambda _: self._end_unstarted(run))
        else:
            _log.warning(
                "queue %r: the attempt of job %s %r ended (%s), but its handler is a plain function and cannot be "
                "stopped; it occupies its slot until it returns (check job.cancelled)",
                run.job.queue_name, run.job.id, run.job.name, why,
            )  # fmt: skip

    def _end_unstarted(self, run: Run) -> None:
        """Free the slot of a handler whose task was cancelled before its first step."""
        if run in self.running:
            self._ended(run, None, asyncio.CancelledError())

    def close(self) -> None:
        """Let idle threads end."""
        super().close()
        self._threads.close()


def _invoke(run: Run) -> Any:
    if run.attempt.ended:
        return None  # it ended (timeout, close) before a thread was free: it may already run in another worker
    running_job.set(run.job)
    return run.handler(run.job)


class BudgetGate:
    """Checks and charges the budgets of the jobs of one exchange loop.

    Args:
        link: the queue.
        listeners: receive the event ``budget_exceeded``.
    """

    def __init__(self, link: QueueLink, listeners: Listeners) -> None:
        self._link = link
        self._listeners = listeners
        self.met = False
        """True once a job with a budget has been fetched."""

    def starter(self, runner: AttemptRunner, reply: list[Any], batch: list[FinishedAttempt]) -> Callable[[Run], None]:
        """Return the function that starts the jobs of a reply, in place of ``runner.start``.

        Args:
            runner: starts the jobs.
            reply: verdicts by job id, and the rows of ``batch`` (from 1) that exceeded a limit.
            batch: the reported attempts.
        """
        verdicts: dict[str, list[str]]
        exceeding: list[int]
        verdicts, exceeding = BudgetVerdicts(*reply)
        for row in exceeding:
            self._notify(batch[row - 1].run)
        if not verdicts:
            return runner.start
        self.met = True

        def start(run: Run) -> None:
            key, verdict = verdicts.get(run.job._stored_id, ("", ""))
            if key:
                run.job._budget_key = key
            if verdict == "ask":
                run.task = asyncio.get_running_loop().create_task(self._check(runner, run, key))
            else:
                self._apply(runner, run, verdict)

        return start

    async def _check(self, runner: AttemptRunner, run: Run, key: str) -> None:
        try:
            verdict = await budget_elsewhere(self._link, run, key)
        except asyncio.CancelledError as error:
            runner.refuse(run, error)  # the attempt was cancelled from outside: its slot is free
            return
        run.task = None
        if run.attempt.ended:
            runner.refuse(run, BudgetExceededError(run.job.id))  # already ended: this only frees the slot
        else:
            self._apply(runner, run, verdict)

    def _apply(self, runner: AttemptRunner, run: Run, verdict: str) -> None:
        error = refusal(run, verdict)
        if error is None:
            runner.start(run)
            return
        if verdict != UNKNOWN:
            self._notify(run)
        runner.refuse(run, error)

    def _notify(self, run: Run) -> None:
        self._listeners.emit("budget_exceeded", run.job)

    def charges(self, batch: Iterable[FinishedAttempt]) -> list[BudgetCharge]:
        """Return the charges of the reported attempts, for `exchange`."""
        return budget_charges(self._link, (finished.run.job for finished in batch))
