"""Schedules whose jobs do not overlap: `overlap="skip"` and `overlap="buffer_one"`."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Job
from tests.contract.api import Queue
from tests.contract.observe import Clockwork, Raw
from tests.contract.test_schedulers import read
from tests.server.worker_support import Gate, WorkerFor, with_timeout

TIMES: list[dict[str, Any]] = [{"every": 1_000}, {"pattern": "* * * * * *"}]
LONG: Any = {"lock_duration": 600_000}


async def end_completed(queue: Queue, job: Job):
    (lease,) = await queue.fetch()
    await lease.complete()


async def end_failed(queue: Queue, job: Job):
    (lease,) = await queue.fetch()
    await lease.fail("boom")


async def end_revoked(queue: Queue, job: Job):
    assert await queue.revoke(job.id) == "revoked"


async def end_removed(queue: Queue, job: Job):
    assert await queue.remove(job.id)


@pytest.mark.parametrize("times", TIMES, ids=["every", "pattern"])
async def test_skip_adds_no_job_while_the_earlier_one_is_unfinished(clockwork: Clockwork, times: Any):
    queue, start = clockwork.queue, clockwork.now
    made = await queue.upsert_job_scheduler("tick", **times, start_date=start + 1_000, overlap="skip")
    assert (made.schedule.overlap, made.skipped_count, made.last_skipped) == ("skip", 0, None)
    await clockwork.until(start + 3_500)  # the job of the first due time is ready
    (lease,) = await queue.fetch(**LONG)
    await clockwork.until(start + 5_500)  # it is active
    assert await clockwork.instants() == [start + 1_000]
    skipping = await read(clockwork)
    assert (skipping.iteration_count, skipping.skipped_count, skipping.last_skipped) == (1, 4, start + 5_000)
    assert (skipping.next_run, skipping.last_job_id) == (start + 6_000, lease.id)
    await lease.complete()
    await clockwork.until(start + 6_500)
    assert await clockwork.instants() == [start + 1_000, start + 6_000]
    assert (await read(clockwork)).skipped_count == 4


@pytest.mark.parametrize("misfire", ["fire_once", "skip"])
@pytest.mark.parametrize("times", TIMES, ids=["every", "pattern"])
async def test_buffer_one_adds_one_job_when_the_earlier_one_has_finished(
    clockwork: Clockwork, times: Any, misfire: Any
):
    queue, start = clockwork.queue, clockwork.now
    await queue.upsert_job_scheduler("tick", **times, start_date=start + 1_000, overlap="buffer_one", misfire=misfire)
    await clockwork.until(start + 1_500)
    (lease,) = await queue.fetch(**LONG)
    await clockwork.until(start + 20_300)
    waiting = await read(clockwork)
    assert (waiting.buffered, waiting.next_run, waiting.iteration_count) == (True, start + 2_000, 1)
    await lease.complete()
    await clockwork.fire()  # its end made the scheduler due
    assert await clockwork.instants() == [start + 1_000, start + 2_000]
    later = await read(clockwork)
    assert (later.buffered, later.next_run, later.iteration_count) == (False, start + 21_000, 2)
    (lease,) = await queue.fetch(**LONG)
    await lease.complete()
    await clockwork.until(start + 22_500)
    assert await clockwork.instants() == [start + 1_000, start + 2_000, start + 21_000]
    assert (await read(clockwork)).buffered


async def test_retry_and_delay_count_as_unfinished(clockwork: Clockwork):
    start = clockwork.now
    template: Any = ("work", None, {"attempts": 2, "delay": 1_500, "backoff": 60_000})
    await clockwork.queue.upsert_job_scheduler("tick", every=1_000, overlap="skip", template=template)
    await clockwork.until(start + 2_400)
    assert [job.state for job in await clockwork.jobs()] == ["delayed"]
    clockwork.advance(200)
    (job,) = await clockwork.jobs()
    await end_failed(clockwork.queue, job)
    await clockwork.until(start + 10_500)
    assert [job.state for job in await clockwork.jobs()] == ["delayed"]
    assert (await read(clockwork)).skipped_count == 9


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
@pytest.mark.parametrize("end", [end_removed, end_revoked, end_failed, None])
async def test_every_end_releases_the_schedule(clockwork: Clockwork, raw: Raw, overlap: Any, end: Any):
    start = clockwork.now
    await clockwork.queue.upsert_job_scheduler("tick", every=10_000, overlap=overlap)
    await clockwork.until(start + 20_500)
    assert await clockwork.instants() == [start + 10_000]
    (job,) = await clockwork.jobs()
    if end is None:
        raw.run("DEL", f"job:{job.id}")  # as a peer's retention does
    else:
        await end(clockwork.queue, job)
    await clockwork.until(start + 31_000)
    expected = start + (20_000 if overlap == "buffer_one" else 30_000)
    assert expected in [at for at, _ in (await read(clockwork)).last_runs]
    await clockwork.queue.obliterate(force=True)


async def test_limit_counts_runs_and_the_end_date_ends_a_skipping_scheduler(clockwork: Clockwork):
    queue, start = clockwork.queue, clockwork.now
    await queue.upsert_job_scheduler("tick", every=1_000, overlap="skip", limit=2)
    await clockwork.until(start + 3_500)
    assert (await read(clockwork)).iteration_count == 1
    await end_completed(queue, *await clockwork.jobs())
    await clockwork.until(start + 6_500)
    assert len(await clockwork.jobs()) == 2
    assert await queue.get_job_scheduler("tick") is None
    await queue.upsert_job_scheduler("tick", every=1_000, overlap="skip", end_date=clockwork.now + 2_500)
    await clockwork.until(clockwork.now + 5_000)
    assert len(await clockwork.jobs()) == 3
    assert await queue.get_job_scheduler("tick") is None


async def test_buffered_run_is_the_last_one_of_an_ended_schedule(clockwork: Clockwork):
    start = clockwork.now
    await clockwork.queue.upsert_job_scheduler("tick", every=1_000, overlap="buffer_one", end_date=start + 2_500)
    await clockwork.until(start + 10_000)
    (job,) = await clockwork.jobs()
    await end_completed(clockwork.queue, job)
    await clockwork.fire()
    assert await clockwork.instants() == [start + 1_000, start + 2_000]
    assert await clockwork.queue.get_job_scheduler("tick") is None


async def test_update_keeps_the_unfinished_job(clockwork: Clockwork):
    queue, start = clockwork.queue, clockwork.now
    await queue.upsert_job_scheduler("tick", every=1_000, overlap="skip")
    await clockwork.until(start + 2_500)
    same = await queue.upsert_job_scheduler("tick", every=1_000, overlap="skip")
    assert (same.skipped_count, same.iteration_count) == (1, 1)
    other = await queue.upsert_job_scheduler("tick", every=3_000, overlap="skip")
    assert (other.skipped_count, other.iteration_count) == (0, 0)
    await clockwork.until(clockwork.now + 3_500)
    assert len(await clockwork.jobs()) == 1
    assert (await read(clockwork)).skipped_count == 1
    await queue.upsert_job_scheduler("tick", every=3_000, overlap="allow")
    await clockwork.until(clockwork.now + 3_500)
    assert len(await clockwork.jobs()) == 2


async def test_node_clients_do_not_see_it_and_older_builds_refuse_the_queue(clockwork: Clockwork):
    made = await clockwork.queue.upsert_job_scheduler("tick", every=1_000, overlap="skip")
    assert not made.for_peers
    assert clockwork.stored("tick") is None
    assert "schedule-overlap" in await clockwork.queue.get_features()
    await clockwork.queue.upsert_job_scheduler("tick", every=1_000)
    stored = clockwork.stored("tick")
    assert stored is not None
    assert not {"overlap", "skippedCount", "buffered"} & set(stored)


async def test_buffered_job_starts_as_soon_as_the_earlier_one_ends(worker_for: WorkerFor, queue: Queue):
    gate = Gate()

    async def handle(job: Job):
        await gate(job)

    async with worker_for(handle, concurrency=2), asyncio.timeout(100):
        await queue.upsert_job_scheduler("tick", every=100, overlap="buffer_one", limit=2)
        first = await with_timeout(gate.next())
        while not (found := await queue.get_job_scheduler("tick")) or not found.buffered:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)
        assert (await queue.get_job_counts()).active == 1
        gate.open()
        second = await with_timeout(gate.next())
        assert second.id != first.id
        await queue.obliterate(force=True)
