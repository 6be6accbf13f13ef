"""Budgets of flows: no job starts after a limit is exceeded; usage is charged when attempts end."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Budget, BudgetExceededError, Job, JobFailedError, Queue, Worker
from glidemq_py._features.usage.calls import create_budget
from glidemq_py._job.link import QueueLink
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder, until, with_timeout

HOUR_MS = 3_600_000


async def link_of(queue: Queue) -> QueueLink:
    return await queue._connected()


async def budget_of(queue: Queue, flow: str, **limits: Any) -> str:
    link = await link_of(queue)
    return await link.transport.call(create_budget(link.keys.meta, flow, Budget(**limits).to_fields()))


async def add_with(queue: Queue, key: str, **options: Any) -> Job:
    """Add a flow with a budget; no worker runs yet. Its job is no plain one, as no job of a flow is."""
    job: Job = await queue.add("task", ttl=HOUR_MS, **options)
    link = await link_of(queue)
    await link.transport.command("HSET", link.keys.job(job.id), "budgetKey", key)
    return job


async def spend(job: Job) -> None:
    await job.report_usage(tokens={"input": 60}, costs={"x": 0.5})


async def test_exceeded_budget_fails_remaining_jobs(core_url: str, queue_name: str) -> None:
    async with Queue(queue_name, core_url) as queue:
        key = await budget_of(queue, "1", max_total_tokens=100, cost_unit="USD")
        jobs = [await add_with(queue, key, attempts=2) for _ in range(3)]
        worker = Worker(queue_name, spend, core_url, no_retry_on=BudgetExceededError)
        recorded = EventRecorder(worker)
        async with worker:
            await jobs[1].wait_until_finished()
            with pytest.raises(JobFailedError, match="BudgetExceededError: Budget exceeded"):
                await jobs[2].wait_until_finished()
        # The job that exceeded the limit, and the job that was not started.
        assert recorded.job_ids("budget_exceeded") == [jobs[1].id, jobs[2].id]
        assert recorded.job_ids("active") == [jobs[0].id, jobs[1].id]
        budget = await queue.get_flow_budget("1")
        assert budget is not None
        assert (budget.used_tokens, budget.used_cost, budget.exceeded, budget.max_total_tokens) == (120, 1, True, 100)
        assert (budget.used_tokens_by_category, budget.used_costs_by_category) == ({"input": 120}, {"x": 1})
        assert (budget.cost_unit, budget.on_exceeded) == ("USD", "fail")
        assert await queue.get_flow_budget("2") == budget  # any job of the flow finds it
        assert await queue.get_flow_budget("99") is None


async def test_budget_failure_is_retried_like_any_failure(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        key = await budget_of(queue, "1", max_total_tokens=1)
        link = await link_of(queue)
        await link.transport.command("HSET", key, "exceeded", "1")
        job = await add_with(queue, key, attempts=2)
        worker = Worker(queue_name, spend, url)
        recorded = EventRecorder(worker)
        async with worker:
            with pytest.raises(JobFailedError):
                await job.wait_until_finished()
        assert (recorded.count["retrying"], recorded.count["failed"], recorded.count["active"]) == (1, 1, 0)


async def test_exceeded_budget_can_pause_remaining_jobs_for_a_day(url: str, queue_name: str, resp: RespClient) -> None:
    async with Queue(queue_name, url) as queue:
        key = await budget_of(queue, "1", max_total_cost=0.4, on_exceeded="pause")
        jobs = [await add_with(queue, key) for _ in range(2)]
        worker = Worker(queue_name, spend, url)
        recorded = EventRecorder(worker)
        async with worker:
            await recorded.until(lambda recorded: recorded.count["delayed"] == 1)
        read = await queue.get_job(jobs[1].id)
        assert read is not None
        assert (read.state, read.delay, read.attempts_made) == ("delayed", 86_400_000, 0)
        # A promoted job runs if the budget has been raised.
        link = await link_of(queue)
        await link.transport.command("HSET", key, "exceeded", "0", "maxTotalCost", "10")
        await read.promote()
        async with Worker(queue_name, spend, url):
            await read.wait_until_finished()


async def test_failed_attempt_is_charged(url: str, queue_name: str) -> None:
    async def fail(job: Job) -> None:
        await spend(job)
        raise ValueError("no")

    async with Queue(queue_name, url) as queue:
        key = await budget_of(queue, "1", max_total_tokens=1_000)
        job = await add_with(queue, key, attempts=3)
        async with Worker(queue_name, fail, url):
            with pytest.raises(JobFailedError):
                await job.wait_until_finished()
        budget = await queue.get_flow_budget("1")
        assert budget is not None
        assert budget.used_tokens == 180


async def test_timed_out_attempt_is_charged(url: str, queue_name: str) -> None:
    async def hang(job: Job) -> None:
        await spend(job)
        await asyncio.Event().wait()

    async with Queue(queue_name, url) as queue:
        key = await budget_of(queue, "1", max_total_tokens=1_000)
        job = await add_with(queue, key, timeout=200)
        async with Worker(queue_name, hang, url):
            with pytest.raises(JobFailedError):
                await job.wait_until_finished()
        budget = await queue.get_flow_budget("1")
        assert budget is not None
        assert budget.used_tokens == 60


async def test_budget_expires_after_the_root_job_ended(url: str, queue_name: str, resp: RespClient) -> None:
    async with Queue(queue_name, url) as queue:
        key = await budget_of(queue, "1", max_total_tokens=1_000)
        root = await add_with(queue, key)
        assert root.id == "1"
        async with Worker(queue_name, spend, url):
            await root.wait_until_finished()
        assert 604_700 < resp.execute("TTL", key) <= 604_800
        assert await queue.get_flow_budget("1") is not None


async def test_budget_of_another_queue_applies(core_url: str, core_resp: RespClient, queue_name: str) -> None:
    """The budget of another queue is checked by an extra call and charged through the outbox."""
    other = f"{queue_name}-other"
    async with Queue(queue_name, core_url) as queue, Queue(other, core_url) as elsewhere:
        key = await budget_of(elsewhere, "9", max_total_tokens=50)
        jobs = [await add_with(queue, key) for _ in range(2)]
        worker = Worker(queue_name, spend, core_url)
        recorded = EventRecorder(worker)
        async with worker:
            await recorded.until(lambda recorded: recorded.count["completed"] >= 1)
            await with_timeout(until(lambda: core_resp.execute("HGET", key, "exceeded") == "1"))
            last = await add_with_running(queue, key, recorded)
        assert core_resp.execute("HGET", key, "usedTokens") in ("60", "120")
        assert last.id in recorded.job_ids("budget_exceeded")
        assert len(jobs) == 2
        await elsewhere.obliterate(force=True)


async def add_with_running(queue: Queue, key: str, recorded: EventRecorder) -> Job:
    """The same while a worker runs, which must not start the job before its budget key is written."""
    job: Job = await queue.add("task", delay=60_000)
    link = await link_of(queue)
    await link.transport.command("HSET", link.keys.job(job.id), "budgetKey", key)
    await job.promote()
    with pytest.raises(JobFailedError, match="Budget exceeded"):
        await job.wait_until_finished()
    return job


async def test_invalid_budget_key_is_ignored(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        job = await add_with(queue, "junk")
        async with Worker(queue_name, spend, url):
            await job.wait_until_finished()


async def test_budget_applies_to_batches(url: str, queue_name: str) -> None:
    sizes: list[int] = []

    async def handler(jobs: list[Job]) -> list[None]:
        sizes.append(len(jobs))
        for job in jobs:
            await spend(job)
        return [None] * len(jobs)

    async with Queue(queue_name, url) as queue:
        key = await budget_of(queue, "1", max_total_tokens=100)
        jobs = [await add_with(queue, key) for _ in range(4)]
        worker = Worker(queue_name, handler, url, batch={"size": 2})
        recorded = EventRecorder(worker)
        async with worker:
            for job in jobs[2:]:
                with pytest.raises(JobFailedError, match="Budget exceeded"):
                    await job.wait_until_finished()
        assert sizes == [2]
        assert recorded.job_ids("budget_exceeded") == [job.id for job in jobs[1:]]
