"""The log of failing jobs: one line per retry, a traceback per final failure, both limited per minute.

It is called by `results` for the server's replies to failed attempts, and by
the maintenance tasks that fail or recover jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import sysconfig
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from glidemq_py._core.calls.working import Failed, Finished
from glidemq_py._core.logs import get_logger, show_id
from glidemq_py._job.attempt import message_of, received_traceback
from glidemq_py._job.run import FinishedAttempt, Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.options import FailureLogOptions
from glidemq_py.errors import STALLED_OUT, JobRevokedError, JobSignal, UnrecoverableError, readable_reason

_log = get_logger("glidemq_py.failures")

_PACKAGE: Final = str(Path(__file__).parents[1]) + os.sep
_STANDARD_LIBRARY: Final = (sysconfig.get_path("stdlib") + os.sep, "<frozen ")
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_VALIDATORS: Final = tuple(f"{folder}{name}{os.sep}" for folder in _INSTALLED for name in ("pydantic", "msgspec"))
"""Libraries that check the arguments of typed tasks: their frames alone are not user code."""
_MAX_CAUSES: Final = 100
_WINDOW_S: Final = 60.0
_MAX_KINDS: Final = 200
"""Maximum number of kinds counted separately per minute. Job names come from users: there may be a million."""
_MESSAGE_CHARS: Final = 300
_ANY: Final = ""
"""Part of a kind that does not distinguish failures."""

ReadRecord = Callable[[str], Awaitable[tuple[str, str]]]
"""Returns the name of a job, by its stored id, and the stored reason of its failure; '' if there is none."""

_Kind = tuple[str, str, str]
"""Outcome, job name, error type."""

_LEVELS: Final = {
    "retrying": logging.WARNING, "failed": logging.ERROR, "revoked": logging.INFO, "stalled": logging.WARNING,
    "stalled-out": logging.ERROR, "signal-timeout": logging.ERROR, "expired": logging.WARNING,
    "set-aside": logging.WARNING, "discarded": logging.WARNING,
}  # fmt: skip
"""Log levels by outcome (the record attribute ``job_outcome``)."""
_SUMMARIES: Final = {
    "retrying": "failed attempts, retried", "failed": "failed", "revoked": "revoked", "stalled": "stalled",
    "stalled-out": "failed after they stalled too often", "signal-timeout": "failed without a signal in time",
    "expired": "expired", "set-aside": "set aside", "discarded": "discarded stale results",
}  # fmt: skip


class _Count:
    """Number of failures of one kind in the current minute."""

    __slots__ = ("last_id", "logged", "more")

    def __init__(self) -> None:
        self.logged = 0
        self.more = 0
        self.last_id = ""


class FailureLog:
    """Logs the failures of one worker's jobs.

    A job that succeeds costs nothing. A failure that is only counted costs a dictionary lookup.

    Args:
        link: The queue, or the part whose jobs are logged, under the ids that they have in the whole queue.
        worker_id: Consumer name of the worker.
        options: Options of the log; None disables it.
        source: Subject of the log lines, in place of the queue.
    """

    def __init__(
        self, link: QueueLink, *, worker_id: str, options: FailureLogOptions | None, source: str = ""
    ) -> None:  # fmt: skip
        self._link = link
        self._queue = link.queue_name
        self._source = source or f"queue {link.queue_name!r}"
        self._worker_id = worker_id
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._counts: dict[_Kind, _Count] = {}
        self._window_end = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # -- events ---------------------------------------------------------------------------------------------

    def retrying(self, finished: FinishedAttempt) -> None:
        """Log a failed attempt of a job that is retried."""
        options, error = self._options, finished.error
        if options is None or not options.retries or error is None:
            return
        job = finished.run.job
        if self._counted("retrying", job.id, job.name, type(error).__name__):
            self._write_attempt(
                "retrying", finished.run, error,
                "%s: job %s %r failed attempt %d of %d (%s); %s",
                _described(error), _next_attempt(finished.row),
            )  # fmt: skip

    def failed(self, finished: FinishedAttempt) -> None:
        """Log a failed job; a revoked one at level INFO, because that was requested."""
        options, error = self._options, finished.error
        if options is None or error is None:
            return
        job = finished.run.job
        if isinstance(error, JobRevokedError):
            if self._counted("revoked", job.id, job.name, type(error).__name__):
                self._write_attempt("revoked", finished.run, error, "%s: job %s %r revoked in attempt %d of %d")
        elif self._counted("failed", job.id, job.name, type(error).__name__):
            self._write_attempt(
                "failed", finished.run, error,
                "%s: job %s %r failed in attempt %d of %d (%s)%s",
                _described(error), _why_not_retried(finished.run, error),
                trace=options.tracebacks and not isinstance(error, JobSignal),
            )  # fmt: skip

    def discarded(self, finished: FinishedAttempt, gone: bool) -> None:
        """Log a result that the server rejected: the attempt is no longer the current one."""
        job = finished.run.job
        if self._counted("discarded", job.id, job.name, _ANY):
            why = "the job was removed" if gone else "the job is now locked by another worker"
            self._write("discarded", "%s: job %s %r: discarded stale result: %s", show_id(job.id), job.name, why,
                        job_id=job.id, job_name=job.name)  # fmt: skip

    async def stalled(self, job_id: str, read: ReadRecord) -> None:
        """Log a stalled job, or expired lease, that runs again: at once, or after its backoff.

        Args:
            job_id: Id of the job.
            read: Returns the name and the reason of the failure that its record has; called if the job is logged.
        """
        await self._write_stalled("stalled", "stalled (its lock was not renewed); it will run again", job_id, read)

    async def stalled_out(self, job_id: str, read: ReadRecord) -> None:
        """Log a job that stalled, or whose lease expired, and that may not run again; arguments as `stalled`."""
        await self._write_stalled("stalled-out", "failed", job_id, read)

    def signal_timed_out(self, job_id: str) -> None:
        """Log a suspended job that failed because no signal arrived within its timeout."""
        self._write_id("signal-timeout", "%s: job %s failed (suspended without a signal within its timeout)", job_id)

    def dropped(self, dropped: list[list[str]]) -> None:
        """Log jobs that the server removed from the queue instead of delivering them.

        Args:
            dropped: (stream entry, job id, reason) of each.
        """
        for entry, stored_id, reason in dropped:
            if reason == "expired":
                self._write_id("expired", "%s: job %s expired before it ran (its ttl passed)", stored_id)
                continue
            if reason == "revoked":
                self._write_id("revoked", "%s: job %s revoked before it ran", stored_id)
                continue
            job_id = self._id_of(stored_id)
            if self._counted("set-aside", job_id, _ANY, _ANY):
                shown = show_id(job_id) if job_id else "(no id)"
                if entry:
                    shown = f"{shown} (stream entry {entry})"
                self._write("set-aside", "%s: job %s set aside: %s", shown, reason, job_id=job_id)

    def close(self) -> None:
        """Log the pending summaries. Failures after this are not summarized."""
        self.flush()
        self._closed = True

    # -- the limit per minute -------------------------------------------------------------------------------

    def _counted(self, outcome: str, job_id: str, job_name: str, error_type: str) -> bool:
        """Count a failure; return True if it is to be logged in full."""
        options = self._options
        if options is None:
            return False
        now = self._loop.time()
        if now >= self._window_end:
            self.flush()
            self._window_end = now + _WINDOW_S
        kind = outcome, job_name, error_type
        count = self._counts.get(kind)
        if count is None:
            if len(self._counts) >= _MAX_KINDS:
                kind = outcome, _ANY, _ANY
            count = self._counts.setdefault(kind, _Count())
        if count.logged < options.per_minute:
            count.logged += 1
            return True
        count.more += 1
        count.last_id = job_id
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_at(self._window_end, self.flush)
        return False

    def flush(self) -> None:
        """End the current minute: log one line per kind of failure that was not logged in full."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._window_end = 0.0
        counts, self._counts = self._counts, {}
        for (outcome, name, error_type), count in counts.items():
            if count.more:
                jobs = f"jobs {name!r}" if name else "jobs"
                error = f" with {error_type}" if error_type else ""
                self._write(
                    outcome, "%s: %s more %s %s%s in the last minute (last: job %s)", f"{count.more:,}", jobs,
                    _SUMMARIES[outcome], error, show_id(count.last_id),
                    job_name=name, error_type=error_type, failure_count=count.more,
                )  # fmt: skip

    # -- records --------------------------------------------------------------------------------------------

    def _id_of(self, stored_id: str) -> str:
        return stored_id and self._link.shown_id(stored_id)

    def _write_id(self, outcome: str, template: str, stored_id: str) -> None:
        job_id = self._id_of(stored_id)
        if self._counted(outcome, job_id, _ANY, _ANY):
            self._write(outcome, template, show_id(job_id), job_id=job_id)

    async def _write_stalled(self, outcome: str, what: str, stored_id: str, read: ReadRecord) -> None:
        job_id = self._id_of(stored_id)
        if not self._counted(outcome, job_id, _ANY, _ANY):
            return
        name, reason = await read(stored_id)
        if outcome == "stalled-out":
            # A broadcast stores the reason per subscription; it has no leases.
            known = reason or (STALLED_OUT if name else f"{STALLED_OUT}, or its lease expired in its last attempt")
            what = f"{what} ({_shortened(readable_reason(known))})"
        shown = f"{show_id(job_id)} {name!r}" if name else show_id(job_id)
        self._write(outcome, "%s: job %s %s", shown, what, job_id=job_id, job_name=name)

    def _write_attempt(
        self, outcome: str, run: Run, error: BaseException, template: str, *args: object, trace: bool = False
    ) -> None:
        job = run.job
        attempt = job.attempts_made + 1
        attempts = max(run.options.attempts or 1, attempt)
        self._write(
            outcome, template, show_id(job.id), job.name, attempt, attempts, *args,
            error=error if trace else None, job_id=job.id, job_name=job.name, job_attempt=attempt,
            job_attempts=attempts, error_type=type(error).__name__,
        )  # fmt: skip

    def _write(
        self, outcome: str, template: str, *args: object, error: BaseException | None = None, **attributes: Any
    ) -> None:
        level = _LEVELS[outcome]
        if not _log.isEnabledFor(level):
            return
        exc_info = None if error is None else _exc_info(error)
        code = sys._getframe(1).f_code
        # An application's filter, factory or handler may raise, which must not affect the results of other jobs.
        with contextlib.suppress(BaseException):
            # Not by `extra`: the record factory has already set job_id and job_name, which `extra` must not replace.
            record = _log.makeRecord(
                _log.name, level, code.co_filename, code.co_firstlineno, template, (self._source, *args), exc_info,
                code.co_name,
            )  # fmt: skip
            record.__dict__.update(
                job_id="", job_name="", queue_name=self._queue, worker_id=self._worker_id, job_outcome=outcome
            )
            record.__dict__.update(attributes)
            _log.handle(record)


def _exc_info(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    """Return the traceback to log, from the handler on; None if neither the error nor a cause is from user code."""
    trace = _from_the_handler_on(error.__traceback__)
    if not _is_users(trace) and not _has_users_cause(error):
        return None
    return type(error), error, trace


def _from_the_handler_on(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of this package that called the handler."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace


def _is_users(trace: TracebackType | None) -> bool:
    """Return True if the traceback has a frame of user code."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if any(folder in file for folder in _INSTALLED):
            others = file.startswith(_PACKAGE) or any(library in file for library in _VALIDATORS)
        else:
            others = file.startswith((_PACKAGE, *_STANDARD_LIBRARY))
        if not others:
            return True
        trace = trace.tb_next
    return False


def _has_users_cause(error: BaseException) -> bool:
    """Return True if the error was raised in a sandboxed handler, or has a cause that was raised in user code."""
    if received_traceback(error) is not None:
        return True
    cause = error.__cause__
    for _ in range(_MAX_CAUSES):  # causes may form a cycle
        if cause is None:
            return False
        if _is_users(cause.__traceback__):
            return True
        cause = cause.__cause__
    return False


def _described(error: BaseException) -> str:
    message, name = _shortened(message_of(error)), type(error).__name__
    return name if message == name else f"{name}: {message}"


def _shortened(message: str) -> str:
    return message if len(message) <= _MESSAGE_CHARS else message[: _MESSAGE_CHARS - 1] + "…"


def _next_attempt(row: Finished) -> str:
    wait = row.backoff if isinstance(row, Failed) else 0
    return f"next attempt in {_duration(wait)}" if wait else "next attempt now"


def _duration(milliseconds: int) -> str:
    if milliseconds < 1_000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1_000
    if seconds < 120:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + " s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _why_not_retried(run: Run, error: BaseException) -> str:
    """Return the reason why remaining attempts are not used; '' if none remain."""
    if run.job.attempts_made + 1 >= (run.options.attempts or 1):
        return ""
    if isinstance(error, UnrecoverableError):
        return "; not retried: the error is an UnrecoverableError"
    if isinstance(error, JobSignal):
        return ""
    if run.attempt.discarded:
        return "; not retried: the handler discarded its remaining attempts"
    return "; not retried: excluded by retry_on or no_retry_on"
