"""Runs handlers: coroutine functions in tasks, plain functions in threads, both with timeouts."""

from __future__ import annotations

import asyncio
from typing import Any

from glidemq_py._core.logs import get_logger
from glidemq_py._features.suspend.worker import Continuations
from glidemq_py._job.current import running_job
from glidemq_py._worker.ending import AttemptRunner, ResultSink
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.outcome import Outcomes
from glidemq_py._worker.routes import Routes
from glidemq_py._worker.run import Run
from glidemq_py._worker.threads import HandlerThreads
from glidemq_py.errors import NoHandlerError, SuspendError
from glidemq_py.telemetry.processing import observed_handler
from glidemq_py.telemetry.state import TELEMETRY

__all__ = ["Runner"]

_log = get_logger(__name__)


class Runner(AttemptRunner):
    """Runs the jobs that a worker fetched.

    Args:
        routes: Handlers by job name.
        outcomes: Builds the rows that report results.
        report_result: Gets the results.
        listeners: Get the worker events.
        concurrency: Maximum number of handlers at the same time.
        name: Name of the queue, for threads and logs.
    """

    def __init__(
        self,
        *,
        routes: Routes,
        outcomes: Outcomes,
        report_result: ResultSink,
        listeners: Listeners,
        concurrency: int,
        name: str,
    ) -> None:
        super().__init__(outcomes=outcomes, report_result=report_result, listeners=listeners, name=name)
        self._routes = routes
        self._only = routes.only
        self._continuations = Continuations()
        self._threads = HandlerThreads(concurrency, _invoke, self._ended, f"glidemq-{name}")

    def start(self, run: Run) -> None:
        """Start the handler of a job."""
        self.running.add(run)
        if self._listeners.wanted("active"):
            self._listeners.tell("active", run.job)
        route = self._only or self._routes.find(run.job.name)
        if self._continuations:
            route = self._continuations.route(run) or route
        if route is None:
            self._ended(run, None, NoHandlerError(f"this worker has no handler for jobs named {run.job.name!r}"))
            return
        run.handler = route.handler if not TELEMETRY.on else observed_handler(route.handler, route.in_thread)
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
            run.task.cancel()
        else:
            _log.warning(
                "queue %r: the attempt of job %s %r ended (%s), but its handler is a plain function and cannot be "
                "stopped; it occupies its slot until it returns (check job.cancelled)",
                self._name, run.job.id, run.job.name, why,
            )  # fmt: skip

    def close(self) -> None:
        """Let idle threads end."""
        super().close()
        self._threads.close()


def _invoke(run: Run) -> Any:
    if run.attempt.ended:
        return None  # it ended (timeout, close) before a thread was free: it may already run in another worker
    running_job.set(run.job)
    return run.handler(run.job)
