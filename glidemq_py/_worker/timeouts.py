"""Timeouts of attempts: the job option `timeout`, in milliseconds from the start of the handler.

The worker's event loop measures the time; nothing of it is stored, and the server has no part in it. An attempt that
exceeds its timeout fails with `JobTimeoutError` at once and is retried like after any other error. Its handler is
stopped if possible: a coroutine is cancelled, the process of a sandbox is killed, a plain function must check
`job.cancelled`. The slot of the handler stays occupied until it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from glidemq_py._job.run import Run
from glidemq_py.errors import JobTimeoutError

__all__ = ["start_timeout", "stop_timeout"]


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
