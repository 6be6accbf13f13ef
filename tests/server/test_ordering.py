"""Ordering groups: order within a key and slots, for all ways in which jobs end."""

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest

from glidemq_py import Job, JobCostError, JobOutcome, Queue, QueueEvents, UnrecoverableError, Worker
from glidemq_py.errors import BulkAddError, GlideMQValidationError
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder, Gate, Raw, with_timeout


def in_group(key: str, name: str = "a", data: Any = None, **options: Any) -> tuple[str, Any, dict[str, Any]]:
    return name, data, {"ordering": {"key": key}, **options}


async def assert_at_rest(queue: Queue, *keys: str, added: int | None = None, raw: Raw | None = None) -> None:
    """Assert that no slot is taken, no job is parked, and every sequence number is used or skipped.

    raw: also count the marks of removed jobs that no later job has reached yet.
    """
    for key in keys:
        found = await queue.get_group(key)
        assert found is not None
        assert (key, found.active, found.parked) == (key, 0, 0)
        if added is not None:
            next_seq = found.next_seq
            while raw is not None and raw.run("HEXISTS", f"group:{key}", f"skip:{next_seq}"):
                next_seq += 1
            assert (key, next_seq) == (key, added + 1)


@pytest.mark.parametrize("concurrency", [1, 20])
async def test_two_workers_run_one_key_in_order(concurrency: int, url: str, queue_name: str) -> None:
    begun: list[int] = []
    running = 0

    async def handle(job: Job) -> None:
        nonlocal running
        running += 1
        assert running == 1
        begun.append(job.data)
        await asyncio.sleep(0)
        running -= 1

    async with Queue(queue_name, url) as queue:
        await queue.add_bulk(in_group("k", data=i) for i in range(200))
        one, two = (Worker(queue_name, handle, url, concurrency=concurrency) for _ in range(2))
        recorded = EventRecorder(one, two)
        async with one, two:
            await recorded.wait("completed", 200)
        assert begun == list(range(200))
        await assert_at_rest(queue, "k", added=200)


@pytest.mark.slow
async def test_thousand_keys_with_failures_retries_and_removals(url: str, queue_name: str, resp: RespClient) -> None:
    chance = random.Random(7)
    keys, per_key = [f"key-{i}" for i in range(1000)], 6
    rows = [(key, i) for i in range(per_key) for key in keys]
    begun: dict[str, list[int]] = defaultdict(list)
    running: set[str] = set()
    doomed, flaky = set(chance.sample(rows, 300)), set(chance.sample(rows, 600))
    tried: set[tuple[str, int]] = set()

    async def handle(job: Job) -> None:
        key, i = job.data
        assert key not in running, f"two jobs of {key} at a time"
        running.add(key)
        try:
            await asyncio.sleep(0)
            if (key, i) in doomed:
                raise UnrecoverableError("doomed")
            if (key, i) in flaky and (key, i) not in tried:
                tried.add((key, i))
                raise ValueError("once")
            begun[key].append(i)
        finally:
            running.discard(key)

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk(in_group(key, data=(key, i), attempts=2, backoff=5) for key, i in rows)
        workers = [Worker(queue_name, handle, url, concurrency=50, events=False) for _ in range(2)]
        recorded = EventRecorder(*workers)
        async with workers[0], workers[1]:
            victims = [jobs[i] for i in chance.sample(range(len(rows)), 300)]
            removed = sum([await job.remove() for job in victims])
            assert removed == 300

            def all_over(recorded: EventRecorder) -> bool:
                # A job that was removed while active is reported as an error, or not at all.
                return recorded.count["completed"] + recorded.count["failed"] >= len(rows) - removed

            await with_timeout(recorded.until(all_over), 60)
            await with_timeout(until_idle(queue), 60)
        for key, order in begun.items():
            assert order == sorted(order), key
        await assert_at_rest(queue, *keys, added=per_key, raw=Raw(resp, queue_name))
        counts = await queue.get_job_counts()
        assert counts.unfinished == 0


async def until_idle(queue: Queue) -> None:
    while (await queue.get_job_counts()).unfinished:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_every_way_to_end_a_job_frees_its_slot(url: str, queue_name: str, resp: RespClient) -> None:
    async def handle(job: Job) -> None:
        if job.name == "fail":
            raise UnrecoverableError("no")
        if job.name == "retry" and job.attempts_made < 2:
            raise ValueError("again")
        if job.name == "delay" and "step" not in job.data:
            job.move_to_delayed(5, next_step="two")
        if job.name == "rest" and not job.data.get("met"):
            await job.update_data({"met": True})
            job.rate_limit_group(20, position=job.data.get("position", "front"))

    kinds = ["complete", "fail", "retry", "delay", "rest", "expired", "removed"]
    async with Queue(queue_name, url) as queue:
        raw = Raw(resp, queue_name)
        for kind in kinds:
            for _ in range(2):
                options: dict[str, Any] = (
                    {"attempts": 3} if kind == "retry" else {"ttl": 1} if kind == "expired" else {}
                )
                first = await queue.add(kind, {}, ordering={"key": kind}, **options)
                if kind == "removed":
                    await first.remove()
        last = [await queue.add("complete", {}, ordering=kind) for kind in kinds]
        worker = Worker(queue_name, handle, url, concurrency=5)
        async with worker:
            for job in last:
                await job.wait_until_finished()
        await assert_at_rest(queue, *kinds, added=3)
        assert raw.run("EXISTS", "ratelimited") == 0


async def test_removing_an_active_job_frees_its_slot(url: str, queue_name: str) -> None:
    gate = Gate()
    async with Queue(queue_name, url) as queue:
        first, second = await queue.add_bulk([in_group("k"), in_group("k")])
        async with Worker(queue_name, gate, url, concurrency=2):
            assert (await gate.next()).id == first.id
            await queue.remove(first.id)
            assert (await gate.next()).id == second.id
            gate.open()
            await second.wait_until_finished()
        await assert_at_rest(queue, "k", added=2)


async def test_job_released_at_close_is_next(url: str, queue_name: str) -> None:
    gate, done = Gate(), list[str]()

    async def finish(job: Job) -> None:
        done.append(job.id)

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk(in_group("k") for _ in range(4))
        first = Worker(queue_name, gate, url)
        await first.start()
        await gate.next()
        await first.close(force=True)
        async with Worker(queue_name, finish, url, concurrency=4):
            await jobs[-1].wait_until_finished()
        assert done == [job.id for job in jobs]
        await assert_at_rest(queue, "k", added=4)


@pytest.mark.slow
async def test_stalled_job_runs_again_before_the_next(url: str, queue_name: str, resp: RespClient) -> None:
    done: list[str] = []

    async def finish(job: Job) -> None:
        done.append(job.id)

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk(in_group("k", lock_duration=1000) for _ in range(3))
        gate = Gate()
        lost = Worker(queue_name, gate, url, lock_duration=1000, stalled_interval=1000)
        await lost.start()
        await gate.next()
        assert lost._life.parts is not None
        await lost._life.parts.heartbeat.close()  # other workers consider it dead
        other = Worker(queue_name, finish, url, lock_duration=1000, stalled_interval=1000)
        async with other:
            await jobs[-1].wait_until_finished()
        gate.open()
        await lost.close()
        assert done == [job.id for job in jobs]
        await assert_at_rest(queue, "k", added=3)


async def test_group_concurrency_is_used(url: str, queue_name: str) -> None:
    running = most = 0

    async def handle(_: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    async with Queue(queue_name, url) as queue:
        ordering = {"key": "k", "concurrency": 3}
        await queue.add_bulk(("a", None, {"ordering": ordering}) for _ in range(60))
        workers = [Worker(queue_name, handle, url, concurrency=10) for _ in range(2)]
        recorded = EventRecorder(*workers)
        async with workers[0], workers[1]:
            await recorded.wait("completed", 60)
        assert most == 3
        await assert_at_rest(queue, "k", added=60)


async def test_raising_a_limit_starts_parked_jobs_at_once(url: str, queue_name: str) -> None:
    gate = Gate()
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk(in_group("k") for _ in range(4))
        async with Worker(queue_name, gate, url, concurrency=10):
            await gate.next()
            await queue.set_group_limits("k", concurrency=3)
            await gate.next()
            await gate.next()
            found = await queue.get_group("k")
            assert found is not None
            assert (found.active, found.limits.concurrency) == (3, 3)
            await queue.set_group_limits("k", concurrency=False)
            await gate.next()
            gate.open()
        await assert_at_rest(queue, "k", added=4)


async def test_rate_limiting_a_group_does_not_affect_others(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, QueueEvents(queue_name, url) as events:
        await events.wait_until_ready()
        until = await queue.rate_limit_group("k", 60_000)
        assert await queue.rate_limit_group("k", 10) == until
        resting = await queue.add("a", None, ordering={"key": "k"})
        other = await queue.add("a", None, ordering={"key": "j"})
        started: list[str] = []

        async def handle(job: Job) -> None:
            started.append(job.id)

        async with Worker(queue_name, handle, url, concurrency=4):
            await other.wait_until_finished()
            assert started == [other.id]
            found = await queue.get_group("k")
            assert found is not None
            assert found.limited_until == until
            await queue.rate_limit_group("k", 1, extend="replace")
            await resting.wait_until_finished()
        async for event in events:
            if event.event == "group-rate-limited":
                assert event.fields["groupKey"] == "k"
                break


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("position", ["front", "back"])
async def test_handler_can_rate_limit_its_group(position: Any, in_thread: bool, url: str, queue_name: str) -> None:
    met: list[tuple[str, float]] = []
    clock = asyncio.get_running_loop().time

    def plain(job: Job) -> None:
        met.append((job.id, clock()))
        if len(met) == 1:
            job.rate_limit_group(150, position=position)

    async def coroutine(job: Job) -> None:
        plain(job)

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk(in_group("k") for _ in range(3))
        worker = Worker(queue_name, plain if in_thread else coroutine, url, concurrency=4)
        recorded = EventRecorder(worker)
        async with worker:
            await recorded.wait("completed", 3)
        one, two, three = (job.id for job in jobs)
        order = [one, one, two, three] if position == "front" else [one, two, three, one]
        assert [job_id for job_id, _ in met] == order
        assert met[1][1] - met[0][1] >= 0.149
        assert recorded.job_ids("delayed") == [one]
        assert recorded.count["failed"] == recorded.count["retrying"] == 0
        assert (await queue.get_job(one)).attempts_made == 0  # type: ignore[union-attr]
        await assert_at_rest(queue, "k", added=3)


async def test_handler_can_rate_limit_its_group_and_fail_its_job(url: str, queue_name: str) -> None:
    async def handle(job: Job) -> None:
        if job.name == "limited":
            job.rate_limit_group(50, current_job="fail")

    async with Queue(queue_name, url) as queue:
        first = await queue.add("limited", None, ordering="k", attempts=5)
        second = await queue.add("a", None, ordering="k")
        worker = Worker(queue_name, handle, url)
        recorded = EventRecorder(worker)
        async with worker:
            await second.wait_until_finished()
        assert recorded.job_ids("failed") == [first.id]
        job = await queue.get_job(first.id)
        assert job is not None
        assert (job.failed_reason, job.failed_type) == ("group rate limited", "GroupRateLimitError")
        await assert_at_rest(queue, "k", added=2)


async def test_rate_limit_group_requires_a_group(url: str, queue_name: str) -> None:
    async def handle(job: Job) -> None:
        job.rate_limit_group(50)

    async with Queue(queue_name, url) as queue:
        job = await queue.add("a")
        assert job.ordering_key is None
        worker = Worker(queue_name, handle, url)
        recorded = EventRecorder(worker)
        async with worker:
            await recorded.wait("failed")
        assert "has no ordering group" in str(recorded.of("failed")[0][1])


# -- adding --------------------------------------------------------------------------------------------------------


async def test_cost_above_the_bucket_capacity_is_rejected(url: str, queue_name: str) -> None:
    ordering: Any = {"key": "k", "token_bucket": {"capacity": 2, "refill_rate": 1}}
    async with Queue(queue_name, url) as queue:
        with pytest.raises(JobCostError, match=r"cost 2\.5 .* group 'k'") as caught:
            await queue.add("a", None, ordering=ordering, cost=2.5)
        assert (caught.value.cost, caught.value.key) == (2.5, "k")
        with pytest.raises(BulkAddError) as bulk:
            await queue.add_bulk(
                [("a", None, {"ordering": ordering}), ("b", None, {"ordering": ordering, "cost": 3}), ("c",)]
            )
        job, refused, other = bulk.value.results
        assert isinstance(job, Job)
        assert isinstance(other, Job)
        assert isinstance(refused, JobCostError)
        assert (await queue.get_job_counts()).waiting == 2


async def test_mutually_exclusive_options_are_rejected(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue:
        with pytest.raises(GlideMQValidationError, match="lifo"):
            await queue.add("a", None, ordering="k", lifo=True)
        with pytest.raises(GlideMQValidationError, match="cost"):
            await queue.add("a", None, cost=2)
        with pytest.raises(GlideMQValidationError, match=r"jobs\[1\]\.cost"):
            await queue.add_bulk([("a",), ("a", None, {"cost": 2})])
    async with Queue(queue_name, url, default_job_options={"ordering": "k"}) as queue:
        with pytest.raises(GlideMQValidationError, match="lifo"):
            await queue.add("a", None, lifo=True)
        assert (await queue.add("a", None, cost=2)).outcome is JobOutcome.ADDED


async def test_priority_does_not_change_the_order_within_a_group(url: str, queue_name: str) -> None:
    begun: list[int] = []

    async def handle(job: Job) -> None:
        begun.append(job.data)

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk(in_group("k", data=i, priority=9 - i) for i in range(5))
        async with Worker(queue_name, handle, url, concurrency=3):
            for job in jobs:
                await job.wait_until_finished()
        assert begun == [0, 1, 2, 3, 4]
        await assert_at_rest(queue, "k", added=5)
