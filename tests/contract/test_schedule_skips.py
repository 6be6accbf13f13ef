"""Schedules that add no job while no worker is registered: `skip_without_worker`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import glidemq_py
from glidemq_py import Job, Maintenance, Scheduler
from tests.contract.api import Queue
from tests.server.worker_support import PATIENCE, WorkerFor, with_timeout


@pytest.fixture
async def served(url: str, queue: Queue) -> AsyncIterator[glidemq_py.Queue]:
    """Return the queue for services, which take those of asynchronous code."""
    async with glidemq_py.Queue(queue.name, url) as served:
        yield served


async def until(reached: Callable[[], Awaitable[bool]]):
    async with asyncio.timeout(PATIENCE):
        while not await reached():  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.02)


async def skipped(queue: Queue, times: int) -> bool:
    found = await queue.schedulers.get("tick")
    return found is not None and found.skipped_count >= times


async def has_ended(queue: Queue) -> bool:
    return await queue.schedulers.get("tick") is None


async def test_runs_are_skipped_until_a_worker_is_registered(
    queue: Queue,
    served: glidemq_py.Queue,
    worker_for: WorkerFor,
):
    made = await queue.schedulers.upsert("tick", every=200, skip_without_worker=True)
    assert (made.schedule.skip_without_worker, made.for_peers, made.skipped_count) == (True, False, 0)
    done = asyncio.Event()

    async def handler(job: Job):
        done.set()

    async with Scheduler(served):
        await until(lambda: skipped(queue, 2))
        idle = await queue.schedulers.get("tick")
        assert idle is not None
        assert (await queue.count(), idle.iteration_count, idle.last_run) == (0, 0, None)
        assert idle.last_skipped is not None
        async with worker_for(handler):
            await with_timeout(done.wait())


async def test_an_update_keeps_the_number_of_skipped_runs(queue: Queue, served: glidemq_py.Queue):
    await queue.schedulers.upsert("tick", every=100, skip_without_worker=True)
    async with Scheduler(served):
        await until(lambda: skipped(queue, 2))
    again = await queue.schedulers.upsert("tick", every=100, skip_without_worker=True, template=("tick", 5))
    assert again.skipped_count >= 2
    assert again.last_skipped is not None


async def test_a_worker_fires_for_itself(
    queue: Queue,
    worker_for: WorkerFor,
):
    done = asyncio.Event()

    async def handler(job: Job):
        done.set()

    async with worker_for(handler):
        await queue.schedulers.upsert("tick", every=100, skip_without_worker=True)
        await with_timeout(done.wait())


async def test_maintenance_is_no_worker(queue: Queue, served: glidemq_py.Queue):
    await queue.schedulers.upsert("tick", every=200, skip_without_worker=True)
    async with Maintenance([served]):
        await until(lambda: skipped(queue, 2))
    assert await queue.count() == 0


async def test_last_run_is_skipped_too(queue: Queue, served: glidemq_py.Queue):
    """The schedule ends; its job is not added although it is the last one."""
    made = await queue.schedulers.upsert("tick", every=200, skip_without_worker=True)
    assert made.next_run is not None
    await queue.schedulers.upsert("tick", every=200, skip_without_worker=True, end_date=made.next_run + 250)
    async with Scheduler(served):
        await until(lambda: has_ended(queue))
    assert await queue.count() == 0
