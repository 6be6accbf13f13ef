"""Flows: trees and graphs, in one queue and across queues, small and large, and what happens when a producer dies."""

import asyncio
from typing import Any

import pytest

from glidemq_py import (
    AmbiguousResultError,
    Budget,
    FlowJob,
    FlowProducer,
    GlideMQConnectionError,
    GlideMQValidationError,
    JobState,
    Queue,
    Worker,
)
from glidemq_py.testing import RespClient
from tests.contract.test_flows import Adder, work
from tests.inside import Call, connected, finish_flows, link_of, set_transport
from tests.server.worker_support import EventRecorder, Raw

pytestmark = pytest.mark.usefixtures("clean_check")


@pytest.mark.slow
async def test_large_flow_is_added_in_steps(url: str, queue: Queue, flows: FlowProducer, resp: RespClient):
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


class Dying:
    """A transport whose connection is lost after some calls of one kind."""

    def __init__(self, transport: Any, function: str, calls: int):
        self._transport, self._function, self._left = transport, function, calls

    async def call(self, call: Call[Any]):
        if call.function == self._function:
            if not self._left:
                raise GlideMQConnectionError("lost")
            self._left -= 1
        return await self._transport.call(call)

    def __getattr__(self, name: str):
        return getattr(self._transport, name)


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5])
async def test_abandoned_committed_flow_is_finished(url: str, queue: Queue, flows: FlowProducer, calls: int):
    other = f"{queue.name}-2"
    children = [FlowJob("leaf", (queue.name, other)[i % 2], 1) for i in range(700)]
    set_transport(flows, Dying(await connected(flows), "flow_add", calls))
    with pytest.raises(AmbiguousResultError, match="accepted"):
        await flows.add(FlowJob("root", queue.name, 0, {"job_id": "r"}, children))
    assert await finish_flows(queue) == 1
    assert await finish_flows(queue) == 0
    root = await queue.get_job("r")
    assert root is not None
    assert root.state is JobState.WAITING_CHILDREN
    assert await work(url, Adder(), root, queue.name, other, concurrency=50) == 700
    async with Queue(other, url) as second:
        await second.obliterate()


async def test_uncommitted_flow_adds_nothing(queue: Queue, flows: FlowProducer, resp: RespClient):
    set_transport(flows, Dying(await connected(flows), "flow_stage", 0))
    with pytest.raises(GlideMQConnectionError):
        await flows.add(FlowJob("root", queue.name, 0, children=[FlowJob("leaf", queue.name)] * 900))
    assert await finish_flows(queue) == 0
    assert (await queue.get_job_counts()).total == 0


async def test_repeated_steps_have_no_effect(url: str, queue: Queue, flows: FlowProducer):
    """Two finish the same flow; children that have gone meanwhile do not come back."""
    options = {"remove_on_complete": True}
    children = [FlowJob("leaf", queue.name, 1, options) for _ in range(450)]
    set_transport(flows, Dying(await connected(flows), "flow_done", 0))
    await flows.add(FlowJob("root", queue.name, 0, {"job_id": "r"}, children))
    root = await queue.get_job("r")
    assert root is not None
    handler = Adder()
    assert await work(url, handler, root, queue.name, concurrency=50) == 450
    assert await finish_flows(queue) == 1
    assert (await queue.get_job_counts()).unfinished == 0
    assert handler.order.count("leaf") == 450


# -- how a parent continues --------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "state"), [
    ({}, "waiting"), ({"priority": 3}, "prioritized"), ({"delay": 60_000}, "delayed"), ({"lifo": True}, "waiting"),
    ({"ordering": {"key": "k"}}, "waiting"),
])  # fmt: skip
async def test_a_released_parent_keeps_its_own_options(
    url: str, queue: Queue, flows: FlowProducer, resp: RespClient, options: Any, state: str
):
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


@pytest.mark.parametrize("count", [3, 300])
async def test_budget_is_created_before_the_jobs(queue: Queue, flows: FlowProducer, resp: RespClient, count: int):
    """W49."""
    other = queue.name if count < 200 else f"{queue.name}-2"
    leaves = [FlowJob("leaf", other, 1) for _ in range(count)]
    node = await flows.add(FlowJob("root", queue.name, 0, children=leaves), budget=Budget(max_total_tokens=100))
    key = f"glide:{{{queue.name}}}:budget:{node.job.id}"
    assert resp.hash(key)["maxTotalTokens"] == "100"
    jobs = [(each.job.queue_name, each.job.id) for each in node.walk()]
    assert {Raw(resp, name).job(job_id)["budgetKey"] for name, job_id in jobs} == {key}
    budget = await queue.usage.get_budget(node.job.id)
    assert budget is not None
    await queue.obliterate()


async def test_add_bulk_creates_one_budget_per_tree(queue: Queue, flows: FlowProducer):
    """Each has its own."""
    trees = [FlowJob("root", queue.name, children=[FlowJob("leaf", queue.name)]) for _ in range(2)]
    nodes = await flows.add_bulk(trees, budget=Budget(max_total_cost=1))
    keys = {await flows_key(queue, each.job.id) for node in nodes for each in node.walk()}
    assert len(keys) == 2
    with pytest.raises(GlideMQValidationError, match="budget"):
        await flows.add_bulk(trees, budget={"max_total_cost": -1})
    await queue.obliterate()


async def flows_key(queue: Queue, job_id: str) -> str:
    found = await link_of(queue).transport.command("HGET", f"glide:{{{queue.name}}}:job:{job_id}", "budgetKey")
    assert found
    return str(found.decode())
