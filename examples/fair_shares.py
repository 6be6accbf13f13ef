"""Let tenants take turns: a tenant with many jobs does not delay the others."""

import asyncio

from glidemq_py import Job, Queue, Worker


async def main() -> None:
    async with Queue("reports") as queue:
        await queue.add_bulk(("report", {"page": page}, {"fair_key": "acme"}) for page in range(1_000))
        await queue.add("report", {"page": 0}, fair_key="globex")

        async def handle(job: Job) -> None:
            print("start", job.fair_key)
            if job.fair_key == "globex":
                done.set()

        done = asyncio.Event()
        async with Worker("reports", handle, concurrency=1):
            await done.wait()
        print("backlog of acme is over 900:", (await queue.fair_keys.get("acme")).backlog > 900)
        await queue.obliterate(force=True)


asyncio.run(main())
