"""Timelines: every change of a job's state, with time and worker, to explain where the time of a job went."""

import asyncio

from glidemq_py import Job, Queue, Worker


async def convert(job: Job) -> None:
    if job.attempts_made == 0:
        raise ConnectionError("storage is down")


async def main() -> None:
    async with Queue("videos") as queue:
        await queue.timelines.set()
        job = await queue.add("convert", delay=50, attempts=2, backoff=50)
        async with Worker("videos", convert, log_failures=False):
            await job.wait_until_finished()
        entries = await queue.timelines.get(job.id)
        for entry, following in zip(entries, [*entries[1:], None], strict=True):
            lasted = "" if following is None else f" for {following.at - entry.at} ms"
            print(f"{entry.state.value}{lasted}")


asyncio.run(main())
