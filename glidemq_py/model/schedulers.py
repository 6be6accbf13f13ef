"""A scheduler as it was read: a value, nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from glidemq_py.options.job import JobOptions
from glidemq_py.options.schedule import Schedule

__all__ = ["JobScheduler"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScheduler:
    """A scheduler of a queue. Times are epoch ms by the server's clock.

    Attributes:
        name: unique in its queue.
        schedule: when its jobs are due.
        job_name, data, options: what its jobs are; ``data`` is None where the template holds none.
        next_run: when the next job is due; None while it waits for the end of the last one.
        last_run: when it was fired last; None before the first run.
        iteration_count: runs so far.
        last_job_id: the job that ``repeat_after_complete`` made last.
        for_peers: Node peers see it and fire it too. False where it says something that they would not honour.
    """

    name: str
    schedule: Schedule
    job_name: str
    data: Any
    options: JobOptions
    next_run: int | None
    last_run: int | None
    iteration_count: int
    last_job_id: str | None
    for_peers: bool

    def preview(self, count: int = 10) -> list[datetime]:
        """The next instants from `next_run` on, in the schedule's zone, as `Schedule.preview`; none while it waits."""
        left = None if self.schedule.limit is None else self.schedule.limit - self.iteration_count
        return self.schedule.preview_from(self.next_run, count, left)
