"""Flows, schedulers, signals, fallbacks, budgets: one test each, in memory and on servers."""

from typing import Any

import pytest

from glidemq_py import Budget, DagNode, FlowJob, FlowProducer, Job, JobFailedError, Queue, Worker
from glidemq_py.testing import MemoryServer
from tests.server.worker_support import EventRecorder, with_timeout

Place = MemoryServer | str


async def summed(job: Job) -> Any:
    """Return the sum of the children's results and the job's own data."""
    if job.data == "bad":
        raise ValueError("bad")
    return (job.data or 0) + sum((await job.get_children_values()).values())


@pytest.mark.parametrize("queues", [1, 2])
async def test_tree_runs_children_before_parents(place: Place, queue: Queue, queues: int) -> None:
    other = [queue.name, f"{queue.name}-2"][queues - 1]
    tree = FlowJob("root", queue.name, 1, children=[
        FlowJob("branch", other, 10, children=[FlowJob("leaf", queue.name, 100), FlowJob("leaf", other, 100)]),
        {"name": "leaf", "queue": other, "data": 100},
    ])  # fmt: skip
    async with FlowProducer(place) as flows, Worker(queue.name, summed, place), Worker(other, summed, place):
        node = await flows.add(tree)
        assert await with_timeout(node.job.wait_until_finished()) == 311
        read = await flows.get_flow(queue.name, node.job.id)
    assert read is not None
    assert read.counts() == {"completed": 5}


async def test_large_tree_is_added_in_several_calls(place: Place, queue: Queue) -> None:
    children = [FlowJob("leaf", queue.name, 1) for _ in range(150)]
    async with FlowProducer(place) as flows, Worker(queue.name, summed, place, concurrency=20):
        node = await flows.add(FlowJob("root", queue.name, 0, children=children))
        assert await with_timeout(node.job.wait_until_finished()) == 150


async def test_graph_runs_in_order(place: Place, queue: Queue) -> None:
    def node(name: str, *deps: str) -> DagNode:
        return DagNode(name, queue.name, 1, deps=deps)

    async with FlowProducer(place) as flows, Worker(queue.name, summed, place):
        jobs = await flows.add_dag([node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c")])
        assert await with_timeout(jobs["d"].wait_until_finished()) == 5


@pytest.mark.parametrize(("policy", "expected"), [("fail_parent", "failed: bad"), ("ignore", ""), ("remove", "")])
async def test_failed_child_follows_its_policy(place: Place, queue: Queue, policy: str, expected: str) -> None:
    children = [FlowJob("leaf", queue.name, "bad", {"on_failure": policy}), FlowJob("leaf", queue.name, 7)]
    async with FlowProducer(place) as flows, Worker(queue.name, summed, place):
        node = await flows.add(FlowJob("root", queue.name, 1, children=children))
        if expected:
            with pytest.raises(JobFailedError, match=expected):
                await with_timeout(node.job.wait_until_finished())
        else:
            assert await with_timeout(node.job.wait_until_finished()) == 8


async def test_handler_can_add_children(place: Place, queue: Queue) -> None:
    async def handle(job: Job) -> Any:
        if job.name == "child":
            return job.data
        if job.data is None:
            await queue.add_bulk([("child", n, {"parent": job}) for n in (1, 2)])
            await job.move_to_waiting_children(data="asked")
        return sorted((await job.get_children_values()).values())

    async with Worker(queue.name, handle, place):
        parent = await queue.add("parent")
        assert await with_timeout(parent.wait_until_finished()) == [1, 2]


async def test_exceeded_budget_ends_remaining_jobs(place: Place, queue: Queue) -> None:
    async def spend(job: Job) -> None:
        await job.report_usage(tokens={"out": 60})

    children = [FlowJob("leaf", queue.name, options={"on_failure": "ignore"}) for _ in range(3)]
    tree = FlowJob("root", queue.name, options={"on_failure": "ignore"}, children=children)
    async with FlowProducer(place) as flows, Worker(queue.name, spend, place):
        node = await flows.add(tree, budget=Budget(max_total_tokens=100))
        with pytest.raises(JobFailedError, match="Budget exceeded"):
            await with_timeout(node.job.wait_until_finished())
        budget = await queue.get_flow_budget(node.job.id)
    assert budget is not None
    assert (budget.used_tokens, budget.exceeded) == (120, True)
    usage = await queue.get_flow_usage(node.job.id)
    assert (usage.total_tokens, usage.job_count) == (120, 2)


async def test_signals_before_and_after_suspension(place: Place, queue: Queue) -> None:
    async def handle(job: Job) -> Any:
        return [(await job.wait_for_signal("go")).data, (await job.wait_for_signal("go")).data]

    job = await queue.add("n")
    assert await queue.signal(job.id, "go", 1)
    worker = Worker(queue.name, handle, place)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("suspended", 2)  # the first signal had already arrived
        info = await queue.get_suspend_info(job.id)
        assert info is not None
        assert info.reason == "signal go"
        assert await queue.signal(job.id, "go", 2)
        assert await with_timeout(job.wait_until_finished()) == [1, 2]
    assert not await queue.signal(job.id, "go", 3)


async def test_missing_signal_times_out(place: Place, queue: Queue) -> None:
    async def handle(job: Job) -> None:
        await job.wait_for_signal("go", timeout=50)

    async with Worker(queue.name, handle, place):
        job = await queue.add("n")
        with pytest.raises(JobFailedError, match="Suspend timeout exceeded"):
            await with_timeout(job.wait_until_finished())


async def test_each_failure_selects_the_next_fallback(place: Place, queue: Queue) -> None:
    async def handle(job: Job) -> str:
        if job.fallback_index < 2:
            raise ConnectionError
        assert job.current_fallback is not None
        return job.current_fallback.model

    async with Worker(queue.name, handle, place):
        job = await queue.add("n", attempts=3, fallbacks=["b", "c"])
        assert await with_timeout(job.wait_until_finished()) == "c"


@pytest.mark.parametrize("when", [{"every": 30}, {"repeat_after_complete": 30}, {"pattern": "* * * * * *"}])
async def test_scheduler_fires_until_its_limit(place: Place, queue: Queue, when: dict[str, Any]) -> None:
    async def handle(job: Job) -> None:
        pass

    await queue.upsert_job_scheduler("s", **when, limit=2, template=("tick", {"n": 1}))
    worker = Worker(queue.name, handle, place)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("completed", 2)
    assert [(job.name, job.data) for job, _ in recorded.of("completed")] == [("tick", {"n": 1})] * 2
    assert await queue.get_job_schedulers() == []
