"""A partitioned queue: jobs in several slots of a cluster behind one name, in order per customer."""

import asyncio
from collections import defaultdict

from glidemq_py import Job, Queue, Worker

seen: dict[str, list[int]] = defaultdict(list)


async def handle(job: Job) -> None:
    await asyncio.sleep(0.001)
    seen[job.data["customer"]].append(job.data["number"])


async def main() -> None:
    async with Queue("orders", partitions=4) as queue:
        orders = [
            ("order", {"customer": customer, "number": number}, {"ordering": {"key": customer}})
            for number in range(5)
            for customer in ("ann", "bob", "cy", "dee")
        ]
        await queue.add_bulk(orders)
        await queue.add("report", {"customer": "all", "number": 0}, job_id="daily")
        print(await queue.count(), "jobs wait")

    workers = [Worker("orders", handle, concurrency=4) for _ in range(2)]
    await asyncio.gather(*(worker.start() for worker in workers))
    await asyncio.gather(*(worker.drain() for worker in workers))
    for customer in ("ann", "bob", "cy", "dee"):
        print(customer, seen[customer])

    async with Queue("orders") as queue:
        report = await queue.get_job("daily")
        assert report is not None
        print("report:", await report.get_state())


if __name__ == "__main__":
    asyncio.run(main())
