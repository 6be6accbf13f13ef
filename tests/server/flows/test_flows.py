"""Flows: trees and graphs, in one queue and across queues, small and large, and what happens when a producer dies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from glidemq_py import (
    AmbiguousResultError,
    Budget,
    BulkAddError,
    CycleError,
    DagNode,
    DuplicateJobError,
    Durability,
    DurabilityError,
    FlowJob,
    FlowProducer,
    GlideMQConnectionError,
    GlideMQValidationError,
    Job,
    JobCostError,
    JobNode,
    JobState,
    Middleware,
    NewJob,
    Queue,
    UnknownOptionError,
    UnsupportedOptionError,
    Worker,
    chain,
    chord,
    dag,
    group,
    topo_sort,
    validate_dag,
)
from glidemq_py._core.calls import Call
from glidemq_py._maintenance.flows import UnfinishedFlowsTask
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder, Raw, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")


class Adder:
    """Adds what its children brought to its own data; notes who ran in which order."""

    def __init__(self) -> None:
        self.order: list[str] = []

    async def __call__(self, job: Job) -> Any:
        values = await job.get_children_values()
        self.order.append(job.name)
        if job.data == "bad":
            raise ValueError("bad")
        return (job.data or 0) + sum(values.values())


async def work(url: str, handler: Any, job: Job, *queues: str, concurrency: int = 5) -> Any:
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
async def test_tree_runs_children_first(url: str, queue: Queue, flows: FlowProducer, queues: int) -> None:
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
    text = read.to_mermaid()
    assert text.startswith("flowchart BT")
    assert (text.count("-->"), text.count(":::completed")) == (6, 7)


async def test_flow_of_one_job(url: str, queue: Queue, flows: FlowProducer) -> None:
    """No children: nothing to wait for."""
    node = await flows.add({"name": "alone", "queue": queue.name, "data": 5})
    assert node.children == []
    assert await work(url, Adder(), node.job, queue.name) == 5


async def test_get_flow_of_waiting_flow(queue: Queue, flows: FlowProducer) -> None:
    node = await flows.add(tree(queue.name))
    read = await flows.get_flow(queue.name, node.job.id)
    assert read is not None
    assert read.state is JobState.WAITING_CHILDREN
    assert read.counts() == {"waiting-children": 3, "waiting": 4}
    shallow = await flows.get_flow(queue.name, node.job.id, depth=1, max_jobs=3)
    assert shallow is not None
    assert len(list(shallow.walk())) == 3
    assert await flows.get_flow(queue.name, "nobody") is None
    leaf = read.children[-1]
    assert await leaf.job.remove()
    again = await flows.get_flow(queue.name, node.job.id)
    assert again is not None
    assert again.state in (JobState.FAILED, JobState.WAITING_CHILDREN)
    await queue.obliterate()


@pytest.mark.slow
async def test_large_flow_is_added_in_steps(url: str, queue: Queue, flows: FlowProducer, resp: RespClient) -> None:
    other = f"{queue.name}-2"
    children = [FlowJob("leaf", (queue.name, other)[i % 2], i) for i in range(3_000)]
    node = await flows.add(FlowJob("root", queue.name, 0, children=children))
    raw = Raw(resp, queue.name)
    assert raw.run("SCARD", f"deps:{node.job.id}") == 3_000
    assert raw.run("EXISTS", "flows") == 0
    assert not resp.keys(f"glide:{{{queue.name}}}:flow:*")
    assert await work(url, Adder(), node.job, queue.name, other, concurrency=100) == sum(range(3_000))
    assert raw.run("HGET", f"job:{node.job.id}", "depsCompleted") == "3000"
    async with Queue(other, url) as second:
        await second.obliterate()


async def test_large_children_values_are_read(url: str, queue: Queue, flows: FlowProducer) -> None:
    """A page of children has up to 1 MiB of results; the others are read one by one."""

    async def much(job: Job) -> Any:
        if job.name == "root":
            values = await job.get_children_values()
            return sorted((text[:1], len(text)) for text in values.values())
        return job.data * 400_000

    node = await flows.add(FlowJob("root", queue.name, 0, None, [FlowJob("leaf", queue.name, n) for n in "abcdefgh"]))
    async with Worker(queue.name, much, url, concurrency=4):
        assert await with_timeout(node.job.wait_until_finished()) == [[n, 400_000] for n in "abcdefgh"]


class Dying:
    """A transport whose connection is lost after some calls of one kind."""

    def __init__(self, transport: Any, function: str, calls: int) -> None:
        self._transport, self._function, self._left = transport, function, calls

    async def call(self, call: Call[Any]) -> Any:
        if call.function == self._function:
            if not self._left:
                raise GlideMQConnectionError("lost")
            self._left -= 1
        return await self._transport.call(call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5])
async def test_abandoned_committed_flow_is_finished(url: str, queue: Queue, flows: FlowProducer, calls: int) -> None:
    other = f"{queue.name}-2"
    children = [FlowJob("leaf", (queue.name, other)[i % 2], 1) for i in range(700)]
    flows._transport = Dying(await flows._connected(), "flow_add", calls)  # type: ignore[assignment]
    with pytest.raises(AmbiguousResultError, match="accepted"):
        await flows.add(FlowJob("root", queue.name, 0, {"job_id": "r"}, children))
    link = await queue._connected()
    assert await UnfinishedFlowsTask(link=link, age=0).run_once() == 1
    assert await UnfinishedFlowsTask(link=link, age=0).run_once() == 0
    root = await queue.get_job("r")
    assert root is not None
    assert root.state is JobState.WAITING_CHILDREN
    assert await work(url, Adder(), root, queue.name, other, concurrency=50) == 700
    async with Queue(other, url) as second:
        await second.obliterate()


async def test_uncommitted_flow_adds_nothing(queue: Queue, flows: FlowProducer, resp: RespClient) -> None:
    flows._transport = Dying(await flows._connected(), "flow_stage", 0)  # type: ignore[assignment]
    with pytest.raises(GlideMQConnectionError):
        await flows.add(FlowJob("root", queue.name, 0, children=[FlowJob("leaf", queue.name)] * 900))
    assert await UnfinishedFlowsTask(link=await queue._connected(), age=0).run_once() == 0
    assert (await queue.get_job_counts()).total == 0


async def test_repeated_steps_have_no_effect(url: str, queue: Queue, flows: FlowProducer) -> None:
    """Two finish the same flow; children that have gone meanwhile do not come back."""
    options = {"remove_on_complete": True}
    children = [FlowJob("leaf", queue.name, 1, options) for _ in range(450)]
    flows._transport = Dying(await flows._connected(), "flow_done", 0)  # type: ignore[assignment]
    await flows.add(FlowJob("root", queue.name, 0, {"job_id": "r"}, children))
    root = await queue.get_job("r")
    assert root is not None
    handler = Adder()
    assert await work(url, handler, root, queue.name, concurrency=50) == 450
    assert await UnfinishedFlowsTask(link=await queue._connected(), age=0).run_once() == 1
    assert (await queue.get_job_counts()).unfinished == 0
    assert handler.order.count("leaf") == 450


async def test_existing_job_ids_are_rejected(queue: Queue, flows: FlowProducer) -> None:
    """W47: nothing is left behind."""
    await queue.add("n", job_id="taken")
    for count in (1, 400):
        others = [FlowJob("leaf", queue.name)] * count
        with pytest.raises(DuplicateJobError) as error:
            await flows.add(
                FlowJob("root", queue.name, children=[*others, FlowJob("leaf", queue.name, None, {"job_id": "taken"})])
            )
        assert (error.value.job_id, error.value.queue) == ("taken", queue.name)
    bucket = {"ordering": {"key": "g", "token_bucket": {"capacity": 1, "refill_rate": 1}}, "cost": 2}
    for count in (1, 400):
        leaves = [FlowJob("leaf", queue.name, None, bucket)] * count
        with pytest.raises(JobCostError):
            await flows.add(FlowJob("root", queue.name, children=leaves))
    counts = await queue.get_job_counts()
    assert (counts.waiting, counts.total) == (1, 1)


async def test_invalid_flows_are_rejected(queue: Queue, flows: FlowProducer) -> None:
    name = queue.name
    for bad in (3, {"name": "a"}, {"name": "a", "queue": ":"}, {"name": "a", "queue": name, "kids": []},
                {"name": "a", "queue": name, "children": "abc"}):  # fmt: skip
        with pytest.raises(GlideMQValidationError):
            await flows.add(bad)  # type: ignore[arg-type]
    for options in ({"parent": ("q", "1")}, {"deduplication": {"id": "x"}}):
        with pytest.raises(UnsupportedOptionError):
            FlowJob("a", name, None, options)
    same = FlowJob("a", name, None, {"job_id": "x"})
    with pytest.raises(GlideMQValidationError, match="two jobs"):
        await flows.add(FlowJob("root", name, children=[same, same]))
    assert (await queue.get_job_counts()).total == 0


# -- graphs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queues", [1, 2])
async def test_diamond_graph_runs_in_order(url: str, queue: Queue, flows: FlowProducer, queues: int) -> None:
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


def test_cycles_and_invalid_graphs_are_rejected() -> None:
    nodes = [DagNode("a", "q", deps=["c"]), DagNode("b", "q", deps=["a"]), DagNode("c", "q", deps=["b"])]
    with pytest.raises(CycleError) as error:
        validate_dag([*nodes, DagNode("free", "q", deps=["a"])])
    assert error.value.cycle[0] == error.value.cycle[-1]
    assert set(error.value.cycle) == {"a", "b", "c"}
    for bad in ([DagNode("a", "q"), DagNode("a", "q")], [DagNode("a", "q", deps=["x"])]):
        with pytest.raises(GlideMQValidationError):
            validate_dag(bad)
    with pytest.raises(CycleError):
        validate_dag([DagNode("a", "q", deps=["a"])])
    assert [node.name for node in topo_sort([*nodes[1:2], DagNode("a", "q")])] == ["a", "b"]


async def test_failed_node_fails_its_dependents(url: str, queue: Queue, flows: FlowProducer) -> None:
    jobs = await flows.add_dag([
        DagNode("bad", queue.name, "bad", {"on_failure": "ignore"}),
        DagNode("fine", queue.name, 1, deps=["bad"]),
        DagNode("worse", queue.name, "bad"),
        DagNode("lost", queue.name, 1, deps=["worse", "fine"]),
    ])  # fmt: skip
    async with Worker(queue.name, Adder(), url) as worker:
        await EventRecorder(worker).wait("failed", 2)
        assert await with_timeout(jobs["fine"].wait_until_finished()) == 1
    assert await jobs["lost"].get_state() is JobState.FAILED


# -- shapes ------------------------------------------------------------------------------------------------


async def test_chain_group_chord_dag(url: str, queue: Queue) -> None:
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

    async def total(job: Job) -> Any:
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

    def add(self, job: NewJob) -> None:
        job.headers["by"] = "middleware"


async def test_common_flows_have_the_options_of_a_flow_producer(url: str, queue: Queue) -> None:
    name, job = queue.name, ("a", {1: b"binary"})
    options: Any = {"serializer": "msgpack", "middleware": [Marking()], "durable": False, "events": False}
    added = [
        (await chain(name, [job], url, **options)).job,
        (await group(name, [job], url, **options)).children[0].job,
        (await chord(name, [job], ("then",), url, **options)).children[0].job,
        (await dag([DagNode("a", name, job[1])], url, **options))["a"],
    ]
    async with Queue[Any, Any](name, url, serializer="msgpack") as reader:
        for each in added:
            read = await reader.get_job(each.id)
            assert read is not None
            assert (read.data, dict(read.headers)) == ({1: b"binary"}, {"by": "middleware"})
    lost = Durability(disk=False, replicas=9, timeout=1)
    with pytest.raises(DurabilityError):
        await chain(name, [("a",)], url, durable=lost)
    with pytest.raises(UnknownOptionError, match=r"'serialiser'.*did you mean 'serializer'"):
        await group(name, [("a",)], url, serialiser="msgpack")  # type: ignore[call-arg]


# -- how a parent continues --------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "state"), [
    ({}, "waiting"), ({"priority": 3}, "prioritized"), ({"delay": 60_000}, "delayed"), ({"lifo": True}, "waiting"),
    ({"ordering": {"key": "k"}}, "waiting"),
])  # fmt: skip
async def test_a_released_parent_keeps_its_own_options(
    url: str, queue: Queue, flows: FlowProducer, resp: RespClient, options: dict[str, Any], state: str
) -> None:
    """W51."""
    child = f"{queue.name}-c"
    node = await flows.add(FlowJob("root", queue.name, 0, options, [FlowJob("leaf", child, 1)]))
    raw = Raw(resp, queue.name)
    async with Worker(child, Adder(), url) as worker:
        await EventRecorder(worker).wait("completed")
    while await node.job.get_state() is JobState.WAITING_CHILDREN:  # noqa: ASYNC110  another queue's worker
        await asyncio.sleep(0.01)
    assert raw.state(node.job.id) == state
    assert raw.run("LRANGE", "lifo", 0, -1) == ([node.job.id] if "lifo" in options else [])
    await queue.obliterate()


async def test_children_in_the_ordering_group_of_their_parent(url: str, queue: Queue, flows: FlowProducer) -> None:
    """The parent takes its turn when it is its turn; before it was, its own children would wait for it."""
    options = {"ordering": {"key": "k"}}
    node = await flows.add(
        FlowJob("root", queue.name, 1, options, [FlowJob("leaf", queue.name, 1, options) for _ in range(3)])
    )
    assert await work(url, Adder(), node.job, queue.name) == 4


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_retried_parent_takes_one_group_slot(
    url: str, queue: Queue, flows: FlowProducer, concurrency: int
) -> None:
    """It takes one turn of its group, not two of which one is never used."""
    ordering: dict[str, Any] = {"ordering": {"key": "k", "concurrency": concurrency}}
    node = await flows.add(FlowJob("root", queue.name, 1, ordering, [FlowJob("leaf", queue.name, "bad")]))
    leaf = node.children[0].job
    async with Worker(queue.name, Adder(), url) as worker:
        await EventRecorder(worker).wait("failed")
    assert await node.job.get_state() is JobState.FAILED
    await leaf.update_data(10)
    await leaf.retry()
    await node.job.retry()
    assert await node.job.get_state() is JobState.WAITING_CHILDREN
    behind = [await queue.add("behind", 0, ordering=ordering["ordering"]) for _ in range(3)]
    assert await work(url, Adder(), node.job, queue.name) == 11
    async with Worker(queue.name, Adder(), url):
        for job in behind:
            await with_timeout(job.wait_until_finished())


async def test_retried_parent_waits_for_a_group_slot(url: str, queue: Queue, flows: FlowProducer) -> None:
    """The parent's group is full; it waits there until a slot is free."""
    ordering: dict[str, Any] = {"ordering": {"key": "k"}}
    node = await flows.add(FlowJob("root", queue.name, 1, ordering, [FlowJob("leaf", queue.name, "bad")]))
    async with Worker(queue.name, Adder(), url) as worker:
        await EventRecorder(worker).wait("failed")
    began, go = asyncio.Event(), asyncio.Event()

    async def handle(job: Job) -> int:
        if job.name == "holds":
            began.set()
            await go.wait()
        return 1

    async with Worker(queue.name, handle, url, concurrency=3):
        await queue.add("holds", **ordering)
        await with_timeout(began.wait())
        await node.job.retry()
        while await node.job.get_state() is not JobState.GROUP_WAITING:  # noqa: ASYNC110  it emits no event
            await asyncio.sleep(0.01)
        go.set()
        assert await with_timeout(node.job.wait_until_finished()) == 1


@pytest.mark.parametrize("count", [3, 300])
async def test_budget_is_created_before_the_jobs(
    queue: Queue, flows: FlowProducer, resp: RespClient, count: int
) -> None:
    """W49."""
    other = queue.name if count < 200 else f"{queue.name}-2"
    leaves = [FlowJob("leaf", other, 1) for _ in range(count)]
    node = await flows.add(FlowJob("root", queue.name, 0, children=leaves), budget=Budget(max_total_tokens=100))
    key = f"glide:{{{queue.name}}}:budget:{node.job.id}"
    assert resp.hash(key)["maxTotalTokens"] == "100"
    jobs = [(each.job.queue_name, each.job.id) for each in node.walk()]
    assert {Raw(resp, name).job(job_id)["budgetKey"] for name, job_id in jobs} == {key}
    budget = await queue.get_flow_budget(node.job.id)
    assert budget is not None
    await queue.obliterate()


@pytest.mark.parametrize("count", [3, 300])
async def test_budget_applies_to_all_jobs_of_a_graph(queue: Queue, flows: FlowProducer, count: int) -> None:
    """Found by any of its jobs."""
    nodes = [DagNode("first", queue.name), *(DagNode(f"n{i}", queue.name, deps=["first"]) for i in range(count))]
    jobs = await flows.add_dag(nodes, budget={"max_total_tokens": 100})
    for job in jobs.values():
        budget = await queue.get_flow_budget(job.id)
        assert budget is not None
        assert budget.max_total_tokens == 100
    await queue.obliterate()


async def test_add_bulk_creates_one_budget_per_tree(queue: Queue, flows: FlowProducer) -> None:
    """Each has its own."""
    trees = [FlowJob("root", queue.name, children=[FlowJob("leaf", queue.name)]) for _ in range(2)]
    nodes = await flows.add_bulk(trees, budget=Budget(max_total_cost=1))
    keys = {await flows_key(queue, each.job.id) for node in nodes for each in node.walk()}
    assert len(keys) == 2
    with pytest.raises(GlideMQValidationError, match="budget"):
        await flows.add_bulk(trees, budget={"max_total_cost": -1})
    await queue.obliterate()


async def test_rejected_tree_does_not_stop_others(queue: Queue, flows: FlowProducer) -> None:
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
    assert (first.job.id, third.job.id) == ("one", "two")
    counts = await queue.get_job_counts()
    assert (counts.waiting_children, counts.waiting) == (2, 2)
    await queue.obliterate()


async def flows_key(queue: Queue, job_id: str) -> str:
    assert queue._link is not None
    found = await queue._link.transport.command("HGET", f"glide:{{{queue.name}}}:job:{job_id}", "budgetKey")
    assert found
    return str(found.decode())
