"""Schedules that add no job while no worker is registered: `skip_without_worker`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from glidemq_py import GlideMQValidationError, Job, Maintenance, Queue, Schedule, Scheduler, Worker
from tests.server.worker_support import PATIENCE, with_timeout


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url) as queue:
        yield queue
        await queue.obliterate(force=True)


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await reached():  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.02)


async def skipped(queue: Queue, times: int) -> bool:
    found = await queue.get_job_scheduler("tick")
    return found is not None and found.skipped_count >= times


async def has_ended(queue: Queue) -> bool:
    return await queue.get_job_scheduler("tick") is None


async def test_runs_are_skipped_until_a_worker_is_registered(queue: Queue, url: str) -> None:
    made = await queue.upsert_job_scheduler("tick", every=200, skip_without_worker=True)
    assert (made.schedule.skip_without_worker, made.for_peers, made.skipped_count) == (True, False, 0)
    done = asyncio.Event()

    async def handler(job: Job) -> None:
        done.set()

    async with Scheduler(queue):
        await until(lambda: skipped(queue, 2))
        idle = await queue.get_job_scheduler("tick")
        assert idle is not None
        assert (await queue.count(), idle.iteration_count, idle.last_run) == (0, 0, None)
        assert idle.last_skipped is not None
        async with Worker(queue.name, handler, url):
            await with_timeout(done.wait())


async def test_older_builds_refuse_the_queue(queue: Queue) -> None:
    await queue.upsert_job_scheduler("tick", every=60_000)
    assert await queue.get_features() == {}
    await queue.upsert_job_scheduler("tick", every=60_000, skip_without_worker=True)
    assert list(await queue.get_features()) == ["schedule-workers"]


async def test_an_update_keeps_the_number_of_skipped_runs(queue: Queue) -> None:
    await queue.upsert_job_scheduler("tick", every=100, skip_without_worker=True)
    async with Scheduler(queue):
        await until(lambda: skipped(queue, 2))
    again = await queue.upsert_job_scheduler("tick", every=100, skip_without_worker=True, template=("tick", 5))
    assert again.skipped_count >= 2
    assert again.last_skipped is not None


async def test_a_worker_fires_for_itself(queue: Queue, url: str) -> None:
    done = asyncio.Event()

    async def handler(job: Job) -> None:
        done.set()

    async with Worker(queue.name, handler, url):
        await queue.upsert_job_scheduler("tick", every=100, skip_without_worker=True)
        await with_timeout(done.wait())


async def test_maintenance_is_no_worker(queue: Queue) -> None:
    await queue.upsert_job_scheduler("tick", every=200, skip_without_worker=True)
    async with Maintenance([queue]):
        await until(lambda: skipped(queue, 2))
    assert await queue.count() == 0


async def test_last_run_is_skipped_too(queue: Queue) -> None:
    """The schedule ends; its job is not added although it is the last one."""
    made = await queue.upsert_job_scheduler("tick", every=200, skip_without_worker=True)
    assert made.next_run is not None
    await queue.upsert_job_scheduler("tick", every=200, skip_without_worker=True, end_date=made.next_run + 250)
    async with Scheduler(queue):
        await until(lambda: has_ended(queue))
    assert await queue.count() == 0


def test_not_for_schedules_that_wait_for_their_job() -> None:
    with pytest.raises(GlideMQValidationError, match="skip_without_worker"):
        Schedule(repeat_after_complete=1_000, skip_without_worker=True)
