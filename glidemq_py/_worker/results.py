"""Results of attempts: the rows that report them, and the meaning of the server's replies.

`Outcomes` builds the row of an attempt that completed, failed or was released. A `FinishedAttempt` is a row to report.
Its fencing token makes a second report harmless, but the reply to it has less information than the first: see
`status_after_lost_reply`.
`OutcomeReporting` reports the replies to listeners, logs and meters.

`MetricsSender` sends a worker's figures per job name with the calls that it makes anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._core.calls import working
from glidemq_py._core.calls.working import AttemptStatus, Completed, Finished
from glidemq_py._core.logs import ForeignFailures, get_logger, show_id
from glidemq_py._core.option_values import BACKOFF_TYPES, Backoff, KeepJobs, Retention, is_retried, kept, retry_delay
from glidemq_py._core.payload import encode_result
from glidemq_py._core.times import to_ms
from glidemq_py._features.metrics_by_name import Recorder
from glidemq_py._job.reports import failed_row, signal_row, stored_facts, token_of
from glidemq_py._job.run import FinishedAttempt, Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.failure_log import FailureLog
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.options import WorkerOptions
from glidemq_py.errors import JobRevokedError, JobSignal, RateLimitError, StaleAttemptError
from glidemq_py.telemetry.state import TELEMETRY

if TYPE_CHECKING:
    from glidemq_py._core.calls.working import NameMetricsReport

_log = get_logger(__name__)

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
_MAX_UNKNOWN: Final = 100
"""Maximum number of unknown types of backoff that a worker logs: they come from users."""


class Outcomes:
    """Builds the rows that an exchange reports.

    Args:
        link: The queue.
        options: Options of the worker: which errors are retried, and the backoff.
    """

    def __init__(self, link: QueueLink, options: WorkerOptions) -> None:
        self._link = link
        self._options = options
        self._failures = ForeignFailures(_log)
        self.removal: Callable[[str], working.Keep] = lambda _: 1
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
        return Completed(
            run.completion, run.job._stored_id, attempt.entry, attempt.fence, attempt.processed_on, text, keep
        )

    def failed(self, run: Run, error: BaseException) -> Finished:
        """Return the row of an attempt that failed with ``error``."""
        delay = self._retry_delay(run, error, run.options.attempts or 0)
        return failed_row(token_of(run), stored_facts(run), error, delay, self._keep(run, run.options.remove_on_fail))

    def released(self, run: Run) -> Finished:
        """Return the row of a job that is released without counting an attempt."""
        return working.released(*token_of(run))

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
        if retention is True:
            return self.removal(run.job._stored_id)
        return kept(retention) if isinstance(retention, bool | KeepJobs | None) else -retention

    def _retry_delay(self, run: Run, error: BaseException, attempts: int) -> int | None:
        """Return the delay before the next attempt, in ms; None if the error is not retried."""
        options, backoff = self._options, run.options.backoff
        strategies = options.backoff_strategies or {}
        try:
            if run.attempt.discarded or not is_retried(error, options.retry_on, options.no_retry_on):
                return None
            if not attempts or backoff is None:
                return 0
            if backoff.type not in BACKOFF_TYPES and backoff.type not in strategies:
                self._warn_of_unknown(backoff, run, strategies)
            return retry_delay(backoff, run.job.attempts_made + 1, error, strategies)
        except BaseException as raised:  # by a strategy, or by a class of the application
            kind, delay = ("", 0) if backoff is None else (backoff.type, backoff.compute(run.job.attempts_made + 1))
            what = f"backoff strategy {kind!r}" if kind in strategies else "option 'retry_on' or 'no_retry_on'"
            self._failures.log(
                what, raised, "queue %r: job %s: %s failed; using a delay of %d ms", self._link.queue_name,
                show_id(run.job.id), what, delay,
            )  # fmt: skip
            return delay

    def _warn_of_unknown(self, backoff: Backoff, run: Run, strategies: Iterable[str]) -> None:
        """Log a type of backoff that the worker does not know, once."""
        kind, logged = backoff.type, self._options.unknown_backoffs
        if kind in logged or len(logged) >= _MAX_UNKNOWN:
            return
        logged.add(kind)
        _log.warning(
            "queue %r: job %s has the unknown backoff type %r, so its fixed delay of %d ms is used. This worker knows "
            "%s. Add a strategy to backoff_strategies, or correct the type. This is logged once per type",
            self._link.queue_name, show_id(run.job.id), kind, backoff.delay,
            ", ".join(map(repr, (*BACKOFF_TYPES, *strategies))),
        )  # fmt: skip


def status_after_lost_reply(finished: FinishedAttempt, status: int) -> int:
    """Return the most likely status of a lost reply, derived from the ``status`` of the repeated report."""
    return working.status_after_lost_reply(finished.row, finished.run.job.attempts_made, status)


class OutcomeReporting:
    """Calls listeners with the outcome of each reported attempt.

    Args:
        name: Name of the queue.
        listeners: Get the worker events.
        failure_log: Logs failures.
        failed: Called after a job has failed permanently.
    """

    __slots__ = ("_failed", "_failure_log", "_listeners", "_name")

    def __init__(self, name: str, listeners: Listeners, failure_log: FailureLog, failed: Callable[[], None]) -> None:
        self._name = name
        self._listeners = listeners
        self._failure_log = failure_log
        self._failed = failed

    def report(self, finished: FinishedAttempt, status: int) -> None:
        """Process the server's reply ``status`` to a reported row."""
        listeners, job = self._listeners, finished.run.job
        if finished.sent:
            status = status_after_lost_reply(finished, status)
        if TELEMETRY.on:
            is_cancelled = status == AttemptStatus.FAILED and isinstance(finished.error, JobRevokedError)
            outcome = "cancelled" if is_cancelled else _OUTCOMES.get(status, "stale")
            for meter in TELEMETRY.meters:
                meter.job_reported(self._name, job.name, outcome)
        if status == AttemptStatus.OK:
            if listeners.wanted("completed"):
                listeners.emit("completed", job, finished.result)
        elif status == AttemptStatus.FAILED:
            self._failure_log.failed(finished)
            listeners.emit("failed", job, finished.error)
            self._failed()
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


INTERVAL_S: Final = 5.0
"""Time from the first job of a report to the report: long enough that its cost per job does not count."""


class MetricsSender:
    """Collects figures, and decides which call carries them.

    Args:
        loop: The event loop of the worker.
        request_call: Makes the next call soon, even if there is nothing to report or fetch.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, request_call: Callable[[], None]) -> None:
        self._loop = loop
        self._request_call = request_call
        self._recorder = Recorder()
        self._timer: asyncio.TimerHandle | None = None
        self.is_due = False
        """True if the next call is to carry figures."""
        self._in_flight = False
        self.is_on = False
        """True while the queue keeps figures, as the last reply said."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is left to send."""
        return self._recorder.is_empty

    def switch(self, is_on: bool) -> None:
        """Start or stop collecting."""
        self.is_on = is_on
        if not is_on:
            self._recorder.clear()

    def record(self, batch: Iterable[FinishedAttempt], statuses: Iterable[int], now: int) -> None:
        """Add attempts with the replies to their reports; ``now`` is the server's time, epoch ms."""
        add = self._recorder.add
        for finished, status in zip(batch, statuses, strict=True):
            if finished.sent:
                status = status_after_lost_reply(finished, status)
            if isinstance(finished.error, JobRevokedError):
                continue  # cancelled is not failed
            run = finished.run
            job, started = run.job, run.attempt.processed_on
            waited = None
            if not job.attempts_made and not job.stalled_count and job.timestamp:
                waited = started - job.timestamp - (run.options.delay or 0)
            add(job.name, status, waited, now - started, now)
        if self._timer is None and not self.is_due:
            self._set_timer()

    def flush(self) -> None:
        """Send with the next call, and make one if there is none."""
        self.close()
        self.is_due = True
        self._request_call()

    def take(self) -> NameMetricsReport | None:
        """Return the report for a call that is made now. `replied` or `failed` must be called with its end."""
        if self._in_flight:
            return None
        report = self._recorder.next_report()
        self._in_flight = report is not None
        self.is_due = self._in_flight
        return report

    def replied(self) -> None:
        """Note that a call with a report has succeeded."""
        self._in_flight = False
        self._recorder.stored()
        self.is_due = self._recorder.has_more
        if self.is_due:
            self._request_call()
        else:
            self._set_timer()

    def failed(self) -> None:
        """Note that a call with a report has failed: the report is sent again."""
        self._in_flight = False

    def _set_timer(self) -> None:
        if self._timer is None and not self._recorder.is_empty:
            self._timer = self._loop.call_later(INTERVAL_S, self.flush)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
