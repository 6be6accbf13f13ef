"""Timeouts of jobs: an async handler is cancelled; a handler in a thread continues, but its attempt has ended."""

import asyncio
import threading

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import RespClient
from tests.inside import timeouts
from tests.server.worker_support import EventRecorder, Raw, WorkerFor, until, with_timeout


async def test_handler_that_ignores_cancellation_keeps_its_slot_but_its_result_is_discarded(
    worker_for: WorkerFor, resp: RespClient, queue: Queue, queue_name: str
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

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        late = await queue.add("n", "stubborn", timeout=30)
        await recorded.wait("failed")
        other = await queue.add("n", "other")
        assert worker.active_count == 1
        assert await other.get_state() == "waiting"
        stubborn.set()
        assert await other.wait_until_finished() == "fine"
        assert began == [late.id, other.id]
        assert await late.get_state() == "failed"
        assert Raw(resp, queue_name).event_names(late.id) == ["added", "failed"]


async def stubborn_until(opened: asyncio.Event):
    while not opened.is_set():
        try:
            await opened.wait()
        except asyncio.CancelledError:
            continue


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == timeouts.__name__]


@pytest.mark.parametrize("why", ["JobTimeoutError", "JobRevokedError"])
async def test_handler_that_ignores_cancellation_is_logged(
    worker_for: WorkerFor,
    queue: Queue,
    queue_name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
):
    monkeypatch.setattr(timeouts, "_END_S", 0.02)
    opened, began = asyncio.Event(), asyncio.Event()

    async def handle(job: Job):
        began.set()
        if job.name == "obedient":
            await asyncio.Event().wait()
        await stubborn_until(opened)

    async with worker_for(handle) as worker:
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
    queue: Queue, worker_for: WorkerFor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(timeouts, "_END_S", 0.02)
    opened = asyncio.Event()

    async def handle(jobs: list[Job]) -> list[None]:
        await stubborn_until(opened)
        return [None] * len(jobs)

    jobs = await queue.add_bulk([("n", n, {"timeout": 30 + 20 * n}) for n in range(3)])
    async with worker_for(handle, batch={"size": 3}):
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
        assert await other.get_state() == "waiting"
        leave.set()
        assert await other.wait_until_finished() == "fine"
        assert await slow.get_state() == "failed"
        assert Raw(core_resp, queue_name).metric("completed") == 1
