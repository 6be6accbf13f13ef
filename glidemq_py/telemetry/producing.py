"""Spans and measurements of adding jobs. Used only if `TELEMETRY.on` is set."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from glidemq_py._core.calls.adding import Row
from glidemq_py._core.job_options import JobOptions
from glidemq_py.telemetry import names
from glidemq_py.telemetry.context import carrier_of, with_context
from glidemq_py.telemetry.state import TELEMETRY

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["observed", "observed_add"]

T = TypeVar("T")

_NAME, _OPTS = 0, 2


async def observed_add(
    add: Callable[[Row], Awaitable[tuple[int, Any]]], queue: str, row: Row, options: JobOptions
) -> tuple[int, Any]:
    """Add one row within a span; return the reply of ``add``: ``now`` and the result."""

    def describe(span: Span, answer: tuple[int, Any]) -> None:
        result = answer[1]
        job_id = result if isinstance(result, str) else result[1]
        span.set_attributes({names.MESSAGE_ID: job_id, names.JOB_ID: job_id})

    details = {
        names.JOB_NAME: row[_NAME], names.JOB_DELAY: options.delay or 0, names.JOB_PRIORITY: options.priority or 0,
    }  # fmt: skip
    return await observed("add", queue, (row,), lambda: add(row), details, describe)


async def observed(
    operation: str,
    queue: str,
    rows: Sequence[Row],
    send: Callable[[], Awaitable[T]],
    details: dict[str, Any] | None = None,
    describe: Callable[[Span, T], None] | None = None,
) -> T:
    """Call ``send`` within a span ``{operation} {queue}`` and return its result. The rows get the span's context.

    Args:
        operation: operation name, such as "add_bulk".
        queue: name of the queue.
        rows: rows of the jobs; the context is written into their opts.
        send: sends the rows.
        details: additional attributes of the span.
        describe: sets attributes of the span from the result of ``send``.
    """
    tracer = TELEMETRY.tracer
    started = time.perf_counter()
    span = error = None
    if tracer is not None:
        from opentelemetry.trace import SpanKind

        attributes = names.attributes(operation, "send", queue)
        attributes[names.QUEUE] = queue
        if len(rows) != 1:
            attributes[names.BATCH_COUNT] = len(rows)
        attributes.update(details or {})
        span = tracer.start_span(names.span_name(operation, queue), kind=SpanKind.PRODUCER, attributes=attributes)
        carrier = carrier_of(span)
        if carrier:
            for row in rows:
                row[_OPTS] = with_context(str(row[_OPTS]), carrier)
    try:
        answer = await send()
        if span is not None and describe is not None:
            describe(span, answer)
        return answer
    except BaseException as raised:
        error = type(raised).__qualname__
        if span is not None:
            fail(span, raised)
        raise
    finally:
        if span is not None:
            span.end()
        seconds = time.perf_counter() - started
        for meter in TELEMETRY.meters:
            meter.sent(queue, operation, len(rows), seconds, error)


def fail(span: Span, error: BaseException) -> None:
    """Record an exception on a span and set its status to error."""
    from opentelemetry.trace import Status, StatusCode

    span.record_exception(error)
    span.set_attribute(names.ERROR_TYPE, type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
