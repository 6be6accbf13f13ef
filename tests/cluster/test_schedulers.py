"""Schedulers on three primaries."""

import asyncio

from glidemq_py import Job, Queue, QueueEvents, Worker


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


async def test_scheduler_is_paused_and_resumed_in_a_cluster(cluster_url: str, queue_name: str) -> None:
    async with Queue(queue_name, cluster_url) as queue, QueueEvents(queue_name, cluster_url) as events:
        ran, told = asyncio.Queue[str](), asyncio.Queue[tuple[str, str]]()
        events.on("*", lambda event: told.put_nowait((event.event, event.fields.get("scheduler", ""))))
        await events.wait_until_ready()
        await queue.upsert_job_scheduler("often", every=50)
        paused = await queue.pause_job_scheduler("often")
        assert paused is not None
        assert (paused.paused, paused.next_run) == (True, None)
        before = (await queue.get_job_counts()).waiting

        async def note(job: Job) -> None:
            ran.put_nowait(job.name)

        async with asyncio.timeout(120), Worker(queue_name, note, cluster_url):
            await queue.upsert_job_scheduler("sign", every=200)
            while await ran.get() != "sign":  # workers fire, but not this one
                before -= 1
            assert before == 0
            assert await queue.resume_job_scheduler("often") is not None
            while await ran.get() != "often":
                pass
            seen = [await told.get()]
            while seen[-1] != ("scheduler-resumed", "often"):
                seen.append(await told.get())
        assert ("scheduler-paused", "often") in seen
        for name in ("often", "sign"):
            assert await queue.remove_job_scheduler(name)
        await queue.obliterate(force=True)
