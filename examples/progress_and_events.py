"""Progress and logs of a long job, and the queue's events."""

import asyncio

from glidemq_py import Job, Queue, QueueEvents, Worker

STEPS = 4


async def convert(job: Job) -> str:
    for step in range(1, STEPS + 1):
        await job.log(f"step {step}: {job.data}")
        await job.update_progress(100 * step // STEPS)
    return "converted"


async def watch(events: QueueEvents) -> None:
    """Print every event in order, as another process would."""
    async for event in events:
        details = {name: text for name, text in event.fields.items() if name in ("name", "data", "returnvalue")}
        print(event.event, event.job_id, *details.values())
        if event.event == "completed":
            return


async def main() -> None:
    events = QueueEvents("videos")
    await events.wait_until_ready()  # no event is missed from here on
    watching = asyncio.create_task(watch(events))
    async with Queue("videos") as queue, Worker("videos", convert):
        job = await queue.add("convert", "holiday.mov", job_id="holiday")
        await asyncio.wait_for(watching, 10)
        print("log:", *await job.logs(), sep="\n  ")
    await events.close()


if __name__ == "__main__":
    asyncio.run(main())
