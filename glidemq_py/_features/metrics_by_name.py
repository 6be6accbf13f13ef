"""Metrics by job name: counts and durations per name and minute (``lua/features/metrics_by_name``).

A worker sends sums with its reports. Durations are histograms of bounded size, merged by adding counts: a bucket has
the width of an eighth of its durations, so a percentile is off by at most a sixteenth. Durations below 16 ms have
buckets of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Self

from glidemq_py._core.calls import call
from glidemq_py._core.calls.administration import set_settings
from glidemq_py._core.calls.working import AttemptStatus, NameMetrics, NameMetricsReport
from glidemq_py._core.checks import check_int
from glidemq_py._core.keys import validate_job_name
from glidemq_py._core.misuse import known_methods
from glidemq_py._core.times import DAY_MS, Milliseconds, epoch_ms, to_instant, to_ms
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import Area
from glidemq_py.errors import GlideMQValidationError

_LONGEST: Final = 2**40
"""34 years, in ms."""


def bucket_of(milliseconds: int) -> int:
    """Return the number of the bucket of a duration."""
    if milliseconds < 8:
        return max(0, milliseconds)
    milliseconds = min(milliseconds, _LONGEST)
    shift = milliseconds.bit_length() - 4
    return (shift << 3) + (milliseconds >> shift)


def middle_of(bucket: int) -> float:
    """Return the duration in the middle of a bucket, ms."""
    if bucket < 16:
        return float(bucket)
    shift = (bucket >> 3) - 1
    return (((bucket & 7) + 8) << shift) + ((1 << shift) - 1) / 2


class Times:
    """Durations of jobs, in ms.

    Attributes:
        count: Number of durations.
        total: Their sum.
        buckets: Number of durations per bucket.
    """

    __slots__ = ("buckets", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.buckets: dict[int, int] = {}

    def add(self, milliseconds: int, count: int = 1) -> None:
        """Add a duration, ``count`` times."""
        bucket = bucket_of(milliseconds)
        self.count += count
        self.total += milliseconds * count
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def merge(self, packed: Sequence[Any]) -> None:
        """Add durations in the form of `packed`. Malformed values are skipped."""
        numbers = [value if isinstance(value, int) and value >= 0 else 0 for value in packed]
        if len(numbers) < 2:
            return
        self.count += numbers[0]
        self.total += numbers[1]
        for bucket, count in zip(numbers[2::2], numbers[3::2], strict=False):
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def packed(self) -> list[int]:
        """Return the form of the wire: count, sum, then bucket and count by turns."""
        found = [self.count, self.total]
        for pair in sorted(self.buckets.items()):
            found += pair
        return found

    def percentile(self, percent: int) -> float:
        """Return the duration that so many percent of the durations do not exceed, ms; 0 without durations."""
        return _percentile(self.buckets, percent)


def _percentile(buckets: Mapping[int, int], percent: int) -> float:
    rank = -(-sum(buckets.values()) * percent // 100)
    for bucket, count in sorted(buckets.items()):
        rank -= count
        if rank <= 0:
            return middle_of(min(bucket, 512))
    return 0.0


MINUTE_MS: Final = 60_000
_NAMES: Final = 1_000
"""Names per minute in the memory of a worker; the others share a row."""
_ROWS: Final = 50
"""Rows per report: about a millisecond of server time."""
_COUNTED: Final[dict[int, int]] = {AttemptStatus.OK: 0, AttemptStatus.FAILED: 1, AttemptStatus.RETRYING: 2}


_DURATIONS: Final = 4_000
"""Different durations of a name that are counted apart until they go to their buckets."""


class _Recorded:
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
        self._names: dict[str, _Recorded] = {}
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
            sums = self._names.setdefault(name, _Recorded())
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


_FIELD: Final = "metricsByName"
_MOST_MINUTES: Final = 43_200
_MOST_NAMES: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationStats:
    """How long jobs waited or ran.

    Attributes:
        count: Number of durations.
        avg: Mean, ms.
        p50: Median, ms; like the other percentiles, off by at most a sixteenth.
        p95: Duration that 95 percent do not exceed, ms.
        p99: Duration that 99 percent do not exceed, ms.
    """

    count: int = 0
    avg: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsByName:
    """Attempts of the jobs with one name that ended within one interval.

    Attributes:
        name: Name of the jobs; '' for the names above the limit of `Queue.metrics_by_name.set`.
        timestamp: Start of the interval, epoch ms.
        completed: Number of jobs that completed.
        failed: Number of jobs that failed finally.
        retried: Number of failed attempts that are retried.
        wait: Time from the add, or from the end of its delay, to the start of a job's first attempt.
        run: Time from the start to the report of an attempt.
    """

    name: str
    timestamp: int
    completed: int
    failed: int
    retried: int
    wait: DurationStats
    run: DurationStats


class MetricsByNameSetting(NamedTuple):
    """Setting of a queue's figures per job name; see `Queue.metrics_by_name.set`.

    Attributes:
        minutes: Number of minutes that are kept; 0 = the queue keeps none.
        max_names: Number of names per minute that are kept apart.
    """

    minutes: int = 0
    max_names: int = 100


def read_metrics_by_name_setting(text: bytes | None) -> MetricsByNameSetting:
    """Return the setting of the meta field; off if it is absent or malformed."""
    found = re.fullmatch(rb"(\d{1,9})\|(\d{1,9})", text or b"")
    return MetricsByNameSetting() if found is None else MetricsByNameSetting(int(found[1]), int(found[2]))


class _Asked:
    """A time range whose figures are read and added up.

    Args:
        minutes: Length of the range.
        step: Length of the intervals, ms; None = one for the whole range.
        last: End of the range, epoch ms; 0 = now.
        name: Only the figures of this job name; False = of all.
    """

    def __init__(self, minutes: int, step: int | None, last: int, name: str | Literal[False]) -> None:
        self._minutes, self._step, self._last, self._name = minutes, step, last, name
        self._found: dict[tuple[int, str], _Sums] = {}

    @classmethod
    def checked(
        cls, window: Milliseconds, end: datetime | None, name: str | None, interval: Milliseconds | None
    ) -> Self:
        """Check the arguments of `metrics_by_name.get`."""
        minutes = -(-to_ms("window", window, minimum=MINUTE_MS, maximum=30 * DAY_MS) // MINUTE_MS)
        step = None if interval is None else to_ms("interval", interval, minimum=MINUTE_MS)
        if step is not None and step % MINUTE_MS:
            raise GlideMQValidationError("interval", interval, "must be whole minutes")
        last = 0 if end is None else epoch_ms(to_instant("end", end))
        return cls(minutes, step, last, False if name is None else validate_job_name(name))

    async def read(self, link: QueueLink) -> None:
        """Add the figures of a part. The first one sets the end of the range if that is now."""
        cursor = 0
        while True:
            page = await link.call(_page_call, self._last, self._minutes, self._name, cursor)
            self._last, cursor = page.last, page.cursor
            first = self._last - self._last % MINUTE_MS - (self._minutes - 1) * MINUTE_MS
            for row in page.rows:
                minute, of, *figures = row
                start = first if self._step is None else max(first, minute - minute % self._step)
                self._found.setdefault((start, of or ""), _Sums()).merge(figures)
            if not cursor:
                return

    def points(self) -> list[MetricsByName]:
        """Return the sums, by time, then name."""
        return [sums.point(*place) for place, sums in sorted(self._found.items())]


class _Page(NamedTuple):
    last: int
    rows: list[list[Any]]
    cursor: int


@call("metrics_by_name", repeatable=True)
def _page_call(last: int, minutes: int, name: object, cursor: int) -> _Page:
    """Return one page of the rows of some minutes; ``name``: False = all."""
    ...


class _Sums:
    def __init__(self) -> None:
        self.counts = [0, 0, 0]
        self.wait = Times()
        self.run = Times()

    def merge(self, figures: list[Any]) -> None:
        completed, failed, retried, wait, run = figures
        self.counts = [old + new for old, new in zip(self.counts, (completed, failed, retried), strict=True)]
        self.wait.merge(wait)
        self.run.merge(run)

    def point(self, timestamp: int, name: str) -> MetricsByName:
        completed, failed, retried = self.counts
        return MetricsByName(
            name=name, timestamp=timestamp, completed=completed, failed=failed, retried=retried,
            wait=_stats(self.wait), run=_stats(self.run),
        )  # fmt: skip


def _stats(times: Times) -> DurationStats:
    if not times.count:
        return DurationStats()
    p50, p95, p99 = (times.percentile(percent) for percent in (50, 95, 99))
    return DurationStats(count=times.count, avg=times.total / times.count, p50=p50, p95=p95, p99=p99)


@known_methods
class NamedMetrics(Area):
    """``queue.metrics_by_name``: durations, waits and outcomes per job name."""

    __slots__ = ()

    async def set(self, minutes: int = 1_440, *, max_names: int = 100) -> None:
        """Keep counts and percentiles per job name and minute, or stop keeping them.

        Off by default. Workers add up their figures, and send them every five seconds with a call that they make
        anyway.

        Args:
            minutes: number of minutes to keep, 0..43_200 (30 days); 0 = off. Stored figures expire as before.
            max_names: number of names per minute that are kept apart, 1..1_000; the others are added up under ''.

        Raises:
            GlideMQValidationError: an argument is invalid.
        """
        kept = check_int("minutes", minutes, 0, _MOST_MINUTES)
        names = check_int("max_names", max_names, 1, _MOST_NAMES)
        text = f"{kept}|{names}" if kept else None
        await self._queue._change(lambda link: link.call(set_settings, metricsByName=text))

    async def get_setting(self) -> MetricsByNameSetting:
        """Return whether and how long the queue keeps figures per job name."""
        link = await self._queue._first()
        return read_metrics_by_name_setting(await link.command("HGET", link.keys.meta, _FIELD))

    async def get(
        self,
        window: Milliseconds = 3_600_000,
        *,
        end: datetime | None = None,
        name: str | None = None,
        interval: Milliseconds | None = MINUTE_MS,
    ) -> list[MetricsByName]:
        """Return counts, and percentiles of the waiting and running times, per job name and interval.

        Ordered by time, then name. Intervals and names without jobs are left out. `metrics_by_name.set` turns the
        figures on.

        Args:
            window: length of the time range, a minute to 30 days, in ms or as a timedelta; rounded up to whole minutes,
                the last one included.
            end: end of the time range. Default: now.
            name: return the figures of this job name only.
            interval: length of the intervals, whole minutes, in ms or as a timedelta; None = one for the whole range.

        Raises:
            GlideMQValidationError: an argument is invalid.
        """
        asked = _Asked.checked(window, end, name, interval)
        for link in await self._queue._links():
            await asked.read(link)
        return asked.points()
