"""Signals: raised in a handler to say what is to become of its job, and no failures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from glidemq_py.errors.base import GlideMQError

__all__ = ["DelayedError", "GroupRateLimitError", "JobSignal", "RateLimitError", "SuspendError", "WaitingChildrenError"]


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
