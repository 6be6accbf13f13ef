"""Flows: trees and graphs, in one queue and across queues, small and large, and what happens when a producer dies."""

import asyncio
from typing import Any

import pytest

from glidemq_py import (
    BulkAddError,
    DagNode,
    DuplicateJobError,
    Durability,
    FlowJob,
    GlideMQValidationError,
    Job,
    JobState,
    Middleware,
    NewJob,
    Worker,
    chain,
    chord,
    dag,
    group,
    topo_sort,
    validate_dag,
)
from glidemq_py.errors import DurabilityError, UnknownOptionError
from glidemq_py.records import JobNode
from tests.contract.api import FlowProducer, Queue, own_id
from tests.server.worker_support import EventRecorder, WorkerFor, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")


class Adder:
    """Adds what its children brought to its own data; notes who ran in which order."""

    def __init__(self):
        self.order: list[str] = []

    async def __call__(self, job: Job):
        values = await job.get_children_values()
        self.order.append(job.name)
        if job.data == "bad":
            raise ValueError("bad")
        return (job.data or 0) + sum(values.values())


async def work(url: Any, handler: Any, job: Job, *queues: str, concurrency: int = 5):
    """All queues are worked on until the job has ended; its result."""
    workers = [Worker(name, handler, url, concurrency=concurrency) for name in queues]
    for worker in workers:
        await worker.start()
    try:
        return await with_timeout(job.wait_until_finished())
    finally:
        for worker in workers:
            await worker.close()


def tree(*queues: str) -> FlowJob:
    """Three levels; the queues take turns."""
    a, b = queues[0], queues[-1]
    return FlowJob("root", a, 1, children=[
        FlowJob("left", b, 10, children=[FlowJob("leaf", a, 100), FlowJob("leaf", b, 100)]),
        {"name": "right", "queue": a, "data": 10, "children": [FlowJob("leaf", b, 100)]},
        FlowJob("leaf", a, 100),
    ])  # fmt: skip


@pytest.mark.parametrize("queues", [1, 2])
async def test_tree_runs_children_first(url: Any, queue: Queue, flows: FlowProducer, queues: int):
    names = [queue.name, f"{queue.name}-2"][:queues]
    node = await flows.add(tree(*names))
    assert [each.job.name for each in node.walk()] == ["root", "left", "right", "leaf", "leaf", "leaf", "leaf"]
    handler = Adder()
    assert await work(url, handler, node.job, *names) == 421
    assert handler.order[-1] == "root"
    read = await flows.get_flow(queue.name, node.job.id)
    assert read is not None
    assert read.counts() == {"completed": 7}
    assert sorted(child.job.name for child in read.children) == ["leaf", "left", "right"]
    assert sum(len(each.children) for each in read.walk()) == 6


async def test_flow_of_one_job(url: Any, queue: Queue, flows: FlowProducer):
    """No children: nothing to wait for."""
    node = await flows.add({"name": "alone", "queue": queue.name, "data": 5})
    assert node.children == []
    assert await work(url, Adder(), node.job, queue.name) == 5


async def test_large_children_values_are_read(worker_for: WorkerFor, queue: Queue, flows: FlowProducer):
    """A page of children has up to 1 MiB of results; the others are read one by one."""

    async def much(job: Job):
        if job.name == "root":
            values = await job.get_children_values()
            return sorted((text[:1], len(text)) for text in values.values())
        return job.data * 400_000

    node = await flows.add(FlowJob("root", queue.name, 0, None, [FlowJob("leaf", queue.name, n) for n in "abcdefgh"]))
    async with worker_for(much, concurrency=4):
        assert await with_timeout(node.job.wait_until_finished()) == [[n, 400_000] for n in "abcdefgh"]


# -- graphs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queues", [1, 2])
async def test_diamond_graph_runs_in_order(url: Any, queue: Queue, flows: FlowProducer, queues: int):
    """W45: dependents in other queues are notified too."""
    a, b = queue.name, f"{queue.name}-2" if queues == 2 else queue.name
    jobs = await flows.add_dag([
        DagNode("end", a, 1000, deps=["left", "right"]), DagNode("left", b, 10, deps=["begin"]),
        {"name": "right", "queue": a, "data": 100, "deps": ["begin"]}, DagNode("begin", b, 1),
    ])  # fmt: skip
    handler = Adder()
    assert await work(url, handler, jobs["end"], *dict.fromkeys((a, b))) == 1112
    assert (handler.order[0], handler.order[-1]) == ("begin", "end")
    assert {ref.id for ref in await jobs["begin"].get_parents()} == {jobs["left"].id, jobs["right"].id}
    read = await flows.get_flow(a, jobs["end"].id)
    assert read is not None
    assert len(list(read.walk())) == 4


def test_cycles_and_invalid_graphs_are_rejected():
    nodes = [DagNode("a", "q", deps=["c"]), DagNode("b", "q", deps=["a"]), DagNode("c", "q", deps=["b"])]
    with pytest.raises(GlideMQValidationError, match="in a cycle") as error:
        validate_dag([*nodes, DagNode("free", "q", deps=["a"])])
    cycle: Any = error.value.value
    assert cycle[0] == cycle[-1]
    assert set(cycle) == {"a", "b", "c"}
    for bad in ([DagNode("a", "q"), DagNode("a", "q")], [DagNode("a", "q", deps=["x"])]):
        with pytest.raises(GlideMQValidationError):
            validate_dag(bad)
    with pytest.raises(GlideMQValidationError, match="in a cycle"):
        validate_dag([DagNode("a", "q", deps=["a"])])
    assert [node.name for node in topo_sort([*nodes[1:2], DagNode("a", "q")])] == ["a", "b"]


async def test_failed_node_fails_its_dependents(worker_for: WorkerFor, queue: Queue, flows: FlowProducer):
    jobs = await flows.add_dag([
        DagNode("bad", queue.name, "bad", {"on_failure": "ignore"}),
        DagNode("fine", queue.name, 1, deps=["bad"]),
        DagNode("worse", queue.name, "bad"),
        DagNode("lost", queue.name, 1, deps=["worse", "fine"]),
    ])  # fmt: skip
    async with worker_for(Adder()) as worker:
        await EventRecorder(worker).wait("failed", 2)
        assert await with_timeout(jobs["fine"].wait_until_finished()) == 1
    assert await jobs["lost"].get_state() is JobState.FAILED


# -- shapes ------------------------------------------------------------------------------------------------


async def test_chain_group_chord_dag(url: Any, queue: Queue):
    name = queue.name
    handler = Adder()

    async def found(job: Job) -> Job:
        """The same job of a queue that is connected: these functions close their own connection."""
        read = await queue.get_job(job.id)
        assert read is not None
        return read

    last = await chain(name, [("third", 1), ("second", 10), ("first", 100)], url)
    assert await work(url, handler, await found(last.job), name) == 111
    assert handler.order == ["first", "second", "third"]

    async def total(job: Job):
        return sum((await job.get_children_values()).values()) if job.name in ("__group__", "sum") else job.data

    together = await group(name, [("a", 1), ("b", 2)], url)
    assert await work(url, total, await found(together.job), name) == 3
    then = await chord(name, [("a", 1), ("b", 2), ("c", 3)], ("sum",), url)
    assert await work(url, total, await found(then.job), name) == 6
    jobs = await dag([DagNode("x", name, 1), DagNode("sum", name, deps=["x"])], url)
    assert await work(url, total, await found(jobs["sum"]), name) == 1
    with pytest.raises(GlideMQValidationError):
        await chain(name, [], url)


class Marking(Middleware):
    """Adds a header to each job."""

    def add(self, job: NewJob):
        job.headers["by"] = "middleware"


async def test_common_flows_have_the_options_of_a_flow_producer(url: Any, queue: Queue):
    name, job = queue.name, ("a", {1: b"binary"})
    options: Any = {"serializer": "msgpack", "middleware": [Marking()], "durable": False, "events": False}
    added = [
        (await chain(name, [job], url, **options)).job,
        (await group(name, [job], url, **options)).children[0].job,
        (await chord(name, [job], ("then",), url, **options)).children[0].job,
        (await dag([DagNode("a", name, job[1])], url, **options))["a"],
    ]
    async with Queue(name, url, serializer="msgpack") as reader:
        for each in added:
            read = await reader.get_job(each.id)
            assert read is not None
            assert (read.data, dict(read.headers)) == ({1: b"binary"}, {"by": "middleware"})
    lost = Durability(disk=False, replicas=9, timeout=1)
    with pytest.raises(DurabilityError):
        await chain(name, [("a",)], url, durable=lost)
    with pytest.raises(UnknownOptionError, match=r"'serialiser'.*did you mean 'serializer'"):
        await group(name, [("a",)], url, serialiser="msgpack")  # type: ignore[call-arg]


async def test_children_in_the_ordering_group_of_their_parent(url: Any, queue: Queue, flows: FlowProducer):
    """The parent takes its turn when it is its turn; before it was, its own children would wait for it."""
    options = {"ordering": {"key": "k"}}
    node = await flows.add(
        FlowJob("root", queue.name, 1, options, [FlowJob("leaf", queue.name, 1, options) for _ in range(3)])
    )
    assert await work(url, Adder(), node.job, queue.name) == 4


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_retried_parent_takes_one_group_slot(
    worker_for: WorkerFor, url: Any, queue: Queue, flows: FlowProducer, concurrency: int
):
    """It takes one turn of its group, not two of which one is never used."""
    ordering: Any = {"ordering": {"key": "k", "concurrency": concurrency}}
    node = await flows.add(FlowJob("root", queue.name, 1, ordering, [FlowJob("leaf", queue.name, "bad")]))
    leaf = node.children[0].job
    async with worker_for(Adder()) as worker:
        await EventRecorder(worker).wait("failed")
    assert await node.job.get_state() is JobState.FAILED
    await leaf.update_data(10)
    await leaf.retry()
    await node.job.retry()
    assert await node.job.get_state() is JobState.WAITING_CHILDREN
    behind = [await queue.add("behind", 0, ordering=ordering["ordering"]) for _ in range(3)]
    assert await work(url, Adder(), node.job, queue.name) == 11
    async with worker_for(Adder()):
        for job in behind:
            await with_timeout(job.wait_until_finished())


async def test_retried_parent_waits_for_a_group_slot(worker_for: WorkerFor, queue: Queue, flows: FlowProducer):
    """The parent's group is full; it waits there until a slot is free."""
    ordering: Any = {"ordering": {"key": "k"}}
    node = await flows.add(FlowJob("root", queue.name, 1, ordering, [FlowJob("leaf", queue.name, "bad")]))
    async with worker_for(Adder()) as worker:
        await EventRecorder(worker).wait("failed")
    began, go = asyncio.Event(), asyncio.Event()

    async def handle(job: Job) -> int:
        if job.name == "holds":
            began.set()
            await go.wait()
        return 1

    async with worker_for(handle, concurrency=3):
        await queue.add("holds", **ordering)
        await with_timeout(began.wait())
        await node.job.retry()
        while await node.job.get_state() is not JobState.GROUP_WAITING:  # noqa: ASYNC110  it emits no event
            await asyncio.sleep(0.01)
        go.set()
        assert await with_timeout(node.job.wait_until_finished()) == 1


@pytest.mark.parametrize("count", [3, 300])
async def test_budget_applies_to_all_jobs_of_a_graph(queue: Queue, flows: FlowProducer, count: int):
    """Found by any of its jobs."""
    nodes = [DagNode("first", queue.name), *(DagNode(f"n{i}", queue.name, deps=["first"]) for i in range(count))]
    jobs = await flows.add_dag(nodes, budget={"max_total_tokens": 100})
    for job in jobs.values():
        budget = await queue.usage.get_budget(job.id)
        assert budget is not None
        assert budget.max_total_tokens == 100
    await queue.obliterate()


async def test_rejected_tree_does_not_stop_others(queue: Queue, flows: FlowProducer):
    trees = [
        FlowJob("root", queue.name, options={"job_id": job_id}, children=[FlowJob("leaf", queue.name)])
        for job_id in ("one", "one", "two")
    ]
    with pytest.raises(BulkAddError, match="1 of 3") as recorded:
        await flows.add_bulk(trees)
    first, second, third = recorded.value.results
    assert isinstance(first, JobNode)
    assert isinstance(second, DuplicateJobError)
    assert isinstance(third, JobNode)
    assert (own_id(first.job), own_id(third.job)) == ("one", "two")
    counts = await queue.get_job_counts()
    assert (counts.waiting_children, counts.waiting) == (2, 2)
    await queue.obliterate()
