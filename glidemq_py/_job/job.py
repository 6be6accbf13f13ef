"""`Job`: one unit of work, returned by adds and reads and passed to handlers."""

from __future__ import annotations

from typing import cast

from glidemq_py._job.attempt import watch_calls
from glidemq_py._job.contents import ContextT, DataT, ResultT
from glidemq_py._job.core import JobCore
from glidemq_py._job.current import running_job
from glidemq_py._job.job_twin import BlockingJob


class Job(JobCore[DataT, ResultT, ContextT]):
    """A job: one unit of work in a queue.

    Queues return jobs, and workers pass them to handlers. In ``Job[DataT, ResultT, ContextT]``, the parameters are the
    types of its data, its result and `context`. Times are epoch ms of the server's clock; durations are ms.

    Attributes:
        id: Id of the job, unique in its queue.
        name: Name of the job: which handler or task processes it.
        outcome: Result of `Queue.add`: added, duplicate, skipped or replaced; `id` may be that of an existing job.
        timestamp: When the job was added; 0 if unknown.
        attempts_made: Number of failed attempts so far.
        priority: Priority of the job: 1 (most urgent) to 2047, or 0 for none. See `rank`.
        stalled_count: How often a worker stopped renewing the job's lock.
        processed_on: When the last attempt started, or when it failed; None before the first.
        finished_on: When the job ended; None before.
        failed_reason: Message of the last failure; None without one.
        failed_type: Exception type name of the last failure; None without one.
    """

    @property
    def blocking(self) -> BlockingJob[DataT, ResultT, ContextT]:
        """This job with blocking methods, for handlers that are plain functions."""
        return BlockingJob(self)


watch_calls(Job)

"""A job of any data and results."""


def current_job() -> Job | None:
    """Return the job whose handler runs in the current task or thread; None outside a handler."""
    return cast("Job | None", running_job.get())
