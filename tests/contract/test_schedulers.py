"""Schedulers: due times by a clock that the test sets, pauses, templates, and the workers that fire them."""

import asyncio
import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import glidemq_py
from glidemq_py import GlideMQValidationError, Job, JobSpec, Maintenance, Scheduler
from glidemq_py.records import JobScheduler
from tests.contract.api import Queue, QueueEvents
from tests.contract.observe import Clockwork, Raw
from tests.server.worker_support import PATIENCE, Gate, WorkerFor, with_timeout

HOUR = 3_600_000


async def read(clock: Clockwork, name: str = "tick") -> JobScheduler:
    found = await clock.queue.schedulers.get(name)
    assert found is not None
    return found


# -- when ------------------------------------------------------------------------------------------------------


async def test_pattern_fires_across_daylight_saving_changes(clockwork: Clockwork):
    clockwork.set(round(datetime(2027, 3, 25, 12, tzinfo=UTC).timestamp() * 1000))
    await clockwork.queue.schedulers.upsert("tick", pattern="30 2 * * *", tz="Europe/Berlin")
    for _ in range(4):
        next_run = (await read(clockwork)).next_run
        assert next_run is not None
        clockwork.set(next_run)
        await clockwork.fire()
    at = await clockwork.instants()
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert gaps == [24 * HOUR, 23 * HOUR + HOUR // 2, 23 * HOUR + HOUR // 2]


# -- repeat after completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_lost", [True, False], ids=["its notification is lost", "a Node client added it"])
async def test_watchdog_finds_that_the_job_has_ended(clockwork: Clockwork, raw: Raw, is_lost: bool):
    await clockwork.queue.schedulers.upsert("tick", repeat_after_complete=1_000)
    if is_lost:
        await clockwork.fire()
        (job,) = await clockwork.jobs()
        # As a peer's library ends it if its worker dies before it reports the outcome.
        raw.run("HSET", f"job:{job.id}", "state", "completed", "finishedOn", clockwork.now)
    else:
        entry = clockwork.stored("tick")
        assert entry is not None
        clockwork.store("tick", entry | {"nextRun": 0, "lastRun": clockwork.now, "iterationCount": 1})
    await clockwork.until(clockwork.now + 12_000)
    assert len(await clockwork.jobs()) == 1 + is_lost
    await clockwork.queue.obliterate(force=True)


# -- changing ---------------------------------------------------------------------------------------------------


# -- pausing ----------------------------------------------------------------------------------------------------


# -- last runs --------------------------------------------------------------------------------------------------


# -- templates --------------------------------------------------------------------------------------------------


@pytest.mark.exclude("partitioned", reason="templates choose no partition")
async def test_every_option_of_a_template_is_applied(clockwork: Clockwork, url: Any):
    """W79: the original stores ordering, cost, deduplication and compression, and does not go by them."""
    options: Any = {
        "attempts": 4, "backoff": {"type": "exponential", "delay": 50}, "ttl": 60_000, "timeout": 500,
        "ordering": {"key": "k", "concurrency": 2, "token_bucket": {"capacity": 5, "refill_rate": 1}}, "cost": 2,
        "remove_on_complete": 5, "deduplication": {"id": "d", "mode": "simple"}, "delay": 100, "priority": 3,
    }  # fmt: skip
    template = JobSpec("full", {"a": [1, 2.5, None, "žluť"]}, options)
    await clockwork.queue.schedulers.upsert("tick", every=1_000, template=template)
    await clockwork.until(clockwork.now + 1_000)
    (job,) = await clockwork.jobs()
    async with Queue(f"{clockwork.queue.name}-hand", url) as other:
        hand = await other.add(template.name, template.data, **options)
        (by_hand,) = await other.get_jobs("delayed")
        assert by_hand.id == hand.id
        for name in ("name", "data", "opts", "priority", "delay", "state"):
            assert getattr(job, name) == getattr(by_hand, name), name
        await other.obliterate()
    group = await clockwork.queue.groups.get("k")
    assert group is not None
    assert group.limits.token_bucket is not None
    assert group.limits.token_bucket.capacity == 5
    await clockwork.until(clockwork.now + 1_000)  # the second run meets the first one, which waits
    assert (await clockwork.queue.get_job_counts()).unfinished == 1


def maintained(queue: glidemq_py.Queue[Any, Any]) -> Maintenance:
    return Maintenance([queue])


@pytest.mark.parametrize("host", [maintained, Scheduler])
async def test_a_new_schedule_starts_at_once_without_a_worker(url: Any, queue: Queue, host: Callable[[Any], Any]):
    """The other process has looked, and found nothing to do for an hour."""

    async def first_run(name: str) -> Job:
        await queue.schedulers.upsert(name, every=HOUR, immediately=True, template={"name": name})
        async with asyncio.timeout(PATIENCE):
            while not (found := [job for job in await queue.get_jobs("waiting") if job.name == name]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await found[0].reload()
        return found[0]

    async with glidemq_py.Queue(queue.name, url) as served, host(served):
        for name in ("first", "second", "third"):
            job = await first_run(name)
            assert job.timestamp - (job.scheduled_for or 0) < 1_000


def test_scheduler_requires_a_queue():
    with pytest.raises(GlideMQValidationError, match="must be a Queue, not str"):
        Scheduler("reports")  # type: ignore[arg-type]


# -- entries of others ------------------------------------------------------------------------------------------


async def test_entries_of_many_schedulers_are_found_in_pages(clockwork: Clockwork):
    start = clockwork.now
    for i in range(120):
        clockwork.store(f"s{i}", {"every": 60_000, "iterationCount": 0, "nextRun": start + 1_000 + i})
    await clockwork.until(start + 2_000)
    assert len(await clockwork.jobs()) == 120
    assert len(await clockwork.queue.schedulers.get_all()) == 120


async def test_concurrent_updates(queue: Queue, url: Any):
    """The slower one finds another text, and changes that."""
    async with Queue(queue.name, url) as other:
        await asyncio.gather(
            queue.schedulers.upsert("tick", every=HOUR), other.schedulers.upsert("tick", every=2 * HOUR)
        )
    assert len(await queue.schedulers.get_all()) == 1


# -- workers ------------------------------------------------------------------------------------------------------


async def test_scheduler_fires(queue: Queue, worker_for: WorkerFor):
    ran: list[str] = []
    enough = asyncio.Event()

    async def note(job: Job):
        ran.append(job.name)
        if {"tick", "own", "crawl"} <= set(ran):
            enough.set()

    async with worker_for(note):
        await queue.schedulers.upsert("tick", every=50)
        await queue.schedulers.upsert("own", pattern="* * * * * *")
        await queue.schedulers.upsert("crawl", repeat_after_complete=50)
        async with asyncio.timeout(120):
            await enough.wait()
        names = [each.name for each in await queue.schedulers.get_all()]
        assert names == ["crawl", "own", "tick"]
        assert await queue.schedulers.pause("none") is None
        for name in names:
            assert await queue.schedulers.remove(name)
            assert not await queue.schedulers.remove(name)
            assert await queue.schedulers.get(name) is None


async def test_scheduler_is_paused_and_resumed(worker_for: WorkerFor, url: str, queue: Queue, queue_name: str):
    async with QueueEvents(queue_name, url) as events:
        ran, told = asyncio.Queue[str](), asyncio.Queue[tuple[str, str]]()
        events.on("*", lambda event: told.put_nowait((event.event, event.fields.get("scheduler", ""))))
        await events.wait_until_ready()
        await queue.schedulers.upsert("often", every=50)
        paused = await queue.schedulers.pause("often")
        assert paused is not None
        assert (paused.paused, paused.next_run) == (True, None)
        before = (await queue.get_job_counts()).waiting

        async def note(job: Job):
            ran.put_nowait(job.name)

        async with asyncio.timeout(120), worker_for(note):
            await queue.schedulers.upsert("sign", every=200)
            while await ran.get() != "sign":  # workers fire, but not this one
                before -= 1
            assert before == 0
            assert await queue.schedulers.resume("often") is not None
            while await ran.get() != "often":
                pass
            seen = [await told.get()]
            while seen[-1] != ("scheduler-resumed", "often"):
                seen.append(await told.get())
        assert ("scheduler-paused", "often") in seen
        for name in ("often", "sign"):
            assert await queue.schedulers.remove(name)
        await queue.obliterate(force=True)


async def test_buffered_job_starts_as_soon_as_the_earlier_one_ends(worker_for: WorkerFor, queue: Queue):
    gate = Gate()

    async def handle(job: Job):
        await gate(job)

    async with worker_for(handle, concurrency=2), asyncio.timeout(100):
        await queue.schedulers.upsert("tick", every=100, overlap="buffer_one", limit=2)
        first = await with_timeout(gate.next())
        while not (found := await queue.schedulers.get("tick")) or not found.buffered:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)
        assert (await queue.get_job_counts()).active == 1
        gate.open()
        second = await with_timeout(gate.next())
        assert second.id != first.id
        await queue.obliterate(force=True)
