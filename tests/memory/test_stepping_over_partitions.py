"""`TestWorker` of a partitioned `TestQueue`: its steps go through the partitions in turn."""

from __future__ import annotations

import asyncio

from glidemq_py import Job, Queue
from glidemq_py.testing import TestQueue
from tests.inside import partition_of

PARTITIONS = 3
KEYS = [f"customer-{number}" for number in range(12)]


async def double(job: Job[int, int]) -> int:
    return job.data * 2


async def add_to_all(queue: Queue) -> list[Job]:
    jobs = await queue.add_bulk([("n", at, {"job_id": key}) for at, key in enumerate(KEYS)])
    assert {partition_of(job.id) for job in jobs} == set(range(PARTITIONS))
    return jobs


async def test_jobs_that_add_jobs_to_other_partitions():
    async with TestQueue("emails", partitions=PARTITIONS) as queue:

        async def handle(job: Job):
            if job.data:
                await queue.add("n", job.data - 1, ordering={"key": KEYS[job.data]})

        async with queue.worker(handle) as worker:
            await queue.add("n", len(KEYS) - 1)
            assert len(await worker.run_until_idle()) == len(KEYS)


async def test_retries_delays_and_schedulers_of_all_partitions():
    async def flaky(job: Job) -> int:
        if job.attempts_made == 0 and job.name == "flaky":
            raise ConnectionError("not now")
        return job.attempts_made

    async with TestQueue("emails", partitions=PARTITIONS) as queue, queue.worker(flaky) as worker:
        for number, key in enumerate(KEYS):
            await queue.add("flaky", job_id=key, attempts=3, backoff=60_000 * (number + 1))
            await queue.add("later", job_id=f"{key}-later", delay=1_000 * (number + 1))
        began = queue.clock.now()
        runs = await worker.run_until_empty()
        assert [run.outcome for run in runs].count("retrying") == len(KEYS)
        assert [run.outcome for run in runs].count("completed") == 2 * len(KEYS)
        assert queue.clock.now() - began == 60_000 * len(KEYS)
        for key in KEYS:
            await queue.schedulers.upsert(key, every=60_000, template={"name": key})
        queue.clock.advance(60_000)
        assert sorted(run.job.name for run in await worker.run_until_idle()) == sorted(KEYS)


async def test_stalled_jobs_of_all_partitions_are_recovered():
    async with TestQueue("emails", partitions=PARTITIONS) as queue, queue.worker(double) as worker:
        jobs = await add_to_all(queue)
        assert len(await queue.fetch(len(KEYS), lock_duration=30_000)) == len(KEYS)
        queue.clock.advance(31_000)
        assert sorted(await worker.recover_stalled()) == sorted(job.id for job in jobs)


async def test_partitions_are_created_while_a_worker_is_open():
    async with TestQueue("emails") as queue, queue.worker(double) as worker:
        assert await worker.run_one() is None
        async with TestQueue("emails", server=queue.server, partitions=PARTITIONS):
            await add_to_all(queue)
        assert len(await worker.run_until_idle()) == len(KEYS)


async def test_partitions_that_are_found_later_wake_no_step():
    async with TestQueue("emails") as plain, plain.worker(double) as worker:
        assert await worker.run_until_idle() == []
        before = {task.get_name() for task in asyncio.all_tasks()}
        async with TestQueue("emails", server=plain.server, partitions=2) as queue:
            await queue.add("n", 1)
            assert [run.result for run in await worker.run_until_idle()] == [2]
            begun = {task.get_name() for task in asyncio.all_tasks()} - before
            assert "glidemq-wake-channels" not in begun
