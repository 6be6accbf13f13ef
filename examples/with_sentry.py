"""Sentry: one trace from the request to the job, and errors that name their job.

Events go to a list here; a program passes its DSN instead of a transport.
"""

import asyncio
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from glidemq_py import Job, Queue, Worker
from glidemq_py.integrations.sentry import SentryMiddleware


class Kept(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        """Keep the events and transactions of an envelope."""
        for item in envelope.items:
            if item.payload.json is not None and item.type in ("event", "transaction"):
                self.events.append(dict(item.payload.json))


async def send(job: Job) -> None:
    raise ConnectionError("no route to host")


async def main() -> None:
    kept = Kept()
    sentry_sdk.init(
        "https://key@sentry.example.org/1", transport=kept, traces_sample_rate=1.0, default_integrations=False
    )
    async with Queue("emails", middleware=[SentryMiddleware()]) as queue:
        with sentry_sdk.start_transaction(op="http.server", name="POST /welcome"):
            await queue.add("welcome", {"to": "ada@example.org"})
        async with Worker("emails", send, middleware=[SentryMiddleware()], log_failures=False) as worker:
            await worker.drain()
    sentry_sdk.flush()
    traces = {event["contexts"]["trace"]["trace_id"] for event in kept.events}
    print(len(kept.events), "events,", len(traces), "trace")
    for event in kept.events:
        if event.get("type") == "transaction":
            print("transaction", event["transaction"], [span["op"] for span in event["spans"]])
        else:
            error = event["exception"]["values"][-1]
            print("error", error["type"], error["value"], event["tags"])


if __name__ == "__main__":
    asyncio.run(main())
