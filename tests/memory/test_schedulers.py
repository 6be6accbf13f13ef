"""Schedulers in memory: they fire when the test advances the clock."""

import pytest

from glidemq_py import Job
from glidemq_py.testing import TestQueue, TestWorker


async def handle(job: Job) -> str:
    return job.name


@pytest.mark.parametrize("partitions", [None, 3])
async def test_schedulers_fire_when_the_clock_advances(partitions: int | None):
    async with TestQueue("reports", partitions=partitions) as queue, TestWorker(queue, handle) as worker:
        await queue.schedulers.upsert("hourly", every=3_600_000, limit=2)
        await queue.schedulers.upsert("crawl", repeat_after_complete=60_000)
        assert [run.result for run in await worker.run_until_idle()] == ["crawl"]
        queue.clock.advance(60_000)
        assert [run.result for run in await worker.run_until_idle()] == ["crawl"]
        queue.clock.advance(3_540_000)
        assert sorted(str(run.result) for run in await worker.run_until_idle()) == ["crawl", "hourly"]
        queue.clock.advance(3_600_000)
        assert sorted(str(run.result) for run in await worker.run_until_empty()) == ["crawl", "hourly"]
        assert [each.name for each in await queue.schedulers.get_all()] == ["crawl"]
