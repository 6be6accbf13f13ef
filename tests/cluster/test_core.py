"""The core API on each supported server: Valkey 9.1 and 8.1, a cluster of three primaries, Redis."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from glidemq_py import BulkAddError, Job, JobFailedError, JobState, Queue, QueueEvents, Worker
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder, Gate, Raw, with_timeout


async def double(job: Job) -> Any:
    if job.data == "fail":
        raise ValueError("on purpose")
    return job.data * 2


async def test_add_work_wait(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, double, core_url, concurrency=20) as worker:
        recorded = EventRecorder(worker)
        results = await asyncio.gather(*(queue.add_and_wait("n", i) for i in range(100)))
        assert results == [i * 2 for i in range(100)]
        with pytest.raises(JobFailedError, match="on purpose"):
            await queue.add_and_wait("n", "fail", attempts=2, backoff=5)
        assert recorded.count["retrying"] == 1


async def test_bulk_of_every_kind_is_processed(core_url: str, queue_name: str, core_resp: RespClient):
    options: list[dict[str, Any]] = [{}, {"lifo": True}, {"priority": 4}, {"delay": 30}, {"delay": 20, "priority": 2}]
    async with Queue(queue_name, core_url) as queue:
        jobs = await queue.add_bulk([("n", i, options[i % 5]) for i in range(1_000)])
        assert len({job.id for job in jobs}) == 1_000
        async with Worker(queue_name, double, core_url, concurrency=50) as worker:
            await EventRecorder(worker).wait("completed", 1_000)
        counts = await queue.get_job_counts()
        assert (counts.completed, counts.unfinished) == (1_000, 0)
        raw = Raw(core_resp, queue_name)
        assert raw.pending() == []
        assert raw.metric("completed") == 1_000
        assert [raw.run("LLEN", "lifo"), raw.run("ZCARD", "scheduled"), raw.run("XLEN", "stream")] == [0, 0, 0]


async def test_reading_while_jobs_run(core_url: str, queue_name: str):
    gate = Gate()
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, gate, core_url, concurrency=2) as worker:
        await queue.add_bulk([("n", i) for i in range(5)])
        await queue.add("n", delay=60_000)
        await queue.add("n", priority=1, delay=60_000)
        held = [await gate.next(), await gate.next()]
        counts = await queue.get_job_counts()
        assert (counts.waiting, counts.active, counts.delayed + counts.prioritized) == (3, 2, 2)
        assert Counter([job.id async for job in queue.iter_jobs("active", 1)]) == Counter(job.id for job in held)
        assert len(await queue.get_jobs("waiting")) == 3
        (info,) = await queue.get_workers()
        assert info.id == worker.consumer
        await held[0].update_progress({"half": True})
        await held[0].log("so far")
        found = await queue.get_job(held[0].id)
        assert found is not None
        assert (found.progress, found.state, await found.logs()) == ({"half": True}, JobState.ACTIVE, ["so far"])
        gate.open()


async def test_pause_remove_retry(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, double, core_url) as worker:
        recorded = EventRecorder(worker)
        failed = await queue.add("n", "fail")
        await recorded.wait("failed")
        await queue.pause()
        await failed.retry()
        await failed.update_data(21)
        doomed = await queue.add("n", 1)
        assert await doomed.remove()
        assert await queue.count() == 1
        await queue.resume()
        assert await with_timeout(failed.wait_until_finished()) == 42
        assert await queue.get_job(doomed.id) is None


async def test_duplicates(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url) as queue:
        jobs = await asyncio.gather(*(queue.add("n", i, job_id="same") for i in range(20)))
        assert Counter(str(job.outcome) for job in jobs) == {"added": 1, "duplicate": 19}


async def test_events(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, double, core_url):
        events = QueueEvents(queue_name, core_url)
        await events.wait_until_ready()
        await queue.add("n", 4)
        found: list[str] = []
        async with asyncio.timeout(120):
            async for event in events:
                found.append(event.event)
                if event.event == "completed":
                    assert event.fields["returnvalue"] == "8"
                    break
        assert found == ["added", "completed"]


@pytest.mark.slow
async def test_queues_are_distributed_over_primaries(cluster_url: str, cluster_resp: RespClient, queue_name: str):
    names = [f"{queue_name}-{i}" for i in range(12)]
    queues = [Queue(name, cluster_url) for name in names]
    try:
        await asyncio.gather(*(queue.add_bulk([("n", i) for i in range(20)]) for queue in queues))
        slots = {cluster_resp.execute("CLUSTER", "KEYSLOT", f"glide:{{{name}}}:meta") // 5_462 for name in names}
        assert len(slots) > 1
        for name, queue in zip(names, queues, strict=True):
            async with Worker(name, double, cluster_url, concurrency=5) as worker:
                await EventRecorder(worker).wait("completed", 20)
            assert await queue.obliterate() == 20
            assert cluster_resp.keys(f"*{{{name}}}*") == []
    finally:
        for queue in queues:
            await queue.close()


async def test_functions_flushed_on_every_primary(cluster_url: str, cluster_resp: RespClient, queue_name: str):
    async with Queue(queue_name, cluster_url) as queue, Queue(queue_name + "x", cluster_url) as other:
        await queue.add("n")
        cluster_resp.execute_everywhere("FUNCTION", "FLUSH")
        try:
            jobs = await asyncio.gather(queue.add("n"), other.add("n"), queue.add_bulk([("n",)] * 600))
        except BulkAddError as error:
            raise AssertionError(error.results) from error
        assert len(jobs[2]) == 600
        assert await queue.count() == 602
