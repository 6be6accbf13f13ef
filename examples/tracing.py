"""Tracing: one OpenTelemetry trace from the request that adds a job to the calls of its handler."""

import asyncio

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from glidemq_py import Job, Queue, Worker

exporter = InMemorySpanExporter()  # in production: an OTLP exporter
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)  # before queues connect and workers start
tracer = trace.get_tracer("shop")


async def send(job: Job) -> str:
    with tracer.start_as_current_span("smtp"):
        return f"sent to {job.data}"


async def main() -> None:
    async with Queue("mails") as queue, Worker("mails", send):
        with tracer.start_as_current_span("POST /orders"):
            job = await queue.add("confirmation", "ada@example.org")
        print(await job.wait_until_finished())

    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    print("traces:", len({span.context.trace_id for span in spans.values()}))
    for span in sorted(spans.values(), key=lambda span: span.start_time or 0):
        parent = spans[span.parent.span_id].name if span.parent else "nobody"
        print(f"{span.name}, of {parent}")


if __name__ == "__main__":
    asyncio.run(main())
