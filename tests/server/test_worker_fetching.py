"""Fetching: order, expiry, due times, wake-ups, several workers, many jobs."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import RespClient
from tests.inside import fetch_calls, fetching_of
from tests.server.worker_support import EventRecorder, Gate, Raw, with_timeout


@pytest.mark.slow
@pytest.mark.parametrize(("place", "options"), [("priority", {"priority": 1}), ("lifo", {"lifo": "1"})])
async def test_a_job_that_a_peer_put_into_a_list_is_found_by_polling(
    core_url: str, core_resp: RespClient, queue_name: str, place: str, options: Any
):
    """Such a peer writes no wake-up: an idle worker must poll."""
    assert fetch_calls.BLOCK_MS < 1_000

    async def handle(_: Job):
        pass

    raw = Raw(core_resp, queue_name)
    async with Worker(queue_name, handle, core_url) as worker:
        recorded = EventRecorder(worker)
        for n in range(1, 4):
            raw.put_job(f"peer-{n}", place=place, **options)
            await recorded.wait("completed", n)


async def test_a_job_that_ends_at_its_start_frees_its_own_slot_only(url: str, queue: Queue, queue_name: str):
    """The jobs of one reply occupy their slots from its arrival: the first fails at once, before the second starts."""
    gate = Gate()
    worker = Worker(queue_name, connection=url, concurrency=2)

    @worker.task
    async def known(job: Job):
        await gate(job)

    await queue.add_bulk([("unknown", {}), *[("known", {})] * 5])
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("failed")
        await gate.next()
        await gate.next()
        fetching = fetching_of(worker)
        assert fetching is not None
        await with_timeout(fetching.until(lambda: not fetching.engine.calls_in_flight and not fetching.engine.finished))
        await asyncio.sleep(0)  # a job that was fetched too many would begin here
        begun = len(gate.begun)
        gate.open()
        await recorded.wait("completed", 5)
    assert begun == 2
