"""`Job`: one unit of work, returned by adds and reads and passed to handlers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, cast

# PEP 696 defaults make a bare `Job` mean `Job[Any, Any]`.
from typing_extensions import TypeVar

from glidemq_py._core import json_text as json
from glidemq_py._core.calls import control
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._core.checks import check_int
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.job_states import JobOutcome, JobState
from glidemq_py._core.payload import check_line, decode_data, decode_progress, decode_result, encode_data, encode_json
from glidemq_py._core.record import JobRecord
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.fallbacks import JobFallbacks
from glidemq_py._features.flows.job_api import JobFamily
from glidemq_py._features.streams.job_api import JobStreams
from glidemq_py._features.suspend.job_api import JobSuspension
from glidemq_py._features.usage.calls import read_usage
from glidemq_py._features.usage.job_api import JobUsageReports
from glidemq_py._features.vectors.job_api import JobVectors
from glidemq_py._job.attempt import Attempt, watch_calls
from glidemq_py._job.control import JobControl
from glidemq_py._job.details import JobDetails, JobReloading
from glidemq_py._job.link import QueueLink
from glidemq_py._job.steps import JobSteps
from glidemq_py.errors import (
    JobDataError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    SerializationError,
    StaleAttemptError,
)

if TYPE_CHECKING:
    from glidemq_py._job.blocking import BlockingJob

__all__ = ["LOG_LINES_KEPT", "Job"]

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)
ContextT = TypeVar("ContextT", default=Any)

LOG_LINES_KEPT = 1_000
"""Log lines kept per job by default."""

_MAX_SAFE_INTEGER = 2**53
_UNREAD: Any = object()


class Job(
    JobControl, JobSteps, JobSuspension, JobFallbacks, JobFamily, JobDetails, JobReloading, JobStreams,
    JobUsageReports, JobVectors, Generic[DataT, ResultT, ContextT],
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

    id: str
    name: str
    outcome: JobOutcome = JobOutcome.ADDED
    timestamp: int = 0
    attempts_made: int = 0
    priority: int = 0
    stalled_count: int = 0
    processed_on: int | None = None
    finished_on: int | None = None
    failed_reason: str | None = None
    failed_type: str | None = None
    _delay: int | None = None
    _stacktrace_text: str | None = None
    _state: JobState | None = None
    _data: Any = _UNREAD
    _data_text: str | None = None
    _opts_text: str = "{}"
    _given: JobOptions | None = None
    """Options of the job, if it was returned by `Queue.add`."""
    _result_text: str | None = None
    _progress_text: str | None = None
    _attempt: Attempt | None = None
    _budget_key: str | None = None
    _read_result: Callable[[Any], Any] | None = None
    """Converts a decoded result to the task's result type; set for jobs of a task."""

    def __init__(self, link: QueueLink, job_id: str, name: str) -> None:
        """Create a job; for queues and workers only."""
        self._link = link
        self.id = job_id
        self.name = name

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
        self._data, self._data_text = _UNREAD, record.data
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

    # -- contents -----------------------------------------------------------------------------------------

    @property
    def queue_name(self) -> str:
        """Name of the job's queue."""
        return self._link.keys.name

    @property
    def data(self) -> DataT:
        """The job's data, decoded on first access.

        Raises:
            JobDataError: If the serializer cannot decode the stored data. In a handler, this fails the job without
                another attempt.
        """
        if self._data is _UNREAD:
            if self._data_text is None:
                return cast("DataT", None)
            try:
                self._data = decode_data(self._data_text, self._link.serializer)
            except SerializationError as error:
                raise JobDataError(f"the data of job {self.id!r} cannot be read: {error.problem}") from error
        return cast("DataT", self._data)

    @property
    def opts(self) -> Mapping[str, Any]:
        """The stored options in camelCase (docs/reference/data-model.md); empty if they cannot be decoded."""
        given = self._given
        try:
            opts = json.loads(self._opts_text if given is None else given.to_wire_json())
        except SerializationError:
            return {}
        return cast("Mapping[str, Any]", opts) if isinstance(opts, dict) else {}

    @property
    def returnvalue(self) -> ResultT | None:
        """Result of a completed job as read from the server; None before.

        Raises:
            SerializationError: If the serializer cannot decode the stored result.
        """
        if self._result_text is None:
            return None
        return self._decode_result(self._result_text)

    def _forget_data(self) -> None:
        self._data, self._data_text = _UNREAD, None

    def _decode_result(self, text: str) -> ResultT:
        value = decode_result(text, self._link.serializer)
        return cast("ResultT", value if self._read_result is None else self._read_result(value))

    @property
    def progress(self) -> Any:
        """The last value passed to `update_progress`; 0 before."""
        return decode_progress(self._progress_text)

    @property
    def context(self) -> ContextT:
        """The value that the worker's ``lifespan`` yielded, such as a database pool; None outside a handler."""
        return cast("ContextT", None if self._attempt is None else self._attempt.context)

    @property
    def cancelled(self) -> threading.Event:
        """Event that is set when this attempt is canceled: it timed out, was revoked, or lost its lock.

        A handler in a thread cannot be killed. A long-running one should check ``job.cancelled.is_set()`` regularly.
        """
        if self._attempt is None:
            self._attempt = Attempt("", 0, 0, None)
        return self._attempt.cancelled

    @property
    def blocking(self) -> BlockingJob[DataT, ResultT, ContextT]:
        """This job with blocking methods, for handlers that are plain functions."""
        from glidemq_py._job.blocking import BlockingJob

        return BlockingJob(self)

    def __repr__(self) -> str:
        return f"<Job {self.id!r} {self.name!r} of queue {self.queue_name!r}>"

    # -- writes of a handler ------------------------------------------------------------------------------

    async def log(self, line: str, *, keep: int = LOG_LINES_KEPT) -> None:
        """Append a line to the job's log.

        Args:
            line: Text of at most 1 MiB.
            keep: Number of newest lines to keep; 0 keeps all.

        Raises:
            GlideMQValidationError: If the line is not a string.
            PayloadTooLargeError: If the line exceeds 1 MiB.
            JobNotFoundError: If the job does not exist.
            StaleAttemptError: If the job is now locked by another worker.
        """
        check_line("log line", line)
        check_int("keep", keep, 0, _MAX_SAFE_INTEGER)
        await self._write(control.append_job_log(self._link.keys.meta, self.id, line, keep, self._token))

    async def update_progress(self, progress: float | str | Mapping[str, Any] | list[Any]) -> None:
        """Store the job's progress and publish a `progress` event.

        Args:
            progress: A number or any other JSON value.

        Raises:
            SerializationError: If the value cannot be serialized as JSON.
            PayloadTooLargeError: If the serialized value exceeds 1 MiB.
            JobNotFoundError: If the job does not exist.
            StaleAttemptError: If the job is now locked by another worker.
        """
        text = encode_json("progress", progress)
        await self._write(control.update_job_progress(self._link.keys.meta, self.id, text, self._token))
        self._progress_text = text

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
        await self._write(control.update_job_data(self._link.keys.meta, self.id, text, self._token))
        self._data = data
        self._data_text = text

    def discard(self) -> None:
        """Prevent further attempts: if this attempt fails, the job fails permanently. No effect outside a handler."""
        if self._attempt is not None:
            self._attempt.discarded = True

    @property
    def _token(self) -> tuple[int, int]:
        return control.NO_TOKEN if self._attempt is None else self._attempt.token

    async def _write(self, call: Any) -> None:
        self._check_status(await self._link.transport.call(call))

    def _check_status(self, status: AttemptStatus) -> None:
        if status is AttemptStatus.GONE:
            raise JobNotFoundError(self.id)
        if status is not AttemptStatus.OK:
            raise StaleAttemptError(self.id)

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

    async def logs(self, start: int = 0, end: int = -1) -> list[str]:
        """Return log lines of the job, oldest first.

        Args:
            start: First position; negative numbers count from the newest.
            end: Last position, inclusive; -1 is the newest line.
        """
        first = check_int("start", start, -_MAX_SAFE_INTEGER, _MAX_SAFE_INTEGER)
        last = check_int("end", end, -_MAX_SAFE_INTEGER, _MAX_SAFE_INTEGER)
        reply = await self._link.transport.command("LRANGE", self._link.keys.log(self.id), str(first), str(last))
        return [line.decode("utf-8", "replace") for line in reply]

    async def retry(self) -> None:
        """Requeue the failed job with all its attempts.

        Raises:
            JobStateError: If the job has not failed.
            JobNotFoundError: If the job does not exist.
        """
        answer = await self._link.transport.call(control.retry(self._link.keys.meta, self.id))
        if answer == "gone":
            raise JobNotFoundError(self.id)
        if answer != "ok":
            raise JobStateError(self.id, answer, "retry")

    async def remove(self) -> bool:
        """Delete the job in any state, with its logs and other keys. Return False if it does not exist.

        If the job is active, its worker notices at the next heartbeat and discards the result.
        """
        return await self._link.transport.call(control.remove(self._link.keys.meta, self.id))

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
