"""The server's clock is set back: nothing stands still for longer than its own interval, however far it was ahead.

The time is the key ``P:clock`` of a library for tests; tests/server/test_clock.py moves the clock of a real server."""

from datetime import UTC, datetime
from typing import Any

import pytest

from glidemq_py import Job
from tests.contract.api import Queue
from tests.contract.observe import START, Clockwork, SetClock, assert_order

INTERVAL = 60_000
"""Of everything here, ms."""
LOOK = 5_000
"""Longest pause of the process that fires schedulers, ms."""
STEPS = (30_000, 3_600_000, 40 * 86_400_000)


async def fetched(queue: Queue) -> list[Job]:
    """Fetch all ready jobs."""
    jobs: list[Job] = []
    while leases := await queue.fetch(100, wait=500):
        jobs += [lease.job for lease in leases]
    return jobs


@pytest.mark.parametrize("step", STEPS)
async def test_ready_jobs_stay_ready_in_their_order(clock: SetClock, queue: Queue, step: int):
    for number in range(12):
        clock.set(clock.now + number)
        await queue.add("x", number, priority=3)
    clock.set(clock.now - step)
    assert_order(await fetched(queue), range(12))


async def test_absolute_times_and_other_delays_stay(clock: SetClock, queue: Queue):
    """A job delayed while the clock was right is not early, nor is one with `run_at`, whenever it was added."""
    await queue.add("x", "delay", delay=2 * 3_600_000)
    clock.set(START + 3_600_000)
    at = datetime.fromtimestamp((START + 2 * 3_600_000) / 1000, UTC)
    await queue.add("x", "run_at", run_at=at)
    clock.set(START + 1000)
    assert await queue.fetch() == []
    for before_due, expected in ((1, []), (0, ["delay", "run_at"])):
        clock.set(START + 2 * 3_600_000 - before_due)
        assert sorted(lease.data for lease in await queue.fetch(5)) == expected


async def test_many_due_times_are_brought_forward_by_several_calls(clock: SetClock, queue: Queue):
    await queue.add_bulk([("x", number, {"delay": INTERVAL}) for number in range(900)])
    clock.set(clock.now - 3_600_000)
    for _ in range(6):
        assert await queue.fetch() == []
    clock.set(clock.now + INTERVAL + 1)
    assert_order(await fetched(queue), range(900))


@pytest.mark.parametrize(
    ("how", "within", "step"),
    [
        ({"every": INTERVAL}, INTERVAL, 30_000),
        ({"every": INTERVAL}, INTERVAL, 3_600_000),
        ({"repeat_after_complete": INTERVAL}, INTERVAL, 3_600_000),
        ({"pattern": "* * * * *"}, 2 * INTERVAL, 3_600_000),  # a match that has run before a short step runs once
    ],
)
async def test_schedulers_go_on(clockwork: Clockwork, how: Any, within: int, step: int):
    async def run_after(ms: int):
        clockwork.advance(ms)
        await fire()
        (lease,) = await clockwork.queue.fetch()
        await lease.complete()

    async def fire():
        assert await clockwork.fire() <= LOOK, "the process that fires them does not see a step of the clock"

    await clockwork.queue.schedulers.upsert("s", **how)
    await fire()
    await run_after(INTERVAL)
    clockwork.advance(-step)
    await fire()
    scheduler = await clockwork.queue.schedulers.get("s")
    assert scheduler is not None
    assert scheduler.next_run is None or scheduler.next_run <= clockwork.now + within
    await run_after(within)
