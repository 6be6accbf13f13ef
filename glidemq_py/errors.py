"""All exceptions of this package. It imports no other part of glidemq_py.

All exceptions derive from `GlideMQError`, and also from the standard exception of the same meaning (`ValueError`,
`ConnectionError`, `TimeoutError`) if there is one. The first line of a class's docstring is its default message.
"""

from __future__ import annotations

import inspect
import re
import reprlib
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, dataclass_transform

__all__ = [
    "AmbiguousResultError",
    "BackupError",
    "BatchError",
    "BudgetExceededError",
    "BulkAddError",
    "ChildFailedError",
    "ClosedError",
    "ColumnError",
    "ConnectionRejectedError",
    "DataLostError",
    "DelayedError",
    "DuplicateJobError",
    "DurabilityError",
    "EmbeddedServerError",
    "EventLoopError",
    "FairKeyFullError",
    "GlideMQConnectionError",
    "GlideMQError",
    "GlideMQValidationError",
    "GroupRateLimitError",
    "HandlerError",
    "JobBatchNotFoundError",
    "JobDataError",
    "JobFailedError",
    "JobInterruptedError",
    "JobNotFoundError",
    "JobNotLoadedError",
    "JobRevokedError",
    "JobSignal",
    "JobStateError",
    "JobTimeoutError",
    "LeaseLostError",
    "LibraryError",
    "MissingOptionError",
    "PartitionedQueueError",
    "PayloadTooLargeError",
    "PermissionDeniedError",
    "QueueNotEmptyError",
    "QueuePartitionsError",
    "RateLimitError",
    "SandboxCrashError",
    "ScriptError",
    "SearchIndexError",
    "SerializationError",
    "ServerNotReadyError",
    "ServerOutOfMemoryError",
    "SignalTimeout",
    "StagedWriteError",
    "StaleAttemptError",
    "StepChangedError",
    "StepError",
    "StepLimitError",
    "StepsRefusedError",
    "SuspendError",
    "UnknownOptionError",
    "UnrecoverableError",
    "UnsupportedFeatureError",
    "WaitTimeoutError",
    "WaitingChildrenError",
    "WorkerCommandError",
    "WorkerNotFoundError",
    "WorkerTimeoutError",
]

_VALUE_WIDTH: Final = 80
_SECRET: Final = "***"


_short_repr = reprlib.Repr()  # sets are sorted
_short_repr.maxstring = _VALUE_WIDTH
_short_repr.maxother = _VALUE_WIDTH
_short_repr.maxlong = _VALUE_WIDTH


class _Secret:
    """Placeholder for a secret value in an error."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _SECRET

    def __reduce__(self) -> str:
        return "SECRET"


SECRET: Final = _Secret()
"""Pass this instead of a password to a validation error."""


_SERVER_URL: Final = re.compile(r"\b((?:valkey|redis)s?(?:\+cluster)?):(/.*)", re.IGNORECASE | re.DOTALL)
_HARMLESS: Final = re.compile(
    r"//(?:(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]+\]|localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+)(?::\d{1,5})?"
    r"|[a-z0-9-]+:(?:63[789]\d|70\d\d))(?:/\d?\d?)?[\])}'\"]*",
    re.IGNORECASE | re.ASCII,
)
"""The rest of a URL that is clearly a host and a port. Without a dot or a usual port it may be user:password."""
_LONGEST_URL: Final = 10_000
_CREDENTIALS: Final = re.compile(r"([a-z][a-z0-9+.-]*://).*@", re.IGNORECASE | re.DOTALL)


def hide_urls(text: str) -> str:
    """Return the text with every server URL as `valkey://***`, and without the credentials of any other URL.

    A server URL ends where the text ends, because a password may contain spaces and quotes: use this for text of
    unknown origin, not for messages that already contain the redacted URL. An address without user, password, query
    and fragment is kept if the text ends with it.
    """
    if ":/" not in text or len(text) > _LONGEST_URL:
        return text
    return _CREDENTIALS.sub(rf"\1{_SECRET}@", _SERVER_URL.sub(_redacted, text))


def _redacted(found: re.Match[str]) -> str:
    return found[0] if _HARMLESS.fullmatch(found[2]) else f"{found[1]}://{_SECRET}"


def show_value(value: object) -> str:
    """Return the `repr` of a rejected value: at most 80 characters, no password of a URL, never an exception."""
    try:
        # Shortened after the URLs are hidden: a cut may remove what marks them.
        text = _short_repr.repr(hide_urls(value)) if isinstance(value, str) else hide_urls(_short_repr.repr(value))
    except BaseException:  # a broken __repr__ must not replace the actual error
        text = object.__repr__(value)
    return text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 3] + "..."


class GlideMQError(Exception):
    """Base class of all errors of this package."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(args or (_message_of(type(self)),)))


def _message_of(kind: type[BaseException]) -> str:
    doc = kind.__doc__ or kind.__name__
    return doc.strip().split("\n", 1)[0].rstrip(".")


@dataclass_transform(eq_default=False)
class StructuredError(GlideMQError):
    """Base of errors whose arguments are their attributes: the annotated names; one with a value may be left out."""

    __signature__ = inspect.Signature()

    def __init_subclass__(cls) -> None:
        if cls.__module__ != __name__:
            return  # the annotations of a user's class are not its arguments
        kind = inspect.Parameter
        own = (
            kind(name, kind.POSITIONAL_OR_KEYWORD, default=vars(cls).get(name, kind.empty))
            for name in inspect.get_annotations(cls)
        )
        cls.__signature__ = inspect.Signature([*cls.__signature__.parameters.values(), *own])

    def __init__(self, *args: object, **given: object) -> None:
        bound = self.__signature__.bind(*args, **given)
        bound.apply_defaults()
        super().__init__(*bound.args)
        self.__dict__.update(bound.arguments)


class GlideMQValidationError(GlideMQError, ValueError):
    """An option or argument is invalid, or not supported here; nothing was changed.

    The message is ``option 'attempts' = -1: must be an integer from 0 to 1,000,000``.

    Args:
        option: name of the option, as the caller writes it.
        value: the invalid value.
        problem: the problem or the allowed values, such as "must be an integer from 0 to 10" or "requires 'parent'".
    """

    option: str
    value: object
    problem: str

    def __init__(self, option: str, value: object, problem: str) -> None:
        if isinstance(option, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            option = hide_urls(option)
        if isinstance(value, str):
            # A URL in the wrong place (a queue name, an unknown option) must not show its password.
            value = hide_urls(value)
        super().__init__(option, value, problem)
        self.option = option
        self.value = value
        self.problem = problem

    def __str__(self) -> str:
        return f"option {self.option!r} = {show_value(self.value)}: {self.problem}"


class UnknownOptionError(GlideMQValidationError, TypeError):
    """The option does not exist.

    Attributes:
        suggestion: the most similar existing option, or None.
    """

    suggestion: str | None

    def __init__(self, option: str, value: object, problem: str = "", suggestion: str | None = None) -> None:
        text = problem or "unknown option"
        if suggestion is not None and not problem:
            text = f"{text}; did you mean {suggestion!r}?"
        super().__init__(option, value, text)
        self.suggestion = suggestion


class MissingOptionError(GlideMQValidationError, TypeError):
    """A required option was not given, or is None."""


class PayloadTooLargeError(GlideMQValidationError):
    """The serialized text exceeds the size limit.

    Attributes:
        size: size of the text in UTF-8 bytes, before compression.
        limit: the maximum size in bytes.
    """

    size: int
    limit: int

    def __init__(self, option: str, size: int, limit: int) -> None:
        super().__init__(option, size, f"{size:,} bytes exceed the limit of {limit:,} bytes")
        self.args = (option, size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.problem}"


class SerializationError(GlideMQValidationError):
    """A value cannot be serialized, or a text cannot be deserialized."""


class ColumnError(GlideMQValidationError):
    """A column of a Spark data frame has an invalid type or value.

    Attributes:
        option: name of the column.
        row: number of the invalid row in its partition, or None if the whole column is invalid.
    """

    row: int | None

    def __init__(self, option: str, value: object, problem: str, row: int | None = None) -> None:
        super().__init__(option, value, problem)
        self.args = (option, value, problem, row)
        self.row = row

    def __str__(self) -> str:
        if self.row is None:
            return f"column {self.option!r} {self.problem}"
        return f"column {self.option!r}, row {self.row} of its partition = {show_value(self.value)}: {self.problem}"


class GlideMQConnectionError(GlideMQError, ConnectionError):
    """The server cannot be reached."""


class AmbiguousResultError(GlideMQConnectionError):
    """The call was sent and its reply was lost; the server may have executed it.

    Attributes:
        timed_out: Whether there was no reply within the request timeout; False if the connection was lost earlier.
    """

    timed_out: bool = False


class DurabilityError(StructuredError, AmbiguousResultError):
    """The server did not confirm in time that an added job survives a failure.

    The job was added, and exists unless the server lost it. Adding it again is safe if ``job_id`` is set, while
    the job is kept.

    Attributes:
        reason: The missing part.
        job_id: id of the job.
    """

    reason: str
    job_id: str | None = None

    def __str__(self) -> str:
        job = "a job" if self.job_id is None else f"job {self.job_id!r}"
        again = "adding it again is safe if its job_id is set and it is kept"
        return f"{job} was added, but may be lost: {self.reason}; {again}"


class ServerNotReadyError(GlideMQConnectionError):
    """The server cannot run commands at the moment; the call was not executed.

    Raised while a server loads its data, a cluster fails over, a node is a read-only replica, a script blocks the
    server, too few replicas are connected, or the server cannot write to disk; also if a cluster moves the hash slot of
    the queue, or another client changes the schedulers, for longer than calls are retried. Sending the call again is
    always safe.
    """


class ServerOutOfMemoryError(GlideMQError):
    """The server reached its `maxmemory` and rejected the call, which added and changed nothing."""


class LibraryError(GlideMQError):
    """The function library cannot be loaded, or the server rejects it."""


class PermissionDeniedError(LibraryError):
    """The server's access rules (ACL) deny this user a command or a key; the message names it.

    Attributes:
        user: name of the user, or "" if the server does not report it.
        permission: the denied command, such as "xadd", or the denied key; "" if the server does not report it.
    """

    user: str
    permission: str

    def __init__(self, message: str = "", user: str = "", permission: str = "") -> None:
        super().__init__(message or _message_of(type(self)))
        self.user = user
        self.permission = permission


class ScriptError(LibraryError):
    """A server-side function failed.

    Attributes:
        location: Lua file and line, such as "lua/core/functions/add.lua:12", or None.
    """

    location: str | None

    def __init__(self, message: str = "", location: str | None = None) -> None:
        super().__init__(message or _message_of(type(self)))
        self.location = location

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.location is None else f"{self.location}: {text}"


class SearchIndexError(GlideMQError):
    """The search module rejected an index or a query, or the server has none."""


class EmbeddedServerError(GlideMQError):
    """The embedded server cannot be started; it requires the extra: pip install "glidemq-py[embedded]"."""


class ClosedError(GlideMQError):
    """A closed queue, worker or connection was used."""


class ConnectionRejectedError(GlideMQConnectionError):
    """The server is reachable but rejects this connection; retrying does not help.

    The message names the cause: a wrong user or password, TLS on one side only, a certificate, a cluster URL for a
    standalone server or the other way round, or a `maxmemory-policy` that deletes jobs.
    """


class EventLoopError(StructuredError, RuntimeError):
    """An object was used outside the event loop it belongs to, or in the wrong kind of ``with`` block.

    Nothing was sent.

    Attributes:
        subject: the object, such as ``worker of queue 'emails'``.
        problem: description of the problem.
        remedy: what to do instead.
    """

    subject: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}; {self.remedy}"


class JobNotFoundError(StructuredError):
    """The job does not exist.

    Attributes:
        job_id: its id.
        detail: its queue, and where it was named, such as "in queue 'emails' (depends_on)"; '' = not stated.
    """

    job_id: str
    detail: str = ""

    def __str__(self) -> str:
        return f"job {self.job_id!r} not found {self.detail}".rstrip()


class JobStateError(StructuredError):
    """The state of the job, or of its batch, does not allow the action.

    Attributes:
        job_id: id of the job or batch.
        state: current state of the job.
        action: the rejected action, such as "promote".
        queue: name of its queue; '' = not stated.
    """

    job_id: str
    state: str
    action: str
    message: str | None = None
    queue: str = ""

    def __str__(self) -> str:
        message: str | None = self.args[3]
        return message or f"cannot {self.action} job {self.job_id!r}: it is {self.state}{self._place}"

    @property
    def _place(self) -> str:
        return f" (queue {self.queue!r})" if self.queue else ""


class JobBatchNotFoundError(StructuredError):
    """The batch does not exist, or no longer.

    Attributes:
        batch_id: id of the batch.
        queue: name of its queue; '' = not stated.
    """

    batch_id: str
    queue: str = ""

    def __str__(self) -> str:
        return f"batch {self.batch_id!r} not found" + (f" in queue {self.queue!r}" if self.queue else "")


class StaleAttemptError(StructuredError):
    """The attempt is no longer the current one: another worker has locked the job. Nothing was changed."""

    job_id: str | None = None

    def __str__(self) -> str:
        text = "the attempt is no longer the current one (another worker has locked the job); nothing was changed"
        return text if self.job_id is None else f"job {self.job_id!r}: {text}"


class LeaseLostError(StaleAttemptError):
    """The lease is not valid any more: it expired, its timeout passed, or the job was removed. Nothing was changed."""

    def __str__(self) -> str:
        job = "the job" if self.job_id is None else f"job {self.job_id!r}"
        reasons = "it was reported, it expired, its timeout passed, or the job was removed"
        return f"{job}: the lease is lost ({reasons}); nothing was changed"


STALLED_OUT = "stalled more often than max_stalled_count allows"
_STORED_STALLED_OUT = "job stalled more than maxStalledCount"
"""Stored by every glide-mq library, so it is kept in the job."""


def readable_reason(reason: str) -> str:
    """Return the reason of a failure for people; that of stalled jobs is stored in the words of the wire format."""
    return STALLED_OUT if reason == _STORED_STALLED_OUT else reason


class JobFailedError(StructuredError):
    """The awaited job failed.

    Attributes:
        job_id: id of the job.
        failed_reason: message of the exception.
        failed_type: name of the exception's type, or None if it was not recorded.
    """

    job_id: str
    failed_reason: str
    failed_type: str | None = None

    def __str__(self) -> str:
        kind = "" if self.failed_type is None else f"{self.failed_type}: "
        return f"job {self.job_id!r} failed: {kind}{readable_reason(self.failed_reason)}"


class WaitTimeoutError(GlideMQError, TimeoutError):
    """The wait timed out; the job itself is not affected."""


class JobTimeoutError(GlideMQError, TimeoutError):
    """The attempt exceeded the job's timeout."""


class JobRevokedError(GlideMQError):
    """The job was revoked."""


class UnrecoverableError(GlideMQError):
    """Raise this in a handler to fail the job without further attempts."""


class StepError(UnrecoverableError):
    """All attempts of a step have failed. Unless the handler catches it, the job fails without another attempt.

    Attributes:
        step: name of the step.
        attempts: number of its attempts.
        cause_type: type of the last error; in the run in which it was raised, the error is the cause of this one.
        cause: message of the last error.
        traceback: traceback of the last error.
    """

    def __init__(self, step: str, attempts: int, cause_type: str, cause: str, traceback: str = "") -> None:
        super().__init__(step, attempts, cause_type, cause, traceback)
        self.step, self.attempts, self.cause_type, self.cause, self.traceback = self.args

    def __str__(self) -> str:
        times = "" if self.attempts == 1 else f" after {self.attempts:,} attempts"
        what = self.cause_type if self.cause in ("", self.cause_type) else f"{self.cause_type}: {self.cause}"
        return f"step {self.step!r} failed{times}: {what}"


class StepChangedError(UnrecoverableError):
    """The handler gives a step another function than the one that has stored it.

    Attributes:
        step: name of the step.
        stored: name of the function that has stored it.
        given: name of the function that the handler gives.
    """

    def __init__(self, step: str, stored: str, given: str) -> None:
        super().__init__(step, stored, given)
        self.step, self.stored, self.given = step, stored, given

    def __str__(self) -> str:
        return f"step {self.step!r} was stored by {self.stored}, not by {self.given}: give a changed step a new name"


class StepLimitError(UnrecoverableError):
    """A job has the maximum number of steps, or the maximum size of their results. The step was not run."""


class SignalTimeout(UnrecoverableError, TimeoutError):  # noqa: N818  # as asyncio names it
    """The signal for which `Job.wait_for_signal` waits has not come in time; raised in all later runs, too.

    Unless the handler catches it, the job fails without another attempt.

    Attributes:
        signal: name of the signal.
        timeout: how long the job has waited, ms.
    """

    def __init__(self, signal: str, timeout: int) -> None:
        super().__init__(signal, timeout)
        self.signal, self.timeout = signal, timeout

    def __str__(self) -> str:
        return f"signal {self.signal!r} has not come within {self.timeout} ms"


class JobDataError(UnrecoverableError):
    """The job's data does not match the parameters of its handler."""


class JobNotLoadedError(StructuredError, AttributeError):
    """The attribute of a `Job` has not been read from the server: ``await job.reload()`` reads all attributes.

    A `Lease` that was made from a token has no job; `Queue.get_job` reads it.
    """

    attribute: str | None = None

    def __str__(self) -> str:
        if self.attribute == "job":
            return "a lease made from a token has no job: read it with `await queue.get_job(lease.id)`"
        return f"attribute {self.attribute!r} of this job is not loaded; call `await job.reload()`"


class BudgetExceededError(StructuredError):
    """The budget of the job's flow is exhausted; its handler was not called."""

    job_id: str | None = None

    def __str__(self) -> str:
        return "Budget exceeded"


class ChildFailedError(UnrecoverableError):
    """A child failed, and its parent fails because of it."""


class JobSignal(GlideMQError):  # noqa: N818  # a signal is no error
    """Base class of signals. The attempt does not fail and is not counted. Handlers must not catch signals."""

    job_id: str | None = None
    """Id of the job if a method of a `Job` raised the signal, else None."""


class RateLimitError(StructuredError, JobSignal):
    """Raise this in a handler to retry the job later. The worker fetches no other job until then.

    Args:
        delay: delay in milliseconds or a timedelta. None: the window of the worker's ``limiter``, or one second if it
            has none.
    """

    delay: int | timedelta | None = None

    def __str__(self) -> str:
        return "rate limited"


class DelayedError(JobSignal):
    """The job is delayed and then continues. Raised by `Job.move_to_delayed`.

    Args:
        delay: milliseconds from now, or None if ``until`` is given.
        until: milliseconds since 1970 on the server's clock, or None.
        data: new data of the job, as in `Job.update_data`; used only with ``replace``.
        replace: True to replace the job's data.
    """

    def __init__(
        self, delay: int | None = None, until: int | None = None, data: object = None, replace: bool = False
    ) -> None:
        super().__init__(delay, until)
        self.delay = delay
        self.until = until
        self.data = data
        self.replace = replace
        self.step: Any = False  # a step that is stored with the end of the attempt

    def __str__(self) -> str:
        return f"delayed by {self.delay} ms" if self.until is None else f"delayed until {self.until}"


class WaitingChildrenError(JobSignal):
    """The job waits for its children and then continues. Raised by `Job.move_to_waiting_children`.

    Args:
        data: new data of the job, as in `Job.update_data`; used only with ``replace``.
        replace: True to replace the job's data.
    """

    def __init__(self, data: object = None, replace: bool = False) -> None:
        super().__init__()
        self.data = data
        self.replace = replace
        self.step: Any = False  # a step that is stored with the end of the attempt

    def __str__(self) -> str:
        return "waiting for children"


class StepsRefusedError(DelayedError):
    """The first step of a job was refused: a worker of glide-mq for Node is registered, which knows no steps.

    It might run the job from its start, and repeat what the steps have done. The job is delayed, no attempt is counted.
    """

    def __str__(self) -> str:
        return (
            f"its first step is refused, and the job delayed by {self.delay} ms: a worker of glide-mq for Node is "
            "registered with this queue, and would run the job from its start"
        )


class GroupRateLimitError(StructuredError, JobSignal):
    """The job's ordering group is rate limited. Raised by `Job.rate_limit_group`.

    Args:
        delay: how long the group is rate limited, in milliseconds.
        current_job: "requeue" or "fail".
        position: "front" or "back": position of the job among the waiting jobs of its group.
        extend: "max" keeps an existing later end of the rate limit, "replace" replaces it.
    """

    delay: int
    current_job: str = "requeue"
    position: str = "front"
    extend: str = "max"

    def __str__(self) -> str:
        return "group rate limited"


class SuspendError(JobSignal):
    """The job is suspended until it receives a signal. Raised by `Job.suspend`.

    Args:
        reason: human-readable reason, or None.
        timeout: milliseconds after which the job fails; None: no timeout.
        on_resume: function that this worker calls instead of the handler when the job resumes; see `Job.suspend`.
    """

    def __init__(
        self,
        reason: str | None = None,
        timeout: int | None = None,
        on_resume: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(reason, timeout)
        self.reason = reason
        self.timeout = timeout
        self.on_resume = on_resume
        self.step: Any = False  # a step that is stored with the end of the attempt
        self.awaited, self.returned = "", 0  # see `Suspended` in glidemq_py/_core/calls/working.py

    def __str__(self) -> str:
        return "suspended" if self.reason is None else f"suspended: {self.reason}"


class JobInterruptedError(JobSignal):
    """The worker is closing; the job is released, and another worker continues it.

    Raised by the loop over `Job.iterate`.
    """


class HandlerError(GlideMQError):
    """The worker has no handler for the job, could not load it, or got no result for each job of a batch.

    The job is retried as after any error: another worker may have its handler.
    """


class BatchError(StructuredError):
    """Raise this in a batch handler to report one result per job.

    Args:
        results: one element per job, in the order of the batch: its result, or the exception it failed with (or a
            `JobSignal`). Jobs without an element fail.
    """

    results: Sequence[object]

    def __str__(self) -> str:
        failed = sum(isinstance(result, BaseException) for result in self.results)
        return f"{failed} of {len(self.results)} jobs of the batch failed"


class SandboxCrashError(StructuredError):
    """The sandbox process that ran the job's handler died.

    Attributes:
        code: exit code, or the negated number of the signal that killed the process; None if it is unknown.
    """

    code: int | None = None

    def __str__(self) -> str:
        if self.code is None:
            return "the sandbox process died"
        if self.code >= 0:
            return f"the sandbox process ended with exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"the sandbox process was killed by {name}"


class BulkAddError(StructuredError):
    """Some jobs of a bulk add were not added, or not confirmed as durable.

    Attributes:
        results: one element per input position: the job, or the exception if it was not added. A `DurabilityError` is
            that of a job that was added, but not confirmed.
    """

    results: Sequence[object]

    @property
    def failed(self) -> int:
        """Return the number of positions with an exception."""
        return sum(isinstance(result, BaseException) for result in self.results)

    @property
    def unconfirmed(self) -> int:
        """Return how many of `failed` were added, but not confirmed as durable."""
        return sum(isinstance(result, DurabilityError) for result in self.results)

    def __str__(self) -> str:
        errors = (result for result in self.results if isinstance(result, BaseException))
        first = next(errors, None)
        reason = "" if first is None else f"; first error: {type(first).__name__}: {first}"
        missing, unconfirmed = self.failed - self.unconfirmed, self.unconfirmed
        counts = [f"{missing:,} of {len(self.results):,} jobs were not added"] if missing or not unconfirmed else []
        if unconfirmed:
            counts.append(f"{unconfirmed:,} job{' was' if unconfirmed == 1 else 's were'} added but not confirmed")
        return f"{', '.join(counts)}{reason}"


class BackupError(GlideMQError):
    """A backup cannot be written, read or restored."""


class QueueNotEmptyError(StructuredError, BackupError):
    """A queue that is to be restored is not empty; nothing was written.

    Attributes:
        queue: name of the queue.
        reason: why it is not empty.
    """

    queue: str
    reason: str

    def __str__(self) -> str:
        return f"queue {self.queue!r} cannot be restored: {self.reason}; restore to another queue, or obliterate it"


class FairKeyFullError(StructuredError):
    """The job's fair key has its maximum backlog; the job was not added. Add it later.

    Attributes:
        key: the fair key, or None.
        max_backlog: number of its ready jobs at which new ones are rejected, or None.
    """

    key: str | None = None
    max_backlog: int | None = None

    def __str__(self) -> str:
        if self.key is None:
            return _message_of(FairKeyFullError)
        most = "ready jobs" if self.max_backlog is None else f"{self.max_backlog:,} ready jobs"
        if self.max_backlog == 1:
            most = "1 ready job"
        return f"job was not added: fair key {self.key!r} has its maximum backlog of {most}"


class DuplicateJobError(StructuredError):
    """A job with this id already exists; nothing was added."""

    job_id: str
    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue!r}: job {self.job_id!r} already exists; nothing was added"


_STAGED_WRITE_PROBLEMS: Final = {
    "lost": "staged rows are missing: they expired, or the server lost them",
    "absent": "expired: inactive for longer than the staging TTL",
    "aborted": "aborted",
    "full": "writes to more than 1,000 queues, of which each partition is one; divide the rows among several saves",
    "done": "already published",
    "committed": "already committed",
    "decided": "the save is decided, so every row becomes a job: a worker of the queue, or the next write to it, adds "
    "those that are still missing as soon as the server allows; do not save again",
    "unknown": "the connection was lost while it was committed, so it may be decided; to be sure, save again with this "
    "id as 'writeId': each row is added once",
    "repeated": "was saved before, so this save added nothing; to add these rows too, use another 'writeId'",
    "undecided": "failed before it was committed; none of its rows became a job",
    "contended": "other drivers keep deciding the same write; save again with the same writeId",
    "changed": "other writes to its queues were committed during every attempt; save again",
    "repartitioned": "its partitions were created or obliterated while rows were staged; save again",
}


class PartitionedQueueError(StructuredError):
    """The operation does not support queues with partitions; nothing was changed.

    Attributes:
        queue: name of the queue.
        partitions: number of its partitions.
    """

    queue: str
    partitions: int

    def __str__(self) -> str:
        return f"queue {self.queue!r} has {self.partitions} partitions, which this operation does not support"


class QueuePartitionsError(StructuredError):
    """A queue has another number of partitions than the caller wants; nothing was changed.

    A queue keeps the partitions that it was created with, before its first job. It can be moved to another number
    (docs/learn/partitions.md).

    Attributes:
        queue: name of the queue.
        stored: number of its partitions; 1 = it has none.
        wanted: number that the caller wants.
    """

    queue: str
    stored: int
    wanted: int

    def __str__(self) -> str:
        why = "cannot get partitions after its first job or limit"
        if self.stored > 1:
            why = f"keeps its {self.stored} partitions until it is obliterated"
        return (
            f"option 'partitions' = {self.wanted}: queue {self.queue!r} {why}; either add to another queue with that "
            "number and let workers serve both until this one is empty, or stop adding and restore a backup under "
            f"another name with partitions={self.wanted}"
        )


class UnsupportedFeatureError(StructuredError):
    """The queue uses a feature that this version of glidemq_py does not have; nothing was changed.

    Every call about the queue raises this, and a worker closes with it, because this version would mishandle the
    queue's jobs. Upgrade to the named version.

    Attributes:
        queue: name of the queue.
        feature: name of the feature.
        version: first version of glidemq_py that has it.
    """

    queue: str
    feature: str
    version: str

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} uses the feature {self.feature!r}, which this version of glidemq_py does not have; "
            f"upgrade to version {self.version} or later"
        )


class StagedWriteError(StructuredError):
    """A staged write cannot continue.

    Attributes:
        write: id of the write.
        queue: name of the queue.
        state: state of the write on the server; 'decided' = every row becomes a job, so do not save again; 'unknown' =
            it may be decided; 'repeated' = it was saved before; 'repartitioned' = a queue has other partitions now.
        cause: error that caused this one, or ''.
    """

    write: str
    queue: str
    state: str
    cause: str = ""

    def __str__(self) -> str:
        problem = _STAGED_WRITE_PROBLEMS.get(self.state, f"state {self.state}")
        return f"write {self.write!r} in queue {self.queue!r}: {problem}{f' ({self.cause})' if self.cause else ''}"


class DataLostError(GlideMQError):
    """Events or results of a queue were deleted before they were read.

    Attributes:
        queue: name of the queue.
        lost: "events" or "results".
        count: number of lost events or results; None if it is unknown: the queue was deleted and created again, or a
            failover has lost entries that were read before.
    """

    queue: str
    lost: str
    count: int | None

    def __init__(self, queue: str, lost: str, count: int | None) -> None:
        super().__init__(queue, lost, count)
        self.queue = queue
        self.lost = lost
        self.count = count if count is not None and count > 0 else None

    def __str__(self) -> str:
        if self.count is None:
            what = f"the {self.lost} were deleted, or a failover has lost some of them, before they were read"
        else:
            what = f"{self.count} {self.lost} were deleted before they were read; keep them longer"
        return f"queue {self.queue!r}: {what}; set failOnDataLoss=false to continue without them"


class WorkerNotFoundError(StructuredError):
    """No worker with this id is registered with the queue, or it is not one of this library.

    Attributes:
        worker: id of the worker.
    """

    worker: str

    def __str__(self) -> str:
        return f"worker {self.worker!r} not found"


class WorkerTimeoutError(StructuredError):
    """Workers did not answer a command in time: they died, have lost their connection, or are of an older version.

    Attributes:
        workers: ids of these workers.
        answered: ids of the workers that did answer.
    """

    workers: Sequence[str]
    answered: Sequence[str] = ()

    def __str__(self) -> str:
        shown = ", ".join(self.workers[:5]) + (", ..." if len(self.workers) > 5 else "")
        return f"no answer in time from {len(self.workers)} workers ({shown}); {len(self.answered)} answered"


class WorkerCommandError(StructuredError):
    """A worker could not run a command.

    Attributes:
        worker: id of the worker.
        reason: why, as the worker reports it.
    """

    worker: str
    reason: str

    def __str__(self) -> str:
        return f"worker {self.worker!r}: {self.reason}"


class LayoutChangedError(GlideMQError):
    """The partitions of the queue are others than the client knows. Nothing was added."""

    def __init__(self, queue: str = "", stored: int | None = None, used: int = 0) -> None:
        super().__init__(queue, stored, used)
        self.queue, self.stored, self.used = queue, stored, used
        self.raised_at = time.monotonic()

    def __str__(self) -> str:
        if self.stored is None:
            return f"{self.queue}; nothing was added" if self.queue else "nothing was added"
        return (
            f"queue {self.queue!r}: its partitions were created or obliterated meanwhile (layout {self.stored}, the "
            f"client used {self.used}); nothing was added: add the job again. If an obliterate was interrupted, call "
            "it again first"
        )
