"""`TestWorker` of a partitioned `TestQueue`: its steps go through the partitions in turn."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_py import Job, Queue, RateLimitError, Worker
from glidemq_py._features.partitions.layout import split_partition_id
from glidemq_py.testing import TestQueue, TestWorker

PARTITIONS = 3
KEYS = [f"customer-{number}" for number in range(12)]


async def double(job: Job[int, int]) -> int:
    return job.data * 2


async def add_to_all(queue: Queue) -> list[Job]:
    jobs = await queue.add_bulk([("n", at, {"job_id": key}) for at, key in enumerate(KEYS)])
    assert {split_partition_id(job.id)[0] for job in jobs} == set(range(PARTITIONS))
    return jobs


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_steps(concurrency: int) -> None:
    async with TestQueue("emails", partitions=PARTITIONS) as queue:
        worker = queue.worker(double, concurrency=concurrency)
        jobs = await add_to_all(queue)
        assert worker.runs == []
        run = await worker.run_one()
        assert run is not None
        assert run.outcome == "completed"
        assert (await queue.get_job_counts()).waiting == len(KEYS) - 1
        await worker.run_until_idle()
        assert sorted(run.job.id for run in worker.runs) == sorted(job.id for job in jobs)
        assert sorted(run.result for run in worker.runs) == [2 * at for at in range(len(KEYS))]
        assert await worker.run_one() is None
        (found,) = await queue.get_workers()
        assert found.active_jobs == 0
        await worker.close()
        assert await queue.get_workers() == []


async def test_jobs_that_add_jobs_to_other_partitions() -> None:
    async with TestQueue("emails", partitions=PARTITIONS) as queue:

        async def handle(job: Job) -> None:
            if job.data:
                await queue.add("n", job.data - 1, ordering={"key": KEYS[job.data]})

        async with queue.worker(handle) as worker:
            await queue.add("n", len(KEYS) - 1)
            assert len(await worker.run_until_idle()) == len(KEYS)


async def test_retries_delays_and_schedulers_of_all_partitions() -> None:
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
            await queue.upsert_job_scheduler(key, every=60_000, template={"name": key})
        queue.clock.advance(60_000)
        assert sorted(run.job.name for run in await worker.run_until_idle()) == sorted(KEYS)


async def test_a_rate_limited_worker_continues_once_the_time_has_passed() -> None:
    limited = True

    async def handle(job: Job) -> None:
        nonlocal limited
        if limited:
            limited = False
            raise RateLimitError(30_000)

    async with TestQueue("emails", partitions=PARTITIONS) as queue, queue.worker(handle) as worker:
        await add_to_all(queue)
        began = queue.clock.now()
        await worker.run_until_empty()
        assert (await queue.get_job_counts()).completed == len(KEYS)
        assert queue.clock.now() - began == 30_000


async def test_stalled_jobs_of_all_partitions_are_recovered() -> None:
    async with TestQueue("emails", partitions=PARTITIONS) as queue, queue.worker(double) as worker:
        jobs = await add_to_all(queue)
        assert len(await queue.fetch(len(KEYS), lock_duration=30_000)) == len(KEYS)
        queue.clock.advance(31_000)
        assert sorted(await worker.recover_stalled()) == sorted(job.id for job in jobs)


async def test_batches() -> None:
    async def handle(jobs: list[Job]) -> list[Any]:
        return [len(jobs)] * len(jobs)

    async with (
        TestQueue("emails", partitions=PARTITIONS) as queue,
        queue.worker(handle, batch={"size": 4}) as worker,
    ):
        await add_to_all(queue)
        assert len(await worker.run_until_idle()) == len(KEYS)


async def test_the_number_changes_between_steps() -> None:
    async with TestQueue("emails") as queue, queue.worker(double) as worker:
        await queue.add_bulk([("n", at) for at in range(3)])
        assert await worker.run_one() is not None
        await queue.set_partitions(PARTITIONS)
        await add_to_all(queue)
        assert len(await worker.run_until_idle()) == len(KEYS) + 2
        await queue.set_partitions(PARTITIONS + 2)
        jobs = await queue.add_bulk([("n", at) for at in range(2_000)])
        assert {split_partition_id(job.id)[0] for job in jobs} == set(range(PARTITIONS + 2))
        await worker.drain()
        assert (await queue.get_job_counts()).completed == len(KEYS) + 2_003


async def test_a_worker_of_the_program() -> None:
    program = Worker("elsewhere", double)
    async with (
        TestQueue("emails", partitions=PARTITIONS) as queue,
        TestWorker.of(program, queue) as worker,
    ):
        await add_to_all(queue)
        await worker.drain()
        assert len(worker.runs) == len(KEYS)
