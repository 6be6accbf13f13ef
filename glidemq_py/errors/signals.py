"""Signals: exceptions that end an attempt without failing it, such as a delay or a suspension."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from glidemq_py.errors.base import GlideMQError

__all__ = ["DelayedError", "GroupRateLimitError", "JobSignal", "RateLimitError", "SuspendError", "WaitingChildrenError"]


class JobSignal(GlideMQError):  # noqa: N818  # a signal is no error
    """Base class of signals. The attempt does not fail and is not counted. Handlers must not catch signals."""

    job_id: str | None = None
    """Id of the job if a method of a `Job` raised the signal, else None."""


class RateLimitError(JobSignal):
    """Raise this in a handler to retry the job later. The worker fetches no other job until then.

    Args:
        delay: delay in milliseconds or a timedelta. None: the window of the worker's ``limiter``, or one second if it
            has none.
    """

    delay: int | timedelta | None

    def __init__(self, delay: int | timedelta | None = None) -> None:
        super().__init__(delay)
        self.delay = delay

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


class GroupRateLimitError(JobSignal):
    """The job's ordering group is rate limited. Raised by `Job.rate_limit_group`.

    Args:
        delay: how long the group is rate limited, in milliseconds.
        current_job: "requeue" or "fail".
        position: "front" or "back": position of the job among the waiting jobs of its group.
        extend: "max" keeps an existing later end of the rate limit, "replace" replaces it.
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
