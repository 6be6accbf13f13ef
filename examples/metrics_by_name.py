"""Metrics by job name: which task is slow, and which one only waits for a free slot."""

import asyncio
from datetime import timedelta

from glidemq_py import Job, Queue, Worker


async def handle(job: Job) -> None:
    if job.name == "render":
        await asyncio.sleep(0.05)
    elif job.name == "charge" and job.attempts_made == 0:
        raise ConnectionError("the bank does not answer")


async def main() -> None:
    async with Queue("shop") as queue:
        await queue.metrics_by_name.set(minutes=10_080, max_names=20)  # a week
        jobs = await queue.add_bulk([
            *(("render", {"page": n}) for n in range(20)),
            *(("notify", {"user": n}) for n in range(20)),
            ("charge", {"order": 1}, {"attempts": 3}),
        ])  # fmt: skip
        async with Worker("shop", handle, concurrency=5):  # closing sends the last figures
            await asyncio.gather(*(job.wait_until_finished() for job in jobs))

        for each in await queue.metrics_by_name.get(timedelta(hours=1), interval=None):
            slow = "slow" if each.run.p95 > 25 else "fast"
            print(f"{each.name}: {each.completed} completed, {each.retried} retried, {slow}")
        (notify,) = await queue.metrics_by_name.get(name="notify", interval=None)
        print("notify waits longer than it runs:", notify.wait.p95 > notify.run.p95)


if __name__ == "__main__":
    asyncio.run(main())
