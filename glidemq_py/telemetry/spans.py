"""Spans and measurements of adding jobs and of handlers. Used only if `TELEMETRY.on` is set."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from glidemq_py._core.calls.adding import NEW_JOB, AddedOther, Row
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.logs import text_of
from glidemq_py.errors import JobSignal
from glidemq_py.telemetry import names
from glidemq_py.telemetry.names import Start
from glidemq_py.telemetry.state import TELEMETRY

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer

__all__ = [
    "CONTEXT_START",
    "carrier_of",
    "context_of",
    "observed",
    "observed_add",
    "observed_batch_handler",
    "observed_handler",
    "observed_step",
    "with_context",
    "without_context",
]

T = TypeVar("T")

_NAME, _OPTS = NEW_JOB.index("name"), NEW_JOB.index("opts")


async def observed_add(
    add: Callable[[Row], Awaitable[tuple[int, Any]]], queue: str, transport: object, row: Row, options: JobOptions
) -> tuple[int, Any]:
    """Add one row within a span; return the reply of ``add``: ``now`` and the result."""

    def describe(span: Span, answer: tuple[int, Any]) -> None:
        _, result = answer
        job_id = result if isinstance(result, str) else AddedOther(*result).id
        span.set_attributes({names.MESSAGE_ID: job_id, names.JOB_ID: job_id})

    details = {
        names.JOB_NAME: row[_NAME], names.JOB_DELAY: options.delay or 0, names.JOB_PRIORITY: options.priority or 0,
    }  # fmt: skip
    return await observed("add", queue, transport, (row,), lambda: add(row), details, describe)


async def observed(
    operation: str,
    queue: str,
    transport: object,
    rows: Sequence[Row],
    send: Callable[[], Awaitable[T]],
    details: dict[str, Any] | None = None,
    describe: Callable[[Span, T], None] | None = None,
) -> T:
    """Call ``send`` within a span ``{operation} {queue}`` and return its result. The rows get the span's context.

    Args:
        operation: operation name, such as "add_bulk".
        queue: name of the queue.
        transport: connection to the server, which the attributes name.
        rows: rows of the jobs; the context is written into their opts.
        send: sends the rows.
        details: additional attributes of the span.
        describe: sets attributes of the span from the result of ``send``.
    """
    tracer = TELEMETRY.tracer
    started = time.perf_counter()
    span = error = None
    server = names.server_of(transport)
    if tracer is not None:
        from opentelemetry.trace import SpanKind

        attributes = names.attributes(operation, "send", queue, server)
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
            meter.sent(queue, operation, [str(row[_NAME]) for row in rows], seconds, error, server)


def carry_context(rows: Sequence[Row]) -> None:
    """Write the current trace context into the opts of jobs that the server adds later."""
    if TELEMETRY.tracer is None:
        return
    from opentelemetry.trace import get_current_span

    carrier = carrier_of(get_current_span())
    if carrier:
        for row in rows:
            row[_OPTS] = with_context(str(row[_OPTS]), carrier)


def fail(span: Span, error: BaseException) -> None:
    """Record an exception on a span and set its status to error."""
    from opentelemetry.trace import Status, StatusCode

    kind = type(error)
    span.set_attribute(names.ERROR_TYPE, kind.__qualname__)
    span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {text_of(error)}"))
    with contextlib.suppress(BaseException):  # formatting an error of the application may raise another one
        span.record_exception(error)


_OPERATION = "process"


class RunJob(Protocol):
    """The required attributes of an active job."""

    id: str
    name: str
    timestamp: int
    processed_on: int | None
    attempts_made: int
    stalled_count: int

    @property
    def queue_name(self) -> str:
        """See `Job`."""
        ...

    @property
    def opts(self) -> Mapping[str, Any]:
        """See `Job`."""
        ...


def observed_handler(handler: Callable[[Any], Any], in_thread: bool) -> Callable[[Any], Any]:
    """Return the handler wrapped in a span; with ``in_thread`` both are plain functions, else coroutine functions."""
    if in_thread:

        def run_here(job: RunJob) -> Any:
            with observing((job,), False):
                return handler(job)

        return run_here

    async def run(job: RunJob) -> Any:
        with observing((job,), False):
            return await handler(job)

    return run


def observed_batch_handler(handler: Callable[[Any], Any], in_thread: bool) -> Callable[[Any], Any]:
    """Return the batch handler wrapped in one span with links to the spans of all jobs."""
    if in_thread:

        def run_here(jobs: Sequence[RunJob]) -> Any:
            with observing(jobs, True):
                return handler(jobs)

        return run_here

    async def run(jobs: Sequence[RunJob]) -> Any:
        with observing(jobs, True):
            return await handler(jobs)

    return run


@contextlib.contextmanager
def observing(jobs: Sequence[RunJob], batch: bool) -> Generator[None]:
    """Run a block that processes a job, or a batch of jobs, within a span."""
    queue = jobs[0].queue_name
    server = names.server_of(getattr(getattr(jobs[0], "_link", None), "transport", None))
    starts = [_start(job) for job in jobs] if TELEMETRY.meters else []
    for meter in TELEMETRY.meters:
        meter.began(queue, starts, server)
    started = time.perf_counter()
    error = None
    try:
        with _span(TELEMETRY.tracer, queue, jobs, batch, server):
            yield
    except JobSignal:
        raise
    except BaseException as raised:
        error = type(raised).__qualname__
        raise
    finally:
        seconds = time.perf_counter() - started
        for meter in TELEMETRY.meters:
            meter.ran(queue, starts, seconds, error, server)


def _start(job: RunJob) -> Start:
    """Return when an attempt has started; later attempts have waited for other reasons than the first."""
    if job.attempts_made or job.stalled_count or job.processed_on is None:
        return Start(job.name, None, None)
    delay: Any = job.opts.get("delay")
    if not isinstance(delay, (int, float)):
        delay = 0
    wait = max(0, job.processed_on - job.timestamp - delay) / 1000
    return Start(job.name, wait, wait if delay > 0 else None)


@contextlib.contextmanager
def _span(
    tracer: Tracer | None, queue: str, jobs: Sequence[RunJob], batch: bool, server: Mapping[str, Any]
) -> Generator[None]:
    if tracer is None:
        yield
        return
    from opentelemetry.trace import Link, SpanKind, get_current_span

    attributes = names.attributes(_OPERATION, "process", queue, server)
    attributes[names.QUEUE] = queue
    parent: Context | None = None
    links: list[Link] = []
    if batch:
        attributes[names.BATCH_COUNT] = len(jobs)
    else:
        (job,) = jobs
        parent = context_of(job.opts)
        attributes |= {
            names.MESSAGE_ID: job.id, names.JOB_ID: job.id, names.JOB_NAME: job.name,
            "glide-mq.job.attempts_made": job.attempts_made,
        }  # fmt: skip
    for job in jobs:
        created = context_of(job.opts)
        if created is not None:
            described = {names.MESSAGE_ID: job.id} if batch else None
            links.append(Link(get_current_span(created).get_span_context(), described))
    with tracer.start_as_current_span(
        names.span_name(_OPERATION, queue), context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links,
        record_exception=False, set_status_on_exception=False,
    ) as span:  # fmt: skip
        try:
            yield
        except JobSignal as signal:
            span.set_attribute("glide-mq.job.signal", type(signal).__name__)  # a signal is not a failure
            raise
        except BaseException as error:
            fail(span, error)
            raise


@contextlib.contextmanager
def observed_step(name: str, ordinal: int) -> Generator[None]:
    """Run a block that runs a step of a job within a span."""
    tracer = TELEMETRY.tracer
    if tracer is None:
        yield
        return
    attributes: dict[str, Any] = {"glide-mq.step.name": name, "glide-mq.step.ordinal": ordinal}
    with tracer.start_as_current_span(
        f"step {name}", attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except BaseException as error:
            fail(span, error)
            raise


# -- the trace context, in the key ``otel`` of the opts JSON -----------------------------------------------------

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
    """Return the opts JSON with the context added, in place of another one."""
    opts = without_context(opts) if opts.startswith(CONTEXT_START) else opts
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
