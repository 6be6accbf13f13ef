"""One worker for several queues: strict order, and shares by weight."""

import asyncio
from collections import Counter

from glidemq_py import Job, Queue, Worker

ran: list[str] = []


async def handle(job: Job) -> None:
    ran.append(job.queue_name)
    await asyncio.sleep(0.02)


async def fill(jobs: int, *names: str) -> None:
    for name in names:
        async with Queue(name) as queue:
            await queue.add_bulk([("job", None)] * jobs)


async def run(worker: Worker) -> list[str]:
    ran.clear()
    await worker.start()
    await worker.drain()
    return ran


async def main() -> None:
    await fill(3, "images", "emails")
    print("strict order:", ", ".join(await run(Worker(["emails", "images"], handle))))

    await fill(100, "critical", "default", "bulk")
    order = await run(Worker({"critical": 6, "default": 3, "bulk": 1}, handle, concurrency=5))
    first = Counter(order[:100])
    shares = [f"{name} {round(first[name], -1)}" for name in ("critical", "default", "bulk")]
    print("of the first 100 jobs:", ", ".join(shares))
    print(len(order), "jobs ran")


if __name__ == "__main__":
    asyncio.run(main())
