"""Not adding the same thing twice, on a real server."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Deduplication, Job, JobOutcome, JobStateError
from tests.contract.api import Queue
from tests.server.worker_support import EventRecorder, Gate, WorkerFor


async def handle(_: Job) -> str:
    return "done"


async def test_simple_skips_while_the_job_has_not_ended(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    options: Any = {"deduplication": {"id": "d"}}
    first = await queue.add("a", 1, **options)
    second = await queue.add("a", 2, **options)
    assert (first.outcome, second.outcome, second.id) == (JobOutcome.ADDED, JobOutcome.SKIPPED, first.id)
    async with worker_for(gate):
        await gate.next()
        assert (await queue.add("a", 3, **options)).outcome is JobOutcome.SKIPPED
        gate.open()
        await first.wait_until_finished()
    third = await queue.add("a", 4, **options)
    assert (third.outcome, third.id != first.id) == (JobOutcome.ADDED, True)
    await third.remove()
    assert (await queue.add("a", 5, **options)).outcome is JobOutcome.ADDED


async def test_simple_with_ttl_ends_with_the_job(queue: Queue, worker_for: WorkerFor):
    options: Any = {"deduplication": {"id": "d", "ttl": 600_000, "mode": "simple"}}
    first = await queue.add("a", **options)
    async with worker_for(handle):
        await first.wait_until_finished()
    assert (await queue.add("a", **options)).outcome is JobOutcome.ADDED
    assert (await queue.get_jobs("completed"))[0].opts["deduplication"] == options["deduplication"]


async def test_throttle_skips_for_the_ttl_in_any_state(queue: Queue, worker_for: WorkerFor):
    options: Any = {"deduplication": {"id": "d", "mode": "throttle", "ttl": 300}}
    first = await queue.add("a", **options)
    async with worker_for(handle):
        await first.wait_until_finished()
    again = await queue.add("a", **options)
    assert (again.outcome, again.id) == (JobOutcome.SKIPPED, first.id)
    async with asyncio.timeout(60):
        while (await queue.add("a", **options)).outcome is JobOutcome.SKIPPED:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_debounce_keeps_the_last_one(queue: Queue, worker_for: WorkerFor):
    options: Any = {"delay": 100, "deduplication": Deduplication("d", mode="debounce")}
    jobs = [await queue.add("a", i, **options) for i in range(3)]
    assert [job.outcome for job in jobs] == ["added", "replaced", "replaced"]
    assert await queue.get_job(jobs[0].id) is None
    assert jobs[2].timestamp > 0
    worker = worker_for(handle)
    recorded = EventRecorder(worker)
    async with worker:
        assert await jobs[2].wait_until_finished() == "done"
    assert recorded.job_ids("completed") == [jobs[2].id]


async def test_debounce_skips_if_the_job_is_waiting_or_active(queue: Queue, worker_for: WorkerFor):
    options: Any = {"deduplication": {"id": "d", "mode": "debounce"}}
    first = await queue.add("a", **options)
    assert (await queue.add("a", **options)).outcome is JobOutcome.SKIPPED
    gate = Gate()
    async with worker_for(gate):
        await gate.next()
        again = await queue.add("a", delay=50, **options)
        assert (again.outcome, again.id) == (JobOutcome.SKIPPED, first.id)
        gate.open()


async def test_debounce_with_ttl_keeps_an_older_job(queue: Queue):
    options: Any = {"delay": 60_000, "deduplication": {"id": "d", "mode": "debounce", "ttl": 300}}
    jobs = await queue.add_bulk([("a", 1, options), ("a", 2, options)])
    assert [job.outcome for job in jobs] == ["added", "replaced"]
    options["deduplication"]["ttl"] = 1
    async with asyncio.timeout(60):
        while (again := await queue.add("a", 3, **options)).outcome is not JobOutcome.ADDED:
            jobs = [again]  # added within the millisecond: it has taken the place of the one before
    assert {job.id for job in await queue.get_jobs("delayed")} == {jobs[-1].id, again.id}


async def test_a_replaced_job_does_not_stop_its_group(queue: Queue, worker_for: WorkerFor):
    options: Any = {"ordering": "k", "deduplication": {"id": "k", "mode": "debounce"}}
    await queue.add("a", delay=60_000, **options)
    replaced = await queue.add("a", delay=10, **options)
    after = await queue.add("a", ordering="k")
    async with worker_for(handle):
        await replaced.wait_until_finished()
        await after.wait_until_finished()
    found = await queue.groups.get("k")
    assert found is not None
    assert (found.active, found.parked, found.next_seq) == (0, 0, 4)


async def test_concurrent_adds_add_one_job(queue: Queue):
    jobs = await asyncio.gather(*(queue.add("a", i, deduplication={"id": "d"}) for i in range(200)))
    assert sum(job.outcome is JobOutcome.ADDED for job in jobs) == 1
    assert len({job.id for job in jobs}) == 1
    assert (await queue.get_job_counts()).waiting == 1


async def test_add_and_wait_rejects_a_skipped_job(queue: Queue, worker_for: WorkerFor):
    await queue.add("a", delay=60_000, deduplication={"id": "d"})
    with pytest.raises(JobStateError, match="skipped"):
        await queue.add_and_wait("a", deduplication={"id": "d"})
    async with worker_for(handle):
        mode: Any = {"id": "d", "mode": "debounce"}
        assert await queue.add_and_wait("a", deduplication=mode) == "done"


# -- until, extend, replace -----------------------------------------------------------------------------------


async def test_until_started_counts_only_jobs_that_have_not_started(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    options: Any = {"deduplication": {"id": "d", "until": "started"}}
    first = await queue.add("a", 1, **options)
    assert (await queue.add("a", 2, **options)).outcome is JobOutcome.SKIPPED
    async with worker_for(gate, concurrency=1):
        await gate.next()
        second = await queue.add("a", 3, **options)
        assert (second.outcome, second.id != first.id) == (JobOutcome.ADDED, True)
        assert (await queue.add("a", 4, **options)).id == second.id
        gate.open()
        await second.wait_until_finished()
    assert second.opts["deduplication"] == {"id": "d", "mode": "simple", "until": "started"}


async def test_until_started_ignores_a_job_that_waits_for_its_retry(queue: Queue, worker_for: WorkerFor):
    async def fail(_: Job):
        raise ValueError("once more")

    options: Any = {"deduplication": {"id": "d", "until": "started"}}
    first = await queue.add("a", attempts=2, backoff=600_000, **options)
    worker = worker_for(fail)
    events = EventRecorder(worker)
    async with worker:
        await events.wait("retrying")
    assert await first.get_state() == "delayed"
    assert (await queue.add("a", **options)).outcome is JobOutcome.ADDED


async def test_replace_stages_one_job_behind_an_active_one(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    options: Any = {"deduplication": Deduplication("d", replace=True)}
    async with worker_for(gate, concurrency=3):
        first = await queue.add("a", 1, **options)
        await gate.next()
        staged = [await queue.add("a", i, **options) for i in range(3)]
        assert [job.outcome for job in staged] == ["staged"] * 3
        assert [await queue.get_job(job.id) for job in staged[:2]] == [None, None]
        last = staged[2]
        assert await last.get_state() == "waiting-children"
        skipped = await queue.add("a", 5, deduplication={"id": "d"})
        assert (skipped.outcome, skipped.id) == (JobOutcome.SKIPPED, last.id)
        found = await queue.jobs.get_deduplicated("d")
        assert found is not None
        assert found.id == last.id
        assert (await queue.settings.get_features())["dependencies"] == "0.2.0"
        gate.open()
        await last.wait_until_finished()
        assert await first.get_state() == "completed"
        assert (await queue.check()).ok


@pytest.mark.parametrize("end", ["fail", "remove", "revoke"])
async def test_staged_job_runs_however_the_active_one_ends(queue: Queue, worker_for: WorkerFor, end: str):
    started, proceed = asyncio.Event(), asyncio.Event()

    async def handler(job: Job) -> str:
        if job.data == 2:
            return "ran"
        started.set()
        await proceed.wait()
        raise ValueError("failed")

    options: Any = {"deduplication": Deduplication("d", replace=True)}
    async with worker_for(handler, lock_duration=1_000):
        first = await queue.add("a", 1, **options)
        await started.wait()
        second = await queue.add("a", 2, **options)
        assert second.outcome is JobOutcome.STAGED
        if end == "fail":
            proceed.set()
        elif end == "remove":
            await first.remove()
        else:
            await queue.revoke(first.id)
        assert await second.wait_until_finished() == "ran"


# -- requeued jobs -----------------------------------------------------------------------------------------------


async def fail_one(queue: Queue) -> str:
    (lease,) = await queue.fetch()
    await lease.fail("broken", retry=False)
    return lease.id


async def test_many_jobs_are_requeued_without_those_whose_id_is_taken(queue: Queue):
    for n in range(230):
        await queue.add("a", n, deduplication={"id": "d"} if n < 220 else None)
        await fail_one(queue)
    # One of those with the id, and all others; more than a call requeues.
    assert await queue.retry_jobs() == 11
    assert (await queue.get_job_counts()).failed == 219
    assert await queue.retry_jobs() == 0
    assert (await queue.get_job_counts()).waiting == 11


@pytest.mark.parametrize(
    "option",
    [{"mode": "throttle", "ttl": 600_000}, {"until": "started"}, {"ttl": 1}],
    ids=["throttle", "started", "ttl"],
)
async def test_job_is_requeued_if_its_option_allows_it(queue: Queue, option: Any):
    first = await queue.add("a", 1, deduplication=Deduplication("d", **option))
    await fail_one(queue)
    later = await queue.add("a", 2, deduplication={"id": "d"})
    (lease,) = await queue.fetch()  # has started
    assert lease.id == later.id
    async with asyncio.timeout(60):
        while True:
            try:
                await first.retry()
                break
            except JobStateError:
                assert "ttl" in option  # within the millisecond
    assert await first.get_state() == "waiting"
