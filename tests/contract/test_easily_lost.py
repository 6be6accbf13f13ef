"""What a change of the inside can lose without a sign: fences, counts, wake-ups, events."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from glidemq_py import DeadLetterOptions, FlowJob, Job, JobFailedError, LeaseOutcome, Worker
from glidemq_py.testing import MemoryServer, RespClient
from tests.contract.api import FlowProducer, Queue, QueueEvents
from tests.server.conftest import without_polling
from tests.server.worker_support import WorkerFor
from tests.simulation.memory_client import MemoryClient

__all__ = ["without_polling"]


async def test_result_of_a_replaced_attempt_changes_nothing(queue: Queue):
    job = await queue.add("n")
    (first,) = await queue.fetch()
    assert await queue.leases.release([first]) == [LeaseOutcome.RELEASED]
    (second,) = await queue.fetch()
    assert (await queue.leases.complete([(first, "old")])).outcomes == [LeaseOutcome.LOST]
    assert (await queue.leases.complete([(second, "new")])).outcomes == [LeaseOutcome.COMPLETED]
    assert await job.wait_until_finished() == "new"


async def test_child_counts_once_although_it_failed_before(
    worker_for: WorkerFor, url: Any, flows: FlowProducer, queue: Queue
):
    broken, release = True, asyncio.Event()

    async def handle(job: Job):
        if job.name == "slow":
            await release.wait()
        if job.name == "broken" and broken:
            raise ValueError("broken")
        return len(await job.get_children_values()) if job.name == "parent" else job.name

    children = [FlowJob("broken", queue.name, options={"on_failure": "ignore"}), FlowJob("slow", queue.name)]
    async with (
        QueueEvents(queue.name, url) as events,
        worker_for(handle, concurrency=3),
    ):
        failed: asyncio.Queue[str] = asyncio.Queue()
        events.on("failed", lambda event: failed.put_nowait(event.job_id))
        node = await flows.add(FlowJob("parent", queue.name, children=children))
        await asyncio.wait_for(failed.get(), 60)
        broken = False
        child = await queue.get_job(node.children[0].job.id)
        assert child is not None
        await child.retry()
        assert await child.wait_until_finished() == "broken"
        parent = await queue.get_job(node.job.id)
        release.set()
        assert parent is not None
        assert parent.state == "waiting-children"
        assert await parent.wait_until_finished() == 2


async def test_rate_limit_counts_the_jobs_of_earlier_calls(parts: int, queue: Queue):
    await queue.limits.set_rate_limit(3 * parts, 3_600_000)
    await queue.add_bulk([("n",)] * 5)
    assert [len(await queue.fetch()) for _ in range(5)] == [1, 1, 1, 0, 0]
    assert (await queue.limits.get()).rate_limit_used == 3


@pytest.mark.usefixtures("without_polling")
async def test_resumed_queue_wakes_its_idle_workers(worker_for: WorkerFor, queue: Queue):
    await queue.pause()
    job = await queue.add("n", 1)
    async with worker_for(lambda job: job.data):
        for _ in range(50):  # meanwhile the worker finds the queue paused
            assert await queue.is_paused()
        await queue.resume()
        assert await asyncio.wait_for(job.wait_until_finished(), 60) == 1


async def test_events_of_a_job_that_fails(worker_for: WorkerFor, url: Any, queue: Queue):
    async def fail(_: Job):
        raise ValueError("no")

    async with QueueEvents(queue.name, url) as events, worker_for(fail):
        received: asyncio.Queue[Any] = asyncio.Queue()
        events.on("*", received.put_nowait)
        job = await queue.add("n", attempts=2)
        seen: list[tuple[str, str | None]] = []
        while not seen or seen[-1][0] != "failed":
            event = await asyncio.wait_for(received.get(), 60)
            if event.job_id == job.id and event.event != "promoted":
                seen.append((event.event, event.fields.get("failedReason")))
    assert seen == [("added", None), ("retrying", "no"), ("failed", "no")]


async def test_each_event_is_read_once(url: Any, queue: Queue):
    async with QueueEvents(queue.name, url) as events:
        received: asyncio.Queue[Any] = asyncio.Queue()
        events.on("added", received.put_nowait)
        expected = {job.id for job in await queue.add_bulk([("n",)] * 20)}
        expected.add((await queue.add("last")).id)
        seen: list[str] = []
        while not expected <= set(seen):
            seen.append((await asyncio.wait_for(received.get(), 60)).job_id)
    assert len(seen) == len(expected)


async def test_lease_that_expires_too_often_fails_its_job(worker_for: WorkerFor, queue: Queue):
    occupied, release = asyncio.Event(), asyncio.Event()

    async def occupy(_: Job):
        occupied.set()
        await release.wait()

    async with worker_for(occupy, stalled_interval=1_000, log_failures=False):  # recovers
        await queue.add("occupies the worker")
        await occupied.wait()
        job = await queue.add("n")
        for _ in range(2):
            assert len(await queue.fetch(lock_duration=1_000, wait=60_000)) == 1
        with pytest.raises(JobFailedError, match="stalled"):
            await asyncio.wait_for(job.wait_until_finished(), 60)
        release.set()


async def test_defaults_apply_to_jobs_of_a_bulk(url: Any, queue: Queue):
    async with Queue(queue.name, url, default_job_options={"priority": 7, "attempts": 4}) as defaults:
        plain, own = await defaults.add_bulk([("n",), ("n", None, {"priority": 2})])
    for job, priority in ((plain, 7), (own, 2)):
        read = await queue.get_job(job.id)
        assert read is not None
        assert (read.priority, read.opts["attempts"]) == (priority, 4)


async def test_concurrent_adds_return_their_own_jobs(queue: Queue):
    jobs = await asyncio.gather(*(queue.add("n", number) for number in range(30)))
    assert len({job.id for job in jobs}) == 30
    for number, job in enumerate(jobs):
        read = await queue.get_job(job.id)
        assert read is not None
        assert read.data == number


async def test_retention_takes_count_and_age_apart(worker_for: WorkerFor, queue: Queue):
    async with worker_for(lambda job: job.data) as worker:
        await queue.add_bulk([("n", n, {"remove_on_complete": {"count": 2, "age": 3_600}}) for n in range(6)])
        await worker.drain()
    assert [job.data for job in await queue.get_jobs("completed")] == [4, 5]


async def test_run_at_is_the_due_time(worker_for: WorkerFor, queue: Queue):
    at = datetime.now(UTC) + timedelta(seconds=1)
    job = await queue.add("n", 1, run_at=at)
    assert (await queue.get_job_counts()).delayed == 1
    async with worker_for(lambda job: job.data):
        assert await job.wait_until_finished(timeout=30_000) == 1
    read = await queue.get_job(job.id)
    assert read is not None
    assert (read.processed_on or 0) >= int(at.timestamp() * 1_000)


@pytest.mark.exclude("partitioned", reason="the feature is listed in the queue's own meta")
async def test_undelivered_dead_letter_is_kept(worker_for: WorkerFor, url: Any, queue: Queue):
    async def fail(_: Job):
        raise ValueError("no")

    delivered = asyncio.Event()

    async def deliver(_: Job):
        delivered.set()

    name, meta = queue.name + "-dead", f"glide:{{{queue.name}-dead}}:meta"
    options: Any = {"dead_letter_queue": DeadLetterOptions(name=name)}
    with MemoryClient(url) if isinstance(url, MemoryServer) else RespClient.from_url(url) as raw:
        raw.execute("HSET", meta, "features", "of-a-later-build:9.9")  # the other queue refuses
        async with Queue(queue.name, url, **options) as source:
            async with worker_for(fail, **options):
                with pytest.raises(JobFailedError):
                    await source.add_and_wait("n")
            raw.execute("HDEL", meta, "features")
            async with worker_for(fail, **options), Worker(name, deliver, url):
                await asyncio.wait_for(delivered.wait(), 20)
