"""Delayed jobs, retried jobs, and jobs that must not be retried."""

import asyncio
from datetime import datetime, timedelta

from glidemq_py import Job, JobFailedError, Queue, UnrecoverableError, Worker


async def handle(job: Job) -> str:
    if job.name == "flaky" and job.attempts_made < 2:
        raise ConnectionError(f"attempt {job.attempts_made + 1} found nobody at home")
    if job.name == "hopeless":
        raise UnrecoverableError("the address does not exist")  # fails without further attempts
    return f"{job.name} done after {job.attempts_made} failures"


async def main() -> None:
    async with Queue("calls") as queue:
        worker = Worker("calls", handle, concurrency=5)
        worker.on("retrying", lambda job, error: print(f"retrying {job.name}: {error}"))
        async with worker:
            # Milliseconds, a timedelta, or a datetime.
            short = await queue.add("short delay", delay=100)
            later = await queue.add("timedelta", delay=timedelta(milliseconds=200))
            at = await queue.add("instant", run_at=datetime.now() + timedelta(milliseconds=300))  # noqa: DTZ005
            for job in (short, later, at):
                print(await job.wait_until_finished())

            flaky = await queue.add(
                "flaky",
                attempts=5,
                backoff={"type": "exponential", "delay": 50, "jitter": 0.2, "max_delay": 1_000},
            )
            print(await flaky.wait_until_finished())

            hopeless = await queue.add("hopeless", attempts=5, backoff=50)
            try:
                await hopeless.wait_until_finished()
            except JobFailedError as error:
                print(f"failed for good: {error.failed_type}: {error.failed_reason}")


if __name__ == "__main__":
    asyncio.run(main())
