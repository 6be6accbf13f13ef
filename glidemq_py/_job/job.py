"""`Job`: one unit of work, as added, read back, or being run."""

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
from glidemq_py._features.usage.info import read_usage
from glidemq_py._features.usage.job_api import JobUsageReports
from glidemq_py._features.vectors.job_api import JobVectors
from glidemq_py._job.attempt import Attempt
from glidemq_py._job.control import JobControl
from glidemq_py._job.details import JobDetails
from glidemq_py._job.link import QueueLink
from glidemq_py._job.reloading import JobReloading
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

LOG_LINES_KEPT = 1_000
"""Log lines kept a job unless `log` is told otherwise."""

_FAR = 2**53
_UNREAD: Any = object()


class Job(
    JobControl, JobSteps, JobSuspension, JobFallbacks, JobFamily, JobDetails, JobReloading, JobStreams,
    JobUsageReports, JobVectors, Generic[DataT, ResultT],
):  # fmt: skip
    """A job. Times are epoch ms by the server's clock, durations ms.

    Attributes:
        id: unique in its queue.
        name: what kind of work it is.
        outcome: what `Queue.add` did: added, duplicate, skipped or replaced; `id` is the job that stands.
        timestamp: when it was added; 0 where not known.
        attempts_made: attempts that have failed so far.
        priority: 0 = none, 1 = most urgent.
        processed_on: when its last attempt began. finished_on: when it ended.
        failed_reason, failed_type: message and type name of the last failure.
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
    """What it was added with, for the job that `Queue.add` returned."""
    _result_text: str | None = None
    _progress_text: str | None = None
    _attempt: Attempt | None = None
    _budget_key: str | None = None
    _read_result: Callable[[Any], Any] | None = None
    """Makes a typed result of the plain one; set for jobs of a task."""

    def __init__(self, link: QueueLink, job_id: str, name: str) -> None:
        """Made by queues and workers; users get jobs from them."""
        self._link = link
        self.id = job_id
        self.name = name

    @classmethod
    def from_record(cls, link: QueueLink, record: JobRecord) -> Job[DataT, ResultT]:
        """The job of a hash that was read."""
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
            # In a handler it is what this attempt has reported: limits and budgets count it.
            self._usage = read_usage(record.usage)

    # -- what it holds ------------------------------------------------------------------------------------

    @property
    def queue_name(self) -> str:
        """The queue it belongs to."""
        return self._link.keys.name

    @property
    def data(self) -> DataT:
        """What was given to `add`, decoded when first asked for.

        Raises:
            JobDataError: the stored text is not what the serializer reads. In a handler this fails the job
                for good, since another attempt would meet the same text.
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
        """The options as stored (camelCase, data-model.md section 4.1); empty where they cannot be read."""
        given = self._given
        try:
            opts = json.loads(self._opts_text if given is None else given.to_wire_json())
        except SerializationError:
            return {}
        return cast("Mapping[str, Any]", opts) if isinstance(opts, dict) else {}

    @property
    def returnvalue(self) -> ResultT | None:
        """What the handler returned, for a completed job that was read back. Raises SerializationError."""
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
        """What `update_progress` wrote last; 0 before."""
        return decode_progress(self._progress_text)

    @property
    def context(self) -> Any:
        """What the worker's ``lifespan`` yielded (a database pool, say); None outside a handler."""
        return None if self._attempt is None else self._attempt.context

    @property
    def cancelled(self) -> threading.Event:
        """Set when this attempt's result is no longer wanted: it timed out, was revoked, or was taken away.

        A handler in a thread cannot be killed; a long one looks here now and then.
        """
        if self._attempt is None:
            self._attempt = Attempt("", 0, 0, None)
        return self._attempt.cancelled

    @property
    def blocking(self) -> BlockingJob[DataT, ResultT]:
        """The same job for handlers that are plain functions: `log` and the others block instead of await."""
        from glidemq_py._job.blocking import BlockingJob

        return BlockingJob(self)

    def __repr__(self) -> str:
        return f"<Job {self.id!r} {self.name!r} of queue {self.queue_name!r}>"

    # -- what a handler writes ----------------------------------------------------------------------------

    async def log(self, line: str, *, keep: int = LOG_LINES_KEPT) -> None:
        """Append a line to the job's log; the newest ``keep`` lines stay (0 = all).

        Raises:
            GlideMQValidationError: the line is no text. PayloadTooLargeError: it exceeds 1 MiB.
            JobNotFoundError: the job is gone. StaleAttemptError: another worker has it now.
        """
        check_line("log line", line)
        check_int("keep", keep, 0, _FAR)
        await self._write(control.append_job_log(self._link.keys.meta, self.id, line, keep, self._token))

    async def update_progress(self, progress: float | str | Mapping[str, Any] | list[Any]) -> None:
        """Store progress (a number or anything JSON) and tell listeners. Raises as `log`."""
        text = encode_json("progress", progress)
        await self._write(control.update_job_progress(self._link.keys.meta, self.id, text, self._token))
        self._progress_text = text

    async def update_data(self, data: DataT) -> None:
        """Replace the job's data, for its next attempt too. Raises as `log`, and SerializationError."""
        text = encode_data(data, self._link.serializer, self._link.compression)
        await self._write(control.update_job_data(self._link.keys.meta, self.id, text, self._token))
        self._data = data
        self._data_text = text

    def discard(self) -> None:
        """No more attempts: if this one fails, the job fails for good. Only means something in a handler."""
        if self._attempt is not None:
            self._attempt.discarded = True

    @property
    def _token(self) -> tuple[int, int]:
        return control.NO_TOKEN if self._attempt is None else self._attempt.token

    async def _write(self, call: Any) -> None:
        self._refused(await self._link.transport.call(call))

    def _refused(self, status: AttemptStatus) -> None:
        if status is AttemptStatus.GONE:
            raise JobNotFoundError(self.id)
        if status is not AttemptStatus.OK:
            raise StaleAttemptError(self.id)

    # -- what anybody may ask or do -----------------------------------------------------------------------

    async def get_state(self) -> JobState | None:
        """Where it stands now; None if it is gone (or in a state that this version does not know)."""
        reply = await self._link.transport.command("HGET", self._link.keys.job(self.id), "state")
        try:
            return JobState(reply.decode()) if reply else None
        except ValueError:
            return None

    async def is_completed(self) -> bool:
        """True if it is completed now."""
        return await self.get_state() is JobState.COMPLETED

    async def is_failed(self) -> bool:
        """True if it has failed for good."""
        return await self.get_state() is JobState.FAILED

    async def is_active(self) -> bool:
        """True if a worker has it now."""
        return await self.get_state() is JobState.ACTIVE

    async def is_waiting(self) -> bool:
        """True if it is ready and waits for a worker."""
        return await self.get_state() is JobState.WAITING

    async def is_delayed(self) -> bool:
        """True if it is due later, a retry's backoff included."""
        return await self.get_state() is JobState.DELAYED

    async def logs(self, start: int = 0, end: int = -1) -> list[str]:
        """Log lines, oldest first; ``end`` inclusive, -1 = the last."""
        first, last = check_int("start", start, -_FAR, _FAR), check_int("end", end, -_FAR, _FAR)
        reply = await self._link.transport.command("LRANGE", self._link.keys.log(self.id), str(first), str(last))
        return [line.decode("utf-8", "replace") for line in reply]

    async def retry(self) -> None:
        """Run a failed job again, with all its attempts.

        Raises:
            JobStateError: it has not failed. JobNotFoundError: it is gone.
        """
        answer = await self._link.transport.call(control.retry(self._link.keys.meta, self.id))
        if answer == "gone":
            raise JobNotFoundError(self.id)
        if answer != "ok":
            raise JobStateError(self.id, answer, "retry")

    async def remove(self) -> bool:
        """Delete it with everything that belongs to it, whatever its state; False if it was gone already.

        A worker that is running it is told at its next heartbeat, and its result is dropped.
        """
        return await self._link.transport.call(control.remove(self._link.keys.meta, self.id))

    async def wait_until_finished(self, timeout: Milliseconds = 30_000) -> ResultT:
        """The job's result, once it is completed.

        Raises:
            JobFailedError: it failed for good. JobNotFoundError: it is gone.
            WaitTimeoutError: it did not end in ``timeout`` (ms or timedelta).
        """
        outcome = await self._link.waiter.wait(self.id, to_ms("timeout", timeout, minimum=1))
        if outcome.state == JobState.FAILED:
            raise JobFailedError(self.id, outcome.failed_reason or "", outcome.failed_type)
        return self._decode_result(outcome.returnvalue or "null")
