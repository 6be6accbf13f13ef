"""Durable steps: an order is paid, waits for a decision, and is delivered or refunded."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from glidemq_py import Job, Queue, Worker
from glidemq_py.errors import SignalTimeout

worker = Worker("orders", concurrency=10)


@dataclass
class Charge:
    """A payment."""

    id: str


async def charge_card(key: str, customer: int, cents: int) -> Charge:
    """Charge a card, unless there is a charge with this key."""
    print(f"charged {cents} of customer {customer}")
    return Charge(f"ch-{customer}")


async def refund(charge: str) -> str:
    print(f"refunded {charge}")
    return "refunded"


async def mail(charge: str, pages: list[str]) -> str:
    print(f"mailed {charge} with {', '.join(pages)}")
    return "delivered"


@worker.task
async def render(page: int) -> str:
    return f"page {page}"


@worker.task(attempts=5, backoff=1_000)
async def order(job: Job, /, customer: int, cents: int, patience: int) -> str:
    key = job.idempotency_key("charge")
    charge = await job.run("charge", charge_card, key, customer, cents, attempts=3)
    await job.sleep("cooling off", timedelta(milliseconds=100))
    try:
        decision = await job.wait_for_signal("approval", timeout=patience)
    except SignalTimeout:
        return await job.run("refund", refund, charge.id)
    pages = await job.gather([render.call(page) for page in decision.data["pages"]])
    return await job.run("mail", mail, charge.id, pages)


async def main() -> None:
    async with worker, Queue("orders") as queue:
        approved = await order.add(7, 1_250, patience=60_000)
        await queue.signal(approved.id, "approval", {"pages": [1, 2]})
        print("order 7:", await approved.wait_until_finished())
        ignored = await order.add(8, 900, patience=200)
        print("order 8:", await ignored.wait_until_finished())
        print(", ".join(step.name for step in await ignored.get_steps()))


if __name__ == "__main__":
    asyncio.run(main())
