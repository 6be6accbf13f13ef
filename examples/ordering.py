"""Ordering groups: jobs in order per customer, customers in parallel, and one customer rate limited."""

import asyncio
from collections import defaultdict

from glidemq_py import Job, Queue, Worker

done: dict[str, list[str]] = defaultdict(list)
refused: set[str] = set()


async def handle(job: Job) -> None:
    customer = job.data["customer"]
    if customer == "bert" and customer not in refused:
        refused.add(customer)
        job.rate_limit_group(200)  # the customer's API returned 429: pause the group; consumes no attempt
    await asyncio.sleep(0.005)
    done[customer].append(job.name)


async def main() -> None:
    customers = ("anna", "bert", "carla")
    async with Queue("customers") as queue:
        jobs = await queue.add_bulk(
            (step, {"customer": customer}, {"ordering": customer, "attempts": 3})
            for step in ("create", "update", "invoice")
            for customer in customers
        )
        worker = Worker("customers", handle, concurrency=10)
        worker.on("delayed", lambda job, signal: print(f"{job.name} of {job.data['customer']}: {signal}"))
        async with worker:
            for job in jobs:
                await job.wait_until_finished()
        for customer in customers:
            group = await queue.groups.get(customer)
            assert group is not None
            print(f"{customer}: {', '.join(done[customer])}; next is number {group.next_seq}")


if __name__ == "__main__":
    asyncio.run(main())
