"""`Job`: one unit of work, returned by adds and reads and passed to handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, cast

# PEP 696 defaults make a bare `Job` mean `Job[Any, Any]`.
from typing_extensions import TypeVar

from glidemq_py._core.calls import administration
from glidemq_py._core.job_states import JobOutcome, JobState
from glidemq_py._core.payload import decode_result, encode_data
from glidemq_py._core.record import JobRecord
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.delays import JobDelay
from glidemq_py._features.fallbacks import JobFallbacks
from glidemq_py._features.flows.job_api import JobFamily
from glidemq_py._features.priorities import JobPriority
from glidemq_py._features.revoke import JobRevocation
from glidemq_py._features.streams import JobStreams
from glidemq_py._features.suspend.job_api import JobSuspension
from glidemq_py._features.usage.calls import read_usage
from glidemq_py._features.usage.job_api import JobUsageReports
from glidemq_py._features.vectors.job_api import JobVectors
from glidemq_py._job.attempt import watch_calls
from glidemq_py._job.contents import LOG_LINES_KEPT, JobContents
from glidemq_py._job.details import JobDetails, JobReloading
from glidemq_py._job.link import QueueLink
from glidemq_py._job.steps import JobSteps
from glidemq_py.errors import (
    JobFailedError,
    JobNotFoundError,
    JobStateError,
)

if TYPE_CHECKING:
    from glidemq_py._job.blocking import BlockingJob

__all__ = ["LOG_LINES_KEPT", "Job"]

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)
ContextT = TypeVar("ContextT", default=Any)


class Job(  # pyright: ignore[reportIncompatibleVariableOverride]
    JobContents[DataT, ResultT, ContextT], JobPriority, JobDelay, JobRevocation, JobSteps, JobSuspension, JobFallbacks,
    JobFamily, JobDetails, JobReloading, JobStreams, JobUsageReports, JobVectors, Generic[DataT, ResultT, ContextT],
):  # fmt: skip
    """A job: one unit of work in a queue.

    Queues return jobs, and workers pass them to handlers. In ``Job[DataT, ResultT, ContextT]``, the parameters are the
    types of its data, its result and `context`. Times are epoch ms of the server's clock; durations are ms.

    Attributes:
        id: Id of the job, unique in its queue.
        name: Name of the job: which handler or task processes it.
        outcome: Result of `Queue.add`: added, duplicate, skipped or replaced. For duplicate and skipped, `id` is that
            of the existing job.
        timestamp: When the job was added; 0 if unknown.
        attempts_made: Number of failed attempts so far.
        priority: Priority of the job: 1 (most urgent) to 2047, or 0 for none.
        stalled_count: How often a worker stopped renewing the job's lock.
        processed_on: When the last attempt started; None before the first.
        finished_on: When the job ended; None before.
        failed_reason: Message of the last failure; None without one.
        failed_type: Exception type name of the last failure; None without one.
    """

    outcome: JobOutcome = JobOutcome.ADDED
    finished_on: int | None = None
    _delay: int | None = None
    _state: JobState | None = None
    _result_text: str | None = None
    _read_result: Callable[[Any], Any] | None = None
    """Converts a decoded result to the task's result type; set for jobs of a task."""

    @classmethod
    def from_record(cls, link: QueueLink, record: JobRecord) -> Job[DataT, ResultT]:
        """Return the job of a record read from the server."""
        job = cls(link, record.id, record.name)
        job._apply(record)
        return job

    def _apply(self, record: JobRecord) -> None:
        self.name = record.name
        self.timestamp = record.timestamp or 0
        self.attempts_made = record.attempts_made
        self._delay = record.delay
        self.priority = record.priority
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
        self._progress_text = record.progress
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
        from glidemq_py._job.blocking import BlockingJob

        return BlockingJob(self)

    def __repr__(self) -> str:
        return f"<Job {self.id!r} {self.name!r} of queue {self.queue_name!r}>"

    async def update_data(self, data: DataT) -> None:
        """Replace the job's data, also for later attempts.

        Args:
            data: Any value that the serializer accepts.

        Raises:
            SerializationError: If the data cannot be serialized.
            PayloadTooLargeError: If the serialized data exceeds 1 MiB.
            JobNotFoundError: If the job does not exist.
            StaleAttemptError: If the job is now locked by another worker.
        """
        text = encode_data(data, self._link.serializer, self._link.compression)
        await self._write(administration.update_job_data(self._link.keys.meta, self.id, text, self._token))
        self._data = data
        self._data_text = text

    # -- state and administration -------------------------------------------------------------------------

    async def get_state(self) -> JobState | None:
        """Return the job's current state; None if the job does not exist or its state is unknown to this version."""
        reply = await self._link.transport.command("HGET", self._link.keys.job(self.id), "state")
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
            JobNotFoundError: If the job does not exist.
        """
        answer = await self._link.transport.call(administration.requeue_job(self._link.keys.meta, self.id))
        if answer == "gone":
            raise JobNotFoundError(self.id)
        if answer != "ok":
            raise JobStateError(self.id, answer, "retry")

    async def remove(self) -> bool:
        """Delete the job in any state, with its logs and other keys. Return False if it does not exist.

        If the job is active, its worker notices at the next heartbeat and discards the result.
        """
        return await self._link.transport.call(administration.remove(self._link.keys.meta, self.id))

    async def wait_until_finished(self, timeout: Milliseconds = 30_000) -> ResultT:
        """Wait until the job is completed and return its result.

        Args:
            timeout: How long to wait, in ms or as a timedelta, > 0.

        Raises:
            JobFailedError: If the job failed permanently.
            JobNotFoundError: If the job does not exist.
            WaitTimeoutError: If the job did not end in time.
        """
        outcome = await self._link.waiter.wait(self.id, to_ms("timeout", timeout, minimum=1))
        if outcome.state == JobState.FAILED:
            raise JobFailedError(self.id, outcome.failed_reason or "", outcome.failed_type)
        return self._decode_result(outcome.returnvalue or "null")


watch_calls(Job)
