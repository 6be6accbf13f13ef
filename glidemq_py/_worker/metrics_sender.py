"""Sends a worker's figures per job name with the calls that it makes anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from glidemq_py._features.metrics_by_name import Recorder
from glidemq_py._job.run import FinishedAttempt
from glidemq_py._worker.results import status_after_lost_reply
from glidemq_py.errors import JobRevokedError

if TYPE_CHECKING:
    from glidemq_py._core.calls.working import NameMetricsReport

INTERVAL_S: Final = 5.0
"""Time from the first job of a report to the report: long enough that its cost per job does not count."""


class MetricsSender:
    """Collects figures, and decides which call carries them.

    Args:
        loop: The event loop of the worker.
        request_call: Makes the next call soon, even if there is nothing to report or fetch.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, request_call: Callable[[], None]) -> None:
        self._loop = loop
        self._request_call = request_call
        self._recorder = Recorder()
        self._timer: asyncio.TimerHandle | None = None
        self.is_due = False
        """True if the next call is to carry figures."""
        self._in_flight = False
        self.is_on = False
        """True while the queue keeps figures, as the last reply said."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is left to send."""
        return self._recorder.is_empty

    def switch(self, is_on: bool) -> None:
        """Start or stop collecting."""
        self.is_on = is_on
        if not is_on:
            self._recorder.clear()

    def record(self, batch: Iterable[FinishedAttempt], statuses: Iterable[int], now: int) -> None:
        """Add attempts with the replies to their reports; ``now`` is the server's time, epoch ms."""
        add = self._recorder.add
        for finished, status in zip(batch, statuses, strict=True):
            if finished.sent:
                status = status_after_lost_reply(finished, status)
            if isinstance(finished.error, JobRevokedError):
                continue  # cancelled is not failed
            run = finished.run
            job, started = run.job, run.attempt.processed_on
            waited = None
            if not job.attempts_made and not job.stalled_count and job.timestamp:
                waited = started - job.timestamp - (run.options.delay or 0)
            add(job.name, status, waited, now - started, now)
        if self._timer is None and not self.is_due:
            self._set_timer()

    def flush(self) -> None:
        """Send with the next call, and make one if there is none."""
        self.close()
        self.is_due = True
        self._request_call()

    def take(self) -> NameMetricsReport | None:
        """Return the report for a call that is made now. `replied` or `failed` must be called with its end."""
        if self._in_flight:
            return None
        report = self._recorder.next_report()
        self._in_flight = report is not None
        self.is_due = self._in_flight
        return report

    def replied(self) -> None:
        """Note that a call with a report has succeeded."""
        self._in_flight = False
        self._recorder.stored()
        self.is_due = self._recorder.has_more
        if self.is_due:
            self._request_call()
        else:
            self._set_timer()

    def failed(self) -> None:
        """Note that a call with a report has failed: the report is sent again."""
        self._in_flight = False

    def _set_timer(self) -> None:
        if self._timer is None and not self._recorder.is_empty:
            self._timer = self._loop.call_later(INTERVAL_S, self.flush)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
