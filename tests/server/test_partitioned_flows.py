"""Flows whose jobs are in partitioned queues, on one server and on a cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from glidemq_py import (
    DagNode,
    DuplicateJobError,
    FlowJob,
    FlowProducer,
    GlideMQValidationError,
    Job,
    JobNode,
    JobRef,
    Queue,
    UnrecoverableError,
    UnsupportedOptionError,
    Worker,
    chain,
    chord,
    dag,
    group,
    sync,
)
from glidemq_py._features.partitions.layout import split_partition_id
from tests.conftest import SERVER_AND_CLUSTER
from tests.server.test_partitions import id_in, keyed
from tests.server.worker_support import with_timeout

pytestmark = pytest.mark.parametrize("core_server", SERVER_AND_CLUSTER, indirect=True)

PARTITIONS = 3


async def collect(job: Job) -> Any:
    """Return the data of a leaf, and of other jobs the results of their children."""
    if job.data == "fail":
        raise UnrecoverableError("broken")
    values = await job.get_children_values()
    return sorted(values.values(), key=str) if values else job.data


def partitions_of(node: JobNode) -> Counter[int]:
    return Counter(split_partition_id(each.job.id)[0] for each in node.walk())


def tree(queue: str, *options: dict[str, Any]) -> FlowJob:
    children = [FlowJob("leaf", queue, at, each) for at, each in enumerate(options)]
    return FlowJob("root", queue, children=children)


async def test_children_of_all_partitions(core_url: str, queue_name: str):
    async with (
        Queue(queue_name, core_url, partitions=PARTITIONS) as queue,
        FlowProducer(core_url) as flows,
        Worker(queue_name, collect, core_url, concurrency=4),
    ):
        ordered = [{"ordering": {"key": keyed(at, PARTITIONS)}} for at in range(PARTITIONS)]
        named = [{"job_id": id_in(at, PARTITIONS)} for at in range(PARTITIONS)]
        node = await flows.add(tree(queue_name, *ordered, *named))
        ids = [each.job.id for each in node.children]
        assert [split_partition_id(job_id)[0] for job_id in ids] == [0, 1, 2, 0, 1, 2]
        assert {each.job.queue_name for each in node.walk()} == {queue_name}
        assert await node.job.wait_until_finished() == [0, 1, 2, 3, 4, 5]
        assert await node.children[1].job.get_parents() == [JobRef(queue_name, node.job.id)]
        found = await flows.get_flow(queue_name, node.job.id)
        assert found is not None
        assert sorted(each.job.id for each in found.children) == sorted(ids)
        assert {each.job.queue_name for each in found.walk()} == {queue_name}
        assert found.counts() == {"completed": 7}
        child = await queue.get_job(ids[4])
        assert child is not None
        assert child.data == 4


async def test_a_small_flow_is_added_by_one_call(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue, FlowProducer(core_url) as flows:
        nodes = [await flows.add(tree(queue_name, {}, {}, {})) for _ in range(PARTITIONS)]
        assert [len(partitions_of(node)) for node in nodes] == [1] * PARTITIONS
        assert len(sum((partitions_of(node) for node in nodes), Counter())) == PARTITIONS
        key = {"key": keyed(2, PARTITIONS)}
        root = FlowJob("root", queue_name, options={"ordering": key}, children=[FlowJob("leaf", queue_name)] * 5)
        assert partitions_of(await flows.add(root)) == {2: 6}
        assert (await queue.get_job_counts()).waiting_children == PARTITIONS + 1


async def test_a_large_flow_is_spread(core_url: str, queue_name: str):
    async with (
        Queue(queue_name, core_url, partitions=PARTITIONS) as queue,
        FlowProducer(core_url) as flows,
        Worker(queue_name, collect, core_url, concurrency=20),
    ):
        node = await flows.add(tree(queue_name, *[{}] * 700))
        assert len(partitions_of(node)) == PARTITIONS
        assert max(partitions_of(node).values()) <= 401
        assert await node.job.wait_until_finished(60_000) == sorted(range(700), key=str)
        assert (await queue.get_job_counts()).completed == 701


async def test_plain_and_partitioned_queues_in_one_flow(core_url: str, queue_name: str):
    plain = f"{queue_name}-p"
    async with (
        Queue(queue_name, core_url, partitions=PARTITIONS),
        FlowProducer(core_url) as flows,
        Worker(queue_name, collect, core_url),
        Worker(plain, collect, core_url),
    ):
        leaves = [FlowJob("leaf", queue_name, at, {"job_id": id_in(at, PARTITIONS)}) for at in range(PARTITIONS)]
        node = await flows.add(FlowJob("root", plain, children=leaves))
        assert await node.job.wait_until_finished() == [0, 1, 2]
        up = await flows.add(
            FlowJob("root", queue_name, options={"job_id": "up"}, children=[FlowJob("leaf", plain, 7)])
        )
        assert await up.job.wait_until_finished() == [7]


async def test_a_child_that_fails_in_another_partition(core_url: str, queue_name: str):
    async with (
        Queue(queue_name, core_url, partitions=PARTITIONS),
        FlowProducer(core_url) as flows,
        Worker(queue_name, collect, core_url),
    ):
        failing = FlowJob("leaf", queue_name, "fail", {"job_id": id_in(1, PARTITIONS)})
        root = FlowJob("root", queue_name, options={"job_id": id_in(2, PARTITIONS)}, children=[failing])
        node = await flows.add(root)
        with pytest.raises(Exception, match="broken"):
            await node.job.wait_until_finished()


async def test_helpers_and_dags(core_url: str, queue_name: str):
    async with (
        Queue(queue_name, core_url, partitions=PARTITIONS) as queue,
        Worker(queue_name, collect, core_url, concurrency=4),
    ):

        async def result_of(job: Job) -> Any:
            found = await queue.get_job(job.id)
            assert found is not None
            return await found.wait_until_finished()

        last = await chain(queue_name, [("c", None), ("b", None), ("a", 1)], core_url)
        assert await result_of(last.job) == [[1]]
        specs: list[Any] = [("leaf", at, {"ordering": {"key": keyed(at, PARTITIONS)}}) for at in range(PARTITIONS)]
        assert await result_of((await group(queue_name, specs, core_url)).job) == [0, 1, 2]
        assert await result_of((await chord(queue_name, specs, ("callback", None), core_url)).job) == [0, 1, 2]
        nodes = [
            DagNode("left", queue_name, 1, {"job_id": id_in(0, PARTITIONS)}),
            DagNode("right", queue_name, 2, {"job_id": id_in(1, PARTITIONS)}),
            DagNode("end", queue_name, options={"job_id": id_in(2, PARTITIONS)}, deps=["left", "right"]),
            DagNode("other", queue_name, deps=["left"]),
        ]
        jobs = await dag(nodes, core_url)
        assert await result_of(jobs["end"]) == [1, 2]
        assert await result_of(jobs["other"]) == [1]
        left = await queue.get_job(jobs["left"].id)
        assert left is not None
        expected = sorted(JobRef(queue_name, jobs[name].id) for name in ("end", "other"))
        assert sorted(await left.get_parents()) == expected


async def test_invalid_jobs_of_a_flow_are_rejected(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue, FlowProducer(core_url) as flows:
        taken = await queue.add("n", job_id=id_in(1, PARTITIONS))
        for others in ([], [{"job_id": id_in(2, PARTITIONS)}]):
            with pytest.raises(DuplicateJobError) as raised:
                await flows.add(tree(queue_name, {"job_id": id_in(1, PARTITIONS)}, {}, *others))
            assert (raised.value.job_id, raised.value.queue) == (taken.id, queue_name)
        with pytest.raises(UnsupportedOptionError):
            await flows.add(tree(queue_name, {"job_id": "a", "ordering": {"key": "b"}}))
        with pytest.raises(GlideMQValidationError, match="must not be a number"):
            await flows.add(tree(queue_name, {"job_id": "17"}))
        assert (await queue.get_job_counts()).unfinished == 1


async def test_flows_are_added_while_the_number_of_partitions_changes(core_url: str, queue_name: str):
    """The producer does not know of the changes; no job is lost, and a partition with a flow is not given up."""
    async with Queue(queue_name, core_url) as queue, FlowProducer(core_url) as flows:
        nodes = [await flows.add(tree(queue_name, {}, {}))]
        for partitions in (4, 6, 2, 3):
            await queue.set_partitions(partitions)
            nodes.append(await flows.add(tree(queue_name, {}, *[{"ordering": {"key": f"k{at}"}} for at in range(5)])))
            await queue.set_partitions(partitions + 1)
            nodes.append(await flows.add(tree(queue_name, *[{}] * 150)))
        async with Worker(queue_name, collect, core_url, concurrency=10):
            for node in nodes:
                assert len(await node.job.wait_until_finished(60_000)) == len(node.children)


async def test_an_ordering_key_stays_in_its_former_partition_for_a_flow_too(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=2) as queue, FlowProducer(core_url) as flows:
        keys = [f"k{at}" for at in range(8)]
        before = [await queue.add("n", ordering={"key": key}) for key in keys]
        await queue.set_partitions(5)
        node = await flows.add(tree(queue_name, *[{"ordering": {"key": key}} for key in keys]))
        places = [split_partition_id(each.job.id)[0] for each in node.children]
        assert places == [split_partition_id(job.id)[0] for job in before]
        await queue.add("n", job_id="first")
        with pytest.raises(DuplicateJobError):
            await flows.add(tree(queue_name, {"job_id": "first"}))


async def test_a_blocking_producer_adds_flows(core_url: str, queue_name: str):
    def work() -> tuple[int, int]:
        with sync.Queue(queue_name, core_url, partitions=PARTITIONS) as queue, sync.FlowProducer(core_url) as flows:
            node = flows.add(tree(queue_name, *[{"job_id": f"leaf-{at}"} for at in range(8)]))
            found = flows.get_flow(queue_name, node.job.id)
            assert found is not None
            return len(found.children), queue.get_job_counts().unfinished

    assert await with_timeout(asyncio.to_thread(work)) == (8, 9)
