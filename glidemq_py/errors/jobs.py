"""Errors about a single job."""

from __future__ import annotations

from glidemq_py.errors.base import GlideMQError

__all__ = [
    "BudgetExceededError",
    "ChildFailedError",
    "JobDataError",
    "JobFailedError",
    "JobNotFoundError",
    "JobRevokedError",
    "JobStateError",
    "JobTimeoutError",
    "MissingAwaitError",
    "StaleAttemptError",
    "UnrecoverableError",
    "WaitTimeoutError",
]


class JobNotFoundError(GlideMQError):
    """The job does not exist."""

    job_id: str

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"job {self.job_id!r} not found"


class JobStateError(GlideMQError):
    """The job's state does not allow the action.

    Attributes:
        job_id: id of the job.
        state: current state of the job.
        action: the rejected action, such as "promote".
    """

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
    """The attempt is no longer the current one: another worker has locked the job. Nothing was changed."""

    job_id: str | None

    def __init__(self, job_id: str | None = None) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        text = "the attempt is no longer the current one (another worker has locked the job); nothing was changed"
        return text if self.job_id is None else f"job {self.job_id!r}: {text}"


class JobFailedError(GlideMQError):
    """The awaited job failed.

    Attributes:
        job_id: id of the job.
        failed_reason: message of the exception.
        failed_type: name of the exception's type, or None if it was not recorded.
    """

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
    """The wait timed out; the job itself is not affected."""


class JobTimeoutError(GlideMQError, TimeoutError):
    """The attempt exceeded the job's timeout."""


class JobRevokedError(GlideMQError):
    """The job was revoked."""


class UnrecoverableError(GlideMQError):
    """Raise this in a handler to fail the job without further attempts."""


class JobDataError(UnrecoverableError):
    """The job's data does not match the parameters of its handler."""


class MissingAwaitError(UnrecoverableError, TypeError):
    """A handler called a method of its job without ``await``, so the call had no effect.

    Attributes:
        method: name of the method.
    """

    method: str

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.method = method

    def __str__(self) -> str:
        name = self.method
        return (
            f"the handler called job.{name}() without await, so it had no effect: use `await job.{name}(...)` in an "
            f"async def handler, `job.blocking.{name}(...)` in a plain one"
        )


class JobNotLoadedError(GlideMQError, AttributeError):
    """The attribute of a `Job` has not been read from the server: ``await job.reload()`` reads all attributes."""

    attribute: str | None

    def __init__(self, attribute: str | None = None) -> None:
        super().__init__(attribute)
        self.attribute = attribute

    def __str__(self) -> str:
        return f"attribute {self.attribute!r} of this job is not loaded; call `await job.reload()`"


class BudgetExceededError(GlideMQError):
    """The budget of the job's flow is exhausted; its handler was not called."""

    job_id: str | None

    def __init__(self, job_id: str | None = None) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return "Budget exceeded"


class ChildFailedError(UnrecoverableError):
    """A child failed, and its parent fails because of it."""
