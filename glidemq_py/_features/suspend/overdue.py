"""Failing suspended jobs whose timeout has expired.

Every worker does it, and every `Queue` object too, because there may be no worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from glidemq_py._client.runtime import BackgroundTask
from glidemq_py._core.logs import get_logger, show_id
from glidemq_py._features.suspend import job_api as suspending
from glidemq_py._job.job import Job
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import ClosedError, GlideMQError, SuspendError

_log = get_logger("glidemq_py.failures")

_FIRST_S: Final = 1.0
_IDLE_S: Final = 5.0
_BUSY_S: Final = 1.0
_SOON_S: Final = 0.001
_NEVER: Final = 9_999_999_999_999
"""Score of suspended jobs without a deadline."""


class SuspendTimeoutsTask(BackgroundTask):
    """Maintenance task that fails suspended jobs at their deadlines.

    It polls every five seconds, or earlier if the next deadline is earlier. A poll reads the first member of the sorted
    set; the server function is called only if a job is overdue.

    Args:
        link: the queue.
        failed: called after jobs have failed.
        log: called with the id of each failed job; None = log a line.
    """

    def __init__(
        self,
        link: QueueLink,
        failed: Callable[[], None] = lambda: None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(f"suspended-{link.keys.name}")
        self._link = link
        self._failed = failed
        self._log_failed = log or self._log_failure
        self._woken = asyncio.Event()
        self._due = 0.0

    def start(self) -> None:
        """Start the task; the first poll is one second later."""
        self._due = asyncio.get_running_loop().time() + _FIRST_S
        super().start()

    def suspended(self, _: Job[Any, Any], signal: SuspendError) -> None:
        """Take the deadline of a job that a worker of this process has suspended into account."""
        if signal.timeout is None:
            return
        milliseconds = signal.timeout
        due = asyncio.get_running_loop().time() + milliseconds / 1000
        if due < self._due:
            self._due = due
            self._woken.set()

    async def _repeat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._due):
                    await self._woken.wait()
                continue
            self._due = loop.time() + _IDLE_S
            try:
                pause = await self.run_once()
            except ClosedError:
                return
            except GlideMQError as error:
                _log.debug("queue %s: failing expired suspended jobs failed: %s", self._link.label, error)
                pause = _IDLE_S
            self._due = min(self._due, loop.time() + pause)

    def _log_failure(self, job_id: str) -> None:
        _log.error("queue %r: job %s failed (suspended without a signal within its timeout)", self._link.queue_name,
                   show_id(self._link.shown_id(job_id)))  # fmt: skip

    async def run_once(self) -> float:
        """Fail overdue jobs and return the seconds until the next poll."""
        transport, keys = self._link.transport, self._link.keys
        first = await transport.command("ZRANGE", keys.suspended, "0", "0", "WITHSCORES")
        if not first or next(iter(first.values())) >= _NEVER:
            return _IDLE_S
        while True:
            swept = await transport.call(suspending.sweep(keys.meta))
            for job_id in swept.failed:
                self._log_failed(job_id)
            if swept.failed:
                self._failed()
            if not swept.more:
                break
        if not swept.held:
            return _BUSY_S
        return _IDLE_S if swept.next_due < 0 else min(_IDLE_S, swept.next_due / 1000 + _SOON_S)
