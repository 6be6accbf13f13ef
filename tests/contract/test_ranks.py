"""Ranks: the order of ready jobs, and everything that moves, lists, counts or removes jobs."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest

from glidemq_py import (
    DeadLetterOptions,
    FlowJob,
    Job,
    JobState,
    Worker,
)
from tests.contract.api import FlowProducer, Queue
from tests.contract.observe import assert_order
from tests.contract.test_order_and_limits import work_off
from tests.server.worker_support import WorkerFor, until, with_timeout

RANKS = (1_000_000, 5_000, 2_048, 2_047, 3, 1, 0, -1, -70, -1_000_000)
HOUR_MS = 3_600_000
OWN = (70_000, -70_000)


class Recorder:
    def __init__(self):
        self.jobs: list[Job] = []

    @property
    def begun(self) -> list[Any]:
        return [job.data for job in self.jobs]

    async def __call__(self, job: Job):
        self.jobs.append(job)


async def test_higher_ranks_run_first(url: Any, queue: Queue):
    handler = Recorder()
    for rank in reversed(RANKS):
        job = await queue.add("n", [rank, 0], rank=rank)
        assert job.rank == rank
    await queue.add_bulk([("n", [rank, 1], {"rank": rank}) for rank in RANKS])
    assert await queue.jobs.get_rank_counts() == dict.fromkeys(RANKS, 2)
    counts = await queue.get_job_counts()
    assert (counts.waiting, counts.prioritized) == (2, 2 * len(RANKS) - 2)
    listed = await queue.get_jobs("prioritized", 0, 100)
    assert_order(listed, [rank for rank in RANKS if rank for _ in range(2)], lambda job: job.rank)
    await work_off(queue, url, handler)
    assert_order(handler.jobs, [[rank, n] for rank in RANKS for n in range(2)])
    assert_order(handler.jobs, [rank for rank in RANKS for _ in range(2)], lambda job: job.rank)
    assert await queue.jobs.get_rank_counts() == {}


@pytest.mark.parametrize("rank", [9_000, 5, -9])
async def test_lifo_jobs_run_first_within_their_rank(url: Any, queue: Queue, rank: int):
    handler = Recorder()
    await queue.add_bulk([
        ("n", "first", {"rank": rank}), ("n", "second", {"rank": rank}),
        ("n", "older", {"rank": rank, "lifo": True}), ("n", "newest", {"rank": rank, "lifo": True}),
        ("n", "above", {"rank": rank + 1}), ("n", "below", {"rank": rank - 1}),
    ])  # fmt: skip
    await queue.add("n", "late", rank=rank, lifo=True, delay=HOUR_MS)
    (late,) = await queue.get_jobs("delayed", 0, 10)
    assert late.rank == rank
    await queue.promote(late.id)
    await work_off(queue, url, handler)
    assert handler.begun == ["above", "late", "newest", "older", "first", "second", "below"]


@pytest.mark.exclude("partitioned", reason="the order of ranks holds within a partition")
@pytest.mark.parametrize("rank", [4_000, -4_000])
async def test_delays_retries_and_changes(worker_for: WorkerFor, queue: Queue, rank: int):
    ran: list[tuple[Any, int]] = []

    async def handle(job: Job):
        ran.append((job.data, job.attempts_made))
        if job.data == "fails" and not job.attempts_made:
            raise ValueError("once")

    await queue.add("n", "fails", rank=rank, attempts=2, backoff=30)
    due = await queue.add("n", "due", rank=rank, delay=50)
    later = await queue.add("n", "later", rank=rank, delay=HOUR_MS)
    assert (await queue.get_job_counts()).delayed == 2
    assert [job.data for job in await queue.get_jobs("delayed", 0, 10)] == ["due", "later"]
    async with worker_for(handle):
        await due.wait_until_finished()
        await later.change_delay(20)
        await later.wait_until_finished()
        while ("fails", 1) not in ran:
            for job in await queue.get_jobs("delayed", 0, 10):
                if job.data == "fails":
                    await job.wait_until_finished()
    assert sorted(ran) == [("due", 0), ("fails", 0), ("fails", 1), ("later", 0)]


async def test_rank_can_be_changed(url: Any, queue: Queue):
    handler = Recorder()
    start = {"plain": 0, "priority": 10, "above": 3_000, "below": -3_000, "lifo": 0}
    jobs = {
        name: await queue.add("n", name, rank=rank or None, lifo=name == "lifo" or None) for name, rank in start.items()
    }
    late = await queue.add("n", "delayed", delay=HOUR_MS)
    for rank in (-5, 2_000, 7_777, 0, 9_000):
        for n, job in enumerate((*jobs.values(), late)):
            await queue.jobs.change_priority(job.id, rank=rank + n if rank else 0)
            read = await queue.get_job(job.id)
            assert read is not None
            assert read.rank == (rank + n if rank else 0)
            expected = JobState.DELAYED if job is late else JobState.PRIORITIZED if read.rank else JobState.WAITING
            assert await read.get_state() is expected
        counts = await queue.get_job_counts()
        assert counts.waiting + counts.prioritized == len(jobs)
        assert counts.delayed == 1
        assert sum((await queue.jobs.get_rank_counts()).values()) == len(jobs)
    await jobs["plain"].change_priority(rank=9_500)
    assert jobs["plain"].rank == 9_500
    await jobs["above"].change_priority(1)
    await queue.jobs.change_priority(jobs["below"].id, 0)
    await late.promote()
    await work_off(queue, url, handler)
    assert_order(handler.jobs, ["plain", "delayed", "lifo", "priority", "above", "below"])


async def test_ranked_job_wakes_an_idle_worker(worker_for: WorkerFor, queue: Queue):
    handler = Recorder()
    async with worker_for(handler):
        for rank in (6_000, -6_000):
            job = await queue.add("n", rank, rank=rank)
            await asyncio.wait_for(job.wait_until_finished(), 2)
    assert handler.begun == [6_000, -6_000]


async def test_ranked_jobs_of_a_flow(url: Any, flows: FlowProducer, queue: Queue):
    handler = Recorder()
    children = [{"name": "n", "queue": queue.name, "data": rank, "options": {"rank": rank}} for rank in (-5, 4_000, 7)]
    root = {"name": "n", "queue": queue.name, "data": "root", "options": {"rank": 9_000}, "children": children}
    node = await flows.add(root)
    assert (node.job.rank, [child.job.rank for child in node.children]) == (9_000, [-5, 4_000, 7])
    await work_off(queue, url, handler)
    assert handler.begun == [4_000, 7, -5, "root"]


async def ignore(job: Job):
    """Complete the job."""


async def fetched(queue: Queue) -> list[Job]:
    """Fetch and complete all ready jobs; return them in the order of the fetch."""
    leases = await queue.fetch(500)
    if leases:
        await queue.leases.complete([(lease, None) for lease in leases])
    return [lease.job for lease in leases]


# -- a model -----------------------------------------------------------------------------------------------


@dataclass
class Modeled:
    """A job as the documents describe its order. `lifo`: LIFO within its present rank."""

    id: str
    rank: int
    lifo: bool
    stored_lifo: bool
    ready: bool
    turn: int

    @property
    def key(self) -> tuple[int, bool, int]:
        return -self.rank, not self.lifo, -self.turn if self.lifo else self.turn


@pytest.mark.parametrize("seed", range(12))
async def test_order_is_that_of_a_model(queue: Queue, seed: int):
    chance, jobs, turn = random.Random(seed), dict[str, Modeled](), 0
    for _ in range(120):
        turn += 1
        action = chance.choice(("add", "add", "add", "rank", "rank", "priority", "promote", "delay", "remove"))
        rank = chance.choice(RANKS)
        if action == "add" or not jobs:
            lifo, delay = chance.random() < 0.4, HOUR_MS if chance.random() < 0.3 else 0
            job = await queue.add("n", rank=rank, lifo=lifo or None, delay=delay or None)
            jobs[job.id] = Modeled(job.id, rank, lifo, lifo, not delay, turn)
            continue
        it = jobs[chance.choice(list(jobs))]
        if action == "remove":
            await queue.remove(it.id)
            del jobs[it.id]
        elif action == "promote" and not it.ready:
            await queue.promote(it.id)
            it.ready, it.turn = True, turn
        elif action == "delay":
            await queue.jobs.change_delay(it.id, HOUR_MS)
            it.ready = False
        elif action == "rank" and rank != it.rank:
            await queue.jobs.change_priority(it.id, rank=rank)
            it.turn, it.rank, it.lifo = turn, rank, it.stored_lifo
        elif action == "priority" and 0 <= rank < 2_048 and rank != it.rank:
            await queue.jobs.change_priority(it.id, 2_048 - rank if rank else 0)
            it.turn, it.rank, it.lifo = turn, rank, it.stored_lifo and not rank
    ready = sorted((each for each in jobs.values() if each.ready), key=lambda each: each.key)
    counts, per_rank = await queue.get_job_counts(), await queue.jobs.get_rank_counts()
    assert (counts.waiting + counts.prioritized, counts.delayed) == (len(ready), len(jobs) - len(ready))
    assert list(per_rank.items()) == [
        (rank, sum(each.rank == rank for each in ready)) for rank in RANKS if any(each.rank == rank for each in ready)
    ]
    leases = await queue.fetch(500)
    assert_order([lease.job for lease in leases], [each.id for each in ready], lambda job: job.id)
    await queue.leases.complete([(lease, None) for lease in leases])
    await queue.drain(delayed=True)
    assert (await queue.get_job_counts()).delayed == 0


# -- other features ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", OWN)
async def test_released_lease_returns_to_its_rank(queue: Queue, rank: int):
    await queue.add_bulk([("n", n, {"rank": rank}) for n in range(3)])
    (first,) = await queue.fetch(1)
    assert first.job.rank == rank
    await first.release()
    assert_order(await fetched(queue), [1, 2, 0])


async def test_suspended_job_resumes_in_its_rank(
    queue: Queue,
    worker_for: WorkerFor,
):
    ran: list[Job] = []

    async def handle(job: Job):
        ran.append(job)
        if not job.signals:
            job.suspend(reason="approval")

    jobs = [await queue.add("n", rank=rank) for rank in OWN]
    async with worker_for(handle):
        await with_timeout(until(lambda: len(ran) == len(OWN)))
        await queue.pause()  # not the worker, whose next fetch may be under way
        for job in jobs:

            async def is_suspended(job: Job = job) -> bool:
                return await job.get_state() is JobState.SUSPENDED

            async with asyncio.timeout(30):
                while not await is_suspended():  # noqa: ASYNC110  the report has no event here
                    await asyncio.sleep(0.01)
        for job in reversed(jobs):
            assert await queue.signal(job.id, "go")
        assert await queue.jobs.get_rank_counts() == dict.fromkeys(OWN, 1)
        await queue.resume()
        for job in jobs:
            await job.wait_until_finished()
    attempts = [(rank, signals) for signals in (0, 1) for rank in OWN]
    assert_order(ran, attempts, lambda job: (job.rank, len(job.signals)))


async def test_members_of_a_flow_in_two_queues_have_ranks(queue: Queue, url: str, flows: FlowProducer):
    name = f"{queue.name}-2"
    async with Queue(name, url) as other:
        children = [FlowJob("child", name, rank, {"rank": rank}) for rank in reversed(OWN)]
        await flows.add(FlowJob("parent", queue.name, "parent", {"rank": OWN[1]}, children))
        assert await other.jobs.get_rank_counts() == dict.fromkeys(OWN, 1)
        assert await queue.jobs.get_rank_counts() == {}
        async with Worker(name, ignore, url) as worker:
            await asyncio.wait_for(worker.drain(), 30)

            async def is_released() -> bool:
                return await queue.jobs.get_rank_counts() == {OWN[1]: 1}

            async with asyncio.timeout(30):
                while not await is_released():  # noqa: ASYNC110  it is in another queue
                    await asyncio.sleep(0.01)
        await queue.add("n", "plain")
        assert_order(await fetched(queue), ["plain", "parent"])
        await other.obliterate(force=True)


@pytest.mark.parametrize("rank", OWN)
async def test_template_of_a_scheduler_has_a_rank(queue: Queue, worker_for: WorkerFor, rank: int):
    ranks: list[int] = []

    async def handle(job: Job):
        ranks.append(job.rank)

    template = {"name": "n", "options": {"rank": rank}}
    await queue.schedulers.upsert("tick", every=1_000, limit=1, immediately=True, template=template)
    async with worker_for(handle):
        await with_timeout(until(lambda: ranks))
    assert ranks == [rank]
    await queue.schedulers.remove("tick")


async def test_limits_hold_for_ranked_jobs(
    parts: int,
    queue: Queue,
    worker_for: WorkerFor,
):
    await queue.add_bulk([("n", n, {"rank": rank}) for rank in OWN for n in range(10)])
    await queue.limits.set_concurrency(2 * parts)
    running = peak = ended = 0

    async def handle(job: Job):
        nonlocal running, peak, ended
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        ended += 1

    async with worker_for(handle, concurrency=10) as worker:
        await asyncio.wait_for(worker.drain(), 30)
    assert (peak, ended) == (2, 20)
    await queue.limits.set_concurrency(0)
    await queue.limits.set_rate_limit(3 * parts, HOUR_MS)
    await queue.add_bulk([("n", n, {"rank": OWN[0]}) for n in range(10)])
    assert len(await queue.fetch(10)) == 3
    await queue.limits.remove_rate_limit()


async def test_dead_letter_entry_is_replayed_to_its_rank(queue: Queue, worker_for: WorkerFor, url: str):
    async def handle(job: Job):
        raise ValueError("always")

    name = f"{queue.name}-dead"
    async with Queue(name, url) as dead:
        job = await queue.add("n", "data", rank=OWN[1])
        async with worker_for(handle, dead_letter_queue=DeadLetterOptions(name)) as worker:
            await asyncio.wait_for(worker.drain(), 30)

            async def arrived() -> list[Any]:
                return list(await queue.dead_letters.get_all())

            async with asyncio.timeout(30):
                while not (entries := await arrived()):  # noqa: ASYNC110  it is in another queue
                    await asyncio.sleep(0.01)
        await queue.dead_letters.replay(entries[0].id)
        assert await queue.jobs.get_rank_counts() == {OWN[1]: 1}
        assert job.rank == OWN[1]
        await queue.drain()
        await dead.obliterate(force=True)


@pytest.mark.parametrize("rank", OWN)
async def test_step_and_delay_return_to_the_rank(queue: Queue, worker_for: WorkerFor, rank: int):
    ran: Any = []

    async def handle(job: Job):
        ran.append((job.data, job.rank))
        if job.data == "first":
            job.move_to_delayed(20, data="second")

    job = await queue.add("n", "first", rank=rank)
    async with worker_for(handle):
        await job.wait_until_finished()
    assert ran == [("first", rank), ("second", rank)]
