"""Bulk adds: outcomes by position, bounded chunks, order, and errors of partly failed adds."""

from typing import Any

import pytest

from glidemq_py import (
    Broadcast,
    Job,
    JobOptions,
    JobOutcome,
    JobSpec,
    chain,
)
from tests.contract.api import Producer, Queue
from tests.contract.observe import Raw, assert_order
from tests.key_leaks import KeyLeaks
from tests.server.worker_support import EventRecorder, WorkerFor


async def test_forms_of_a_row(queue: Queue, raw: Raw):
    rows: Any = [
        ("a",), ("b", 1), ("c", 2, {"attempts": 3}), ("d", 3, None), ["e", 4, {}], JobSpec("f", 5, {"priority": 1}),
        JobSpec("g", options=JobOptions(delay=60_000)),
    ]  # fmt: skip
    jobs = await queue.add_bulk(iter(rows))
    assert [(job.name, job.data) for job in jobs] == [
        ("a", None), ("b", 1), ("c", 2), ("d", 3), ("e", 4), ("f", 5), ("g", None)
    ]  # fmt: skip
    assert [await job.get_state() for job in jobs[4:]] == ["waiting", "prioritized", "delayed"]
    assert raw.job(jobs[2].id)["maxAttempts"] == "3"
    assert await queue.add_bulk([]) == []


async def test_others_take_jobs_as_mappings(url: str, queue: Queue, queue_name: str):
    given: Any = {"name": "b", "data": 1, "opts": {"attempts": 3}}
    async with (
        Producer(queue_name, url) as producer,
        Broadcast(f"{queue_name}-b", url) as broadcast,
    ):
        batch = await queue.job_batches.create()
        ids = [(await batch.add_bulk([given]))[0].id, *await producer.add_bulk([given])]
        ids.append((await chain(queue_name, [given], url)).job.id)
        for job_id in map(str, ids):
            job = await queue.get_job(job_id)
            assert job is not None
            assert (job.name, job.data, job.opts["attempts"]) == ("b", 1, 3)
        scheduler = await queue.schedulers.upsert("s", every=60_000, template=given)
        assert (scheduler.job_name, scheduler.data) == ("b", 1)
        assert len(await broadcast.publish_bulk([given])) == 1


async def test_duplicates_have_their_position(queue: Queue, key_leaks: KeyLeaks):
    await queue.add("old", "old", job_id="x7")
    jobs = await queue.add_bulk([("n", i, {"job_id": f"x{i % 10}"}) for i in range(20)])
    assert [job.id.rpartition("||")[2] for job in jobs] == [f"x{i % 10}" for i in range(20)]
    duplicates = [i for i, job in enumerate(jobs) if job.outcome is JobOutcome.DUPLICATE]
    assert duplicates == [7, *range(10, 20)]
    assert (await queue.get_job_counts()).waiting == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "order"),
    [
        (lambda i: {}, lambda count: list(range(count))),
        (lambda i: {"lifo": True}, lambda count: list(range(count - 1, -1, -1))),
        (lambda i: {"priority": 5}, lambda count: list(range(count))),
        (lambda i: {"priority": 1 + i % 3}, lambda count: [i for p in range(3) for i in range(p, count, 3)]),
    ],
    ids=["stream", "lifo", "priority", "priorities"],
)
async def test_order(queue: Queue, worker_for: WorkerFor, options: Any, order: Any):
    """FIFO in the stream and within a priority, the last first in LIFO, over the chunks of one bulk."""
    seen: list[Job] = []

    async def handle(job: Job):
        seen.append(job)

    worker = worker_for(handle, concurrency=1)
    recorded = EventRecorder(worker)
    await queue.add_bulk([("n", i, options(i)) for i in range(1_000)])
    async with worker:
        await recorded.wait("completed", 1_000)
    assert_order(seen, order(1_000))
