"""`JobBatch`: adds jobs to a batch, closes it, and reads its state.

A job joins the batch before it is added, in a call to the batch's queue; so its end is counted, however early. If the
client stops between the two calls, workers of the batch's queue find that the job does not exist
(`WaitingParentsTask`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Never, Protocol, Self, Unpack, cast

from glidemq_py._core.calls import administration, pieces
from glidemq_py._core.checks import check_choice, check_iterable, lists_options
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import QueueKeys, split_member
from glidemq_py._core.misuse import Connected, reject_positional_options
from glidemq_py._core.option_dicts_twin import JobOptionsDict
from glidemq_py._core.queue_options import DurableInput, Entry, JobInput, JobSpec, parse_durable
from glidemq_py._core.record import ADDED_OUTCOMES
from glidemq_py._features import job_batches as calls
from glidemq_py._features.flows.calls import ChildOutcome, children_ended
from glidemq_py._features.flows.references import shown_ref
from glidemq_py._job.job import Job
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import ConnectedQueue
from glidemq_py.errors import (
    AmbiguousResultError,
    BulkAddError,
    DurabilityError,
    GlideMQConnectionError,
    GlideMQValidationError,
    JobBatchNotFoundError,
    JobStateError,
)

_IDS_PER_CALL: Final = 500
_PAGE: Final = 500
_REVOKED_AT_ONCE: Final = 100
"""Jobs that `JobBatch.cancel` revokes per call: one or two milliseconds of server time."""
_STATES: Final[Mapping[str, Literal["pending", "completed", "failed"]]] = {
    "p": "pending", "c": "completed", "f": "failed",
}  # fmt: skip
_UNKNOWN_RESULTS: Final = (AmbiguousResultError, DurabilityError, GlideMQConnectionError)
"""Errors after which the job may have been added."""


class BatchJob(NamedTuple):
    """A job of a batch.

    Attributes:
        queue: name of its queue.
        id: its id.
        state: "pending" (it has not ended), "completed" or "failed".
    """

    queue: str
    id: str
    state: Literal["pending", "completed", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """State of a batch at one moment. Times are in epoch ms by the server's clock.

    Attributes:
        total: number of its jobs.
        pending: number of jobs that have not ended.
        completed: number of jobs that completed.
        failed: number of jobs that failed permanently.
        removed: number of jobs that were removed before they ended; they are not in the batch any more.
        is_closed: True if the initial set of jobs is complete.
        is_cancelled: True if the batch was cancelled.
        created_at: when it was created.
        completed_at: when all jobs had ended for the first time; None = not yet.
        succeeded_at: when all jobs had completed; None = not yet.
        failed_at: when a job had failed for the first time; None = never.
    """

    total: int
    pending: int
    completed: int
    failed: int
    removed: int
    is_closed: bool
    is_cancelled: bool
    created_at: int
    completed_at: int | None
    succeeded_at: int | None
    failed_at: int | None

    @property
    def is_finished(self) -> bool:
        """True if the batch is closed and all its jobs have ended. A requeued job starts it again."""
        return self.is_closed and self.pending == 0


class Adding(Protocol):
    """The jobs of an add of several, by position."""

    given: list[Entry]
    results: list[Any]

    def replace(self, i: int, entry: Entry) -> None:
        """Replace a job before it is sent. Raises GlideMQValidationError."""
        ...

    async def send(self, queue: Any, mine: Sequence[int]) -> None:
        """Send jobs to a queue or partition, and set their results."""
        ...


JoinAndAdd = Callable[[Adding, Any, Sequence[int]], Awaitable[None]]
"""Lets jobs join a batch, and sends them to a queue or a partition."""


class JobBatch(Connected):
    """A set of jobs, in any queues, with jobs that are added when all of them have ended.

    `Queue.job_batches.create` and `Queue.job_batches.get` return it. An ``async with`` block closes the batch at its
    end, unless it raises an exception.

    Attributes:
        id: id of the batch.
    """

    __slots__ = ("_home", "_link", "_own_id", "id")

    id: str

    def __init__(self, home: ConnectedQueue, link: QueueLink, own_id: str) -> None:
        """Create a batch; for queues only. ``link``: the part of the queue that has it, under ``own_id``."""
        self._home, self._link, self._own_id = home, link, own_id
        self.id = link.shown_id(own_id)

    def __repr__(self) -> str:
        return f"<JobBatch {self.id!r} of queue {self.queue_name!r}>"

    @property
    def queue_name(self) -> str:
        """Name of the queue in which the batch was created, and to which its callbacks are added."""
        return self._home.name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()

    # -- adding -------------------------------------------------------------------------------------------

    @lists_options(JobOptions, JobOptionsDict, ("parent", "deduplication"))
    async def add(
        self,
        name: str,
        data: Any = None,
        *misplaced: Never,
        queue: Any = None,
        durable: DurableInput = None,
        **options: Unpack[JobOptionsDict],
    ) -> Job:
        """Add a job to the batch. A running job of the batch may do so too.

        Args:
            name: Name of the job: which handler or task processes it.
            data: Any value that the serializer of its queue accepts.
            *misplaced: Rejected: options are keyword arguments, not a dict.
            queue: The `Queue` of the job, with the same prefix; None means the queue of the batch.
            durable: As for `Queue`; None means the option of the job's queue.
            **options: Fields of `JobOptions`, except ``parent`` and ``deduplication``.

        Returns:
            The job; see `Queue.add`. A job that exists already (outcome ``duplicate``) does not join the batch.

        Raises:
            JobStateError: If the batch is closed and all its jobs have ended, or if it was cancelled. Nothing
                was added.
            JobBatchNotFoundError: If the batch does not exist. Nothing was added.
            GlideMQValidationError: If an argument is invalid. Nothing was added.
        """
        if misplaced:
            reject_positional_options(misplaced)
        spec = JobSpec(name, data, cast("Mapping[str, Any]", options))
        try:
            (job,) = await self._add([spec], queue, durable, "")
        except BulkAddError as error:
            (result,) = error.results
            if isinstance(result, BaseException):
                raise result from None
            raise
        except GlideMQValidationError as error:
            # The job is added as a bulk of one, whose errors name `jobs[0].rank`.
            named = error.option.removeprefix("jobs[0]").removeprefix(".") or "job"
            error.args = tuple(named if each == error.option else each for each in error.args)
            error.option = named
            raise
        return job

    async def add_bulk(
        self,
        jobs: Iterable[JobInput],
        *,
        queue: Any = None,
        durable: DurableInput = None,
    ) -> list[Job]:
        """Add many jobs to the batch in few round trips.

        Args:
            jobs: ``(name, data, options)`` tuples (only the name is needed), mappings of these, or `JobSpec` objects.
            queue: The `Queue` of the jobs, with the same prefix; None means the queue of the batch.
            durable: As for `Queue`; None means the option of the jobs' queue.

        Returns:
            One job per input, in the same order; see `Queue.add_bulk`.

        Raises:
            JobStateError: If the batch is closed and all its jobs have ended, or if it was cancelled. Nothing
                was added.
            JobBatchNotFoundError: If the batch does not exist. Nothing was added.
            GlideMQValidationError: If a job is invalid. The option names its position; nothing was added.
            BulkAddError: If some jobs were not added, or may not have been.
        """
        given = check_iterable("jobs", jobs, "jobs")
        specs = [JobSpec.parse(job, f"jobs[{i}]") for i, job in enumerate(given)]
        return await self._add(specs, queue, durable, "jobs[{}].") if specs else []

    async def _add(self, specs: Sequence[JobSpec], queue: Any, durable: DurableInput, where: str) -> list[Job]:
        target = self._target(queue)
        parse_durable(durable)
        for i, spec in enumerate(specs):
            spec.options.check_place("batch", "is not accepted for jobs of a batch", where.format(i))
        try:
            return await target._add_all(specs, durable, self._join_and_add)
        except BulkAddError as error:
            ends = [each for each in error.results if isinstance(each, (JobStateError, JobBatchNotFoundError))]
            if len(ends) == len(error.results) and getattr(ends[0], "action", "join") == "join":  # in every partition
                raise ends[0] from None
            raise

    async def _join_and_add(self, jobs: Adding, target: ConnectedQueue, mine: Sequence[int]) -> None:
        stem = (await target._first()).keys.stem
        ids, new, batch = await self._join(stem, [jobs.given[i][2].job_id or "" for i in mine])
        try:
            for i, job_id in zip(mine, ids, strict=True):
                name, data, options = jobs.given[i]
                jobs.replace(i, (name, data, options.in_batch(batch, job_id)))
            await jobs.send(target, mine)
        except _UNKNOWN_RESULTS:
            raise
        except Exception as error:  # nothing was sent
            await self._withdraw(stem, ids, new, batch, [error] * len(ids))
            raise
        await self._withdraw(stem, ids, new, batch, [jobs.results[i] for i in mine])

    def _target(self, queue: Any) -> ConnectedQueue:
        # A blocking queue holds the queue itself.
        target = self._home if queue is None else getattr(queue, "_core", queue)
        if not isinstance(target, ConnectedQueue):
            raise GlideMQValidationError("queue", queue, "must be a Queue or None")
        if target.options.prefix != self._link.keys.prefix:
            problem = f"its prefix must be that of the batch, {self._link.keys.prefix!r}"
            raise GlideMQValidationError("queue", target.name, problem)
        return target

    async def _join(self, stem: str, wanted: Sequence[str]) -> tuple[list[str], list[bool], tuple[str, str]]:
        """Let jobs join. Return their ids, whether each is new in the batch, and the batch (`JobOptions.batch`)."""
        link = self._link
        batch = link.keys.member(self._own_id), ""
        ids: list[str] = []
        new: list[bool] = []
        for piece in pieces(wanted, _IDS_PER_CALL):
            joined = await link.call(calls.batch_join, self._own_id, stem, piece)
            if joined.status != "ok":
                problem = f"batch {self.id!r}: no job can join, it is {joined.status}; nothing was added"
                error = (
                    JobBatchNotFoundError(self.id, self.queue_name)
                    if joined.status == "gone"
                    else JobStateError(self.id, joined.status, "join", problem, self.queue_name)
                )
                await self._withdraw(stem, ids, new, batch, [error] * len(ids))  # those of earlier pieces
                raise error
            batch = batch[0], joined.stem
            known = set(joined.known)
            ids += joined.ids
            new += [position not in known for position in range(1, len(piece) + 1)]
        return ids, new, batch

    async def _withdraw(
        self, stem: str, ids: Sequence[str], new: Sequence[bool], batch: tuple[str, str], results: Sequence[Any]
    ) -> None:
        """Let the jobs that were certainly not added leave the batch, unless another add to it has added them."""
        ends = [
            ChildOutcome(calls.PARENT + self._own_id, stem + job_id, calls.REMOVED, "", "", batch[1])
            for job_id, is_new, result in zip(ids, new, results, strict=True)
            if is_new and _was_not_added(result) and not await self._contains(result, batch)
        ]
        link = self._link
        for piece in pieces(ends, _IDS_PER_CALL):
            await link.call(children_ended, piece)

    async def _contains(self, result: Any, batch: tuple[str, str]) -> bool:
        """Return whether the existing job that an add has found is of this batch, not of an earlier one with its id."""
        if isinstance(result, BaseException):
            return False
        base, own_id = split_member(batch[0])
        name = f"parentGeneration:{base}:{calls.PARENT}{own_id}"
        found = await result._link.command("HGET", result._link.keys.job(result._stored_id), name)
        return bool(found == batch[1].encode())

    # -- state --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Declare that the initial set of jobs is complete. Idempotent.

        Until then no callback but ``on_failure`` is added, even if all jobs have ended. Afterwards jobs may still join
        until all have ended. The callbacks of an empty batch are added immediately.

        Raises:
            JobBatchNotFoundError: If the batch does not exist.
        """
        await self._change("close")

    async def cancel(self) -> int:
        """Close the batch, reject further jobs, and revoke all jobs that have not ended.

        Revoked jobs have failed, so ``on_complete`` is added when the last active job has stopped. Each call to the
        server revokes up to a hundred jobs. If this method is interrupted, a further call of it continues.

        Returns:
            The number of revoked jobs.

        Raises:
            JobBatchNotFoundError: If the batch does not exist.
        """
        await self._change("cancel")
        revoked = 0
        waiting: dict[str, list[str]] = {}
        async for job in self._members("pending"):
            ids = waiting.setdefault(job.queue, [])
            ids.append(job.id)
            if len(ids) == _REVOKED_AT_ONCE:
                revoked += await self._revoke(job.queue, waiting.pop(job.queue))
        for queue, ids in waiting.items():
            revoked += await self._revoke(queue, ids)
        return revoked

    async def _revoke(self, queue: str, ids: Sequence[str]) -> int:
        """Revoke at most a hundred jobs of a queue, and return how many existed."""
        link = self._link
        meta = QueueKeys(link.keys.prefix, queue).meta
        outcomes: list[str] = []
        while len(outcomes) < len(ids):
            # A call may leave jobs to the next one.
            outcomes += await link.transport.call(administration.revoke_jobs(meta, ids[len(outcomes) :]))
        for job_id, outcome in zip(ids, outcomes, strict=True):
            if outcome == "error":
                await link.transport.call(administration.revoke(meta, job_id))  # raises the job's own error
        return len(ids) - outcomes.count("not_found")

    async def _change(self, action: Literal["close", "cancel"]) -> None:
        link = self._link
        if await link.call(calls.batch_change, self._own_id, action) == "gone":
            raise JobBatchNotFoundError(self.id, self.queue_name)

    async def get_status(self) -> BatchStatus:
        """Return the counts and times of the batch. One call, whose cost does not depend on the number of jobs.

        Raises:
            JobBatchNotFoundError: If the batch does not exist.
        """
        link = self._link
        found = await link.call(calls.batch_status, self._own_id)
        if not found:
            raise JobBatchNotFoundError(self.id, self.queue_name)
        pending, completed, failed = (found.get(name, 0) for name in ("pending", "completed", "failed"))
        return BatchStatus(
            total=pending + completed + failed, pending=pending, completed=completed, failed=failed,
            removed=found.get("removed", 0), is_closed="closed" in found, is_cancelled="cancelled" in found,
            created_at=found.get("created", 0), completed_at=found.get("completeAt"),
            succeeded_at=found.get("successAt"), failed_at=found.get("failureAt"),
        )  # fmt: skip

    async def iter_jobs(
        self, state: Literal["pending", "completed", "failed"] | None = None
    ) -> AsyncIterator[BatchJob]:
        """Iterate over the jobs of the batch, in no particular order. One call per about 500 jobs.

        Args:
            state: Return only jobs in this state; None returns all.

        Raises:
            GlideMQValidationError: If ``state`` is invalid.
        """
        if state is not None:
            check_choice("state", state, choices=tuple(_STATES.values()))
        async for job in self._members(state):
            queue, job_id = await shown_ref(self._link, job.queue, job.id)
            yield BatchJob(queue, job_id, job.state)

    async def _members(self, state: str | None) -> AsyncIterator[BatchJob]:
        """Iterate over the jobs, by the queues that have them: partitions, if their queue has any."""
        link, cursor = self._link, ""
        seen: set[str] = set()  # a page may repeat jobs of the page before it
        while True:
            page = await link.call(calls.batch_jobs, self._own_id, cursor, _PAGE)
            members = dict(page.rows)
            for member, found in members.items():
                job_state = _STATES.get(found)
                if member not in seen and job_state is not None and state in (None, job_state):
                    base, job_id = split_member(member)
                    yield BatchJob(base[:-1].rpartition(":{")[2], job_id, job_state)
            seen = set(members)
            cursor = page.cursor
            if not cursor:
                return


def _was_not_added(result: Any) -> bool:
    if isinstance(result, BaseException):
        return not isinstance(result, _UNKNOWN_RESULTS)
    return result.outcome not in ADDED_OUTCOMES
