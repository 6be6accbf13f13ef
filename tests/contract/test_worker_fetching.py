"""Fetching: order, expiry, due times, wake-ups, several workers, many jobs."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError, Worker
from tests.contract.api import Queue, QueueEvents
from tests.contract.observe import Raw, wait_for_workers
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, with_timeout


async def order_of(url: Any, name: str, jobs: list[tuple[Any, dict[str, Any]]], bulk: bool) -> list[Any]:
    """The data of jobs in the order in which one slot runs them."""
    gate = Gate()
    gate.open()
    async with Queue(name, url) as queue:
        if bulk:
            await queue.add_bulk([("n", data, options) for data, options in jobs])
        else:
            for data, options in jobs:
                await queue.add("n", data, **options)
        async with Worker(name, gate, url) as worker:
            await EventRecorder(worker).wait("completed", len(jobs))
    return [job.data for job in gate.begun]


@pytest.mark.parametrize("bulk", [
    pytest.param(False, marks=pytest.mark.exclude("partitioned", reason="each partition has its own order")), True,
], ids=["single", "bulk"])  # fmt: skip
async def test_priorities_then_the_newest_lifo_then_first_come(url: Any, queue_name: str, bulk: bool):
    jobs: list[tuple[Any, dict[str, Any]]] = [
        ("plain 1", {}), ("low 1", {"priority": 9}), ("lifo 1", {"lifo": True}), ("high 1", {"priority": 1}),
        ("plain 2", {}), ("low 2", {"priority": 9}), ("lifo 2", {"lifo": True}), ("high 2", {"priority": 1}),
        ("lowest", {"priority": 2047}), ("none", {"priority": 0}),
    ]  # fmt: skip
    assert await order_of(url, queue_name, jobs, bulk) == [
        "high 1", "high 2", "low 1", "low 2", "lowest", "lifo 2", "lifo 1", "plain 1", "plain 2", "none",
    ]  # fmt: skip


async def test_first_come_first_served_within_a_priority(url: Any, queue_name: str):
    jobs: list[tuple[Any, dict[str, Any]]] = [(n, {"priority": 1 + n % 3}) for n in range(60)]
    order = await order_of(url, queue_name, jobs, bulk=True)
    assert order == sorted(range(60), key=lambda n: (n % 3, n))


async def test_two_queues_and_two_prefixes_keep_apart(worker_for: WorkerFor, url: Any, queue_name: str):
    seen: Any = []

    def handler(mark: str):
        async def handle(job: Job):
            seen.append((mark, job.data))

        return handle

    other = queue_name + "-2"
    async with (
        Queue(queue_name, url) as a, Queue(other, url) as b, Queue(queue_name, url, prefix="mine") as c,
        worker_for(handler("a")), Worker(other, handler("b"), url),
        worker_for(handler("c"), prefix="mine"),
    ):  # fmt: skip
        for name, queue in (("a", a), ("b", b), ("c", c)):
            await queue.add_and_wait("n", name)
        await c.obliterate(force=True)
    assert sorted(seen) == [("a", "a"), ("b", "b"), ("c", "c")]


async def test_a_job_past_its_ttl_is_not_run(
    raw: Raw, queue: Queue, worker_for: WorkerFor, caplog: pytest.LogCaptureFixture
):
    gate = Gate()
    gate.open()
    dead = [
        await queue.add("n", ttl=1),
        await queue.add("n", ttl=1, lifo=True),
        await queue.add("n", ttl=1, priority=1),
    ]
    lives = await queue.add("n", ttl=60_000)
    for job in dead:
        raw.run("HSET", f"job:{job.id}", "expireAt", 1)  # so that nothing has to be waited for
    async with worker_for(gate):
        await lives.wait_until_finished()
        for job in dead:
            with pytest.raises(JobFailedError, match="expired"):
                await job.wait_until_finished()
    assert [job.id for job in gate.begun] == [lives.id]
    assert [raw.event_names(job.id)[-1] for job in dead] == ["expired"] * 3
    assert raw.pending() == []
    assert raw.metric("failed") == 3
    expired = [r for r in caplog.records if "expired before it ran" in r.getMessage()]
    assert [(r.name, r.levelname) for r in expired] == [("glidemq_py.failures", "WARNING")] * 3


async def test_a_retry_past_the_ttl_fails_instead(raw: Raw, queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        raise ValueError

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", ttl=600_000, attempts=10, backoff=600_000)
        await recorded.wait("retrying")
        raw.run("HSET", f"job:{job.id}", "expireAt", 1)
        await job.promote()
        with pytest.raises(JobFailedError, match="expired"):
            await job.wait_until_finished()
        assert recorded.count["retrying"] == 1


@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"lifo": True}], ids=["plain", "priority", "lifo"])
async def test_delayed_jobs_are_never_early_and_need_no_polling(
    queue: Queue, worker_for: WorkerFor, options: Any, without_polling: None
):
    """By the server's own clock: processedOn against timestamp plus delay."""
    gate = Gate()
    gate.open()
    async with worker_for(gate, concurrency=10) as worker:
        recorded = EventRecorder(worker)
        jobs = [await queue.add("n", delay=delay, **options) for delay in (30, 200, 90, 60, 150)]
        await recorded.wait("completed", 5)
        late: list[int] = []
        for job, delay in zip(jobs, (30, 200, 90, 60, 150), strict=True):
            done = await queue.get_job(job.id)
            assert done is not None
            assert done.processed_on is not None
            late.append(done.processed_on - done.timestamp - delay)
    assert min(late) >= 0


async def test_a_job_that_is_due_earlier_moves_the_timer(queue: Queue, worker_for: WorkerFor, without_polling: None):
    gate = Gate()
    gate.open()
    async with worker_for(gate) as worker:
        recorded = EventRecorder(worker)
        await queue.add("n", "late", delay=3_600_000)
        await queue.add("n", "now")
        await recorded.wait("completed")
        job = await queue.add("n", "soon", delay=30)
        await recorded.wait("completed", 2)
        assert recorded.job_ids("completed")[1] == job.id


@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"lifo": True}], ids=["plain", "priority", "lifo"])
async def test_an_idle_worker_is_woken(queue: Queue, worker_for: WorkerFor, options: Any, without_polling: None):
    async def handle(job: Job):
        pass

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        for n in range(1, 16):
            await queue.add("n", **options)
            await recorded.wait("completed", n)
            await recorded.wait("drained", n)


async def test_one_push_wakes_one_of_many_idle_workers(queue: Queue, worker_for: WorkerFor, without_polling: None):
    gate = Gate()
    workers = [worker_for(gate) for _ in range(4)]
    for worker in workers:
        await worker.start()
    for n in range(4):
        await queue.add("n", n)
        await gate.next()
    assert [worker.active_count for worker in workers] == [1] * 4
    gate.open()
    await asyncio.gather(*(worker.close() for worker in workers))


async def test_two_workers_share_a_queue_and_run_each_job_once(raw: Raw, queue: Queue, worker_for: WorkerFor):
    ran: Counter[str] = Counter()

    async def handle(job: Job):
        ran[job.id] += 1
        await asyncio.sleep(0)

    workers = [worker_for(handle, concurrency=c) for c in (3, 20)]
    recorded = EventRecorder(*workers)
    by_worker = [EventRecorder(worker) for worker in workers]
    for worker in workers:
        await worker.start()
    await wait_for_workers(queue, 2)
    jobs = await queue.add_bulk([("n", n, {"priority": n % 3}) for n in range(300)])
    await recorded.wait("completed", 300)
    await asyncio.gather(*(worker.close() for worker in workers))
    assert ran == Counter({job.id: 1 for job in jobs})
    assert all(each.of("completed") for each in by_worker)
    assert raw.metric("completed") == 300
    assert raw.pending() == []
    assert raw.run("GET", "list-active") in (None, "0")


@pytest.mark.slow
async def test_a_thousand_jobs_that_fail_at_random_end_once_each(
    worker_for: WorkerFor, url: Any, raw: Raw, queue: Queue, queue_name: str
):
    chance = random.Random(7)
    child_outcomes = [chance.choice(["good", "good", "good", "once", "bad", "never"]) for _ in range(1_000)]
    succeeded: Counter[str] = Counter()

    async def handle(job: Job) -> str:
        if chance.random() < 0.3:
            await asyncio.sleep(0)
        if job.data == "never" or (job.data == "bad" and job.attempts_made < 2) or (
            job.data == "once" and job.attempts_made == 0
        ):  # fmt: skip
            raise ValueError(job.data)
        succeeded[job.id] += 1
        return job.data

    ends: dict[str, Counter[str]] = {"completed": Counter(), "failed": Counter()}
    async with QueueEvents(queue_name, url) as events:
        await queue.settings.set_event_retention(10_000)  # a slow reader loses none
        workers = [worker_for(handle, concurrency=25) for _ in range(2)]
        recorded = EventRecorder(*workers)
        for worker in workers:
            await worker.start()

        async def follow():
            async for event in events:
                if event.event in ends:
                    ends[event.event][event.job_id] += 1
                    if sum(map(len, ends.values())) == 1_000:
                        return

        following = asyncio.create_task(follow())
        jobs = await queue.add_bulk([("n", fate, {"attempts": 3}) for fate in child_outcomes])
        await recorded.until(lambda recorded: recorded.count["completed"] + recorded.count["failed"] == 1_000)
        await with_timeout(following)
        await asyncio.gather(*(worker.close() for worker in workers))
        counts = await queue.get_job_counts()
    good = {job.id for job, fate in zip(jobs, child_outcomes, strict=True) if fate != "never"}
    bad = {job.id for job in jobs} - good
    assert succeeded == Counter(good)
    assert Counter(recorded.job_ids("completed")) == ends["completed"] == Counter(good)
    assert Counter(recorded.job_ids("failed")) == ends["failed"] == Counter(bad)
    assert (counts.completed, counts.failed) == (len(good), len(bad))
    assert (counts.waiting, counts.active, counts.delayed) == (0, 0, 0)
    assert (raw.metric("completed"), raw.metric("failed")) == (len(good), len(bad))
    assert raw.pending() == []


async def test_nothing_leaks(queue: Queue, worker_for: WorkerFor, key_leaks: Any):
    async def handle(job: Job):
        await job.log("line")
        if job.data == "fails":
            raise ValueError

    async with worker_for(handle, concurrency=5) as worker:
        recorded = EventRecorder(worker)
        await queue.add_bulk([
            ("n", "plain"), ("n", "gone", {"remove_on_complete": True}), ("n", "fails", {"attempts": 2}),
            ("n", "fails", {"remove_on_fail": True}), ("n", "urgent", {"priority": 4}), ("n", "last", {"lifo": True}),
        ])  # fmt: skip
        await recorded.until(lambda recorded: recorded.count["completed"] + recorded.count["failed"] == 6)
