"""Unique jobs: no second job while one waits, none within an hour, and a successor that waits for an active one."""

import asyncio

from glidemq_py import Deduplication, Job, Queue, Worker


async def main() -> None:
    started, proceed = asyncio.Event(), asyncio.Event()

    async def publish(job: Job) -> None:
        started.set()
        await proceed.wait()
        print("published", job.data)

    async with Queue("pages") as queue:
        until_started = Deduplication("index", until="started")
        for _ in range(2):
            print("index", (await queue.add("index", deduplication=until_started)).outcome)

        an_hour = Deduplication("report-7", mode="throttle", ttl=3_600_000, extend=True)
        for _ in range(2):
            print("report", (await queue.add("report", deduplication=an_hour)).outcome)
        await queue.drain()

        latest = Deduplication("page-7", replace=True)
        async with Worker("pages", publish):
            await queue.add("publish", "draft 1", deduplication=latest)
            await started.wait()
            for text in ("draft 2", "draft 3"):
                last = await queue.add("publish", text, deduplication=latest)
                print(text, last.outcome)
            owner = await queue.jobs.get_deduplicated("page-7")
            print("newest:", owner.data if owner else None)
            proceed.set()
            await last.wait_until_finished()
        print("removed:", await queue.jobs.remove_deduplication("report-7"))


asyncio.run(main())
