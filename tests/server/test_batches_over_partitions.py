"""Batch handlers of partitioned queues: a batch has jobs of all partitions, and each job its own outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

from glidemq_py import BatchOptions, DelayedError, Job, JobFailedError, Queue, UnrecoverableError, Worker
from glidemq_py._features.partitions.layout import split_partition_id
from tests.server.lossy_proxy import LossyProxy
from tests.server.test_batch import BatchGate
from tests.server.test_partitions import keyed
from tests.server.worker_support import until, with_timeout

LOCK_MS = 1_000
PARTITIONS = 4


def jobs_in_all(count: int = 1, name: str = "n") -> list[Any]:
    """Return new jobs, so many for each partition; their data are their positions."""
    return [(name, at, {"fair_key": keyed(at % PARTITIONS, PARTITIONS, f"{at}-")}) for at in range(count * PARTITIONS)]


def partitions_of(jobs: list[Job]) -> Counter[int]:
    return Counter(split_partition_id(job.id)[0] for job in jobs)


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


async def test_a_batch_waits_for_jobs_of_any_partition(url: str, queue_name: str):
    gate = BatchGate()
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        async with Worker(queue_name, gate, url, batch=BatchOptions(PARTITIONS, timeout=60_000)):
            for name, data, options in jobs_in_all():
                assert not gate.begun
                await queue.add(name, data, **options)
            assert partitions_of(await gate.next()) == Counter(range(PARTITIONS))
            gate.opened.set()
        async with Worker(queue_name, gate, url, batch=BatchOptions(3, timeout=300)):
            for name, data, options in jobs_in_all()[:2]:
                await queue.add(name, data, **options)
            assert partitions_of(await gate.next()) == Counter([0, 1])


async def test_partial_batches_count_against_concurrency(url: str, queue_name: str):
    gate = BatchGate()
    async with (
        Queue(queue_name, url, partitions=PARTITIONS) as queue,
        Worker(queue_name, gate, url, batch={"size": 3}, concurrency=2) as worker,
    ):
        first = await queue.add("n", 0)
        await gate.next()
        second = await queue.add("n", 1)
        await gate.next()
        rest = await queue.add_bulk(jobs_in_all(2))
        assert worker.active_count == 2
        gate.opened.set()
        for job in (first, second, *rest):
            await job.wait_until_finished()
        assert gate.most == 2
        assert gate.sizes[:2] == [1, 1]
        assert sum(gate.sizes) == 10


async def test_each_job_has_its_own_outcome(core_url: str, queue_name: str):
    attempts: Counter[str] = Counter()

    async def handle(jobs: list[Job]) -> list[Any]:
        outcomes: list[Any] = []
        for job in jobs:
            attempts[job.name] += 1
            again = attempts[job.name] > 1
            outcomes.append({
                "result": job.id, "retry": job.attempts_made if again else ValueError("once"),
                "fail": UnrecoverableError("never"), "delay": "later" if again else DelayedError(10),
            }[job.name])  # fmt: skip
        return outcomes

    names = ["result", "retry", "fail", "delay"]
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        jobs = await queue.add_bulk([
            (name, None, {"attempts": 3, "job_id": keyed(at, PARTITIONS)}) for at, name in enumerate(names)
        ])  # fmt: skip
        async with Worker(queue_name, handle, core_url, batch={"size": 4}):
            result, retry, fail, delay = jobs
            assert await result.wait_until_finished() == result.id
            assert await retry.wait_until_finished() == 1
            with pytest.raises(JobFailedError, match="never"):
                await fail.wait_until_finished()
            assert await delay.wait_until_finished() == "later"
        assert attempts == {"result": 1, "retry": 2, "fail": 1, "delay": 2}
        assert [each.id for each in (await queue.get_jobs("failed"))] == [fail.id]


async def test_timeouts_and_cancellations_end_one_job(url: str, queue_name: str):
    gate = BatchGate()
    async with (
        Queue(queue_name, url, partitions=PARTITIONS) as queue,
        Worker(queue_name, gate, url, batch=BatchOptions(3, timeout=60_000)) as worker,
    ):
        keys: list[Any] = [{"ordering": {"key": keyed(at, PARTITIONS)}} for at in range(3)]
        collected = await queue.add("n", "collected", **keys[0])
        await with_timeout(until(lambda: worker.active_count))
        assert worker.cancel_job(collected.id)
        with pytest.raises(JobFailedError, match="revoked"):
            await collected.wait_until_finished()
        short = await queue.add("n", 0, timeout=100, **keys[0])
        revoked, runs = await queue.add("n", 1, **keys[1]), await queue.add("n", 2, **keys[2])
        assert {job.id for job in await gate.next()} == {short.id, revoked.id, runs.id}
        with pytest.raises(JobFailedError, match=r"timed out|timeout"):
            await short.wait_until_finished()
        assert worker.cancel_job(revoked.id)
        with pytest.raises(JobFailedError, match="revoked"):
            await revoked.wait_until_finished()
        assert (gate.running, gate.cancelled) == (1, 0)
        gate.opened.set()
        assert await runs.wait_until_finished() == 2


async def test_close_releases_collected_jobs_of_all_partitions(url: str, queue_name: str):
    gate = BatchGate()
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        worker = Worker(queue_name, gate, url, batch=BatchOptions(PARTITIONS, 60_000), concurrency=2)
        await worker.start()
        running = await queue.add_bulk(jobs_in_all())
        await gate.next()
        collected = await queue.add_bulk(jobs_in_all()[:3])
        await with_timeout(until(lambda: worker.active_count == 7))
        closing = asyncio.ensure_future(worker.close())
        await with_timeout(until(lambda: worker.active_count == 4))
        assert not closing.done()
        gate.opened.set()
        await with_timeout(closing)
        assert [await job.get_state() for job in running] == ["completed"] * PARTITIONS
        assert [await job.get_state() for job in collected] == ["waiting"] * 3
        assert [job.attempts_made for job in await queue.get_jobs("waiting")] == [0] * 3


async def test_forced_close_releases_every_job_of_a_batch(url: str, queue_name: str):
    gate = BatchGate()
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        jobs = await queue.add_bulk(jobs_in_all())
        worker = Worker(queue_name, gate, url, batch={"size": PARTITIONS})
        await worker.start()
        await gate.next()
        await with_timeout(worker.close(force=True))
        assert [await job.get_state() for job in jobs] == ["waiting"] * PARTITIONS
        assert gate.cancelled == 1


@pytest.mark.slow
async def test_jobs_of_a_dead_worker_are_recovered_in_their_partitions(url: str, queue_name: str):
    gate = BatchGate()
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        jobs = await queue.add_bulk(jobs_in_all())
        dead = Worker(queue_name, gate, url, batch={"size": PARTITIONS}, lock_duration=LOCK_MS)
        await dead.start()
        await gate.next()
        lanes: Any = dead._life.parts
        for lane in lanes.lanes:
            await with_timeout(until(partial(getattr, lane, "background")))
            await lane.background.heartbeat.close()  # other workers consider it dead
        dead.pause()

        async def again(jobs: list[Job]) -> list[str]:
            return [f"again {job.data}" for job in jobs]

        options: Any = {"lock_duration": LOCK_MS, "stalled_interval": LOCK_MS}
        async with Worker(queue_name, again, url, batch={"size": PARTITIONS}, **options):
            assert [await job.wait_until_finished() for job in jobs] == [f"again {at}" for at in range(PARTITIONS)]
        await dead.close(force=True)


async def test_a_lost_reply_does_not_repeat_a_batch(url: str, queue_name: str, server: Any):
    runs: Counter[Any] = Counter()

    async def handle(jobs: list[Job]) -> list[Any]:
        runs.update(job.data for job in jobs)
        return [job.data for job in jobs]

    with LossyProxy(server.port) as proxy:
        async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
            jobs = await queue.add_bulk(jobs_in_all(25))
            proxy.lose("_exchange", 3)
            async with Worker(queue_name, handle, proxy.url, batch={"size": 30}, concurrency=2):
                assert [await job.wait_until_finished() for job in jobs] == list(range(100))
        assert proxy.lost == 3
    assert runs == Counter(range(100))


@pytest.mark.slow
async def test_a_batch_worker_follows_a_change_of_the_number(url: str, queue_name: str):
    """The batch that runs keeps its slots; the collected jobs are released, and join a batch of all partitions."""
    gate = BatchGate()
    async with (
        Queue(queue_name, url) as queue,
        Worker(queue_name, gate, url, batch=BatchOptions(8, 60_000), lock_duration=LOCK_MS) as worker,
    ):
        consumer = worker.consumer
        running = await queue.add_bulk([("n", at) for at in range(8)])
        await gate.next()
        await queue.set_partitions(PARTITIONS)
        await with_timeout(until(lambda: worker.consumer != consumer))
        jobs = await queue.add_bulk(jobs_in_all(2))
        for job in running:
            assert await job.get_state() == "active"
        assert (gate.most, len(gate.begun)) == (1, 1)
        gate.opened.set()
        for job in (*running, *jobs):
            await job.wait_until_finished()
        assert partitions_of(await gate.next()) == Counter(dict.fromkeys(range(PARTITIONS), 2))
        gate.opened.clear()
        await queue.set_partitions(6)
        more = await queue.add_bulk([("n", at, {"fair_key": keyed(at, 6)}) for at in range(2, 6)] * 2)
        assert len(await gate.next()) == 8
        gate.opened.set()
        for job in more:
            await job.wait_until_finished()
        assert gate.most == 1


async def test_collected_jobs_of_a_plain_queue_are_released_by_a_change(url: str, queue_name: str):
    gate = BatchGate()
    gate.opened.set()
    async with (
        Queue(queue_name, url) as queue,
        Worker(queue_name, gate, url, batch=BatchOptions(2, 60_000), lock_duration=LOCK_MS) as worker,
    ):
        consumer = worker.consumer
        collected = await queue.add("n", 0)
        await with_timeout(until(lambda: worker.active_count))
        await queue.set_partitions(PARTITIONS)
        await with_timeout(until(lambda: worker.consumer != consumer))
        other = await queue.add("n", 1, ordering={"key": keyed(2, PARTITIONS)})
        assert {await collected.wait_until_finished(), await other.wait_until_finished()} == {0, 1}
        assert gate.sizes == [2]
