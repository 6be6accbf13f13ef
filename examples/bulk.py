"""Bulk add: ten thousand jobs in one call, some with their own options; a worker drains the queue."""

import asyncio

from glidemq_py import Job, JobSpec, Queue, Worker

JOBS = 10_000


async def square(job: Job[int, int]) -> int:
    return job.data * job.data


async def main() -> None:
    queue: Queue[int, int] = Queue("squares")
    async with queue:
        jobs = await queue.add_bulk(("square", n) for n in range(JOBS))
        # Rows may have options; a JobSpec validates them when it is created.
        jobs += await queue.add_bulk(
            [
                ("square", -1, {"priority": 1}),
                JobSpec("square", -2, {"job_id": "minus-two"}),
                JobSpec("square", -2, {"job_id": "minus-two"}),
            ]
        )
        print(f"{len(jobs)} positions, the last two: {jobs[-2].outcome}, {jobs[-1].outcome}")

        worker = Worker("squares", square, concurrency=100)
        await worker.start()
        await worker.drain()  # runs until the queue is empty, then closes

        counts = await queue.get_job_counts()
        print(f"{counts.completed} completed, {counts.unfinished} left")
        total = 0
        async for job in queue.iter_jobs("completed"):
            total += job.returnvalue or 0
        print(f"sum of squares: {total}")


if __name__ == "__main__":
    asyncio.run(main())
