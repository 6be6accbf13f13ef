"""Ranks: the order of ready jobs, and everything that moves, lists, counts or removes jobs."""

import asyncio
from typing import Any

import pytest

from glidemq_py import FlowProducer, GlideMQValidationError, Job, JobState, Queue, Worker
from glidemq_py.testing import MemoryServer

Place = MemoryServer | str
RANKS = (1_000_000, 5_000, 2_048, 2_047, 3, 1, 0, -1, -70, -1_000_000)
HOUR_MS = 3_600_000


class Recorder:
    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ranks: list[int] = []

    async def __call__(self, job: Job) -> None:
        self.begun.append(job.data)
        self.ranks.append(job.rank)


async def work_off(queue: Queue, place: Place, handler: Any, **options: Any) -> None:
    async with Worker(queue.name, handler, place, **options) as worker:
        await asyncio.wait_for(worker.drain(), 30)


async def test_higher_ranks_run_first(place: Place, queue: Queue) -> None:
    handler = Recorder()
    for rank in reversed(RANKS):
        job = await queue.add("n", [rank, 0], rank=rank)
        assert job.rank == rank
    await queue.add_bulk([("n", [rank, 1], {"rank": rank}) for rank in RANKS])
    assert await queue.get_rank_counts() == dict.fromkeys(RANKS, 2)
    counts = await queue.get_job_counts()
    assert (counts.waiting, counts.prioritized) == (2, 2 * len(RANKS) - 2)
    listed = await queue.get_jobs("prioritized", 0, 100)
    assert [job.rank for job in listed] == [rank for rank in RANKS if rank for _ in range(2)]
    await work_off(queue, place, handler)
    assert handler.begun == [[rank, n] for rank in RANKS for n in range(2)]
    assert handler.ranks == [rank for rank in RANKS for _ in range(2)]
    assert await queue.get_rank_counts() == {}


@pytest.mark.parametrize("rank", [9_000, 5, -9])
async def test_lifo_jobs_run_first_within_their_rank(place: Place, queue: Queue, rank: int) -> None:
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
    await work_off(queue, place, handler)
    assert handler.begun == ["above", "late", "newest", "older", "first", "second", "below"]


async def test_priority_is_a_rank(place: Place, queue: Queue) -> None:
    handler = Recorder()
    await queue.add("n", "as rank", rank=2_043)
    by_priority = await queue.add("n", "as priority", priority=5)
    assert by_priority.rank == 2_043
    read = await queue.get_jobs("prioritized", 0, 10)
    assert [(job.priority, job.rank, job.opts) for job in read] == [(5, 2_043, {"priority": 5})] * 2
    assert not await queue.get_features()
    await queue.add("n", "higher", rank=2_044)
    await work_off(queue, place, handler)
    assert handler.begun == ["higher", "as rank", "as priority"]


@pytest.mark.parametrize("rank", [4_000, -4_000])
async def test_delays_retries_and_changes(place: Place, queue: Queue, rank: int) -> None:
    ran: list[tuple[Any, int]] = []

    async def handle(job: Job) -> None:
        ran.append((job.data, job.attempts_made))
        if job.data == "fails" and not job.attempts_made:
            raise ValueError("once")

    await queue.add("n", "fails", rank=rank, attempts=2, backoff=30)
    due = await queue.add("n", "due", rank=rank, delay=50)
    later = await queue.add("n", "later", rank=rank, delay=HOUR_MS)
    assert (await queue.get_job_counts()).delayed == 2
    assert [job.data for job in await queue.get_jobs("delayed", 0, 10)] == ["due", "later"]
    async with Worker(queue.name, handle, place):
        await due.wait_until_finished()
        await later.change_delay(20)
        await later.wait_until_finished()
        while ("fails", 1) not in ran:
            for job in await queue.get_jobs("delayed", 0, 10):
                if job.data == "fails":
                    await job.wait_until_finished()
    assert sorted(ran) == [("due", 0), ("fails", 0), ("fails", 1), ("later", 0)]


async def test_rank_can_be_changed(place: Place, queue: Queue) -> None:
    handler = Recorder()
    start = {"plain": 0, "priority": 10, "above": 3_000, "below": -3_000, "lifo": 0}
    jobs = {
        name: await queue.add("n", name, rank=rank or None, lifo=name == "lifo" or None) for name, rank in start.items()
    }
    late = await queue.add("n", "delayed", delay=HOUR_MS)
    for rank in (-5, 2_000, 7_777, 0, 9_000):
        for n, job in enumerate((*jobs.values(), late)):
            await queue.change_rank(job.id, rank + n if rank else 0)
            read = await queue.get_job(job.id)
            assert read is not None
            assert read.rank == (rank + n if rank else 0)
            expected = JobState.DELAYED if job is late else JobState.PRIORITIZED if read.rank else JobState.WAITING
            assert await read.get_state() is expected
        counts = await queue.get_job_counts()
        assert counts.waiting + counts.prioritized == len(jobs)
        assert counts.delayed == 1
        assert sum((await queue.get_rank_counts()).values()) == len(jobs)
    await jobs["plain"].change_rank(9_500)
    assert jobs["plain"].rank == 9_500
    await jobs["above"].change_priority(1)
    await queue.change_priority(jobs["below"].id, 0)
    await late.promote()
    await work_off(queue, place, handler)
    assert handler.begun == ["plain", "delayed", "lifo", "priority", "above", "below"]


@pytest.mark.parametrize("how", ["remove", "revoke", "drain", "drain delayed", "obliterate"])
async def test_ranked_jobs_can_be_removed(place: Place, queue: Queue, how: str) -> None:
    ready = [await queue.add("n", rank, rank=rank) for rank in (50_000, -50_000)]
    stack = await queue.add("n", 5, rank=5, lifo=True)
    late = await queue.add("n", 0, rank=50_000, delay=HOUR_MS)
    for job in (*ready, stack, late):
        if how == "remove":
            await queue.remove(job.id)
        elif how == "revoke":
            assert await queue.revoke(job.id) == "revoked"
    if how.startswith("drain"):
        assert await queue.drain(delayed=how == "drain delayed") == (4 if how == "drain delayed" else 3)
    elif how == "obliterate":
        await queue.obliterate()
    counts = await queue.get_job_counts()
    assert (counts.prioritized, counts.delayed) == (0, 1 if how == "drain" else 0)
    assert await queue.get_rank_counts() == {}


async def test_ranked_job_wakes_an_idle_worker(place: Place, queue: Queue) -> None:
    handler = Recorder()
    async with Worker(queue.name, handler, place):
        for rank in (6_000, -6_000):
            job = await queue.add("n", rank, rank=rank)
            await asyncio.wait_for(job.wait_until_finished(), 2)
    assert handler.begun == [6_000, -6_000]


async def test_pause_groups_and_deduplication(place: Place, queue: Queue) -> None:
    handler = Recorder()
    await queue.pause()
    await queue.add("n", "first", ordering="k", rank=5_000)
    await queue.add("n", "second", ordering="k", rank=6_000)
    old = await queue.add("n", "old", rank=4_000, deduplication={"id": "d", "mode": "debounce"})
    new = await queue.add("n", "new", rank=4_000, deduplication={"id": "d", "mode": "debounce"})
    assert await queue.get_job(old.id) is None
    assert new.rank == 4_000
    await queue.resume()
    await work_off(queue, place, handler)
    assert sorted(handler.begun) == ["first", "new", "second"]
    assert handler.begun.index("first") < handler.begun.index("second")


async def test_ranked_jobs_of_a_flow(place: Place, queue: Queue) -> None:
    handler = Recorder()
    children = [{"name": "n", "queue": queue.name, "data": rank, "options": {"rank": rank}} for rank in (-5, 4_000, 7)]
    async with FlowProducer(place) as flows:
        root = {"name": "n", "queue": queue.name, "data": "root", "options": {"rank": 9_000}, "children": children}
        node = await flows.add(root)
    assert (node.job.rank, [child.job.rank for child in node.children]) == (9_000, [-5, 4_000, 7])
    await work_off(queue, place, handler)
    assert handler.begun == [4_000, 7, -5, "root"]


async def test_default_rank_is_replaced(queue: Queue, place: Place) -> None:
    async with Queue[Any, Any](queue.name, place, default_job_options={"rank": 3_000}) as other:
        assert (await other.add("n")).rank == 3_000
        assert (await other.add("n", priority=3)).rank == 2_045
        assert (await other.add("n", rank=-1)).rank == -1
    await queue.drain()


@pytest.mark.parametrize("options", [{"rank": 1_000_001}, {"rank": 1.5}, {"rank": 5, "priority": 0}, {"rank": True}])
async def test_invalid_ranks_are_rejected(queue: Queue, options: dict[str, Any]) -> None:
    with pytest.raises(GlideMQValidationError, match="rank"):
        await queue.add("n", **options)
    job = await queue.add("n")
    with pytest.raises(GlideMQValidationError, match="rank"):
        await job.change_rank(-1_000_001)
