"""Ordering groups: order within a key and slots, for all ways in which jobs end."""

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, UnrecoverableError
from glidemq_py.errors import BulkAddError
from glidemq_py.testing import RespClient
from tests.contract.api import Queue, QueueEvents
from tests.contract.observe import Raw
from tests.inside import die
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, with_timeout


def in_group(key: str, name: str = "a", data: Any = None, **options: Any) -> tuple[str, Any, dict[str, Any]]:
    return name, data, {"ordering": {"key": key}, **options}


async def assert_at_rest(queue: Queue, *keys: str, added: int | None = None, raw: Raw | None = None):
    """Assert that no slot is taken, no job is parked, and every sequence number is used or skipped.

    raw: also count the marks of removed jobs that no later job has reached yet.
    """
    for key in keys:
        found = await queue.groups.get(key)
        assert found is not None
        assert (key, found.active, found.parked) == (key, 0, 0)
        if added is not None:
            next_seq = found.next_seq
            while raw is not None and raw.run("HEXISTS", f"group:{key}", f"skip:{next_seq}"):
                next_seq += 1
            assert (key, next_seq) == (key, added + 1)


@pytest.mark.parametrize("concurrency", [1, 20])
async def test_two_workers_run_one_key_in_order(concurrency: int, queue: Queue, worker_for: WorkerFor):
    begun: list[int] = []
    running = 0

    async def handle(job: Job):
        nonlocal running
        running += 1
        assert running == 1
        begun.append(job.data)
        await asyncio.sleep(0)
        running -= 1

    await queue.add_bulk(in_group("k", data=i) for i in range(200))
    one, two = (worker_for(handle, concurrency=concurrency) for _ in range(2))
    recorded = EventRecorder(one, two)
    async with one, two:
        await recorded.wait("completed", 200)
    assert begun == list(range(200))
    await assert_at_rest(queue, "k", added=200)


async def test_every_way_to_end_a_job_frees_its_slot(worker_for: WorkerFor, queue: Queue, raw: Raw):
    async def handle(job: Job):
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
    for kind in kinds:
        for _ in range(2):
            options: Any = {"attempts": 3} if kind == "retry" else {"ttl": 1} if kind == "expired" else {}
            first = await queue.add(kind, {}, ordering={"key": kind}, **options)
            if kind == "removed":
                await first.remove()
    last = [await queue.add("complete", {}, ordering=kind) for kind in kinds]
    worker = worker_for(handle, concurrency=5)
    async with worker:
        for job in last:
            await job.wait_until_finished()
    await assert_at_rest(queue, *kinds, added=3)
    assert raw.run("EXISTS", "ratelimited") == 0


async def test_removing_an_active_job_frees_its_slot(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    first, second = await queue.add_bulk([in_group("k"), in_group("k")])
    async with worker_for(gate, concurrency=2):
        assert (await gate.next()).id == first.id
        await queue.remove(first.id)
        assert (await gate.next()).id == second.id
        gate.open()
        await second.wait_until_finished()
    await assert_at_rest(queue, "k", added=2)


async def test_job_released_at_close_is_next(queue: Queue, worker_for: WorkerFor):
    gate, done = Gate(), list[str]()

    async def finish(job: Job):
        done.append(job.id)

    jobs = await queue.add_bulk(in_group("k") for _ in range(4))
    first = worker_for(gate)
    await first.start()
    await gate.next()
    await first.close(force=True)
    async with worker_for(finish, concurrency=4):
        await jobs[-1].wait_until_finished()
    assert done == [job.id for job in jobs]
    await assert_at_rest(queue, "k", added=4)


async def test_group_concurrency_is_used(queue: Queue, worker_for: WorkerFor):
    running = most = 0

    async def handle(_: Job):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    ordering = {"key": "k", "concurrency": 3}
    await queue.add_bulk(("a", None, {"ordering": ordering}) for _ in range(60))
    workers = [worker_for(handle, concurrency=10) for _ in range(2)]
    recorded = EventRecorder(*workers)
    async with workers[0], workers[1]:
        await recorded.wait("completed", 60)
    assert most == 3
    await assert_at_rest(queue, "k", added=60)


async def test_raising_a_limit_starts_parked_jobs_at_once(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    await queue.add_bulk(in_group("k") for _ in range(4))
    async with worker_for(gate, concurrency=10):
        await gate.next()
        await queue.groups.set_limits("k", concurrency=3)
        await gate.next()
        await gate.next()
        found = await queue.groups.get("k")
        assert found is not None
        assert (found.active, found.limits.concurrency) == (3, 3)
        await queue.groups.set_limits("k", concurrency=False)
        await gate.next()
        gate.open()
    await assert_at_rest(queue, "k", added=4)


async def test_rate_limiting_a_group_does_not_affect_others(
    worker_for: WorkerFor, url: str, queue: Queue, queue_name: str
):
    async with QueueEvents(queue_name, url) as events:
        await events.wait_until_ready()
        until = await queue.groups.rate_limit("k", 60_000)
        assert await queue.groups.rate_limit("k", 10) == until
        resting = await queue.add("a", None, ordering={"key": "k"})
        other = await queue.add("a", None, ordering={"key": "j"})
        started: list[str] = []

        async def handle(job: Job):
            started.append(job.id)

        async with worker_for(handle, concurrency=4):
            await other.wait_until_finished()
            assert started == [other.id]
            found = await queue.groups.get("k")
            assert found is not None
            assert found.limited_until == until
            await queue.groups.rate_limit("k", 1, extend="replace")
            await resting.wait_until_finished()
        async for event in events:
            if event.event == "group-rate-limited":
                assert event.fields["groupKey"] == "k"
                break


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("position", ["front", "back"])
async def test_handler_can_rate_limit_its_group(position: Any, in_thread: bool, queue: Queue, worker_for: WorkerFor):
    met: list[tuple[str, float]] = []
    clock = asyncio.get_running_loop().time

    def plain(job: Job):
        met.append((job.id, clock()))
        if len(met) == 1:
            job.rate_limit_group(150, position=position)

    async def coroutine(job: Job):
        plain(job)

    jobs = await queue.add_bulk(in_group("k") for _ in range(3))
    worker = worker_for(plain if in_thread else coroutine, concurrency=4)
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


async def test_handler_can_rate_limit_its_group_and_fail_its_job(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        if job.name == "limited":
            job.rate_limit_group(50, current_job="fail")

    first = await queue.add("limited", None, ordering="k", attempts=5)
    second = await queue.add("a", None, ordering="k")
    worker = worker_for(handle)
    recorded = EventRecorder(worker)
    async with worker:
        await second.wait_until_finished()
    assert recorded.job_ids("failed") == [first.id]
    job = await queue.get_job(first.id)
    assert job is not None
    assert (job.failed_reason, job.failed_type) == ("group rate limited", "GroupRateLimitError")
    await assert_at_rest(queue, "k", added=2)


async def test_rate_limit_group_requires_a_group(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        job.rate_limit_group(50)

    job = await queue.add("a")
    assert job.ordering_key is None
    worker = worker_for(handle)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("failed")
    assert "has no ordering group" in str(recorded.of("failed")[0][1])


# -- adding --------------------------------------------------------------------------------------------------------


async def test_cost_above_the_bucket_capacity_is_rejected(queue: Queue):
    ordering: Any = {"key": "k", "token_bucket": {"capacity": 2, "refill_rate": 1}}
    with pytest.raises(GlideMQValidationError, match=r"'cost' = 2\.5: exceeds .* group 'k'"):
        await queue.add("a", None, ordering=ordering, cost=2.5)
    with pytest.raises(BulkAddError) as bulk:
        await queue.add_bulk(
            [("a", None, {"ordering": ordering}), ("b", None, {"ordering": ordering, "cost": 3}), ("c",)]
        )
    job, refused, other = bulk.value.results
    assert isinstance(job, Job)
    assert isinstance(other, Job)
    assert isinstance(refused, GlideMQValidationError)
    assert (refused.option, refused.value) == ("cost", 3)
    assert (await queue.get_job_counts()).waiting == 2


async def test_priority_does_not_change_the_order_within_a_group(queue: Queue, worker_for: WorkerFor):
    begun: list[int] = []

    async def handle(job: Job):
        begun.append(job.data)

    jobs = await queue.add_bulk(in_group("k", data=i, priority=9 - i) for i in range(5))
    async with worker_for(handle, concurrency=3):
        for job in jobs:
            await job.wait_until_finished()
    assert begun == [0, 1, 2, 3, 4]
    await assert_at_rest(queue, "k", added=5)


async def idle(queue: Queue):
    while (await queue.get_job_counts()).unfinished:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_thousand_keys_with_failures_retries_and_removals(
    worker_for: WorkerFor, queue: Queue, queue_name: str, raw: Raw
):
    chance = random.Random(7)
    keys, per_key = [f"key-{i}" for i in range(1000)], 6
    rows = [(key, i) for i in range(per_key) for key in keys]
    begun: dict[str, list[int]] = defaultdict(list)
    running: set[str] = set()
    doomed, flaky = set(chance.sample(rows, 300)), set(chance.sample(rows, 600))
    tried: set[tuple[str, int]] = set()

    async def handle(job: Job):
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

    jobs = await queue.add_bulk(in_group(key, data=(key, i), attempts=2, backoff=5) for key, i in rows)
    workers = [worker_for(handle, concurrency=50, events=False) for _ in range(2)]
    recorded = EventRecorder(*workers)
    async with workers[0], workers[1]:
        victims = [jobs[i] for i in chance.sample(range(len(rows)), 300)]
        removed = sum([await job.remove() for job in victims])
        assert removed == 300

        def all_over(recorded: EventRecorder) -> bool:
            # A job that was removed while active is reported as an error, or not at all.
            return recorded.count["completed"] + recorded.count["failed"] >= len(rows) - removed

        await with_timeout(recorded.until(all_over), 60)
        await with_timeout(idle(queue), 60)
    for key, order in begun.items():
        assert order == sorted(order), key
    await assert_at_rest(queue, *keys, added=per_key, raw=raw)
    counts = await queue.get_job_counts()
    assert counts.unfinished == 0


@pytest.mark.slow
async def test_stalled_job_runs_again_before_the_next(queue: Queue, worker_for: WorkerFor, resp: RespClient):
    done: list[str] = []

    async def finish(job: Job):
        done.append(job.id)

    jobs = await queue.add_bulk(in_group("k", lock_duration=1000) for _ in range(3))
    gate = Gate()
    lost = worker_for(gate, lock_duration=1000, stalled_interval=1000)
    await lost.start()
    await gate.next()
    await die(lost)  # other workers consider it dead
    other = worker_for(finish, lock_duration=1000, stalled_interval=1000)
    async with other:
        await jobs[-1].wait_until_finished()
    gate.open()
    await lost.close()
    assert done == [job.id for job in jobs]
    await assert_at_rest(queue, "k", added=3)
