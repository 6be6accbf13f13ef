"""Test failed attempts, failed jobs and the failure policy with workers."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import glidemq_py
from glidemq_py import (
    FailurePolicy,
    FailureReason,
    Job,
    JobFailedError,
    Maintenance,
    UnrecoverableError,
    Worker,
)
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import WorkerFor

pytestmark = pytest.mark.usefixtures("clean_check")

R = FailureReason


async def fail(job: Job):
    if job.name == "slow":
        await asyncio.sleep(60)
    if job.name == "final":
        raise UnrecoverableError("no")
    raise ValueError(f"attempt {job.attempts_made + 1}")


async def all_failed(queue: Queue, url: str, *names: str, **options: Any) -> list[Job]:
    # Its turn to recover stalled jobs ends before the next worker starts.
    async with Worker(queue.name, fail, url, concurrency=1, lock_duration=1_000, stalled_interval=1_000):
        jobs = [await queue.add(name, **options) for name in names]
        for job in jobs:
            with pytest.raises(JobFailedError):
                await job.wait_until_finished()
    return jobs


async def test_reasons(url: str, queue: Queue):
    await all_failed(queue, url, "final", attempts=3)
    await all_failed(queue, url, "slow", timeout=20)
    await all_failed(queue, url, "a")
    assert {each.name: each.reason for each in await queue.failures.get_all()} == {
        "final": R.EXPLICIT_FAIL, "slow": R.TIMEOUT, "a": R.MAX_ATTEMPTS_EXCEEDED,
    }  # fmt: skip


async def test_a_cancelled_job_has_not_failed(worker_for: WorkerFor, url: str, queue_name: str, raw: Raw):
    started = asyncio.Event()

    async def handle(job: Job):
        if job.name == "active":
            started.set()
            await asyncio.Event().wait()
        raise ValueError("no")

    async with Queue(queue_name, url, dead_letter_queue=f"{queue_name}-dead") as queue:
        jobs = await queue.add_bulk([("waiting", 1), ("by a Node client", 1), ("by an older build", 1)])
        for job in jobs:
            assert await job.revoke() == "revoked"
        _, peers, older = (f"job:{job.id}" for job in jobs)
        raw.run("HDEL", peers, "failureReason", "failedAttempts")
        raw.run("HSET", older, "failureReason", f"explicit_fail|{raw.run('HGET', older, 'finishedOn')}")
        async with worker_for(handle, concurrency=1) as worker:
            active, failed = await queue.add_bulk([("active", 1), ("failed", 1)])
            await started.wait()
            assert worker.cancel_job(active.id)
            for job in (active, failed):
                with pytest.raises(JobFailedError):
                    await job.wait_until_finished()
        cancelled = {job.id for job in (*jobs, active)}
        await queue.failures.set_policy(retry_interval=timedelta(hours=1))
        found = await queue.failures.get_all()
        assert {each.job_id for each in found if each.reason is R.CANCELLED} == cancelled
        assert [each.job_id for each in found if each.next_retry_at is not None] == [failed.id]
        assert [each.data["originalJobId"] for each in await queue.dead_letters.get_all()] == [failed.id]
        assert sum(point.count for point in (await queue.get_metrics("failed")).data) == 1
        assert await queue.failures.retry() == 1
        assert await queue.retry_jobs() == 0
        assert {each.job_id for each in await queue.failures.get_all()} == cancelled
        assert await queue.failures.retry(reason=R.CANCELLED) == len(cancelled)


async def test_worker_executes_the_policy(url: str, queue: Queue, worker_for: WorkerFor):
    done: asyncio.Queue[str] = asyncio.Queue()

    async def finish(job: Job):
        await done.put(job.id)

    await queue.failures.set_policy(retry_interval=1_000)
    (job,) = await all_failed(queue, url, "a")
    async with worker_for(finish, lock_duration=1_000, stalled_interval=1_000):
        assert await asyncio.wait_for(done.get(), 30) == job.id
    assert len(await queue.failures.get_attempts(job.id)) == 1


@pytest.mark.slow
async def test_worker_requeues_its_failed_jobs_on_time(queue: Queue, worker_for: WorkerFor):
    starts = 0
    done = asyncio.Event()

    async def fail_twice(_: Job):
        nonlocal starts
        starts += 1
        if starts < 3:
            raise ValueError
        done.set()

    await queue.failures.set_policy(retry_interval=1_000)
    async with worker_for(fail_twice):  # its next check is 30 seconds later
        await queue.add("a")
        await asyncio.wait_for(done.wait(), 20)


async def test_starting_worker_requeues_jobs_that_are_due(queue: Queue, worker_for: WorkerFor):
    ran = asyncio.Event()

    async def finish(_: Job):
        ran.set()

    await queue.failures.set_policy(retry_interval=1_000)
    async with worker_for(fail, log_failures=False):  # has the turn to check for 24 seconds
        job = await queue.add("a")
        with pytest.raises(JobFailedError):
            await job.wait_until_finished()
    async with worker_for(finish):
        await asyncio.wait_for(ran.wait(), 15)


@pytest.mark.exclude("partitioned", reason="a worker of several queues names their weights")
@pytest.mark.slow
async def test_worker_of_several_queues_executes_the_policy(url: str, queue_name: str):
    ran: asyncio.Queue[str] = asyncio.Queue()

    async def always_fail(job: Job):
        await ran.put(job.queue_name)
        raise ValueError

    names = [queue_name, f"{queue_name}-second"]
    async with Queue(names[1], url) as second:
        await second.failures.set_policy(retry_interval=1_000)
        async with Worker(names, always_fail, url):
            await second.add("a")
            for _ in range(2):
                assert await asyncio.wait_for(ran.get(), 20) == second.name
        await second.obliterate(force=True)


async def test_maintenance_executes_the_policy(url: str, queue: Queue, queue_name: str):
    async with glidemq_py.Queue(queue_name, url) as served:
        (job,) = await all_failed(queue, url, "a")
        await queue.failures.set_policy(retry_interval=1_000)
        async with Maintenance([served], lock_duration=1_000, stalled_interval=1_000):
            (lease,) = await queue.fetch(wait=30_000)
            assert lease.id == job.id
            await lease.complete()


async def test_backup_contains_the_attempts(url: str, queue: Queue, queue_name: str, tmp_path: Path):
    async with Queue(f"{queue_name}-copy", url) as copy:
        await queue.failures.set_policy(retry_interval=60_000)
        (job,) = await all_failed(queue, url, "a", attempts=2)
        await queue.backups.create(tmp_path)
        await copy.backups.restore(tmp_path, source=queue_name)
        assert await copy.failures.get_attempts(job.id) == await queue.failures.get_attempts(job.id)
        assert await copy.failures.get_policy() == FailurePolicy(60_000, 3)
        assert await copy.failures.get_all() == await queue.failures.get_all()
        assert (await copy.failures.get_stats()).counts == {(R.MAX_ATTEMPTS_EXCEEDED, "a"): 1}
        await copy.obliterate()
