"""What becomes of one job."""

from __future__ import annotations

from glidemq_py.errors.base import GlideMQError, _message_of

__all__ = [
    "BudgetExceededError",
    "ChildFailedError",
    "JobDataError",
    "JobFailedError",
    "JobNotFoundError",
    "JobRevokedError",
    "JobStateError",
    "JobTimeoutError",
    "StaleAttemptError",
    "UnrecoverableError",
    "WaitTimeoutError",
]


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


class JobNotLoadedError(GlideMQError, AttributeError):
    """What was asked of a `Job` is in its record, which was not read that far: ``await job.reload()`` reads it."""

    attribute: str | None

    def __init__(self, attribute: str | None = None) -> None:
        super().__init__(attribute)
        self.attribute = attribute

    def __str__(self) -> str:
        return f"{self.attribute} is not known of this job: `await job.reload()` reads all of its record"


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
