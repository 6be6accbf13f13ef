"""Aggregates the reports of a worker to the queue's figures per job name and minute."""

from __future__ import annotations

from typing import Final

from glidemq_py._core.calls.working import AttemptStatus, NameMetrics, NameMetricsReport
from glidemq_py._features.metrics_by_name.histogram import Times

MINUTE_MS: Final = 60_000
_NAMES: Final = 1_000
"""Names per minute in the memory of a worker; the others share a row."""
_ROWS: Final = 50
"""Rows per report: about a millisecond of server time."""
_COUNTED: Final[dict[int, int]] = {AttemptStatus.OK: 0, AttemptStatus.FAILED: 1, AttemptStatus.RETRYING: 2}


_DURATIONS: Final = 4_000
"""Different durations of a name that are counted apart until they go to their buckets."""


class _Sums:
    """Counting the durations first is faster than finding the bucket of each."""

    __slots__ = ("_run", "_wait", "counts", "ran", "waited")

    def __init__(self) -> None:
        self.counts = [0, 0, 0]
        self.waited: dict[int, int] = {}
        self.ran: dict[int, int] = {}
        self._wait = Times()
        self._run = Times()

    def fold(self) -> tuple[Times, Times]:
        """Return the times that jobs waited and ran."""
        for durations, times in ((self.waited, self._wait), (self.ran, self._run)):
            for duration, count in durations.items():
                times.add(max(0, duration), count)
            durations.clear()
        return self._wait, self._run


class Recorder:
    """The figures of a worker that are not stored yet.

    A report is sent again, unchanged, until the server has replied to it. Its number lets the server recognize one
    whose reply was lost.
    """

    def __init__(self) -> None:
        self._minute = 0
        self._names: dict[str, _Sums] = {}
        self._rows: list[NameMetrics] = []
        """Rows of earlier minutes."""
        self._number = 0
        self._report: NameMetricsReport | None = None

    @property
    def is_empty(self) -> bool:
        """True if nothing is left to send."""
        return not self._names and not self._rows and self._report is None

    @property
    def has_more(self) -> bool:
        """True if the last report did not take everything that was recorded before it."""
        return bool(self._rows)

    def add(self, name: str, status: int, waited: int | None, ran: int, now: int) -> None:
        """Add an attempt that ended.

        Args:
            name: Name of the job.
            status: Reply to its report. Statuses of attempts that did not complete or fail are not counted.
            waited: Time from the add (or the end of the delay) to the start, ms; None if it is not the first attempt.
            ran: Time from the start to the report, ms.
            now: Time of the reply, epoch ms.
        """
        counted = _COUNTED.get(status)
        if counted is None:
            return
        if now - self._minute >= MINUTE_MS or now < self._minute:
            self._end_minute()
            self._minute = now - now % MINUTE_MS
        sums = self._names.get(name)
        if sums is None:
            if len(self._names) >= _NAMES:
                name = ""
            sums = self._names.setdefault(name, _Sums())
        sums.counts[counted] += 1
        durations = sums.ran
        durations[ran] = durations.get(ran, 0) + 1
        if waited is not None:
            durations = sums.waited
            durations[waited] = durations.get(waited, 0) + 1
        if len(durations) > _DURATIONS or len(sums.ran) > _DURATIONS:
            sums.fold()

    def next_report(self) -> NameMetricsReport | None:
        """Return the report to send next; None if there is none."""
        if self._report is None:
            self._end_minute()
            if self._rows:
                self._number += 1
                self._report = NameMetricsReport(self._number, self._rows[:_ROWS])
                del self._rows[:_ROWS]
        return self._report

    def stored(self) -> None:
        """Note that the server has replied to the last report."""
        self._report = None

    def clear(self) -> None:
        """Discard everything: the queue keeps no figures any more."""
        self._names.clear()
        self._rows.clear()
        self._report = None

    def _end_minute(self) -> None:
        for name, sums in self._names.items():
            completed, failed, retried = sums.counts
            wait, run = sums.fold()
            self._rows.append(
                NameMetrics(self._minute, name or False, completed, failed, retried, wait.packed(), run.packed())
            )
        self._names.clear()
        # While the server does not reply, the oldest are given up.
        del self._rows[: -10 * _NAMES]
