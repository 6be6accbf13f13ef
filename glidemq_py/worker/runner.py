"""Running handlers: tasks for coroutine functions, threads for plain ones, time-outs for both.

An attempt may end before its handler does (time-out, revocation, loss of the job). Its outcome is handed in at
once and whatever the handler still brings is refused; the slot stays taken until the handler has really ended.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any, Protocol

from glidemq_py.errors import (
    GlideMQError,
    JobRevokedError,
    JobSignal,
    JobTimeoutError,
    NoHandlerError,
    RateLimitError,
    StaleAttemptError,
    SuspendError,
)
from glidemq_py.job.current import running_job
from glidemq_py.wire.calls.working import AttemptStatus
from glidemq_py.worker.continuations import Continuations
from glidemq_py.worker.listeners import Listeners
from glidemq_py.worker.outcome import Outcomes
from glidemq_py.worker.routes import Routes
from glidemq_py.worker.run import Run
from glidemq_py.worker.threads import HandlerThreads

__all__ = ["HandIn", "Runner"]

_log = logging.getLogger(__name__)


class HandIn(Protocol):
    """Where outcomes go."""

    def hand_in(self, row: list[object], run: Run, result: Any, error: BaseException | None) -> None:
        """Have a finished row sent with the next exchange."""
        ...

    def rate_limit(self, milliseconds: int) -> None:
        """Take no jobs for a while."""
        ...

    def poke(self) -> None:
        """Something changed (a slot is free): see whether there is anything to do."""
        ...


class Runner:
    """Runs the jobs that a worker took.

    Args:
        routes: which handler runs which job.
        outcomes: what an end means for a job.
        hand_in: where outcomes go.
        listeners: who is told.
        concurrency: most handlers at a time.
        name: of the queue, for threads and logs.
    """

    def __init__(
        self,
        *,
        routes: Routes,
        outcomes: Outcomes,
        hand_in: HandIn,
        listeners: Listeners,
        concurrency: int,
        name: str,
    ) -> None:
        self._routes = routes
        self._only = routes.only
        self._outcomes = outcomes
        self._hand_in = hand_in
        self._listeners = listeners
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._threads = HandlerThreads(concurrency, self._ended, f"glidemq-{name}")
        self._continuations = Continuations()
        self.running: set[Run] = set()
        """Every handler that has not ended; each takes a slot."""

    def start(self, run: Run) -> None:
        """Start the handler of a job."""
        self.running.add(run)
        if self._listeners.wanted("active"):
            self._listeners.tell("active", run.job)
        route = self._only or self._routes.find(run.job.name)
        if self._continuations:
            route = self._continuations.route(run) or route
        if route is None:
            self._ended(run, None, NoHandlerError(f"no handler of this worker takes jobs named {run.job.name!r}"))
            return
        run.handler = route.handler
        timeout = run.options.timeout
        if timeout is not None:
            run.timer = self._loop.call_later(timeout / 1000, self._time_out, run)
        if route.in_thread:
            self._threads.submit(run)
        else:
            run.task = self._loop.create_task(self._run(run))

    async def _run(self, run: Run) -> None:
        running_job.set(run.job)
        try:
            result = await run.handler(run.job)
        except asyncio.CancelledError as error:
            self._ended(run, None, error)
        except KeyboardInterrupt:
            self._give_back(run)
            raise
        except BaseException as error:
            # SystemExit too: a handler must not take the worker and its other jobs down.
            self._ended(run, None, error)
        else:
            self._ended(run, result, None)

    def _ended(self, run: Run, result: Any, error: BaseException | None) -> None:
        """A handler has ended, in whatever way: its slot is free."""
        self.running.discard(run)
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if run.attempt.ended:
            self._hand_in.poke()
            return
        if error is None:
            if inspect.isawaitable(result):
                getattr(result, "close", lambda: None)()
                error = GlideMQError("a plain handler returned an awaitable: make it `async def`")
            else:
                try:
                    self._hand_in.hand_in(self._outcomes.completed(run, result), run, result, None)
                    return
                except GlideMQError as refused:
                    error = refused
        if isinstance(error, JobSignal):
            try:
                self._hand_in_signal(run, error)
                return
            except GlideMQError as refused:
                error = refused
        self._hand_in.hand_in(self._outcomes.failed(run, error), run, None, error)

    def _hand_in_signal(self, run: Run, signal: JobSignal) -> None:
        row = self._outcomes.signalled(run, signal)
        if isinstance(signal, RateLimitError):
            self._hand_in.rate_limit(self._outcomes.pause_of(signal))
        elif isinstance(signal, SuspendError):
            self._continuations.keep(run, signal)
        self._hand_in.hand_in(row, run, None, signal)

    # -- ends that come from outside ----------------------------------------------------------------------

    def _time_out(self, run: Run) -> None:
        run.timer = None
        self._end_early(run, JobTimeoutError(f"the attempt took longer than its timeout of {run.options.timeout} ms"))

    def _end_early(self, run: Run, error: BaseException) -> None:
        if run.attempt.ended or run not in self.running:
            return
        self._stop(run, type(error).__name__)
        self._hand_in.hand_in(self._outcomes.failed(run, error), run, None, error)

    def _stop(self, run: Run, why: str) -> None:
        run.attempt.end()
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if run.task is not None:
            run.task.cancel()
        else:
            _log.warning(
                "job %s (%s) of queue %r: its attempt is over (%s), but a plain function cannot be stopped: it keeps "
                "its slot until it returns; let it look at job.cancelled",
                run.job.id, run.job.name, self._name, why,
            )  # fmt: skip

    def lost(self, run: Run, status: int) -> None:
        """A heartbeat was told that the attempt is not the current one any more, or that the job is revoked."""
        if status == AttemptStatus.REVOKED:
            self._end_early(run, JobRevokedError("revoked"))
        elif not run.attempt.ended and run in self.running:
            self._stop(run, AttemptStatus(status).name.lower())
            self._listeners.tell("error", StaleAttemptError(run.job.id))

    def _give_back(self, run: Run) -> None:
        self.running.discard(run)
        if not run.attempt.ended:
            run.attempt.end()
            self._hand_in.hand_in(self._outcomes.released(run), run, None, None)

    def give_back_all(self) -> None:
        """Stop every handler and hand its job back; no attempt is spent."""
        for run in sorted(self.running, key=_age):
            if not run.attempt.ended:
                self._stop(run, "the worker closes")
                self._hand_in.hand_in(self._outcomes.released(run), run, None, None)

    @property
    def is_idle(self) -> bool:
        """True if no attempt is going on; a handler whose attempt is over may still run."""
        return all(run.attempt.ended for run in self.running)

    async def cancelled_ended(self) -> None:
        """Wait for the tasks that were cancelled, a moment at most; threads are left to themselves."""
        tasks = {run.task for run in self.running if run.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def close(self) -> None:
        """Let idle threads end."""
        self._threads.close()


def _age(run: Run) -> tuple[int, int, str]:
    """Sorts jobs of one source as they were added. (Entry ids of one millisecond differ in their last number.)"""
    return run.job.timestamp, len(run.attempt.entry), run.attempt.entry
