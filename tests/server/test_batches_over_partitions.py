"""Batch handlers of partitioned queues: a batch has jobs of all partitions, and each job its own outcome."""

from collections import Counter
from functools import partial
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from tests.contract.test_batch import BatchGate
from tests.inside import opened, partition_of
from tests.server.lossy_proxy import LossyProxy
from tests.server.test_partitions import keyed
from tests.server.worker_support import WorkerFor, until, with_timeout

LOCK_MS = 1_000
PARTITIONS = 4


def jobs_in_all(count: int = 1, name: str = "n") -> list[Any]:
    """Return new jobs, so many for each partition; their data are their positions."""
    return [(name, at, {"fair_key": keyed(at % PARTITIONS, PARTITIONS, f"{at}-")}) for at in range(count * PARTITIONS)]


def partitions_of(jobs: list[Job]) -> Counter[int]:
    return Counter(partition_of(job.id) for job in jobs)


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_batches_are_filled_from_all_partitions(core_url: str, queue_name: str, in_thread: bool):
    batches: list[list[Job]] = []

    def handle(jobs: list[Job]) -> list[Any]:
        batches.append(jobs)
        return [job.data for job in jobs]

    async def handle_async(jobs: list[Job]) -> list[Any]:
        return handle(jobs)

    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        jobs = await queue.add_bulk(jobs_in_all(30))
        handler: Any = handle if in_thread else handle_async
        async with Worker(queue_name, handler, core_url, batch={"size": 40}, concurrency=2) as worker:
            assert [await job.wait_until_finished() for job in jobs] == list(range(120))
            assert worker.active_count == 0
        assert [len(batch) for batch in batches] == [40, 40, 40]
        assert {job.id for batch in batches for job in batch} == {job.id for job in jobs}
        assert {job.queue_name for batch in batches for job in batch} == {queue_name}
        assert sum((partitions_of(batch) for batch in batches), Counter()) == Counter(dict.fromkeys(range(4), 30))
        assert (await queue.get_job_counts()).completed == 120


@pytest.mark.slow
async def test_jobs_of_a_dead_worker_are_recovered_in_their_partitions(
    worker_for: WorkerFor, url: str, queue_name: str
):
    gate = BatchGate()
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        jobs = await queue.add_bulk(jobs_in_all())
        dead = worker_for(gate, batch={"size": PARTITIONS}, lock_duration=LOCK_MS)
        await dead.start()
        await gate.next()
        lanes: Any = opened(dead)
        for lane in lanes.lanes:
            await with_timeout(until(partial(getattr, lane, "background")))
            await lane.background.heartbeat.close()  # other workers consider it dead
        dead.pause()

        async def again(jobs: list[Job]) -> list[str]:
            return [f"again {job.data}" for job in jobs]

        options: Any = {"lock_duration": LOCK_MS, "stalled_interval": LOCK_MS}
        async with worker_for(again, batch={"size": PARTITIONS}, **options):
            assert [await job.wait_until_finished() for job in jobs] == [f"again {at}" for at in range(PARTITIONS)]
        await dead.close(force=True)


async def test_a_lost_reply_does_not_repeat_a_batch(url: str, queue_name: str, server: Any):
    runs: Counter[Any] = Counter()

    async def handle(jobs: list[Job]) -> list[Any]:
        runs.update(job.data for job in jobs)
        return [job.data for job in jobs]

    with LossyProxy(server.url) as proxy:
        async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
            jobs = await queue.add_bulk(jobs_in_all(25))
            proxy.lose("_exchange", 3)
            async with Worker(queue_name, handle, proxy.url, batch={"size": 30}, concurrency=2):
                assert [await job.wait_until_finished() for job in jobs] == list(range(100))
        assert proxy.lost == 3
    assert runs == Counter(range(100))
