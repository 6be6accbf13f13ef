"""Changes as values: each names its subject, can be counted first, and returns a report.

`perform` runs one through an `Operator`, whose `Access` must allow its `kind`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Literal

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.job_states import JobState
from glidemq_py._features.cleaning import delete_jobs
from glidemq_py._features.consistency.checking import CheckReport
from glidemq_py._features.failures.queue_api import Failure
from glidemq_py._features.limits.options import RateLimit
from glidemq_py._features.revoke import revoke_jobs
from glidemq_py._job.job import Job
from glidemq_py._operate.operating import JobFilter, Operator
from glidemq_py._operate.snapshots import QueueSnapshot
from glidemq_py.errors import JobBatchNotFoundError, JobNotFoundError, JobStateError

__all__ = [
    "Action", "ActionResult", "AddJob", "CancelBatch", "CancelJobs", "CleanQueue", "DrainQueue", "JobsAction",
    "ObliterateQueue", "PauseFairKey", "PauseQueue", "PauseSchedule", "Problem", "PromoteJobs", "PurgeDeadLetters",
    "PurgeFailures", "PutSchedule", "QuietWorker", "RemoveJobs", "RemoveSchedule", "ReplayDeadLetters",
    "ResizeWorker", "ResumeFairKey", "ResumeQueue", "ResumeSchedule", "ResumeWorker", "RetryEdited", "RetryFailures",
    "RetryJobs", "RunSchedule", "SetGroupLimits", "SetMetricsByName", "SetQueueLimits", "check_queue", "count",
    "perform",
]  # fmt: skip

Progress = Callable[[int], None]
"""Called with the number of jobs done so far."""

_MAX_LISTED: Final = 1_000
"""Ids and problems in a result."""
_PIECE: Final = 100
"""Jobs changed at the same time: by one call, or by calls that are in flight together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A job of an action that could not be changed.

    Attributes:
        id: Id of the job or entry.
        error: Why.
        missing: True if it does not exist.
    """

    id: str
    error: str
    missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """Result of an action.

    Attributes:
        done: Number of jobs (or queues, schedules, groups) changed.
        ids: Ids of the jobs added or changed, at most 1,000; empty for actions on whole queues.
        problems: The jobs that could not be changed, at most 1,000.
        detail: What else is to be reported, such as the outcome of an add; '' = nothing.
    """

    done: int
    ids: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action(ABC):
    """A change of one queue."""

    kind: ClassVar[str]
    """Name of the change, as in `Access.actions`."""
    destroys: ClassVar[bool] = False
    """True if it deletes or cancels what cannot be brought back."""

    queue: str

    async def count(self, operator: Operator) -> int | None:
        """Return how many jobs it would change now; None if it does not change jobs."""
        return None

    @abstractmethod
    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """Make the change."""


async def perform(operator: Operator, action: Action, progress: Progress | None = None) -> ActionResult:
    """Make a change.

    Raises:
        AccessDeniedError: The operator's access does not allow it.
        GlideMQError: The queue rejects it, or the server cannot be reached.
    """
    operator.access.check_action(action.kind, action.queue)
    return await action.run(operator, await operator.queue(action.queue), progress or (lambda done: None))


async def count(operator: Operator, action: Action) -> int | None:
    """Return how many jobs a change would affect now; None if it does not affect jobs."""
    operator.access.check_read(action.queue)
    return await action.count(operator)


async def check_queue(operator: Operator, queue: str, *, repair: bool = False) -> CheckReport:
    """Check a queue for inconsistent state; ``repair`` is an action of the kind "repair_queue"."""
    if repair:
        operator.access.check_action("repair_queue", queue)
    return await (await operator.queue(queue)).check(repair=repair)


# -- queues -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseQueue(Action):
    """Start no more jobs. Active jobs keep running."""

    kind: ClassVar[str] = "pause_queue"

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        await queue.pause()
        return ActionResult(done=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeQueue(Action):
    """Start jobs again."""

    kind: ClassVar[str] = "resume_queue"

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        await queue.resume()
        return ActionResult(done=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainQueue(Action):
    """Delete the jobs that are ready to run; with ``delayed``, delayed ones too."""

    kind: ClassVar[str] = "drain_queue"
    destroys: ClassVar[bool] = True

    delayed: bool = False

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        found = await operator.get_queue(self.queue)
        return found.ready + (found.delayed if self.delayed else 0)

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        return ActionResult(done=await queue.drain(delayed=self.delayed))


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanQueue(Action):
    """Delete jobs in a state that are at least ``grace`` ms old, in pieces; ``limit`` None = all."""

    kind: ClassVar[str] = "clean_queue"
    destroys: ClassVar[bool] = True

    state: str
    grace: int = 0
    limit: int | None = None

    async def count(self, operator: Operator) -> int | None:
        """Return the number of jobs in the state, which is exact for a grace of 0."""
        found = _in_state(await operator.get_queue(self.queue), self.state)
        return found if self.limit is None else min(found, self.limit)

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        done, ids = 0, list[str]()
        while True:
            most = _MAX_LISTED if self.limit is None else min(_MAX_LISTED, self.limit - done)
            found = await queue.clean(self.grace, most, self.state)
            done, ids = done + len(found), (ids + found)[:_MAX_LISTED]
            progress(done)
            if len(found) < most or done == self.limit:
                return ActionResult(done=done, ids=tuple(ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObliterateQueue(Action):
    """Delete the queue with all its jobs and keys; with ``force``, active jobs too."""

    kind: ClassVar[str] = "obliterate_queue"
    destroys: ClassVar[bool] = True

    force: bool = False

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        found = await operator.get_queue(self.queue)
        return found.unfinished + found.completed + found.failed

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        return ActionResult(done=await queue.obliterate(force=self.force))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQueueLimits(Action):
    """Set the limits of a queue. None = unchanged, False = no limit; ``ttl``: ms until those before apply again."""

    kind: ClassVar[str] = "limit_queue"

    concurrency: int | Literal[False] | None = None
    rate_limit: RateLimit | Literal[False] | None = None
    ttl: int | None = None

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        if self.concurrency is not None:
            await queue.set_global_concurrency(self.concurrency or 0, ttl=self.ttl)
        if self.rate_limit is False:
            await queue.remove_global_rate_limit()
        elif self.rate_limit is not None:
            await queue.set_global_rate_limit(self.rate_limit.max, self.rate_limit.duration, ttl=self.ttl)
        return ActionResult(done=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGroupLimits(Action):
    """Set the limits of an ordering group. None = unchanged, False = no limit."""

    kind: ClassVar[str] = "limit_group"

    group: str
    concurrency: int | Literal[False] | None = None
    rate_limit: RateLimit | Literal[False] | None = None

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        await queue.set_group_limits(self.group, concurrency=self.concurrency, rate_limit=self.rate_limit)
        return ActionResult(done=1)


# -- fair keys and workers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseFairKey(Action):
    """Start no more jobs with a fair key. Active jobs keep running."""

    kind: ClassVar[str] = "pause_fair_key"

    key: str

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        await queue.pause_fair_key(self.key)
        return ActionResult(done=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeFairKey(Action):
    """Start jobs with a fair key again."""

    kind: ClassVar[str] = "resume_fair_key"

    key: str

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        await queue.resume_fair_key(self.key)
        return ActionResult(done=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietWorker(Action):
    """Let a worker (None = all of the queue) fetch no further jobs, in any of its queues. Active jobs keep running."""

    kind: ClassVar[str] = "quiet_worker"

    worker: str | None
    timeout: int = 15_000

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`. Raises WorkerNotFoundError and WorkerTimeoutError."""
        return _workers(await queue.quiet_workers(self.worker, timeout=self.timeout))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeWorker(Action):
    """Let a quiet worker (None = all of the queue) fetch jobs again."""

    kind: ClassVar[str] = "resume_worker"

    worker: str | None
    timeout: int = 15_000

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`. Raises WorkerNotFoundError and WorkerTimeoutError."""
        return _workers(await queue.resume_workers(self.worker, timeout=self.timeout))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeWorker(Action):
    """Change how many jobs a worker (None = each worker of the queue) runs at the same time, until it ends."""

    kind: ClassVar[str] = "resize_worker"

    worker: str | None
    concurrency: int
    timeout: int = 15_000

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`. Raises WorkerNotFoundError, WorkerTimeoutError and WorkerCommandError."""
        return _workers(await queue.resize_workers(self.concurrency, self.worker, timeout=self.timeout))


def _workers(ids: list[str]) -> ActionResult:
    return ActionResult(done=len(ids), ids=tuple(ids[:_MAX_LISTED]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMetricsByName(Action):
    """Record metrics by job name, and keep them for so many minutes; 0 = off."""

    kind: ClassVar[str] = "set_metrics"

    minutes: int

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        await queue.set_metrics_by_name(self.minutes)
        return ActionResult(done=1)


def _in_state(found: QueueSnapshot, state: str) -> int:
    return int(getattr(found, state.replace("-", "_")))


# -- jobs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AddJob(Action):
    """Add a job; ``options`` are those of `Queue.add`."""

    kind: ClassVar[str] = "add_job"

    name: str
    data: Any = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        job = await queue.add(self.name, self.data, **self.options)
        return ActionResult(done=1, ids=(job.id,), detail=str(job.outcome))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsAction(Action):
    """A change of the jobs with these ids, and of those that match ``wanted``."""

    ids: tuple[str, ...] = ()
    wanted: JobFilter | None = None

    async def change(self, queue: Queue[Any, Any], job: Job[Any, Any] | str) -> None:
        """Change one job, given by its id. Raises JobNotFoundError or JobStateError."""
        raise NotImplementedError

    async def targets(self, operator: Operator) -> AsyncIterator[str]:
        """Yield the ids."""
        for job_id in self.ids:
            yield job_id
        if self.wanted is not None:
            async for job in operator.iter_jobs(self.queue, self.wanted):
                yield job.id

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        return sum([1 async for _ in self.targets(operator)])

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        done, ids, problems = 0, list[str](), list[Problem]()
        # The ids are read first: a change moves a job to another page.
        targets = [each async for each in self.targets(operator)]
        for first in range(0, len(targets), _PIECE):
            piece = targets[first : first + _PIECE]
            found = await asyncio.gather(*(self._outcome(queue, job_id) for job_id in piece))
            changed = [job_id for job_id, problem in zip(piece, found, strict=True) if problem is None]
            done, ids = done + len(changed), (ids + changed)[:_MAX_LISTED]
            problems = (problems + [problem for problem in found if problem is not None])[:_MAX_LISTED]
            progress(done)
        return ActionResult(done=done, ids=tuple(ids), problems=tuple(problems))

    async def _outcome(self, queue: Queue[Any, Any], job_id: str) -> Problem | None:
        try:
            await self.change(queue, job_id)
        except JobNotFoundError:
            return Problem(id=job_id, error="does not exist", missing=True)
        except JobStateError as error:
            return Problem(id=job_id, error=str(error))
        return None


_CANCELLED: Final = ("revoked", "flagged")
_UNFINISHED: Final = tuple(state for state in JobState if not state.is_finished)


async def _job(queue: Queue[Any, Any], job: Job[Any, Any] | str) -> Job[Any, Any]:
    found = await queue.get_job(job, exclude_data=True) if isinstance(job, str) else job
    if found is None:
        raise JobNotFoundError(str(job))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryJobs(JobsAction):
    """Requeue failed jobs (with ``completed``, completed ones too) with all their attempts."""

    kind: ClassVar[str] = "retry_jobs"

    completed: bool = False

    async def change(self, queue: Queue[Any, Any], job: Job[Any, Any] | str) -> None:
        """See `JobsAction`."""
        found = await _job(queue, job)
        await (found.requeue() if self.completed else found.retry())


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryEdited(Action):
    """Replace the data of a failed job, and requeue it with all its attempts."""

    kind: ClassVar[str] = "retry_jobs"

    id: str
    data: Any = None

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`. Raises JobNotFoundError or JobStateError; then nothing has changed."""
        found = await _job(queue, self.id)
        if found.state is not JobState.FAILED:
            raise JobStateError(found.id, str(found.state), "retry")
        await found.update_data(self.data)
        await found.retry()
        return ActionResult(done=1, ids=(found.id,))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteJobs(JobsAction):
    """Make delayed jobs ready to run now."""

    kind: ClassVar[str] = "promote_jobs"

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`. All delayed jobs, or those with a name, are promoted by few calls."""
        wanted = self.wanted
        if self.ids or wanted is None or wanted != JobFilter(state=JobState.DELAYED, name=wanted.name):
            return await JobsAction.run(self, operator, queue, progress)
        return ActionResult(done=await queue.promote_jobs(name=wanted.name))

    async def change(self, queue: Queue[Any, Any], job: Job[Any, Any] | str) -> None:
        """See `JobsAction`."""
        await queue.promote(job if isinstance(job, str) else job.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJobs(JobsAction):
    """Cancel unfinished jobs: they do not start, or stop running, and fail."""

    kind: ClassVar[str] = "cancel_jobs"
    destroys: ClassVar[bool] = True

    async def change(self, queue: Queue[Any, Any], job: Job[Any, Any] | str) -> None:
        """See `JobsAction`."""
        job_id = job if isinstance(job, str) else job.id
        try:
            outcome = await queue.revoke(job_id, states=_UNFINISHED)
        except JobStateError as error:
            raise JobStateError(job_id, error.state, "cancel") from None
        if outcome == "not_found":
            raise JobNotFoundError(job_id)

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`. The jobs that match ``wanted`` are cancelled a hundred per call."""
        if self.ids or self.wanted is None:
            return await JobsAction.run(self, operator, queue, progress)
        targets = [each async for each in self.targets(operator)]
        outcomes = await revoke_jobs(await operator.link(self.queue), targets, _UNFINISHED, progress)
        found = list(zip(targets, outcomes, strict=True))
        cancelled = [job_id for job_id, outcome in found if outcome in _CANCELLED]
        problems = [_not_cancelled(job_id, outcome) for job_id, outcome in found if outcome not in _CANCELLED]
        return ActionResult(
            done=len(cancelled), ids=tuple(cancelled[:_MAX_LISTED]), problems=tuple(problems[:_MAX_LISTED])
        )


def _not_cancelled(job_id: str, outcome: str) -> Problem:
    """Return why `revoke_jobs` did not cancel a job."""
    if outcome == "not_found":
        return Problem(id=job_id, error="does not exist", missing=True)
    if outcome == "error":
        return Problem(id=job_id, error="its keys are damaged: glidemq queue check")
    return Problem(id=job_id, error=str(JobStateError(job_id, outcome, "cancel")))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveJobs(JobsAction):
    """Delete jobs in any state."""

    kind: ClassVar[str] = "remove_jobs"
    destroys: ClassVar[bool] = True

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`. The jobs that match ``wanted`` are deleted a hundred per call, with one event for all."""
        if self.ids or self.wanted is None:
            return await JobsAction.run(self, operator, queue, progress)
        targets = [each async for each in self.targets(operator)]
        link = await operator.link(self.queue)
        deleted = await delete_jobs(link, targets, self.wanted.state, progress)
        return ActionResult(done=len(deleted), ids=tuple(deleted[:_MAX_LISTED]))

    async def change(self, queue: Queue[Any, Any], job: Job[Any, Any] | str) -> None:
        """See `JobsAction`."""
        job_id = job if isinstance(job, str) else job.id
        if not await queue.remove(job_id):
            raise JobNotFoundError(job_id)


# -- failures ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailuresAction(Action):
    """A change of failed jobs; the criteria are those of `Queue.iter_failures`."""

    reason: tuple[str, ...] = ()
    name: str | None = None
    since: int | None = None
    until: int | None = None

    def criteria(self) -> dict[str, Any]:
        """Return the criteria as arguments of `Queue.iter_failures`."""
        return {"reason": self.reason or None, "name": self.name, "since": self.since, "until": self.until}

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        if not any(value is not None for value in self.criteria().values()):
            return (await operator.get_queue(self.queue)).failed
        return sum([1 async for _ in self.matching(operator)])

    async def matching(self, operator: Operator) -> AsyncIterator[Failure]:
        """Yield the failures that match."""
        async for failure in operator.iter_failures(self.queue, **self.criteria()):
            yield failure


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryFailures(_FailuresAction):
    """Requeue failed jobs with all their attempts."""

    kind: ClassVar[str] = "retry_failures"

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        return ActionResult(done=await queue.retry_failures(**self.criteria()))


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeFailures(_FailuresAction):
    """Delete failed jobs."""

    kind: ClassVar[str] = "purge_failures"
    destroys: ClassVar[bool] = True

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        return ActionResult(done=await queue.purge_failures(**self.criteria()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeadLettersAction(Action):
    """A change of dead-letter entries; ``ids`` empty = all."""

    ids: tuple[str, ...] = ()

    async def targets(self, operator: Operator) -> list[str]:
        """Return the ids of the entries."""
        return list(self.ids) or [entry.id async for entry in operator.iter_dead_letters(self.queue)]

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        return len(await self.targets(operator))

    async def change(self, queue: Queue[Any, Any], entry_id: str) -> str | None:
        """Change one entry; return the id of the changed job or entry, None if the entry does not exist."""
        raise NotImplementedError

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        result = ActionResult(done=0)
        for entry_id in await self.targets(operator):
            try:
                changed = await self.change(queue, entry_id)
                problem = None if changed else Problem(id=entry_id, error="does not exist", missing=True)
            except (JobStateError, ValueError) as error:
                changed, problem = None, Problem(id=entry_id, error=str(error))
            if problem is not None:
                result = replace(result, problems=(*result.problems, problem)[:_MAX_LISTED])
            elif changed is not None:
                result = replace(result, done=result.done + 1, ids=(*result.ids, changed)[:_MAX_LISTED])
                progress(result.done)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDeadLetters(_DeadLettersAction):
    """Add the jobs of dead-letter entries to their queue again, and delete the entries."""

    kind: ClassVar[str] = "replay_dead_letters"

    async def change(self, queue: Queue[Any, Any], entry_id: str) -> str | None:
        """See `_DeadLettersAction`."""
        job = await queue.replay_dead_letter_job(entry_id)
        return None if job is None else job.id


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeDeadLetters(_DeadLettersAction):
    """Delete dead-letter entries."""

    kind: ClassVar[str] = "purge_dead_letters"
    destroys: ClassVar[bool] = True

    async def change(self, queue: Queue[Any, Any], entry_id: str) -> str | None:
        """See `_DeadLettersAction`."""
        return entry_id if await queue.remove_dead_letter_job(entry_id) else None


# -- batches ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBatch(Action):
    """Close a batch, reject further jobs, and cancel its jobs that have not ended."""

    kind: ClassVar[str] = "cancel_batch"
    destroys: ClassVar[bool] = True

    batch: str

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        found = await operator.get_batch(self.queue, self.batch)
        return 0 if found is None else found.status.pending

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        try:
            return ActionResult(done=await (await queue.get_batch(self.batch)).cancel())
        except JobBatchNotFoundError:
            return ActionResult(done=0, problems=(Problem(id=self.batch, error="does not exist", missing=True),))


# -- schedules --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSchedule(Action):
    """Create or update a schedule; ``schedule`` are the options of `Queue.upsert_job_scheduler`."""

    kind: ClassVar[str] = "put_schedule"

    name: str
    schedule: Mapping[str, Any]
    job_name: str | None = None
    data: Any = None

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        data: Any = self.data
        if data is None:
            data = {}
        template: Any = {"name": self.job_name or self.name, "data": data}
        await queue.upsert_job_scheduler(self.name, template=template, **self.schedule)
        return ActionResult(done=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseSchedule(Action):
    """Pause a schedule. Jobs it has added are kept."""

    kind: ClassVar[str] = "pause_schedule"

    name: str

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        return ActionResult(done=1) if await queue.pause_job_scheduler(self.name) else _no_schedule(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSchedule(Action):
    """Resume a schedule; ``catch_up`` is that of `Queue.resume_job_scheduler`."""

    kind: ClassVar[str] = "resume_schedule"

    name: str
    catch_up: bool | None = None

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        if await queue.get_job_scheduler(self.name) is None:
            return _no_schedule(self.name)
        resumed = await queue.resume_job_scheduler(self.name, catch_up=self.catch_up)
        return ActionResult(done=1, detail="" if resumed else "no due time is left: the schedule has ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSchedule(Action):
    """Add the job of a schedule now. Its due times do not change."""

    kind: ClassVar[str] = "run_schedule"

    name: str

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        found = await queue.get_job_scheduler(self.name)
        if found is None:
            return _no_schedule(self.name)
        given = {each.name: getattr(found.options, each.name) for each in fields(found.options) if each.init}
        options = {name: value for name, value in given.items() if value is not None}
        job = await queue.add(found.job_name, {} if found.data is None else found.data, **options)
        return ActionResult(done=1, ids=(job.id,), detail=str(job.outcome))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveSchedule(Action):
    """Delete a schedule. Jobs it has added are kept."""

    kind: ClassVar[str] = "remove_schedule"
    destroys: ClassVar[bool] = True

    name: str

    async def run(self, operator: Operator, queue: Queue[Any, Any], progress: Progress) -> ActionResult:
        """See `Action`."""
        return ActionResult(done=1) if await queue.remove_job_scheduler(self.name) else _no_schedule(self.name)


def _no_schedule(name: str) -> ActionResult:
    return ActionResult(done=0, problems=(Problem(id=name, error="does not exist", missing=True),))
