"""Names and numbers a queue reports: states, outcomes of an add, counts, live workers. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    """Where a job stands; the text is what its hash holds (spec/data-model section 4)."""

    WAITING = "waiting"
    ACTIVE = "active"
    DELAYED = "delayed"
    PRIORITIZED = "prioritized"
    COMPLETED = "completed"
    FAILED = "failed"
    WAITING_CHILDREN = "waiting-children"
    GROUP_WAITING = "group-waiting"
    SUSPENDED = "suspended"

    @property
    def is_finished(self) -> bool:
        """True for completed and failed."""
        return self is JobState.COMPLETED or self is JobState.FAILED


class JobOutcome(StrEnum):
    """What `add` did."""

    ADDED = "added"
    """The job was stored."""
    DUPLICATE = "duplicate"
    """A job of that custom id stands already; it was left alone."""
    SKIPPED = "skipped"
    """Deduplication kept the job that stands."""
    REPLACED = "replaced"
    """Deduplication put this job in the place of another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """Numbers of jobs in a queue at one moment.

    Attributes:
        waiting: ready to run.
        active: handed to a worker.
        delayed: due later; retries that wait for their backoff are among them.
        prioritized: ready, with a priority.
        group_waiting: parked in their groups, which are full, limited, or at an earlier job.
        completed: finished and kept.
        failed: failed for good and kept.
        suspended: waiting for a signal from outside.
        waiting_children: parents that wait for their children.
        paused: whether the queue hands out jobs; not a number.
    """

    waiting: int = 0
    active: int = 0
    delayed: int = 0
    prioritized: int = 0
    group_waiting: int = 0
    completed: int = 0
    failed: int = 0
    suspended: int = 0
    waiting_children: int = 0
    paused: bool = False

    @property
    def unfinished(self) -> int:
        """Jobs that are yet to finish: all that have neither completed nor failed."""
        ready = self.waiting + self.active + self.delayed + self.prioritized + self.group_waiting
        return ready + self.suspended + self.waiting_children

    @property
    def total(self) -> int:
        """All jobs."""
        return self.unfinished + self.completed + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One live worker, as its heartbeat describes it (`P:w:<id>`, spec/data-model section 3).

    Attributes:
        id: consumer name.
        host: name of its machine.
        pid: process id.
        started_at: milliseconds since 1970.
        age: milliseconds it has been running.
        active_jobs: jobs in its hands at the last heartbeat.
    """

    id: str
    host: str
    pid: int
    started_at: int
    age: int
    active_jobs: int
