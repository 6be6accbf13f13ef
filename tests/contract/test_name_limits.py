"""Limits per job name: concurrency and rate, in every source of ready jobs, and beside other jobs."""

from typing import Any

from glidemq_py import Job
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, Gate, WorkerFor


async def test_retries_delays_and_flows_return_to_their_name(parts: int, queue: Queue, worker_for: WorkerFor, raw: Raw):
    await queue.limits.set_for_name("slow", concurrency=parts)
    retried = {"attempts": 3, "backoff": 1}
    await queue.add_bulk([("slow", "fails", retried), ("slow", "later", {"delay": 5}), ("slow", "last")])
    active, most, ran = 0, 0, list[Any]()

    async def handle(job: Job):
        nonlocal active, most
        active += 1
        most = max(most, active)
        ran.append(job.data)
        try:
            await queue.get_job_counts()  # gives other jobs the chance to start
            if job.data == "fails" and job.attempts_made < 2:
                raise ValueError
        finally:
            active -= 1

    worker = worker_for(handle, concurrency=10)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("completed", 3)
    assert (most, sorted(ran)) == (1, ["fails", "fails", "fails", "last", "later"])
    assert not raw.run("EXISTS", "fair-running")
    assert not raw.run("EXISTS", "fair-active")


async def test_worker_that_waits_for_a_name_is_woken(parts: int, queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    await queue.limits.set_for_name("slow", concurrency=parts)
    async with worker_for(gate, concurrency=4):
        await queue.add_bulk([("slow", 1), ("slow", 2)])
        await gate.next()
        await queue.limits.set_for_name("slow", concurrency=2 * parts)
        await gate.next()
        gate.open()


async def test_a_job_below_all_ranks_is_fetched_at_once(parts: int, queue: Queue):
    await queue.limits.set_for_name("slow", concurrency=parts)
    job = await queue.add("slow", rank=-5)
    (lease,) = await queue.fetch(1)
    assert lease.job.id == job.id
    await queue.leases.complete([(lease, None)])
