"""What runs a job's coroutines for code that blocks.

A job of a worker lives on the worker's event loop, and a thread waits for it there. A job of a blocking queue has a
transport that blocks, so its coroutines are run on the spot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from glidemq_py.client.pace import THREAD_PACE, run_now

if TYPE_CHECKING:
    from glidemq_py.job.job import Job

__all__ = ["loop_of_thread", "wait_for"]

T = TypeVar("T")


class _LoopOfThread:
    """Which event loop the handlers of a process's threads belong to; set by the worker's thread pool."""

    loop: asyncio.AbstractEventLoop | None = None


loop_of_thread = _LoopOfThread()


def wait_for(job: Job[Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the job to its end.

    Raises:
        RuntimeError: the job is one of an event loop, and this is the loop's own thread.
    """
    if job._link.pace is THREAD_PACE:
        return run_now(work)
    loop = loop_of_thread.loop
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not None or loop is None:
        work.close()
        raise RuntimeError("job.blocking is for handlers that run in a worker's thread; here, await the job's own")
    return asyncio.run_coroutine_threadsafe(work, loop).result()
