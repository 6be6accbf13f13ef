"""Budgets of flows: no job starts after a limit is exceeded; usage is charged when attempts end."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Budget, FlowJob, Job, JobFailedError, Worker
from glidemq_py.errors import BudgetExceededError
from tests.contract.api import FlowProducer, Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, WorkerFor, with_timeout

IGNORED: Any = {"on_failure": "ignore"}


async def add_flow(flows: FlowProducer, queue: Queue, budget: Budget, leaves: int, **options: Any) -> list[Job]:
    """Add a root with leaves, which run first; return the leaves and the root."""
    children = [FlowJob("leaf", queue.name, None, IGNORED | options) for _ in range(leaves)]
    node = await flows.add(FlowJob("root", queue.name, children=children), budget=budget)
    return [*(child.job for child in node.children), node.job]


async def spend(job: Job):
    await job.report_usage(tokens={"input": 60}, costs={"x": 0.5})
    if job.data == "fail":
        raise ValueError("no")
    if job.data == "hang":
        await asyncio.Event().wait()


async def fails(job: Job):
    with pytest.raises(JobFailedError, match="Budget exceeded"):
        await with_timeout(job.wait_until_finished())


@pytest.mark.parametrize("is_retried", [False, True])
async def test_exceeded_budget_fails_remaining_jobs(
    worker_for: WorkerFor, queue: Queue, flows: FlowProducer, is_retried: bool
):
    budget = Budget(max_total_tokens=100, cost_unit="USD")
    jobs = await add_flow(flows, queue, budget, 3, attempts=2)
    worker = worker_for(spend, no_retry_on=() if is_retried else BudgetExceededError)
    recorded = EventRecorder(worker)
    async with worker:
        await fails(jobs[3])
    ids = [job.id for job in jobs]
    # The job that exceeded the limit, and the jobs that were not started.
    assert [*dict.fromkeys(recorded.job_ids("budget_exceeded"))] == ids[1:]
    assert (recorded.job_ids("active"), recorded.count["retrying"]) == (ids[:2], int(is_retried))
    found = await queue.usage.get_budget(ids[3])
    assert found is not None
    assert (found.used_tokens, found.used_cost, found.exceeded, found.max_total_tokens) == (120, 1, True, 100)
    assert (found.used_tokens_by_category, found.used_costs_by_category) == ({"input": 120}, {"x": 1})
    assert (found.cost_unit, found.on_exceeded) == ("USD", "fail")
    assert await queue.usage.get_budget(ids[0]) == found  # any job of the flow finds it
    assert await queue.usage.get_budget("99") is None


async def test_exceeded_budget_can_pause_remaining_jobs_for_a_day(
    worker_for: WorkerFor, queue: Queue, flows: FlowProducer
):
    jobs = await add_flow(flows, queue, Budget(max_total_cost=0.4, on_exceeded="pause"), 2)
    worker = worker_for(spend)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("delayed")
    read = await queue.get_job(jobs[1].id)
    assert read is not None
    assert (read.state, read.delay, read.attempts_made) == ("delayed", 86_400_000, 0)


@pytest.mark.parametrize(("data", "options", "used"), [("fail", {"attempts": 3}, 180), ("hang", {"timeout": 200}, 60)])
async def test_failed_attempts_are_charged(
    worker_for: WorkerFor, queue: Queue, flows: FlowProducer, data: str, options: Any, used: int
):
    node = await flows.add(FlowJob("root", queue.name, data, options), budget=Budget(max_total_tokens=1_000))
    async with worker_for(spend):
        with pytest.raises(JobFailedError):
            await with_timeout(node.job.wait_until_finished())
    budget = await queue.usage.get_budget(node.job.id)
    assert budget is not None
    assert budget.used_tokens == used


async def test_budget_of_another_queue_applies(url: Any, queue: Queue, flows: FlowProducer):
    """The budget of another queue is checked by an extra call and charged through the outbox."""
    async with Queue(f"{queue.name}-other", url) as other:
        leaves = [FlowJob("leaf", other.name, None, IGNORED | {"delay": delay}) for delay in (0, 3_600_000)]
        node = await flows.add(FlowJob("root", queue.name, children=leaves), budget=Budget(max_total_tokens=50))

        async def is_exceeded() -> bool:
            budget = await queue.usage.get_budget(node.job.id)
            return budget is not None and budget.exceeded

        async with Worker(other.name, spend, url):
            while not await with_timeout(is_exceeded()):  # noqa: ASYNC110  no event
                await asyncio.sleep(0.01)
            await other.promote(node.children[1].job.id)
            await fails(node.children[1].job)


async def test_budget_applies_to_batches(worker_for: WorkerFor, queue: Queue, flows: FlowProducer):
    sizes: list[int] = []

    async def handle(jobs: list[Job]) -> list[None]:
        sizes.append(len(jobs))
        for job in jobs:
            await spend(job)
        return [None] * len(jobs)

    jobs = await add_flow(flows, queue, Budget(max_total_tokens=100), 4)
    worker = worker_for(handle, batch={"size": 2})
    recorded = EventRecorder(worker)
    async with worker:
        await fails(jobs[4])
    assert sizes == [2]
    assert recorded.job_ids("budget_exceeded") == [job.id for job in jobs[1:]]


async def test_budget_expires_after_the_root_job_ended(
    worker_for: WorkerFor, flows: FlowProducer, queue: Queue, queue_name: str, raw: Raw
):
    async with worker_for(spend):
        node = await flows.add(FlowJob("root", queue_name), budget=Budget(max_total_tokens=1_000))
        await node.job.wait_until_finished()
        assert 604_700 < raw.resp.execute("TTL", raw.job(node.job.id)["budgetKey"]) <= 604_800
        assert await queue.usage.get_budget(node.job.id) is not None


async def test_invalid_budget_key_is_ignored(queue: Queue, worker_for: WorkerFor, raw: Raw):
    job = await queue.add("task", ttl=3_600_000)  # no plain job, as no job of a flow is
    raw.run("HSET", f"job:{job.id}", "budgetKey", "junk")
    async with worker_for(spend):
        await job.wait_until_finished()
