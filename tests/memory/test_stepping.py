"""`TestQueue` and `TestWorker`: the test controls time and work."""

import asyncio
import itertools
from datetime import timedelta
from functools import partial

import pytest

import glidemq_py.testing
from glidemq_py import DelayedError, GlideMQError, GlideMQValidationError, Job, JobState, RateLimitError, Worker
from glidemq_py.errors import LeaseLostError, SignalTimeout
from glidemq_py.testing import Clock, MemoryServer, TestQueue, TestWorker, run_until_empty, run_until_idle


@pytest.fixture(params=[None, 3], ids=["plain", "partitioned"], autouse=True)
def partitions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Let the queues of a test have three partitions, too."""
    monkeypatch.setitem(globals(), "TestQueue", partial(glidemq_py.testing.TestQueue, partitions=request.param))


async def double(job: Job[int, int]) -> int:
    return job.data * 2


async def test_jobs_run_only_in_steps():
    async with TestQueue() as queue, queue.worker(double) as worker:
        job = await queue.add("n", 4)
        await asyncio.sleep(0.02)
        assert worker.runs == []
        run = await worker.run_one()
        assert run is not None
        assert (run.job.id, run.outcome, run.result) == (job.id, "completed", 8)
        assert await job.wait_until_finished() == 8
        assert await worker.run_one() is None


async def test_open_test_worker_is_listed_by_get_workers():
    async with TestQueue() as queue:
        async with queue.worker(double):
            queue.clock.advance(timedelta(days=3))
            (found,) = await queue.get_workers()
            assert (found.age, found.active_jobs) == (3 * 86_400_000, 0)
        assert await queue.get_workers() == []


async def test_drain_runs_all_jobs_and_closes():
    async with TestQueue() as queue, queue.worker(double) as worker:
        ready = await queue.add("n", 4)
        delayed = await queue.add("n", 5, delay=60_000)
        await worker.drain()
        assert [run.job.id for run in worker.runs] == [ready.id, delayed.id]
        assert not worker.is_running
        assert await queue.get_workers() == []


@pytest.mark.parametrize("concurrency", [1, 3, 40])
async def test_run_one_runs_one_job(concurrency: int):
    async with TestQueue() as queue, queue.worker(double, concurrency=concurrency) as worker:
        await queue.add_bulk([("n", number) for number in range(5)])
        assert (await worker.run_one()).result == 0  # type: ignore[union-attr]
        assert (await queue.get_job_counts()).waiting == 4
        assert [run.result for run in await worker.run_until_idle()] == [2, 4, 6, 8]


async def test_handlers_run_concurrently():
    both = asyncio.Barrier(2)

    async def handler(_: Job):
        await both.wait()

    async with TestQueue() as queue, queue.worker(handler, concurrency=2) as worker:
        await queue.add_bulk([("n",), ("n",)])
        async with asyncio.timeout(120):
            assert len(await worker.run_until_idle()) == 2


async def test_plain_functions_run_in_threads():
    async with TestQueue() as queue, queue.worker(lambda job: job.data + 1) as worker:
        await queue.add("n", 1)
        assert [run.result for run in await worker.run_until_idle()] == [2]


async def test_delayed_job_runs_when_the_clock_reaches_it():
    async with TestQueue() as queue, queue.worker(double) as worker:
        job = await queue.add("n", 1, delay=timedelta(hours=1))
        assert await worker.run_until_idle() == []
        queue.clock.advance(timedelta(hours=1) - timedelta(milliseconds=1))
        assert await worker.run_until_idle() == []
        queue.clock.advance(1)
        (run,) = await worker.run_until_idle()
        assert run.job.id == job.id
        assert run.job.processed_on == job.timestamp + 3_600_000


async def test_retries_wait_for_their_backoff():
    moments: list[int] = []

    async def handler(job: Job) -> str:
        moments.append(queue.clock.now())
        if job.attempts_made < 2:
            raise ValueError("not yet")
        return "done"

    async with TestQueue() as queue, queue.worker(handler) as worker:
        await queue.add("n", attempts=5, backoff={"type": "exponential", "delay": 1000})
        runs = await worker.run_until_empty()
    assert [run.outcome for run in runs] == ["retrying", "retrying", "completed"]
    assert isinstance(runs[0].error, ValueError)
    assert [later - earlier for earlier, later in itertools.pairwise(moments)] == [1000, 2000]


async def test_job_fails_after_its_last_attempt():
    async def handler(_: Job):
        raise ValueError("broken")

    async with TestQueue() as queue, queue.worker(handler) as worker:
        job = await queue.add("n", attempts=2)
        assert [run.outcome for run in await worker.run_until_empty()] == ["retrying", "failed"]
        assert await job.get_state() == "failed"
        await job.retry()
        assert len(await worker.run_until_idle()) == 2


async def test_clock_ends_delays_and_worker_rate_limits():
    async def handler(job: Job) -> str:
        if job.name == "later" and job.processed_on == start:
            raise DelayedError(60_000)
        if job.name == "limited" and job.processed_on == start:
            raise RateLimitError(30_000)
        return job.name

    async with TestQueue() as queue, queue.worker(handler) as worker:
        start = queue.clock.now()
        await queue.add("later")
        await queue.add("limited")
        async with asyncio.timeout(120):
            runs = await worker.run_until_empty()
        assert [(run.job.name, run.outcome) for run in runs] == [
            ("later", "delayed"), ("limited", "delayed"), ("limited", "completed"), ("later", "completed"),
        ]  # fmt: skip
        assert queue.clock.now() == start + 60_000


@pytest.mark.parametrize("partitions", [None], indirect=True)
async def test_queue_limits_use_the_clock():
    async with TestQueue() as queue, queue.worker(double, concurrency=10) as worker:
        await queue.limits.set_rate_limit(2, 1000)
        await queue.add_bulk([("n", number) for number in range(6)])
        start = queue.clock.now()
        assert len(await worker.run_until_idle()) == 2
        assert len(await worker.run_until_empty()) == 4
        assert 2000 <= queue.clock.now() - start <= 3000


async def test_endless_work_raises_an_error():
    async def handler(_: Job):
        raise DelayedError(1000)

    async with TestQueue() as queue, queue.worker(handler) as worker:
        await queue.add("again")
        with pytest.raises(GlideMQError, match="jobs are still due"):
            await worker.run_until_empty(limit=5)


async def test_endless_ready_work_raises_an_error():
    async with TestQueue() as queue:

        async def again(job: Job):
            await queue.add("again")

        async with queue.worker(again, concurrency=3) as worker:
            await queue.add("n")
            for step in (worker.run_until_idle(5), worker.run_until_empty(5), run_until_idle(worker, limit=5)):
                with pytest.raises(GlideMQError, match="jobs are still ready"):
                    await step
            with pytest.raises(GlideMQValidationError, match="limit"):
                await worker.run_until_idle(0)
            assert (await worker.run_one()) is not None  # no state is left behind


async def test_waiting_for_children_is_recorded():
    async with TestQueue() as queue:

        async def handle(job: Job) -> object:
            if job.name == "child":
                return job.data
            if job.data is None:
                await queue.add("child", 7, parent=job)
                await job.move_to_waiting_children(data="asked")
            return await job.get_children_values()

        async with queue.worker(handle) as worker:
            await queue.add("parent")
            run = await worker.run_one()
            assert run is not None
            assert (run.outcome, run.error) == ("waiting-children", None)
            assert [run.outcome for run in await worker.run_until_idle()] == ["completed", "completed"]
            assert list(worker.runs[-1].result.values()) == [7]


async def test_signals_and_their_timeouts():
    async def handle(job: Job) -> object:
        return (await job.wait_for_signal("go", timeout=60_000)).data

    async with TestQueue() as queue, queue.worker(handle) as worker:
        one, other = await queue.add_bulk([("n", 1), ("n", 2)])
        assert [run.outcome for run in await worker.run_until_idle()] == ["suspended"] * 2
        assert await queue.signal(one.id, "go", "gone")
        assert [run.result for run in await worker.run_until_idle()] == ["gone"]
        queue.clock.advance(timedelta(minutes=1))
        (run,) = await worker.run_until_idle()
        assert isinstance(run.error, SignalTimeout)
        assert await other.get_state() == "failed"


async def test_batches_are_collected_as_in_production():
    sizes: list[int] = []

    async def handle(jobs: list[Job]) -> list[object]:
        sizes.append(len(jobs))
        return [job.data for job in jobs]

    async with TestQueue() as queue, queue.worker(handle, batch={"size": 3}) as worker:
        await queue.add_bulk([("n", n) for n in range(5)])
        assert [run.result for run in await worker.run_until_idle()] == [0, 1, 2, 3, 4]
    assert sizes == [3, 2]


async def test_run_until_empty_steps_several_workers():
    server = MemoryServer(Clock())
    first, second = TestQueue("first", server), TestQueue("second", server)

    async def pass_on(job: Job):
        await second.add("passed", job.data, delay=500)

    async with first, second, first.worker(pass_on) as one, second.worker(double) as two:
        await first.add("n", 21)
        assert [run.job.name for run in await run_until_idle(one, two)] == ["n"]
        assert [run.result for run in await run_until_empty(one, two)] == [42]


async def test_dead_letter_entries_are_delivered():
    async def handler(_: Job):
        raise ValueError("broken")

    server = MemoryServer(Clock())
    async with (
        TestQueue("work", server, dead_letter_queue="letters") as queue,
        TestQueue("letters", server) as letters,
        queue.worker(handler) as worker,
    ):
        await queue.add("n", {"a": 1})
        await worker.run_until_idle()
        await letters.assert_enqueued(count=1)


async def test_stalled_job_is_recovered():
    async with TestQueue() as queue, queue.worker(double) as worker:
        await queue.add("n", 3)
        started = asyncio.Event()

        async def hang(_: Job):
            started.set()
            await asyncio.Event().wait()

        dead = queue.worker(hang)
        step = asyncio.create_task(dead.run_one())
        await started.wait()
        assert await worker.recover_stalled() == []
        queue.clock.advance(30_000)
        (recovered,) = await worker.recover_stalled()
        assert [run.job.id for run in await worker.run_until_idle()] == [recovered]
        step.cancel()
        await dead.close(force=True)


async def test_service_worker_runs_in_test():
    service = Worker("emails", concurrency=2)

    @service.task(attempts=3)
    async def send(to: str, subject: str = "hello") -> str:
        return f"{subject} {to}"

    async with TestQueue("emails") as queue, TestWorker.of(service, queue) as worker:
        await send.add("ann")
        await queue.assert_enqueued("send", contains={"to": "ann"}, count=1)
        assert [run.result for run in await worker.run_until_idle()] == ["hello ann"]


async def test_lifespan_is_entered_and_exited():
    from contextlib import asynccontextmanager

    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Worker):
        seen.append("in")
        yield "context"
        seen.append("out")

    async with TestQueue() as queue:
        async with queue.worker(lambda job: job.context, lifespan=lifespan) as worker:
            await queue.add("n")
            assert [run.result for run in await worker.run_until_idle()] == ["context"]
        assert seen == ["in", "out"]


@pytest.mark.parametrize("partitions", [None], indirect=True)
@pytest.mark.parametrize("scope", ["queue", "worker", "both"])
async def test_token_limit_uses_the_clock(scope: str):
    async def use(job: Job):
        await job.report_tokens(60)

    limit = {"max_tokens": 100, "duration": 60_000, "scope": scope}
    async with TestQueue() as queue, queue.worker(use, token_limiter=limit) as worker:
        await queue.add_bulk([("n",)] * 6)
        began = queue.clock.now()
        assert len(await worker.run_until_idle()) == 2
        queue.clock.advance(60_000)  # by the test itself
        assert len(await worker.run_until_idle()) == 2
        assert len(await worker.run_until_empty()) == 2
        assert queue.clock.now() - began <= 180_000


async def test_lease_expires_when_the_clock_is_advanced():
    async with TestQueue() as queue:
        job = await queue.add("n", 4, attempts=2)
        (lease,) = await queue.fetch(1, lock_duration=5_000, count_expiry=True)
        queue.clock.advance(4_999)
        assert await queue.fetch(1) == []
        queue.clock.advance(1)
        (again,) = await queue.fetch(1)
        assert (again.id, again.job.attempts_made) == (job.id, 1)
        with pytest.raises(LeaseLostError):
            await lease.complete()
        await again.complete("done")
        assert await job.get_state() is JobState.COMPLETED


async def test_timeout_of_the_job_ends_a_lease():
    async with TestQueue() as queue:
        await queue.add("n", timeout=1_000)
        (lease,) = await queue.fetch(1)
        queue.clock.advance(1_000)
        with pytest.raises(LeaseLostError):
            await lease.complete()
        assert (await queue.get_job_counts()).failed == 1


async def handle(job: Job) -> str:
    return job.name


async def test_schedulers_fire_when_the_clock_advances():
    async with TestQueue("reports") as queue, TestWorker(queue, handle) as worker:
        await queue.schedulers.upsert("hourly", every=3_600_000, limit=2)
        await queue.schedulers.upsert("crawl", repeat_after_complete=60_000)
        assert [run.result for run in await worker.run_until_idle()] == ["crawl"]
        queue.clock.advance(60_000)
        assert [run.result for run in await worker.run_until_idle()] == ["crawl"]
        queue.clock.advance(3_540_000)
        assert sorted(str(run.result) for run in await worker.run_until_idle()) == ["crawl", "hourly"]
        queue.clock.advance(3_600_000)
        assert sorted(str(run.result) for run in await worker.run_until_empty()) == ["crawl", "hourly"]
        assert [each.name for each in await queue.schedulers.get_all()] == ["crawl"]
