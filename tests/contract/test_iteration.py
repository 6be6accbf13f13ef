"""Jobs of many items continue after the last stored cursor: after a deploy, a failure, a crash."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError
from glidemq_py.errors import GlideMQError, JobInterruptedError, StaleAttemptError
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.inside import link_of
from tests.server.worker_support import WorkerFor, until

pytestmark = pytest.mark.timeout(100)


async def numbers(after: int | None) -> AsyncIterator[tuple[int, int]]:
    for n in range((after or 0) + 1, 11):
        yield n, n * n


SQUARES = [n * n for n in range(1, 11)]


async def test_every_item_once_and_no_cursor_is_left(queue: Queue, worker_for: WorkerFor):
    seen: list[int] = []

    async def handle(job: Job) -> int:
        assert await job.get_cursor() is None
        seen.extend([item async for item in job.iterate(numbers)])
        assert await job.get_cursor() is None
        return len(seen)

    async with worker_for(handle):
        assert await queue.add_and_wait("job") == 10
    assert seen == SQUARES


async def test_plain_loop_in_a_coroutine_is_rejected(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        list(job.iterate(numbers))

    async with worker_for(handle, log_failures=False):
        with pytest.raises(JobFailedError, match="use `async for`"):
            await queue.add_and_wait("job")


async def test_a_retry_continues_and_a_completed_loop_is_not_repeated(queue: Queue, worker_for: WorkerFor):
    seen: list[int] = []
    failures = iter([4, "end", "never"])
    problem: Any = next(failures)

    async def handle(job: Job) -> str:
        nonlocal problem
        async for item in job.iterate(numbers, checkpoint_interval=0):
            if item == problem:
                problem = next(failures)
                raise ValueError(item)
            seen.append(item)
        if problem == "end":
            problem = next(failures)
            raise ValueError("after the loop")
        return "done"

    async with worker_for(handle):
        assert await queue.add_and_wait("job", attempts=3) == "done"
    assert seen == SQUARES


async def test_a_completed_job_that_is_requeued_starts_anew(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job) -> list[int]:
        return [item async for item in job.iterate(numbers)]

    async with worker_for(handle):
        job = await queue.add("job")
        assert await job.wait_until_finished() == SQUARES
        await job.requeue()
        assert await job.wait_until_finished() == SQUARES
        assert await queue.jobs.requeue_completed() == 1
        assert await job.wait_until_finished() == SQUARES


async def test_a_source_that_fails_keeps_the_items_before(queue: Queue, worker_for: WorkerFor):
    starts: list[int | None] = []

    async def flaky(after: int | None) -> AsyncIterator[tuple[int, int]]:
        starts.append(after)
        async for pair in numbers(after):
            if pair[0] == 6 and len(starts) == 1:
                raise ConnectionError("database")
            yield pair

    async def handle(job: Job) -> list[int]:
        return [item async for item in job.iterate(flaky, checkpoint_interval=60_000)]

    async with worker_for(handle):
        assert await queue.add_and_wait("job", attempts=2) == SQUARES[5:]
    assert starts == [None, 5]


def without_parameters() -> list[Any]:
    return []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (lambda cursor: 5, "'source' = .*: must return an iterator, not 5"),
        (lambda cursor: [1, 2], "'source' = 1: must yield pairs \\(cursor, item\\)"),
        (lambda cursor: [(object(), 1)], "'cursor'"),
        (lambda cursor: [(None, 1)], "'cursor' = None: must not be None, which means the beginning"),
        (lambda cursor: [((1, 2), 1)], "'cursor' = \\(1, 2\\): must be JSON that reads back as it is"),
        (lambda cursor: [("x" * 70_000, 1)], "'cursor'.*65,?536"),
        (without_parameters, "'source' = .*: must be a callable with the parameters \\(cursor\\)"),
    ],
)
async def test_a_wrong_source_fails_the_job_with_a_reason(
    queue: Queue, worker_for: WorkerFor, source: Any, problem: str
):
    async def handle(job: Job):
        async for _ in job.iterate(source):
            pass

    async with worker_for(handle):
        job = await queue.add("job")
        with pytest.raises(JobFailedError, match=problem):
            await job.wait_until_finished()


async def test_the_cursor_is_stored_while_the_source_waits(queue: Queue, worker_for: WorkerFor):
    stored = asyncio.Event()

    async def slow(after: int | None) -> AsyncIterator[tuple[int, int]]:
        yield 1, 1
        await stored.wait()

    async def handle(job: Job):
        async for _ in job.iterate(slow, checkpoint_interval=50):
            pass

    async with worker_for(handle):
        job = await queue.add("job")
        while await job.get_cursor() != 1:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)
        stored.set()
        await job.wait_until_finished()


async def test_a_wrong_cursor_keeps_the_items_before(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        async for _ in job.iterate(lambda _: [(1, "one"), (object(), "bad")], checkpoint_interval=60_000):
            pass

    async with worker_for(handle):
        job = await queue.add("job")
        with pytest.raises(JobFailedError, match="cursor"):
            await job.wait_until_finished()
        assert await job.get_cursor() == 1


async def raise_the_signal(job: Job):
    raise JobInterruptedError


async def iterate_twice(job: Job):
    async for _ in job.iterate(numbers):
        break
    job.iterate(numbers)


def iterate_over_an_async_source(job: Job):
    for _ in job.blocking.iterate(numbers):
        pass


async def iterate_with_a_negative_interval(job: Job):
    job.iterate(numbers, checkpoint_interval=-1)


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (iterate_twice, "once per attempt"),
        (iterate_over_an_async_source, "must not be async in a plain handler"),
        (raise_the_signal, "JobInterruptedError is raised by the loop over Job.iterate, not by handlers"),
        (iterate_with_a_negative_interval, "'checkpoint_interval' = -1"),
    ],
)
async def test_misuse_fails_the_job_with_a_reason(queue: Queue, worker_for: WorkerFor, handler: Any, problem: str):
    async with worker_for(handler):
        job = await queue.add("job")
        with pytest.raises(JobFailedError, match=problem):
            await job.wait_until_finished()


async def test_batch_handlers_cannot_iterate(queue: Queue, worker_for: WorkerFor):
    async def handle(jobs: list[Job]) -> list[None]:
        jobs[0].iterate(numbers)
        return [None]

    worker = worker_for(handle, batch={"size": 2, "timeout": 10})
    async with worker:
        job = await queue.add("job")
        with pytest.raises(JobFailedError, match="iterate is for handlers of one job"):
            await job.wait_until_finished()


async def test_jobs_outside_handlers_have_no_items(url: Any, queue: Queue):
    job = await queue.add("job")
    with pytest.raises(GlideMQError, match="iterate may only be called by the handler"):
        job.iterate(numbers)


def plain_numbers(after: int | None) -> Iterator[tuple[int, int]]:
    for n in range((after or 0) + 1, 11):
        yield n, n * n


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_another_worker_continues_when_one_closes(queue: Queue, worker_for: WorkerFor, kind: str):
    seen: list[int] = []
    jobs: list[Job] = []
    third, goes_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def handle(job: Job) -> str:
        jobs.append(job)
        async for item in job.iterate(numbers):
            seen.append(item)
            if item == 9:
                third.set()
                await goes_on.wait()
        return "done"

    def handle_in_thread(job: Job) -> str:
        jobs.append(job)
        for item in job.blocking.iterate(plain_numbers):
            seen.append(item)
            if item == 9:
                loop.call_soon_threadsafe(third.set)
                asyncio.run_coroutine_threadsafe(goes_on.wait(), loop).result(100)
        return "done"

    handler: Any = handle if kind == "coroutine" else handle_in_thread
    first = worker_for(handler)
    async with first:
        job = await queue.add("job")
        await third.wait()
        closing = asyncio.create_task(first.close())
        await until(lambda: link_of(jobs[0]).is_closing)
        goes_on.set()
        await closing
    assert seen == SQUARES[:3]
    assert await job.get_state() == "waiting"
    assert await job.get_cursor() == 3
    async with worker_for(handler):
        assert await job.wait_until_finished() == "done"
    assert (await queue.get_job(job.id)).attempts_made == 0  # type: ignore[union-attr]
    assert seen == SQUARES


@pytest.mark.exclude("partitioned", reason="the lanes go by the time that the test sets")
async def test_the_cursor_is_stored_once_per_interval(
    raw: Raw, queue: Queue, worker_for: WorkerFor, monkeypatch: pytest.MonkeyPatch
):
    now = 0.0
    monkeypatch.setattr("glidemq_py._job.iteration.time.monotonic", lambda: now)
    stored: Any = []

    async def handle(job: Job):
        nonlocal now
        async for _ in job.iterate(numbers, checkpoint_interval=1_000):
            now += 0.4
            stored.append(await job.get_cursor())

    async with worker_for(handle):
        job = await queue.add("job")
        await job.wait_until_finished()
        assert raw.job(job.id)["cursor"] == '{"done":true}'
    assert stored == [None, None, None, 3, 3, 3, 6, 6, 6, 9]


async def test_an_attempt_that_lost_its_job_stops(raw: Raw, queue: Queue, worker_for: WorkerFor):
    problems: list[BaseException] = []
    ended = asyncio.Event()

    async def handle(job: Job):
        try:
            async for item in job.iterate(numbers, checkpoint_interval=0):
                if item == 4:
                    raw.run("HINCRBY", f"job:{job.id}", "fence", "1")
        except GlideMQError as error:
            problems.append(error)
            raise
        finally:
            ended.set()

    async with worker_for(handle):
        await queue.add("job")
        await ended.wait()
    assert [type(problem) for problem in problems] == [StaleAttemptError]


async def test_a_caught_interruption_releases_the_job(
    queue: Queue, worker_for: WorkerFor, caplog: pytest.LogCaptureFixture
):
    jobs: list[Job] = []
    entered, goes_on = asyncio.Event(), asyncio.Event()

    async def handle(job: Job) -> str:
        jobs.append(job)
        try:
            async for _ in job.iterate(numbers):
                entered.set()
                await goes_on.wait()
        except Exception:
            return "caught"
        return "done"

    worker = worker_for(handle)
    async with worker:
        job = await queue.add("job")
        await entered.wait()
        closing = asyncio.create_task(worker.close())
        await until(lambda: link_of(jobs[0]).is_closing)
        goes_on.set()
        await closing
    assert await job.get_state() == "waiting"
    assert "caught JobInterruptedError (result 'caught'" in caplog.text
    async with worker_for(handle):
        assert await job.wait_until_finished() == "done"


async def test_generators_are_closed_when_interrupted(queue: Queue, worker_for: WorkerFor):
    closed: list[str] = []
    jobs: list[Job] = []
    entered, goes_on = asyncio.Event(), asyncio.Event()

    async def with_connection(after: int | None) -> AsyncIterator[tuple[int, int]]:
        try:
            async for pair in numbers(after):
                yield pair
        finally:
            closed.append("connection")

    interrupted: list[str] = []

    async def handle(job: Job):
        jobs.append(job)
        try:
            async for _ in job.iterate(with_connection):
                entered.set()
                await goes_on.wait()
        except JobInterruptedError as signal:
            interrupted.append(str(signal))
            raise

    worker = worker_for(handle)
    async with worker:
        await queue.add("job")
        await entered.wait()
        closing = asyncio.create_task(worker.close())
        await until(lambda: link_of(jobs[0]).is_closing)
        goes_on.set()
        await closing
    assert closed == ["connection"]
    assert interrupted == ["The worker is closing; the job is released, and another worker continues it"]
