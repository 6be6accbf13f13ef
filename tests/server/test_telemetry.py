"""Spans and metrics by the messaging conventions, into OpenTelemetry's in-memory exporters."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from glidemq_py import (
    DagNode,
    FlowJob,
    FlowProducer,
    GlideMQValidationError,
    Job,
    JobFailedError,
    Queue,
    Worker,
)
from glidemq_py import sync as blocking
from glidemq_py.telemetry import is_tracing_enabled, names, set_tracer
from glidemq_py.telemetry.otel_meter import OtelMeter
from glidemq_py.telemetry.spans import context_of, with_context, without_context
from glidemq_py.telemetry.state import TELEMETRY
from glidemq_py.testing import RespClient, TestQueue
from tests.server.worker_support import EventRecorder, WorkerFor


class Spans:
    """The exported data."""

    def __init__(self, exporter: InMemorySpanExporter):
        self._exporter = exporter

    def of(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.of(name)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    set_tracer(provider.get_tracer("glide-mq"))
    yield Spans(exporter)
    set_tracer(None)
    assert not TELEMETRY.on


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    monkeypatch.setattr("opentelemetry.metrics.get_meter", provider.get_meter)
    meter = OtelMeter()
    TELEMETRY.add_meter(meter)
    yield reader
    TELEMETRY.remove_meter(meter)
    provider.shutdown()


def measured(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """Points by the metric's name: attributes and value (of a histogram: how many)."""
    data: Any = reader.get_metrics_data()
    return {
        metric.name: [(dict(p.attributes), getattr(p, "value", getattr(p, "count", None)))
                      for p in metric.data.data_points]
        for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    }  # fmt: skip


def server_of(url: str) -> dict[str, Any]:
    """Attributes of the server that a URL names; of a cluster, its first node."""
    address = url.partition("://")[2].partition(",")[0].partition("/")[0].partition("?")[0].rpartition("@")[2]
    host, _, port = address.rpartition(":")
    return {"server.address": host, "server.port": int(port)}


async def test_add_and_process_are_one_trace(core_url: str, queue_name: str, spans: Spans):
    seen: list[int] = []

    async def handler(job: Job) -> str:
        seen.append(get_current_span().get_span_context().span_id)
        return "done"

    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handler, core_url):
        job = await queue.add("greet", priority=3)
        assert await job.wait_until_finished() == "done"
    sent, run = spans.one(f"add {queue_name}"), spans.one(f"process {queue_name}")
    assert (sent.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent.attributes == {
        **server_of(core_url),
        "messaging.system": "glidemq", "messaging.operation.name": "add", "messaging.operation.type": "send",
        "messaging.destination.name": queue_name, "messaging.message.id": job.id, "glide-mq.queue": queue_name,
        "glide-mq.job.name": "greet", "glide-mq.job.delay": 0, "glide-mq.job.priority": 3, "glide-mq.job.id": job.id,
    }  # fmt: skip
    assert run.attributes == {
        **server_of(core_url),
        "messaging.system": "glidemq", "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.destination.name": queue_name, "messaging.message.id": job.id,
        "messaging.consumer.group.name": "workers", "glide-mq.queue": queue_name, "glide-mq.job.name": "greet",
        "glide-mq.job.id": job.id, "glide-mq.job.attempts_made": 0,
    }  # fmt: skip
    assert run.parent is not None
    assert (run.parent.span_id, run.context.trace_id) == (sent.context.span_id, sent.context.trace_id)
    assert [link.context.span_id for link in run.links] == [sent.context.span_id]
    assert seen == [run.context.span_id]  # calls of the handler are part of the trace


async def test_the_context_stands_in_the_opts_where_peers_pass_it_by(
    queue: Queue, queue_name: str, resp: RespClient, spans: Spans
):
    jobs = [await queue.add("plain"), await queue.add("more", attempts=3)]
    sent = spans.of(f"add {queue_name}")
    for job, span in zip(jobs, sent, strict=True):
        read = await queue.get_job(job.id)
        assert read is not None
        traceparent = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-"
        assert read.opts["otel"]["traceparent"].startswith(traceparent)
    assert read is not None
    assert read.opts["attempts"] == 3


async def test_plain_handlers_failures_and_signals(worker_for: WorkerFor, queue: Queue, queue_name: str, spans: Spans):
    def handler(job: Job):
        assert get_current_span().get_span_context().is_valid
        if job.name == "later" and job.data is None:
            job.move_to_delayed(1, data={"again": True})
        if job.name == "fail":
            raise ValueError("no")

    async with worker_for(handler):
        await (await queue.add("later")).wait_until_finished()
        with pytest.raises(JobFailedError):
            await (await queue.add("fail")).wait_until_finished()
    first, second, failed = spans.of(f"process {queue_name}")
    assert (first.status.status_code, first.attributes["glide-mq.job.signal"]) == (StatusCode.UNSET, "DelayedError")  # type: ignore[index]
    assert second.status.status_code is StatusCode.UNSET
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "ValueError: no")
    assert failed.attributes["error.type"] == "ValueError"  # type: ignore[index]
    assert [event.name for event in failed.events] == ["exception"]


async def test_bulk_adds_are_one_span(worker_for: WorkerFor, queue: Queue, queue_name: str, spans: Spans):
    async def handler(job: Job): ...

    jobs = await queue.add_bulk([("task", None, {"attempts": 2}), ("task",)])
    with pytest.raises(GlideMQValidationError):
        await queue.add_bulk([("",)])
    async with worker_for(handler):
        for job in jobs:
            await job.wait_until_finished()
    sent = spans.one(f"add_bulk {queue_name}")
    assert sent.attributes is not None
    assert sent.attributes["messaging.batch.message_count"] == 2
    parents = {span.parent.span_id for span in spans.of(f"process {queue_name}") if span.parent is not None}
    assert parents == {sent.context.span_id}


@pytest.mark.parametrize("leaves", [2, 200])
async def test_a_flow_is_one_span_and_its_jobs_bear_it(
    worker_for: WorkerFor, url: str, queue_name: str, spans: Spans, leaves: int
):
    async def handler(job: Job): ...

    tree = FlowJob("root", queue_name, children=[FlowJob("leaf", queue_name) for _ in range(leaves)])
    async with FlowProducer(url) as flows, worker_for(handler, concurrency=20):
        await (await flows.add(tree)).job.wait_until_finished()
        (node,) = await flows.add_bulk([FlowJob("alone", queue_name)])
        await node.job.wait_until_finished()
        jobs = await flows.add_dag([DagNode("a", queue_name), DagNode("b", queue_name, deps=["a"])])
        await jobs["b"].wait_until_finished()
    of_tree, of_one = spans.of(f"add_flow {queue_name}")
    of_graph = spans.one(f"add_dag {queue_name}")
    assert of_tree.attributes is not None
    assert of_tree.kind is SpanKind.PRODUCER
    assert of_tree.attributes["glide-mq.flow.name"] == "root"
    assert of_tree.attributes["glide-mq.flow.childCount"] == leaves
    assert of_tree.attributes["messaging.batch.message_count"] == leaves + 1
    assert of_graph.attributes is not None
    assert of_graph.attributes["glide-mq.flow.nodeCount"] == 2
    processed = Counter(span.parent.span_id for span in spans.of(f"process {queue_name}") if span.parent is not None)
    assert processed == {
        of_tree.context.span_id: leaves + 1, of_one.context.span_id: 1, of_graph.context.span_id: 2,
    }  # fmt: skip


async def test_batches_are_linked_with_every_job(worker_for: WorkerFor, queue: Queue, queue_name: str, spans: Spans):
    async def handler(jobs: list[Job]) -> list[None]:
        return [None] * len(jobs)

    jobs = [await queue.add("task") for _ in range(3)]
    async with worker_for(handler, batch={"size": 3}):
        await jobs[2].wait_until_finished()
    run = spans.one(f"process {queue_name}")
    assert run.attributes is not None
    assert run.attributes["messaging.batch.message_count"] == 3
    assert {link.context.span_id for link in run.links} == {s.context.span_id for s in spans.of(f"add {queue_name}")}


async def test_metrics(worker_for: WorkerFor, url: str, queue: Queue, queue_name: str, metrics: InMemoryMetricReader):
    async def handler(job: Job):
        if job.name == "fail":
            raise ValueError("no")

    worker = worker_for(handler)
    recorded = EventRecorder(worker)
    async with worker:
        await queue.add("task")
        await queue.add_bulk([("fail",), ("task",)])
        await recorded.until(lambda recorded: recorded.count["completed"] + recorded.count["failed"] == 3)
    found = measured(metrics)
    base = {**server_of(url), "messaging.system": "glidemq", "messaging.destination.name": queue_name}
    adding, bulk, processing = (
        base | {"messaging.operation.name": name, "messaging.operation.type": kind}
        for name, kind in (("add", "send"), ("add_bulk", "send"), ("process", "process"))
    )
    processing = processing | {"messaging.consumer.group.name": "workers"}
    assert found["messaging.client.sent.messages"] == [(adding, 1), (bulk, 2)]
    assert found["messaging.client.operation.duration"] == [(adding, 1), (bulk, 1)]
    assert found["messaging.client.consumed.messages"] == [(processing, 3)]
    assert sorted(found["messaging.process.duration"], key=lambda p: p[1]) == [
        (processing | {"error.type": "ValueError"}, 1), (processing, 2),
    ]  # fmt: skip


def test_names_are_those_of_the_conventions():
    """Those that OpenTelemetry publishes as a package, without the deprecated ones."""
    from opentelemetry.semconv._incubating.attributes import messaging_attributes
    from opentelemetry.semconv._incubating.metrics import messaging_metrics
    from opentelemetry.semconv.schemas import Schemas

    known = {value for value in vars(messaging_attributes).values() if isinstance(value, str)}
    ours = {*names.attributes("process", "process", "q", {}), names.BATCH_COUNT, names.MESSAGE_ID}
    assert ours <= known
    assert "messaging.operation" not in ours  # deprecated
    for name in ("CLIENT_SENT_MESSAGES", "CLIENT_CONSUMED_MESSAGES", "CLIENT_OPERATION_DURATION", "PROCESS_DURATION"):
        assert getattr(messaging_metrics, f"MESSAGING_{name}") in vars(names).values()
    assert names.SCHEMA_URL in {schema.value for schema in Schemas}


async def test_spans_of_blocking_queues_and_flows_name_the_server(url: str, queue_name: str, spans: Spans):
    def add():
        with blocking.Queue(queue_name, url) as queue:
            queue.add("task")
            queue.add_bulk([("task",)])

    await asyncio.to_thread(add)
    async with FlowProducer(url) as flows, TestQueue("in-memory") as queue:
        await flows.add(FlowJob("root", queue_name))
        await queue.add("task")
    for name in ("add", "add_bulk", "add_flow"):
        attributes = spans.one(f"{name} {queue_name}").attributes
        assert attributes is not None
        assert server_of(url).items() <= attributes.items()
    in_memory = spans.one("add in-memory").attributes
    assert in_memory is not None
    assert "server.address" not in in_memory


async def test_blocks_of_leases_are_spans_of_the_jobs_trace(url: str, queue_name: str, spans: Spans):
    def fail():
        with blocking.Queue(queue_name, url) as queue, queue.lease() as lease:
            assert lease is not None
            raise ValueError("x")

    async with Queue(queue_name, url) as queue:
        await queue.add("one")
        async with queue.lease() as lease:
            assert lease is not None
            inside = get_current_span().get_span_context().span_id
        sent, run = spans.one(f"add {queue_name}"), spans.one(f"process {queue_name}")
        assert (run.context.span_id, run.context.trace_id) == (inside, sent.context.trace_id)
        assert run.status.status_code is StatusCode.UNSET
        await queue.add("two")
        with pytest.raises(ValueError, match="x"):
            await asyncio.to_thread(fail)
        async with queue.lease() as lease:
            assert lease is None
    _, failed = spans.of(f"process {queue_name}")
    assert failed.status.status_code is StatusCode.ERROR
    assert get_current_span().get_span_context().span_id == 0


async def test_callbacks_of_a_batch_continue_its_trace(
    worker_for: WorkerFor, queue: Queue, queue_name: str, spans: Spans
):
    async def handler(job: Job): ...

    assert TELEMETRY.tracer is not None
    with TELEMETRY.tracer.start_as_current_span("request") as request:
        async with await queue.job_batches.create(on_complete=("all",), on_success=("ok",)):
            pass
    async with worker_for(handler) as worker:
        await worker.drain()
    for run in spans.of(f"process {queue_name}"):
        assert run.parent is not None
        assert run.parent.span_id == request.get_span_context().span_id


async def test_nothing_is_computed_without_an_exporter(
    queue: Queue, worker_for: WorkerFor, monkeypatch: pytest.MonkeyPatch
):
    def never(*_: object, **__: object):
        raise AssertionError("computed for nobody")

    for name in ("names.attributes", "spans.carrier_of", "spans.context_of", "spans.observing",
                 "spans._span", "spans.observed"):  # fmt: skip
        monkeypatch.setattr(f"glidemq_py.telemetry.{name}", never)

    async def handler(job: Job): ...

    assert not is_tracing_enabled()  # OpenTelemetry is loaded here, its provider is the default one
    async with worker_for(handler):
        assert not TELEMETRY.on
        await (await queue.add("task")).wait_until_finished()
        (job,) = await queue.add_bulk([("task",)])
        await job.wait_until_finished()
        read = await queue.get_job(job.id)
        assert read is not None
        assert "otel" not in read.opts


@pytest.mark.slow
def test_opentelemetry_is_not_even_loaded():
    script = (
        # GLIDE 2.6 loads OpenTelemetry itself; that is not ours.
        "import sys, glide\nbefore = set(sys.modules)\n"
        "import glidemq_py\nfrom glidemq_py.telemetry import is_tracing_enabled\nassert not is_tracing_enabled()\n"
        "loaded = sys.modules.keys() - before\n"
        "assert not [name for name in loaded if name.partition('.')[0] in ('opentelemetry', 'prometheus_client')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
def test_a_global_provider_is_noticed():
    script = (
        "from opentelemetry import trace, metrics\nfrom opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "from glidemq_py.telemetry import is_tracing_enabled\nfrom glidemq_py.telemetry.state import TELEMETRY\n"
        "assert not is_tracing_enabled()\n"
        "trace.set_tracer_provider(TracerProvider())\nassert is_tracing_enabled()\nassert TELEMETRY.on\n"
        "assert not TELEMETRY.meters\nmetrics.set_meter_provider(MeterProvider())\nTELEMETRY.detect_providers()\n"
        "assert len(TELEMETRY.meters) == 1\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("opts", ["{}", '{"attempts":3}', '{"jobId":"}{"}'])
def test_trace_context_in_opts_can_be_removed(opts: str):
    written = with_context(opts, '{"traceparent":"00-1","baggage":"a=\\u007d"}')
    assert without_context(written) == opts
    assert with_context(with_context(opts, '{"traceparent":"00-0"}'), '{"traceparent":"00-1"}').count("otel") == 1


def test_junk_in_place_of_a_context():
    junk: Any
    for junk in ({}, {"otel": 5}, {"otel": {}}):
        assert context_of(junk) is None
    assert context_of({"otel": {"traceparent": 5}}) is not None
