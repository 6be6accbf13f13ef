"""Control a running worker from elsewhere: see what it runs, change its concurrency, and let it finish quietly."""

import asyncio

from glidemq_py import Job, Queue, Worker


async def main() -> None:
    async with Queue("films") as queue:
        full, finish = asyncio.Event(), asyncio.Event()
        running: list[str] = []

        async def encode(job: Job) -> None:
            running.append(job.data)
            if len(running) == 3:
                full.set()
            await finish.wait()

        await queue.add_bulk(("encode", f"film-{n}") for n in range(4))
        async with Worker("films", encode, lock_duration=1_000) as worker:
            await queue.workers.resize(3, worker.consumer)
            await full.wait()
            (activity,) = await queue.workers.inspect()
            print(f"{activity.active} of {activity.concurrency} slots are busy")
            await queue.workers.quiet()
            finish.set()
        print("left for other workers:", (await queue.get_job_counts()).waiting)
        await queue.obliterate(force=True)


asyncio.run(main())
