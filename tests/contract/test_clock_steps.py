"""The server's clock is set back: nothing stands still for longer than its own interval, however far it was ahead.

The time is the key ``P:clock`` of a library for tests; tests/server/test_clock.py moves the clock of a real server."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from glidemq_py import Job, Scheduler
from tests.contract.api import Queue
from tests.contract.observe import START, Raw, SetClock, assert_order

INTERVAL = 60_000
"""Of everything here, ms."""
STEPS = (30_000, 3_600_000, 40 * 86_400_000)


async def fetched(queue: Queue) -> list[Job]:
    """Fetch all ready jobs."""
    jobs: list[Job] = []
    while leases := await queue.fetch(100, wait=500):
        jobs += [lease.job for lease in leases]
    return jobs


async def _fails(queue: Queue, **options: Any):
    """Add a job whose first attempt fails."""
    await queue.add("x", attempts=2, backoff=INTERVAL, **options)
    (lease,) = await queue.fetch()
    await lease.fail("for the test")


async def _one_ran(queue: Queue, **options: Any):
    """Let one of two jobs run, which uses up a limit."""
    await queue.add_bulk([("x", None, options)] * 2)
    (lease,) = await queue.fetch(2)
    await lease.complete()


async def _least(queue: Queue) -> int:
    """Return the least limit, of which each partition has a share of one."""
    return (await queue.get_partitions()).count


async def _global(queue: Queue):
    await queue.set_global_rate_limit(await _least(queue), INTERVAL)
    await _one_ran(queue)


async def _fair(queue: Queue):
    await queue.set_fair_key_limits("f", rate_limit={"max": 1, "duration": INTERVAL})
    await _one_ran(queue, fair_key="f")


async def _named(queue: Queue):
    await queue.set_name_limits("x", rate_limit={"max": await _least(queue), "duration": INTERVAL})
    await _one_ran(queue)


async def _held(queue: Queue):
    await queue.rate_limit_group("g", INTERVAL)
    await queue.add("x", ordering={"key": "g"})
    assert await queue.fetch() == []


async def _concurrency(queue: Queue):
    await queue.set_global_concurrency(await _least(queue), ttl=INTERVAL)
    await queue.add_bulk([("x", None)] * 2)
    await queue.fetch()


async def _lost_lease(queue: Queue):
    await queue.add("x")
    await queue.fetch(lock_duration=INTERVAL)


def _add(**options: Any) -> Callable[[Queue], Awaitable[Any]]:
    return lambda queue: queue.add("x", **options)


def _group(**limit: Any) -> Callable[[Queue], Awaitable[Any]]:
    return lambda queue: _one_ran(queue, ordering={"key": "g", **limit})


WAITING: dict[str, Callable[[Queue], Awaitable[Any]]] = {
    "delay": _add(delay=INTERVAL),
    "delay with priority": _add(delay=INTERVAL, priority=3),
    "delay with rank": _add(delay=INTERVAL, rank=-1),
    "delay with fair key": _add(delay=INTERVAL, fair_key="f"),
    "retry": _fails,
    "retry with priority": lambda queue: _fails(queue, priority=3),
    "retry with rank": lambda queue: _fails(queue, rank=-1),
    "retry with fair key": lambda queue: _fails(queue, fair_key="f"),
    "retry in a group": lambda queue: _fails(queue, ordering={"key": "g"}),
    "rate of the queue": _global,
    "rate of a group": _group(rate_limit={"max": 1, "duration": INTERVAL}),
    "token bucket": _group(token_bucket={"capacity": 1, "refill_rate": 1000 / INTERVAL}),
    "hold of a group": _held,
    "rate of a fair key": _fair,
    "rate of a name": _named,
    "limit with a time to live": _concurrency,
    "lease": _lost_lease,
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", WAITING)
async def test_what_waits_is_ready_after_its_own_interval(clock: SetClock, queue: Queue, what: str, step: int):
    await WAITING[what](queue)
    clock.set(clock.now - step)
    early = await queue.fetch()  # rates begin a new window, which allows a job
    clock.set(clock.now + INTERVAL)
    assert early or await queue.fetch()


@pytest.mark.parametrize("step", STEPS)
async def test_a_ttl_lasts_at_most_twice_its_time(clock: SetClock, queue: Queue, step: int):
    await queue.set_fair_key_limits("f", weight=2)
    options: list[dict[str, Any]] = [{}, {"ordering": {"key": "g"}}, {"fair_key": "f"}, {"rank": 5000}, {"priority": 3}]
    jobs = [await queue.add("x", ttl=INTERVAL, **more) for more in options]
    jobs += [await queue.add("x", ttl=INTERVAL, delay=INTERVAL // 2, **more) for more in options]
    await queue.pause()
    clock.set(clock.now - step)
    assert await queue.fetch() == []
    await queue.resume()
    clock.set(clock.now + 2 * INTERVAL + 1)
    assert await queue.fetch(20) == []
    assert [(await queue.get_job(job.id)).failed_reason for job in jobs] == ["expired"] * len(jobs)  # type: ignore[union-attr]


@pytest.mark.parametrize("step", STEPS)
async def test_finished_jobs_are_removed_by_their_age(clock: SetClock, queue: Queue, step: int):
    async def run(**options: Any) -> str:
        job = await queue.add("x", fair_key="f", **options)
        (lease,) = await queue.fetch()
        await (lease.fail("for the test") if "remove_on_fail" in options else lease.complete())
        return job.id

    keep: list[dict[str, Any]] = [
        {"remove_on_complete": {"age": INTERVAL // 1000}},
        {"remove_on_fail": {"age": INTERVAL // 1000}},
    ]
    old = [await run(**options) for options in keep]
    clock.set(clock.now - step)
    await queue.fetch()
    clock.set(clock.now + INTERVAL)
    for options in keep:
        await run(**options)
    assert [await queue.get_job(job_id) for job_id in old] == [None, None]


@pytest.mark.exclude("partitioned", reason="the registration is written to one part")
@pytest.mark.parametrize("step", STEPS[1:])
async def test_registrations_of_dead_workers_end(clock: SetClock, queue: Queue, raw: Raw, step: int):
    """The keys expire by the real clock of the server: as after a step, that of the worker lasts longer."""
    lasts = 90_000
    raw.run("ZADD", "workers", clock.now, "py-dead")
    raw.run("SET", "w:py-dead", "{}", "PX", step + lasts)
    await queue.add("x", delay=INTERVAL)
    clock.set(clock.now - step)
    await queue.fetch()
    assert 0 < raw.run("PTTL", "w:py-dead") <= lasts
    assert float(raw.run("ZSCORE", "workers", "py-dead")) <= clock.now


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


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("mode", ["throttle", "simple", "debounce"])
async def test_a_duplicate_is_accepted_after_its_ttl(clock: SetClock, queue: Queue, mode: Any, step: int):
    async def add() -> bool:
        return (await queue.add("x", deduplication={"id": "d", "mode": mode, "ttl": INTERVAL})).outcome == "added"

    assert await add()
    clock.set(clock.now - step)
    again = await add()
    clock.set(clock.now + INTERVAL)
    assert again or await add()


@pytest.mark.exclude("blocking", reason="its schedulers are of another class")
@pytest.mark.parametrize(
    ("how", "within", "step"),
    [
        ({"every": INTERVAL}, INTERVAL, 30_000),
        ({"every": INTERVAL}, INTERVAL, 3_600_000),
        ({"repeat_after_complete": INTERVAL}, INTERVAL, 3_600_000),
        ({"pattern": "* * * * *"}, 2 * INTERVAL, 3_600_000),  # a match that has run before a short step runs once
    ],
)
async def test_schedulers_go_on(clock: SetClock, queue: Queue, how: Any, within: int, step: int):
    async def run_after(ms: int):
        clock.set(clock.now + ms)
        while not (found := await queue.fetch(wait=500)):
            pass
        await found[0].complete()

    async def next_run() -> int:
        scheduler = await queue.get_job_scheduler("s")
        assert scheduler is not None
        return scheduler.next_run or clock.now + within + 1

    await queue.upsert_job_scheduler("s", **how)
    async with asyncio.timeout(60), Scheduler(queue):
        await run_after(INTERVAL)
        clock.set(clock.now - step)
        while await next_run() > clock.now + within:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await run_after(within)
