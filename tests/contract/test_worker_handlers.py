"""Handlers: coroutine functions and plain ones, concurrency, the running job, and listeners."""

import asyncio
import contextlib
import contextvars
import functools
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, Worker, current_job
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, until, with_timeout


async def test_a_plain_handler_runs_in_a_thread(queue: Queue, worker_for: WorkerFor):
    threads: set[threading.Thread] = set()

    def handle(job: Job) -> int:
        threads.add(threading.current_thread())
        return job.data + 1

    async with worker_for(handle, concurrency=4):
        jobs = await queue.add_bulk([("n", n) for n in range(20)])
        assert [await job.wait_until_finished() for job in jobs] == list(range(1, 21))
    assert threading.main_thread() not in threads
    assert 1 <= len(threads) <= 4


class _Callable:
    async def __call__(self, job: Job) -> str:
        return f"called {job.data}"


async def _with_extra(extra: str, job: Job) -> str:
    return extra + job.data


@pytest.mark.parametrize(
    ("handler", "result"), [(_Callable(), "called x"), (functools.partial(_with_extra, "+"), "+x")]
)
async def test_objects_and_partials_are_handlers_too(queue: Queue, worker_for: WorkerFor, handler: Any, result: str):
    async with worker_for(handler):
        assert await queue.add_and_wait("n", "x") == result


async def test_plain_handler_that_returns_a_coroutine_fails_with_a_hint(queue: Queue, worker_for: WorkerFor):
    async def later(): ...

    async with worker_for(lambda job: later()) as worker:
        recorded = EventRecorder(worker)
        await queue.add("n")
        await recorded.wait("failed")
        assert "async def" in str(recorded.of("failed")[0][1])


@pytest.mark.parametrize("bad", [None, 7, "handler"])
def test_handler_must_be_callable(bad: Any, queue_name: str):
    if bad is None:
        return
    with pytest.raises(GlideMQValidationError, match="handler"):
        Worker(queue_name, bad)


async def test_concurrency_is_reached_and_never_exceeded(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    async with worker_for(gate, concurrency=5) as worker:
        recorded = EventRecorder(worker)
        await queue.add_bulk([("n", n) for n in range(12)])
        for _ in range(5):
            await gate.next()
        assert worker.active_count == 5
        counts = await queue.get_job_counts()
        assert (counts.active, counts.waiting) == (5, 7)
        gate.open()
        await recorded.wait("completed", 12)
    assert len(gate.begun) == 12


@pytest.mark.parametrize("concurrency", [1, 5, 40])
async def test_threads_reach_the_concurrency(queue: Queue, worker_for: WorkerFor, concurrency: int):
    together = threading.Barrier(concurrency)

    def handle(job: Job):
        together.wait(100)

    async with worker_for(handle, concurrency=concurrency):
        jobs = await queue.add_bulk([("n", None)] * concurrency)
        for job in jobs:
            await job.wait_until_finished()


async def test_context_variables_do_not_leak_from_job_to_job(queue: Queue, worker_for: WorkerFor):
    """Each handler starts from the context that the worker was started in."""
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
    seen: list[str] = []

    async def handle(job: Job):
        seen.append(user.get())
        user.set(job.id)
        await job.get_state()  # long enough for the exchange loop to come to rest

    user.set("starter")
    async with worker_for(handle, concurrency=2) as worker:
        recorded = EventRecorder(worker)
        for _ in range(3):
            await queue.add_bulk([("n", n) for n in range(10)])
        await recorded.wait("completed", 30)
    assert set(seen) == {"starter"}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_current_job_and_the_log_records_of_a_handler(
    queue: Queue, worker_for: WorkerFor, kind: str, caplog: pytest.LogCaptureFixture
):
    log = logging.getLogger("handlers")
    caplog.set_level(logging.INFO, "handlers")

    def look(job: Job) -> str | None:
        log.info("in job %s", job.data)
        found = current_job()
        return None if found is None else found.id

    async def look_async(job: Job) -> str | None:
        await asyncio.sleep(0)
        return look(job)

    handler = look if kind == "thread" else look_async
    async with worker_for(handler, concurrency=3):
        jobs = await queue.add_bulk([(f"name-{n}", n) for n in range(6)])
        for job in jobs:
            assert await job.wait_until_finished() == job.id
        assert current_job() is None
        log.info("outside")
    labels = {record.getMessage(): (record.job_id, record.job_name) for record in caplog.records}  # type: ignore[attr-defined]
    assert labels["outside"] == ("", "")
    for n, job in enumerate(jobs):
        assert labels[f"in job {n}"] == (job.id, f"name-{n}")


async def test_lifespan_surrounds_the_worker_and_reaches_the_handlers(
    worker_for: WorkerFor, queue: Queue, queue_name: str
):
    order: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(worker: Worker) -> AsyncIterator[dict[str, str]]:
        order.append(f"open {worker.queue_name == queue_name}")
        yield {"pool": "p"}
        order.append("close")

    async def handle(job: Job) -> str:
        order.append("job")
        return str(job.context["pool"])

    async with worker_for(handle, lifespan=lifespan):
        assert await queue.add_and_wait("n") == "p"
    assert order == ["open True", "job", "close"]
    job = await queue.add("n")
    assert job.context is None


async def test_failing_lifespan_does_not_start_the_worker(worker_for: WorkerFor):
    @contextlib.asynccontextmanager
    async def lifespan(worker: Worker) -> AsyncIterator[None]:
        raise RuntimeError("no pool")
        yield

    async def handle(job: Job): ...

    worker = worker_for(handle, lifespan=lifespan)
    with pytest.raises(RuntimeError, match="no pool"):
        await worker.start()
    assert not worker.is_running
    await with_timeout(worker.close())


async def test_events_of_a_workers_life(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job) -> str:
        if job.data == "bad" or (job.data == "once" and job.attempts_made == 0):
            raise ValueError(job.data)
        return "fine"

    worker = worker_for(handle)
    recorded = EventRecorder(worker)
    good = await queue.add("n", "good")
    once = await queue.add("n", "once", attempts=2)
    bad = await queue.add("n", "bad")
    async with worker:
        assert worker.is_running
        await recorded.until(lambda recorded: recorded.count["completed"] + recorded.count["failed"] == 3)
        await recorded.wait("drained")
    assert not worker.is_running
    assert sorted(recorded.job_ids("active")) == sorted([good.id, once.id, once.id, bad.id])
    assert sorted(recorded.job_ids("completed")) == sorted([good.id, once.id])
    assert {args[1] for args in recorded.of("completed")} == {"fine"}
    ((job, error),) = recorded.of("retrying")
    assert (job.id, repr(error)) == (once.id, "ValueError('once')")
    ((job, error),) = recorded.of("failed")
    assert (job.id, repr(error)) == (bad.id, "ValueError('bad')")
    assert [name for name, _ in recorded.calls][-2:] == ["closing", "closed"]
    assert recorded.count["closing"] == recorded.count["closed"] == 1
    assert recorded.of("error") == []


async def test_drained_is_emitted_once_and_only_after_a_job(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job): ...

    async with worker_for(handle, concurrency=3) as worker:
        recorded = EventRecorder(worker)
        for run in (1, 2):
            await queue.add_bulk([("n", n) for n in range(10)])
            await recorded.wait("drained", run)
            assert recorded.count["completed"] == 10 * run
        assert recorded.count["drained"] == 2


async def test_failing_listeners_are_logged_and_async_ones_are_awaited(
    worker_for: WorkerFor, queue: Queue, queue_name: str, caplog: pytest.LogCaptureFixture
):
    ended: list[str] = []
    go_on = asyncio.Event()

    async def handle(job: Job): ...

    def broken(job: Job, result: Any):
        raise RuntimeError("listener")

    async def slow(job: Job, result: Any):
        await go_on.wait()
        ended.append(job.id)

    async with worker_for(handle) as worker:
        recorded = EventRecorder()
        worker.on("completed", broken)
        worker.on("completed", slow)
        recorded.listen(worker)
        job = await queue.add("n")
        await recorded.wait("completed")
        go_on.set()
    assert ended == [job.id]
    worker.off("completed", slow)
    assert f"{worker!r}: listener of event 'completed' failed" in caplog.text
    with pytest.raises(GlideMQValidationError, match="event"):
        worker.on("complete", broken)  # type: ignore[arg-type]
    with pytest.raises(GlideMQValidationError, match="listener"):
        worker.on("completed", 5)  # type: ignore[type-var]
    with pytest.raises(GlideMQValidationError, match="lifespan"):
        Worker(queue_name, print, lifespan=5)  # type: ignore[arg-type]


async def test_log_records_of_the_worker_have_no_job_id(
    raw: Raw, queue: Queue, worker_for: WorkerFor, caplog: pytest.LogCaptureFixture
):
    async def handle(job: Job):
        # Found by the exchange that reports this job, in the context of the task that requested the exchange.
        raw.push(nonsense="1")
        await job.get_state()

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        await queue.add("n")
        await recorded.wait("completed")
        await queue.add("n")
        await recorded.wait("completed", 2)
        # A partition that has neither of the jobs is fetched from beside them.
        await with_timeout(until(lambda: "set aside" in caplog.text))
    (first, *_) = [record for record in caplog.records if "set aside" in record.getMessage()]
    assert first.job_id == ""  # type: ignore[attr-defined]
