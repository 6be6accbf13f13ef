"""Limits of queues and workers, rate limit errors, delayed steps, and token limiters."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError, JobState, RateLimit, RateLimitError, TokenLimiter
from glidemq_py.errors import DelayedError, GlideMQError, GlideMQValidationError
from glidemq_py.records import GlobalLimits
from glidemq_py.testing import RespClient
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.inside import fetching_of
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, with_timeout


class Meter:
    """A handler that records when its jobs started and how many were active at a time."""

    def __init__(self):
        self.begun: list[float] = []
        self.running = self.most = 0

    async def __call__(self, _: Job):
        self.begun.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.002)
        self.running -= 1


async def plain(queue: Queue, count: int) -> list[Job]:
    return await queue.add_bulk(("a", i) for i in range(count))


# -- the queue as a whole ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3])
async def test_global_concurrency_is_never_exceeded(limit: int, parts: int, queue: Queue, worker_for: WorkerFor):
    meter = Meter()
    await queue.limits.set_concurrency(limit * parts)
    assert (await queue.limits.get()).concurrency == limit * parts
    await queue.add_bulk([("a", None, {"lifo": True} if i % 5 == 0 else {"priority": i % 3}) for i in range(60)])
    workers = [worker_for(meter, concurrency=40) for _ in range(2)]
    recorded = EventRecorder(*workers)
    async with workers[0], workers[1]:
        await recorded.wait("completed", 60)
    assert meter.most == limit


async def test_raising_global_concurrency_takes_effect_immediately(parts: int, queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    await queue.limits.set_concurrency(parts)
    await plain(queue, 4)
    one, two = (worker_for(gate, concurrency=2) for _ in range(2))
    recorded = EventRecorder(one, two)
    async with one, two:
        await gate.next()
        await queue.limits.set_concurrency(3 * parts)
        await gate.next()
        await gate.next()
        await queue.limits.set_concurrency(0)
        await gate.next()
        gate.open()
        await recorded.wait("completed", 4)
    assert (await queue.limits.get()).concurrency is None


async def test_global_rate_limit_overrides_worker_limiters(queue: Queue, worker_for: WorkerFor):
    meter = Meter()
    assert (await queue.limits.get()).rate_limit is None
    await queue.limits.set_rate_limit(5, timedelta(milliseconds=200))
    assert (await queue.limits.get()).rate_limit == RateLimit(5, 200)
    await plain(queue, 20)
    limiter = RateLimit(1000, 1000)
    workers = [worker_for(meter, concurrency=10, limiter=limiter) for _ in range(2)]
    recorded = EventRecorder(*workers)
    async with workers[0], workers[1]:
        await recorded.wait("completed", 20)
    # By the server's clock: handlers of a busy process may begin later than their jobs were fetched.
    jobs = await queue.get_jobs("completed")
    fetched = sorted(job.processed_on for job in jobs if job.processed_on is not None)
    assert len(fetched) == 20
    assert fetched[-1] - fetched[0] >= 550
    assert max(sum(at <= each < at + 150 for each in fetched) for at in fetched) <= 10  # 2 windows
    await queue.limits.remove_rate_limit()
    assert (await queue.limits.get()).rate_limit is None


# -- limits with a time to live ------------------------------------------------------------------------------------


# -- pauses --------------------------------------------------------------------------------------------------------


async def test_rate_limited_worker_leaves_jobs_to_others(queue: Queue, worker_for: WorkerFor):
    gate, other = Gate(), Gate()
    other.open()
    async with worker_for(gate) as worker, worker_for(other):
        worker.rate_limit(60_000)
        jobs = await queue.add_bulk([("a",), ("a", None, {"delay": 20}), ("a", None, {"priority": 1})])
        for job in jobs:
            await job.wait_until_finished()
    assert len(other.begun) == 3


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("source", [{}, {"priority": 3}, {"lifo": True}, {"ordering": "k"}])
async def test_rate_limit_error_counts_no_attempt_and_pauses_the_worker(
    source: Any, in_thread: bool, queue: Queue, worker_for: WorkerFor
):
    met: list[tuple[str, float]] = []
    clock = asyncio.get_running_loop().time

    def handle(job: Job):
        met.append((job.id, clock()))
        if len(met) <= 2:
            raise RateLimitError(timedelta(milliseconds=120))

    async def coroutine(job: Job):
        handle(job)

    job = await queue.add("a", None, attempts=1, **source)
    worker = worker_for(handle if in_thread else coroutine)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("delayed")
        other = await queue.add("b")
        await recorded.wait("completed", 2)
    first = [at for job_id, at in met if job_id == job.id]
    assert first[1] - first[0] >= 0.119
    assert met[1][1] - met[0][1] >= 0.119, "it took another job in its pause"
    stored = await queue.get_job(job.id)
    assert stored is not None
    assert (stored.attempts_made, stored.state, stored.failed_reason) == (0, JobState.COMPLETED, None)
    assert recorded.count["failed"] == recorded.count["retrying"] == 0
    assert other.id in recorded.job_ids("completed")


@pytest.mark.parametrize(("limiter", "pause"), [({"max": 100, "duration": 80}, 0.08), (None, 1.0)])
async def test_default_delay_of_a_rate_limit_error(limiter: Any, pause: float, queue: Queue, worker_for: WorkerFor):
    met: list[float] = []

    async def handle(_: Job):
        met.append(asyncio.get_running_loop().time())
        if len(met) == 1:
            raise RateLimitError

    job = await queue.add("a")
    async with worker_for(handle, limiter=limiter):
        await job.wait_until_finished()
    assert pause - 0.005 <= met[1] - met[0] < pause + 0.5


async def test_invalid_job_signal_fails_the_job(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        raise {"rate": RateLimitError(-5), "data": DelayedError(5, data={1, 2}, replace=True)}[job.name]

    await queue.add_bulk([("rate",), ("data",)])
    worker = worker_for(handle)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("failed", 2)
    assert {type(error).__name__ for _, error in recorded.of("failed")} == {
        "GlideMQValidationError", "SerializationError",
    }  # fmt: skip


# -- later ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("source", [{}, {"priority": 3}, {"lifo": True}, {"ordering": "k"}])
async def test_job_continues_with_its_next_step(
    source: Any, in_thread: bool, worker_for: WorkerFor, queue: Queue, raw: Raw
):
    steps: list[str] = []

    def handle(job: Job) -> str:
        steps.append(job.data.get("step", "one"))
        if "step" not in job.data:
            job.move_to_delayed(20, next_step="two")
        if job.data["step"] == "two":
            job.move_to_delayed(datetime.now(UTC), data={"step": "three", "n": job.data["n"] + 1})
        return "done"

    async def coroutine(job: Job) -> str:
        return handle(job)

    job = await queue.add("a", {"n": 1}, **source)
    async with worker_for(handle if in_thread else coroutine):
        assert await job.wait_until_finished() == "done"
    stored = await queue.get_job(job.id)
    assert stored is not None
    assert (stored.data, stored.attempts_made) == ({"step": "three", "n": 2}, 0)
    assert steps == ["one", "two", "three"]
    assert raw.pending() == []
    assert raw.run("GET", "list-active") in (None, "0")
    assert raw.run("ZCARD", "list-heartbeats") == 0


async def test_compressed_data_stays_compressed(worker_for: WorkerFor, url: str, queue_name: str, resp: RespClient):
    async def handle(job: Job):
        if "step" not in job.data:
            job.move_to_delayed(0, next_step="two")

    async with Queue(queue_name, url, compression="gzip") as queue:
        job = await queue.add("a", {"n": 1})
        async with worker_for(handle, compression="gzip"):
            await job.wait_until_finished()
        assert Raw(resp, queue_name).job(job.id)["data"].startswith("gz:")


@pytest.mark.parametrize(("data", "arguments"), [
    ("text", {"when": 1, "next_step": "two"}),
    ({}, {"when": 1.5}),
    ({}, {"when": -1}),
    ({}, {"when": 1, "next_step": ""}),
    ({}, {"when": datetime(2200, 1, 1, tzinfo=UTC)}),
])  # fmt: skip
async def test_invalid_delay_fails_the_job(data: Any, arguments: Any, queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        job.move_to_delayed(**arguments)

    await queue.add("a", data)
    worker = worker_for(handle)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("failed")
    assert isinstance(recorded.of("failed")[0][1], GlideMQValidationError)


@pytest.mark.parametrize("reason", ["not wanted", KeyError("gone")])
async def test_move_to_failed_skips_retries(reason: Any, queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        job.move_to_failed(reason)

    job = await queue.add("a", None, attempts=5)
    worker = worker_for(handle)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("failed")
    stored = await queue.get_job(job.id)
    assert stored is not None
    assert (stored.attempts_made, stored.failed_reason) == (1, str(reason))


@pytest.mark.parametrize("reason", ["", None, 5, b"x", ValueError, KeyboardInterrupt(), DelayedError(5), "\ud800"])
async def test_invalid_reason_is_rejected_and_the_attempt_continues(reason: Any, queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job) -> str:
        with pytest.raises(GlideMQValidationError, match="reason"):
            job.move_to_failed(reason)
        raise ValueError("went on")

    async with worker_for(handle):
        job = await queue.add("a", attempts=2)
        with pytest.raises(JobFailedError, match="went on"):
            await job.wait_until_finished()
        assert len(await queue.failures.get_attempts(job.id)) == 2, "it was not discarded"


async def test_job_signals_require_the_own_handler(queue: Queue):
    job = await queue.add("a", {}, ordering="k")
    assert job.ordering_key == "k"
    stored = await queue.get_job(job.id)
    assert stored is not None
    assert stored.ordering_key == "k"
    for call in (
        lambda: stored.move_to_delayed(1), lambda: stored.rate_limit_group(1), lambda: stored.move_to_failed("x"),
    ):  # fmt: skip
        with pytest.raises(GlideMQError, match="handler"):
            call()
    with pytest.raises(GlideMQError, match="handler"):
        await stored.report_tokens(1)


# -- tokens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["queue", "worker", "both"])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_no_job_is_fetched_when_the_tokens_are_used_up(
    scope: Any, in_thread: bool, worker_for: WorkerFor, queue: Queue, resp: RespClient, raw: Raw
):
    by_loop: list[int] = []
    by_server: list[int] = []
    clock = asyncio.get_running_loop().time

    def note(job: Job):
        by_loop.append(int(clock() / 0.4))
        by_server.append((job.processed_on or 0) // 400)

    async def handle(job: Job):
        note(job)
        await job.report_tokens(1)
        await job.report_tokens(60)

    def plain_handle(job: Job):
        note(job)
        job.blocking.report_tokens(60)

    limit = TokenLimiter(100, 400, scope)
    jobs = await plain(queue, 4)
    async with worker_for(plain_handle if in_thread else handle, token_limiter=limit):
        for job in jobs:
            await job.wait_until_finished()
    # Two jobs use up a window.
    if scope != "worker":
        assert max(by_server.count(window) for window in by_server) <= 2
    if scope != "queue":
        assert max(by_loop.count(window) for window in by_loop) <= 2
    assert raw.job(jobs[0].id)["tpmTokens"] == "60"
    for key in resp.keys(raw.key("tpm:*").replace("{", "\\{")):
        assert resp.execute("PTTL", key) != -1  # it expires, or has expired already


@pytest.mark.exclude("partitioned", reason="a limit is at least the number of partitions")
async def test_rate_limited_worker_can_be_closed(queue: Queue, worker_for: WorkerFor):
    await plain(queue, 3)
    worker = worker_for(Meter(), limiter=RateLimit(1, 3_600_000))
    recorded = EventRecorder(worker)
    await worker.start()
    await recorded.wait("completed")
    worker.rate_limit(3_600_000)
    await with_timeout(worker.close())
    assert (await queue.get_job_counts()).waiting == 2


async def test_drain_waits_for_rate_limited_jobs(queue: Queue, worker_for: WorkerFor):
    meter = Meter()
    ordering: Any = {"key": "k", "concurrency": 5, "rate_limit": {"max": 1, "duration": 150}}
    await queue.add_bulk(("a", None, {"ordering": ordering}) for _ in range(3))
    await queue.groups.rate_limit("nobody", 3_600_000)
    worker = worker_for(meter)
    await worker.start()
    await with_timeout(worker.drain())
    assert len(meter.begun) == 3


async def test_worker_limiter_bounds_all_workers_that_have_one(
    parts: int, queue: Queue, worker_for: WorkerFor, raw: Raw
):
    jobs = await plain(queue, 9)
    worker = worker_for(Meter(), concurrency=10, limiter={"max": 3 * parts, "duration": 150})
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("completed", 9)
    # The server's times, as a handler may be called later: a window begins with the first job after the last one.
    times = sorted(int(raw.job(job.id)["processedOn"]) for job in jobs)
    windows: list[list[int]] = []
    for time in times:
        if windows and time - windows[-1][0] < 150:
            windows[-1].append(time)
        else:
            windows.append([time])
    assert len(windows) >= 3
    assert max(map(len, windows)) <= 3
    counts = {raw.resp.execute("HGET", f"{base}:rate", "count") for base in raw.bases}
    assert counts - {None} == {str(len(windows[-1]))}


@pytest.mark.parametrize("rate", [False, True])
async def test_worker_that_waits_for_a_temporary_limit_continues_at_its_end(
    parts: int, queue: Queue, worker_for: WorkerFor, rate: bool
):
    gate = Gate()
    if rate:
        await queue.limits.set_rate_limit(parts, 3_600_000, ttl=300)
    else:
        await queue.limits.set_concurrency(parts, ttl=timedelta(milliseconds=300))
    limits = await queue.limits.get()
    assert 0 < ((limits.rate_limit_ttl if rate else limits.concurrency_ttl) or 0) <= 300
    await plain(queue, 3)
    worker = worker_for(gate, concurrency=3)
    recorded = EventRecorder(worker)
    async with worker:
        for _ in range(3):
            await gate.next()  # no job has ended, and nothing was added
        gate.open()
        await recorded.wait("completed", 3)
    assert await queue.limits.get() == GlobalLimits(
        concurrency=None, concurrency_ttl=None, rate_limit=None, rate_limit_ttl=None
    )


@pytest.mark.exclude("partitioned", reason="its lanes have calls that may fetch")
async def test_worker_rate_limit_works_without_a_limiter(queue: Queue, worker_for: WorkerFor):
    meter = Meter()
    worker = worker_for(meter)
    with pytest.raises(GlideMQError):
        worker.rate_limit(10)
    recorded = EventRecorder(worker)
    async with worker:
        await fetching_of(worker).idle.wait()  # no pending call that could fetch a job
        began = asyncio.get_running_loop().time()
        worker.rate_limit(200)
        worker.rate_limit(10)
        await plain(queue, 2)
        await recorded.wait("completed", 2)
    assert meter.begun[0] - began >= 0.19
    assert worker.unresponsive_seconds == 0.0


async def test_tokens_of_failed_attempts_count(worker_for: WorkerFor, queue: Queue, raw: Raw):
    async def handle(job: Job):
        await job.report_tokens(70)
        raise ValueError("no")

    await plain(queue, 2)
    limiter: Any = {"max_tokens": 1000, "duration": 3_600_000, "scope": "queue"}
    worker = worker_for(handle, token_limiter=limiter)
    recorded = EventRecorder(worker)
    async with worker:
        await recorded.wait("failed", 2)
    (key,) = [key for base in raw.bases for key in raw.resp.keys(f"{base}:tpm:*")]
    assert raw.resp.execute("GET", key) == "140"
