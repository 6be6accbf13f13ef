"""Waiting for results: by events, or by polling the job if events are off."""

import asyncio
import time
from datetime import timedelta

import pytest

from glidemq_py import (
    ClosedError,
    Job,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    UnrecoverableError,
    WaitTimeoutError,
)
from glidemq_py.testing import RespClient
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, with_timeout


async def echo(job: Job):
    return job.data


async def test_the_result(queue: Queue, worker_for: WorkerFor):
    async with worker_for(echo, concurrency=10):
        assert await queue.add_and_wait("n", {"a": [1, None, "ä"]}) == {"a": [1, None, "ä"]}
        assert await queue.add_and_wait("n") is None
        assert await queue.add_and_wait("n", 5, wait_timeout=timedelta(seconds=20), priority=2, attempts=3) == 5
        assert await asyncio.gather(*(queue.add_and_wait("n", i) for i in range(40))) == list(range(40))


async def test_result_arrives_by_event_without_polling(queue: Queue, worker_for: WorkerFor, without_polling: None):
    async with worker_for(echo):
        for n in range(20):
            assert await queue.add_and_wait("n", n) == n


async def test_a_failure_with_its_type(queue: Queue, worker_for: WorkerFor):
    async def fail(job: Job):
        raise UnrecoverableError("no use") if job.data else LookupError("not there")

    async with worker_for(fail):
        with pytest.raises(JobFailedError, match="LookupError: not there") as caught:
            await queue.add_and_wait("n")
        assert (caught.value.failed_type, caught.value.failed_reason) == ("LookupError", "not there")
        with pytest.raises(JobFailedError) as caught:
            await queue.add_and_wait("n", True, attempts=50)
        assert caught.value.failed_type == "UnrecoverableError"


async def test_a_retry_is_waited_for(queue: Queue, worker_for: WorkerFor):
    async def second_time(job: Job) -> str:
        if not job.attempts_made:
            raise ValueError("once")
        return "well"

    async with worker_for(second_time):
        assert await queue.add_and_wait("n", attempts=2, backoff=10) == "well"


async def test_wait_timeout(queue: Queue):
    with pytest.raises(WaitTimeoutError, match="150 ms") as caught:
        await queue.add_and_wait("n", wait_timeout=150)
    assert isinstance(caught.value, TimeoutError)
    assert (await queue.get_job_counts()).waiting == 1  # the job is unaffected


async def test_a_duplicate_is_not_waited_for(queue: Queue, worker_for: WorkerFor):
    async with worker_for(echo):
        await queue.add_and_wait("n", job_id="a")
        with pytest.raises(JobStateError, match="duplicate"):
            await queue.add_and_wait("n", job_id="a")


async def test_wait_for_ended_or_missing_job(queue: Queue, worker_for: WorkerFor):
    async with worker_for(echo):
        job = await queue.add("n", 1)
        assert await job.wait_until_finished() == 1
        assert await job.wait_until_finished(timedelta(milliseconds=500)) == 1
        found = await queue.get_job(job.id)
        assert found is not None
        assert await found.wait_until_finished() == 1
        await job.remove()
        with pytest.raises(JobNotFoundError):
            await job.wait_until_finished()


async def test_a_job_removed_while_it_is_waited_for(queue: Queue):
    job = await queue.add("n")
    await queue.pause()
    waiting = asyncio.create_task(job.wait_until_finished())
    await with_timeout(job.get_state())
    await job.remove()
    with pytest.raises(JobNotFoundError):
        await with_timeout(waiting)


async def test_without_events_by_polling(worker_for: WorkerFor, url: str, queue_name: str, resp: RespClient):
    async with Queue(queue_name, url, events=False) as queue, worker_for(echo, events=False):
        assert await queue.add_and_wait("n", 1) == 1
        assert not Raw(resp, queue_name).run("EXISTS", "events")


@pytest.mark.parametrize("trim", [("XTRIM", "MAXLEN", "0"), ("DEL",)])
async def test_events_trimmed_or_deleted_meanwhile(
    worker_for: WorkerFor, queue: Queue, queue_name: str, resp: RespClient, trim: tuple[str, ...]
):
    gate, raw = Gate(), Raw(resp, queue_name)
    async with worker_for(gate, events=False) as worker:
        recorded = EventRecorder(worker)
        waiting = asyncio.create_task(queue.add_and_wait("n", 7))
        await gate.next()
        raw.run(trim[0], "events", *trim[1:])
        gate.open()
        await recorded.wait("completed")
        raw.run(trim[0], "events", *trim[1:])
        assert await with_timeout(waiting) == 7


async def test_an_events_key_of_a_foreign_type(worker_for: WorkerFor, queue: Queue, queue_name: str, resp: RespClient):
    Raw(resp, queue_name).run("SET", "events", "foreign")
    async with worker_for(echo):
        assert await with_timeout(queue.add_and_wait("n", 7)) == 7


async def test_queue_closed_during_wait(url: str, queue_name: str):
    queue = Queue(queue_name, url)
    job = await queue.add("n")
    waiting = asyncio.create_task(job.wait_until_finished(20_000))
    await job.get_state()
    await queue.close()
    with pytest.raises(ClosedError):
        await with_timeout(waiting)


async def test_canceled_wait_does_not_affect_others(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    async with worker_for(gate):
        job = await queue.add("n", 3)
        waits = [asyncio.create_task(job.wait_until_finished()) for _ in range(3)]
        await gate.next()
        waits[1].cancel()
        gate.open()
        results = await with_timeout(asyncio.gather(*waits, return_exceptions=True))
        assert [results[0], results[2]] == [3, 3]
        assert isinstance(results[1], asyncio.CancelledError)


@pytest.mark.exclude("blocking", reason="it has no event loop, whose clock stays")
async def test_waits_end_while_the_time_is_frozen(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    """As by freezegun with ``real_asyncio=True``, which leaves the clock of the event loop alone."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", time.monotonic)
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    async with asyncio.timeout(60):
        assert await queue.fetch(wait=100) == []
        job = await queue.add("n", 5, delay=100)
        (lease,) = await queue.fetch(wait=10_000)
        await lease.complete(6)
        assert await job.wait_until_finished() == 6
