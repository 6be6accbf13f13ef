"""Graceful shutdown on SIGTERM: the active job completes, waiting jobs stay for other workers.

This program sends the signal to itself as soon as the first job runs.
"""

import asyncio
import os
import signal

from glidemq_py import Job, Queue, Worker, graceful_shutdown


async def handle(job: Job) -> str:
    await asyncio.sleep(0.2)
    return f"part {job.data} done"


async def main() -> None:
    queue = Queue("parts")
    await queue.add_bulk(("part", n) for n in range(3))

    worker = Worker("parts", handle)
    worker.on("active", lambda job: os.kill(os.getpid(), signal.SIGTERM))
    worker.on("closing", lambda: print("closing"))
    worker.on("completed", lambda job, result: print(result))
    worker.on("closed", lambda: print("closed"))
    await worker.run()  # returns after shutdown; a second signal would release the active job at once

    counts = await queue.get_job_counts()
    print(f"{counts.completed} completed, {counts.waiting} waiting, {counts.active} stranded")

    # A service with several components closes them together.
    other = Worker("parts", handle, concurrency=10)
    drained = asyncio.Event()
    other.on("drained", drained.set)
    async with graceful_shutdown(other, queue) as shutdown:
        await other.start()
        await drained.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await shutdown.wait()
    print("all closed")


if __name__ == "__main__":
    asyncio.run(main())
