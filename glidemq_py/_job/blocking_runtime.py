"""Runs a job's coroutines for blocking code.

The coroutines of a worker's job run in the worker's event loop while the handler's thread waits. The coroutines of a
job of a blocking queue are stepped in the calling thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple, overload

from glidemq_py._client.runtime import Twin
from glidemq_py._core.option_values import BackoffInput
from glidemq_py._core.times import Milliseconds
from glidemq_py._job.contents import JobContents
from glidemq_py._job.current import running_job
from glidemq_py._job.steps import StepRun
from glidemq_py.errors import EventLoopError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_POLL_S = 1.0
_MAX_STOPPED_POLLS = 10
"""An event loop found stopped in this many consecutive polls is considered ended."""


def wait_for(job: JobContents, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the job in the worker's event loop and return its result.

    Raises:
        EventLoopError: If called in an event loop's thread or outside a handler, or if the worker's event loop has
            ended or is ending. If the handler raises this error then, the job does not fail: it is released.
    """
    link = job._link
    if link.runtime.is_blocking:
        from glidemq_py._client.portal import drive  # not for workers

        return drive(work)
    loop = link.loop
    if loop is None:
        # A job of a queue, used in a handler: the queue connects in any loop.
        running = running_job.get()
        loop = None if running is None else running._link.loop
    subject = f"job {job.id!r}.blocking"
    if loop is None or asyncio._get_running_loop() is not None:
        work.close()
        raise EventLoopError(
            subject, "it is for handlers that are plain functions, in a worker's thread", "await the job's own methods"
        )
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()
        raise _ended(subject) from None
    stopped = 0
    while True:
        try:
            return future.result(_POLL_S)
        except concurrent.futures.CancelledError:
            raise _ended(subject) from None  # below, or by the loop, which cancels its tasks when it ends
        except TimeoutError:
            if future.done():
                return future.result()
            stopped = 0 if loop.is_running() else stopped + 1
            if loop.is_closed() or stopped >= _MAX_STOPPED_POLLS:
                future.cancel()


def _ended(subject: str) -> EventLoopError:
    return EventLoopError(
        subject, "the worker's event loop has ended", "return from the handler: the job is no longer this worker's"
    )


async def _awaited(value: Awaitable[T]) -> T:
    return await value


def _result_of(job: JobContents, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the application: for a job of a blocking queue, in an event loop of its own."""
    return asyncio.run(work) if job._link.runtime.is_blocking else wait_for(job, work)


@overload
def run(
    self: Twin[Any], name: str, function: Callable[[*Ts], Coroutine[Any, Any, T]], /, *args: *Ts, attempts: int = 1,
    backoff: BackoffInput = 0, timeout: Milliseconds | None = None,
) -> T: ...  # fmt: skip
@overload
def run(
    self: Twin[Any], name: str, function: Callable[[*Ts], T], /, *args: *Ts, attempts: int = 1,
    backoff: BackoffInput = 0, timeout: Milliseconds | None = None,
) -> T: ...  # fmt: skip
def run(
    self: Twin[Any], name: str, function: Callable[[*Ts], Any], /, *args: *Ts, attempts: int = 1,
    backoff: BackoffInput = 0, timeout: Milliseconds | None = None,
) -> Any:  # fmt: skip
    """Run a function as a step; see `Job.run`. A plain function without ``timeout`` runs in the calling thread."""
    job = self._core
    step: StepRun[Any] = StepRun(job, name, function, attempts, backoff, timeout)
    if step.is_done:
        return step.result()
    pause = wait_for(job, step.admit())
    while True:
        if pause:
            job.cancelled.wait(pause)
        try:
            if not step.is_async and step.timeout_ms is None:
                value = step.call(args)
                if inspect.isawaitable(value):
                    value = _result_of(job, _awaited(value))
            else:
                value = _result_of(job, step.execute(args))
        except Exception as error:
            pause = wait_for(job, step.failed(error))
        else:
            return wait_for(job, step.done(value))
