"""Request and reply over a queue: add a job and wait for its result or its failure."""

import asyncio

from glidemq_py import Job, JobFailedError, Queue, WaitTimeoutError, Worker


async def calculate(job: Job) -> float:
    if job.name == "sleep":
        await asyncio.sleep(job.data)
    left, right = job.data if job.name == "divide" else (0, 1)
    return left / right


async def main() -> None:
    queue: Queue[tuple[float, float] | float, float] = Queue("sums")
    async with queue, Worker("sums", calculate, concurrency=10):
        print("7 / 2 =", await queue.add_and_wait("divide", (7, 2), wait_timeout=10_000))

        # Many at once: the adds are sent as one call, and one reader waits for all results.
        halves = await asyncio.gather(*(queue.add_and_wait("divide", (n, 2)) for n in range(5)))
        print("halves:", halves)

        try:
            await queue.add_and_wait("divide", (1, 0))
        except JobFailedError as error:
            print(f"1 / 0: {error.failed_type}: {error.failed_reason}")

        try:
            await queue.add_and_wait("sleep", 0.5, wait_timeout=50)
        except WaitTimeoutError as error:
            print(error)


if __name__ == "__main__":
    asyncio.run(main())
