"""Values that a queue reports: job states, outcomes of an add, counts, live workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast

from glidemq_py._core.checks import check_choice, check_iterable
from glidemq_py.errors import GlideMQValidationError


class JobState(StrEnum):
    """State of a job; the value is the text stored in the job's hash."""

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
        """Return True for completed and failed."""
        return self is JobState.COMPLETED or self is JobState.FAILED


def check_states(states: object) -> str:
    """Return the states of an option ``states``, separated by spaces; '' for None, which allows all.

    Raises:
        GlideMQValidationError: If it is neither a state nor a non-empty iterable of states.
    """
    if states is None:
        return ""
    if isinstance(states, str):
        return check_choice("states", states, tuple(JobState))
    given = tuple(check_iterable("states", cast("Iterable[object]", states), "states"))
    if not given:
        raise GlideMQValidationError("states", states, "must not be empty; None allows every state")
    return " ".join(check_choice("states", state, tuple(JobState)) for state in given)


class JobOutcome(StrEnum):
    """Outcome of `add`."""

    ADDED = "added"
    """The job was stored."""
    DUPLICATE = "duplicate"
    """A job with this custom id already exists; it was not changed."""
    SKIPPED = "skipped"
    """Deduplication kept the existing job."""
    REPLACED = "replaced"
    """Deduplication replaced the existing job with this one."""
    STAGED = "staged"
    """Deduplication staged this job: it runs after the existing job, which is active, has ended."""


ADDED_OUTCOMES: Final = frozenset((JobOutcome.ADDED, JobOutcome.REPLACED, JobOutcome.STAGED))
"""Outcomes of an `add` that stored a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """Numbers of jobs in a queue by state.

    Attributes:
        waiting: ready to run.
        active: fetched by a worker.
        delayed: due later, including retries in their backoff.
        prioritized: ready, with a priority.
        group_waiting: waiting in ordering groups that are full, rate limited, or busy with an earlier job.
        completed: completed and kept.
        failed: failed without attempts left, and kept.
        suspended: waiting for a signal.
        waiting_children: parents waiting for their children.
        paused: True if the queue is paused.
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
        """Return the number of jobs that have neither completed nor failed."""
        ready = self.waiting + self.active + self.delayed + self.prioritized + self.group_waiting
        return ready + self.suspended + self.waiting_children

    @property
    def total(self) -> int:
        """Return the number of all jobs."""
        return self.unfinished + self.completed + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One live worker, as registered by its last heartbeat.

    Attributes:
        id: consumer name.
        host: host name.
        pid: process id.
        started_at: milliseconds since 1970.
        age: milliseconds since its start.
        active_jobs: number of active jobs at the last heartbeat.
        concurrency: maximum number of jobs that it runs at the same time; None = unknown, as of Node workers.
        memory: physical memory of its process at the last heartbeat, bytes; None = unknown.
        paused: True if it fetched no jobs at the last heartbeat: it was paused, or is quiet.
        stuck: number of slots that were occupied, at the last heartbeat, by handlers that had not ended although their
            attempts had: after a timeout, a cancellation or a lost lock.
    """

    id: str
    host: str
    pid: int
    started_at: int
    age: int
    active_jobs: int
    concurrency: int | None = None
    memory: int | None = None
    paused: bool = False
    stuck: int = 0
