"""Builds the rows that report results: completed, retried or failed."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import Any

from glidemq_py._core import json_text as json
from glidemq_py._core.calls import working
from glidemq_py._core.logs import get_logger
from glidemq_py._core.payload import encode_result
from glidemq_py._core.record import MAX_STACKTRACES
from glidemq_py._core.times import to_ms
from glidemq_py._features.retention import KeepJobs, Retention
from glidemq_py._job.link import QueueLink
from glidemq_py._worker.job_signals import signal_row
from glidemq_py._worker.options import BackoffStrategy, WorkerOptions
from glidemq_py._worker.run import Run
from glidemq_py.errors import JobRevokedError, JobSignal, RateLimitError, SerializationError, UnrecoverableError

__all__ = ["Outcomes", "message_of"]

_log = get_logger(__name__)

_FINAL = (UnrecoverableError, JobRevokedError)
_REASON_CHARS = 4_096
_TRACE_CHARS = 8_192
_TRACE_FRAMES = 32


class Outcomes:
    """Builds the rows that an exchange reports.

    Args:
        link: The queue.
        options: Options of the worker: which errors are retried, and the backoff.
    """

    def __init__(self, link: QueueLink, options: WorkerOptions) -> None:
        self._link = link
        self._options = options
        self._pause_ms = 1_000 if options.limiter is None else options.limiter.duration

    def completed(self, run: Run, result: Any) -> list[object]:
        """Return the row of a handler that returned.

        Raises:
            SerializationError: If the result cannot be serialized.
            PayloadTooLargeError: If the result is too large.
        """
        text = "null" if result is None else encode_result(result, self._link.serializer)
        attempt = run.attempt
        row: list[object] = [1, run.job.id, attempt.entry, attempt.fence, attempt.processed_on, text]
        if run.options.remove_on_complete is not None:
            row.append(_keep(run.options.remove_on_complete))
        return row

    def failed(self, run: Run, error: BaseException) -> list[object]:
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
            _keep(run.options.remove_on_fail),
            # A search in the JSON text, as Node peers do it.
            limit > 0 and '"fallbacks"' in run.job._opts_text,
        )

    def released(self, run: Run) -> list[object]:
        """Return the row of a job that is released without counting an attempt."""
        attempt = run.attempt
        return working.released(run.job.id, attempt.entry, attempt.fence, attempt.processed_on)

    def signalled(self, run: Run, signal: JobSignal) -> list[object]:
        """Return the row of an attempt that ended with a signal.

        Raises:
            GlideMQError: If the signal is invalid; the attempt then fails with this error.
        """
        return signal_row(self._link, run, signal, self._pause_ms, _keep(run.options.remove_on_fail))

    def pause_of(self, signal: RateLimitError) -> int:
        """Return the pause of the worker for a `RateLimitError`, in ms."""
        return self._pause_ms if signal.delay is None else to_ms("delay", signal.delay)

    def _is_retried(self, run: Run, error: BaseException) -> bool:
        if run.attempt.discarded or isinstance(error, (*_FINAL, *self._options.no_retry_on)):
            return False
        return self._options.retry_on is None or isinstance(error, self._options.retry_on)

    def _backoff(self, run: Run, error: BaseException) -> int:
        backoff = run.options.backoff
        if backoff is None:
            return 0
        failures = run.job.attempts_made + 1
        strategy = self._options.backoff_strategies.get(backoff.type)
        if strategy is not None:
            return _custom_backoff(strategy, backoff.type, failures, error, backoff.compute(failures))
        return backoff.compute(failures)


def _custom_backoff(strategy: BackoffStrategy, name: str, failures: int, error: BaseException, default: int) -> int:
    """Return the delay (ms) of a user's strategy, or ``default`` if the strategy fails."""
    try:
        delay = strategy(failures, error)
        return to_ms(f"backoff strategy {name!r}", delay if isinstance(delay, timedelta) else int(delay))
    except Exception:
        _log.exception("backoff strategy %r failed; using a delay of %d ms", name, default)
        return default


def _keep(retention: Retention | None) -> working.Keep:
    """Convert a retention option to the form of the wire: 0 = keep, 1 = remove, or (count, age)."""
    if retention is None or retention is False:
        return 0
    if retention is True:
        return 1
    if isinstance(retention, KeepJobs):
        return (retention.count or 0, retention.age or 0)
    return (retention, 0)


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
