"""Batches, streams of jobs, usage, serializers: one test each, in memory and on servers."""

from typing import Any

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import MemoryServer

Place = MemoryServer | str


async def test_jobs_are_fetched_in_batches(place: Place, queue: Queue) -> None:
    sizes: list[int] = []

    async def handle(jobs: list[Job]) -> list[Any]:
        sizes.append(len(jobs))
        return [job.data * 2 for job in jobs]

    jobs = await queue.add_bulk([("n", number) for number in range(20)])
    async with Worker(queue.name, handle, place, batch={"size": 5}):
        assert [await job.wait_until_finished() for job in jobs] == [number * 2 for number in range(20)]
    assert max(sizes) == 5


async def test_job_streams_its_output(place: Place, queue: Queue) -> None:
    async def handle(job: Job) -> str:
        for part in ("one ", "two ", "three"):
            await job.stream({"token": part})
        return "done"

    async with Worker(queue.name, handle, place):
        job = await queue.add("n")
        assert await job.wait_until_finished() == "done"
        chunks = await queue.read_stream(job.id)
    assert "".join(chunk.fields["token"] for chunk in chunks) == "one two three"


async def test_usage_is_reported_and_summed(place: Place, queue: Queue) -> None:
    async def handle(job: Job) -> None:
        await job.report_usage(model="m", tokens={"input": 10, "output": 5}, total_cost=0.25)

    async with Worker(queue.name, handle, place):
        for _ in range(3):
            await queue.add_and_wait("n")
    summary = await queue.get_usage_summary()
    assert "30" in str(summary)
    assert "45" in str(summary)


async def test_msgpack_and_compression(place: Place, queue_name: str) -> None:
    data = {"bytes": b"\x00\xff" * 2000, "text": "grüße"}

    async def handle(job: Job) -> Any:
        return job.data["bytes"][:2]

    async with (
        Queue[Any, Any](queue_name, place, serializer="msgpack", compression="gzip") as queue,
        Worker(queue_name, handle, place, serializer="msgpack", compression="gzip"),
    ):
        assert await queue.add_and_wait("n", data) == b"\x00\xff"
