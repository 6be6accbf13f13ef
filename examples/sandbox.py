"""Sandbox: handlers in separate processes; one crashes, one hangs, one exceeds its memory, the worker continues."""

import asyncio
import os
import time

from glidemq_py import Job, JobFailedError, Queue, SandboxOptions, Worker


def work(job: Job) -> str:
    """Run in the main thread of a child process."""
    if job.name == "crash":
        os._exit(11)
    if job.name == "hang":
        while True:
            time.sleep(0.1)
    if job.name == "eat":
        return str(len(bytearray(2 * 1024**3)))
    job.blocking.update_progress(50)
    job.blocking.log("half way")
    return f"{job.name} done"


async def main() -> None:
    # The handler is passed by name: this file's `work`. In a project it would be "package.module:work".
    worker = Worker(
        "risky",
        f"{__file__}:work",
        concurrency=2,
        sandbox=SandboxOptions(memory_limit=512 * 1024**2, recycle_after=100, kill_after=200),
    )
    async with Queue("risky") as queue, worker:
        names = ["good", "crash", "hang", "eat", "another"]
        jobs = [await queue.add(name, timeout=1_500 if name == "hang" else None) for name in names]
        for job in jobs:
            try:
                print(await job.wait_until_finished())
            except JobFailedError as error:
                print(f"{job.name}: {error.failed_type}: {error.failed_reason}")
        print("log of good:", await jobs[0].logs())


if __name__ == "__main__":
    asyncio.run(main())
