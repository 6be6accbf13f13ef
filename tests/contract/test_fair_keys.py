"""Fair keys: turns, weights, limits per key, and every way in which their jobs move."""

import asyncio
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from glidemq_py import Job, RateLimit, Worker
from glidemq_py.errors import FairKeyFullError
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.inside import keyed
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, until, with_timeout


def of(key: str, data: Any = None, **options: Any) -> tuple[str, Any, dict[str, Any]]:
    return "a", key if data is None else data, {"fair_key": key, **options}


async def drain_in_order(queue: Queue, batch: int = 1) -> list[Any]:
    """Return the data of all ready jobs in the order of their start, with at most ``batch`` active at a time."""
    data: Any = []
    while leases := await queue.fetch(batch):
        data += [lease.job.data for lease in leases]
        await queue.leases.complete((lease, None) for lease in leases)
    return data


async def assert_empty(queue: Queue, raw: Raw):
    """Assert that nothing of the ready and active jobs is left, in no key."""
    left = {suffix for suffix in ("fair", "fair-keys", "fair-blocked", "fair-delayed", "fair-active", "fair-running")
            if raw.run("EXISTS", suffix)}  # fmt: skip
    assert left == set()
    assert raw.run("HGET", "fair-state", "waiting") in (None, "0")
    assert [key async for key in queue.fair_keys.iter()] == []


# -- turns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3, 100])
async def test_keys_take_turns(parts: int, queue: Queue, raw: Raw, batch: int):
    await queue.add_bulk(of(keyed(0, parts, "big"), f"big{i}") for i in range(20))
    await queue.add_bulk(of(keyed(0, parts, key), f"{key}{i}") for key in ("x", "y") for i in range(3))
    order = await drain_in_order(queue, batch)
    assert {"x0", "x1", "x2", "y0", "y1", "y2"} <= set(order[:10])
    for key in ("big", "x", "y"):
        own = [int(data.removeprefix(key)) for data in order if data.startswith(key)]
        assert own == sorted(own)
    await assert_empty(queue, raw)


async def test_weights(parts: int, queue: Queue):
    heavy, light = keyed(0, parts, "heavy"), keyed(0, parts, "light")
    await queue.fair_keys.set_limits(heavy, weight=3)
    await queue.add_bulk(of(key) for _ in range(40) for key in (heavy, light))
    order = await drain_in_order(queue)
    assert 29 <= order[:40].count(heavy) <= 31


async def test_a_key_that_comes_back_after_each_job_gains_nothing(queue: Queue):
    await queue.add_bulk(of("b") for _ in range(10))
    await queue.add("a", "a", fair_key="a")
    order: Any = []
    for _ in range(12):
        (lease,) = await queue.fetch(1)
        order.append(lease.job.data)
        if lease.job.data == "a":
            await queue.add("a", "a", fair_key="a")
        await queue.leases.complete([(lease, None)])
    assert 5 <= order.count("b") <= 7
    await queue.drain()


@pytest.mark.exclude("partitioned", reason="turns are those of a partition")
@pytest.mark.parametrize("batch", [1, 2, 5])
async def test_plain_and_fair_jobs_do_not_starve_each_other(queue: Queue, batch: int):
    await queue.add_bulk(of("k", "fair") for _ in range(60))
    await queue.add_bulk(("a", "plain") for _ in range(60))
    counted = Counter((await drain_in_order(queue, batch))[:60])
    assert abs(counted["fair"] - counted["plain"]) <= 4


@pytest.mark.slow
async def test_a_job_of_an_idle_tenant_starts_next(queue: Queue):
    for _ in range(20):
        await queue.add_bulk([of("big")] * 1000)
    (running,) = await queue.fetch(1)
    added = await queue.add("a", "small", fair_key="small")
    began = time.monotonic()
    found = [lease.job.data for lease in await queue.fetch(2)]
    assert "small" in found
    assert time.monotonic() - began < 5  # one call, whatever the backlog
    assert added.fair_key == "small"
    assert running.job.fair_key == "big"
    await queue.obliterate(force=True)


# -- limits of a key -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_polling")
async def test_workers_share_the_slots_of_a_limited_key(queue: Queue, worker_for: WorkerFor, raw: Raw):
    active, most, done = 0, 0, 0

    async def handle(_: Job):
        nonlocal active, most, done
        active += 1
        most = max(most, active)
        await asyncio.sleep(0)
        active -= 1
        done += 1

    await queue.fair_keys.set_limits("k", concurrency=3)
    workers = [worker_for(handle, concurrency=4) for _ in range(3)]
    async with workers[0], workers[1], workers[2]:
        await queue.add_bulk(of("k", i) for i in range(200))
        await with_timeout(until(lambda: done == 200), 30)
    assert 1 <= most <= 3
    await assert_empty(queue, raw)


@pytest.mark.usefixtures("without_polling")
async def test_a_freed_slot_wakes_another_worker(queue: Queue, worker_for: WorkerFor):
    gate, other = Gate(), Gate()
    other.open()
    await queue.fair_keys.set_limits("k", concurrency=1)
    async with worker_for(gate, concurrency=1):
        await queue.add("a", 1, fair_key="k")
        await gate.next()
        async with worker_for(other, concurrency=1) as second:
            recorded = EventRecorder(second)
            await queue.add("a", 2, fair_key="k")
            await queue.add("a", 3, fair_key="k")
            gate.open()
            await with_timeout(until(lambda: len(gate.begun) + len(other.begun) == 3), 10)
        assert recorded.count["error"] == 0


@pytest.mark.usefixtures("without_polling")
async def test_a_worker_resumes_when_the_window_ends(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    gate.open()
    await queue.fair_keys.set_limits("k", rate_limit={"max": 2, "duration": 150})
    async with worker_for(gate, concurrency=10):
        await queue.add_bulk(of("k") for _ in range(6))
        await with_timeout(until(lambda: len(gate.begun) == 6), 20)


@pytest.mark.exclude("partitioned", reason="the name of a scheduler chooses its partition")
async def test_a_scheduler_reports_a_full_key(worker_for: WorkerFor, queue: Queue, queue_name: str):
    await queue.fair_keys.set_limits("k", max_backlog=1)
    await queue.add("a", fair_key="k", job_id="k")
    await queue.pause()
    template = {"name": "a", "options": {"fair_key": "k"}}
    await queue.schedulers.upsert("s", every=60_000, immediately=True, template=template)
    errors: list[BaseException] = []
    worker = worker_for(Gate())
    worker.on("error", errors.append)
    async with worker:
        await with_timeout(until(lambda: bool(errors)), 20)
    error = errors[0]
    assert isinstance(error, FairKeyFullError)
    assert (error.key, error.max_backlog) == ("k", 1)
    assert error.__notes__ == [f"scheduler 's' of queue {queue_name!r}"]


async def test_rate_of_each_key_keeps_no_windows_of_keys_without_jobs(queue: Queue, raw: Raw):
    window = 50
    await queue.fair_keys.set_defaults(rate_limit=RateLimit(2, window))
    largest = 0
    for round_ in range(12):
        await queue.add_bulk(of(f"{round_}-{n}") for n in range(20) for _ in range(3))
        leases = await queue.fetch(100)
        assert len(leases) == 40
        await queue.leases.complete((lease, None) for lease in leases)
        while leases := await queue.fetch(100, wait=10 * window):
            await queue.leases.complete((lease, None) for lease in leases)
            if not await queue.count():
                break
        largest = max(largest, int(raw.run("HLEN", "fair-rates")))
    assert largest <= 120  # of 240 keys
    assert (await queue.fair_keys.get_defaults()).rate_limit == RateLimit(2, window)


async def test_pause_and_resume_a_key(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    gate.open()
    await queue.fair_keys.pause("k")
    async with worker_for(gate):
        await queue.add_bulk([of("k", 1), of("k", 2), of("other", 3)])
        assert (await gate.next()).data == 3
        info = await queue.fair_keys.get("k")
        assert (info.paused, info.backlog) == (True, 2)
        assert len(gate.begun) == 1
        await queue.fair_keys.resume("k")
        assert {(await gate.next()).data, (await gate.next()).data} == {1, 2}
    assert (await queue.fair_keys.get("k")).paused is False


# -- every way in which a job moves ------------------------------------------------------------------------


@pytest.mark.usefixtures("without_polling")
async def test_a_delayed_job_starts_in_time(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    gate.open()
    async with worker_for(gate):
        await queue.add("a", 1, fair_key="k", delay=50)
        assert (await gate.next()).data == 1


async def test_retries_failures_and_requeues(queue: Queue, worker_for: WorkerFor, raw: Raw):
    async def handle(job: Job):
        if job.attempts_made < 1 or job.data == "fails":
            raise RuntimeError(job.data)

    await queue.add("a", "once", fair_key="k", attempts=2, backoff=10)
    failing = await queue.add("a", "fails", fair_key="k", attempts=2)
    async with worker_for(handle) as worker:
        await EventRecorder(worker).wait("completed")
        await with_timeout(until(lambda: raw.state(failing.id) == "failed"), 10)
    assert await failing.get_state() == "failed"
    await assert_empty(queue, raw)
    await failing.retry()
    assert await drain_in_order(queue) == ["fails"]
    await assert_empty(queue, raw)


@pytest.mark.slow
async def test_stalled_jobs_are_recovered(queue: Queue, worker_for: WorkerFor, raw: Raw):
    await queue.fair_keys.set_limits("k", concurrency=1)
    await queue.add_bulk([of("k", 1), of("k", 2)])
    (lease,) = await queue.fetch(1, lock_duration=1000)
    raw.run("HSET", f"job:{lease.job.id}", "lastActive", "1")
    gate = Gate()
    gate.open()
    async with worker_for(gate, lock_duration=1000, stalled_interval=1000):
        await with_timeout(until(lambda: len(gate.begun) == 2), 30)
    assert {job.data for job in gate.begun} == {1, 2}
    await assert_empty(queue, raw)


async def test_listing_pages_over_keys(queue: Queue):
    await queue.add_bulk(of(f"k{i % 250}", i) for i in range(1_000))
    await queue.add_bulk([("a", "plain")] * 3)
    seen = [job.data async for job in queue.iter_jobs("waiting")]
    assert len(seen) == 1_003
    assert sorted(data for data in seen if data != "plain") == list(range(1_000))
    assert [info.backlog async for info in queue.fair_keys.iter()] == [4] * 250
    await queue.drain()


async def test_drain_and_obliterate_leave_nothing(queue: Queue, raw: Raw):
    await queue.fair_keys.set_limits("k1", concurrency=1)
    await queue.fair_keys.pause("k2")
    await queue.add_bulk(of(f"k{i % 7}", i) for i in range(700))
    await queue.add_bulk(of("k1", i, delay=60_000) for i in range(10))
    active = await queue.fetch(5)
    await queue.drain(delayed=True)
    counts = await queue.get_job_counts()
    assert (counts.waiting, counts.delayed, counts.active) == (0, 0, 5)
    await queue.leases.complete((lease, None) for lease in active)
    await assert_empty(queue, raw)
    await queue.add_bulk(of(f"k{i % 7}", i) for i in range(70))
    await queue.fetch(5)
    await queue.obliterate(force=True)
    assert [key for key in raw.keys("*") if "wake" not in key and key != "deleted-layout"] == []


async def test_a_job_that_a_peer_moved_returns_to_its_key(queue: Queue, raw: Raw):
    await queue.fair_keys.pause("k")
    job = await queue.add("a", 1, fair_key="k", delay=60_000)
    raw.run("ZREM", "fair-delayed", job.id)
    raw.run("XADD", "stream", "*", "jobId", job.id, "name", "a")
    assert await queue.fetch(1) == []
    assert (await queue.fair_keys.get("k")).backlog == 1
    await queue.fair_keys.resume("k")
    assert await drain_in_order(queue) == [1]
    await assert_empty(queue, raw)


async def test_repair_of_a_lost_place(queue: Queue, raw: Raw):
    job = await queue.add("a", 1, fair_key="k")
    later = await queue.add("a", 2, fair_key="k", delay=60_000)
    raw.run("DEL", "fairq:k")
    raw.run("DEL", "fair-delayed")
    report = await queue.check(repair=True, recheck_after=10)
    assert {finding.subject for finding in report.findings} >= {job.id, later.id}
    assert (await queue.check(recheck_after=10)).findings == ()
    await later.promote()
    assert await drain_in_order(queue) == [1, 2]


async def test_restarted_queue_keeps_keys_and_limits_in_a_backup(url: str, queue: Queue, tmp_path: Any):
    await queue.fair_keys.set_limits("k", concurrency=1, weight=2)
    await queue.add_bulk([of("k", 1), of("k", 2), of("other", 3), of("k", 4, delay=60_000)])
    await queue.fetch(1)
    await queue.backups.create(tmp_path / "b")
    await queue.obliterate(force=True)
    await queue.backups.restore(tmp_path / "b")
    info = await queue.fair_keys.get("k")
    assert (info.backlog, info.active, info.concurrency, info.weight) == (2, 0, 1, 2)
    assert (await queue.get_job_counts()).delayed == 1
    assert sorted(await drain_in_order(queue)) == [1, 2, 3]
    await queue.drain(delayed=True)


# -- preference ---------------------------------------------------------------------------------------------


async def started_keys(url: str, queue: Queue, preference: int, concurrency: int = 1) -> list[str]:
    """Run all jobs of the queue in a worker; return their keys in the order of their starts."""
    order: list[str] = []

    async def handle(job: Job):
        order.append(job.fair_key or "")

    async with Worker(queue.name, handle, url, concurrency=concurrency, fair_key_preference=preference) as worker:
        await worker.drain()
    return order


def furthest_ahead(order: list[str], key: str, other: str) -> int:
    """Return how many jobs more of ``key`` than of ``other`` had started at most, while ``other`` had ready jobs."""
    ahead, most, left = 0, 0, order.count(other)
    for each in order:
        ahead += (each == key) - (each == other)
        left -= each == other
        most = max(most, ahead) if left else most
    return most


@pytest.mark.exclude("partitioned", reason="turns are those of a partition")
@pytest.mark.parametrize("concurrency", [1, 7])
async def test_a_worker_prefers_the_keys_of_its_last_jobs(url: str, queue: Queue, concurrency: int, raw: Raw):
    keys = [f"t{n}" for n in range(8)]
    await queue.add_bulk(of(key) for _ in range(40) for key in keys)
    order = await started_keys(url, queue, 10, concurrency)
    assert Counter(order) == dict.fromkeys(keys, 40)
    switches = sum(before != after for before, after in pairwise(order))
    assert switches < len(order) / 2, order  # every job, if the keys take turns
    assert max(furthest_ahead(order, key, other) for key in keys for other in keys if key != other) <= 12
    await assert_empty(queue, raw)


async def test_no_preference_is_the_default(url: str, queue: Queue):
    await queue.add_bulk(of(key) for _ in range(10) for key in "ab")
    order = await started_keys(url, queue, 0)
    assert all(before != after for before, after in pairwise(order))


@pytest.mark.exclude("partitioned", reason="turns are those of a partition")
async def test_a_preferred_key_has_its_weight_and_its_limits(url: str, queue: Queue, raw: Raw):
    await queue.fair_keys.set_limits("heavy", weight=3)
    await queue.fair_keys.set_limits("limited", rate_limit={"max": 2, "duration": 50})
    await queue.add_bulk(of(key) for key, jobs in (("heavy", 90), ("light", 30), ("limited", 4)) for _ in range(jobs))
    order = await started_keys(url, queue, 5)
    assert Counter(order) == {"heavy": 90, "light": 30, "limited": 4}
    share = order[:80].count("heavy") / order[:80].count("light")
    assert 2 < share < 5
    await assert_empty(queue, raw)


async def test_a_job_of_another_key_waits_for_a_bounded_number_of_preferred_ones(worker_for: WorkerFor, queue: Queue):
    order: list[str] = []
    added = asyncio.Event()

    async def handle(job: Job):
        order.append(job.fair_key or "")
        if len(order) == 50:
            await queue.add("a", fair_key="idle")
            added.set()

    await queue.add_bulk(of("big") for _ in range(300))
    async with worker_for(handle, fair_key_preference=20) as worker:
        await worker.drain()
    assert order.index("idle") - 50 <= 21


@pytest.mark.exclude("partitioned", reason="turns are those of a partition")
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_preferred_key_with_one_job_at_a_time_lets_others_have_their_turn(
    worker_for: WorkerFor, queue: Queue, concurrency: int, raw: Raw
):
    """Each preferred key has no job left when its job is fetched, and the next one when that job runs."""
    order: list[str] = []
    following = [f"a{n}" for n in range(concurrency)]

    async def handle(job: Job):
        order.append(job.fair_key or "")
        if job.fair_key == following[0] and order.count(following[0]) == 1:
            await queue.add_bulk(of("b") for _ in range(8))
        if job.fair_key in following and order.count(job.fair_key) < 30:
            await queue.add_bulk([of(job.fair_key)])

    await queue.add_bulk(of(key) for key in following)
    async with worker_for(handle, concurrency=concurrency, fair_key_preference=2) as worker:
        await worker.drain()
    assert Counter(order) == {"b": 8, **dict.fromkeys(following, 30)}
    assert max(furthest_ahead(order, key, "b") for key in following) <= 5, order
    await assert_empty(queue, raw)


@pytest.mark.exclude("partitioned", reason="turns are those of a partition")
async def test_preferred_keys_that_may_not_overlap_let_others_have_their_turn(
    worker_for: WorkerFor, queue: Queue, raw: Raw
):
    """Each job ends when the one after it has started, so the key of the other running job is always at its limit."""
    order: list[str] = []
    ends: list[asyncio.Event] = []

    async def handle(job: Job):
        order.append(job.fair_key or "")
        ends.append(asyncio.Event())
        for end in ends[:-1] if len(ends) < 90 else ends:
            end.set()
        await ends[-1].wait()

    for key in "ab":
        await queue.fair_keys.set_limits(key, concurrency=1)
    await queue.add_bulk(of(key) for _ in range(30) for key in "abc")
    async with worker_for(handle, concurrency=2, fair_key_preference=2) as worker:
        await worker.drain()
    assert Counter(order) == dict.fromkeys("abc", 30)
    assert max(furthest_ahead(order, key, "c") for key in "ab") <= 5, order
    await assert_empty(queue, raw)
