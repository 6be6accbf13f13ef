"""Metrics of a queue and logs of a job, read in bounded pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from glidemq_py._core.checks import check_choice, check_int
from glidemq_py._core.logs import JobLogLine, LogLevel, check_level, parse_log_line
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import ConnectedQueue
from glidemq_py.errors import GlideMQValidationError


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPoint:
    """Jobs that completed or failed within one minute.

    Attributes:
        timestamp: start of the minute, epoch ms.
        count: number of jobs.
        avg_duration: mean time from the start to the end of an attempt, ms.
    """

    timestamp: int
    count: int
    avg_duration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Completed or failed jobs, in total and per minute.

    Attributes:
        count: number of completed (or failed) jobs that are kept.
        data: one point per minute of the last day in which jobs ended, oldest first.
    """

    count: int
    data: tuple[MetricsPoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLogs:
    """Lines of a job's log.

    Attributes:
        logs: the requested lines as they are stored, oldest first.
        count: total number of lines; with a level, of the lines with that level or a higher one.
    """

    logs: list[str]
    count: int

    @property
    def lines(self) -> list[JobLogLine]:
        """The requested lines with their levels."""
        return [parse_log_line(line) for line in self.logs]


_LINES_PER_CALL: Final = 200
_FIELD: Final = re.compile(rb"m:(\d+):([cd])")
_MAX_SAFE_INTEGER: Final = 2**53


def bounds(start: int, end: int, length: int) -> tuple[int, int]:
    """Convert start and end as in LRANGE to the first position and the one after the last."""
    first = check_int("start", start, -_MAX_SAFE_INTEGER, _MAX_SAFE_INTEGER)
    last = check_int("end", end, -_MAX_SAFE_INTEGER, _MAX_SAFE_INTEGER)
    first = max(0, first + length) if first < 0 else first
    last = last + length if last < 0 else last
    return first, min(last + 1, length)


async def get_metrics(queue: ConnectedQueue, kind: str, start: int, end: int) -> Metrics:
    """Return counts and mean durations per minute. Only one day is kept, so a single read returns all of it."""
    check_choice("kind", kind, ("completed", "failed"))
    first = check_int("start", start, -_MAX_SAFE_INTEGER, _MAX_SAFE_INTEGER)
    if 0 <= check_int("end", end, -_MAX_SAFE_INTEGER, _MAX_SAFE_INTEGER) < first:
        raise GlideMQValidationError("end", end, f"must not be before 'start' = {start}")
    found = await queue._each(lambda link: _metrics(link, completed=kind == "completed"))
    minutes: dict[int, list[MetricsPoint]] = {}
    for metrics in found:
        for point in metrics.data:
            minutes.setdefault(point.timestamp, []).append(point)
    data: list[MetricsPoint] = []
    for minute, points in sorted(minutes.items()):
        count = sum(point.count for point in points)
        duration = sum(point.avg_duration * point.count for point in points)
        data.append(MetricsPoint(timestamp=minute, count=count, avg_duration=round(duration / count)))
    first, stop = bounds(start, end, len(data))
    return Metrics(count=sum(metrics.count for metrics in found), data=tuple(data[first:stop]))


async def _metrics(link: QueueLink, *, completed: bool) -> Metrics:
    count = await link.command("ZCARD", link.keys.completed if completed else link.keys.failed)
    fields = await link.command("HGETALL", link.keys.metrics("completed" if completed else "failed"))
    sums: dict[int, dict[bytes, int]] = {}
    for field, value in fields.items():
        found = _FIELD.fullmatch(field)
        if found and value.isdigit():
            sums.setdefault(int(found[1]), {})[found[2]] = int(value)
    points = [
        MetricsPoint(timestamp=minute, count=of[b"c"], avg_duration=round(of.get(b"d", 0) / of[b"c"]))
        for minute, of in sorted(sums.items())
        if of.get(b"c")
    ]
    return Metrics(count=int(count), data=tuple(points))


async def get_job_logs(link: QueueLink, job_id: str, start: int, end: int, level: LogLevel | None = None) -> JobLogs:
    """Return lines of a job's log, and their total number; with ``level``, only lines of at least this level."""
    key = link.keys.log(job_id)
    count = int(await link.command("LLEN", key))
    if level is None:
        return JobLogs(logs=await _lines(link, key, *bounds(start, end, count)), count=count)
    bounds(start, end, count)
    least = check_level(level)
    lines = [line for line in await _lines(link, key, 0, count) if parse_log_line(line).is_at_least(least)]
    first, stop = bounds(start, end, len(lines))
    return JobLogs(logs=lines[first:stop], count=len(lines))


async def _lines(link: QueueLink, key: str, first: int, stop: int) -> list[str]:
    lines: list[str] = []
    for at in range(first, stop, _LINES_PER_CALL):
        page = await link.command("LRANGE", key, str(at), str(min(at + _LINES_PER_CALL, stop) - 1))
        lines += [line.decode("utf-8", "replace") for line in page]
    return lines
