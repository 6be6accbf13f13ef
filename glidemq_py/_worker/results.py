"""Results of attempts: the rows that report them, and the meaning of the server's replies.

`Outcomes` builds the row of an attempt that completed, failed or was released; `signal_row` that of an attempt that
ended with a `JobSignal`, which is not a failure. A `FinishedAttempt` is a row to report. Its fencing token makes a
second report harmless, but the reply to it has less information than the first: see `status_after_lost_reply`.
`OutcomeReporting` reports the replies to listeners, logs and meters.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._core.calls import working
from glidemq_py._core.calls.working import COMPLETED, AttemptStatus, Completed, Failed, Finished
from glidemq_py._core.checks import check_choice
from glidemq_py._core.logs import get_logger
from glidemq_py._core.payload import encode_data, encode_result
from glidemq_py._core.record import MAX_STACKTRACES
from glidemq_py._core.times import MAX_EPOCH_MS, to_ms
from glidemq_py._features.retention import KeepJobs, Retention
from glidemq_py._features.retries import is_retried, retry_delay
from glidemq_py._features.suspend import job_api as suspending
from glidemq_py._job.link import QueueLink
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.run import Run
from glidemq_py.errors import (
    DelayedError,
    GlideMQError,
    GroupRateLimitError,
    JobSignal,
    RateLimitError,
    SerializationError,
    StaleAttemptError,
    SuspendError,
    WaitingChildrenError,
)
from glidemq_py.telemetry.state import TELEMETRY

if TYPE_CHECKING:
    from glidemq_py._worker.failure_log import FailureLog

__all__ = ["FinishedAttempt", "OutcomeReporting", "Outcomes", "message_of", "signal_row", "status_after_lost_reply"]

_log = get_logger(__name__)

_REASON_CHARS = 4_096
_TRACE_CHARS = 8_192
_TRACE_FRAMES = 32

_SIGNALLED: Final = (working.Delayed, working.GroupLimited, working.WaitingChildren, working.Suspended)
"""Reports of attempts that ended with a signal."""

_OUTCOMES: Final[dict[int, str]] = {
    AttemptStatus.OK: "completed",
    AttemptStatus.FAILED: "failed",
    AttemptStatus.RETRYING: "retrying",
    AttemptStatus.DELAYED: "delayed",
    AttemptStatus.LIMITED: "delayed",
    AttemptStatus.SUSPENDED: "suspended",
    AttemptStatus.RELEASED: "released",
}
"""Names for meters; every other status means that the attempt was not the current one."""


def _remove_all_keys(_: str) -> working.Keep:
    return 1


class Outcomes:
    """Builds the rows that an exchange reports.

    Args:
        link: The queue.
        options: Options of the worker: which errors are retried, and the backoff.
    """

    def __init__(self, link: QueueLink, options: WorkerOptions) -> None:
        self._link = link
        self._options = options
        self.removal: Callable[[str], working.Keep] = _remove_all_keys
        """Returns how the job with this id is removed: 1 or 2, see `working.Keep`."""
        self._pause_ms = 1_000 if options.limiter is None else options.limiter.duration

    def completed(self, run: Run, result: Any) -> Finished:
        """Return the row of a handler that returned.

        Raises:
            SerializationError: If the result cannot be serialized.
            PayloadTooLargeError: If the result is too large.
        """
        text = "null" if result is None else encode_result(result, self._link.serializer)
        attempt = run.attempt
        kept = run.options.remove_on_complete
        keep = 0 if kept is None else self._keep(run, kept)
        return Completed(COMPLETED, run.job.id, attempt.entry, attempt.fence, attempt.processed_on, text, keep)

    def failed(self, run: Run, error: BaseException) -> Finished:
        """Return the row of an attempt that failed with ``error``."""
        limit = run.options.attempts or 0
        if limit and not self._is_retried(run, error):
            limit = 0
        attempt = run.attempt
        return working.failed(
            run.job.id,
            attempt.entry,
            attempt.fence,
            attempt.processed_on,
            _clean(message_of(error), _REASON_CHARS),
            type(error).__name__,
            _stacktraces(run.stacktrace, error),
            limit,
            self._backoff(run, error) if limit else 0,
            self._keep(run, run.options.remove_on_fail),
            # A search in the JSON text, as Node peers do it.
            limit > 0 and '"fallbacks"' in run.job._opts_text,
        )

    def released(self, run: Run) -> Finished:
        """Return the row of a job that is released without counting an attempt."""
        attempt = run.attempt
        return working.released(run.job.id, attempt.entry, attempt.fence, attempt.processed_on)

    def signalled(self, run: Run, signal: JobSignal) -> Finished:
        """Return the row of an attempt that ended with a signal.

        Raises:
            GlideMQError: If the signal is invalid; the attempt then fails with this error.
        """
        return signal_row(self._link, run, signal, self._pause_ms, self._keep(run, run.options.remove_on_fail))

    def pause_of(self, signal: RateLimitError) -> int:
        """Return the pause of the worker for a `RateLimitError`, in ms."""
        return self._pause_ms if signal.delay is None else to_ms("delay", signal.delay)

    def _keep(self, run: Run, retention: Retention | None) -> working.Keep:
        """Convert a retention option to the form of the wire."""
        if retention is None or retention is False:
            return 0
        if retention is True:
            return self.removal(run.job.id)
        if isinstance(retention, KeepJobs):
            return (retention.count or 0, retention.age or 0)
        return (retention, 0)

    def _is_retried(self, run: Run, error: BaseException) -> bool:
        return not run.attempt.discarded and is_retried(error, self._options.retry_on, self._options.no_retry_on)

    def _backoff(self, run: Run, error: BaseException) -> int:
        return retry_delay(run.options.backoff, run.job.attempts_made + 1, error, self._options.backoff_strategies)


def message_of(error: BaseException) -> str:
    """Return the message of an exception, or its type's name if it has none."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # a broken __str__ must not prevent the report
        return type(error).__name__


def _clean(text: str, limit: int) -> str:
    """Return text that is valid UTF-8 and at most ``limit`` characters long."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _stacktraces(earlier: object, error: BaseException) -> str:
    """Return a JSON array of the job's last tracebacks, newest last."""
    known: list[str] = []
    if isinstance(earlier, str):
        try:
            read: Any = json.loads(earlier)
        except SerializationError:
            read = None
        if isinstance(read, list):
            known = [text for text in read if isinstance(text, str)]  # pyright: ignore[reportUnknownVariableType]
    trace = getattr(error, "sandbox_traceback", None)
    if trace is None:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-_TRACE_FRAMES))
    text = _clean(trace[-_TRACE_CHARS:], _TRACE_CHARS)
    return json.dumps([*known[-(MAX_STACKTRACES - 1) :], text])


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
    token = run.job.id, run.attempt.entry, *run.attempt.token
    if isinstance(signal, RateLimitError):
        ms = pause_ms if signal.delay is None else to_ms("delay", signal.delay)
        return working.delayed(*token, ms, 0, None)
    if isinstance(signal, DelayedError):
        data = encode_data(signal.data, link.serializer, link.compression) if signal.replace else None
        if signal.until is not None:
            return working.delayed(*token, 0, to_ms("until", signal.until, minimum=1, maximum=MAX_EPOCH_MS), data)
        return working.delayed(*token, to_ms("delay", signal.delay or 0), 0, data)
    if isinstance(signal, WaitingChildrenError):
        data = encode_data(signal.data, link.serializer, link.compression) if signal.replace else None
        return working.waiting_children(*token, keep, data)
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
    raise GlideMQError(f"{type(signal).__name__} is not a signal that workers support") from signal


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


def status_after_lost_reply(finished: FinishedAttempt, status: int) -> int:
    """Return the most likely status of a lost reply, derived from the ``status`` of the repeated report.

    ALREADY: the first report was accepted. GONE: it was accepted if the job was to be removed at its end or by
    retention. STALE: it was accepted if the job was to be retried, and has been fetched again since.
    """
    if status not in (AttemptStatus.ALREADY, AttemptStatus.GONE, AttemptStatus.STALE):
        return status
    row = finished.row
    is_retried = isinstance(row, Failed) and finished.run.job.attempts_made + 1 < row.limit
    if status == AttemptStatus.GONE and not (isinstance(row, (Completed, Failed)) and row.keep):
        return status
    if status == AttemptStatus.STALE and not (is_retried or isinstance(row, _SIGNALLED)):
        return status
    if isinstance(row, working.Suspended):
        return AttemptStatus.SUSPENDED
    if isinstance(row, working.WaitingChildren):
        return AttemptStatus.WAITING_CHILDREN
    if isinstance(row, _SIGNALLED):
        fails = isinstance(row, working.GroupLimited) and row.how == "fail"
        return AttemptStatus.FAILED if fails else AttemptStatus.DELAYED
    if isinstance(row, Completed):
        return AttemptStatus.OK
    if not isinstance(row, Failed):
        return AttemptStatus.RELEASED
    return AttemptStatus.RETRYING if is_retried else AttemptStatus.FAILED


class OutcomeReporting:
    """Calls listeners with the outcome of each reported attempt.

    Args:
        name: Name of the queue.
        listeners: Get the worker events.
        failure_log: Logs failures.
    """

    __slots__ = ("_failure_log", "_listeners", "_name")

    def __init__(self, name: str, listeners: Listeners, failure_log: FailureLog) -> None:
        self._name = name
        self._listeners = listeners
        self._failure_log = failure_log

    def report(self, finished: FinishedAttempt, status: int) -> None:
        """Process the server's reply ``status`` to a reported row."""
        listeners, job = self._listeners, finished.run.job
        if finished.sent:
            status = status_after_lost_reply(finished, status)
        if TELEMETRY.on:
            for meter in TELEMETRY.meters:
                meter.job_reported(self._name, _OUTCOMES.get(status, "stale"))
        if status == AttemptStatus.OK:
            if listeners.wanted("completed"):
                listeners.emit("completed", job, finished.result)
        elif status == AttemptStatus.FAILED:
            self._failure_log.failed(finished)
            listeners.emit("failed", job, finished.error)
        elif status == AttemptStatus.RETRYING:
            self._failure_log.retrying(finished)
            listeners.emit("retrying", job, finished.error)
        elif status in (AttemptStatus.DELAYED, AttemptStatus.LIMITED):
            listeners.emit("delayed", job, finished.error)
        elif status == AttemptStatus.SUSPENDED:
            listeners.emit("suspended", job, finished.error)
        elif status == AttemptStatus.WAITING_CHILDREN:
            listeners.emit("waiting-children", job)
        elif status in (AttemptStatus.STALE, AttemptStatus.GONE, AttemptStatus.ALREADY):
            # ALREADY for a row sent for the first time: all data was flushed and another job has this id now.
            self._failure_log.discarded(finished, gone=status == AttemptStatus.GONE)
            listeners.emit("error", StaleAttemptError(job.id))
