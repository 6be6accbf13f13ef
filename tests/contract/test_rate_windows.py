"""Rate limits: jobs that wait start when the next window begins, and no window has more than the limit."""

import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from glidemq_py import Job, JobState, RateLimit, Worker
from tests.contract.api import Queue
from tests.server.worker_support import EventRecorder, WorkerFor

LIMIT, WINDOW_MS, WINDOWS = 20, 500, 4
RATE = RateLimit(LIMIT, WINDOW_MS)
JOBS = LIMIT * (WINDOWS + 1)
LEAST = 0.95
"""Least share of the permitted rate."""


def check_windows(begun: list[float]):
    """Check the times (ms) at which the jobs of one limit started."""
    begun = sorted(begun)
    assert len(begun) == JOBS
    firsts = begun[::LIMIT]
    # Each window starts with its first job, so the next one has its first job no earlier than one window later.
    assert all(after - first >= WINDOW_MS - 1 for first, after in itertools.pairwise(firsts)), firsts
    assert WINDOWS * WINDOW_MS / (firsts[-1] - firsts[0]) >= LEAST, firsts


async def begun_of(queue: Queue) -> list[float]:
    """Return the times at which the completed jobs were fetched, by the server's clock."""
    jobs = await queue.get_jobs(JobState.COMPLETED, 0, 2 * JOBS)
    return [job.processed_on for job in jobs if job.processed_on is not None]


async def nothing(_: Job):
    pass


async def limit_queue(queue: Queue) -> dict[str, Any]:
    await queue.limits.set_rate_limit(LIMIT * (await queue.settings.get_partitions()).count, WINDOW_MS)
    return {}


async def limit_name(queue: Queue) -> dict[str, Any]:
    await queue.limits.set_for_name(
        "a", rate_limit=RateLimit(LIMIT * (await queue.settings.get_partitions()).count, WINDOW_MS)
    )
    return {}


async def limit_fair_key(queue: Queue) -> dict[str, Any]:
    await queue.fair_keys.set_limits("tenant", rate_limit=RATE)
    return {"fair_key": "tenant"}


async def limit_group(_: Queue) -> dict[str, Any]:
    return {"ordering": {"key": "customer", "concurrency": 100, "rate_limit": RATE}}


Limiting = Callable[[Queue], Awaitable[dict[str, Any]]]
LIMITS = pytest.mark.parametrize("limit", [limit_queue, limit_name, limit_fair_key, limit_group])


@pytest.mark.slow
@LIMITS
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("without_polling")
async def test_workers_fetch_when_the_window_ends(limit: Limiting, workers: int, queue: Queue, worker_for: WorkerFor):
    async with AsyncExitStack() as stack:
        options = await limit(queue)
        await queue.add_bulk([("a", n, options) for n in range(JOBS)])
        running = [worker_for(nothing, concurrency=10) for _ in range(workers)]
        recorded = EventRecorder(*running)
        for worker in running:
            await stack.enter_async_context(worker)
        await recorded.wait("completed", JOBS)
        check_windows(await begun_of(queue))


@pytest.mark.slow
@pytest.mark.usefixtures("without_polling")
async def test_worker_of_several_queues_fetches_from_each_when_its_window_ends(url: Any, queue_name: str):
    names = [f"{queue_name}-{n}" for n in range(2)]
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(Queue(name, url)) for name in names]
        for queue in queues:
            await limit_queue(queue)
            await queue.add_bulk([("a", n) for n in range(JOBS)])
        worker = Worker(names, nothing, url, concurrency=10)
        recorded = EventRecorder(worker)
        async with worker:
            await recorded.wait("completed", 2 * JOBS)
        for queue in queues:
            check_windows(await begun_of(queue))


@pytest.mark.slow
@pytest.mark.exclude("partitioned", reason="a fetch looks at the partitions in turn")
@LIMITS
async def test_fetch_of_leases_waits_until_the_window_ends(limit: Limiting, url: Any, queue: Queue):
    options = await limit(queue)
    await queue.add_bulk([("a", n, options) for n in range(JOBS)])
    begun = 0
    while begun < JOBS:
        leases = await queue.fetch(LIMIT, wait=10 * WINDOW_MS)
        assert leases
        begun += len(leases)
        await queue.leases.complete([(lease, None) for lease in leases])
    check_windows(await begun_of(queue))


async def test_fetch_of_leases_returns_a_delayed_job_when_it_is_due(url: Any, queue: Queue):
    await queue.add("a", delay=250)
    begun = time.monotonic()
    assert await queue.fetch(wait=10_000)
    assert time.monotonic() - begun < 1.0


@pytest.mark.usefixtures("without_polling")
async def test_worker_that_waits_for_a_window_fetches_when_the_limit_is_removed(
    parts: int, queue: Queue, worker_for: WorkerFor
):
    await queue.limits.set_rate_limit(parts, 3_600_000)
    await queue.add_bulk([("a", n) for n in range(3)])
    worker = worker_for(nothing, concurrency=10)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("completed", 1)
        await queue.limits.remove_rate_limit()
        await recorded.wait("completed", 3)
