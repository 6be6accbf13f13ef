"""Queues on three primaries."""

import asyncio

from glidemq_py import BulkAddError, Queue
from glidemq_py.testing import RespClient


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
