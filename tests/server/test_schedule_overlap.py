"""Schedules whose jobs do not overlap: `overlap="skip"` and `overlap="buffer_one"`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from glidemq_py import Job, JobScheduler, Queue, Worker
from glidemq_py._features.schedulers.entry import schedulers_due, schedulers_fire
from glidemq_py.testing import RespClient
from tests.server.schedules_support import Clockwork
from tests.server.worker_support import Gate, with_timeout

pytestmark = pytest.mark.usefixtures("key_leaks")


@pytest.fixture
def clock(resp: RespClient, queue_name: str) -> Iterator[Clockwork]:
    work = Clockwork(resp, queue_name)
    yield work
    work.own.delete_everything()


async def read(clock: Clockwork) -> JobScheduler:
    found = await clock.queue.get_job_scheduler("tick")
    assert found is not None
    return found


TIMES: list[dict[str, Any]] = [{"every": 1_000}, {"pattern": "* * * * * *"}]


def on_the_second(clock: Clockwork) -> int:
    """Set the clock so that the due times of both schedules are whole seconds, and return the current one."""
    start = clock.now - clock.now % 1_000 + 1_000
    clock.own.set_time(start)
    return start


@pytest.mark.parametrize("times", TIMES, ids=["every", "pattern"])
async def test_skip_adds_no_job_while_the_earlier_one_is_unfinished(clock: Clockwork, times: dict[str, Any]) -> None:
    start = on_the_second(clock)
    made = await clock.queue.upsert_job_scheduler("tick", **times, start_date=start + 1_000, overlap="skip")
    assert (made.schedule.overlap, made.skipped_count, made.last_skipped) == ("skip", 0, None)
    await clock.until(start + 3_500)  # the job of the first due time is ready
    assert clock.instants() == [start + 1_000]
    job = clock.own.take_one()
    await clock.until(start + 5_500)  # it is active
    assert clock.instants() == [start + 1_000]
    skipping = await read(clock)
    assert (skipping.iteration_count, skipping.skipped_count, skipping.last_skipped) == (1, 4, start + 5_000)
    assert (skipping.next_run, skipping.last_job_id) == (start + 6_000, job.id)
    clock.own.finish(job.completed())
    await clock.until(start + 6_500)
    assert clock.instants() == [start + 1_000, start + 6_000]
    assert (await read(clock)).skipped_count == 4


@pytest.mark.parametrize("misfire", ["fire_once", "skip"])
@pytest.mark.parametrize("times", TIMES, ids=["every", "pattern"])
async def test_buffer_one_adds_one_job_when_the_earlier_one_has_finished(
    clock: Clockwork, times: dict[str, Any], misfire: Any
) -> None:
    start = on_the_second(clock)
    await clock.queue.upsert_job_scheduler(
        "tick", **times, start_date=start + 1_000, overlap="buffer_one", misfire=misfire
    )
    await clock.until(start + 1_500)
    job = clock.own.take_one()
    await clock.until(start + 20_300)
    waiting = await read(clock)
    assert (waiting.buffered, waiting.next_run, waiting.iteration_count) == (True, start + 2_000, 1)
    clock.own.finish(job.completed())
    await clock.fire()  # its end made the scheduler due
    assert clock.instants() == [start + 1_000, start + 2_000]
    later = await read(clock)
    assert (later.buffered, later.next_run, later.iteration_count) == (False, start + 21_000, 2)
    clock.own.finish(clock.own.take_one().completed())
    await clock.until(start + 22_500)
    assert clock.instants() == [start + 1_000, start + 2_000, start + 21_000]
    assert (await read(clock)).buffered


async def test_retry_and_delay_count_as_unfinished(clock: Clockwork) -> None:
    start = clock.now
    await clock.queue.upsert_job_scheduler(
        "tick", every=1_000, overlap="skip", template=("work", None, {"attempts": 2, "delay": 1_500})
    )
    await clock.until(start + 2_400)
    assert [job["state"] for job in clock.jobs()] == ["delayed"]
    clock.own.advance(200)
    clock.own.finish(clock.own.take_one().failed(limit=2, backoff=60_000))
    await clock.until(start + 10_500)
    assert [job["state"] for job in clock.jobs()] == ["delayed"]
    assert (await read(clock)).skipped_count == 9


async def end_by_deletion(clock: Clockwork, job_id: str) -> None:
    assert clock.own.fcall("remove", clock.own.meta, job_id) == 1


async def end_by_revoking(clock: Clockwork, job_id: str) -> None:
    assert clock.own.fcall("revoke", clock.own.meta, job_id) == "revoked"


async def end_by_failure(clock: Clockwork, job_id: str) -> None:
    clock.own.finish(clock.own.take_one().failed())


async def end_by_lost_record(clock: Clockwork, job_id: str) -> None:
    clock.own.redis("DEL", f"job:{job_id}")  # as a peer's retention does


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
@pytest.mark.parametrize("end", [end_by_deletion, end_by_revoking, end_by_failure, end_by_lost_record])
async def test_every_end_releases_the_schedule(clock: Clockwork, overlap: Any, end: Any) -> None:
    start = clock.now
    await clock.queue.upsert_job_scheduler("tick", every=10_000, overlap=overlap)
    await clock.until(start + 20_500)
    assert clock.instants() == [start + 10_000]
    await end(clock, clock.jobs()[0]["id"])
    await clock.until(start + 31_000)
    expected = start + (20_000 if overlap == "buffer_one" else 30_000)
    assert expected in clock.instants()


async def test_limit_counts_runs_and_the_end_date_ends_a_skipping_scheduler(clock: Clockwork) -> None:
    start = clock.now
    await clock.queue.upsert_job_scheduler("tick", every=1_000, overlap="skip", limit=2)
    await clock.until(start + 3_500)
    assert (await read(clock)).iteration_count == 1
    clock.own.finish(clock.own.take_one().completed())
    await clock.until(start + 6_500)
    assert len(clock.jobs()) == 2
    assert await clock.queue.get_job_scheduler("tick") is None
    await clock.queue.upsert_job_scheduler("tick", every=1_000, overlap="skip", end_date=clock.now + 2_500)
    await clock.until(clock.now + 5_000)
    assert len(clock.jobs()) == 3
    assert await clock.queue.get_job_scheduler("tick") is None


async def test_buffered_run_is_the_last_one_of_an_ended_schedule(clock: Clockwork) -> None:
    start = clock.now
    await clock.queue.upsert_job_scheduler("tick", every=1_000, overlap="buffer_one", end_date=start + 2_500)
    await clock.until(start + 10_000)
    assert len(clock.jobs()) == 1
    clock.own.finish(clock.own.take_one().completed())
    await clock.fire()
    assert clock.instants() == [start + 1_000, start + 2_000]
    assert await clock.queue.get_job_scheduler("tick") is None


async def test_update_keeps_the_unfinished_job(clock: Clockwork) -> None:
    start = clock.now
    await clock.queue.upsert_job_scheduler("tick", every=1_000, overlap="skip")
    await clock.until(start + 2_500)
    same = await clock.queue.upsert_job_scheduler("tick", every=1_000, overlap="skip")
    assert (same.skipped_count, same.iteration_count) == (1, 1)
    other = await clock.queue.upsert_job_scheduler("tick", every=3_000, overlap="skip")
    assert (other.skipped_count, other.iteration_count) == (0, 0)
    await clock.until(clock.now + 3_500)
    assert len(clock.jobs()) == 1
    assert (await read(clock)).skipped_count == 1
    await clock.queue.upsert_job_scheduler("tick", every=3_000, overlap="allow")
    await clock.until(clock.now + 3_500)
    assert len(clock.jobs()) == 2


async def test_two_processes_that_fire_at_once_decide_in_the_call(clock: Clockwork) -> None:
    """Both planned while the job was unfinished; it ends before the first call."""
    start = clock.now
    await clock.queue.upsert_job_scheduler("tick", every=1_000, overlap="skip")
    await clock.until(start + 1_500)
    clock.own.advance(1_000)
    due = clock.own.run(schedulers_due(clock.own.meta, "first"))
    rows = [clock.duty._plan(row, due.now) for row in due.rows]
    clock.own.finish(clock.own.take_one().completed())
    fired = clock.own.run(schedulers_fire(clock.own.meta, "first", rows, False))
    again = clock.own.run(schedulers_fire(clock.own.meta, "second", rows, False))
    assert len(fired.outcomes[0]) == 1
    assert again.outcomes == ["changed"]
    assert len(clock.jobs()) == 2


async def test_node_clients_do_not_see_it_and_older_builds_refuse_the_queue(clock: Clockwork) -> None:
    made = await clock.queue.upsert_job_scheduler("tick", every=1_000, overlap="skip")
    assert not made.for_peers
    assert clock.own.redis("EXISTS", "schedulers") == 0
    assert clock.own.redis("HGET", "meta", "features") == "schedule-overlap:0.2.0"
    await clock.queue.upsert_job_scheduler("tick", every=1_000)
    stored = json.loads(clock.own.redis("HGET", "schedulers", "tick"))
    assert not {"overlap", "skippedCount", "buffered"} & set(stored)


async def _buffered(queue: Queue) -> None:
    while not (found := await queue.get_job_scheduler("tick")) or not found.buffered:  # noqa: ASYNC110  no event
        await asyncio.sleep(0.01)


async def test_buffered_job_starts_as_soon_as_the_earlier_one_ends(url: str, queue_name: str) -> None:
    gate = Gate()

    async def handle(job: Job) -> None:
        await gate(job)

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url, concurrency=2):
        await queue.upsert_job_scheduler("tick", every=100, overlap="buffer_one", limit=2)
        first = await with_timeout(gate.next())
        await with_timeout(_buffered(queue))
        assert (await queue.get_job_counts()).active == 1
        gate.open()
        second = await with_timeout(gate.next())
        assert second.id != first.id
        await queue.obliterate(force=True)
