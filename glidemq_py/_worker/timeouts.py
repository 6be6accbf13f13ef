"""Timeouts of attempts: the job option `timeout`, in milliseconds from the start of the handler.

The worker's event loop measures the time; nothing of it is stored, and the server has no part in it. An attempt that
exceeds its timeout fails with `JobTimeoutError` at once and is retried like after any other error. Its handler is
stopped if possible: a coroutine is cancelled, the process of a sandbox is killed, a plain function must check
`job.cancelled`. The slot of the handler stays occupied until it has ended. A coroutine can catch its cancellation and
continue; a warning is logged then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from glidemq_py._core.logs import get_logger
from glidemq_py._job.run import Run
from glidemq_py.errors import JobTimeoutError

_log = get_logger(__name__)

_END_S: Final = 5.0
"""Time within which a cancelled handler is expected to end."""


def start_timeout(run: Run, loop: asyncio.AbstractEventLoop, cancel: Callable[[Run, BaseException], None]) -> None:
    """Start the timer of an attempt, if its job has a timeout.

    Args:
        run: The attempt.
        loop: The worker's event loop.
        cancel: Called with the attempt and a `JobTimeoutError` if the timer expires.
    """
    timeout = run.options.timeout
    if timeout is not None:
        run.timer = loop.call_later(timeout / 1000, _expire, run, cancel)


def _expire(run: Run, cancel: Callable[[Run, BaseException], None]) -> None:
    run.timer = None
    cancel(run, JobTimeoutError(f"the attempt exceeded its timeout of {run.options.timeout} ms"))


def stop_timeout(run: Run) -> None:
    """Stop the timer of an attempt, if it has one."""
    if run.timer is not None:
        run.timer.cancel()
        run.timer = None


def cancel_task(
    run: Run, task: asyncio.Task[Any], why: str, ended: Callable[[asyncio.Task[Any]], None], others: int = 0
) -> None:
    """Cancel the task of an ended attempt's handler, and log a warning if it has not ended after some seconds.

    Args:
        run: The attempt; of a batch, the one that ended last. Its timer runs until the task ends (`stop_timeout`).
        task: The task.
        why: Reason of the cancellation.
        ended: Called when the task has ended. A task that is cancelled before its first step runs none of its code, so
            this must free its slot unless that is done.
        others: Number of other jobs in its batch.
    """
    task.add_done_callback(ended)
    task.cancel()
    run.timer = task.get_loop().call_later(_END_S, _warn, run, task, why, others)


def _warn(run: Run, task: asyncio.Task[Any], why: str, others: int) -> None:
    run.timer = None
    if not task.done():
        _log.warning(
            "queue %r: the handler of job %s %r%s has not ended %g s after it was cancelled (%s); it occupies its %s "
            "until it returns (a handler must not suppress CancelledError)",
            run.job.queue_name, run.job.id, run.job.name, f" and {others} more of its batch" if others else "", _END_S,
            why, "slots" if others else "slot",
        )  # fmt: skip
