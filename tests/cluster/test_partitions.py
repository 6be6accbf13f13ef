"""A partitioned queue in a cluster: jobs on all primaries, order per key, and a killed worker."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py._features.partitions.layout import hash_slot, partition_names, partition_of_key
from glidemq_py.testing import RespClient
from tests.server.faults_support import worker_process
from tests.server.shares_support import Counted, Shares, fill, limited
from tests.server.worker_support import EventRecorder, until, with_timeout

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

    async def handle(job: Job) -> None:
        await asyncio.sleep(0)
        order[job.data[0]].append(job.data[1])

    async with Queue(queue_name, cluster_url, partitions=6) as queue:
        workers = [Worker(queue_name, handle, cluster_url, concurrency=4) for _ in range(3)]
        await asyncio.gather(*(worker.start() for worker in workers))
        await queue.add_bulk([("n", [key, at], {"ordering": {"key": key}}) for at in range(10) for key in keys])
        assert await queue.add_and_wait("n", ["last", 0], wait_timeout=60_000) is None
        await with_timeout(asyncio.gather(*(worker.drain() for worker in workers)))
    assert {key: order[key] for key in keys} == {key: list(range(10)) for key in keys}


@pytest.mark.slow
async def test_partitions_of_all_primaries_share_a_limit(cluster_url: str, queue_name: str):
    """The limit holds for the handlers that run at once, whatever partitions have jobs."""
    dice = random.Random(3)
    handler, total = Counted(7), 0
    handler.seconds = lambda: dice.choice([0, 0.002, 0.01])
    async with limited(cluster_url, queue_name, 7, 6) as queue:
        async with Worker(queue_name, handler, cluster_url, concurrency=12), Worker(queue_name, handler, cluster_url):
            for partition in (1, 4, 5, 1, 0):
                await fill(queue, partition, 40)
                total += 40
                await asyncio.sleep(dice.choice([0, 0.05]))
            await with_timeout(until(lambda: handler.done == total))
        assert await Shares(queue).bound() <= 7


async def test_no_job_is_lost_when_a_worker_is_killed(cluster_url: str, queue_name: str):
    finished: Counter[str] = Counter()

    async def handle(job: Job) -> None:
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
async def test_a_plain_queue_grows_over_all_primaries_under_load(
    cluster_url: str, cluster_resp: RespClient, queue_name: str
):
    """Producers and workers run meanwhile, and a worker is killed: no job is lost, and the order of keys holds."""
    order: defaultdict[str, list[int]] = defaultdict(list)
    keys, ids, rounds, stop = [f"customer-{number}" for number in range(12)], list[str](), 0, asyncio.Event()

    async def handle(job: Job) -> None:
        await asyncio.sleep(0)
        if job.data is not None:
            order[job.data[0]].append(job.data[1])

    async def produce(queue: Queue) -> None:
        nonlocal rounds
        while not stop.is_set():
            rounds += 1
            jobs = [("n", [key, rounds], {"ordering": {"key": key}}) for key in keys]
            added = await queue.add_bulk([*jobs, *(("n", None, {"job_id": f"id-{rounds % 50}-{n}"}) for n in range(3))])
            ids.extend(job.id for job in added[len(keys) :])

    async with Queue(queue_name, cluster_url) as producer, Queue(queue_name, cluster_url) as operator:
        async with worker_process("wait", cluster_url, queue_name, concurrency=4, **QUICK) as child:
            waiting = await producer.add_bulk([("n", None)] * 4)
            for _ in waiting:
                await child.line("began")
            async with Worker(queue_name, handle, cluster_url, concurrency=8, **QUICK) as worker:
                recorded = EventRecorder(worker)
                producing = asyncio.create_task(produce(producer))
                for count in (3, 6):
                    before = rounds
                    await with_timeout(until(lambda last=before + 8: rounds >= last), 60)  # type: ignore[misc]
                    await operator.set_partitions(count)
                await child.kill()
                before = rounds
                await with_timeout(until(lambda: rounds >= before + 60), 60)
                stop.set()
                await producing
                await recorded.wait("stalled", 4)
                await with_timeout(worker.drain(), 60)
        counts = await operator.get_job_counts()
        assert counts.completed == 4 + rounds * len(keys) + len(set(ids))
        assert {len(await find(operator, f"id-{n}-0")) for n in range(50)} == {1}
        ranges = primaries(cluster_resp)
        names = (await operator.get_partitions()).names
        assert sorted(Counter(primary_of(name, ranges) for name in names).values()) == [2, 2, 2]
    assert {key: order[key] for key in keys} == {key: list(range(1, rounds + 1)) for key in keys}


async def find(queue: Queue, job_id: str) -> list[str]:
    """Return the ids of all jobs with a custom id, in whatever partition they are."""
    assert queue._partitions is not None
    found = [await part.get_job(job_id) for part in queue._partitions.queues]
    return [job.id for job in found if job is not None]


async def test_a_text_with_several_kinds_of_keys_stays_unique(cluster_url: str, queue_name: str):
    keys = [f"customer-{number}" for number in range(12)]
    unique = [("report", key, {"deduplication": {"id": key}}) for key in keys]
    async with Queue(queue_name, cluster_url) as queue, Queue(queue_name, cluster_url) as other:
        await queue.add_bulk(unique)
        await queue.set_partitions(6)
        steps = await queue.add_bulk([("step", key, {"ordering": {"key": key}}) for key in keys])
        again = [*await queue.add_bulk(unique), *await other.add_bulk(unique)]
        assert {str(job.outcome) for job in again} == {"skipped"}
        assert not any("||" in job.id for job in steps)


async def test_a_failed_job_is_not_requeued_beside_jobs_of_its_key(cluster_url: str, queue_name: str):
    keys = [f"customer-{number}" for number in range(12)]
    moved = [key for key in keys if partition_of_key(key, 6) != 0]
    async with Queue(queue_name, cluster_url) as queue:
        await queue.add_bulk([("old", key, {"ordering": {"key": key}}) for key in keys])
        for lease in await queue.fetch(len(keys)):
            await lease.fail("not yet")
        await queue.set_partitions(6)
        await queue.add_bulk([("new", key, {"deduplication": {"id": key}}) for key in moved[:4]])
        assert await queue.retry_jobs() == len(keys) - 4
        assert (await queue.get_job_counts()).failed == 4
