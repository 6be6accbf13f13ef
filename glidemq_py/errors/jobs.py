"""Errors of a job or of the worker that runs it, and signals: exceptions that end an attempt without failing it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from glidemq_py.errors.base import GlideMQError, StructuredError


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

    def __str__(self) -> str:
        return "waiting for children"


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
