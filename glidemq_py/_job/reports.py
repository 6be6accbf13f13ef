"""The rows that report attempts, of workers and of leases, and the budgets of flows, which decide who may start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from glidemq_py._core.calls import working
from glidemq_py._core.calls.working import BudgetCharge, Finished
from glidemq_py._core.checks import check_choice
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import split_budget_key
from glidemq_py._core.logs import get_logger, show_id
from glidemq_py._core.payload import encode_data
from glidemq_py._core.times import MAX_EPOCH_MS, to_ms
from glidemq_py._features.usage import check_budget
from glidemq_py._job.attempt import reason_of, stacktraces_with, stored_text
from glidemq_py._job.job import Job
from glidemq_py._job.run import Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import (
    BudgetExceededError,
    DelayedError,
    GlideMQError,
    GroupRateLimitError,
    JobInterruptedError,
    JobSignal,
    RateLimitError,
    SuspendError,
    WaitingChildrenError,
)

_log = get_logger(__name__)

PAUSE_MS: Final = 86_400_000
"""How long a job is delayed if its flow is paused by its budget."""
_UNKNOWN_MS: Final = 1_000
"""How long a job is delayed if its budget, which is in another queue, could not be read."""
UNKNOWN: Final = "unknown"
"""Verdict of a budget that could not be read."""


class StoredFacts(NamedTuple):
    """The facts about a job that the row of a failure needs."""

    options: JobOptions
    opts_text: str
    attempts_made: int
    stacktrace: object


def stored_facts(run: Run) -> StoredFacts:
    """Return the facts of a fetched job."""
    return StoredFacts(run.options, run.job._opts_text, run.job.attempts_made, run.stacktrace)


def token_of(run: Run) -> tuple[str, str, int, int]:
    """Return the identity of an attempt in a report: id of the job, stream entry, fencing token, start."""
    attempt = run.attempt
    return run.job._stored_id, attempt.entry, attempt.fence, attempt.processed_on


def failed_row(
    token: tuple[str, str, int, int], stored: StoredFacts, error: BaseException | str, delay: int | None,
    keep: working.Keep,
) -> Finished:  # fmt: skip
    """Return the row of an attempt that failed.

    Args:
        token: See `token_of`.
        stored: The job.
        error: The error, or its text.
        delay: Time until the next attempt, ms; None if there is none.
        keep: Retention of the job.
    """
    reason, kind = (stored_text(error), "Error") if isinstance(error, str) else (reason_of(error), type(error).__name__)
    earlier = stored.stacktrace if isinstance(stored.stacktrace, str) else "[]"
    if isinstance(error, BaseException):
        earlier = stacktraces_with(earlier, error, stored.options.stack_trace_limit)
    limit = 0 if delay is None else stored.options.attempts or 0
    # A search in the JSON text, as Node peers do it.
    falls_back = int(limit and '"fallbacks"' in stored.opts_text)
    return working.failed(*token, reason, kind, earlier, limit, delay or 0, keep, falls_back, int(delay is None))


def _new_data(link: QueueLink, run: Run, signal: DelayedError | WaitingChildrenError) -> tuple[str | bool, str | bool]:
    """Return the new data of the job, False if it has none, and the names in it that are no arguments."""
    if not signal.replace:
        return False, False
    own = run.job._own_keys
    return encode_data(signal.data, link.serializer, link.compression), own is not None and own(signal.data)


def signal_row(link: QueueLink, run: Run, signal: JobSignal, pause_ms: int, keep: working.Keep) -> Finished:
    """Return the row of an attempt that ended with ``signal``.

    Args:
        link: The queue.
        run: The run that ended.
        signal: The signal.
        pause_ms: Delay of a `RateLimitError` without its own, in ms.
        keep: Retention of the job, in case it fails.

    Raises:
        GlideMQError: If the signal is invalid; the attempt then fails with this error.
    """
    token = token_of(run)
    if isinstance(signal, RateLimitError):
        ms = pause_ms if signal.delay is None else to_ms("delay", signal.delay)
        return working.delayed(*token, ms)
    if isinstance(signal, DelayedError):
        until = 0 if signal.until is None else to_ms("until", signal.until, minimum=1, maximum=MAX_EPOCH_MS)
        return working.delayed(
            *token, to_ms("delay", signal.delay or 0), until, *_new_data(link, run, signal), signal.step
        )
    if isinstance(signal, WaitingChildrenError):
        return working.waiting_children(*token, keep, *_new_data(link, run, signal), signal.step)
    if isinstance(signal, GroupRateLimitError):
        if run.job.ordering_key is None:
            raise GlideMQError(f"job {run.job.id!r} has no ordering group: it was added without `ordering`")
        how = signal.position
        if check_choice("current_job", signal.current_job, ("requeue", "fail")) == "fail":
            how = "fail"
        ms = to_ms("delay", signal.delay, minimum=1)
        check_choice("position", signal.position, ("front", "back"))
        replace = check_choice("extend", signal.extend, ("max", "replace")) == "replace"
        return working.group_limited(*token, ms, int(replace), how, keep if how == "fail" else 0)
    if isinstance(signal, SuspendError):
        ms = 0 if signal.timeout is None else to_ms("timeout", signal.timeout, minimum=1)
        return working.suspended(*token, signal.reason or "", ms, keep, signal.awaited, signal.returned, signal.step)
    if isinstance(signal, JobInterruptedError):
        if not run.job._interrupted:
            raise GlideMQError("JobInterruptedError is raised by the loop over Job.iterate, not by handlers")
        return working.released(*token)
    raise GlideMQError(f"{type(signal).__name__} is not a signal that workers support") from signal


# -- budgets of flows -----------------------------------------------------------------------------------------


def budget_charges(link: QueueLink, jobs: Iterable[Job | None]) -> list[BudgetCharge]:
    """Return the charges of the jobs that are reported by the rows of a call, in their order; None: an unknown job."""
    charges: list[BudgetCharge] = []
    for row, job in enumerate(jobs, 1):
        if job is None or job._budget_key is None:
            continue
        usage, key = job._usage, job._budget_key
        if usage is not None:
            charges.append((row, key, (usage.tokens, usage.costs, usage.total_tokens, usage.total_cost)))
        elif key == link.keys.budget(job._stored_id):
            charges.append((row, key, False))  # the root job: its end starts the expiry of the budget
    return charges


async def budget_elsewhere(link: QueueLink, run: Run, key: str) -> str:
    """Return the verdict of a budget in another queue; see `refusal`."""
    try:
        meta, flow_id = split_budget_key(key)
        return await link.transport.call(check_budget(meta, flow_id))
    except ValueError:
        return ""  # not a budget key
    except GlideMQError as error:
        _log.warning(
            "queue %r: job %s delayed by %d ms: reading its budget failed: %s", link.queue_name, show_id(run.job.id),
            _UNKNOWN_MS, error,
        )  # fmt: skip
        return UNKNOWN


def refusal(run: Run, verdict: str) -> DelayedError | BudgetExceededError | None:
    """Return the error with which an attempt ends that its budget does not allow; None if it may start."""
    if verdict == UNKNOWN:
        return DelayedError(_UNKNOWN_MS)
    if verdict == "pause":
        return DelayedError(PAUSE_MS)
    return BudgetExceededError(run.job.id) if verdict else None
