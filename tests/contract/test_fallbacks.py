"""Fallback chains through retries, steps and manual retries."""

from glidemq_py import Job
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, WorkerFor


async def test_each_retry_has_the_next_fallback(queue: Queue, worker_for: WorkerFor):
    seen: list[tuple[int, str | None]] = []

    async def handle(job: Job):
        fallback = job.current_fallback
        seen.append((job.fallback_index, fallback.model if fallback else None))
        raise ValueError(job.fallback_index)

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", attempts=4, fallbacks=["b", {"model": "c", "provider": "p"}])
        await recorded.wait("failed")
        assert seen == [(0, None), (1, "b"), (2, "c"), (3, None)]
        read = await queue.get_job(job.id)
        assert read is not None
        assert (read.fallback_index, [each["model"] for each in read.opts["fallbacks"]]) == (3, ["b", "c"])
        await job.retry()
        await recorded.wait("failed", 2)
        assert seen[4:] == seen[:4]


async def test_steps_and_signals_keep_the_fallback(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        if not job.data:
            job.move_to_delayed(1, data={"step": 1})
        await job.wait_for_signal("go")
        if job.attempts_made == 0:
            raise ValueError
        return job.current_fallback.model if job.current_fallback else None

    async with worker_for(handle):
        job = await queue.add("n", attempts=2, fallbacks=["b", "c"])
        await queue.signal(job.id, "go")
        assert await job.wait_until_finished() == "b"


async def test_jobs_without_fallbacks_have_no_index(queue: Queue, worker_for: WorkerFor, raw: Raw):
    async def handle(job: Job):
        raise ValueError

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", attempts=2)
        await recorded.wait("failed")
        assert "fallbackIndex" not in raw.job(job.id)
