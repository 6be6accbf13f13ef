"""Quickstart: a queue, a worker, a job and its result.

Without a connection and GLIDEMQ_URL, a private Valkey runs as long as this program.
"""

import asyncio

from glidemq_py import Job, Queue, Worker


async def handle(job: Job) -> str:
    return f"{job.name}: hello {job.data['to']}"


async def main() -> None:
    async with Queue("emails") as queue, Worker("emails", handle, concurrency=10):
        job = await queue.add("welcome", {"to": "ada"})
        print("added", job.id)
        print(await job.wait_until_finished(10_000))


if __name__ == "__main__":
    asyncio.run(main())
