"""The blocking face of a job that runs in a thread: each method waits for its async twin on the worker's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from glidemq_py.model.states import JobState
from glidemq_py.model.suspension import Signal
from glidemq_py.options.times import Milliseconds

if TYPE_CHECKING:
    from glidemq_py.job.job import Job

__all__ = ["BlockingJob", "loop_of_thread"]

DataT = TypeVar("DataT")
ResultT = TypeVar("ResultT")
T = TypeVar("T")


class _LoopOfThread:
    """Which event loop the handlers of a process's threads belong to; set by the worker's thread pool."""

    loop: asyncio.AbstractEventLoop | None = None


loop_of_thread = _LoopOfThread()


class BlockingJob(Generic[DataT, ResultT]):
    """`Job.blocking`: for handlers that are plain functions. Errors are those of the async twins.

    Calling it on the event loop's own thread would wait for itself, and raises RuntimeError.
    """

    __slots__ = ("_job",)

    def __init__(self, job: Job[DataT, ResultT]) -> None:
        self._job = job

    def log(self, line: str) -> None:
        """`Job.log`."""
        self._wait(self._job.log(line))

    def update_progress(self, progress: float | str | Mapping[str, Any] | list[Any]) -> None:
        """`Job.update_progress`."""
        self._wait(self._job.update_progress(progress))

    def update_data(self, data: DataT) -> None:
        """`Job.update_data`."""
        self._wait(self._job.update_data(data))

    def report_tokens(self, tokens: int) -> None:
        """`Job.report_tokens`."""
        self._wait(self._job.report_tokens(tokens))

    def wait_for_signal(self, name: str, *, reason: str | None = None, timeout: Milliseconds | None = None) -> Signal:
        """`Job.wait_for_signal`. (`Job.suspend` itself needs no twin.)"""
        return self._wait(self._job.wait_for_signal(name, reason=reason, timeout=timeout))

    def get_state(self) -> JobState | None:
        """`Job.get_state`."""
        return self._wait(self._job.get_state())

    def logs(self, start: int = 0, end: int = -1) -> list[str]:
        """`Job.logs`."""
        return self._wait(self._job.logs(start, end))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        loop = loop_of_thread.loop
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not None or loop is None:
            work.close()
            raise RuntimeError("job.blocking is for handlers that run in a worker's thread; here, await the job's own")
        return asyncio.run_coroutine_threadsafe(work, loop).result()
