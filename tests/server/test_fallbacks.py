"""Fallback chains through retries, steps and manual retries."""

from typing import Any

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder, Raw


async def test_each_retry_has_the_next_fallback(core_url: str, queue_name: str) -> None:
    seen: list[tuple[int, str | None]] = []

    async def handle(job: Job) -> Any:
        fallback = job.current_fallback
        seen.append((job.fallback_index, fallback.model if fallback else None))
        raise ValueError(job.fallback_index)

    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handle, core_url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", attempts=4, fallbacks=["b", {"model": "c", "provider": "p"}])
        await recorded.wait("failed")
        assert seen == [(0, None), (1, "b"), (2, "c"), (3, None)]
        read = await queue.get_job(job.id)
        assert read is not None
        assert (read.fallback_index, [each.model for each in read.fallbacks]) == (3, ["b", "c"])
        await job.retry()
        await recorded.wait("failed", 2)
        assert seen[4:] == seen[:4]


async def test_steps_and_signals_keep_the_fallback(url: str, queue_name: str) -> None:
    async def handle(job: Job) -> Any:
        if not job.data:
            job.move_to_delayed(1, data={"step": 1})
        await job.wait_for_signal("go")
        if job.attempts_made == 0:
            raise ValueError
        return job.current_fallback.model if job.current_fallback else None

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        job = await queue.add("n", attempts=2, fallbacks=["b", "c"])
        await queue.signal(job.id, "go")
        assert await job.wait_until_finished() == "b"


async def test_jobs_without_fallbacks_have_no_index(url: str, queue_name: str, resp: RespClient) -> None:
    async def handle(job: Job) -> Any:
        raise ValueError

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        job = await queue.add("n", attempts=2)
        await EventRecorder(worker).wait("failed")
        assert "fallbackIndex" not in Raw(resp, queue_name).job(job.id)
