"""Errors in a worker."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from glidemq_py.errors.base import GlideMQError

__all__ = ["BatchError", "BatchMismatchError", "NoHandlerError", "SandboxCrashError", "SandboxStartError",
           "WorkerTargetError"]  # fmt: skip


class NoHandlerError(GlideMQError):
    """The worker has no handler for this job name; a later attempt may run in a worker that has one."""


class BatchError(GlideMQError):
    """Raise this in a batch handler to report one result per job.

    Args:
        results: one element per job, in the order of the batch: its result, or the exception it failed with (or a
            `JobSignal`). Jobs without an element fail.
    """

    results: Sequence[object]

    def __init__(self, results: Sequence[object]) -> None:
        super().__init__(results)
        self.results = results

    def __str__(self) -> str:
        failed = sum(isinstance(result, BaseException) for result in self.results)
        return f"{failed} of {len(self.results)} jobs of the batch failed"


class BatchMismatchError(GlideMQError):
    """A batch handler did not return one result per job; all jobs of the batch failed."""


class SandboxCrashError(GlideMQError):
    """The sandbox process that ran the job's handler died.

    Attributes:
        code: exit code, or the negated number of the signal that killed the process; None if it is unknown.
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


class SandboxStartError(GlideMQError):
    """A sandbox process did not import its handler in time, and was killed.

    Attributes:
        handler: name of the handler.
        timeout: the ``start_timeout`` of the sandbox, in milliseconds.
    """

    handler: str
    timeout: int

    def __init__(self, handler: str, timeout: int) -> None:
        super().__init__(handler, timeout)
        self.handler = handler
        self.timeout = timeout

    def __str__(self) -> str:
        return f"a sandbox process did not import handler {self.handler!r} within start_timeout ({self.timeout} ms)"


class WorkerTargetError(GlideMQError):
    """The target of the command line cannot be imported or contains no worker."""
