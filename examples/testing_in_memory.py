"""Testing in memory: added jobs, handlers and a settable clock, without a server.

Run it with python or with pytest; it needs the extra `testing`.
"""

import asyncio
from datetime import timedelta
from typing import Any

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import Clock, MemoryServer, TestQueue, TestWorker, run_until_empty

# -- what is to be tested: a function that enqueues, a handler, a worker with a task ------------------------------


async def sign_up(queue: Queue[Any, Any], address: str) -> None:
    await queue.add("welcome", {"to": address})
    await queue.add("reminder", {"to": address}, delay=timedelta(days=3))


async def send(job: Job[Any, Any]) -> str:
    if job.data["to"].endswith(".invalid") and job.attempts_made == 0:
        raise ConnectionError("the mail server is asleep")
    return f"{job.name} sent to {job.data['to']}"


service = Worker("invoices", concurrency=4)


@service.task(attempts=3)
async def invoice(customer: str, cents: int) -> str:
    return f"{customer} owes {cents / 100:.2f}"


# -- the tests ------------------------------------------------------------------------------------------------------


async def what_was_enqueued() -> None:
    async with TestQueue("emails") as queue:
        await sign_up(queue, "ann@example.org")
        await queue.assert_enqueued("welcome", {"to": "ann@example.org"}, count=1)
        await queue.assert_enqueued("reminder", contains={"to": "ann@example.org"}, delay=timedelta(days=3))
        await queue.assert_not_enqueued("farewell")


async def what_a_handler_does() -> None:
    async with TestQueue("emails") as queue, queue.worker(send) as worker:
        await queue.add("welcome", {"to": "bob@example.invalid"}, attempts=3, backoff=60_000)
        run = await worker.run_one()
        assert run is not None
        assert run.outcome == "retrying"
        assert isinstance(run.error, ConnectionError)
        assert await worker.run_until_idle() == []  # the retry is not due yet
        queue.clock.advance(timedelta(minutes=1))
        (run,) = await worker.run_until_idle()
        assert run.result == "welcome sent to bob@example.invalid"


async def days_in_a_moment() -> None:
    async with TestQueue("emails") as queue, queue.worker(send) as worker:
        start = queue.clock.now()
        await sign_up(queue, "ann@example.org")
        runs = await worker.run_until_empty()  # advances the clock to the next due time
        assert [run.job.name for run in runs] == ["welcome", "reminder"]
        assert queue.clock.now() - start == 3 * 24 * 3600 * 1000


async def the_worker_of_the_service() -> None:
    async with TestQueue("invoices") as queue, TestWorker.of(service, queue) as worker:
        await invoice.add("ann", 1250)
        assert [run.result for run in await worker.run_until_idle()] == ["ann owes 12.50"]


async def several_queues() -> None:
    server = MemoryServer(Clock())
    async with TestQueue("orders", server) as orders, TestQueue("emails", server) as emails:

        async def ship(job: Job[Any, Any]) -> None:
            await emails.add("shipped", job.data)

        async with orders.worker(ship) as shipping, emails.worker(send) as mailing:
            await orders.add("book", {"to": "ann@example.org"})
            runs = await run_until_empty(shipping, mailing)
            assert [run.job.name for run in runs] == ["book", "shipped"]


SCENARIOS = (what_was_enqueued, what_a_handler_does, days_in_a_moment, the_worker_of_the_service, several_queues)


async def main() -> None:
    for scenario in SCENARIOS:
        await scenario()
        print(f"{scenario.__name__}: passed")


def test_everything() -> None:
    asyncio.run(main())


if __name__ == "__main__":
    asyncio.run(main())
