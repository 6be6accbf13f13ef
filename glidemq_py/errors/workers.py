"""What goes wrong in a worker, or keeps it from running a job."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from glidemq_py.errors.base import GlideMQError

__all__ = ["BatchError", "BatchMismatchError", "NoHandlerError", "SandboxCrashError", "WorkerTargetError"]


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
