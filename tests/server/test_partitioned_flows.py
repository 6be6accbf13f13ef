"""Flows whose jobs are in partitioned queues, on one server and on a cluster."""

from collections import Counter
from typing import Any

import pytest

from glidemq_py import (
    DuplicateJobError,
    FlowJob,
    FlowProducer,
    GlideMQValidationError,
    Job,
    Queue,
    UnrecoverableError,
    Worker,
)
from glidemq_py.records import JobNode
from tests.conftest import SERVER_AND_CLUSTER
from tests.inside import partition_of
from tests.server.test_partitions import id_in, keyed

pytestmark = pytest.mark.parametrize("core_server", SERVER_AND_CLUSTER, indirect=True)

PARTITIONS = 3


@pytest.fixture
def url(core_url: str) -> str:
    return core_url


@pytest.fixture
def partitions() -> int:
    return PARTITIONS


async def collect(job: Job):
    """Return the data of a leaf, and of other jobs the results of their children."""
    if job.data == "fail":
        raise UnrecoverableError("broken")
    values = await job.get_children_values()
    return sorted(values.values(), key=str) if values else job.data


def partitions_of(node: JobNode) -> Counter[int]:
    return Counter(partition_of(each.job.id) for each in node.walk())


def tree(queue: str, *options: Any) -> FlowJob:
    children = [FlowJob("leaf", queue, at, each) for at, each in enumerate(options)]
    return FlowJob("root", queue, children=children)


async def test_a_small_flow_is_added_by_one_call(queue: Queue, url: str, queue_name: str):
    async with FlowProducer(url) as flows:
        nodes = [await flows.add(tree(queue_name, {}, {}, {})) for _ in range(PARTITIONS)]
        assert [len(partitions_of(node)) for node in nodes] == [1] * PARTITIONS
        assert len(sum((partitions_of(node) for node in nodes), Counter())) == PARTITIONS
        key = {"key": keyed(2, PARTITIONS)}
        root = FlowJob("root", queue_name, options={"ordering": key}, children=[FlowJob("leaf", queue_name)] * 5)
        assert partitions_of(await flows.add(root)) == {2: 6}
        assert (await queue.get_job_counts()).waiting_children == PARTITIONS + 1


async def test_a_large_flow_is_spread(queue: Queue, url: str, queue_name: str):
    async with (
        FlowProducer(url) as flows,
        Worker(queue_name, collect, url, concurrency=20),
    ):
        node = await flows.add(tree(queue_name, *[{}] * 700))
        assert len(partitions_of(node)) == PARTITIONS
        assert max(partitions_of(node).values()) <= 401
        assert await node.job.wait_until_finished(60_000) == sorted(range(700), key=str)
        assert (await queue.get_job_counts()).completed == 701


async def test_invalid_jobs_of_a_flow_are_rejected(queue: Queue, url: str, queue_name: str):
    async with FlowProducer(url) as flows:
        taken = await queue.add("n", job_id=id_in(1, PARTITIONS))
        for others in ([], [{"job_id": id_in(2, PARTITIONS)}]):
            with pytest.raises(DuplicateJobError) as raised:
                await flows.add(tree(queue_name, {"job_id": id_in(1, PARTITIONS)}, {}, *others))
            assert (raised.value.job_id, raised.value.queue) == (taken.id, queue_name)
        with pytest.raises(GlideMQValidationError):
            await flows.add(tree(queue_name, {"job_id": "a", "ordering": {"key": "b"}}))
        with pytest.raises(GlideMQValidationError, match="must not be a number"):
            await flows.add(tree(queue_name, {"job_id": "17"}))
        assert (await queue.get_job_counts()).unfinished == 1
