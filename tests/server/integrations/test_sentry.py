"""Sentry: what its server would get."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from glidemq_py import (
    Broadcast,
    BroadcastWorker,
    GlideMQValidationError,
    Job,
    JobFailedError,
    Message,
    Queue,
    UnrecoverableError,
    Worker,
)

sentry_sdk = pytest.importorskip("sentry_sdk")
from sentry_sdk.envelope import Envelope  # noqa: E402
from sentry_sdk.transport import Transport  # noqa: E402

from glidemq_py.integrations.sentry import SentryMiddleware  # noqa: E402
from tests.server.proxy.support import running_proxy  # noqa: E402


class Kept(Transport):
    """Keeps the envelopes instead of sending them."""

    def __init__(self):
        super().__init__()
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope):
        self.items += [item.payload.json for item in envelope.items if item.payload.json]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [each for each in self.items if "exception" in each]

    def transactions(self, name: str) -> list[dict[str, Any]]:
        return [each for each in self.items if each.get("type") == "transaction" and each["transaction"] == name]


@pytest.fixture
def sent() -> Iterator[Kept]:
    transport = Kept()
    sentry_sdk.init(
        "https://key@sentry.invalid/1", transport=transport, traces_sample_rate=1.0, default_integrations=False
    )
    yield transport
    sentry_sdk.init()


async def run_all(url: str, name: str, handler: Any, ends: int, **options: Any):
    ended = asyncio.Semaphore(0)
    worker = Worker(name, handler, url, log_failures=False, middleware=[SentryMiddleware(**options)])
    worker.on("completed", lambda *_: ended.release())
    worker.on("failed", lambda *_: ended.release())
    async with worker, asyncio.timeout(100):
        for _ in range(ends):
            await ended.acquire()


async def test_error_of_a_job_names_the_job(url: str, queue_name: str, sent: Kept):
    async def fail(job: Job):
        raise ValueError("no printer")

    async with Queue(queue_name, url) as queue:
        job = await queue.add("print", {"secret": "page"}, tags=["vip"])
        await run_all(url, queue_name, fail, 1)
    (error,) = sent.errors
    assert error["exception"]["values"][0]["value"] == "no printer"
    assert error["tags"] == {"glidemq.queue": queue_name, "glidemq.job_name": "print", "glidemq.job_id": job.id}
    context = error["contexts"]["glidemq"]
    assert (context["job_id"], context["failed_attempts"], context["tags"]) == (job.id, 0, ["vip"])
    assert "data" not in context
    (transaction,) = sent.transactions("print")
    assert transaction["contexts"]["trace"]["status"] == "internal_error"
    assert transaction["contexts"]["trace"]["trace_id"] == error["contexts"]["trace"]["trace_id"]


async def test_add_and_run_are_one_trace(url: str, queue_name: str, sent: Kept):
    async def work(job: Job):
        return None

    async with Queue(queue_name, url, middleware=[SentryMiddleware()]) as queue:
        with sentry_sdk.start_transaction(name="request", op="http.server"):
            await queue.add("work", job_id="mine")
        await run_all(url, queue_name, work, 1)
    (request,), (task,) = sent.transactions("request"), sent.transactions("work")
    assert request["contexts"]["trace"]["trace_id"] == task["contexts"]["trace"]["trace_id"]
    (publish,), (process,) = request["spans"], task["spans"]
    assert publish["op"] == "queue.publish"
    assert publish["data"]["messaging.destination.name"] == queue_name
    assert publish["data"]["messaging.message.id"] == process["data"]["messaging.message.id"] == "mine"
    assert task["contexts"]["trace"]["op"] == "queue.task.glidemq"
    assert task["contexts"]["trace"]["parent_span_id"] == publish["span_id"]
    assert process["op"] == "queue.process"
    assert process["data"]["messaging.message.retry.count"] == 0
    assert process["data"]["messaging.message.receive.latency"] >= 0


@pytest.mark.parametrize(("report", "expected"), [("every", 3), ("last", 1)])
async def test_errors_of_each_attempt_or_of_the_last(url: str, queue_name: str, sent: Kept, report: str, expected: int):
    async def fail(job: Job):
        raise ValueError("again")

    async with Queue(queue_name, url) as queue:
        await queue.add("retried", {"n": 1}, attempts=3)
        await run_all(url, queue_name, fail, 1, report=report, with_data=True)
    assert len(sent.errors) == expected
    context = sent.errors[-1]["contexts"]["glidemq"]
    assert (context["failed_attempts"], context["data"]) == (2, {"n": 1})


async def test_permanent_error_is_the_last(url: str, queue_name: str, sent: Kept):
    async def fail(job: Job):
        raise UnrecoverableError("no such printer")

    async with Queue(queue_name, url) as queue:
        await queue.add("retried", attempts=3)
        await run_all(url, queue_name, fail, 1, report="last")
    (error,) = sent.errors
    assert error["contexts"]["glidemq"]["failed_attempts"] == 0


async def test_delayed_job_is_no_error(url: str, queue_name: str, sent: Kept):
    async def twice(job: Job):
        if job.step is None:
            job.move_to_delayed(1, next_step="second")

    async with Queue(queue_name, url) as queue:
        await queue.add("stepped")
        await run_all(url, queue_name, twice, 1)
    assert sent.errors == []
    assert [each["contexts"]["trace"].get("status") for each in sent.transactions("stepped")][-1] == "ok"


async def test_message_of_a_broadcast(url: str, queue_name: str, sent: Kept):
    failed: asyncio.Queue[Any] = asyncio.Queue()

    async def fail(message: Message):
        raise ValueError("no printer")

    worker = BroadcastWorker(
        queue_name, fail, url, subscription="mailer", log_failures=False, middleware=[SentryMiddleware(with_data=True)]
    )
    worker.on("failed", lambda *found: failed.put_nowait(found))
    async with Broadcast(queue_name, url) as broadcast, worker, asyncio.timeout(100):
        message = await broadcast.publish("orders.created", {"order": 7})
        await failed.get()
    (error,) = sent.errors
    assert error["exception"]["values"][0]["value"] == "no printer"
    assert (error["contexts"]["glidemq"]["job_id"], error["contexts"]["glidemq"]["data"]) == (message, {"order": 7})


async def test_an_error_that_the_worker_logs_is_reported_once(url: str, queue_name: str, sent: Kept):
    """Sentry's logging integration makes an event of the same error; a timeout is only logged."""

    class SlottedError(ValueError):
        __slots__ = ()

    async def fail(job: Job):
        if job.name == "slow":
            await asyncio.Event().wait()
        raise SlottedError("no printer")

    sentry_sdk.init("https://key@sentry.invalid/1", transport=sent)
    async with Queue(queue_name, url) as queue:
        await queue.add("print")
        await queue.add("slow", timeout=20)
        async with Worker(queue_name, fail, url, middleware=[SentryMiddleware()]) as worker, asyncio.timeout(100):
            await worker.drain()
    assert [each["tags"]["glidemq.job_name"] for each in sent.errors] == ["print"]
    (logged,) = [each for each in sent.items if each.get("logger") == "glidemq_py.failures"]
    assert "exceeded its timeout of 20 ms" in str(logged)


def test_wrong_options():
    with pytest.raises(GlideMQValidationError, match="report"):
        SentryMiddleware(report="first")  # type: ignore[arg-type]


async def test_an_error_that_raises_when_touched_is_not_replaced(url: str, queue_name: str, sent: Kept):
    class SdkError(Exception):
        def __getattr__(self, name: str) -> Any:
            return {"code": 429}[name]

        def __setattr__(self, name: str, value: Any):
            if not name.startswith("__"):  # contextlib sets `__traceback__`
                raise LookupError(name)
            super().__setattr__(name, value)

    async def fail(job: Job):
        raise SdkError("no printer")

    sentry_sdk.init("https://key@sentry.invalid/1", transport=sent)
    async with Queue(queue_name, url) as queue, Worker(queue_name, fail, url, middleware=[SentryMiddleware()]):
        job = await queue.add("print")
        with pytest.raises(JobFailedError) as caught:
            await job.wait_until_finished(100_000)
    assert (caught.value.failed_type, caught.value.failed_reason) == ("SdkError", "no printer")


def test_the_proxy_reads_bodies_that_the_sdk_has_read(url: str, queue_name: str, sent: Kept):
    sentry_sdk.init("https://key@sentry.invalid/1", transport=sent, traces_sample_rate=1.0)
    with running_proxy(url) as (client, _):
        added = client.post(f"/queues/{queue_name}/jobs", json={"name": "print", "data": {"page": 1}})
        assert (added.status_code, added.json()["name"]) == (201, "print")
