"""Limits after which a process should recycle: number of attempts, resident memory."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable

from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQValidationError

__all__ = ["Limits", "resident_memory"]

_LOOK_EVERY_S = 0.5
_ENDS = ("completed", "retrying", "failed")


def resident_memory() -> int | None:
    """Return this process's physical memory in bytes; on systems without /proc its peak. None if unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Limits:
    """Monitors the workers of a process and calls ``reached`` once.

    Args:
        max_jobs: Number of reported attempts; jobs that are running when it is reached are finished. None: no limit.
        max_memory: Bytes of resident memory, checked twice per second. None: no limit.
        reached: Called with the reason when a limit is reached.
    """

    def __init__(self, *, max_jobs: int | None, max_memory: int | None, reached: Callable[[str], None]) -> None:
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._reached = reached
        self._ended = 0
        self._timer: asyncio.TimerHandle | None = None
        self._done = False

    def watch(self, workers: Iterable[Worker]) -> None:
        """Start monitoring.

        Raises:
            GlideMQValidationError: If the process exceeds its memory limit before its first job.
        """
        if self._max_jobs is not None:
            for worker in workers:
                for event in _ENDS:
                    worker.on(event, self._count)
        if self._max_memory is not None:
            size = resident_memory()
            if size is not None and size >= self._max_memory:
                raise GlideMQValidationError(
                    "--max-memory", self._max_memory, f"too low: the process uses {size} bytes before its first job"
                )
            self._look()

    def _count(self, *_: object) -> None:
        self._ended += 1
        if self._max_jobs is not None and self._ended >= self._max_jobs:
            self._tell(f"{self._ended} jobs have ended")

    def _look(self) -> None:
        size = resident_memory()
        if self._max_memory is not None and size is not None and size >= self._max_memory:
            self._tell(f"{size >> 20} MiB of memory are in use")
        else:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)

    def _tell(self, reason: str) -> None:
        if not self._done:
            self._done = True
            self._reached(reason)

    def close(self) -> None:
        """Stop monitoring."""
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
