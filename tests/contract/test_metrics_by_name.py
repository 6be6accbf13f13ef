"""Test figures per job name with workers."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError
from glidemq_py.records import MetricsByNameSetting
from tests.contract.api import Queue
from tests.server.worker_support import WorkerFor

pytestmark = pytest.mark.usefixtures("clean_check")


async def work(job: Job):
    if job.name == "slow":
        await asyncio.sleep(0.05)
    if job.name == "bad" and job.attempts_made < job.data["failures"]:
        raise ValueError("bad")


async def test_counts_and_percentiles(queue: Queue, worker_for: WorkerFor):
    assert await queue.metrics_by_name.get_setting() == MetricsByNameSetting()
    await queue.metrics_by_name.set(120, max_names=10)
    assert await queue.metrics_by_name.get_setting() == MetricsByNameSetting(120, 10)
    # A bulk goes to one partition: percentiles are those of all durations, not means of those of the partitions.
    bulks: list[list[Any]] = [[("fast", None)] * 7 + [("slow", None)]] * 2
    bulks.append([("fast", None)] * 6 + [("slow", None)] + [("bad", {"failures": n}, {"attempts": 2}) for n in (1, 9)])
    jobs = [job for bulk in bulks for job in await queue.add_bulk(bulk)]
    async with worker_for(work, concurrency=5, log_failures=False):
        for job in jobs[:-1]:
            await job.wait_until_finished()
        with pytest.raises(JobFailedError):
            await jobs[-1].wait_until_finished()
    found = {each.name: each for each in await queue.metrics_by_name.get(interval=None)}
    assert {name: (each.completed, each.failed, each.retried) for name, each in found.items()} == {
        "fast": (20, 0, 0), "slow": (3, 0, 0), "bad": (1, 1, 2),
    }  # fmt: skip
    assert (found["fast"].wait.count, found["fast"].run.count) == (20, 20)
    assert (found["bad"].wait.count, found["bad"].run.count) == (2, 4)
    run = found["slow"].run
    assert 45 <= run.p50 <= run.p95 <= run.p99
    assert run.avg >= 45
    (slow,) = await queue.metrics_by_name.get(name="slow", interval=timedelta(hours=1))
    assert (slow.name, slow.run) == ("slow", run)
    per_minute = await queue.metrics_by_name.get()
    assert sum(each.completed for each in per_minute) == 24
    assert len({(each.timestamp, each.name) for each in per_minute}) == len(per_minute)
    assert all(each.timestamp % 60_000 == 0 for each in per_minute)
    assert await queue.metrics_by_name.get(end=datetime.now(UTC) - timedelta(hours=2)) == []


async def test_off_for_a_worker_and_for_the_queue(queue: Queue, worker_for: WorkerFor):
    await queue.metrics_by_name.set()
    async with worker_for(work, metrics=False):
        await (await queue.add("fast")).wait_until_finished()
    assert await queue.metrics_by_name.get() == []
    await queue.metrics_by_name.set(0)
    async with worker_for(work):
        await (await queue.add("fast")).wait_until_finished()
    assert await queue.metrics_by_name.get() == []


async def test_handlers_in_threads(queue: Queue, worker_for: WorkerFor):
    def handle(job: Job): ...

    await queue.metrics_by_name.set()
    async with worker_for(handle, concurrency=3):
        for job in await queue.add_bulk([("plain", None)] * 5):
            await job.wait_until_finished()
    assert [(each.name, each.completed) for each in await queue.metrics_by_name.get(interval=None)] == [("plain", 5)]
