"""Limits: a lower one for the time of an incident, and one for the jobs of a name."""

import asyncio
from collections import Counter

from glidemq_py import Job, Queue, Worker


async def main() -> None:
    active: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def handle(job: Job) -> None:
        active[job.name] += 1
        most[job.name] = max(most[job.name], active[job.name])
        await asyncio.sleep(0.02)
        active[job.name] -= 1

    async with Queue("api") as queue:
        # The bank takes two requests at a time; other jobs do not wait for them.
        await queue.limits.set_for_name("charge", concurrency=2)
        jobs = await queue.add_bulk([("charge", n) for n in range(10)] + [("mail", n) for n in range(10)])
        async with Worker("api", handle, concurrency=8):
            await asyncio.gather(*(job.wait_until_finished() for job in jobs))
        print("charge: at most", most["charge"], "at a time; mail: more than 2:", most["mail"] > 2)
        limits = await queue.limits.get_for_name("charge")
        print("limit of charge:", limits.concurrency, "active:", limits.active)

        # For the next half second, all workers together start at most one job per 100 ms. The limit ends by itself.
        await queue.limits.set_rate_limit(1, 100, ttl=500)
        print("during the incident:", (await queue.limits.get()).rate_limit)
        jobs = await queue.add_bulk([("mail", n) for n in range(50)])
        async with Worker("api", handle, concurrency=8):
            await asyncio.gather(*(job.wait_until_finished() for job in jobs))
        print("afterwards:", (await queue.limits.get()).rate_limit)


if __name__ == "__main__":
    asyncio.run(main())
