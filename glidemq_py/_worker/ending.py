"""How attempts end: with their handler, or before it.

An attempt may end before its handler does (time-out, revocation, loss of the job). Its outcome is handed in at
once and whatever the handler still brings is refused; the slot stays taken until the handler has really ended.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Protocol

from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.outcome import Outcomes
from glidemq_py._worker.run import Run
from glidemq_py.errors import (
    GlideMQError,
    JobRevokedError,
    JobSignal,
    JobTimeoutError,
    RateLimitError,
    StaleAttemptError,
    SuspendError,
)

__all__ = ["AttemptRunner", "ResultSink"]


class ResultSink(Protocol):
    """Where outcomes go."""

    def report_result(self, row: list[object], run: Run, result: Any, error: BaseException | None) -> None:
        """Have a finished row sent with the next exchange."""
        ...

    def rate_limit(self, milliseconds: int) -> None:
        """Take no jobs for a while."""
        ...

    def schedule_pump(self) -> None:
        """Something changed (a slot is free): see whether there is anything to do."""
        ...

    def withhold(self, slots: int) -> None:
        """So many slots are not to be used for now; a negative number gives them back."""
        ...

    async def caught_up(self, patient: bool) -> None:
        """Wait until no job is asked for that may still come; ``patient``: and until none is ready."""
        ...


class AttemptRunner:
    """The jobs in a worker's hands, and how they leave them. What runs them stands in subclasses.

    Args:
        outcomes: what an end means for a job.
        hand_in: where outcomes go.
        listeners: who is told.
        name: of the queue, for threads and logs.
    """

    def __init__(self, *, outcomes: Outcomes, report_result: ResultSink, listeners: Listeners, name: str) -> None:
        self._outcomes = outcomes
        self._hand_in = report_result
        self._listeners = listeners
        self._name = name
        self._loop = asyncio.get_running_loop()
        self.running: set[Run] = set()
        """Every job whose handler has not ended; each takes a slot."""

    def start(self, run: Run) -> None:
        """A job has been taken."""
        raise NotImplementedError

    def close(self) -> None:
        """Let idle threads end."""
        raise NotImplementedError

    def refuse(self, run: Run, error: BaseException) -> None:
        """End the attempt of a job that was not started with ``error``."""
        self._ended(run, None, error)

    def _ended(self, run: Run, result: Any, error: BaseException | None) -> None:
        """A handler has ended, in whatever way: its slot is free."""
        self.running.discard(run)
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if run.attempt.ended:
            self._hand_in.schedule_pump()
            return
        if error is None:
            if inspect.isawaitable(result):
                getattr(result, "close", lambda: None)()
                error = GlideMQError("a plain handler returned an awaitable: make it `async def`")
            else:
                try:
                    self._hand_in.report_result(self._outcomes.completed(run, result), run, result, None)
                    return
                except GlideMQError as refused:
                    error = refused
        if isinstance(error, JobSignal):
            try:
                self._report_signal(run, error)
                return
            except GlideMQError as refused:
                error = refused
        self._hand_in.report_result(self._outcomes.failed(run, error), run, None, error)

    def _report_signal(self, run: Run, signal: JobSignal) -> None:
        row = self._outcomes.signalled(run, signal)
        if isinstance(signal, RateLimitError):
            self._hand_in.rate_limit(self._outcomes.pause_of(signal))
        elif isinstance(signal, SuspendError):
            self._suspends(run, signal)
        self._hand_in.report_result(row, run, None, signal)

    def _suspends(self, run: Run, signal: SuspendError) -> None:
        """A job's attempt ends with its suspension."""

    # -- ends that come from outside ----------------------------------------------------------------------

    def _time_out(self, run: Run) -> None:
        run.timer = None
        self._cancel_attempt(
            run, JobTimeoutError(f"the attempt took longer than its timeout of {run.options.timeout} ms")
        )

    def _cancel_attempt(self, run: Run, error: BaseException) -> None:
        if run.attempt.ended or run not in self.running:
            return
        self._stop(run, type(error).__name__)
        self._hand_in.report_result(self._outcomes.failed(run, error), run, None, error)

    def _stop(self, run: Run, why: str) -> None:
        run.attempt.end()
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        self._cancel(run, why)

    def _cancel(self, run: Run, why: str) -> None:
        """Have the handler of an attempt that is over end, if that can be done."""
        raise NotImplementedError

    def abort(self, job_id: str) -> bool:
        """End the attempt of a job as revoked; False if it is not in these hands."""
        for run in self.running:
            if run.job.id == job_id and not run.attempt.ended:
                self._cancel_attempt(run, JobRevokedError("revoked"))
                return True
        return False

    def retire(self) -> None:
        """Nothing new begins from now on; a job that comes all the same is handed back."""

    def lost(self, run: Run, status: int) -> None:
        """A heartbeat was told that the attempt is not the current one any more, or that the job is revoked."""
        if status == AttemptStatus.REVOKED:
            self._cancel_attempt(run, JobRevokedError("revoked"))
        elif not run.attempt.ended and run in self.running:
            self._stop(run, AttemptStatus(status).name.lower())
            self._listeners.tell("error", StaleAttemptError(run.job.id))

    def _give_back(self, run: Run) -> None:
        self.running.discard(run)
        if not run.attempt.ended:
            run.attempt.end()
            self._hand_in.report_result(self._outcomes.released(run), run, None, None)

    def release_all(self) -> None:
        """Stop every handler and hand its job back; no attempt is spent."""
        for run in sorted(self.running, key=_age):
            if not run.attempt.ended:
                self._stop(run, "the worker closes")
                self._hand_in.report_result(self._outcomes.released(run), run, None, None)

    @property
    def is_idle(self) -> bool:
        """True if no attempt is going on; a handler whose attempt is over may still run."""
        return all(run.attempt.ended for run in self.running)

    async def cancelled_ended(self) -> None:
        """Wait for the tasks that were cancelled, a moment at most; threads are left to themselves."""
        tasks = {run.task for run in self.running if run.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)


def _age(run: Run) -> tuple[int, int, str]:
    """Sorts jobs of one source as they were added. (Entry ids of one millisecond differ in their last number.)"""
    return run.job.timestamp, len(run.attempt.entry), run.attempt.entry
