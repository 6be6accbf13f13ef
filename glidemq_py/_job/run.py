"""One fetched job, from the reply that contains it until its slot is free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

from glidemq_py._core.calls.working import COMPLETED, COMPLETED_PLAIN, FETCHED_JOB, EarlierRun, FetchedJob, Finished
from glidemq_py._core.job_options import JobOptions, read_stored_options
from glidemq_py._job.attempt import Attempt
from glidemq_py._job.job import Job
from glidemq_py._partitions.link import QueueLink
from glidemq_py.telemetry.spans import CONTEXT_START, without_context

_FIELDS: Final = len(FETCHED_JOB)
_PLAIN: Final = FETCHED_JOB.index("attempts_made")
_NEVER_RUN: Final = ["0", False, False, "0", False]
"""The other fields of a row that ends after the timestamp (``lua/core/fetch_plain.lua``)."""


class Run:
    """A job being run.

    Attributes:
        job: The job, as the handler sees it.
        attempt: The attempt with its fencing token.
        options: The job's options as stored.
        completion: The kind of the report if the job completes.
        handler: The handler; set when it is started.
        task: Task of an async handler; None for a handler in a thread.
        timer: Timer of the job's timeout; of a cancelled handler, timer of the warning that it has not ended.
        suspect_limit: Maximum number of suspects that may run in this worker at the same time, this one included;
            0 if the job is not a suspect.
    """

    job_type: ClassVar[type[Any]] = Job
    """`Job`, or `Message` in the worker of a subscription."""
    __slots__ = ("attempt", "completion", "handler", "job", "options", "stacktrace", "suspect_limit", "task", "timer")

    handler: Callable[[Any], Any]

    def __init__(self, link: QueueLink, taken: FetchedJob, processed_on: int, context: Any) -> None:
        # Hot path: only what every job needs. tests/unit/test_rows.py compares the names with the declared row.
        more = None
        suspect_limit = 0
        self.completion = COMPLETED
        if len(taken) == _PLAIN:
            self.completion = COMPLETED_PLAIN
            taken += _NEVER_RUN
        elif len(taken) > _FIELDS:
            taken, more = taken[:_FIELDS], EarlierRun(*taken[_FIELDS:])
        (
            job_id, entry, fence, name, data, opts, timestamp, attempts_made, progress, stalled_count, priority,
            stacktrace,
        ) = taken  # fmt: skip
        attempt = Attempt(entry, fence, processed_on, context)
        job: Job = self.job_type(link, job_id, name)
        job._data_text = data
        job._attempt = attempt
        job.processed_on = processed_on
        job.timestamp = int(timestamp) if isinstance(timestamp, str) and timestamp.isdecimal() else 0
        if opts != "{}":
            job._opts_text = opts
            if opts.startswith(CONTEXT_START):
                opts = without_context(opts)
        if attempts_made != "0":
            job.attempts_made = _int(attempts_made)
        if priority != "0":
            if isinstance(priority, str) and priority.startswith("r"):  # False: a peer wrote none
                job._rank = _int(priority[1:])
            else:
                job.priority = _int(priority)
        if progress:
            job._progress_text = progress
        if stacktrace:
            job._stacktrace_text = stacktrace
        if stalled_count:
            job.stalled_count = _int(stalled_count)
        if more is not None:
            job._signals_text = _text(more.signals)
            job.fallback_index = _int(more.fallback_index)
            job.failed_reason = _text(more.failed_reason)
            job.failed_type = _text(more.failed_type)
            suspect_limit = _int(more.suspect_limit)
            job._own_keys_text = _text(more.own_keys)
            job._requeues = _text(more.requeues)
            if more.steps:
                job._steps_texts = cast("Sequence[object]", more.steps)
        self.job = job
        self.attempt = attempt
        self.options: JobOptions = read_stored_options(opts)
        self.stacktrace = stacktrace
        self.suspect_limit = suspect_limit
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class FinishedAttempt:
    """A row to report, and the arguments of its worker events.

    Attributes:
        row: The row of the exchange call.
        run: The run that ended.
        result: Return value of the handler, or None.
        error: Exception or signal that ended the attempt, or None.
        refusals: Number of calls that failed because of this row.
        sent: True if the row was sent before and the reply was lost.
    """

    row: Finished
    run: Run
    result: Any
    error: BaseException | None
    refusals: int = 0
    sent: bool = False


def _text(value: str | bool) -> str | None:
    return value if isinstance(value, str) and value else None


def _int(text: Any) -> int:
    try:
        return int(text)
    except (TypeError, ValueError):
        return 0


# -- reports of attempts that end with a signal -------------------------------------------------------------
