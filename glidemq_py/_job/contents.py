"""The common part of a `Job` and a broadcast `Message`: contents, progress, log, and the running attempt."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, NoReturn, Self, cast

from typing_extensions import TypeVar

from glidemq_py._client.transport import JobTransport
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import Call, administration
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._core.checks import check_int
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.limits import MAX_COUNT
from glidemq_py._core.logs import LogLevel, with_level
from glidemq_py._core.misuse import Connected
from glidemq_py._core.option_values import read_headers
from glidemq_py._core.payload import check_line, decode_data, decode_progress, encode_json
from glidemq_py._core.record import MAX_STACKTRACES, JobRecord
from glidemq_py._features import streams, vectors
from glidemq_py._features.streams import CHUNKS_KEPT
from glidemq_py._features.usage import USAGE_FIELDS, JobUsage, checked_usage, store_usage
from glidemq_py._job.attempt import Appends, Attempt
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import (
    GlideMQError,
    GlideMQValidationError,
    JobDataError,
    JobNotLoadedError,
    JobSignal,
    SerializationError,
    StaleAttemptError,
    UnrecoverableError,
)

# PEP 696 defaults make a bare `Job` mean `Job`.


DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)
ContextT = TypeVar("ContextT", default=Any)
T = TypeVar("T")

LOG_LINES_KEPT = 1_000
"""Log lines kept per job by default."""

_MAX_SAFE_INTEGER = 2**53
_UNREAD: Any = object()
_OF_THIS_PROCESS = frozenset(("_link", "_attempt", "_data", "_read_result", "_usage", "_memo"))


class JobContents(Connected, Generic[DataT, ResultT, ContextT]):
    """The contents of a job, and what its handler can write: the common part of `Job` and `Message`."""

    id: str
    _stored_id: str
    """Id of the job in its keys and in server calls: `id`, or its part after the number of the partition."""
    name: str
    timestamp: int = 0
    attempts_made: int = 0
    priority: int = 0
    _rank: int | None = None
    """Rank of the job if it is not that of its priority."""
    stalled_count: int = 0
    processed_on: int | None = None
    failed_reason: str | None = None
    failed_type: str | None = None
    _stacktrace_text: str | None = None
    _data: Any = _UNREAD
    _data_text: str | None = None
    _opts_text: str = "{}"
    _given: JobOptions | None = None
    """Options of the job, if it was returned by `Queue.add`."""
    _progress_text: str | None = None
    _progress_message: tuple[()] | tuple[str | None] = ()
    """The message that this object has written; empty = none yet."""
    _attempt: Attempt | None = None
    _record: JobRecord | None = None
    _budget_key: str | None = None
    _usage: JobUsage | None = None
    _own_keys: Callable[[Any], str | bool] | None = None
    """Returns which names in new data are no arguments, as in `EarlierRun`; set while a task runs the job."""
    _steps_texts: Sequence[object] | None = None
    """Of a job that has steps: the field ``steps`` of its record, and the text of each step."""
    _memo: Any = None
    """The `Memo` of this run, if it has asked for a step."""
    _interrupted: bool = False
    """True once the loop over `Job.iterate` has raised `JobInterruptedError`."""

    def __init__(self, link: QueueLink[JobTransport], job_id: str, name: str) -> None:
        """Create a job; for queues and workers only."""
        self._link = link
        self._stored_id = self.id = job_id
        if link.partition is not None:
            self.id = link.partition.id_of(job_id)
        self.name = name

    def _to_state(self) -> dict[str, Any]:
        """Return what another process needs to create the same job with `_from_state`."""
        return {name: value for name, value in vars(self).items() if name not in _OF_THIS_PROCESS}

    @classmethod
    def _from_state(cls, link: QueueLink[JobTransport], state: Mapping[str, Any]) -> Self:
        """Create the job of another process's `_to_state`."""
        job = cls(link, state["_stored_id"], state["name"])
        for name, value in state.items():
            setattr(job, name, value)
        return job

    def _changed_elsewhere(self, data_text: str | None, progress_text: str | None, usage: JobUsage | None) -> None:
        """Take over the changes that the handler has made in another process."""
        if data_text != self._data_text:
            self._forget_data()
            self._data_text = data_text
        self._progress_text = progress_text
        if usage is not None:
            self._usage = usage

    @property
    def id_prefix(self) -> str:
        """The id as a part of the ids of other jobs: ``job_id=f"{job.id_prefix}-1"``.

        It is `id`, unless that names a partition of a [partitioned queue](../learn/partitions.md), such as ``3||17``:
        then ``3~17``. It differs for each job of the queue, and stays the same for a job.
        """
        partition = self._link.partition
        return self._stored_id if partition is None else partition.id_prefix_of(self._stored_id)

    @property
    def queue_name(self) -> str:
        """Name of the job's queue."""
        partition = self._link.partition
        return self._link.keys.name if partition is None else partition.queue_name

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
    def headers(self) -> Mapping[str, str]:
        """Headers of the job: texts beside its data, from the option ``headers`` or a `Middleware`."""
        return read_headers(self.opts.get("headers"))

    async def reload(self) -> None:
        """Read the job's complete record from the server, like `Queue.get_job`.

        Handlers receive a job without attributes such as `delay` and `scheduled_for`, which raise
        `JobNotLoadedError`. After this call they are available. In a handler, `usage` keeps what this attempt has
        reported.

        Raises:
            JobNotFoundError: If the job does not exist.
        """
        record = await read_record(self._link, self._stored_id)
        if record is None:
            raise self._link.not_found(self.id)
        self._apply(record)

    def _apply(self, record: JobRecord) -> None:
        """Take over what the record has."""
        raise NotImplementedError

    def _forget_data(self) -> None:
        self._data, self._data_text = _UNREAD, None

    @property
    def progress(self) -> Any:
        """The last value passed to `update_progress`; 0 before."""
        return decode_progress(self._progress_text)

    @property
    def progress_message(self) -> str | None:
        """The message of the last progress; None without one. In a handler, `JobNotLoadedError` before `reload`."""
        if self._progress_message:
            return self._progress_message[0]
        if self._record is None or "progressMessage" not in self._record.fields_read:
            raise JobNotLoadedError("progress_message")
        return self._record.progress_message

    @property
    def usage(self) -> JobUsage | None:
        """The last usage report: of this attempt in a handler, otherwise as of when the job was read; or None."""
        return self._usage

    @property
    def _tokens_used(self) -> int:
        """The tokens that a token limiter counts: the greater of `report_tokens` and `report_usage`."""
        reported = 0 if self._attempt is None else self._attempt.tokens
        return reported if self._usage is None else max(reported, math.ceil(self._usage.total_tokens))

    @property
    def context(self) -> ContextT:
        """The value that the worker's ``lifespan`` yielded, such as a database pool; None outside a handler."""
        return cast("ContextT", None if self._attempt is None else self._attempt.context)

    @property
    def cancelled(self) -> threading.Event:
        """Event that is set when this attempt is cancelled: it timed out, was revoked, or lost its lock.

        A handler in a thread cannot be killed. A long-running one should check ``job.cancelled.is_set()`` regularly.
        """
        if self._attempt is None:
            self._attempt = Attempt("", 0, 0, None)
        return self._attempt.cancelled

    @property
    def stacktrace(self) -> tuple[str, ...]:
        """Tracebacks of the last failures, newest last; their number is limited."""
        if self._stacktrace_text is None:
            return () if self._record is None else self._record.stacktrace
        try:
            read: Any = json.loads(self._stacktrace_text)
        except ValueError:
            return ()
        lines = cast("list[object]", read) if isinstance(read, list) else []
        return tuple(line for line in lines if isinstance(line, str))[-MAX_STACKTRACES:]

    @property
    def _is_run(self) -> bool:
        return self._attempt is not None and self._attempt.fence > 0

    async def log(self, line: str, *, level: LogLevel | None = None, keep: int = LOG_LINES_KEPT) -> None:
        """Append a line to the job's log.

        Args:
            line: Text of at most 1 MiB.
            level: "debug", "info", "warning", "error" or "critical". The line is stored with it, such as
                ``[WARNING] disk almost full``. A line without a level counts as info.
            keep: Number of newest lines to keep; 0 keeps all.

        Raises:
            GlideMQValidationError: If the line is not a string, or the level does not exist.
            PayloadTooLargeError: If the line exceeds 1 MiB.
            JobNotFoundError: If the job does not exist.
            StaleAttemptError: If the job is now locked by another worker.
        """
        check_line("log line", line)
        if level is not None:
            line = with_level(line, level)
            check_line("log line", line)
        check_int("keep", keep, 0, _MAX_SAFE_INTEGER)
        meta, own, token = self._link.keys.meta, self._stored_id, self._token
        self._check_status(await self._append(partial(administration.append_job_log, meta, own, line, keep, token)))

    async def update_progress(
        self, progress: float | str | Mapping[str, Any] | list[Any], message: str | None = None
    ) -> None:
        """Store the job's progress and publish a `progress` event.

        Args:
            progress: A number or any other JSON value.
            message: Text for people, such as "12 of 30 pages"; stored beside the progress and part of the event. None
                removes the last one.

        Raises:
            GlideMQValidationError: If the message is not a string.
            SerializationError: If the value cannot be serialized as JSON.
            PayloadTooLargeError: If the serialized value or the message exceeds 1 MiB.
            JobNotFoundError: If the job does not exist.
            StaleAttemptError: If the job is now locked by another worker.
        """
        text = encode_json("progress", progress)
        if message is not None:
            check_line("progress message", message)
        call = administration.update_job_progress(self._link.keys.meta, self._stored_id, text, self._token, message)
        await self._write(call)
        self._progress_text, self._progress_message = text, (message,)

    async def logs(self, start: int = 0, end: int = -1) -> list[str]:
        """Return log lines of the job, oldest first, with their levels if they have any.

        Args:
            start: First position; negative numbers count from the newest.
            end: Last position, inclusive; -1 is the newest line.
        """
        first = check_int("start", start, -_MAX_SAFE_INTEGER, _MAX_SAFE_INTEGER)
        last = check_int("end", end, -_MAX_SAFE_INTEGER, _MAX_SAFE_INTEGER)
        reply = await self._link.command("LRANGE", self._link.keys.log(self._stored_id), str(first), str(last))
        return [line.decode("utf-8", "replace") for line in reply]

    async def stream(self, chunk: Mapping[str, str | float], *, keep: int = CHUNKS_KEPT) -> str:
        """Append a chunk to the job's stream, which `Queue.jobs.iter_stream` and `Queue.read_stream` read.

        Args:
            chunk: 1 to 1,000 field names with str or number values; 1 MiB in total.
            keep: number of newest chunks to keep; 0 = all.

        Returns:
            The id of the stream entry. If a reply was lost: that of the newest entry with these fields, or "" if none
            of the newest 64 has them.

        Raises:
            GlideMQValidationError: an argument is invalid.
            PayloadTooLargeError: the chunk exceeds 1 MiB.
            JobNotFoundError: the job does not exist any more.
            StaleAttemptError: the job is locked by another worker now.
            ServerOutOfMemoryError: the server is at maxmemory.
        """
        status, entry = await self._append(streams.chunk_call(self._link, self._stored_id, self._token, chunk, keep))
        self._check_status(status)
        return entry

    async def report_usage(
        self,
        *,
        model: str | None = None,
        provider: str | None = None,
        tokens: Mapping[str, float] | None = None,
        costs: Mapping[str, float] | None = None,
        total_tokens: float | None = None,
        total_cost: float | None = None,
        cost_unit: str | None = None,
        latency: float | timedelta | None = None,
        cached: bool | None = None,
    ) -> JobUsage:
        """Report the usage of this job so far. A report replaces the previous one: report totals, not increments.

        The report is stored with the job and added to the totals of the minute (`Queue.usage.get_summary`); the event
        ``usage`` is emitted. When the attempt ends, it counts towards the ``token_limiter`` of the worker and the
        budget of the flow. Numbers are finite, from 0 to 2**53.

        Args:
            model: name of the model, at most 256 characters.
            provider: provider of the model, at most 256 characters.
            tokens: tokens by category, such as ``{"input": 812, "output": 64}``; at most 64 categories.
            costs: costs by category; at most 64 categories.
            total_tokens: the sum of ``tokens`` by default.
            total_cost: the sum of ``costs`` by default.
            cost_unit: such as "USD".
            latency: response time of the model, ms or timedelta.
            cached: True if the response came from a cache.

        Returns:
            The usage as stored.

        Raises:
            GlideMQValidationError: an argument is invalid, or no argument was given.
            JobNotFoundError: the job does not exist any more.
            StaleAttemptError: the job is locked by another worker now.
        """
        usage = checked_usage(model, provider, tokens, costs, total_tokens, total_cost, cost_unit, latency, cached)
        self._check_status(await store_usage(self._link, self._stored_id, self._token, usage))
        self._usage = usage
        return usage

    async def report_tokens(self, tokens: int) -> None:
        """Report how many tokens (of a language model, for example) this attempt has used.

        The last report counts. It is stored with the job, and the worker's ``token_limiter`` counts it when the attempt
        ends.

        Args:
            tokens: Number of tokens, >= 0.

        Raises:
            GlideMQValidationError: If ``tokens`` is invalid.
            GlideMQError: If called outside the job's handler.
            JobNotFoundError: If the job does not exist.
            StaleAttemptError: If the job is now locked by another worker.
        """
        attempt, number = self._in_handler("report_tokens"), check_int("tokens", tokens, 0, MAX_COUNT)
        await self._write(administration.record_tokens(self._link.keys.meta, self._stored_id, number, self._token))
        attempt.tokens = number

    async def store_vector(self, field: str, embedding: Iterable[float]) -> None:
        """Store an embedding with the job, for `Queue.vectors.search`. Works without a search module, too.

        Args:
            field: name of the vector field, see `Queue.vectors.create_index`; not a name that the job hash uses itself.
            embedding: the numbers, as many as the index has dimensions; stored as float32.

        Raises:
            GlideMQValidationError: an argument is invalid.
            JobNotFoundError: the job does not exist any more.
            StaleAttemptError: the job is locked by another worker now.
        """
        self._check_status(await vectors.store_vector(self._link, self._stored_id, self._token, field, embedding))

    def move_to_failed(self, reason: str | Exception) -> NoReturn:
        """Fail the job permanently, without further attempts.

        The method always raises, so code after it does not run.

        Args:
            reason: The text of `failed_reason`, or the exception to fail with.

        Raises:
            UnrecoverableError: If ``reason`` is a string; otherwise the given exception is raised. Do not catch it.
            GlideMQValidationError: If ``reason`` is neither a non-empty string nor an exception.
            GlideMQError: If called outside the job's handler.
        """
        if isinstance(reason, JobSignal):
            raise GlideMQValidationError("reason", reason, "must be a string or an exception, not a job signal")
        if not isinstance(reason, Exception):
            check_line("reason", reason)
            if not reason:
                raise GlideMQValidationError("reason", reason, "must not be empty")
        self._in_handler("move_to_failed").discarded = True
        raise reason if isinstance(reason, Exception) else UnrecoverableError(reason)

    def discard(self) -> None:
        """Prevent further attempts: if this attempt fails, the job fails permanently. No effect outside a handler."""
        if self._attempt is not None:
            self._attempt.discarded = True

    def _in_handler(self, what: str) -> Attempt:
        if self._attempt is None or self._attempt.fence == 0:
            place = f"job {self.id!r} of queue {self._link.queue_name!r}"
            raise GlideMQError(f"{what} may only be called by the handler that runs the job ({place})")
        return self._attempt

    def _own(self, signal: JobSignal) -> JobSignal:
        """Set the signal's job id, because a batch has several jobs."""
        signal.job_id = self.id
        return signal

    @property
    def _token(self) -> tuple[int, int]:
        return administration.NO_TOKEN if self._attempt is None else self._attempt.token

    async def _write(self, call: Any) -> None:
        self._check_status(await self._link.transport.call(call))

    async def _append(self, call: Callable[[str], Call[T]]) -> T:
        """Make a call that appends, given its number; without one, which only an attempt has, it is not repeatable."""
        attempt = self._attempt
        if attempt is None or not attempt.fence:
            return await self._link.transport.call(call("").once())
        attempt.appends = attempt.appends or Appends()
        sent = attempt.appends.send(self._link.transport, lambda number: call(self._numbered(number, attempt)))
        return await self._link.runtime.there(sent)

    def _numbered(self, number: str, attempt: Attempt) -> str:
        """Return the number of a call that appends, as the server reads it."""
        return number

    def _check_status(self, status: AttemptStatus) -> None:
        if status is AttemptStatus.GONE:
            raise self._link.not_found(self.id)
        if status not in (AttemptStatus.OK, AttemptStatus.ALREADY):
            raise StaleAttemptError(self.id)


# -- reading the record of a job ----------------------------------------------------------------------------

HAS_USAGE: Final = "usage:bucketTs"
LISTED_FIELDS: Final = (
    "name", "data", "opts", "state", "timestamp", "attemptsMade", "delay", "priority", "rank", "processedOn",
    "finishedOn",
    "returnvalue", "failedReason", "failedType", "stacktrace", "progress", "stalledCount", "signals", "fallbackIndex",
    "budgetKey", HAS_USAGE,
)  # fmt: skip
SUSPENSION_FIELDS: Final = ("suspendReason", "suspendedAt", "suspendTimeout")
_ORIGIN: Final = (
    "scheduledFor",
    "progressMessage",
    *SUSPENSION_FIELDS,
)
"""Read for single jobs only: most jobs have none of these fields, and each costs a search through the record."""
RECORD_FIELDS: Final = (*LISTED_FIELDS, *_ORIGIN, *(f"usage:{name}" for name in USAGE_FIELDS))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")


async def read_record(
    link: QueueLink[JobTransport], job_id: str, wanted: Sequence[str] = RECORD_FIELDS
) -> JobRecord | None:
    """Return these fields of a job's record, or None; ``wanted`` must include state and name."""
    values = await link.command("HMGET", link.keys.job(job_id), *wanted)
    fields = {name: _text(value) for name, value in zip(wanted, values, strict=True)}
    if fields["state"] is None and fields["name"] is None:
        return None
    return JobRecord.parse(job_id, fields)
