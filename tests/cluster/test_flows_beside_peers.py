"""Flows over several nodes whose children end in Node workers, which notify no parent in another slot (W44, W45)."""

from __future__ import annotations

import binascii
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import DagNode, FlowJob, FlowProducer, Job, JobRef, Maintenance, Queue, Worker
from glidemq_py.errors import JobFailedError
from glidemq_py.testing import RespClient
from tests.server.worker_support import Raw, until, with_timeout
from tests.wire_library import support as wire_support
from tests.wire_library.support import WireQueue

DOCUMENTED = (Path(__file__).parents[1] / "lua" / "documented.lua").read_text(encoding="utf-8")


class Node(WireQueue):
    """A Node worker with its own library, or with our wire library."""

    def __init__(self, resp: RespClient, name: str, library: str):
        super().__init__(resp, name)
        self.library = library
        if library == "glidemq_":
            wire_support.load(resp)
        else:
            resp.execute_everywhere("FUNCTION", "LOAD", "REPLACE", DOCUMENTED)

    def work(self, *, fail: bool = False) -> str:
        """Fetch one job and end it as a Node worker does: with the parent's keys from the job's record."""
        job_id, entry, fields = self.fetch()
        assert isinstance(fields, dict), fields
        if fail:
            assert self.fail(job_id, entry, "in Node") == "failed"
            return job_id
        parent = None
        if "parentId" in fields and "parentQueue" in fields:
            base, above = f"glide:{{{fields['parentQueue']}}}:", str(fields["parentId"])
            keys = [f"{base}deps:{above}", f"{base}job:{above}", f"{base}stream", f"{base}events"]
            parent = (keys, f"{self.base}:{job_id}", above)
        self.complete(job_id, entry, "7", parent=parent)
        return job_id


@pytest.fixture(name="names")
def names_fixture(queue_name: str) -> tuple[str, str]:
    """Return queue names in different slots: for the parents, for the children."""
    above = f"{queue_name}-p"
    slot = binascii.crc_hqx(above.encode(), 0) % 16384
    below = next(
        name
        for name in (f"{queue_name}-c{i}" for i in range(10))
        if abs(binascii.crc_hqx(name.encode(), 0) % 16384 - slot) > 6000
    )
    return above, below


@pytest.fixture(name="node", params=["documented_", "glidemq_"])
def node_fixture(request: pytest.FixtureRequest, cluster_resp: RespClient, names: tuple[str, str]) -> Node:
    return Node(cluster_resp, names[1], request.param)


async def add_up(job: Job) -> Any:
    return sum((await job.get_children_values()).values())


@pytest.mark.slow
async def test_node_completes_children_of_a_remote_parent(
    cluster_url: str, names: tuple[str, str], node: Node, cluster_resp: RespClient
):
    """No Python worker runs on the children's queue."""
    above, below = names
    async with FlowProducer(cluster_url) as flows, Worker(above, add_up, cluster_url):
        children = [FlowJob("child", below), FlowJob("child", below)]
        added = await flows.add(FlowJob("parent", above, None, None, children))
        child = added.children[0].job
        assert (await child.get_parents()) == [(above, added.job.id)]
        node.work()
        node.work()
        assert await with_timeout(added.job.wait_until_finished()) == 14
    of_children = Raw(cluster_resp, below)
    await with_timeout(until(lambda: not of_children.run("XLEN", "outbox")))
    assert not of_children.run("EXISTS", "remote-parents")


@pytest.mark.parametrize("by", [Worker, Maintenance])
async def test_client_of_the_child_queue_notifies_parents(
    cluster_url: str, names: tuple[str, str], node: Node, by: type[Any]
):
    above, below = names
    async with FlowProducer(cluster_url) as flows, Queue(above, cluster_url) as queue, Queue(below, cluster_url) as own:
        added = await flows.add(FlowJob("parent", above, None, None, [FlowJob("child", below)]))
        node.work()
        async with Worker(below, add_up, cluster_url) if by is Worker else Maintenance([own]):
            await with_timeout(_is_ready(queue, added.job.id))


async def _is_ready(queue: Queue, job_id: str):
    while (await queue.get_job_counts()).waiting_children:
        pass
    assert await queue.get_job(job_id) is not None


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fail_parent", "ignore"])
async def test_node_fails_a_child_of_a_remote_parent(cluster_url: str, names: tuple[str, str], node: Node, policy: Any):
    above, below = names
    async with FlowProducer(cluster_url) as flows, Worker(above, add_up, cluster_url):
        child = FlowJob("child", below, None, {"on_failure": policy})
        added = await flows.add(FlowJob("parent", above, None, None, [child]))
        node.work(fail=True)
        if policy == "ignore":
            assert await with_timeout(added.job.wait_until_finished()) == 0
        else:
            with pytest.raises(JobFailedError, match="in Node"):
                await with_timeout(added.job.wait_until_finished())


@pytest.mark.slow
async def test_node_removes_a_child_of_a_remote_parent(cluster_url: str, names: tuple[str, str], node: Node):
    above, below = names
    async with FlowProducer(cluster_url) as flows, Worker(above, add_up, cluster_url):
        added = await flows.add(FlowJob("parent", above, None, None, [FlowJob("child", below)]))
        assert node.remove(added.children[0].job.id) == 1
        with pytest.raises(JobFailedError, match="child"):
            await with_timeout(added.job.wait_until_finished())


@pytest.mark.slow
async def test_node_completes_a_job_of_a_graph(cluster_url: str, names: tuple[str, str], node: Node):
    above, below = names
    async with FlowProducer(cluster_url) as flows, Worker(above, add_up, cluster_url):
        jobs = await flows.add_dag([
            DagNode("begin", below), DagNode("left", above, deps=["begin"]), DagNode("right", above, deps=["begin"]),
        ])  # fmt: skip
        node.work()
        assert await with_timeout(jobs["left"].wait_until_finished()) == 7
        assert await with_timeout(jobs["right"].wait_until_finished()) == 7


@pytest.mark.slow
async def test_node_completes_a_child_that_a_handler_added(cluster_url: str, names: tuple[str, str], node: Node):
    above, below = names
    async with Queue(above, cluster_url) as queue, Queue(below, cluster_url) as children:

        async def handle(job: Job) -> Any:
            await children.add("child", parent=job, job_id=f"of-{job.id}")
            await job.move_to_waiting_children()
            return await add_up(job)

        async with Worker(above, handle, cluster_url):
            job = await queue.add("parent")
            await with_timeout(until(lambda: node.redis("EXISTS", f"job:of-{job.id}")))
            child = await children.get_job(f"of-{job.id}")
            assert child is not None
            assert await child.get_parents() == [JobRef(above, job.id)]
            node.work()
            assert await with_timeout(job.wait_until_finished()) == 7


async def test_children_ended_by_python_workers_are_not_tracked(
    cluster_url: str, names: tuple[str, str], cluster_resp: RespClient
):
    above, below = names
    async with FlowProducer(cluster_url) as flows:
        children = [FlowJob("child", below) for _ in range(5)]
        added = await flows.add(FlowJob("parent", above, None, None, children))
        assert Raw(cluster_resp, below).run("HLEN", "remote-parents") == 5
        assert Raw(cluster_resp, above).run("ZCARD", "remote-children") == 1
        async with Worker(above, add_up, cluster_url), Worker(below, add_up, cluster_url):
            assert await with_timeout(added.job.wait_until_finished()) == 0
        assert not Raw(cluster_resp, below).run("EXISTS", "remote-parents")
