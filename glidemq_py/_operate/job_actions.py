"""Actions on jobs: those of a page or a filter, failed ones, and dead-letter entries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

from glidemq_py._api.administration import promote_in_pieces
from glidemq_py._api.dead_letters import replay_entry
from glidemq_py._api.job_queue import Queue
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import pieces
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.record import JobOutcome, JobState
from glidemq_py._features.cleaning import delete_jobs
from glidemq_py._features.failed_attempts import FailureReason, is_cancelled
from glidemq_py._features.failures import change_failures_in_pieces
from glidemq_py._features.revoke import revoke_jobs
from glidemq_py._job.job import Job
from glidemq_py._job.reading import listed_states
from glidemq_py._operate.action import (
    MAX_LISTED,
    Action,
    ActionResult,
    Button,
    ManyAction,
    Problem,
    Progress,
    Step,
    absent,
    nothing,
)
from glidemq_py._operate.conversion import by_partition, encoding_of, in_turn
from glidemq_py._operate.filters import JobFilter
from glidemq_py._operate.lists import Letters, iter_dead_letters
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.parsing import PARAMETERS
from glidemq_py._operate.snapshots import QueueSnapshot, param, record
from glidemq_py._partitions.link import server_time
from glidemq_py.errors import GlideMQValidationError, JobNotFoundError, JobStateError, SerializationError

KEEP_FEWER: Final = (
    "to delete one of them: glidemq job rm {queue} ID; "
    "to keep fewer: Broadcast({queue!r}, max_messages=..., max_age=...)"
)
REDELIVER: Final = (
    "to deliver one again: glidemq dlq replay {queue} ENTRY, "
    "or await Broadcast({queue!r}).redeliver(message_id, subscription)"
)
_PIECE: Final = 100
"""Jobs changed at the same time: by one call, or by calls that are in flight together."""


@record
class AddJob(
    Action,
    instead="to publish one: await Broadcast({queue!r}).publish(subject, data)",
    role="producer",
    button=Button("add", "Add this job?", "job added", typed=("name", "data", "options")),
):
    """Add a job; ``options`` are those of `Queue.add`."""

    name: str
    data: Any = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    async def run(self, operator: Operator, queue: Queue, progress: Progress) -> ActionResult:
        """See `Action`. Raises AccessDeniedError for jobs of other queues that wait for it, or it for them."""
        given = JobOptions.parse(self.options)
        for other in (*([given.parent] if given.parent else []), *(given.depends_on or ())):
            operator.access.check_action(self.kind, other.queue or self.queue)
        job = await queue.add(self.name, self.data, **self.options)
        return ActionResult(done=1, ids=(job.id,), detail=str(job.outcome))


@record
class JobsAction(ManyAction):
    """A change of the jobs with these ids; without ids, of those that match ``wanted``."""

    ids: tuple[str, ...] = ()
    wanted: JobFilter | None = None

    async def change(self, queue: Queue, job_id: str) -> None:
        """Change one job. Raises JobNotFoundError or JobStateError."""
        raise NotImplementedError

    async def change_all(self, operator: Operator, queue: Queue, ids: Sequence[str]) -> list[Problem | None]:
        """Change these jobs; return for each why it could not be changed, or None."""
        found: list[Problem | None] = []
        for piece in pieces(ids, _PIECE):
            found += await asyncio.gather(*(self._outcome(queue, job_id) for job_id in piece))
        return found

    def states(self) -> tuple[JobState, ...]:
        """Return the states of the jobs that it changes if the filter has none.

        A change must not move a job to a later one of these.
        """
        return listed_states()

    def _criteria(self) -> list[JobFilter]:
        """Return the filter for each state of its jobs."""
        wanted = self.wanted or JobFilter()
        return [wanted] if wanted.state is not None else [replace(wanted, state=state) for state in self.states()]

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        if self.ids or self.wanted is None:
            return len(self.ids)
        if replace(self.wanted, state=None).is_plain:
            found = await operator.get_queue(self.queue)
            return sum(in_state(found, str(each.state)) for each in self._criteria())
        return sum([1 for each in self._criteria() async for _ in operator.iter_jobs(self.queue, each)])

    async def missing(self, operator: Operator) -> tuple[str, ...]:
        """See `Action`."""
        queue, found = await operator.queue(self.queue), list[str]()
        for piece in pieces(self.ids, _PIECE):
            jobs = await asyncio.gather(*(queue.get_job(job_id, exclude_data=True) for job_id in piece))
            found += [job_id for job_id, job in zip(piece, jobs, strict=True) if job is None]
        return tuple(found)

    async def steps(self, operator: Operator, queue: Queue, position: str = "") -> AsyncGenerator[Step]:
        """See `ManyAction`."""
        if self.ids or self.wanted is None:
            for first in range(int(position or 0), len(self.ids), _PIECE):
                piece = self.ids[first : first + _PIECE]
                found = await self.change_all(operator, queue, piece)
                yield _step(piece, found, str(first + _PIECE) if first + _PIECE < len(self.ids) else "")
            return
        criteria = self._criteria()
        place = _Place.parse(position) or _Place(0, "", "", await server_time(await operator.transport()))
        # Only an active job may be on two pages: another one leaves its state, or keeps its place there.
        seen: set[str] = set()
        while place.at < len(criteria):
            wanted = criteria[place.at]
            until = place.until if wanted.until is None else min(place.until, wanted.until)
            page = await operator.get_jobs(
                self.queue, replace(wanted, until=until), cursor=place.cursor, count=MAX_LISTED
            )
            ids = list(dict.fromkeys([*[place.kept] * bool(place.kept), *(job.id for job in page.jobs)]))
            ids = [job_id for job_id in ids if job_id not in seen]
            # The cursor names the last job: it is changed after the next page, so that the position is found again.
            kept = ids.pop() if page.cursor and ids else ""
            if wanted.state == JobState.ACTIVE:
                seen.update(ids)
            found = await self.change_all(operator, queue, ids) if ids else []
            place = _Place(place.at + (not page.cursor), page.cursor, kept, place.until)
            yield _step(ids, found, place.text() if place.at < len(criteria) else "")

    async def _outcome(self, queue: Queue, job_id: str) -> Problem | None:
        try:
            await self.change(queue, job_id)
        except JobNotFoundError:
            return absent(job_id)
        except JobStateError as error:
            return Problem(id=job_id, error=str(error))
        return None


class _Place(NamedTuple):
    """Where a change of the jobs that match a filter continues.

    Attributes:
        at: Number of the filter: there is one per state.
        cursor: Cursor of the next page of jobs.
        kept: Id of the last job of the page before, which is not changed yet; "" = none.
        until: Only jobs that were added before this time are changed, epoch ms.
    """

    at: int
    cursor: str
    kept: str
    until: int

    def text(self) -> str:
        return json.dumps(list(self))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        return cls(*json.loads(text)) if text else None


def _step(ids: Sequence[str], found: Sequence[Problem | None], position: str) -> Step:
    changed = tuple(job_id for job_id, problem in zip(ids, found, strict=True) if problem is None)
    problems = tuple(problem for problem in found if problem is not None)
    return Step(done=len(changed), position=position, ids=changed, problems=problems)


def in_state(found: QueueSnapshot, state: str) -> int:
    """Return the number of jobs in a state."""
    return int(getattr(found, state.replace("-", "_")))


_CANCELLED: Final = ("revoked", "flagged")
_UNFINISHED: Final = tuple(state for state in JobState if not state.is_finished)
_FAILED_FIRST: Final = (JobState.FAILED, JobState.COMPLETED)


async def _job(queue: Queue, job_id: str, *, exclude_data: bool = True) -> Job:
    found = await queue.get_job(job_id, exclude_data=exclude_data)
    if found is None:
        raise JobNotFoundError(job_id, f"in queue {queue.name!r}")
    return found


@record
class RetryJobs(
    JobsAction,
    command="job retry",
    says="requeue {jobs} of queue {queue!r}",
    instead=REDELIVER,
    button=Button(
        "retry",
        "Retry these jobs?",
        "{n} job{s} to be retried",
        "Retrying jobs",
        label="Retry",
        states=(JobState.FAILED,),
    ),
):
    """Requeue failed jobs with all their attempts. For many of them, see `glidemq failures retry`."""

    completed: bool = False

    def states(self) -> tuple[JobState, ...]:
        """See `JobsAction`."""
        return _FAILED_FIRST if self.completed else _FAILED_FIRST[:1]

    async def steps(self, operator: Operator, queue: Queue, position: str = "") -> AsyncGenerator[Step]:
        """See `ManyAction`. All failed jobs, or those with a name, are requeued a hundred per call."""
        wanted = self.wanted
        if self.ids or self.completed or wanted is None or not _is_of_state(wanted, JobState.FAILED):
            async for step in JobsAction.steps(self, operator, queue, position):
                yield step
            return
        by_name = RetryFailures(queue=self.queue, name=wanted.name)
        async for step in by_name.steps(operator, queue, position):
            yield step

    async def change(self, queue: Queue, job_id: str) -> None:
        """See `JobsAction`."""
        found = await _job(queue, job_id)
        by_error = self.wanted is not None and (self.wanted.error or self.wanted.error_type or self.wanted.error_shape)
        if not (self.ids or by_error) and is_cancelled(found.failed_reason, found.failed_type):
            raise JobStateError(found.id, FailureReason.CANCELLED, "retry", queue=queue.name)
        await (found.requeue() if self.completed else found.retry())


@record
class RetryEdited(
    Action,
    kind="retry_jobs",
    instead=REDELIVER,
    button=Button(
        "retry-edited", "Retry the job with this data?", "job to be retried with the new data", typed=("data",)
    ),
):
    """Replace the data of a failed job, and requeue it with all its attempts."""

    id: str
    data: Any = None

    async def make(self, queue: Queue) -> ActionResult:
        """See `Action`. Raises JobNotFoundError, JobStateError or SerializationError; then nothing has changed."""
        found = await _job(queue, self.id, exclude_data=False)
        if found.state is not JobState.FAILED:
            raise JobStateError(found.id, str(found.state), "retry", queue=queue.name)
        if encoding_of(found) is not None:
            raise SerializationError("id", found.id, "its data cannot be read here, so it is not replaced")
        await found.update_data(self.data)
        await found.retry()
        return ActionResult(done=1, ids=(found.id,))


@record
class PromoteJobs(
    JobsAction,
    command="job promote",
    says="promote {jobs} of queue {queue!r}",
    button=Button(
        "promote",
        "Run these delayed jobs now?",
        "{n} job{s} made ready",
        "Making delayed jobs ready",
        label="Run now",
        states=(JobState.DELAYED,),
    ),
):
    """Make delayed jobs ready to run now."""

    def states(self) -> tuple[JobState, ...]:
        """See `JobsAction`."""
        return (JobState.DELAYED,)

    async def steps(self, operator: Operator, queue: Queue, position: str = "") -> AsyncGenerator[Step]:
        """See `ManyAction`. All delayed jobs, or those with a name, are promoted a hundred per call."""
        wanted = self.wanted
        if self.ids or wanted is None or not _is_of_state(wanted, JobState.DELAYED):
            async for step in JobsAction.steps(self, operator, queue, position):
                yield step
            return
        links, name = await operator.links(self.queue), wanted.name or ""
        async for number, following in in_turn(links, position, lambda link, at: promote_in_pieces(link, name, at)):
            yield Step(done=number, position=following)

    async def change(self, queue: Queue, job_id: str) -> None:
        """See `JobsAction`."""
        await queue.promote(job_id)


@record
class CancelJobs(
    JobsAction,
    command="job cancel",
    says="cancel {jobs} of queue {queue!r}",
    destroys=True,
    instead="to delete one of them: glidemq job rm {queue} ID",
    button=Button(
        "cancel",
        "Cancel these jobs? Running ones stop.",
        "{n} job{s} cancelled",
        "Cancelling jobs",
        label="Cancel",
        states=_UNFINISHED,
    ),
):
    """Cancel unfinished jobs: they do not start, or stop running, and fail."""

    async def change(self, queue: Queue, job_id: str) -> None:
        """See `JobsAction`."""
        try:
            outcome = await queue.revoke(job_id, states=_UNFINISHED)
        except JobStateError as error:
            raise JobStateError(job_id, error.state, "cancel", queue=queue.name) from None
        if outcome == "not_found":
            raise JobNotFoundError(job_id, f"in queue {queue.name!r}")

    def states(self) -> tuple[JobState, ...]:
        """See `JobsAction`."""
        return tuple(state for state in listed_states() if not state.is_finished)

    async def change_all(self, operator: Operator, queue: Queue, ids: Sequence[str]) -> list[Problem | None]:
        """See `JobsAction`. A hundred jobs are cancelled per call."""
        links = await operator.links(self.queue)
        if self.ids and len(links) > 1:  # ids without a partition are allowed
            return await JobsAction.change_all(self, operator, queue, ids)
        found = dict[str, str]()
        for number, mine in by_partition(ids, len(links)).items():
            outcomes = await revoke_jobs(links[number], [own for own, _ in mine], _UNFINISHED)
            found |= {job_id: outcome for (_, job_id), outcome in zip(mine, outcomes, strict=True)}
        return [None if found[job_id] in _CANCELLED else _not_cancelled(job_id, found[job_id]) for job_id in ids]


def _not_cancelled(job_id: str, outcome: str) -> Problem:
    """Return why `revoke_jobs` did not cancel a job."""
    if outcome == "not_found":
        return absent(job_id)
    if outcome == "error":
        return Problem(id=job_id, error="its keys are damaged: glidemq queue check")
    return Problem(id=job_id, error=str(JobStateError(job_id, outcome, "cancel")))


@record
class RemoveJobs(
    JobsAction,
    command="job rm",
    says="delete {jobs} from queue {queue!r}",
    destroys=True,
    button=Button(
        "remove",
        "Delete these jobs?",
        "{n} job{s} deleted",
        "Deleting jobs",
        label="Delete",
        states=(*JobState, None),
    ),
):
    """Delete jobs with their logs and results, or messages of a broadcast given by their ids."""

    @property
    def for_broadcasts(self) -> str:
        """See `Action`."""
        return "" if self.ids else KEEP_FEWER.format(queue=self.queue)

    async def change_all(self, operator: Operator, queue: Queue, ids: Sequence[str]) -> list[Problem | None]:
        """See `JobsAction`. Of a filter, a hundred jobs are deleted per call, with one event for all of the step."""
        if self.ids or self.wanted is None:
            return await JobsAction.change_all(self, operator, queue, ids)
        links, deleted = await operator.links(self.queue), set[str]()
        for number, mine in by_partition(ids, len(links)).items():
            shown = dict(mine)
            deleted.update(shown[own] for own in await delete_jobs(links[number], list(shown), self.wanted.state))
        left = "has left its state meanwhile"
        return [None if job_id in deleted else Problem(id=job_id, error=left, missing=True) for job_id in ids]

    async def change(self, queue: Queue, job_id: str) -> None:
        """See `JobsAction`."""
        if not await queue.remove(job_id):
            raise JobNotFoundError(job_id, f"in queue {queue.name!r}")


def _is_of_state(wanted: JobFilter, state: JobState) -> bool:
    """Return True if the filter selects the jobs in a state, and none of its other criteria but the name is used."""
    return wanted == JobFilter(state=wanted.state, name=wanted.name) and wanted.state in (None, state)


@record
class SignalJob(
    Action,
    command="job signal",
    says="signal job {id!r}",
    said="sent signal {name!r} to job {id!r} of queue {queue!r}",
    button=Button("signal", "Send the signal?", "signal sent", typed=("name", "data")),
    instead="its messages cannot be suspended",
):
    """Send a signal to a job: it resumes if it is suspended, or as soon as it waits for the signal."""

    id: str = param("Id of the job.", "ID")
    name: str = param("Name of the signal.", "NAME")
    data: Any = param(PARAMETERS["value"], default=None)

    async def make(self, queue: Queue) -> ActionResult:
        """See `Action`. Raises JobStateError if the job has ended."""
        if await queue.signal(self.id, self.name, self.data):
            return ActionResult(done=1, ids=(self.id,))
        job = await queue.get_job(self.id, exclude_data=True)
        if job is None:
            return nothing(absent(self.id))
        raise JobStateError(self.id, str(job.state), "signal", queue=queue.name)


@record
class _Decision(Action, instead=SignalJob.instead):
    """The answer to a job that is suspended until somebody decides: the signal ``decides``, with this data."""

    decides: ClassVar[str]

    id: str = param("Id of the job.", "ID")
    data: Any = param(PARAMETERS["value"], default=None)

    async def make(self, queue: Queue) -> ActionResult:
        """See `Action`. Raises JobStateError if the job does not wait for a signal."""
        waits = await queue.jobs.get_suspend_info(self.id)
        job = None if waits else await queue.get_job(self.id, exclude_data=True)
        if job is not None:
            raise JobStateError(self.id, str(job.state), self.decides, queue=queue.name)
        return await SignalJob(queue=self.queue, id=self.id, name=self.decides, data=self.data).make(queue)


@record
class ApproveJob(
    _Decision,
    decides="approve",
    says="approve job {id!r} of queue {queue!r}",
    command="job approve",
    button=Button("approve", "Approve the job?", "job approved", label="Approve", states=(JobState.SUSPENDED,)),
    route=("/jobs/{id}/approve", {"approved": True}),
):
    """Approve a job that waits for a decision: it resumes with the signal `approve`."""


@record
class RejectJob(
    _Decision,
    decides="reject",
    says="reject job {id!r} of queue {queue!r}",
    command="job reject",
    button=Button("reject", "Reject the job?", "job rejected", label="Reject", states=(JobState.SUSPENDED,)),
    route=("/jobs/{id}/reject", {"rejected": True}),
):
    """Reject a job that waits for a decision: it resumes with the signal `reject`."""


# -- failures ---------------------------------------------------------------------------------------------


@record
class _FailuresAction(ManyAction):
    """A change of failed jobs; the criteria are those of `Queue.failures.iter`."""

    how: ClassVar[Literal["retry", "purge"]]

    reason: tuple[str, ...] = ()
    name: str | None = None
    since: int | None = None
    until: int | None = None

    @property
    def of(self) -> str:
        """See `Action`."""
        return "failed"

    def criteria(self) -> dict[str, Any]:
        """Return the criteria as arguments of `Queue.failures.iter`."""
        return {"reason": self.reason or None, "name": self.name, "since": self.since, "until": self.until}

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        if not any(value is not None for value in self.criteria().values()):
            stats = await operator.get_failure_stats(self.queue)
            if self.how == "purge" or FailureReason.CANCELLED not in stats.by_reason:
                return stats.kept
        failures = operator.iter_failures(self.queue, **self.criteria())
        has_all = self.how == "purge" or bool(self.reason)
        return sum([1 async for each in failures if has_all or each.reason is not FailureReason.CANCELLED])

    async def steps(self, operator: Operator, queue: Queue, position: str = "") -> AsyncGenerator[Step]:
        """See `ManyAction`."""
        links, criteria = await operator.links(self.queue), self.criteria()
        pieces = in_turn(
            links, position, lambda link, at: change_failures_in_pieces(link, self.how, **criteria, position=at)
        )
        async for number, following in pieces:
            yield Step(done=number, position=following)


@record
class RetryFailures(
    _FailuresAction,
    command="failures retry",
    how="retry",
    says="requeue {jobs} of queue {queue!r}",
    instead=REDELIVER,
    button=Button("retry-failures", "Retry all these failed jobs?", "{n} job{s} to be retried", "Retrying failed jobs"),
):
    """Requeue the failed jobs that match all given criteria, with all their attempts."""


@record
class PurgeFailures(
    _FailuresAction,
    command="failures purge",
    destroys=True,
    how="purge",
    says="delete {jobs} from queue {queue!r}",
    instead=REDELIVER,
    button=Button(
        "purge-failures", "Delete all these failed jobs?", "{n} failed job{s} deleted", "Deleting failed jobs"
    ),
):
    """Delete the failed jobs that match all given criteria."""


@record
class _DeadLettersAction(ManyAction):
    """A change of dead-letter entries; ``ids`` empty = all.

    ``subscription``: only entries of this subscription of a broadcast; None = of all.
    """

    ids: tuple[str, ...] = ()
    subscription: str | None = None

    async def targets(self, letters: Letters | None, operator: Operator) -> list[tuple[str, str]]:
        """Return the entries: each the name of its dead letter queue ("" = not known), and its id."""
        if self.ids:
            return [("", entry_id) for entry_id in self.ids]
        if letters is not None:
            return [(place, entry.id) async for place, entry in letters.iter()]
        return [("", entry.id) async for entry in iter_dead_letters(operator, self.queue)]

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        return len(await self.targets(await Letters.open(operator, self.queue, self.subscription), operator))

    async def change(self, queue: Queue, entry_id: str) -> str | None:
        """Change one entry; return the id of the changed job or entry, None if the entry does not exist."""
        raise NotImplementedError

    async def change_message(self, letters: Letters, place: str, entry: Job) -> str | None:
        """Change an entry of a broadcast, as `change` does."""
        raise NotImplementedError

    async def steps(self, operator: Operator, queue: Queue, position: str = "") -> AsyncGenerator[Step]:
        """See `ManyAction`. An interrupted change begins again: the entries that it has changed are gone."""
        letters = await Letters.open(operator, self.queue, self.subscription)
        targets = await self.targets(letters, operator)
        for first in range(0, max(len(targets), 1), _PIECE):
            changed, problems = list[str](), list[Problem]()
            for place, entry_id in targets[first : first + _PIECE]:
                try:
                    if letters is None:
                        found = await self.change(queue, entry_id)
                    else:
                        found = await self._change_one(letters, place, entry_id)
                except (JobNotFoundError, JobStateError, ValueError) as error:  # of a message, or of the options
                    problems.append(Problem(id=entry_id, error=str(error)))
                    continue
                if found is None:
                    problems.append(absent(entry_id))
                else:
                    changed.append(found)
            more = "again" if first + _PIECE < len(targets) else ""
            yield Step(done=len(changed), position=more, ids=tuple(changed), problems=tuple(problems))

    async def _change_one(self, letters: Letters, place: str, entry_id: str) -> str | None:
        found = [each for each in await letters.find(entry_id) if place in ("", each[0])]
        if len(found) > 1:
            of = sorted(str(letters.shown(entry).subscription) for _, entry in found)
            problem = f"must be one of {', '.join(of)}: each has an entry {entry_id}"
            raise GlideMQValidationError("subscription", self.subscription, problem)
        return await self.change_message(letters, *found[0]) if found else None


@record
class ReplayDeadLetters(
    _DeadLettersAction,
    command="dlq replay",
    says="add {jobs} to queue {queue!r} again",
    subject="entry",
    says_of_messages="deliver {jobs} of broadcast {queue!r} again",
    button=Button("replay", "Add these jobs to their queue again?", "{n} job{s} added again"),
    button_of_messages=Button("redeliver", "Deliver these messages again?", "{n} message{s} to be delivered again"),
):
    """Add the jobs of entries to their queue again, and delete the entries.

    A message of a broadcast is delivered again to the subscription in which it failed.
    """

    async def change(self, queue: Queue, entry_id: str) -> str | None:
        """See `_DeadLettersAction`."""
        job = await queue.dead_letters.replay(entry_id)
        return None if job is None else job.id

    async def change_message(self, letters: Letters, place: str, entry: Job) -> str | None:
        """See `_DeadLettersAction`."""
        await letters.replay(place, entry)
        return entry.id


@record
class ReplayEdited(
    Action,
    kind="replay_dead_letters",
    subject="entry",
    instead="a message is delivered again with its own data: glidemq dlq replay {queue} ENTRY",
    button=Button(
        "replay-edited", "Add the job again with this data?", "job added again with the new data", typed=("data",)
    ),
):
    """Add the job of a dead-letter entry to its queue again with other data, and delete the entry."""

    id: str
    data: Any = None

    async def make(self, queue: Queue) -> ActionResult:
        """See `Action`."""
        job = await replay_entry(queue, self.id, lambda: self.data)
        if job is not None and job.outcome is JobOutcome.ADDED:
            return ActionResult(done=1, ids=(job.id,), detail=str(job.outcome))
        if job is not None:  # an interrupted replay had added it; the entry is deleted now
            error = f"had already been added again as {job.id}, so the new data was not used"
            return nothing(Problem(id=self.id, error=error))
        return nothing(absent(self.id))


@record
class PurgeDeadLetters(
    _DeadLettersAction,
    command="dlq purge",
    says="delete the entries of {jobs} of queue {queue!r}",
    says_of_messages="delete the entries of {jobs} of broadcast {queue!r}",
    subject="entry",
    destroys=True,
    button=Button("purge-dead", "Delete these dead letters?", "{n} dead letter{s} deleted"),
):
    """Delete entries."""

    async def change(self, queue: Queue, entry_id: str) -> str | None:
        """See `_DeadLettersAction`."""
        return entry_id if await queue.dead_letters.remove(entry_id) else None

    async def change_message(self, letters: Letters, place: str, entry: Job) -> str | None:
        """See `_DeadLettersAction`."""
        return entry.id if await letters.remove(place, entry) else None
