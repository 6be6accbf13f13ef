"""A partitioned queue in a cluster: jobs on all primaries, order per key, and a killed worker."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import RespClient
from tests.inside import hash_slot, partition_names
from tests.server.faults_support import worker_process
from tests.server.worker_support import EventRecorder, with_timeout

QUICK: dict[str, Any] = {"lock_duration": 1_000, "stalled_interval": 1_000}


def primaries(resp: RespClient) -> list[tuple[int, int, bytes]]:
    """Return the first and last slot of each range, and its primary."""
    return [(first, last, node[2]) for first, last, node, *_ in resp.execute("CLUSTER", "SLOTS")]


def primary_of(name: str, ranges: list[tuple[int, int, bytes]]) -> bytes:
    slot = hash_slot(name)
    return next(node for first, last, node in ranges if first <= slot <= last)


async def test_jobs_are_on_all_primaries(cluster_url: str, cluster_resp: RespClient, queue_name: str):
    ranges = primaries(cluster_resp)
    async with Queue(queue_name, cluster_url, partitions=6) as queue:
        await queue.add_bulk([("n", at, {"job_id": f"order-{at}"}) for at in range(120)])
        jobs: Counter[bytes] = Counter()
        partitions: Counter[bytes] = Counter()
        for name in partition_names(queue_name, 6):
            owner = primary_of(name, ranges)
            partitions[owner] += 1
            jobs[owner] += cluster_resp.execute("XLEN", f"glide:{{{name}}}:stream")
        assert sorted(partitions.values()) == [2, 2, 2]
        assert sum(jobs.values()) == 120
        assert min(jobs.values()) >= 20
        assert await queue.count() == 120


async def test_keys_keep_their_order_with_several_workers(cluster_url: str, queue_name: str):
    keys = [f"customer-{number}" for number in range(12)]
    order: defaultdict[str, list[int]] = defaultdict(list)

    async def handle(job: Job):
        await asyncio.sleep(0)
        order[job.data[0]].append(job.data[1])

    async with Queue(queue_name, cluster_url, partitions=6) as queue:
        workers = [Worker(queue_name, handle, cluster_url, concurrency=4) for _ in range(3)]
        await asyncio.gather(*(worker.start() for worker in workers))
        await queue.add_bulk([("n", [key, at], {"ordering": {"key": key}}) for at in range(10) for key in keys])
        assert await queue.add_and_wait("n", ["last", 0], wait_timeout=60_000) is None
        await with_timeout(asyncio.gather(*(worker.drain() for worker in workers)))
    assert {key: order[key] for key in keys} == {key: list(range(10)) for key in keys}


async def test_no_job_is_lost_when_a_worker_is_killed(cluster_url: str, queue_name: str):
    finished: Counter[str] = Counter()

    async def handle(job: Job):
        finished[job.id] += 1

    async with (
        Queue(queue_name, cluster_url, partitions=3) as queue,
        worker_process("wait", cluster_url, queue_name, concurrency=9, **QUICK) as child,
    ):
        jobs = await queue.add_bulk([("n", at, {"job_id": f"order-{at}"}) for at in range(30)])
        for _ in range(9):
            await child.line("began")
        await child.kill()
        async with Worker(queue_name, handle, cluster_url, concurrency=5, **QUICK) as worker:
            recorded = EventRecorder(worker)
            await recorded.wait("completed", 30)
            assert recorded.count["stalled"] == 9
    assert finished == Counter({job.id: 1 for job in jobs})


@pytest.mark.slow
async def test_a_queue_is_created_over_all_primaries_while_its_workers_run(
    cluster_url: str, cluster_resp: RespClient, queue_name: str
):
    """A worker is killed meanwhile: no job is lost, and the order of keys holds."""
    order: defaultdict[str, list[int]] = defaultdict(list)
    keys, rounds = [f"customer-{number}" for number in range(12)], 100

    async def handle(job: Job):
        await asyncio.sleep(0)
        if job.data is not None:
            order[job.data[0]].append(job.data[1])

    async with (
        Queue(queue_name, cluster_url) as producer,
        worker_process("wait", cluster_url, queue_name, concurrency=4, **QUICK) as child,
    ):
        assert await producer.count() == 0
        async with Queue(queue_name, cluster_url, partitions=6) as creator:
            waiting = await producer.add_bulk([("n", None)] * 4)
            for _ in waiting:
                await child.line("began")
            async with Worker(queue_name, handle, cluster_url, concurrency=8, **QUICK) as worker:
                recorded = EventRecorder(worker)
                for number in range(1, rounds + 1):
                    await producer.add_bulk([("n", [key, number], {"ordering": {"key": key}}) for key in keys])
                    if number == rounds // 2:
                        await child.kill()
                await recorded.wait("stalled", 4)
                await with_timeout(worker.drain(), 60)
            assert (await creator.get_job_counts()).completed == 4 + rounds * len(keys)
            ranges = primaries(cluster_resp)
            names = (await creator.settings.get_partitions()).names
            assert sorted(Counter(primary_of(name, ranges) for name in names).values()) == [2, 2, 2]
    assert {key: order[key] for key in keys} == {key: list(range(1, rounds + 1)) for key in keys}
