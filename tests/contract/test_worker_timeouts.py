"""Timeouts of jobs: an async handler is cancelled; a handler in a thread continues, but its attempt has ended."""

import asyncio
import threading
import time
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError, Worker
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, Gate, WorkerFor


async def test_timeout_counts_an_attempt_and_the_next_one_can_succeed(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job) -> int:
        if job.attempts_made == 0:
            await asyncio.Event().wait()
        return job.attempts_made

    async with worker_for(handle):
        assert await queue.add_and_wait("n", timeout=30, attempts=2) == 1


@pytest.mark.parametrize("batch", [None, {"size": 1}], ids=["single", "batch"])
async def test_a_handler_that_is_cancelled_before_its_first_step_frees_its_slot(
    queue: Queue, worker_for: WorkerFor, batch: Any
):
    async def handle(jobs: Any):
        return None if batch is None else [None] * len(jobs)

    worker = worker_for(handle, batch=batch)

    def cancel(job: Job):
        if job.name == "cancelled":
            asyncio.get_running_loop().call_soon(worker.cancel_job, job.id)  # before the first step of its task

    worker.on("active", cancel)
    async with worker:
        cancelled = await queue.add("cancelled")
        with pytest.raises(JobFailedError, match="revoked"):
            await cancelled.wait_until_finished()
        assert await queue.add_and_wait("next", wait_timeout=20_000) is None
        assert worker.active_count == 0


async def test_handler_that_ends_in_time_is_not_cancelled(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job) -> str:
        await asyncio.sleep(0)
        return "quick"

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", timeout=60_000)
        assert await job.wait_until_finished() == "quick"
        await recorded.wait("completed")
        assert not recorded.of("completed")[0][0].cancelled.is_set()


async def test_retry_can_run_concurrently_with_a_timed_out_thread(queue: Queue, worker_for: WorkerFor):
    leave = threading.Event()

    def handle(job: Job) -> int:
        if job.attempts_made == 0:
            leave.wait(20)
        return job.attempts_made

    async with worker_for(handle, concurrency=2):
        # On a slow machine a thread may not start in time: then it is the next attempt that is quick enough.
        assert await queue.add_and_wait("n", timeout=100, attempts=100) >= 1
        leave.set()


@pytest.mark.exclude("partitioned", reason="each partition fetches for itself")
async def test_a_job_that_timed_out_before_a_thread_was_free_is_not_begun(queue: Queue, worker_for: WorkerFor):
    """Threads are added after a short delay; an attempt that ended meanwhile must not start."""
    began: Any = []
    hold = threading.Event()

    def handle(job: Job):
        began.append(job.data)
        hold.wait(20)

    jobs = await queue.add_bulk([("n", 0), ("n", 1, {"timeout": 1}), ("n", 2, {"timeout": 1})])
    worker = worker_for(handle, concurrency=3)
    recorded = EventRecorder(worker)

    def block_the_loop(job: Job):
        if job.data == 2:
            time.sleep(0.05)  # blocks the event loop on purpose

    worker.on("active", block_the_loop)
    async with worker:
        await recorded.wait("failed", 1)
        hold.set()
        await recorded.wait("completed")
        await recorded.until(lambda recorded: worker.active_count == 0 or recorded.count["drained"] > 0)
    assert began in ([0], [0, 2])
    assert jobs[1].id in recorded.job_ids("failed")


async def test_the_time_before_it_is_taken_does_not_count(
    worker_for: WorkerFor, url: Any, queue: Queue, queue_name: str
):
    gate = Gate()

    async def handle(job: Job):
        return await gate(job) if job.data == "first" else "second"

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        await queue.add("n", "first")
        await gate.next()
        second = await queue.add("n", "second", timeout=50)
        # A third job's time-out is the clock: when it has passed elsewhere, so has the second one's.
        async with Worker(f"{queue_name}-clock", Gate(), url), Queue(f"{queue_name}-clock", url) as clock:
            with pytest.raises(JobFailedError):
                await clock.add_and_wait("n", timeout=60)
        gate.open()
        assert await second.wait_until_finished() == "second"
        assert recorded.count["failed"] == 0


async def test_an_async_handler_is_cancelled(raw: Raw, queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    async with worker_for(gate) as worker:
        job = await queue.add("n", timeout=40)
        with pytest.raises(JobFailedError) as caught:
            await job.wait_until_finished()
        assert caught.value.failed_type == "JobTimeoutError"
        assert "40 ms" in caught.value.failed_reason
        assert gate.cancelled == 1
        assert gate.begun[0].cancelled.is_set()
        assert worker.active_count == 0
        assert raw.event_names(job.id) == ["added", "failed"]
