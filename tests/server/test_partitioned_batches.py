"""Job batches of partitioned queues, and with jobs in them, on one server and on a cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from glidemq_py import (
    BatchRef,
    BulkAddError,
    GlideMQValidationError,
    Job,
    JobBatch,
    JobBatchFinishedError,
    JobBatchNotFoundError,
    JobState,
    Middleware,
    NewJob,
    Queue,
    UnrecoverableError,
    Worker,
    sync,
)
from glidemq_py._features.partitions.layout import split_partition_id
from tests.conftest import SERVER_AND_CLUSTER
from tests.server.test_partitions import id_in, keyed
from tests.server.worker_support import with_timeout

pytestmark = pytest.mark.parametrize("core_server", SERVER_AND_CLUSTER, indirect=True)

PARTITIONS = 3


class Recorder:
    """A handler that records jobs, and awaits those with a name."""

    def __init__(self, *awaited: str) -> None:
        self.ran: Counter[str] = Counter()
        self.refs: dict[str, BatchRef | None] = {}
        self._awaited = dict.fromkeys(awaited)
        self.all_ran = asyncio.Event()

    async def __call__(self, job: Job) -> None:
        self.ran[job.name] += 1
        self.refs[job.name] = await job.get_batch_ref()
        if all(self.ran[name] for name in self._awaited):
            self.all_ran.set()
        if job.data == "fail" and not self.ran["healed"]:
            raise UnrecoverableError("broken")


def partitions_of(ids: list[str]) -> set[int]:
    return {split_partition_id(job_id)[0] for job_id in ids}


async def test_a_batch_has_jobs_in_all_partitions(core_url: str, queue_name: str):
    handler = Recorder("complete", "success")
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        callbacks: dict[str, Any] = {f"on_{name}": (name,) for name in ("complete", "success", "failure")}
        async with await queue.create_batch(**callbacks) as batch:
            keyed_jobs = [("n", None, {"ordering": {"key": keyed(at, PARTITIONS)}}) for at in range(PARTITIONS)]
            named = [("n", None, {"job_id": id_in(at, PARTITIONS)}) for at in range(PARTITIONS)]
            jobs = await batch.add_bulk([("free",), *keyed_jobs, *named])
            jobs.append(await batch.add("one"))
        assert [split_partition_id(job.id)[0] for job in jobs[1:7]] == [0, 1, 2, 0, 1, 2]
        assert {job.queue_name for job in jobs} == {queue_name}
        assert {each.id async for each in batch.iter_jobs("pending")} == {job.id for job in jobs}
        assert {each.queue async for each in batch.iter_jobs()} == {queue_name}
        assert await jobs[0].get_batch_ref() == BatchRef(queue_name, batch.id)
        assert batch.queue_name == queue_name
        assert [each.id async for each in queue.iter_batches()] == [batch.id]
        async with Worker(queue_name, handler, core_url, concurrency=4):
            await with_timeout(handler.all_ran.wait())
        status = await (await queue.get_batch(batch.id)).get_status()
        assert (status.total, status.completed, status.is_finished) == (len(jobs), len(jobs), True)
        assert handler.refs["complete"] == handler.refs["success"] == BatchRef(queue_name, batch.id)
        assert not handler.ran["failure"]
        with pytest.raises(JobBatchFinishedError):
            await batch.add("late")


async def test_a_failed_job_of_another_partition_is_requeued(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        async with await queue.create_batch(on_failure=("failed",), on_success=("success",)) as batch:
            jobs = [await batch.add("n", "fail", job_id=id_in(at, PARTITIONS)) for at in range(PARTITIONS)]
        handler = Recorder("failed")
        async with Worker(queue_name, handler, core_url):
            await with_timeout(handler.all_ran.wait())
            for job in jobs:
                with pytest.raises(Exception, match="broken"):
                    await job.wait_until_finished()
        healthy = Recorder("success")
        healthy.ran["healed"] = 1
        async with Worker(queue_name, healthy, core_url):
            for job in jobs:
                await job.retry()
            await with_timeout(healthy.all_ran.wait())
        assert (await batch.get_status()).completed == PARTITIONS


async def test_batches_take_turns_and_are_found_by_their_id(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        made = [await queue.create_batch() for _ in range(PARTITIONS)]
        assert partitions_of([batch.id for batch in made]) == {0, 1, 2}
        for at in range(PARTITIONS):
            wanted = id_in(at, PARTITIONS)
            batch = await queue.create_batch(batch_id=wanted, on_success=("first",))
            assert batch.id == (f"{at}||{wanted}" if at else wanted)
            assert (await queue.create_batch(batch_id=wanted)).id == batch.id
            for known in (wanted, batch.id, BatchRef(queue_name, batch.id)):
                assert (await queue.get_batch(known)).id == batch.id
            made.append(batch)
        assert sorted([each.id async for each in queue.iter_batches()]) == sorted(each.id for each in made)
        for unknown in ("none", "1||none", "99||none"):
            with pytest.raises(JobBatchNotFoundError) as raised:
                await queue.get_batch(unknown)
            assert raised.value.batch_id == unknown
        with pytest.raises(GlideMQValidationError):
            await queue.get_batch(BatchRef("other", "b"))


async def test_a_batch_is_cancelled_in_all_partitions(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        batch = await queue.create_batch(on_complete=("complete",))
        jobs = await batch.add_bulk([("n", None, {"job_id": f"job-{at}"}) for at in range(20)])
        assert await batch.cancel() == 20
        assert {str(await job.get_state()) for job in jobs} == {"failed"}
        handler = Recorder("complete")
        async with Worker(queue_name, handler, core_url):
            await with_timeout(handler.all_ran.wait())
        assert (await batch.get_status()).failed == 20


@pytest.mark.slow
async def test_a_batch_of_a_plain_queue_has_jobs_in_a_partitioned_one(core_url: str, queue_name: str):
    handler = Recorder("success")
    async with (
        Queue(f"{queue_name}-p", core_url) as plain,
        Queue(queue_name, core_url, partitions=PARTITIONS) as queue,
        Worker(queue_name, handler, core_url),
        Worker(plain.name, handler, core_url),
    ):
        async with await plain.create_batch(on_success=("success",)) as batch:
            jobs = await batch.add_bulk([("n", at) for at in range(600)], queue=queue)
            await batch.add("n")
        assert partitions_of([job.id for job in jobs]) == {0, 1, 2}
        await with_timeout(handler.all_ran.wait())
        assert handler.ran["n"] == 601
        assert (await batch.get_status()).succeeded_at is not None


async def test_jobs_that_are_not_added_leave_the_batch(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        await queue.add("old", job_id=id_in(1, PARTITIONS))
        batch = await queue.create_batch()
        job = await batch.add("n", job_id=id_in(1, PARTITIONS))
        assert str(job.outcome) == "duplicate"
        with pytest.raises(GlideMQValidationError) as invalid:
            await batch.add_bulk([("n", 1), ("n", 2), ("n", object())])
        assert invalid.value.option == "jobs[2].data"
        with pytest.raises(BulkAddError) as raised:
            await batch.add_bulk([("a", None, {"depends_on": ["none"]}), ("b",)])
        assert [isinstance(each, Job) for each in raised.value.results] == [False, True]
        status = await batch.get_status()
        assert (status.pending, status.total) == (1, 1)
        waiting = await batch.add("c", depends_on=[(queue_name, id_in(1, PARTITIONS))])
        assert str(await waiting.get_state()) == "waiting-children"


async def test_the_middleware_of_a_partitioned_queue_is_around_the_adds_of_a_batch(core_url: str, queue_name: str):
    class Tenant(Middleware):
        def add(self, job: NewJob) -> None:
            job.headers["tenant"] = job.queue

    async with Queue(queue_name, core_url, partitions=PARTITIONS, middleware=[Tenant()]) as queue:
        batch = await queue.create_batch()
        jobs = await batch.add_bulk([("n", at) for at in range(3)])
        found = [await queue.get_job(job.id) for job in jobs]
        assert [job is not None and dict(job.headers) for job in found] == [{"tenant": queue_name}] * 3
        assert (await batch.get_status()).pending == 3
        empty = await queue.create_batch(on_complete=("callback", 1))
        await empty.close()
        (callback,) = [job for job in await queue.get_jobs("waiting") if job.name == "callback"]
        assert callback.headers == {"tenant": queue_name}


async def test_batches_and_their_jobs_survive_a_change_of_the_number(core_url: str, queue_name: str):
    """The client that adds does not know of the change; a partition with a batch is not given up."""
    handler = Recorder("success")
    async with Queue(queue_name, core_url) as queue, Queue(queue_name, core_url) as operator:
        batches: list[JobBatch] = [await queue.create_batch(on_success=("of-plain",), batch_id="early")]
        await batches[0].add("n")
        for partitions in (4, 6, 2):
            await operator.set_partitions(partitions)
            batches.append(await queue.create_batch(on_success=("success",), batch_id=f"at-{partitions}"))
            for batch in batches:
                await batch.add_bulk([("n", at) for at in range(10)])
                assert (await queue.get_batch(batch.id.rpartition("||")[2])).id == batch.id
        for batch in batches:
            await batch.close()
        total = sum([(await batch.get_status()).pending for batch in batches])
        assert total == 1 + 10 * (3 + 3 + 2 + 1)
        async with Worker(queue_name, handler, core_url, concurrency=8) as worker:
            await with_timeout(handler.all_ran.wait())
            await with_timeout(worker.drain())
        assert handler.ran == Counter({"n": total, "success": 3, "of-plain": 1})
        assert all([(await batch.get_status()).is_finished for batch in batches])
        await operator.clean(0, 10_000)
        far = [batch for batch in batches if split_partition_id(batch.id)[0] >= 2]
        state = await operator.set_partitions(2)
        assert state.is_settled is not bool(far)


@pytest.mark.parametrize("options", [{}, {"attempts": 2}], ids=str)
async def test_ids_that_a_batch_issues_choose_no_partition(core_url: str, queue_name: str, options: dict[str, Any]):
    """Also when default options of the queue or dependencies change the options of a job."""
    async with Queue(queue_name, core_url, partitions=2, default_job_options=options or None) as queue:
        first = await queue.add("first")
        batch = await queue.create_batch(batch_id="b")
        await batch.add_bulk([("n", at) for at in range(12)])
        await batch.add("dependent", depends_on=[first.id])
        for state in (JobState.WAITING, JobState.WAITING_CHILDREN):
            assert all("jobId" not in job.opts for job in await queue.get_jobs(state))
        await queue.set_partitions(5)
        assert (await queue.set_partitions(5)).is_settled


async def test_a_blocking_queue_has_batches_over_partitions(core_url: str, queue_name: str):
    def work() -> tuple[int, int]:
        with sync.Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
            with queue.create_batch(batch_id="b") as batch:
                batch.add_bulk([("n", at) for at in range(5)])
                batch.add("n", queue=queue)
            found = queue.get_batch("b")
            return found.get_status().pending, len(list(found.iter_jobs()))

    assert await with_timeout(asyncio.to_thread(work)) == (6, 6)
