"""Failing suspended jobs whose time is over: by every worker, and by every queue, for there may be no worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from glidemq_py._client.background import BackgroundTask
from glidemq_py._core.logs import get_logger, show_id
from glidemq_py._features.suspend import calls as suspending
from glidemq_py._job import Job
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import ClosedError, GlideMQError, SuspendError

__all__ = ["SuspendTimeoutsTask"]

_log = get_logger("glidemq_py.failures")

_FIRST_S: Final = 1.0
_IDLE_S: Final = 5.0
_BUSY_S: Final = 1.0
_SOON_S: Final = 0.001
_NEVER: Final = 9_999_999_999_999
"""The deadline of those that have none (data-model.md section 2)."""


class SuspendTimeoutsTask(BackgroundTask):
    """Looks at the next deadline every five seconds, and fails what is overdue when it is.

    A look is one read of the sorted set; the function is called where there is something to do.

    Args:
        link: the queue.
        failed: told where jobs have failed.
        log: called with the id of each job that failed; None = a line of this module's logger.
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
        """Begin; the first look is a second later."""
        self._due = asyncio.get_running_loop().time() + _FIRST_S
        super().start()

    def suspended(self, _: Job[Any, Any], signal: SuspendError) -> None:
        """A worker of this process has suspended a job."""
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
                pause = await self.look()
            except ClosedError:
                return
            except GlideMQError as error:
                _log.debug(
                    "queue %r: looking for suspended jobs that timed out failed: %s", self._link.keys.name, error
                )
                pause = _IDLE_S
            self._due = min(self._due, loop.time() + pause)

    def _log_failure(self, job_id: str) -> None:
        _log.error("queue %r: job %s failed (suspended, no signal arrived within its timeout)", self._link.keys.name,
                   show_id(job_id))  # fmt: skip

    async def look(self) -> float:
        """Fail what is overdue; seconds until the next look."""
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
