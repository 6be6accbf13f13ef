"""One worker for queues of different slots of a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import RespClient


async def test_queues_of_all_primaries_wake_one_worker(cluster_url: str, cluster_resp: RespClient, queue_name: str):
    async def handle(job: Job) -> Any:
        return job.queue_name, job.data

    names = [f"{queue_name}-{number}" for number in range(12)]
    async with Worker(dict.fromkeys(names, 1), handle, cluster_url, concurrency=3):

        async def use(name: str):
            async with Queue(name, cluster_url) as queue:
                for at in range(3):
                    assert await queue.add_and_wait("n", at) == [name, at]

        await asyncio.gather(*map(use, names))
        kinds = {cluster_resp.execute("HGET", f"glide:{{{name}}}:meta", "wakeChannels") for name in names}
        assert kinds <= {"2", None}


async def test_jobs_without_a_message_are_found(cluster_url: str, cluster_resp: RespClient, queue_name: str):
    async def handle(job: Job) -> Any:
        return job.data

    names = [f"{queue_name}-{number}" for number in range(3)]
    async with Worker(names, handle, cluster_url), Queue(names[1], cluster_url) as queue:
        assert await queue.add_and_wait("n", 1) == 1
        cluster_resp.execute("DEL", f"glide:{{{names[1]}}}:wake-channels")
        assert await queue.add_and_wait("n", 2) == 2
