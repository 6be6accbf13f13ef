"""Adding, running, retrying, steps, results, events."""

import asyncio
from typing import Any

import pytest

from glidemq_py import (
    Job,
    JobFailedError,
    JobRevokedError,
    Queue,
    QueueEvents,
    UnrecoverableError,
    Worker,
    current_job,
)
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import MemoryServer

Place = MemoryServer | str


async def echo(job: Job) -> Any:
    return job.data


async def test_job_is_added_run_and_read(place: Place, queue: Queue) -> None:
    data: dict[str, Any] = {
        "text": 'grüße 🎉 / \\ "',
        "numbers": [1, 2.5, -3, 2**53],
        "nothing": None,
        "flag": True,
        "empty": {},
    }
    async with Worker(queue.name, echo, place):
        job = await queue.add("n", data)
        assert await job.wait_until_finished() == data
    read = await queue.get_job(job.id)
    assert read is not None
    assert (read.name, read.data, read.returnvalue, read.state) == ("n", data, data, "completed")
    assert read.timestamp <= (read.processed_on or 0) <= (read.finished_on or 0)


async def test_bulk_keeps_order(place: Place, queue: Queue) -> None:
    begun: list[int] = []

    async def handle(job: Job) -> None:
        begun.append(job.data)

    jobs = await queue.add_bulk([("n", number) for number in range(250)])
    assert len({job.id for job in jobs}) == 250
    assert (await queue.get_job_counts()).waiting == 250
    async with Worker(queue.name, handle, place) as worker:
        await worker.drain()
    assert begun == list(range(250))
    assert (await queue.get_job_counts()).completed == 250


async def test_custom_ids_are_unique(place: Place, queue: Queue) -> None:
    first = await queue.add("n", 1, job_id="mine")
    again = await queue.add("n", 2, job_id="mine")
    assert (first.outcome, again.outcome, again.id) == ("added", "duplicate", "mine")
    assert await queue.count() == 1


@pytest.mark.parametrize("source", [{}, {"lifo": True}, {"priority": 4}, {"ordering": "k"}])
async def test_failed_attempt_is_retried(place: Place, queue: Queue, source: dict[str, Any]) -> None:
    async def handle(job: Job) -> int:
        if job.attempts_made < 2:
            raise ValueError(f"failure {job.attempts_made}")
        return job.attempts_made

    async with Worker(queue.name, handle, place):
        assert await queue.add_and_wait("n", attempts=3, backoff=20, **source) == 2


async def test_job_fails_after_its_last_attempt(place: Place, queue: Queue) -> None:
    async def handle(job: Job) -> None:
        raise UnrecoverableError("never") if job.data == "never" else ValueError("again")

    async with Worker(queue.name, handle, place):
        with pytest.raises(JobFailedError, match="again"):
            await queue.add_and_wait("n", attempts=2, backoff=5)
        with pytest.raises(JobFailedError, match="never"):
            await queue.add_and_wait("n", "never", attempts=5)
    ones = {job.data: job for job in await queue.get_jobs("failed")}
    assert (ones[None].attempts_made, ones["never"].attempts_made) == (2, 1)
    assert ones[None].failed_type == "ValueError"
    assert (await queue.get_metrics("failed")).count == 2


async def test_failed_jobs_can_be_requeued(place: Place, queue: Queue) -> None:
    broken = True

    async def handle(_: Job) -> str:
        if broken:
            raise ValueError("broken")
        return "mended"

    async with Worker(queue.name, handle, place):
        jobs = await queue.add_bulk([("n",)] * 3)
        for job in jobs:
            with pytest.raises(JobFailedError):
                await job.wait_until_finished()
        broken = False
        assert await queue.retry_jobs() == 3
        for job in jobs:
            assert await job.wait_until_finished() == "mended"


async def test_steps_progress_and_logs(place: Place, queue: Queue) -> None:
    async def handle(job: Job) -> str:
        assert current_job() is job
        await job.log("begun")
        await job.update_progress({"step": job.data["step"]})
        if job.data["step"] == 1:
            await job.move_to_delayed(20, data={"step": 2})
        return f"step {job.data['step']}"

    async with Worker(queue.name, handle, place):
        job = await queue.add("n", {"step": 1})
        assert await job.wait_until_finished() == "step 2"
    assert await job.logs() == ["begun", "begun"]
    read = await queue.get_job(job.id)
    assert read is not None
    assert (read.progress, read.attempts_made) == ({"step": 2}, 0)


async def test_signals_resume_a_suspended_job(place: Place, queue: Queue) -> None:
    async def handle(job: Job) -> Any:
        return (await job.wait_for_signal("approve", timeout=60_000)).data

    async with Worker(queue.name, handle, place) as worker:
        suspended = asyncio.Event()
        worker.on("suspended", lambda *_: suspended.set())
        job = await queue.add("n")
        await asyncio.wait_for(suspended.wait(), 30)
        assert await job.get_state() == "suspended"
        assert await queue.signal(job.id, "approve", {"by": "eve"})
        assert await job.wait_until_finished() == {"by": "eve"}


async def test_running_job_can_be_cancelled(place: Place, queue: Queue) -> None:
    started = asyncio.Event()

    async def handle(_: Job) -> None:
        started.set()
        await asyncio.Event().wait()

    async with Worker(queue.name, handle, place, lock_duration=1000):
        job = await queue.add("n")
        await asyncio.wait_for(started.wait(), 30)
        await queue.revoke(job.id)
        with pytest.raises((JobFailedError, JobRevokedError)):
            await job.wait_until_finished()


async def test_timeout_ends_the_attempt(place: Place, queue: Queue) -> None:
    async def handle(_: Job) -> None:
        await asyncio.sleep(60)

    async with Worker(queue.name, handle, place):
        with pytest.raises(JobFailedError):
            await queue.add_and_wait("n", timeout=30)


async def test_all_events_are_published(place: Place, queue: Queue) -> None:
    received: list[tuple[str, str]] = []
    async with QueueEvents(queue.name, place) as events, Worker(queue.name, echo, place) as worker:
        over = asyncio.Event()

        def listen(event: Any) -> None:
            received.append((event.event, event.job_id))
            if event.event == "completed":
                over.set()

        events.on("*", listen)
        job = await queue.add("n", 5)
        await asyncio.wait_for(over.wait(), 30)
        assert [name for name, job_id in received if job_id == job.id] == ["added", "completed"]
        await worker.close()


async def test_plain_function_runs_in_a_thread(place: Place, queue: Queue) -> None:
    def handle(job: Job) -> int:
        job.blocking.log("from a thread")
        return job.data + 1

    async with Worker(queue.name, handle, place):
        assert await queue.add_and_wait("n", 1) == 2


async def test_blocking_queue_adds_and_waits(place: Place, queue: Queue) -> None:
    def produce() -> Any:
        with BlockingQueue(queue.name, place) as blocking:
            blocking.add_bulk([("n", 1), ("n", 2)])
            return blocking.add_and_wait("n", 3)

    async with Worker(queue.name, echo, place):
        assert await asyncio.to_thread(produce) == 3
    assert (await queue.get_job_counts()).completed == 3


async def test_closing_worker_releases_its_jobs(place: Place, queue: Queue) -> None:
    started = asyncio.Event()

    async def hang(_: Job) -> None:
        started.set()
        await asyncio.Event().wait()

    async with Worker(queue.name, hang, place) as worker:
        job = await queue.add("n", 7)
        await asyncio.wait_for(started.wait(), 30)
        await worker.close(force=True)
    async with Worker(queue.name, echo, place):
        assert await job.wait_until_finished() == 7
    read = await queue.get_job(job.id)
    assert read is not None
    assert read.attempts_made == 0
