"""Ranks: jobs of paying customers first, plain jobs next, clean-up only when nothing else is ready."""

import asyncio

from glidemq_py import Job, Queue, Worker

PLANS = {"business": 5_000, "team": 3_000, "free": 0}


async def handle(job: Job) -> None:
    print(f"{job.name} (rank {job.rank})")


async def main() -> None:
    async with Queue("renders") as queue:
        await queue.add("clean up", rank=-10)
        for plan, rank in reversed(PLANS.items()):
            await queue.add(f"render for {plan}", rank=rank)
        old = await queue.add("render again", rank=PLANS["team"])
        await old.change_priority(rank=10_000)  # an operator is waiting for it
        print("ready per rank:", await queue.jobs.get_rank_counts())
        async with Worker("renders", handle, concurrency=1) as worker:
            await worker.drain()


asyncio.run(main())
