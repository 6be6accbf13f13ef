"""Partitioned queues: their jobs and counts are read, and what is not supported names the queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from glidemq_py import Queue, Worker
from glidemq_py._features.partitions.layout import partition_names
from glidemq_py.testing.pytest_plugin import GlideMQServer

PARTITIONS = 3


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue[Any, Any]]:
    """A partitioned queue with jobs in three states."""

    async def handle(_: object) -> None:
        await asyncio.sleep(0)

    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        await queue.add_bulk([("done", at, {"job_id": f"done-{at}"}) for at in range(40)])
        async with Worker(queue_name, handle, url, concurrency=10) as worker:
            await worker.drain()
        await queue.add_bulk([("new", at, {"job_id": f"new-{at}"}) for at in range(30)])
        await queue.add_bulk([("later", at, {"delay": 3_600_000}) for at in range(20)])
        yield queue


async def ids_of(queue: Queue[Any, Any], state: str) -> set[str]:
    return {job.id async for job in queue.iter_jobs(state)}


async def test_jobs_of_all_partitions_are_read(queue: Queue[Any, Any], source: Callable[..., Any]):
    rows = await asyncio.to_thread(source(fetchSize=5, numPartitions=2).load().collect)
    assert Counter(row.state for row in rows) == {"completed": 40, "waiting": 30, "delayed": 20}
    assert {row.id for row in rows if row.state == "completed"} == await ids_of(queue, "completed")
    assert len({row.id for row in rows}) == 90
    one = await asyncio.to_thread(source(state="delayed", fetchSize=5).load().collect)
    assert {row.id for row in one} == await ids_of(queue, "delayed")


async def test_ids_and_counts_are_those_of_the_whole_queue(queue: Queue[Any, Any], source: Callable[..., Any]):
    wanted = sorted(await ids_of(queue, "waiting"))[:7]
    frame = source().load()
    found = await asyncio.to_thread(frame.where(frame.id.isin(wanted)).collect)
    assert sorted(row.id for row in found) == wanted
    counts = await asyncio.to_thread(source(view="counts").load().collect)
    assert {row.state: row.jobs for row in counts if row.jobs} == {"completed": 40, "waiting": 30, "delayed": 20}
    assert {row.queue for row in counts} == {queue.name}


async def test_writes_and_streams_name_the_queue(
    queue: Queue[Any, Any], server: GlideMQServer, spark: Any, tmp_path: Any
):
    options = {"url": server.url, "queue": queue.name, "jobName": "n"}
    frame = spark.range(10).selectExpr("cast(id as string) as data")

    def save(**more: Any) -> None:
        frame.write.format("glidemq").mode("append").options(**options | more).save()

    def stream(view: str) -> None:
        rows = spark.readStream.format("glidemq").options(**options | {"view": view}).load()
        started = rows.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/{view}").start()
        try:
            started.processAllAvailable()
        finally:
            started.stop()

    before = await queue.count()
    for call in (save, lambda: save(guarantee="task", writeId="w"), lambda: stream("jobs"), lambda: stream("events")):
        with pytest.raises(Exception, match=f"queue '{queue.name}' has 3 partitions"):
            call()
    by_row = frame.selectExpr("data", f"'{queue.name}' as queue")
    with pytest.raises(Exception, match=f"queue '{queue.name}' has 3 partitions"):
        by_row.write.format("glidemq").mode("append").options(**options | {"queue": f"{queue.name}-p"}).save()
    assert await queue.count() == before
    partition = partition_names(queue.name, PARTITIONS)[1]
    save(queue=partition)  # a partition is a queue by itself
    assert await queue.count() == before + 10
