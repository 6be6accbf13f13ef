"""The methods of `Queue` that set and read figures per job name and minute."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Self

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader
from glidemq_py._core.calls.administration import set_settings
from glidemq_py._core.checks import check_int
from glidemq_py._core.names import validate_job_name
from glidemq_py._core.times import DAY_MS, Milliseconds, epoch_ms, to_instant, to_ms
from glidemq_py._features.metrics_by_name.histogram import Times
from glidemq_py._features.metrics_by_name.recorder import MINUTE_MS
from glidemq_py._job.link import ConnectedQueue, QueueLink
from glidemq_py.errors import GlideMQValidationError

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
        name: Name of the jobs; '' for the names above the limit of `Queue.set_metrics_by_name`.
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
    """Setting of a queue's figures per job name; see `Queue.set_metrics_by_name`.

    Attributes:
        minutes: Number of minutes that are kept; 0 = the queue keeps none.
        max_names: Number of names per minute that are kept apart.
    """

    minutes: int = 0
    max_names: int = 100


async def set_metrics_by_name(self: ConnectedQueue, minutes: int = 1_440, *, max_names: int = 100) -> None:
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
    link = await self._connected()
    text = f"{kept}|{names}" if kept else None
    await link.call(set_settings, metricsByName=text)


async def get_metrics_by_name_setting(self: ConnectedQueue) -> MetricsByNameSetting:
    """Return whether and how long the queue keeps figures per job name."""
    link = await self._connected()
    return read_metrics_by_name_setting(await link.command("HGET", link.keys.meta, _FIELD))


def read_metrics_by_name_setting(text: bytes | None) -> MetricsByNameSetting:
    """Return the setting of the meta field; off if it is absent or malformed."""
    found = re.fullmatch(rb"(\d{1,9})\|(\d{1,9})", text or b"")
    return MetricsByNameSetting() if found is None else MetricsByNameSetting(int(found[1]), int(found[2]))


async def get_metrics_by_name(
    self: ConnectedQueue,
    window: Milliseconds = 3_600_000,
    *,
    end: datetime | None = None,
    name: str | None = None,
    interval: Milliseconds | None = MINUTE_MS,
) -> list[MetricsByName]:
    """Return counts, and percentiles of the waiting and running times, per job name and interval.

    Ordered by time, then name. Intervals and names without jobs are left out. `set_metrics_by_name` turns the
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
    await asked.read(await self._connected())
    return asked.points()


async def get_metrics_of_partitions(
    partitions: Iterable[ConnectedQueue], window: Milliseconds = 3_600_000, *, end: datetime | None = None,
    name: str | None = None, interval: Milliseconds | None = MINUTE_MS,
) -> list[MetricsByName]:  # fmt: skip
    """Return what `get_metrics_by_name` does, of several queues as if they were one."""
    asked = _Asked.checked(window, end, name, interval)
    for queue in partitions:
        await asked.read(await queue._connected())
    return asked.points()


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
        """Check the arguments of `get_metrics_by_name`."""
        minutes = -(-to_ms("window", window, minimum=MINUTE_MS, maximum=30 * DAY_MS) // MINUTE_MS)
        step = None if interval is None else to_ms("interval", interval, minimum=MINUTE_MS)
        if step is not None and step % MINUTE_MS:
            raise GlideMQValidationError("interval", interval, "must be whole minutes")
        last = 0 if end is None else epoch_ms(to_instant("end", end))
        return cls(minutes, step, last, False if name is None else validate_job_name(name))

    async def read(self, link: QueueLink) -> None:
        """Add the figures of a queue. The first one sets the end of the range if that is now."""
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


@declared("metrics_by_name_reply")
class _Page(NamedTuple):
    last: int
    rows: list[list[Any]]
    cursor: int


def _page_call(meta: str, last: int, minutes: int, name: object, cursor: int) -> Call[_Page]:
    request = requests.metrics_by_name(last=last, minutes=minutes, name=name, cursor=cursor)
    return Call("metrics_by_name", meta, request, reader(_Page))


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
