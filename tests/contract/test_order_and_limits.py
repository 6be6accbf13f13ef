"""Delays, priorities, groups, limits, deduplication, retention, dead letters, inspection and management."""

import asyncio
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from glidemq_py import Job, Worker
from tests.contract.api import Queue
from tests.contract.observe import assert_order


class Recorder:
    """A handler that records its jobs, and how many ran concurrently, in total and per group."""

    def __init__(self, pause: float = 0.0):
        self.begun: Any = []
        self.most: dict[Any, int] = defaultdict(int)
        self._now: dict[Any, int] = defaultdict(int)
        self._pause = pause

    async def __call__(self, job: Job):
        self.begun.append(job.data)
        group = job.data[0] if isinstance(job.data, list) else None
        for key in {None, group}:
            self._now[key] += 1
            self.most[key] = max(self.most[key], self._now[key])
        await asyncio.sleep(self._pause)
        for key in {None, group}:
            self._now[key] -= 1


async def work_off(queue: Queue, url: Any, handler: Any, **options: Any):
    async with Worker(queue.name, handler, url, **options) as worker:
        await asyncio.wait_for(worker.drain(), 30)


async def fetched(queue: Queue, count: int, at_once: int = 400) -> list[Job]:
    """Fetch and complete so many jobs."""
    seen: list[Job] = []
    async with asyncio.timeout(60):
        while len(seen) < count:
            leases = await queue.fetch(min(at_once, count - len(seen)), wait=500)
            seen += [lease.job for lease in leases]
            await queue.leases.complete([(lease, None) for lease in leases])
    return seen


@pytest.mark.parametrize(
    ("count", "options", "job_id"),
    [
        (25, {}, None), (25, {"priority": 5}, None), (25, {"fair_key": "f"}, None), (25, {"rank": -3}, None),
        (25, {"priority": 5}, lambda number: f"{37 * number % 100:02}-named"), (1200, {}, None),
        (1200, {"priority": 2047}, None),
    ],
)  # fmt: skip
async def test_jobs_due_at_the_same_time_run_in_the_order_of_their_adds(
    queue: Queue, count: int, options: Any, job_id: Any
):
    await queue.add_bulk([
        ("n", number, {"delay": 300, "job_id": job_id(number) if job_id else None, **options})
        for number in range(count)
    ])  # fmt: skip
    assert_order(await fetched(queue, count, 7 if count < 100 else 400), range(count))


@pytest.mark.parametrize("options", [{}, {"priority": 5}, {"fair_key": "f"}, {"rank": -3}])
async def test_promoted_jobs_run_in_the_order_of_their_adds(queue: Queue, options: Any):
    at = datetime.now(UTC) + timedelta(hours=1)
    jobs = [("n", number, {"run_at": at - timedelta(milliseconds=number < 7), **options}) for number in range(1_100)]
    await queue.add_bulk(jobs)
    assert await queue.jobs.promote_delayed(3) == 3
    assert await queue.jobs.promote_delayed() == 1_097
    assert_order(await fetched(queue, 1_100), range(1_100))


async def test_jobs_of_one_time_and_chosen_ids_run_in_the_order_of_a_bulk_of_several_calls(queue: Queue):
    at = datetime.now(UTC) + timedelta(hours=1)
    rng = random.Random(7)
    await queue.add_bulk([("n", number, {"run_at": at, "job_id": f"{rng.random()}"}) for number in range(700)])
    assert await queue.jobs.promote_delayed() == 700
    assert_order(await fetched(queue, 700), range(700))


async def test_ordering_group_runs_in_order(url: Any, queue: Queue):
    handler = Recorder(0.001)
    keys = ["a", "b", "c"]
    await queue.add_bulk([("n", [key, number], {"ordering": key}) for number in range(4) for key in keys])
    await queue.add("n", ["a", 4], ordering="a", job_id="a")
    later = [("n", [key, number], {"ordering": key}) for number in range(4, 10) for key in keys][1:]
    await queue.add_bulk([*later[:5], ("n", ["a", "again"], {"ordering": "a", "job_id": "a"}), *later[5:]])
    await work_off(queue, url, handler, concurrency=10)
    for key in keys:
        assert [number for group, number in handler.begun if group == key] == list(range(10))
        assert handler.most[key] == 1
        assert (await queue.groups.get(key)).active == 0  # type: ignore[union-attr]
