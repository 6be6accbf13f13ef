"""The methods of jobs and messages as coroutines."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, NoReturn

from glidemq_py._core.calls import administration
from glidemq_py._core.misuse import former_names
from glidemq_py._core.option_values import JobRef, ParentInput
from glidemq_py._core.payload import PackedValue, encode_data
from glidemq_py._core.queue_options import AnyTask
from glidemq_py._core.record import JobRecord, JobState, check_states
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features import delays, dependencies, job_batches, priorities
from glidemq_py._features import revoke as revocation
from glidemq_py._features.dependencies import Dependency
from glidemq_py._features.flows import children
from glidemq_py._features.job_batches import BatchRef
from glidemq_py._features.revoke import RevokeOutcome
from glidemq_py._features.steps import Step, read_steps
from glidemq_py._job import ends, iteration, steps
from glidemq_py._job.attempt import Attempt
from glidemq_py._job.contents import ContextT, DataT, JobContents, ResultT
from glidemq_py._job.ends import SAME
from glidemq_py._job.steps import T
from glidemq_py._job.stored import StoredJob
from glidemq_py.errors import JobFailedError, JobNotFoundError, JobStateError, WaitingChildrenError, WaitTimeoutError


@former_names
class JobCore(StoredJob[DataT, ResultT, ContextT]):
    """A `Job` without `Job.blocking`, which the blocking class has as its core."""

    def __repr__(self) -> str:
        return f"<Job {self.id!r} {self.name!r} of queue {self.queue_name!r}>"

    # -- state and administration -------------------------------------------------------------------------

    async def get_state(self) -> JobState | None:
        """Return the job's current state; None if the job does not exist or its state is unknown to this version."""
        reply = await self._link.command("HGET", self._link.keys.job(self._stored_id), "state")
        try:
            return JobState(reply.decode()) if reply else None
        except ValueError:
            return None

    async def retry(self) -> None:
        """Requeue the failed job with all its attempts.

        Raises:
            JobStateError: If the job has not failed.
            JobStateError: If another job that has not ended has its deduplication id.
            JobNotFoundError: If the job does not exist.
        """
        await self._requeue("retry", completed=False)

    async def requeue(self) -> None:
        """Requeue the completed or failed job with all its attempts; its result is deleted.

        A parent that has counted the job as completed does not wait for it again.

        Raises:
            JobStateError: If the job has not ended.
            JobStateError: If another job that has not ended has its deduplication id.
            JobNotFoundError: If the job does not exist.
        """
        await self._requeue("requeue", completed=True)

    async def _requeue(self, action: str, *, completed: bool) -> None:
        link = self._link
        answer = await link.call(administration.requeue_job, self._stored_id, completed)
        if answer == "gone":
            raise link.not_found(self.id)
        if answer != "ok":
            raise self._not_requeued(answer, action)

    def _not_requeued(self, answer: str, action: str) -> JobStateError:
        if not answer.startswith("owned "):
            return JobStateError(self.id, answer, action, queue=self._link.queue_name)
        _, state, owner = answer.split(" ", 2)
        partition = self._link.partition
        owner = owner if partition is None else partition.id_of(owner)
        queue = self._link.queue_name
        other = f"job {owner!r} has its deduplication id and has not ended"
        message = f"cannot {action} job {self.id!r}: {other} (queue {queue!r})"
        return JobStateError(self.id, state, action, message, queue)

    async def remove(self, *, states: str | Iterable[str] | None = None) -> bool:
        """Delete the job in any state, with its logs and other keys. Return False if it does not exist.

        If the job is active, its worker notices at the next heartbeat and discards the result.

        Args:
            states: A state or several, as in `JobState`: delete the job only in one of these. None allows all.

        Raises:
            GlideMQValidationError: If a state is unknown.
            JobStateError: If the job is in none of ``states``. Nothing was changed.
        """
        return await self._link.call(administration.remove, self._stored_id, check_states(states))

    async def wait_until_finished(self, timeout: Milliseconds = 30_000) -> ResultT:
        """Wait until the job is completed and return its result.

        Args:
            timeout: How long to wait, in ms or as a timedelta, > 0.

        Raises:
            JobFailedError: If the job failed permanently.
            JobNotFoundError: If the job does not exist.
            WaitTimeoutError: If the job did not end in time.
        """
        limit = to_ms("timeout", timeout, minimum=1)
        try:
            outcome = await self._link.waiter.wait(self._stored_id, limit)
        except JobNotFoundError:
            raise self._link.not_found(self.id) from None
        except WaitTimeoutError:
            place = f"(queue {self._link.queue_name!r})"
            raise WaitTimeoutError(f"job {self.id!r} did not end within {limit} ms {place}") from None
        if outcome.state == JobState.FAILED:
            raise JobFailedError(self.id, outcome.failed_reason or "", outcome.failed_type)
        return self._decode_result(outcome.returnvalue or "null")

    async def revoke(self, *, states: str | Iterable[str] | None = None) -> RevokeOutcome:
        """Cancel the job: it does not start, or stops running.

        Args:
            states: A state or several, as in `JobState`: cancel the job only in one of these. None allows all.

        Returns:
            - "revoked": the job had not started. It has failed with the reason ``revoked``.
            - "flagged": the job is active and its worker cancels it at the next heartbeat; see `Queue.revoke`.
            - "not_found": the job does not exist.

        Raises:
            GlideMQValidationError: If a state is unknown.
            JobStateError: If the job is in none of ``states``. Nothing was changed.
        """
        return await revocation.revoke_job(self._link, self._stored_id, states)

    async def is_revoked(self) -> bool:
        """Return True if the job was revoked. A requeue (`Job.retry`) resets this."""
        return await revocation.is_revoked(self._link, self._stored_id)

    async def get_steps(self) -> list[Step]:
        """Return the stored steps of the job, in the order in which they were first stored."""
        return await read_steps(self._link, self._stored_id)

    async def get_batch_ref(self) -> BatchRef | None:
        """Return queue and id of the batch that the job belongs to, or whose callback it is; None if there is none."""
        return await job_batches.batch_ref_of(self._link, self._stored_id)

    # -- changes before the first attempt -----------------------------------------------------------------

    async def change_priority(self, priority: int | None = None, *, rank: int | None = None) -> None:
        """Change the priority or the rank of the job, if it has not started. Give one of the two.

        Args:
            priority: 1 (most urgent) to 2047 (least urgent); 0 removes the priority.
            rank: -1,000,000 to 1,000,000; higher ranks run first. 1 to 2047 equals priority 2048 - rank.

        Raises:
            GlideMQValidationError: If the value is invalid, or not exactly one is given.
            JobStateError: If the job is active, has ended, or waits in its ordering group; or if it has a fair key or
                limited name and no priority has this rank.
            JobNotFoundError: If the job does not exist.
        """
        self.priority, self._rank = await priorities.change_job_priority(self._link, self._stored_id, priority, rank)

    async def change_delay(self, delay: Milliseconds) -> None:
        """Change when the job becomes due, if it has not started.

        Args:
            delay: Time from now, in ms or as a timedelta; 0 makes the job ready to run.

        Raises:
            GlideMQValidationError: If ``delay`` is invalid.
            JobStateError: If the job is active, has ended, or waits in its ordering group.
            JobNotFoundError: If the job does not exist.
        """
        self._delay = await delays.change_job_delay(self._link, self._stored_id, delay)

    async def promote(self) -> None:
        """Make the job ready to run now.

        Raises:
            JobStateError: If the job is not delayed.
            JobNotFoundError: If the job does not exist.
        """
        await delays.promote_job(self._link, self._stored_id)
        self._delay = 0

    # -- flows --------------------------------------------------------------------------------------------

    async def get_parents(self) -> list[JobRef]:
        """Return the jobs that wait for this one; a node of a `FlowProducer.add_dag` may have several."""
        return await children.parents_of(self._link, self._stored_id)

    async def get_children_values(self) -> dict[str, Any]:
        """Return the results of the completed children, by full name (``glide:{queue}:id``).

        The results are stored with the parent, so they remain after the children are deleted. They are read with this
        queue's serializer: children in other queues must use the same one.

        Raises:
            SerializationError: a result cannot be deserialized.
        """
        return await children.children_values(self._link, self._stored_id)

    async def get_children_results(self, task: AnyTask[T]) -> list[T]:
        """Return the results of the completed children that are jobs of a task, in the order of their ids.

        They are converted to the type of the task's result, and read as those of `get_children_values`.

        Raises:
            JobNotFoundError: a child in the queue of the task was deleted, so its task is unknown.
            SerializationError: a result does not match the return annotation.
        """
        return await children.children_results(self._link, self._stored_id, task)

    async def get_children_failures(self) -> dict[str, str]:
        """Return the failure reasons of children that failed (expired, were removed, ...) without failing the parent.

        The keys are full names, as in `get_children_values`.
        """
        return await children.children_failures(self._link, self._stored_id)

    async def get_open_children(self) -> list[JobRef]:
        """Return the unfinished children."""
        return await children.open_children(self._link, self._stored_id)

    async def get_dependencies(self, state: Literal["open", "settled"] | None = None) -> list[Dependency]:
        """Return the jobs that this job waits for, or waited for.

        Args:
            state: "open" returns those that it still waits for, "settled" the others; None returns all.

        Raises:
            GlideMQValidationError: ``state`` is invalid.
        """
        return await dependencies.read_dependencies(self._link, self._stored_id, state)

    async def remove_dependency(self, dependency: str | ParentInput) -> bool:
        """Stop waiting for a dependency or a child. If it was the last one, this job becomes ready.

        Args:
            dependency: An id of the same queue, or a `Job`, `JobRef` or ``(queue, id)``.

        Returns:
            True if the job waited for it; False if that job has completed, or was removed before.

        Raises:
            GlideMQValidationError: ``dependency`` is invalid.
            JobNotFoundError: This job does not exist.
            JobStateError: This job neither has that dependency nor that child.
        """
        return await dependencies.remove_dependency(self._link, self._stored_id, dependency)

    # -- for its handler ----------------------------------------------------------------------------------

    async def update_data(self, data: DataT) -> None:
        """Replace the job's data, also for later attempts.

        In the handler of a [task](../learn/tasks.md#names-of-its-own), the data may have more names than arguments.

        Args:
            data: Any value that the serializer accepts.

        Raises:
            GlideMQValidationError: If a new name is a parameter of the task.
            SerializationError: If the data cannot be serialized.
            PayloadTooLargeError: If the serialized data exceeds 1 MiB.
            JobNotFoundError: If the job does not exist.
            StaleAttemptError: If the job is now locked by another worker.
        """
        text = encode_data(data, self._link.serializer, self._link.compression, self._link.payload_limit)
        value = data.value if isinstance(data, PackedValue) else data
        own = False if self._own_keys is None else self._own_keys(value)
        await self._write(administration.update_job_data(self._link.keys.meta, self._stored_id, text, self._token, own))
        self._data = value
        self._data_text = text

    async def move_to_waiting_children(self, *, next_step: str | None = None, data: Any = SAME) -> None:
        """Wait for the children: end this attempt unless all children have finished.

        The attempt does not count. Children are added with ``parent=job``. When they have finished, the handler is
        called again from the start. It must then either add the same children with the same ``job_id`` values (existing
        jobs are not added twice) and pass this call, or branch on `step`.

        If all children have finished already, the method returns. ``next_step`` and ``data`` are stored nevertheless:
        `step` and `data` are the new ones in the rest of the handler and in later attempts.

        Args:
            next_step: the new value of `step`, stored in the job's data as ``step``; the data must be a mapping
                without another use of that key.
            data: the new data of the job; unchanged if omitted.

        Raises:
            WaitingChildrenError: signals the worker; do not catch it.
            ChildFailedError: a child failed, and its policy fails the parent.
            SerializationError: the data cannot be serialized.
            PayloadTooLargeError: the serialized data exceeds 1 MiB.
            GlideMQValidationError: ``next_step`` or ``data`` is invalid.
            GlideMQError: not called in the job's handler, or the call failed.
        """
        self._in_handler("move_to_waiting_children")
        after, replace = ends.data_of_step(self, next_step, data)
        if await children.must_wait(self._link, self._stored_id):
            raise self._own(WaitingChildrenError(after, replace))
        if replace:
            await self.update_data(after)

    iterate = iteration.iterate
    get_cursor = iteration.get_cursor
    move_to_delayed = ends.move_to_delayed
    rate_limit_group = ends.rate_limit_group
    suspend = ends.suspend
    run = steps.run
    sleep = steps.sleep
    wait_for_signal = steps.wait_for_signal
    gather = steps.gather
    idempotency_key = steps.idempotency_key


class MessageCore(JobContents[DataT, ResultT, ContextT]):
    """A `Message` without `Message.blocking`."""

    @property
    def subject(self) -> str:
        """The subject it was published with."""
        return self.name

    @property
    def _token(self) -> tuple[int, int]:
        # Fencing tokens are per subscription; the shared record has none.
        return administration.NO_TOKEN

    def _numbered(self, number: str, attempt: Attempt) -> str:
        return f"{number} {attempt.entry}/{attempt.fence} {self._link.subscription}"

    def _apply(self, record: JobRecord) -> None:
        # The fields of the attempt stay: the shared record has none of this subscription.
        self.timestamp = record.timestamp or 0
        self._forget_data()
        self._data_text, self._opts_text, self._progress_text = record.data, record.opts, record.progress
        self._progress_message = ()

    def move_to_delayed(self, when: Milliseconds | datetime) -> NoReturn:
        """End this attempt and deliver the message to this subscription again later. The attempt is not counted.

        The method always raises, so code after it does not run.

        Args:
            when: Time from now (ms or timedelta), or the time to run at (a datetime; naive is local time).

        Raises:
            DelayedError: Always, unless another error is raised. Do not catch it.
            GlideMQValidationError: If an argument is invalid.
            GlideMQError: If called outside the message's handler.
        """
        self._in_handler("move_to_delayed")
        raise ends.delayed_error(self, when)

    def __repr__(self) -> str:
        return f"<Message {self.id!r} {self.subject!r} of broadcast {self.queue_name!r}>"
