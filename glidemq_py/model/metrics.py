"""What a queue remembers of the jobs that ended, and a job of its handler's words. Values only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JobLogs", "Metrics", "MetricsPoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPoint:
    """Jobs that ended within one minute.

    Attributes:
        timestamp: at which the minute began, ms since 1970.
        count: of jobs.
        avg_duration: mean time from the activation to the end of an attempt, ms.
    """

    timestamp: int
    count: int
    avg_duration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Jobs that ended, in all and by the minute.

    Attributes:
        count: of jobs of this end that are kept.
        data: minutes in which jobs ended, of the last day, oldest first.
    """

    count: int
    data: tuple[MetricsPoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLogs:
    """Lines of a job's log.

    Attributes:
        logs: those asked for, oldest first.
        count: how many there are in all.
    """

    logs: list[str]
    count: int
