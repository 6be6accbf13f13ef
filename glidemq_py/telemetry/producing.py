"""Spans and measurements of adding jobs, and the trace context that a job carries to its handler.

Spans and measurements are made only if `TELEMETRY.on` is set. The context is in the key ``otel`` of the opts JSON;
peers that do not support it ignore it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from glidemq_py._core.calls.adding import Row
from glidemq_py._core.job_options import JobOptions
from glidemq_py.telemetry import names
from glidemq_py.telemetry.state import TELEMETRY

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

__all__ = ["CONTEXT_START", "carrier_of", "context_of", "observed", "observed_add", "with_context", "without_context"]

CONTEXT_START: Final = '{"otel":{'
"""Start of opts JSON with a context written by `with_context`."""


def carrier_of(span: Span) -> str:
    """Return the context of a span as JSON text, or '' if the propagators write nothing.

    It contains ``traceparent``, ``tracestate`` and other fields of the propagators.
    """
    from opentelemetry import propagate, trace

    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    if not carrier:
        return ""
    # Without a closing brace inside, so that `without_context` can remove it without parsing.
    return "{" + json.dumps(carrier, separators=(",", ":"))[1:-1].replace("}", "\\u007d") + "}"


def with_context(opts: str, carrier: str) -> str:
    """Return the opts JSON with the context added."""
    return f'{{"otel":{carrier}}}' if opts == "{}" else f'{{"otel":{carrier},{opts[1:]}'


def without_context(opts: str) -> str:
    """Return the opts JSON without the context: similar jobs then have identical texts, which are cached."""
    end = opts.find("}", len(CONTEXT_START))
    rest = opts[end + 1 :]
    return "{" + rest[1:] if rest.startswith(",") else "{}"


def context_of(opts: Mapping[str, Any]) -> Context | None:
    """Return the context in stored options, or None."""
    carrier: Any = opts.get("otel")
    if not isinstance(carrier, dict) or not carrier:
        return None
    from opentelemetry import propagate

    pairs = cast("dict[object, object]", carrier)
    return propagate.extract({str(key): str(value) for key, value in pairs.items()})


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
