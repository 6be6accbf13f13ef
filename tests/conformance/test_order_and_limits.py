"""Delays, priorities, groups, limits, deduplication, retention, dead letters, inspection and management."""

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError, KeepJobs, Queue, Worker
from glidemq_py.testing import MemoryServer

Place = MemoryServer | str


class Recorder:
    """A handler that records its jobs, and how many ran concurrently, in total and per group."""

    def __init__(self, pause: float = 0.0) -> None:
        self.begun: list[Any] = []
        self.most: dict[Any, int] = defaultdict(int)
        self._now: dict[Any, int] = defaultdict(int)
        self._pause = pause

    async def __call__(self, job: Job) -> None:
        self.begun.append(job.data)
        group = job.data[0] if isinstance(job.data, list) else None
        for key in {None, group}:
            self._now[key] += 1
            self.most[key] = max(self.most[key], self._now[key])
        await asyncio.sleep(self._pause)
        for key in {None, group}:
            self._now[key] -= 1


async def work_off(queue: Queue, place: Place, handler: Any, **options: Any) -> None:
    async with Worker(queue.name, handler, place, **options) as worker:
        await asyncio.wait_for(worker.drain(), 30)


async def test_order_is_priority_then_lifo_then_fifo(place: Place, queue: Queue) -> None:
    handler = Recorder()
    await queue.add_bulk([
        ("n", "old"), ("n", "new"), ("n", "first in", {"lifo": True}), ("n", "last in", {"lifo": True}),
        ("n", "late", {"priority": 9}), ("n", "urgent", {"priority": 1}), ("n", "urgent too", {"priority": 1}),
    ])  # fmt: skip
    counts = await queue.get_job_counts()
    assert (counts.waiting, counts.prioritized) == (4, 3)
    await work_off(queue, place, handler)
    assert handler.begun == ["urgent", "urgent too", "late", "last in", "first in", "old", "new"]


async def test_delayed_job_runs_when_due(place: Place, queue: Queue) -> None:
    handler = Recorder()
    async with Worker(queue.name, handler, place):
        late = await queue.add("n", "late", delay=150)
        assert (await queue.get_job_counts()).delayed == 1
        await queue.add("n", "now")
        await late.wait_until_finished()
    assert sorted(handler.begun) == ["late", "now"]
    read = await queue.get_job(late.id)
    assert read is not None
    assert (read.processed_on or 0) - read.timestamp >= 150


async def test_delays_and_priorities_can_be_changed(place: Place, queue: Queue) -> None:
    handler = Recorder()
    late = await queue.add("n", "promoted", delay=3_600_000)
    other = await queue.add("n", "sooner", delay=3_600_000)
    plain = await queue.add("n", "hurried")
    await queue.add("n", "plain")
    await queue.promote(late.id)
    await queue.change_delay(other.id, 50)
    await queue.change_priority(plain.id, 1)
    await work_off(queue, place, handler)
    assert handler.begun[0] == "hurried"
    assert sorted(handler.begun) == ["hurried", "plain", "promoted", "sooner"]


async def test_ordering_group_runs_in_order(place: Place, queue: Queue) -> None:
    handler = Recorder(0.001)
    keys = ["a", "b", "c"]
    await queue.add_bulk([("n", [key, number], {"ordering": key}) for number in range(10) for key in keys])
    await work_off(queue, place, handler, concurrency=10)
    for key in keys:
        assert [number for group, number in handler.begun if group == key] == list(range(10))
        assert handler.most[key] == 1
        assert (await queue.get_group(key)).active == 0  # type: ignore[union-attr]


async def test_ordering_group_has_concurrency_and_rate_limit(place: Place, queue: Queue) -> None:
    handler = Recorder(0.02)
    wide = {"ordering": {"key": "w", "concurrency": 3}}
    slow = {"ordering": {"key": "s", "concurrency": 5, "rate_limit": {"max": 2, "duration": 100}}}
    await queue.add_bulk([("n", ["w", i], wide) for i in range(9)] + [("n", ["s", i], slow) for i in range(5)])
    await work_off(queue, place, handler, concurrency=20)
    assert handler.most["w"] == 3
    assert len(handler.begun) == 14
    started = [job.processed_on or 0 for job in await queue.get_jobs("completed") if job.data[0] == "s"]
    assert max(started) - min(started) >= 200, "five jobs, two per 100 ms: the last is in the third window"


async def test_queue_limits_are_enforced(place: Place, queue: Queue) -> None:
    handler = Recorder(0.01)
    await queue.set_global_concurrency(2)
    assert await queue.get_global_concurrency() == 2
    await queue.add_bulk([("n", number) for number in range(10)])
    await work_off(queue, place, handler, concurrency=10)
    assert handler.most[None] == 2
    await queue.set_global_concurrency(0)
    await queue.set_global_rate_limit(3, 100)
    loop = asyncio.get_running_loop()
    await queue.add_bulk([("n", number) for number in range(7)])
    start = loop.time()
    await work_off(queue, place, handler, concurrency=10)
    assert loop.time() - start >= 0.19


async def test_paused_queue_delivers_no_jobs(place: Place, queue: Queue) -> None:
    handler = Recorder()
    await queue.pause()
    assert await queue.is_paused()
    job = await queue.add("n", 1)
    async with Worker(queue.name, handler, place):
        marker = await queue.get_job_counts()
        assert (marker.waiting, marker.paused) == (1, True)
        assert handler.begun == []
        await queue.resume()
        await job.wait_until_finished()


async def test_deduplication(place: Place, queue: Queue) -> None:
    simple = {"deduplication": {"id": "d", "mode": "simple"}}
    assert [(await queue.add("n", i, **simple)).outcome for i in range(3)] == ["added", "skipped", "skipped"]  # type: ignore[arg-type]
    throttled = {"deduplication": {"id": "t", "mode": "throttle", "ttl": 60_000}}
    assert [(await queue.add("n", i, **throttled)).outcome for i in range(2)] == ["added", "skipped"]  # type: ignore[arg-type]
    debounced = {"deduplication": {"id": "b", "mode": "debounce", "ttl": 60_000}, "delay": 60_000}
    assert [(await queue.add("n", i, **debounced)).outcome for i in range(2)] == ["added", "replaced"]  # type: ignore[arg-type]
    await queue.drain(delayed=True)


async def test_retention_options_are_applied(place: Place, queue: Queue) -> None:
    async def handle(job: Job) -> None:
        if job.name == "bad":
            raise ValueError("bad")

    await queue.add_bulk([("good", i, {"remove_on_complete": 2}) for i in range(5)])
    await queue.add_bulk([("bad", i, {"remove_on_fail": True}) for i in range(3)])
    await queue.add("aged", remove_on_complete=KeepJobs(age=60_000))
    await work_off(queue, place, handle)
    counts = await queue.get_job_counts()
    assert counts.failed == 0
    assert 1 <= counts.completed <= 3


async def test_dead_letter_entries_are_delivered_and_replayed(place: Place, queue_name: str) -> None:
    broken = True

    async def handle(job: Job) -> Any:
        if broken:
            raise ValueError("broken")
        return job.data

    letters = f"{queue_name}-letters"
    async with Queue[Any, Any](queue_name, place, dead_letter_queue=letters) as queue:
        async with Worker(queue_name, handle, place):
            with pytest.raises(JobFailedError):
                await queue.add_and_wait("n", {"a": 1})
        (letter,) = await queue.get_dead_letter_jobs()
        broken = False
        again = await queue.replay_dead_letter_job(letter.id)
        assert again is not None
        async with Worker(queue_name, handle, place):
            assert await again.wait_until_finished() == {"a": 1}
        assert await queue.get_dead_letter_jobs() == []
        assert not (await queue.check(recheck_after=50)).findings


async def test_jobs_can_be_searched_and_cleaned(place: Place, queue: Queue) -> None:
    await queue.add_bulk([("mail", {"to": f"u{i % 3}", "i": i}) for i in range(30)])
    await queue.add_bulk([("mail", {"to": "u0", "i": 100 + i}, {"delay": 60_000}) for i in range(5)])
    found = await queue.search_jobs("waiting", "mail", {"to": "u1"})
    assert [job.data["i"] for job in found] == list(range(1, 30, 3))
    assert [job.data["i"] for job in await queue.get_jobs("waiting", 3, 5)] == [3, 4, 5]
    assert len([job async for job in queue.iter_jobs("delayed", page=2)]) == 5
    assert await queue.remove(found[0].id)
    assert await queue.get_job(found[0].id) is None
    assert await queue.drain() == 29
    assert await queue.drain(delayed=True) == 5
    await queue.add_bulk([("n", i) for i in range(4)])
    await work_off(queue, place, Recorder())
    assert len(await queue.clean(0, 100, "completed")) == 4


async def test_obliterate_removes_all_keys(place: Place, queue_name: str) -> None:
    async with Queue[Any, Any](queue_name, place) as queue:
        await queue.add_bulk([("n", i, {"priority": i}) for i in range(5)])
        await queue.add("n", ordering="k", delay=5)
        await queue.obliterate(force=True)
        assert await queue.count() == 0
        assert await queue.get_group("k") is None


async def test_workers_are_listed(place: Place, queue: Queue) -> None:
    async with Worker(queue.name, Recorder(), place) as worker:
        await queue.add_and_wait("n")
        (found,) = await queue.get_workers()
        assert worker.consumer in str(found)
    assert await queue.get_workers() == []
