"""Job streams: writing, reading while the job runs, waiting without blocking other calls."""

import asyncio
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, JobNotFoundError
from glidemq_py import sync as blocking
from glidemq_py.errors import PayloadTooLargeError, StaleAttemptError
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, with_timeout


async def test_reader_gets_every_chunk_and_the_end(queue: Queue, worker_for: WorkerFor):
    gate = asyncio.Event()

    async def handle(job: Job):
        for number in range(250):
            await job.stream({"n": number})
            if number == 120:
                await gate.wait()
        return "done"

    async with worker_for(handle):
        job = await queue.add("n")
        seen: list[str] = []
        async with asyncio.timeout(120):
            async for chunk in queue.jobs.iter_stream(job.id, page=50):
                seen.append(chunk.fields["n"])
                if len(seen) == 121:
                    gate.set()
        assert seen == [str(number) for number in range(250)]
        assert await job.wait_until_finished() == "done"


def test_plain_handlers_and_blocking_readers(worker_for: WorkerFor, url: Any, queue_name: str):
    def handle(job: Job):
        job.blocking.stream({"type": "token", "content": "a"})
        job.blocking.stream({"type": "end"})

    async def work(done: asyncio.Event):
        async with worker_for(handle):
            await done.wait()

    async def main():
        done = asyncio.Event()
        working = asyncio.create_task(work(done))
        found = await asyncio.to_thread(read)
        done.set()
        await working
        assert found == [("token", "a"), ("end", None)]

    def read() -> list[tuple[str | None, str | None]]:
        with blocking.Queue(queue_name, url) as queue:
            job = queue.add("n")
            first = queue.read_stream(job.id, block=20_000)
            assert first[0].content == "a"
            return [(chunk.type, chunk.content) for chunk in queue.jobs.iter_stream(job.id)]

    asyncio.run(main())


async def test_many_readers_at_different_positions(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    async with worker_for(gate, concurrency=5):
        jobs = [await queue.add("n", number) for number in range(5)]
        running = [await gate.next() for _ in jobs]

        async def collect(job_id: str, last_id: str | None = None) -> list[str]:
            return [chunk.fields["n"] async for chunk in queue.jobs.iter_stream(job_id, last_id=last_id)]

        firsts = [await job.stream({"n": 0}) for job in running]
        readers = [asyncio.create_task(collect(job.id)) for job in running for _ in range(3)]
        late = [asyncio.create_task(collect(job.id, first)) for job, first in zip(running, firsts, strict=True)]
        for number in range(1, 20):
            for job in running:
                await job.stream({"n": number})
        gate.open()
        whole = [str(number) for number in range(20)]
        assert await with_timeout(asyncio.gather(*readers)) == [whole] * 15
        assert await with_timeout(asyncio.gather(*late)) == [whole[1:]] * 5


@pytest.mark.exclude("blocking", reason="each reader waits in its thread")
async def test_waiting_readers_do_not_block_the_queue(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    async with worker_for(gate):
        job = await queue.add("n")
        running = await gate.next()
        waiting = [asyncio.create_task(queue.read_stream(job.id, block=60_000)) for _ in range(20)]
        async with asyncio.timeout(60):
            for _ in range(50):
                await queue.get_job_counts()
        assert not any(task.done() for task in waiting)
        entry = await running.stream({"type": "a", "content": "b"})
        for chunks in await with_timeout(asyncio.gather(*waiting)):
            assert [(chunk.id, chunk.fields) for chunk in chunks] == [(entry, {"type": "a", "content": "b"})]
            assert chunks[0].timestamp == int(entry.partition("-")[0])
        gate.open()


async def test_read_stream_returns_after_its_block_time(url: Any, queue: Queue):
    job = await queue.add("n")
    assert await queue.read_stream(job.id) == []
    assert await with_timeout(queue.read_stream(job.id, block=30)) == []
    assert await queue.read_stream("nobody") == []
    with pytest.raises(JobNotFoundError):
        async for _ in queue.jobs.iter_stream("nobody"):
            pass


async def test_removing_the_job_ends_the_iteration(url: Any, queue: Queue):
    job = await queue.add("n")
    await job.stream({"n": 1})
    seen = []
    async with asyncio.timeout(120):
        async for chunk in queue.jobs.iter_stream(job.id):
            seen.append(chunk)
            await job.remove()
    assert len(seen) == 1
    with pytest.raises(JobNotFoundError):
        await job.stream({"n": 2})


@pytest.mark.parametrize(
    "chunk",
    [{}, [], "a", {"": 1}, {5: 1}, {"a": None}, {"a": True}, {"a": [1]}, {"a": float("nan")}, {"a": "\ud800"},
     {str(n): 1 for n in range(1_001)}],
)  # fmt: skip
async def test_invalid_chunks_are_rejected(url: Any, queue: Queue, chunk: Any):
    job = await queue.add("n")
    with pytest.raises(GlideMQValidationError, match="chunk"):
        await job.stream(chunk)
    assert await queue.read_stream(job.id) == []


async def test_invalid_arguments_and_the_largest_chunk(url: Any, queue: Queue):
    job = await queue.add("n")
    with pytest.raises(PayloadTooLargeError):
        await job.stream({"a": "x" * 1_048_576})
    await job.stream({"a": "x" * 1_048_575})
    await job.stream({str(n): 1 for n in range(1_000)})
    assert len(await queue.read_stream(job.id)) == 2
    for options in ({"last_id": "x"}, {"count": 0}, {"count": 10_001}, {"block": -1}):
        with pytest.raises(GlideMQValidationError):
            await queue.read_stream(job.id, **options)
    with pytest.raises(GlideMQValidationError):
        queue.jobs.iter_stream(job.id, last_id="1-")


async def test_stream_is_trimmed_and_deleted_with_its_job(url: Any, queue: Queue, raw: Raw):
    job = await queue.add("n")
    for number in range(30):
        await job.stream({"n": number}, keep=10)
    assert [chunk.fields["n"] for chunk in await queue.read_stream(job.id)] == [str(n) for n in range(20, 30)]
    await job.remove()
    assert raw.run("EXISTS", f"jstream:{job.id}") == 0


@pytest.mark.parametrize(
    "write",
    [lambda job: job.stream({"n": 1}), lambda job: job.store_vector("embedding", [1])],
    ids=["stream", "vector"],
)
async def test_stale_attempt_cannot_write(queue: Queue, worker_for: WorkerFor, raw: Raw, write: Any):
    gate = Gate()
    async with worker_for(gate) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        running = await gate.next()
        raw.run("HINCRBY", f"job:{job.id}", "fence", 1)
        with pytest.raises(StaleAttemptError):
            await write(running)
        assert await queue.read_stream(job.id) == []
        assert raw.run("HEXISTS", f"job:{job.id}", "embedding") == 0
        gate.open()
        await recorded.wait("error")
        await queue.obliterate(force=True)
