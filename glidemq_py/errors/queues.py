"""What a queue answers to those who add to it, read it or steer it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from glidemq_py.errors.base import GlideMQError, _message_of

__all__ = [
    "BulkAddError",
    "DuplicateJobError",
    "EventsLostError",
    "JobCostError",
    "SchedulerBusyError",
    "StagedWriteError",
]


class BulkAddError(GlideMQError):
    """Some jobs of a bulk add were not added.

    `results` has one element for each position given: the job, or the exception that kept it out.
    """

    results: Sequence[object]

    def __init__(self, results: Sequence[object]) -> None:
        super().__init__(results)
        self.results = results

    @property
    def failed(self) -> int:
        """How many positions hold an exception."""
        return sum(isinstance(result, BaseException) for result in self.results)

    def __str__(self) -> str:
        errors = (result for result in self.results if isinstance(result, BaseException))
        first = next(errors, None)
        reason = "" if first is None else f"; the first: {type(first).__name__}: {first}"
        return f"{self.failed} of {len(self.results)} jobs were not added{reason}"


class JobCostError(GlideMQError):
    """The job costs more than its group's token bucket holds: it could never run, and was not added."""

    def __init__(self, cost: float | None = None, key: str | None = None) -> None:
        super().__init__(cost, key)
        self.cost = cost
        self.key = key

    def __str__(self) -> str:
        if self.key is None:
            return _message_of(JobCostError)
        cost = 1 if self.cost is None else self.cost
        return f"a job of cost {cost} was not added: the token bucket of group {self.key!r} holds less than that"


class DuplicateJobError(GlideMQError):
    """A job of that id is there already; nothing was added."""

    job_id: str
    queue: str

    def __init__(self, job_id: str, queue: str) -> None:
        super().__init__(job_id, queue)
        self.job_id = job_id
        self.queue = queue

    def __str__(self) -> str:
        return f"queue {self.queue!r} has a job {self.job_id!r} already; nothing was added"


class SchedulerBusyError(GlideMQError):
    """A peer was at the schedulers of the queue for seconds: nothing was changed, try again.

    Attributes:
        name: of the scheduler.
    """

    name: str

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"scheduler {self.name!r} was not changed: a peer was at the schedulers all the time"


_STAGED_WRITE_PROBLEMS: Final = {
    "lost": "what had been staged is not all there: it ran out, or the server has lost it",
    "absent": "it has run out: nothing of it was touched for longer than its staging lives",
    "aborted": "it was given up",
    "full": "it touches too many queues",
    "done": "it has been published",
    "committed": "it has been decided",
    "gap": "what it has added before is not remembered any more",
}


class StagedWriteError(GlideMQError):
    """A staged write cannot go on. `write` is its id, `state` what the server says of it in `queue`."""

    write: str
    queue: str
    state: str

    def __init__(self, write: str, queue: str, state: str) -> None:
        super().__init__(write, queue, state)
        self.write = write
        self.queue = queue
        self.state = state

    def __str__(self) -> str:
        problem = _STAGED_WRITE_PROBLEMS.get(self.state, f"it is {self.state}")
        return f"write {self.write!r} in queue {self.queue!r}: {problem}"


class EventsLostError(GlideMQError):
    """Events of a queue are gone before they were read.

    ``count`` says how many; None where the queue was deleted and has begun anew.
    """

    queue: str
    count: int | None

    def __init__(self, queue: str, count: int | None) -> None:
        super().__init__(queue, count)
        self.queue = queue
        self.count = count

    def __str__(self) -> str:
        what = "its events have begun anew: it was deleted" if self.count is None else f"{self.count} events were lost"
        return f"queue {self.queue!r}: {what} before they were read (failOnDataLoss=false goes on with what is there)"
