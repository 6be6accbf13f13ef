"""Schedulers: an interval, a cron pattern, and repetition after completion."""

import asyncio
from collections import Counter
from datetime import UTC, datetime

from glidemq_py import Job, Queue, Schedule, Worker

ran: Counter[str] = Counter()
enough = asyncio.Event()


async def handle(job: Job) -> None:
    ran[job.name] += 1
    if min(ran["tick"], ran["crawl"], ran["second"]) >= 2:
        enough.set()


async def main() -> None:
    # Preview the times of a pattern.
    weekdays = Schedule(pattern="30 7 * * MON-FRI", tz="Europe/Berlin")
    for instant in weekdays.preview(2, after=datetime(2027, 1, 7, 12, tzinfo=UTC)):
        print("weekdays:", instant)

    async with Queue("clockwork") as queue, Worker("clockwork", handle):
        # Call it at every start: an unchanged scheduler continues.
        await queue.schedulers.upsert("tick", every=200, limit=3)
        await queue.schedulers.upsert("second", pattern="* * * * * *", misfire="skip")
        await queue.schedulers.upsert(
            "crawler", repeat_after_complete=100, template=("crawl", {"url": "https://example.org"}, {"attempts": 3})
        )
        await enough.wait()
        for scheduler in await queue.schedulers.get_all():
            if scheduler.name != "tick":
                print(scheduler.name, "ran", "often enough" if scheduler.iteration_count >= 2 else "too seldom")
                await queue.schedulers.remove(scheduler.name)


if __name__ == "__main__":
    asyncio.run(main())
