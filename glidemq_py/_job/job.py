"""`Job`: one unit of work, returned by adds and reads and passed to handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

# PEP 696 defaults make a bare `Job` mean `Job[Any, Any]`.
from typing_extensions import TypeVar

from glidemq_py._core.calls import administration
from glidemq_py._core.fallbacks import Fallback, current_fallback, read_fallbacks
from glidemq_py._core.job_options import MAX_PRIORITY
from glidemq_py._core.job_states import JobOutcome, JobState, check_states
from glidemq_py._core.payload import PackedValue, decode_result, encode_data
from glidemq_py._core.record import JobRecord
from glidemq_py._core.tags import read_tags
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features import delays, dependencies, failures, job_batches, priorities, ranks, vectors
from glidemq_py._features import revoke as revocation
from glidemq_py._features import suspend as suspension
from glidemq_py._features import timeline as timelines
from glidemq_py._features import usage as usage_reports
from glidemq_py._features.flows import job_api as flows
from glidemq_py._features.streams import job_api as streams
from glidemq_py._features.suspend import Signal
from glidemq_py._features.usage import read_usage
from glidemq_py._job import iteration, steps
from glidemq_py._job.attempt import watch_calls
from glidemq_py._job.contents import LOG_LINES_KEPT, JobContents, resolve_in_hints
from glidemq_py._job.current import current_job
from glidemq_py._job.job_twin import BlockingJob
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import (
    JobFailedError,
    JobNotFoundError,
    JobNotLoadedError,
    JobStateError,
    WaitTimeoutError,
)

__all__ = ["LOG_LINES_KEPT", "Job"]

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)
ContextT = TypeVar("ContextT", default=Any)


class Job(JobContents[DataT, ResultT, ContextT]):
    """A job: one unit of work in a queue.

    Queues return jobs, and workers pass them to handlers. In ``Job[DataT, ResultT, ContextT]``, the parameters are the
    types of its data, its result and `context`. Times are epoch ms of the server's clock; durations are ms.

    Attributes:
        id: Id of the job, unique in its queue.
        name: Name of the job: which handler or task processes it.
        outcome: Result of `Queue.add`: added, duplicate, skipped or replaced; `id` may be that of an existing job.
        timestamp: When the job was added; 0 if unknown.
        attempts_made: Number of failed attempts so far.
        priority: Priority of the job: 1 (most urgent) to 2047, or 0 for none. See `rank`.
        stalled_count: How often a worker stopped renewing the job's lock.
        processed_on: When the last attempt started, or when it failed; None before the first.
        finished_on: When the job ended; None before.
        failed_reason: Message of the last failure; None without one.
        failed_type: Exception type name of the last failure; None without one.
    """

    outcome: JobOutcome = JobOutcome.ADDED
    finished_on: int | None = None
    fallback_index: int = 0
    """Position in the chain of fallbacks, which is the number of retried attempts; 0 = no fallback in use."""
    _delay: int | None = None
    _state: JobState | None = None
    _result_text: str | None = None
    _read_result: Callable[[Any], Any] | None = None
    """Converts a decoded result to the task's result type; set for jobs of a task."""
    _check_step: Callable[[str], None] | None = None
    """Rejects a step that does not fit the task's own parameter ``step``; None if it has no such parameter."""
    _own_keys_text: str | None = None
    """The names in the data that earlier runs of a task have added, JSON."""
    _iterated: bool = False
    """True once `iterate` was called in this attempt."""
    _signals_text: str | None = None
    _waits: dict[str, int] | None = None
    """Number of signals already returned per name in this run of the handler."""

    @classmethod
    def _from_record(cls, link: QueueLink, record: JobRecord) -> Job[DataT, ResultT]:
        """Return the job of a record read from the server."""
        job = cls(link, record.id, record.name)
        job._apply(record)
        return job

    def _apply(self, record: JobRecord) -> None:
        self.name = record.name
        self.timestamp = record.timestamp or 0
        self.attempts_made = record.attempts_made
        self._delay = record.delay
        self.priority, self._rank = record.priority, record.rank
        self.stalled_count = record.stalled_count
        self.processed_on = record.processed_on
        self.finished_on = record.finished_on
        self.failed_reason = record.failed_reason
        self.failed_type = record.failed_type
        self._state = record.state
        self._stacktrace_text = None
        self._forget_data()
        self._data_text = record.data
        self._given, self._opts_text = None, record.opts
        self._result_text = record.returnvalue
        self._progress_text, self._progress_message = record.progress, ()
        self._signals_text = record.signals
        self.fallback_index = record.fallback_index
        self._budget_key = record.budget_key
        self._record = record
        if not self._is_run:
            # In a handler, usage is what this attempt has reported; limits and budgets count it.
            self._usage = read_usage(record.usage)

    @property
    def returnvalue(self) -> ResultT | None:
        """Result of a completed job as read from the server; None before.

        Raises:
            SerializationError: If the serializer cannot decode the stored result.
        """
        if self._result_text is None:
            return None
        return self._decode_result(self._result_text)

    def _decode_result(self, text: str) -> ResultT:
        value = decode_result(text, self._link.serializer)
        return cast("ResultT", value if self._read_result is None else self._read_result(value))

    @property
    def blocking(self) -> BlockingJob[DataT, ResultT, ContextT]:
        """This job with blocking methods, for handlers that are plain functions."""
        return BlockingJob(self)

    def __repr__(self) -> str:
        return f"<Job {self.id!r} {self.name!r} of queue {self.queue_name!r}>"

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

    # -- state and administration -------------------------------------------------------------------------

    async def get_state(self) -> JobState | None:
        """Return the job's current state; None if the job does not exist or its state is unknown to this version."""
        reply = await self._link.command("HGET", self._link.keys.job(self._stored_id), "state")
        try:
            return JobState(reply.decode()) if reply else None
        except ValueError:
            return None

    async def is_completed(self) -> bool:
        """Return True if the job is completed."""
        return await self.get_state() is JobState.COMPLETED

    async def is_failed(self) -> bool:
        """Return True if the job has failed permanently."""
        return await self.get_state() is JobState.FAILED

    async def is_active(self) -> bool:
        """Return True if a worker is running the job."""
        return await self.get_state() is JobState.ACTIVE

    async def is_waiting(self) -> bool:
        """Return True if the job is ready and waits for a worker."""
        return await self.get_state() is JobState.WAITING

    async def is_delayed(self) -> bool:
        """Return True if the job is due later, including the backoff of a retry."""
        return await self.get_state() is JobState.DELAYED

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

    # -- attempts -----------------------------------------------------------------------------------------

    @property
    def step(self) -> str | None:
        """The last ``next_step`` that an earlier attempt set; before, the one that the producer set; else None.

        It is stored as the key ``step`` of the job's data, as in glide-mq for Node. It is not passed to a task as an
        argument, unless the task has a parameter of that name.

        Raises:
            JobDataError: If the data cannot be decoded.
        """
        step = steps.step_of(self.data)
        return step if isinstance(step, str) else None

    @property
    def fair_key(self) -> str | None:
        """Fair key of the job; None for a job without one."""
        key = self.opts.get("fairKey")
        return key if isinstance(key, str) else None

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the job, from the option ``tags``."""
        return read_tags(self.opts.get("tags"))

    @property
    def ordering_key(self) -> str | None:
        """Key of the job's ordering group; None for a job without `ordering`."""
        ordering = self.opts.get("ordering")
        key = cast("Mapping[str, Any]", ordering).get("key") if isinstance(ordering, Mapping) else None
        return key if isinstance(key, str) and key else None

    iterate = iteration.iterate
    get_cursor = iteration.get_cursor
    get_failed_attempts = failures.get_failed_attempts
    get_timeline = timelines.get_timeline
    move_to_delayed = steps.move_to_delayed
    move_to_failed = steps.move_to_failed
    rate_limit_group = steps.rate_limit_group
    report_tokens = steps.report_tokens

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The chain of fallbacks that the job was added with."""
        return read_fallbacks(self.opts.get("fallbacks"))

    @property
    def current_fallback(self) -> Fallback | None:
        """The fallback of this attempt: None for the first attempt, then each of `fallbacks` in turn.

        It is None again if there are more attempts than fallbacks; check `fallback_index` to distinguish the two.
        """
        return current_fallback(self.fallbacks, self.fallback_index) if self.fallback_index > 0 else None

    @property
    def rank(self) -> int:
        """Rank of the job: higher ranks run first; 0 for a job without rank and priority."""
        if self._rank is not None:
            return self._rank
        return max(1, MAX_PRIORITY + 1 - self.priority) if self.priority else 0

    # -- changes before the first attempt -----------------------------------------------------------------

    change_priority = priorities.change_priority
    change_rank = ranks.change_rank
    change_delay = delays.change_delay
    promote = delays.promote
    revoke = revocation.revoke
    is_revoked = revocation.is_revoked

    # -- suspension ---------------------------------------------------------------------------------------

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signals that have resumed this job, oldest first; empty for a job that was never suspended."""
        return suspension.parse_signals_field(self._signals_text)

    suspend = suspension.suspend
    wait_for_signal = suspension.wait_for_signal

    # -- flows --------------------------------------------------------------------------------------------

    get_parents = flows.get_parents
    get_children_values = flows.get_children_values
    get_children_failures = flows.get_children_failures
    get_open_children = flows.get_open_children
    move_to_waiting_children = flows.move_to_waiting_children
    get_dependencies = dependencies.get_dependencies
    remove_dependency = dependencies.remove_dependency
    get_batch_ref = job_batches.get_batch_ref

    # -- streams, usage, vectors --------------------------------------------------------------------------

    stream = streams.stream
    stream_chunk = streams.stream_chunk
    report_usage = usage_reports.report_usage
    store_vector = vectors.store_vector

    # -- attributes that `Queue.get_job` and `reload` read ------------------------------------------------
    # Most of them are not loaded for jobs of handlers, lists and adds, and raise `JobNotLoadedError`. None means that
    # the job has none.

    reload = flows.reload

    def _known(self, attribute: str, field: str) -> JobRecord:
        record = self._record
        if record is None or field not in record.fields_read:
            raise JobNotLoadedError(attribute)
        return record

    @property
    def state(self) -> JobState | None:
        """State when the job was read, ``active`` in a handler; None if unknown. `get_state` reads it again."""
        return JobState.ACTIVE if self._is_run else self._state

    @property
    def delay(self) -> int:
        """Delay of the job in ms. In a handler, raises `JobNotLoadedError` before `reload`."""
        if self._delay is not None:
            return self._delay
        if not self._is_run and self.outcome is JobOutcome.ADDED:
            return 0  # added without a delay
        raise JobNotLoadedError("delay")

    @property
    def parent_id(self) -> str | None:
        """Id of the job's parent, if it has exactly one; else None. `get_parents` returns all."""
        record = self._known("parent_id", "parentId")
        # A parent in another cluster slot is stored in the list of parents.
        return record.parent_id or (record.parent_ids[0] if len(record.parent_ids) == 1 else None)

    @property
    def parent_queue(self) -> str | None:
        """Name of the parent's queue, if the job has exactly one parent; else None."""
        record = self._known("parent_queue", "parentQueue")
        return record.parent_queue or (record.parent_queues[0] if len(record.parent_queues) == 1 else None)

    @property
    def parent_ids(self) -> tuple[str, ...]:
        """Ids of the job's parents, for a job of a DAG."""
        return self._known("parent_ids", "parentIds").parent_ids

    @property
    def parent_queues(self) -> tuple[str, ...]:
        """Names of the parents' queues, in the order of `parent_ids`."""
        return self._known("parent_queues", "parentQueues").parent_queues

    @property
    def cost(self) -> float | None:
        """Tokens that the job takes from its group's token bucket; None if ``cost`` was not set."""
        cost = self._known("cost", "cost").cost
        if cost is None:
            return None
        tokens = cost / 1_000  # stored in thousandths
        return int(tokens) if tokens.is_integer() else tokens

    @property
    def expire_at(self) -> int | None:
        """Time at which the job's ``ttl`` expires, epoch ms; None without one."""
        return self._known("expire_at", "expireAt").expire_at

    @property
    def scheduler_name(self) -> str | None:
        """Name of the `repeat_after_complete` scheduler that waits for the end of this job; else None."""
        return self._known("scheduler_name", "schedulerName").scheduler_name

    @property
    def scheduled_for(self) -> int | None:
        """Scheduled time that the job was added for, epoch ms; the first, if it replaces several missed ones.

        None if the job was not added by a scheduler of this library.
        """
        return self._known("scheduled_for", "scheduledFor").scheduled_for

    @property
    def tpm_tokens(self) -> float | None:
        """Tokens that the handler reported with `report_tokens`; None if it reported none."""
        return self._known("tpm_tokens", "tpmTokens").tpm_tokens

    @property
    def budget_key(self) -> str | None:
        """Key of the budget of the job's flow; None without one."""
        if self._budget_key is None and self._record is None and not self._is_run:
            raise JobNotLoadedError("budget_key")
        return self._budget_key


watch_calls(Job)
resolve_in_hints(Job, current_job, steps.data_of_step)
