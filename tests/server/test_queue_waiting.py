"""Waiting for results: by events, or by polling the job if events are off."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from glidemq_py import (
    ClosedError,
    Job,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    Queue,
    UnrecoverableError,
    WaitTimeoutError,
    Worker,
)
from glidemq_py.testing import RespClient, ServerProcess
from tests.server.worker_support import EventRecorder, Gate, Raw, with_timeout


async def echo(job: Job) -> Any:
    return job.data


async def test_the_result(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, echo, core_url, concurrency=10):
        assert await queue.add_and_wait("n", {"a": [1, None, "ä"]}) == {"a": [1, None, "ä"]}
        assert await queue.add_and_wait("n") is None
        assert await queue.add_and_wait("n", 5, wait_timeout=timedelta(seconds=20), priority=2, attempts=3) == 5
        assert await asyncio.gather(*(queue.add_and_wait("n", i) for i in range(40))) == list(range(40))


async def test_result_arrives_by_event_without_polling(url: str, queue_name: str, without_polling: None):
    async with Queue(queue_name, url) as queue, Worker(queue_name, echo, url):
        for n in range(20):
            assert await queue.add_and_wait("n", n) == n


async def test_a_failure_with_its_type(url: str, queue_name: str):
    async def fail(job: Job) -> None:
        raise UnrecoverableError("no use") if job.data else LookupError("not there")

    async with Queue(queue_name, url) as queue, Worker(queue_name, fail, url):
        with pytest.raises(JobFailedError, match="LookupError: not there") as caught:
            await queue.add_and_wait("n")
        assert (caught.value.failed_type, caught.value.failed_reason) == ("LookupError", "not there")
        with pytest.raises(JobFailedError) as caught:
            await queue.add_and_wait("n", True, attempts=50)
        assert caught.value.failed_type == "UnrecoverableError"


async def test_a_retry_is_waited_for(url: str, queue_name: str):
    async def second_time(job: Job) -> str:
        if not job.attempts_made:
            raise ValueError("once")
        return "well"

    async with Queue(queue_name, url) as queue, Worker(queue_name, second_time, url):
        assert await queue.add_and_wait("n", attempts=2, backoff=10) == "well"


async def test_wait_timeout(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        with pytest.raises(WaitTimeoutError, match="150 ms") as caught:
            await queue.add_and_wait("n", wait_timeout=150)
        assert isinstance(caught.value, TimeoutError)
        assert (await queue.get_job_counts()).waiting == 1  # the job is unaffected


async def test_a_duplicate_is_not_waited_for(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue, Worker(queue_name, echo, url):
        await queue.add_and_wait("n", job_id="a")
        with pytest.raises(JobStateError, match="duplicate"):
            await queue.add_and_wait("n", job_id="a")


async def test_wait_for_ended_or_missing_job(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue, Worker(queue_name, echo, url):
        job = await queue.add("n", 1)
        assert await job.wait_until_finished() == 1
        assert await job.wait_until_finished(timedelta(milliseconds=500)) == 1
        found = await queue.get_job(job.id)
        assert found is not None
        assert await found.wait_until_finished() == 1
        await job.remove()
        with pytest.raises(JobNotFoundError):
            await job.wait_until_finished()


async def test_a_job_removed_while_it_is_waited_for(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        job = await queue.add("n")
        await queue.pause()
        waiting = asyncio.create_task(job.wait_until_finished())
        await with_timeout(job.get_state())
        await job.remove()
        with pytest.raises(JobNotFoundError):
            await with_timeout(waiting)


async def test_without_events_by_polling(url: str, queue_name: str, resp: RespClient):
    async with Queue(queue_name, url, events=False) as queue, Worker(queue_name, echo, url, events=False):
        assert await queue.add_and_wait("n", 1) == 1
        assert not Raw(resp, queue_name).run("EXISTS", "events")


@pytest.mark.parametrize("trim", [("XTRIM", "MAXLEN", "0"), ("DEL",)])
async def test_events_trimmed_or_deleted_meanwhile(url: str, queue_name: str, resp: RespClient, trim: tuple[str, ...]):
    gate, raw = Gate(), Raw(resp, queue_name)
    async with Queue(queue_name, url) as queue, Worker(queue_name, gate, url, events=False) as worker:
        recorded = EventRecorder(worker)
        waiting = asyncio.create_task(queue.add_and_wait("n", 7))
        await gate.next()
        raw.run(trim[0], "events", *trim[1:])
        gate.open()
        await recorded.wait("completed")
        raw.run(trim[0], "events", *trim[1:])
        assert await with_timeout(waiting) == 7


async def test_an_events_key_of_a_foreign_type(url: str, queue_name: str, resp: RespClient):
    Raw(resp, queue_name).run("SET", "events", "foreign")
    async with Queue(queue_name, url) as queue, Worker(queue_name, echo, url):
        assert await with_timeout(queue.add_and_wait("n", 7)) == 7


async def test_server_restart_during_wait(restartable_server: Callable[..., ServerProcess]):
    server, gate = restartable_server(), Gate()
    async with Queue("q", server.url) as queue, Worker("q", gate, server.url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", 7)  # its reply is here before the server ends
        waiting = asyncio.create_task(job.wait_until_finished())
        await gate.next()
        await asyncio.to_thread(server.restart, kill=True)
        gate.open()
        assert await with_timeout(waiting) == 7
        assert recorded.count["completed"] == 1


async def test_queue_closed_during_wait(url: str, queue_name: str):
    queue = Queue(queue_name, url)
    job = await queue.add("n")
    waiting = asyncio.create_task(job.wait_until_finished(20_000))
    await job.get_state()
    await queue.close()
    with pytest.raises(ClosedError):
        await with_timeout(waiting)


async def test_canceled_wait_does_not_affect_others(url: str, queue_name: str):
    gate = Gate()
    async with Queue(queue_name, url) as queue, Worker(queue_name, gate, url):
        job = await queue.add("n", 3)
        waits = [asyncio.create_task(job.wait_until_finished()) for _ in range(3)]
        await gate.next()
        waits[1].cancel()
        gate.open()
        results = await with_timeout(asyncio.gather(*waits, return_exceptions=True))
        assert [results[0], results[2]] == [3, 3]
        assert isinstance(results[1], asyncio.CancelledError)
