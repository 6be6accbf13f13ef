"""Flows whose queues are on different nodes: no atomic step is possible, but every effect happens exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from glidemq_py import FlowJob, FlowProducer, Job, Queue, Worker
from glidemq_py.errors import GlideMQConnectionError
from glidemq_py.testing import RespClient
from tests.inside import outbox
from tests.server.worker_support import Raw, with_timeout


async def add_up(job: Job) -> Any:
    return (job.data or 0) + sum((await job.get_children_values()).values())


async def test_tree_over_several_nodes(core_url: str, queue_name: str, core_resp: RespClient):
    """W44."""
    names = [f"{queue_name}-{i}" for i in range(6)]
    async with FlowProducer(core_url) as flows:
        leaves = [FlowJob("leaf", names[i % 6], 1) for i in range(300)]
        middle = [FlowJob("middle", names[i], 1, None, leaves[50 * i : 50 * i + 50]) for i in range(6)]
        node = await flows.add(FlowJob("root", names[0], 1, None, middle))
        workers = [Worker(name, add_up, core_url, concurrency=10) for name in names]
        for worker in workers:
            await worker.start()
        assert await with_timeout(node.job.wait_until_finished()) == 307
        for worker in workers:
            await worker.close()
        read = await flows.get_flow(names[0], node.job.id)
        assert read is not None
        assert read.counts() == {"completed": 307}
    for name in names:
        assert Raw(core_resp, name).run("XLEN", "outbox") == 0


async def test_crash_between_child_completion_and_parent_notification(
    core_url: str, queue_name: str, core_resp: RespClient, monkeypatch: pytest.MonkeyPatch
):
    """The result is delivered again after each of two crashes, and counted once."""
    child_queue = f"{queue_name}-c"
    calls = 0
    delivered = asyncio.Event()

    async def lose(*_: Any):
        nonlocal calls
        calls += 1
        delivered.set()
        raise GlideMQConnectionError("lost after it was carried over")

    async with FlowProducer(core_url) as flows, Queue(child_queue, core_url) as children:
        leaves = [FlowJob("leaf", child_queue, 1), FlowJob("leaf", child_queue, 1)]
        node = await flows.add(FlowJob("root", queue_name, 0, None, leaves))
        deliveries = outbox._DELIVERIES
        deliver = deliveries["child"]

        async def carry_and_lose(link: Any, to: str, entries: Any):
            await deliver(link, to, entries)
            await lose()

        monkeypatch.setitem(deliveries, "child", carry_and_lose)
        async with Worker(child_queue, add_up, core_url):
            await with_timeout(delivered.wait())
            while (await children.get_job_counts()).completed < 2:  # noqa: ASYNC110  no event reports both
                await asyncio.sleep(0.01)
        assert Raw(core_resp, child_queue).run("XLEN", "outbox") == 2
        monkeypatch.setitem(deliveries, "child", deliver)
        async with Worker(child_queue, add_up, core_url), Worker(queue_name, add_up, core_url):
            assert await with_timeout(node.job.wait_until_finished()) == 2
        assert calls >= 1
        assert Raw(core_resp, queue_name).run("HGET", f"job:{node.job.id}", "depsCompleted") == "2"
