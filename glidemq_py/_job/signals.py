"""Reports of attempts that end with a `JobSignal`, which is not a failure."""

from __future__ import annotations

from glidemq_py._core.calls import working
from glidemq_py._core.calls.working import Finished
from glidemq_py._core.checks import check_choice
from glidemq_py._core.payload import encode_data
from glidemq_py._core.times import MAX_EPOCH_MS, to_ms
from glidemq_py._features import suspend as suspending
from glidemq_py._job.run import Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import (
    DelayedError,
    GlideMQError,
    GroupRateLimitError,
    JobInterruptedError,
    JobSignal,
    RateLimitError,
    SuspendError,
    WaitingChildrenError,
)


def _new_data(link: QueueLink, run: Run, signal: DelayedError | WaitingChildrenError) -> tuple[str | None, str | bool]:
    """Return the new data of the job, None if it has none, and the names in it that are no arguments."""
    if not signal.replace:
        return None, False
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
    token = run.job._stored_id, run.attempt.entry, *run.attempt.token
    if isinstance(signal, RateLimitError):
        ms = pause_ms if signal.delay is None else to_ms("delay", signal.delay)
        return working.delayed(*token, ms, 0, None)
    if isinstance(signal, DelayedError):
        until = 0 if signal.until is None else to_ms("until", signal.until, minimum=1, maximum=MAX_EPOCH_MS)
        return working.delayed(*token, to_ms("delay", signal.delay or 0), until, *_new_data(link, run, signal))
    if isinstance(signal, WaitingChildrenError):
        return working.waiting_children(*token, keep, *_new_data(link, run, signal))
    if isinstance(signal, GroupRateLimitError):
        if run.job.ordering_key is None:
            raise GlideMQError(f"job {run.job.id!r} has no ordering group: it was added without `ordering`")
        how = signal.position
        if check_choice("current_job", signal.current_job, ("requeue", "fail")) == "fail":
            how = "fail"
        ms = to_ms("delay", signal.delay, minimum=1)
        check_choice("position", signal.position, ("front", "back"))
        replace = check_choice("extend", signal.extend, ("max", "replace")) == "replace"
        return working.group_limited(*token, ms, replace, how, keep if how == "fail" else 0)
    if isinstance(signal, SuspendError):
        ms = 0 if signal.timeout is None else to_ms("timeout", signal.timeout, minimum=1)
        return suspending.suspended(*token, signal.reason or "", ms, keep)
    if isinstance(signal, JobInterruptedError):
        if not run.job._interrupted:
            raise GlideMQError("JobInterruptedError is raised by the loop over Job.iterate, not by handlers")
        return working.released(*token)
    raise GlideMQError(f"{type(signal).__name__} is not a signal that workers support") from signal
