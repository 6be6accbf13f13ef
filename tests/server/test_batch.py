"""Batch handlers: how batches are collected, and the separate outcome of each job."""

from glidemq_py import (
    Job,
    Queue,
    Worker,
)
from glidemq_py.testing import RespClient
from tests.contract.test_batch import BatchGate
from tests.inside import fetching_of
from tests.server.worker_support import EventRecorder, Raw, WorkerFor, until, with_timeout


async def test_partial_batches_count_against_concurrency(core_url: str, queue_name: str):
    gate = BatchGate()
    async with (
        Queue(queue_name, core_url) as queue,
        Worker(queue_name, gate, core_url, batch={"size": 5}, concurrency=2) as worker,
    ):
        recorded = EventRecorder(worker)
        for n in range(2):  # two batches of one
            await queue.add("n", n)
            await gate.next()
        await queue.add_bulk([("n", n) for n in range(8)])
        # A third would have to be taken first: see that the worker leaves them alone.
        await worker_is_quiet(worker)
        assert (gate.running, worker.active_count, (await queue.get_job_counts()).waiting) == (2, 2, 8)
        gate.opened.set()
        await recorded.wait("completed", 10)
    assert gate.most == 2
    assert gate.sizes[:2] == [1, 1]


async def worker_is_quiet(worker: Worker):
    fetching = fetching_of(worker)
    assert fetching is not None
    fetching.request_jobs()
    await with_timeout(until(lambda: fetching.engine.requested_slots == 0 and not fetching.engine.calls_in_flight))


async def test_global_concurrency_bounds_batches_and_strands_nothing(
    core_url: str, core_resp: RespClient, queue_name: str
):
    """W17: entries beyond the limit were read and dropped, "active" until they stalled."""
    most = 0
    raw = Raw(core_resp, queue_name)

    async def handle(jobs: list[Job]) -> list[int]:
        nonlocal most
        most = max(most, len(raw.pending()))
        return [job.data for job in jobs]

    async with Queue(queue_name, core_url) as queue:
        await queue.limits.set_concurrency(6)
        await queue.add_bulk([("n", n) for n in range(20)])
        workers = [Worker(queue_name, handle, core_url, batch={"size": 10}) for _ in range(2)]
        recorded = EventRecorder(*workers)
        async with workers[0], workers[1]:
            await recorded.wait("completed", 20)
        assert (await queue.get_job_counts()).active == 0
    assert 1 <= most <= 6


async def test_the_rate_limit_bounds_batches(queue: Queue, worker_for: WorkerFor):
    gate = BatchGate()
    gate.opened.set()
    await queue.limits.set_rate_limit(3, 60_000)
    await queue.add_bulk([("n", n) for n in range(8)])
    async with worker_for(gate, batch={"size": 5}) as worker:
        await EventRecorder(worker).wait("completed", 3)
        await worker_is_quiet(worker)
    assert gate.sizes == [3]


async def test_a_paused_worker_takes_no_batch(queue: Queue, worker_for: WorkerFor):
    gate = BatchGate()
    gate.opened.set()
    async with worker_for(gate, batch={"size": 3}) as worker:
        worker.pause()
        await worker_is_quiet(worker)
        await queue.add_bulk([("n", n) for n in range(3)])
        await worker_is_quiet(worker)
        assert gate.begun == []
        worker.resume()
        await gate.next()
        await queue.pause()
        await queue.add("n", 3)
        await worker_is_quiet(worker)
        assert gate.sizes == [3]
