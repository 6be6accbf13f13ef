"""Batches: callbacks, joins of running jobs, removal, repair, cancelling, and what they leave behind."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import (
    BulkAddError,
    ClosedError,
    Durability,
    GlideMQValidationError,
    Job,
    JobBatch,
    JobStateError,
    Middleware,
    NewJob,
    UnrecoverableError,
    Worker,
)
from glidemq_py.errors import DurabilityError, JobBatchNotFoundError
from glidemq_py.records import BatchJob, BatchRef, BatchStatus
from tests.conftest import same_or_other
from tests.contract.api import Queue
from tests.server.worker_support import PATIENCE, WorkerFor, until, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")

CALLBACKS: Any = {"on_complete": ("complete", 1), "on_success": ("success", 2), "on_failure": ("failure", 3)}


target = same_or_other
"""The queue of the batch's jobs: that of the batch, or another one."""


class Handler:
    """Records the names of jobs; fails those named "bad" until `healthy`."""

    def __init__(self):
        self.ran: list[str] = []
        self.healthy = False

    async def __call__(self, job: Job):
        self.ran.append(job.name)
        if job.name == "bad" and not self.healthy:
            raise UnrecoverableError("broken")


async def reaches(batch: JobBatch, test: Callable[[BatchStatus], object]) -> BatchStatus:
    async with asyncio.timeout(PATIENCE):
        while not test(status := await batch.get_status()):  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)
    return status


async def run_all(queue: Queue, name: str = "") -> list[str]:
    """Complete all ready jobs of a queue without a worker, and return their names."""
    names: list[str] = []
    while leases := await queue.fetch(100):
        names += [lease.job.name for lease in leases]
        await queue.leases.complete((lease, None) for lease in leases)
    return names


def counts(status: BatchStatus) -> tuple[int, int, int, int]:
    return status.pending, status.completed, status.failed, status.removed


# -- callbacks ----------------------------------------------------------------------------------------------


async def test_callbacks_of_a_batch_that_completes(worker_for: WorkerFor, url: Any, queue: Queue, target: Queue):
    run = Handler()
    async with await queue.job_batches.create(**CALLBACKS) as batch:
        jobs = await batch.add_bulk([("a",), ("b", {"n": 1}, {"delay": 1})], queue=target)
        await batch.add("c", queue=target)
    assert (await batch.get_status()).total == 3
    async with worker_for(run), Worker(target.name, run, url):
        status = await reaches(batch, lambda status: status.succeeded_at)
        await until(lambda: "success" in run.ran and "complete" in run.ran)
    assert counts(status) == (0, 3, 0, 0)
    assert status.is_finished
    assert status.completed_at is not None
    assert status.failed_at is None
    assert sorted(run.ran) == ["a", "b", "c", "complete", "success"]
    assert {job async for job in batch.iter_jobs("completed")} >= {
        BatchJob(target.name, job.id, "completed") for job in jobs
    }
    assert [job async for job in batch.iter_jobs("pending")] == []
    assert [each.id async for each in queue.job_batches.iter()] == []


async def test_success_follows_the_retry_of_a_failed_job(worker_for: WorkerFor, url: Any, queue: Queue, target: Queue):
    run = Handler()
    async with await queue.job_batches.create(**CALLBACKS) as batch:
        await batch.add_bulk([("a",), ("bad",)], queue=target)
    async with worker_for(run), Worker(target.name, run, url):
        status = await reaches(batch, lambda status: status.completed_at)
        assert counts(status) == (0, 1, 1, 0)
        assert status.succeeded_at is None
        await until(lambda: {"failure", "complete"} <= set(run.ran))
        run.healthy = True
        (failed,) = [job async for job in batch.iter_jobs("failed")]
        job = await target.get_job(failed.id)
        assert job is not None
        await job.retry()
        status = await reaches(batch, lambda status: status.succeeded_at)
        await until(lambda: "success" in run.ran)
    assert counts(status) == (0, 2, 0, 0)
    assert sorted(run.ran) == ["a", "bad", "bad", "complete", "failure", "success"]


async def test_batch_stays_open_if_its_block_fails(queue: Queue):
    with pytest.raises(ZeroDivisionError):
        async with await queue.job_batches.create(on_complete=("complete",)) as batch:
            raise ZeroDivisionError
    assert not (await batch.get_status()).is_closed
    assert [each.id async for each in queue.job_batches.iter()] == [batch.id]


# -- joins --------------------------------------------------------------------------------------------------


async def test_running_job_joins_others(worker_for: WorkerFor, url: Any, queue: Queue, target: Queue):
    names: list[str] = []

    async def handle(job: Job):
        names.append(job.name)
        if job.name == "first":
            ref = await job.get_batch_ref()
            assert ref is not None
            found = await queue.job_batches.get(ref)
            await found.add_bulk([("more", n) for n in range(3)], queue=target)
            assert (await found.get_status()).is_closed

    async with await queue.job_batches.create(on_success=("success",)) as batch:
        await batch.add("first", queue=target)
    async with worker_for(handle), Worker(target.name, handle, url):
        await until(lambda: "success" in names)
    assert names == ["first", "more", "more", "more", "success"]
    with pytest.raises(JobStateError, match="it is finished"):
        await batch.add("late", queue=target)
    with pytest.raises(JobStateError, match="it is finished"):
        await batch.add_bulk([("late", n) for n in range(5)], queue=target)
    assert (await target.get_job_counts()).waiting == 0


@pytest.mark.exclude("blocking", reason="`JobBatch` is that of asynchronous code")
async def test_unknown_batch_is_rejected(queue: Queue):
    with pytest.raises(JobBatchNotFoundError, match="batch 'none' not found"):
        await queue.job_batches.get("none")
    batch = await queue.job_batches.create()
    await queue.obliterate()
    for call in (batch.add("a"), batch.close(), batch.get_status(), batch.cancel()):
        with pytest.raises(JobBatchNotFoundError):
            await call
    with pytest.raises(GlideMQValidationError, match="must be of this queue"):
        await queue.job_batches.get(BatchRef("elsewhere", "b"))


class Rejecting(Middleware):
    """Raises before or after the add of a job with this name."""

    @contextmanager
    def add(self, job: NewJob) -> Iterator[None]:
        if job.name == "before":
            raise PermissionError(job.name)
        yield
        if job.name == "after":
            raise PermissionError(job.name)


async def test_job_that_a_middleware_rejects_does_not_join(url: Any, queue: Queue, queue_name: str):
    await queue.add("old", job_id="taken")
    async with Queue(queue_name, url, middleware=[Rejecting()]) as around:
        batch = await around.job_batches.create()
        for name in ("before", "after"):
            with pytest.raises(PermissionError, match=name):
                await batch.add(name)
        with pytest.raises(PermissionError, match="after"):
            await batch.add("after", job_id="taken")
    assert counts(await (await queue.job_batches.get(batch.id)).get_status()) == (1, 0, 0, 1)
    assert sorted(await run_all(queue)) == ["after", "old"]


async def test_job_for_a_closed_queue_does_not_join(url: Any, queue: Queue):
    closed = Queue("closed", url)
    await closed.close()
    batch = await queue.job_batches.create()
    with pytest.raises(ClosedError):
        await batch.add("a", queue=closed)
    assert counts(await batch.get_status()) == (0, 0, 0, 0)


async def test_durable_jobs_of_a_batch(queue: Queue):
    batch = await queue.job_batches.create()
    lost = Durability(disk=False, replicas=9, timeout=1)
    with pytest.raises(DurabilityError):
        await batch.add("a", durable=lost)
    with pytest.raises(BulkAddError) as error:
        await batch.add_bulk([("b",), ("c",)], durable=lost)
    assert error.value.unconfirmed == 2
    with pytest.raises(GlideMQValidationError, match="'durable' = 'yes'"):
        await batch.add("d", durable="yes")  # type: ignore[arg-type]
    assert counts(await batch.get_status()) == (3, 0, 0, 0)


async def test_concurrent_adds_of_one_id_add_one_job_of_the_batch(queue: Queue, target: Queue):
    """The job that one add has added stays in the batch, although the others found it."""
    batch = await queue.job_batches.create(**CALLBACKS)
    jobs = await asyncio.gather(*(batch.add("n", queue=target, job_id="same") for _ in range(8)))
    assert sorted(job.outcome for job in jobs) == ["added", *["duplicate"] * 7]
    await batch.close()
    status = await batch.get_status()
    assert (status.total, status.pending, status.removed, status.completed_at) == (1, 1, 0, None)


# -- removal and repair -------------------------------------------------------------------------------------


async def test_removed_job_leaves_and_an_ended_one_stays(worker_for: WorkerFor, url: Any, queue: Queue, target: Queue):
    run = Handler()
    async with await queue.job_batches.create(on_complete=("complete",)) as batch:
        ended = await batch.add_bulk([("a",), ("bad",)], queue=target)
        removed = await batch.add_bulk([("later", None, {"delay": 3_600_000}), ("drained", None)], queue=target)
        async with worker_for(run), Worker(target.name, run, url):
            await reaches(batch, lambda status: status.pending == 1)
            drained = await batch.add("drained", delay=3_600_000, queue=target)
            await target.remove(removed[0].id)
            await target.drain(delayed=True)
            status = await reaches(batch, lambda status: status.removed == 2)
            assert counts(status) == (0, 2, 1, 2)
            await target.remove(ended[0].id)
            assert await target.clean(0, 100, "failed") == [ended[1].id]
            await batch.close()
            await until(lambda: "complete" in run.ran)
    assert counts(await batch.get_status()) == (0, 2, 1, 2)
    assert drained.id not in {job.id async for job in batch.iter_jobs()}


async def test_cancelled_batch_ends(worker_for: WorkerFor, url: Any, queue: Queue, target: Queue):
    run = Handler()
    batch = await queue.job_batches.create(on_complete=("complete",))
    await batch.add_bulk([("a", None, {"delay": 3_600_000}), ("b", None, {"delay": 3_600_000})], queue=target)
    assert await batch.cancel() == 2
    with pytest.raises(JobStateError, match="it is cancelled"):
        await batch.add("c")
    async with worker_for(run), Worker(target.name, run, url):
        status = await reaches(batch, lambda status: status.completed_at)
        await until(lambda: run.ran == ["complete"])
    assert counts(status) == (0, 0, 2, 0)
    assert status.is_cancelled
    assert await batch.cancel() == 0


async def test_backup_keeps_batches(queue: Queue, tmp_path: Path):
    batch = await queue.job_batches.create(on_success=("success", {"n": 1}))
    await batch.add_bulk([("a",), ("b",)])
    await queue.backups.create(tmp_path)
    await queue.obliterate(force=True)
    with pytest.raises(JobBatchNotFoundError):
        await batch.get_status()
    await queue.backups.restore(tmp_path)
    await batch.close()
    assert sorted(await run_all(queue)) == ["a", "b", "success"]
    assert counts(await batch.get_status()) == (0, 2, 0, 0)


async def test_other_features_count(worker_for: WorkerFor, queue: Queue):
    """Jobs that expire, stall, wait for others, belong to a group or are deleted when they end."""
    run = Handler()
    async with await queue.job_batches.create(on_complete=("complete",)) as batch:
        await batch.add("expired", ttl=1, delay=5)
        await batch.add("gone", remove_on_complete=True)
        await batch.add("bad", remove_on_fail=True)
        first = await batch.add("ordered", ordering="g", rank=5_000)
        await batch.add("waits", depends_on=[first])
    async with worker_for(run):
        status = await reaches(batch, lambda status: status.completed_at)
        await until(lambda: "complete" in run.ran)
    assert counts(status) == (0, 3, 2, 0)


# -- blocking -----------------------------------------------------------------------------------------------


async def test_handler_in_a_thread_joins(worker_for: WorkerFor, queue: Queue):
    found: list[BatchRef | None] = []

    def handle(job: Job):
        found.append(job.blocking.get_batch_ref())

    async with await queue.job_batches.create() as batch:
        await batch.add("a")
    async with worker_for(handle):
        await with_timeout(reaches(batch, lambda status: status.completed_at))
    assert found == [BatchRef(queue.name, batch.id)]
