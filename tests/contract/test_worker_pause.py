"""Pausing, resuming and removing while workers run."""

import asyncio
from typing import Any

import pytest

from glidemq_py import ClosedError, Job, JobFailedError, Worker
from glidemq_py.errors import StaleAttemptError
from tests.contract.api import Queue, own_id
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, with_timeout


async def test_running_jobs_run_on_and_retries_wait_while_the_queue_is_paused(queue: Queue, worker_for: WorkerFor):
    gate = Gate()

    async def handle(job: Job):
        await gate(job)
        if job.attempts_made == 0:
            raise ValueError
        return "second"

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", attempts=2)
        await gate.next()
        await queue.pause()
        gate.open()
        await recorded.wait("retrying")
        other = await queue.add("n")
        assert (await queue.get_job_counts()).active == 0
        await queue.resume()
        assert await job.wait_until_finished() == "second"
        assert (await other.get_state()) is not None


async def test_a_paused_worker_takes_nothing_and_others_do(queue: Queue, worker_for: WorkerFor):
    gate, other_gate = Gate(), Gate()
    other_gate.open()
    async with worker_for(gate) as worker:
        recorded = EventRecorder(worker)
        first = await queue.add("n", 1)
        await gate.next()
        worker.pause()
        assert worker.is_paused
        assert worker.is_running
        gate.open()
        await first.wait_until_finished()
        await recorded.wait("completed")
        second = await queue.add("n", 2)
        async with worker_for(other_gate):
            await second.wait_until_finished()
        assert [job.id for job in other_gate.begun] == [second.id]
        worker.resume()
        assert not worker.is_paused
        third = await queue.add("n", 3)
        await third.wait_until_finished()
        assert [job.id for job in gate.begun] == [first.id, third.id]


async def test_a_worker_paused_before_a_backlog_leaves_it(queue: Queue, worker_for: WorkerFor):
    """W3: the original's worker fetched on with each completion; paused at job 3, all 20 ran."""
    ran: list[int] = []
    jobs = await queue.add_bulk([("n", n) for n in range(20)])

    async def handle(job: Job):
        ran.append(job.data)
        if len(ran) == 3:
            worker.pause()

    worker = worker_for(handle)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("completed", 3)
        counts = await queue.get_job_counts()
        assert (ran, counts.waiting, counts.active, counts.completed) == ([0, 1, 2], 17, 0, 3)
        worker.resume()
        await jobs[-1].wait_until_finished()


async def test_worker_can_be_paused_before_it_starts(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    gate.open()
    worker = worker_for(gate)
    worker.pause()
    async with worker:
        job = await queue.add("n")
        assert gate.begun == []
        assert worker.unresponsive_seconds == 0
        assert worker.is_healthy
        worker.resume()
        await job.wait_until_finished()


async def test_a_busy_worker_is_healthy(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    async with worker_for(gate) as worker:
        job = await queue.add("n")
        await gate.next()
        assert worker.unresponsive_seconds == 0
        gate.open()
        await job.wait_until_finished()
        assert worker.is_healthy


async def test_the_handler_of_a_removed_job_is_stopped_by_the_next_heartbeat(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    async with worker_for(gate, lock_duration=1_000) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        begun = await gate.next()
        await queue.remove(job.id)
        await recorded.wait("error")
        assert gate.cancelled == 1
        assert begun.cancelled.is_set()
        assert worker.active_count == 0


# -- one job, and the start ---------------------------------------------------------------------------------


async def test_aborting_a_job_ends_its_attempt_alone(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    worker = worker_for(gate, concurrency=2)
    assert not worker.cancel_job("1")
    async with worker:
        one, other = await queue.add_bulk([("n", 1, {"attempts": 3}), ("n", 2)])
        await gate.next()
        await gate.next()
        assert worker.cancel_job(one.id)
        assert not worker.cancel_job(one.id)
        assert not worker.cancel_job("nobody's")
        with pytest.raises(JobFailedError, match="revoked"):
            await one.wait_until_finished()
        gate.open()
        assert await other.wait_until_finished() == 2
        assert not worker.cancel_job(other.id)
    assert gate.cancelled == 1


async def test_wait_until_ready_works_for_any_start(worker_for: WorkerFor):
    worker = worker_for(Gate())
    await asyncio.gather(worker.wait_until_ready(), worker.wait_until_ready())
    assert worker.is_running
    await worker.wait_until_ready()
    await worker.close()
    with pytest.raises(ClosedError):
        await worker.wait_until_ready()


async def test_close_ends_a_pending_wait_until_ready(queue_name: str):
    worker = Worker(queue_name, Gate(), "valkey://127.0.0.1:1")
    waiting = [asyncio.create_task(worker.wait_until_ready()) for _ in range(2)]
    await asyncio.sleep(0)
    await worker.close()
    results = await with_timeout(asyncio.gather(*waiting, return_exceptions=True))
    assert [type(result) for result in results] == [ClosedError, ClosedError]


async def test_no_job_is_fetched_after_queue_pause_returned(raw: Raw, queue: Queue, worker_for: WorkerFor):
    """The queue is paused repeatedly while jobs run: no job starts while it is paused."""
    taken: list[str] = []

    async def handle(job: Job):
        taken.append(job.id)
        await job.get_state()

    async with worker_for(handle, concurrency=8) as worker:
        recorded = EventRecorder(worker)
        added = 0
        for _ in range(5):
            jobs = await queue.add_bulk([("n", n) for n in range(60)])
            added += 60
            await jobs[10].wait_until_finished()
            await queue.pause()
            marked = {job.id: raw.job(job.id).get("fence") for job in jobs}
            assert await queue.is_paused()
            # An exchange of another worker, made after the pause, fetches nothing either.
            async with worker_for(handle):
                pass
            assert {job_id: raw.job(job_id).get("fence") for job_id in marked} == marked
            await queue.resume()
            await recorded.wait("completed", added)
        assert len(taken) == len(set(taken)) == added


@pytest.mark.parametrize("kind", ["stream", "lifo", "priority"])
async def test_idle_workers_are_woken_by_resume(queue: Queue, worker_for: WorkerFor, kind: str, without_polling: None):
    cases: dict[str, dict[str, Any]] = {"stream": {}, "lifo": {"lifo": True}, "priority": {"priority": 5}}
    options = cases[kind]

    async def handle(job: Job) -> str:
        return job.id

    async with worker_for(handle):
        await queue.add_and_wait("n")
        for _ in range(7):
            await queue.pause()
            job = await queue.add("n", **options)
            await queue.resume()
            assert await job.wait_until_finished() == job.id


@pytest.mark.parametrize("kind", ["stream", "lifo", "priority"])
async def test_removing_an_active_job(raw: Raw, queue: Queue, worker_for: WorkerFor, kind: str):
    """Its handler's result is dropped; nothing of the job comes back; nothing pends."""
    gate = Gate()
    cases: dict[str, dict[str, Any]] = {"stream": {}, "lifo": {"lifo": True}, "priority": {"priority": 5}}
    options = cases[kind]
    async with worker_for(gate) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", **options)
        await gate.next()
        assert await queue.remove(job.id)
        assert not await queue.remove(job.id)
        gate.open()
        await recorded.wait("error")
        assert isinstance(recorded.of("error")[0][0], StaleAttemptError)
        assert recorded.count["completed"] == 0
        assert raw.job(job.id) == {}
        assert raw.pending() == []
        assert raw.run("ZCARD", "completed") == 0
        assert raw.run("GET", "list-active") in (None, "0")
        assert raw.run("ZCARD", "list-heartbeats") == 0
        assert raw.event_names(job.id)[-1] == "removed"
        assert (await queue.get_job_counts()).active == 0
        await (await queue.add("n")).wait_until_finished()


async def test_removing_jobs_that_wait(raw: Raw, queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    gate.open()
    jobs = [
        await queue.add("n"),
        await queue.add("n", lifo=True),
        await queue.add("n", priority=1),
        await queue.add("n", delay=60_000),
    ]
    for job in jobs:
        assert await job.remove()
        assert await job.get_state() is None
    last = await queue.add("n")
    async with worker_for(gate) as worker:
        await EventRecorder(worker).wait("drained")
    assert [job.id for job in gate.begun] == [last.id]
    assert raw.keys("job:*") == [f"job:{own_id(last)}"]


async def test_obliterate_under_a_worker(raw: Raw, queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    async with worker_for(gate) as worker:
        recorded = EventRecorder(worker)
        await queue.add_bulk([("n", n) for n in range(5)])
        await gate.next()
        assert await queue.obliterate(force=True) == 5
        gate.open()
        await recorded.wait("error")
        # The next exchange creates the groups again.
        again = await queue.add("n", "again")
        assert await with_timeout(again.wait_until_finished()) == "again"
        assert raw.metric("completed") == 1


async def test_forced_close_releases_jobs(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    async with worker_for(gate) as worker:
        job = await queue.add("n", 7)
        await gate.next()
        await worker.close(force=True)
    gate.open()
    async with worker_for(gate):
        assert await job.wait_until_finished() == 7
    read = await queue.get_job(job.id)
    assert read is not None
    assert read.attempts_made == 0
