"""Typed tasks: functions by job name, with typed arguments and results."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from glidemq_py import Job, JobFailedError, Worker

worker = Worker("mail", concurrency=100)


@dataclass
class Receipt:
    """What is sent, how often and when."""

    to: str
    sent: int
    at: datetime


@dataclass
class Image:
    """A file, and its width in pixels."""

    path: Path
    width: int


@worker.task
async def welcome(to: str, times: int = 1) -> Receipt:
    return Receipt(to, times, datetime.now(UTC))


@worker.task("shrink", attempts=3)
def shrink(job: Job, /, image: Image, width: int = 80) -> Image:
    """Shrink an image in a thread: plain functions run in one. The job comes first, before what `add` takes."""
    job.blocking.update_progress(50)
    return Image(image.path.with_stem(f"{image.path.stem}-{width}"), width)


async def main() -> None:
    # A task can be called as a function, in tests and in other tasks.
    print("called:", await welcome("ada@example.org"))

    async with worker:
        job = await welcome.options(delay=50, attempts=5).add("bob@example.org", times=2)
        print("sent:", await job.wait_until_finished())

        jobs = await shrink.add_bulk(shrink.call(Image(Path(name), 640)) for name in ("cat.png", "dog.png"))
        print("thumbnails:", [str((await job.wait_until_finished()).path) for job in jobs])

        try:
            await welcome.add()  # type: ignore[call-arg]
        except TypeError as error:
            print("refused:", error)

        # Jobs of other programs are validated when they run.
        foreign = await worker.queue.add("welcome", {"to": 5}, attempts=5)
        try:
            await foreign.wait_until_finished()
        except JobFailedError as error:
            print("failed:", f"{error.failed_type}: {error.failed_reason}")


if __name__ == "__main__":
    asyncio.run(main())
