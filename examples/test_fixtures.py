"""Tests of jobs in memory, with the package's fixtures: `pytest examples/test_fixtures.py`.

They need the extra `testing`, and pytest-asyncio (here: a marker for each test; with `asyncio_mode = auto` none).
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from glidemq_py import Job, Worker
from glidemq_py.testing import TestQueue, TestWorker

MakeWorker = Callable[..., TestWorker]
pytestmark = pytest.mark.asyncio


# -- yours: a handler, and a worker with a task -------------------------------------------------------------------


async def send(job: Job[Any, Any]) -> str:
    if job.attempts_made == 0 and job.data["to"].endswith(".invalid"):
        raise ConnectionError("the mail server does not answer")
    return f"sent to {job.data['to']}"


service = Worker("invoices", concurrency=4)


@service.task(attempts=3)
async def invoice(customer: str, cents: int) -> str:
    return f"{customer} owes {cents / 100:.2f}"


# -- the tests ----------------------------------------------------------------------------------------------------


async def test_welcome_is_sent(glidemq_queue: TestQueue, glidemq_worker: MakeWorker) -> None:
    worker = glidemq_worker(send)
    await glidemq_queue.add("welcome", {"to": "ann@example.org"})
    assert [run.result for run in await worker.run_until_idle()] == ["sent to ann@example.org"]


async def test_welcome_is_retried_a_minute_later(glidemq_queue: TestQueue, glidemq_worker: MakeWorker) -> None:
    worker = glidemq_worker(send)
    await glidemq_queue.add("welcome", {"to": "bob@example.invalid"}, attempts=3, backoff=60_000)
    assert [run.outcome for run in await worker.run_until_idle()] == ["retrying"]
    glidemq_queue.clock.advance(timedelta(minutes=1))
    assert [run.outcome for run in await worker.run_until_idle()] == ["completed"]


@pytest.mark.parametrize("customer", ["ann", "bob"])
async def test_invoice(glidemq_queue: TestQueue, glidemq_worker: MakeWorker, customer: str) -> None:
    worker = glidemq_worker(service)
    await invoice.add(customer, cents=1250)
    await glidemq_queue.assert_enqueued("invoice", contains={"customer": customer}, count=1)
    assert [run.result for run in await worker.run_until_idle()] == [f"{customer} owes 12.50"]
