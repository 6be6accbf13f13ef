"""The maintenance task that fires due schedulers, then waits for the next due time.

It runs in any number of processes. The leader is the process that fired last; it wakes exactly at the next due time.
The others wake slightly later and take over if the leader did not fire.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable
from typing import Final

from glidemq_py._client.background import BackgroundTask
from glidemq_py._core.calls.working import SCHEDULES
from glidemq_py._core.logs import get_logger
from glidemq_py._features.schedulers.calls import DueRow, FireRow, schedules_due, schedules_fire
from glidemq_py._features.schedulers.plan import plan, postponed
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError

__all__ = ["SchedulerTask"]

_log = get_logger(__name__)

_STANDBY_S: Final = 0.2
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0
_UNREADABLE_MS: Final = 60_000


def _ignore(_: BaseException) -> None:
    """Ignore the error."""


class SchedulerTask(BackgroundTask):
    """Fires the schedulers of one queue for as long as it runs.

    Args:
        link: the queue.
        quiet: leave out the `added` events.
        on_error: called with every error, after it is logged.
        longest_s: maximum pause in seconds, in case `on_revision` is not called.
    """

    def __init__(
        self,
        *,
        link: QueueLink,
        quiet: bool = False,
        on_error: Callable[[BaseException], None] = _ignore,
        longest_s: float = 60.0,
    ) -> None:
        super().__init__(f"schedulers-{link.keys.name}")
        self._link = link
        self._quiet = quiet
        self._on_error = on_error
        self._longest_s = longest_s
        self._holder = secrets.token_hex(8)
        self._revision = 0
        self._leads = True
        self._changed = asyncio.Event()

    def on_revision(self, revision: int) -> None:
        """Wake up if the schedulers have changed; ``revision`` counts the changes and comes with each exchange."""
        if revision != self._revision:
            self._revision = revision
            self._changed.set()

    async def _repeat(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            self._changed.clear()
            try:
                wait = await self.fire() / 1000
                pause = _FIRST_PAUSE_S
            except ClosedError:
                return
            except GlideMQError as error:
                _log.warning("queue %r: firing schedulers failed: %s", self._link.keys.name, error)
                self._on_error(error)
                wait = pause * random.uniform(0.5, 1.5)
                pause = min(pause * 2, _LAST_PAUSE_S)
            if wait > 0 and not self._leads:
                wait += _STANDBY_S * random.uniform(0.8, 1.2)
            if wait > 0:
                wait = min(wait, self._longest_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._changed.wait()

    async def fire(self) -> int:
        """Fire the schedulers that are due and return the milliseconds until the next may be due.

        Raises:
            GlideMQError: a call failed.
        """
        link = self._link
        reply = await link.transport.call(schedules_due(link.keys.meta, self._holder))
        self._revision = reply.revision // SCHEDULES
        self._leads = reply.leader in ("", self._holder)
        if not reply.rows:
            return reply.wait
        rows = [self._plan(row, reply.now) for row in reply.rows]
        fired = await link.transport.call(schedules_fire(link.keys.meta, self._holder, rows, self._quiet))
        for row, outcome in zip(rows, fired.outcomes, strict=True):
            if any(type(result) is list and result[0] == "cost" for result in outcome):
                self._report(row.name, "its job costs more than the token bucket of its group holds")
        return 0

    def _plan(self, row: DueRow, now: int) -> FireRow:
        try:
            return plan(self._link, row, now)
        except GlideMQValidationError as error:
            self._report(row.name, str(error), error)
        except Exception as error:
            # A broken entry must not stop the other schedulers.
            self._report(row.name, repr(error), error)
        return postponed(row, now + _UNREADABLE_MS)

    def _report(self, name: str, problem: str, error: BaseException | None = None) -> None:
        _log.error("queue %r: firing scheduler %r failed: %s", self._link.keys.name, name, problem)
        self._on_error(error or GlideMQError(f"scheduler {name!r}: {problem}"))
