"""We process flows and graphs of Node glide-mq 0.15, and write ours in the same format."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from glidemq_py import DagNode, FlowJob, FlowProducer, Job, Queue, Worker
from glidemq_py.testing import RespClient
from tests.golden.snapshot import comparable, load, restore, snapshot
from tests.golden.test_golden import NodeLikeHandler, forget_active_events
from tests.inside import decode_data

KINDS = {"flow": ("flow", "flow-child"), "dag": ("dag",)}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest, resp: RespClient) -> Iterator[str]:
    """A kind of golden file, its queues empty before and after."""
    names = KINDS[request.param]
    assert not [key for name in names for key in resp.keys(f"glide:{{{name}}}:*")]
    yield request.param
    for name in names:
        for key in resp.keys(f"glide:{{{name}}}:*"):
            resp.execute("DEL", key)


def data_of(golden: dict[str, Any], name: str, i: int = 0) -> Any:
    found = [
        entry["value"] for key, entry in sorted(golden["added"].items())
        if ":job:" in key and entry["value"]["name"] == name
    ]  # fmt: skip
    return decode_data(found[i]["data"])


class FlowHandler(NodeLikeHandler):
    """The recording worker did nothing to parents of a tree but return what their children had."""

    async def __call__(self, job: Job) -> dict[str, Any]:
        if job.name != "flow-parent":
            return await super().__call__(job)
        children = await job.get_children_values()
        return {"by": "node", "id": job.id, "name": job.name, "echo": job.data, "children": children}


async def test_our_jobs_match_node_format(kind: str, url: str, resp: RespClient):
    golden = load(kind)
    async with FlowProducer(url) as producer:
        if kind == "dag":
            await producer.add_dag([
                DagNode(name, "dag", data_of(golden, name), deps=deps)
                for name, deps in (("dagA", []), ("dagB", []), ("dagC", ["dagA", "dagB"]), ("dagD", ["dagC"]))
            ])  # fmt: skip
        else:
            for i in range(3):
                children = [
                    FlowJob("flow-child-same", "flow", data_of(golden, "flow-child-same", i)),
                    FlowJob("flow-child-other", "flow-child", data_of(golden, "flow-child-other", i)),
                ]
                await producer.add(FlowJob("flow-parent", "flow", data_of(golden, "flow-parent", i), None, children))
    for queue in KINDS[kind]:
        ours = comparable({key: value for key, value in snapshot(resp, queue).items() if ":flow-mark:" not in key})
        theirs = {key: value for key, value in golden["added"].items() if f"{{{queue}}}" in key}
        assert ours == comparable(theirs)


async def test_node_flows_are_processed_like_node(kind: str, url: str, resp: RespClient):
    golden = load(kind)
    restore(resp, golden["added"])
    roots = ("1", "3", "5") if kind == "flow" else ("1",)
    workers = [Worker(name, FlowHandler(), url, concurrency=2) for name in KINDS[kind]]
    async with Queue(KINDS[kind][0], url) as queue:
        jobs = [await queue.get_job(root) for root in roots]
        for worker in workers:
            await worker.start()
        await asyncio.gather(*(job.wait_until_finished() for job in jobs if job is not None))
        for worker in workers:
            await worker.close()
        if kind == "dag":
            read = await queue.get_job("2")
            assert read is not None
            values = await read.get_children_values()
            assert {name: value["id"] for name, value in values.items()} == {"glide:{dag}:3": "3", "glide:{dag}:4": "4"}
    for name in KINDS[kind]:
        ours = comparable(snapshot(resp, name))
        theirs = comparable({key: value for key, value in golden["finished"].items() if f"{{{name}}}" in key})
        forget_active_events(ours, theirs)
        assert ours == theirs


async def test_child_values_not_stored_by_node(kind: str, url: str, resp: RespClient):
    golden = load(kind)
    restore(resp, golden["finished"])
    async with Queue(KINDS[kind][0], url) as queue:
        parent = await queue.get_job("2" if kind == "dag" else "1")
        assert parent is not None
        values = await parent.get_children_values()
        assert len(values) == 2
        assert all(value["by"] == "node" for value in values.values())
