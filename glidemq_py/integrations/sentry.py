"""Sentry: errors with the context of their job, and the spans of Sentry's queue monitoring."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, Literal

try:
    import sentry_sdk
    from sentry_sdk.scope import add_global_event_processor
except ImportError as error:
    raise ImportError("glidemq_py.integrations.sentry requires sentry-sdk: pip install sentry-sdk") from error

from glidemq_py._core.checks import check_bool, check_choice
from glidemq_py._core.option_values import is_retried
from glidemq_py._job.contents import JobContents
from glidemq_py._job.job import Job
from glidemq_py._job.middleware import Middleware, NewJob
from glidemq_py.errors import JobSignal

__all__ = ["SentryMiddleware"]

_TRACE: Final = "sentry-trace"
_BAGGAGE: Final = "baggage"
_SYSTEM: Final = "glidemq"
_ORIGIN: Final = "auto.queue.glidemq"
_FAILURE_LOG: Final = "glidemq_py.failures"
_REPORTED: Final = "_glidemq_reported_to_sentry"


class SentryMiddleware(Middleware):
    """Report errors of jobs to Sentry, and trace jobs from the code that adds them to their handler.

    Give it to the queue and to the worker::

        sentry_sdk.init(dsn, traces_sample_rate=1.0)
        queue = Queue("emails", middleware=[SentryMiddleware()])
        worker = Worker("emails", send, middleware=[SentryMiddleware()])

    An add is a span ``queue.publish``, an attempt a transaction with a span ``queue.process``; the names of their data
    are those of Sentry's queue monitoring (docs.sentry.io, "Custom Instrumentation for Queues Module"). An event of an
    attempt has the tags ``glidemq.queue``, ``glidemq.job_name`` and ``glidemq.job_id``, and the context ``glidemq``.
    Jobs that are suspended, delayed or requeued by their handler have not failed, and are not reported.

    Sentry's logging integration makes an event of each failed job that a worker logs. It is dropped if a
    `SentryMiddleware` has reported the error.

    Args:
        report: "every" reports the error of each failed attempt, "last" only an error after which the job is not
            retried: that of the last attempt, or an `UnrecoverableError`. The worker's `no_retry_on` is not considered.
        with_data: Send the data of the job with its errors. Off by default, since it may be personal.

    Raises:
        GlideMQValidationError: An option is invalid.
    """

    def __init__(self, *, report: Literal["every", "last"] = "every", with_data: bool = False) -> None:
        check_choice("report", report, ("every", "last"))
        self._only_last = report == "last"
        self._with_data = check_bool("with_data", with_data)
        _skip_reported_errors()

    @contextmanager
    def add(self, job: NewJob) -> Generator[None]:
        """Add within a span, whose trace the job carries in its headers."""
        if sentry_sdk.get_current_span() is None:
            _carry(job, sentry_sdk.get_traceparent(), sentry_sdk.get_baggage())
            yield
            return
        with sentry_sdk.start_span(op="queue.publish", name=job.name, origin=_ORIGIN) as span:
            span.set_data("messaging.system", _SYSTEM)
            span.set_data("messaging.destination.name", job.queue)
            if job.options.job_id is not None:
                span.set_data("messaging.message.id", job.options.job_id)
            _carry(job, span.to_traceparent(), sentry_sdk.get_baggage())
            yield

    @contextmanager
    def run(self, job: Job) -> Generator[None]:
        """Run within a transaction, and report an error of the handler."""
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            scope.set_tag("glidemq.queue", job.queue_name)
            scope.set_tag("glidemq.job_name", job.name)
            scope.set_tag("glidemq.job_id", job.id)
            scope.set_context("glidemq", self._context(job))
            headers = {name: job.headers[name] for name in (_TRACE, _BAGGAGE) if name in job.headers}
            transaction = sentry_sdk.continue_trace(
                headers, op="queue.task.glidemq", name=job.name, source="task", origin=_ORIGIN
            )
            with sentry_sdk.start_transaction(transaction), _processing(job) as span:
                try:
                    yield
                except JobSignal:
                    span.set_status("ok")
                    raise
                except BaseException as error:
                    span.set_status("internal_error")
                    transaction.set_status("internal_error")
                    # The error is raised as it is, whatever its class does with attributes.
                    with contextlib.suppress(BaseException):
                        if isinstance(error, Exception) and self._reports(job, error):
                            sentry_sdk.capture_exception(error)
                            setattr(error, _REPORTED, True)
                    raise
                span.set_status("ok")
                transaction.set_status("ok")

    def _reports(self, job: Job, error: Exception) -> bool:
        if not self._only_last or not is_retried(error, None, ()):
            return True
        return job.attempts_made + 1 >= int(job.opts.get("attempts") or 1)

    def _context(self, job: JobContents) -> dict[str, Any]:
        found: dict[str, Any] = {
            "queue": job.queue_name, "job_id": job.id, "job_name": job.name, "failed_attempts": job.attempts_made,
            "added_at": job.timestamp,
        }  # fmt: skip
        if isinstance(job, Job):  # not a message of a broadcast
            found |= {"ordering_key": job.ordering_key, "tags": list(job.tags)}
        if self._with_data:
            found["data"] = job.data
        return {name: value for name, value in found.items() if value not in (None, [])}


@functools.cache
def _skip_reported_errors() -> None:
    """Drop the event that Sentry's logging integration makes of a failed job whose error was reported."""

    def processor(event: Any, hint: dict[str, Any]) -> Any:
        logged = event.get("logger") == _FAILURE_LOG
        error = (hint.get("exc_info") or (None, None))[1]
        return None if logged and error is not None and _REPORTED in vars(error) else event

    add_global_event_processor(processor)


@contextmanager
def _processing(job: Job) -> Generator[Any]:
    with sentry_sdk.start_span(op="queue.process", name=job.name, origin=_ORIGIN) as span:
        span.set_data("messaging.system", _SYSTEM)
        span.set_data("messaging.destination.name", job.queue_name)
        span.set_data("messaging.message.id", job.id)
        span.set_data("messaging.message.retry.count", job.attempts_made)
        span.set_data("messaging.message.receive.latency", max(0, round(time.time() * 1_000) - job.timestamp))
        yield span


def _carry(job: NewJob, trace: str | None, baggage: str | None) -> None:
    if trace:
        job.headers.setdefault(_TRACE, trace)
        if baggage:
            job.headers.setdefault(_BAGGAGE, baggage)
