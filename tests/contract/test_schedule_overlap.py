"""Schedules whose jobs do not overlap: `overlap="skip"` and `overlap="buffer_one"`."""

import asyncio

from glidemq_py import Job
from tests.contract.api import Queue
from tests.server.worker_support import Gate, WorkerFor, with_timeout


async def test_buffered_job_starts_as_soon_as_the_earlier_one_ends(worker_for: WorkerFor, queue: Queue):
    gate = Gate()

    async def handle(job: Job):
        await gate(job)

    async with worker_for(handle, concurrency=2), asyncio.timeout(100):
        await queue.schedulers.upsert("tick", every=100, overlap="buffer_one", limit=2)
        first = await with_timeout(gate.next())
        while not (found := await queue.schedulers.get("tick")) or not found.buffered:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)
        assert (await queue.get_job_counts()).active == 1
        gate.open()
        second = await with_timeout(gate.next())
        assert second.id != first.id
        await queue.obliterate(force=True)
