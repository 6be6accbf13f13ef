"""Schedulers on three primaries."""

import asyncio

from glidemq_py import Job, Queue, Worker


async def test_scheduler_fires_in_a_cluster(cluster_url: str, queue_name: str) -> None:
    ran: list[str] = []
    enough = asyncio.Event()

    async def note(job: Job) -> None:
        ran.append(job.name)
        if {"tick", "own", "crawl"} <= set(ran):
            enough.set()

    async with Queue(queue_name, cluster_url) as queue, Worker(queue_name, note, cluster_url):
        await queue.upsert_job_scheduler("tick", every=50)
        await queue.upsert_job_scheduler("own", pattern="* * * * * *")
        await queue.upsert_job_scheduler("crawl", repeat_after_complete=50)
        async with asyncio.timeout(120):
            await enough.wait()
        names = [each.name for each in await queue.get_job_schedulers()]
        assert names == ["crawl", "own", "tick"]
        for name in names:
            assert await queue.remove_job_scheduler(name)
    async with Queue(queue_name, cluster_url) as queue:
        await queue.obliterate(force=True)
