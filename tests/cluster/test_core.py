"""Queues on three primaries."""

import asyncio
from typing import Any

import pytest

from glidemq_py import BulkAddError, Job, Queue, Worker
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder


async def double(job: Job) -> Any:
    if job.data == "fail":
        raise ValueError("on purpose")
    return job.data * 2


@pytest.mark.slow
async def test_queues_are_distributed_over_primaries(cluster_url: str, cluster_resp: RespClient, queue_name: str):
    names = [f"{queue_name}-{i}" for i in range(12)]
    queues = [Queue(name, cluster_url) for name in names]
    try:
        await asyncio.gather(*(queue.add_bulk([("n", i) for i in range(20)]) for queue in queues))
        slots = {cluster_resp.execute("CLUSTER", "KEYSLOT", f"glide:{{{name}}}:meta") // 5_462 for name in names}
        assert len(slots) > 1
        for name, queue in zip(names, queues, strict=True):
            async with Worker(name, double, cluster_url, concurrency=5) as worker:
                await EventRecorder(worker).wait("completed", 20)
            assert await queue.obliterate() == 20
            assert cluster_resp.keys(f"*{{{name}}}*") == []
    finally:
        for queue in queues:
            await queue.close()


async def test_functions_flushed_on_every_primary(cluster_url: str, cluster_resp: RespClient, queue_name: str):
    async with Queue(queue_name, cluster_url) as queue, Queue(queue_name + "x", cluster_url) as other:
        await queue.add("n")
        cluster_resp.execute_everywhere("FUNCTION", "FLUSH")
        try:
            jobs = await asyncio.gather(queue.add("n"), other.add("n"), queue.add_bulk([("n",)] * 600))
        except BulkAddError as error:
            raise AssertionError(error.results) from error
        assert len(jobs[2]) == 600
        assert await queue.count() == 602
