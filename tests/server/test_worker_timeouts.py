"""Timeouts of jobs: an async handler is cancelled; a handler in a thread continues, but its attempt has ended."""

import asyncio
import threading
import time
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError, Queue, Worker
from glidemq_py._worker import timeouts
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder, Gate, Raw, until, with_timeout


async def test_an_async_handler_is_cancelled(core_url: str, core_resp: RespClient, queue_name: str):
    gate = Gate()
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, gate, core_url) as worker:
        job = await queue.add("n", timeout=40)
        with pytest.raises(JobFailedError) as caught:
            await job.wait_until_finished()
        assert caught.value.failed_type == "JobTimeoutError"
        assert "40 ms" in caught.value.failed_reason
        assert gate.cancelled == 1
        assert gate.begun[0].cancelled.is_set()
        assert worker.active_count == 0
        assert Raw(core_resp, queue_name).event_names(job.id) == ["added", "failed"]


async def test_timeout_counts_an_attempt_and_the_next_one_can_succeed(url: str, queue_name: str):
    async def handle(job: Job) -> int:
        if job.attempts_made == 0:
            await asyncio.Event().wait()
        return job.attempts_made

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        assert await queue.add_and_wait("n", timeout=30, attempts=2) == 1


@pytest.mark.parametrize("batch", [None, {"size": 1}], ids=["single", "batch"])
async def test_a_handler_that_is_cancelled_before_its_first_step_frees_its_slot(url: str, queue_name: str, batch: Any):
    async def handle(jobs: Any) -> Any:
        return None if batch is None else [None] * len(jobs)

    worker = Worker(queue_name, handle, url, batch=batch)

    def cancel(job: Job) -> None:
        if job.name == "cancelled":
            asyncio.get_running_loop().call_soon(worker.cancel_job, job.id)  # before the first step of its task

    worker.on("active", cancel)
    async with Queue(queue_name, url) as queue, worker:
        cancelled = await queue.add("cancelled")
        with pytest.raises(JobFailedError, match="revoked"):
            await cancelled.wait_until_finished()
        assert await queue.add_and_wait("next", wait_timeout=20_000) is None
        assert worker.active_count == 0


async def test_handler_that_ends_in_time_is_not_cancelled(url: str, queue_name: str):
    async def handle(job: Job) -> str:
        await asyncio.sleep(0)
        return "quick"

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", timeout=60_000)
        assert await job.wait_until_finished() == "quick"
        await recorded.wait("completed")
        assert not recorded.of("completed")[0][0].cancelled.is_set()


async def test_handler_that_ignores_cancellation_keeps_its_slot_but_its_result_is_discarded(
    url: str, resp: RespClient, queue_name: str
):
    stubborn = asyncio.Event()
    began: list[str] = []

    async def handle(job: Job) -> str:
        began.append(job.id)
        if job.data == "stubborn":
            while not stubborn.is_set():
                try:
                    await stubborn.wait()
                except asyncio.CancelledError:
                    continue
            return "too late"
        return "fine"

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        late = await queue.add("n", "stubborn", timeout=30)
        await recorded.wait("failed")
        other = await queue.add("n", "other")
        assert worker.active_count == 1
        assert await other.is_waiting()
        stubborn.set()
        assert await other.wait_until_finished() == "fine"
        assert began == [late.id, other.id]
        assert await late.is_failed()
        assert Raw(resp, queue_name).event_names(late.id) == ["added", "failed"]


async def stubborn_until(opened: asyncio.Event) -> None:
    while not opened.is_set():
        try:
            await opened.wait()
        except asyncio.CancelledError:
            continue


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == timeouts.__name__]


@pytest.mark.parametrize("why", ["JobTimeoutError", "JobRevokedError"])
async def test_handler_that_ignores_cancellation_is_logged(
    url: str, queue_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, why: str
):
    monkeypatch.setattr(timeouts, "_END_S", 0.02)
    opened, began = asyncio.Event(), asyncio.Event()

    async def handle(job: Job) -> None:
        began.set()
        if job.name == "obedient":
            await asyncio.Event().wait()
        await stubborn_until(opened)

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        await queue.add("obedient", timeout=10)
        await recorded.wait("failed")
        began.clear()
        job = await queue.add("stubborn", timeout=30 if why == "JobTimeoutError" else None)
        await with_timeout(began.wait())
        if why == "JobRevokedError":
            assert worker.cancel_job(job.id)
        await with_timeout(until(lambda: warnings_of(caplog)))
        opened.set()
    assert warnings_of(caplog) == [
        f"queue {queue_name!r}: the handler of job {job.id} 'stubborn' has not ended 0.02 s after it was cancelled "
        f"({why}); it occupies its slot until it returns (a handler must not suppress CancelledError)"
    ]


async def test_batch_handler_that_ignores_cancellation_is_logged_once(
    url: str, queue_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(timeouts, "_END_S", 0.02)
    opened = asyncio.Event()

    async def handle(jobs: list[Job]) -> list[None]:
        await stubborn_until(opened)
        return [None] * len(jobs)

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", n, {"timeout": 30 + 20 * n}) for n in range(3)])
        async with Worker(queue_name, handle, url, batch={"size": 3}):
            await with_timeout(until(lambda: warnings_of(caplog)))
            opened.set()
    (warning,) = warnings_of(caplog)
    assert f"job {jobs[2].id} 'n' and 2 more of its batch has not ended" in warning
    assert "it occupies its slots" in warning


async def test_timed_out_thread_is_signalled_and_keeps_its_slot(
    core_url: str, core_resp: RespClient, queue_name: str, caplog: pytest.LogCaptureFixture
):
    seen_cancelled = threading.Event()
    leave = threading.Event()

    def handle(job: Job) -> str:
        if job.data == "slow":
            if job.cancelled.wait(20):
                seen_cancelled.set()
            leave.wait(20)
            return "too late"
        return "fine"

    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handle, core_url) as worker:
        recorded = EventRecorder(worker)
        slow = await queue.add("crunch", "slow", timeout=40)
        await recorded.wait("failed")
        (job, error) = recorded.of("failed")[0]
        assert (job.id, type(error).__name__) == (slow.id, "JobTimeoutError")
        assert await asyncio.to_thread(seen_cancelled.wait, 20)
        (warning,) = [r.getMessage() for r in caplog.records if "cannot be stopped" in r.getMessage()]
        assert slow.id in warning
        assert "crunch" in warning

        other = await queue.add("n", "other")
        assert worker.active_count == 1
        assert await other.is_waiting()
        leave.set()
        assert await other.wait_until_finished() == "fine"
        assert await slow.is_failed()
        assert Raw(core_resp, queue_name).metric("completed") == 1


async def test_retry_can_run_concurrently_with_a_timed_out_thread(url: str, queue_name: str):
    leave = threading.Event()

    def handle(job: Job) -> int:
        if job.attempts_made == 0:
            leave.wait(20)
        return job.attempts_made

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url, concurrency=2):
        # On a slow machine a thread may not start in time: then it is the next attempt that is quick enough.
        assert await queue.add_and_wait("n", timeout=100, attempts=100) >= 1
        leave.set()


async def test_a_job_that_timed_out_before_a_thread_was_free_is_not_begun(url: str, queue_name: str):
    """Threads are added after a short delay; an attempt that ended meanwhile must not start."""
    began: list[Any] = []
    hold = threading.Event()

    def handle(job: Job) -> None:
        began.append(job.data)
        hold.wait(20)

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", 0), ("n", 1, {"timeout": 1}), ("n", 2, {"timeout": 1})])
        worker = Worker(queue_name, handle, url, concurrency=3)
        recorded = EventRecorder(worker)

        def block_the_loop(job: Job) -> None:
            if job.data == 2:
                time.sleep(0.05)  # blocks the event loop on purpose

        worker.on("active", block_the_loop)
        async with worker:
            await recorded.wait("failed", 1)
            hold.set()
            await recorded.wait("completed")
            await recorded.until(lambda recorded: worker.active_count == 0 or recorded.count["drained"] > 0)
    assert began in ([0], [0, 2])
    assert jobs[1].id in recorded.job_ids("failed")


async def test_the_time_before_it_is_taken_does_not_count(url: str, queue_name: str):
    gate = Gate()

    async def handle(job: Job) -> Any:
        return await gate(job) if job.data == "first" else "second"

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        await queue.add("n", "first")
        await gate.next()
        second = await queue.add("n", "second", timeout=50)
        # A third job's time-out is the clock: when it has passed elsewhere, so has the second one's.
        async with Worker(f"{queue_name}-clock", Gate(), url), Queue(f"{queue_name}-clock", url) as clock:
            with pytest.raises(JobFailedError):
                await clock.add_and_wait("n", timeout=60)
        gate.open()
        assert await second.wait_until_finished() == "second"
        assert recorded.count["failed"] == 0
