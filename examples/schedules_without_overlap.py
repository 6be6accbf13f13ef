"""Schedules without overlap: an import that takes longer than its interval never runs twice at the same time."""

import asyncio

from glidemq_py import Job, Queue, Worker


async def main() -> None:
    running = most = 0
    runs: list[str] = []
    enough = asyncio.Event()

    async def handle(job: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1.5 if len(runs) < 2 else 0.1)  # longer than the interval at first
        running -= 1
        runs.append(job.name)
        if len(runs) == 4:
            enough.set()

    async with Queue("imports") as queue:
        # "skip" drops a due time while the last job is unfinished; "buffer_one" makes up for all of them with one job.
        await queue.schedulers.upsert("import", every=1_000, overlap="skip", template={"name": "import"})
        async with Worker("imports", handle, concurrency=10):
            await enough.wait()
        scheduler = await queue.schedulers.get("import")
        assert scheduler is not None
        print("at the same time:", most)
        print("skipped some:", scheduler.skipped_count > 0)
        print("last runs:", len(scheduler.last_runs) >= 4)
        await queue.schedulers.pause("import")
        await queue.schedulers.upsert("report", every=1_000, overlap="buffer_one", template={"name": "report"})
        print([(each.name, each.schedule.overlap, each.paused) for each in await queue.schedulers.get_all()])


if __name__ == "__main__":
    asyncio.run(main())
