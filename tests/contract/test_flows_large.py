"""Deep and wide flows: adding, processing, failing, reading and drawing."""

import re
from typing import Any

import pytest

from glidemq_py import FlowJob, GlideMQValidationError, Job, JobFailedError, chain
from tests.contract.api import FlowProducer, Queue, own_id
from tests.server.worker_support import WorkerFor, with_timeout

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_check")]

LEVELS = 1_200


async def handle(job: Job):
    if job.data == "bad":
        raise ValueError("bad")
    return 1 + sum((await job.get_children_values()).values())


def deep(queue: str, data: Any, form: str):
    if form == "jobs":
        inner = FlowJob("job", queue, data)
        for _ in range(LEVELS):
            inner = FlowJob("job", queue, 1, None, [inner])
        return inner
    given: Any = {"name": "job", "queue": queue, "data": data}
    for _ in range(LEVELS):
        given = {"name": "job", "queue": queue, "data": 1, "children": [given]}
    return given


@pytest.mark.parametrize("form", ["jobs", "mappings"])
async def test_flow_deeper_than_the_recursion_limit(
    worker_for: WorkerFor, queue: Queue, flows: FlowProducer, form: str
):
    node = await flows.add(deep(queue.name, 1, form))
    async with worker_for(handle):
        assert await with_timeout(node.job.wait_until_finished()) == LEVELS + 1
    read = await flows.get_flow(queue.name, node.job.id)
    assert read is not None
    assert (read.counts(), read.is_cut) == ({"completed": LEVELS + 1}, False)
    assert sum(len(each.children) for each in read.walk()) == LEVELS
    assert len(repr(read)) < 200


async def test_failure_propagates_up_a_deep_flow(worker_for: WorkerFor, queue: Queue, flows: FlowProducer):
    """Every level fails and names the failed child and the first cause, not the levels between."""
    node = await flows.add(deep(queue.name, "bad", "jobs"))
    async with worker_for(handle):
        with pytest.raises(JobFailedError) as failed:
            await with_timeout(node.job.wait_until_finished())
    member = rf"glide:{{{queue.name}.*?}}:"
    child, last = own_id(node.children[0].job), own_id(list(node.walk())[-1].job)
    expected = rf"child {member}{child} failed: child {member}{last} failed: bad"
    assert re.fullmatch(expected, failed.value.failed_reason)
    assert (await queue.get_job_counts()).failed == LEVELS + 1


async def test_chains_are_as_deep_as_trees(url: Any, queue: Queue):
    node = await chain(queue.name, [("job", 1)] * LEVELS, url)
    assert sum(1 for _ in node.walk()) == LEVELS
    await queue.obliterate()


async def test_too_deep_or_recursive_flow_is_rejected(queue: Queue, flows: FlowProducer):
    circle: Any = {"name": "job", "queue": queue.name}
    circle["children"] = [circle]
    with pytest.raises(GlideMQValidationError, match="10000 levels deep"):
        await flows.add(circle)
    assert (await queue.get_job_counts()).total == 0


async def test_get_flow_marks_cut_nodes(queue: Queue, flows: FlowProducer):
    """By default a flow of ten thousand children is read in whole."""
    leaves = [FlowJob("leaf", queue.name) for _ in range(10_050)]
    node = await flows.add(FlowJob("root", queue.name, children=[FlowJob("middle", queue.name, children=leaves)]))
    read = await flows.get_flow(queue.name, node.job.id)
    assert read is not None
    assert read.counts() == {"waiting-children": 2, "waiting": 10_050}
    assert [each for each in read.walk() if each.is_cut] == []
    few = await flows.get_flow(queue.name, node.job.id, max_jobs=12)
    assert few is not None
    assert [(each.job.name, len(each.children)) for each in few.walk() if each.is_cut] == [("middle", 10)]
    flat = await flows.get_flow(queue.name, node.job.id, depth=1)
    assert flat is not None
    assert [(each.job.name, each.children) for each in flat.walk() if each.is_cut] == [("middle", [])]
    exact = await flows.get_flow(queue.name, node.job.id, depth=2, max_jobs=10_052)
    assert exact is not None
    assert [each for each in exact.walk() if each.is_cut] == []
    await queue.obliterate()
