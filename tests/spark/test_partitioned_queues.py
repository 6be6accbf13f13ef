"""Partitioned queues: batch reads, saves by the routing rules of the queue, and what is not supported."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from glidemq_py import Queue, Worker
from glidemq_py.errors import GlideMQError, StagedWriteError
from glidemq_py.spark import last_report, writer
from glidemq_py.spark.api import TaskFacts, pa
from glidemq_py.spark.options import WriteOptions, transport_of
from glidemq_py.spark.partitioned import agreed_layouts_of
from glidemq_py.spark.write_schema import plan_write
from glidemq_py.spark.writer import FrameWriter
from tests.inside import (
    QueueKeys,
    partition_names,
    partition_of_key,
    split_partition_id,
    staged_writes,
)

PARTITIONS = 3


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    """A partitioned queue with jobs in three states."""

    async def handle(_: object):
        await asyncio.sleep(0)

    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        await queue.add_bulk([("done", at, {"job_id": f"done-{at}"}) for at in range(40)])
        async with Worker(queue_name, handle, url, concurrency=10) as worker:
            await worker.drain()
        await queue.add_bulk([("new", at, {"job_id": f"new-{at}"}) for at in range(30)])
        await queue.add_bulk([("later", at, {"delay": 3_600_000}) for at in range(20)])
        yield queue


async def ids_of(queue: Queue, state: str) -> set[str]:
    return {job.id async for job in queue.iter_jobs(state)}


async def test_jobs_of_all_partitions_are_read(queue: Queue, source: Callable[..., Any]):
    rows = await asyncio.to_thread(source(fetchSize=5, numPartitions=2).load().collect)
    assert Counter(row.state for row in rows) == {"completed": 40, "waiting": 30, "delayed": 20}
    assert {row.id for row in rows if row.state == "completed"} == await ids_of(queue, "completed")
    assert len({row.id for row in rows}) == 90
    one = await asyncio.to_thread(source(state="delayed", fetchSize=5).load().collect)
    assert {row.id for row in one} == await ids_of(queue, "delayed")


async def test_ids_and_counts_are_those_of_the_whole_queue(queue: Queue, source: Callable[..., Any]):
    wanted = sorted(await ids_of(queue, "waiting"))[:7]
    frame = source().load()
    found = await asyncio.to_thread(frame.where(frame.id.isin(wanted)).collect)
    assert sorted(row.id for row in found) == wanted
    counts = await asyncio.to_thread(source(view="counts").load().collect)
    assert {row.state: row.jobs for row in counts if row.jobs} == {"completed": 40, "waiting": 30, "delayed": 20}
    assert {row.queue for row in counts} == {queue.name}


# Spark finds the format in the thread of the session only, so saves block the event loop.


def saver(spark: Any, url: str, queue: str, count: int = 60) -> Callable[..., None]:
    """Return a function that saves rows; a third each has an ordering key, an id, and neither."""
    frame = spark.range(count).selectExpr(
        "cast(id as int) as data",
        "if(id % 3 = 0, concat('k', id % 4), null) as orderingKey",
        "if(id % 3 = 1, concat('id-', id), null) as jobId",
    )

    def save(**more: Any):
        mode = more.pop("mode", "append")
        options = {"url": url, "queue": queue, "jobName": "n"} | more
        frame.write.format("glidemq").mode(mode).options(**options).save()

    return save


async def places_of(queue: Queue) -> dict[Any, int]:
    """Return the partition of the job with each data."""
    return {job.data: split_partition_id(job.id)[0] async for job in queue.iter_jobs("waiting")}


@pytest.mark.parametrize("guarantee", ["append", "atomic"])
async def test_rows_go_to_the_partitions_of_their_keys(url: str, queue_name: str, spark: Any, guarantee: str):
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        await queue.count()
        save = saver(spark, url, queue_name)
        save(guarantee=guarantee)
        places = await places_of(queue)
        assert sorted(places) == list(range(60))
        keys = {at: f"k{at % 4}" if at % 3 == 0 else f"id-{at}" for at in places if at % 3 < 2}
        assert {at: places[at] for at in keys} == {at: partition_of_key(key, PARTITIONS) for at, key in keys.items()}
        assert {*places.values()} == {0, 1, 2}
        report = last_report(queue_name, url=url)
        assert report is not None
        assert (report.jobs, report.skipped, dict(report.queues)) == (60, 0, {queue_name: (60, 0)})
        assert str((await queue.add("n", job_id="id-1")).outcome) == "duplicate"
        save(guarantee=guarantee)
        report = last_report(queue_name, url=url)
        assert report is not None
        assert (report.jobs, report.skipped, dict(report.queues)) == (40, 20, {queue_name: (40, 20)})
        assert await queue.count() == 100


async def test_deduplication_holds(url: str, queue_name: str, spark: Any):
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        first = await queue.add("n", deduplication={"id": "u1"})
        frame = spark.range(12).selectExpr("cast(id as int) as data", "concat('u', id % 4) as deduplicationId")
        options = {"url": url, "queue": queue_name, "jobName": "n"}
        frame.write.format("glidemq").mode("append").options(**options).save()
        assert await queue.count() == 4
        assert partition_of_key("u1", PARTITIONS) == split_partition_id(first.id)[0]


async def test_a_stream_writes_each_row_once(url: str, queue_name: str, spark: Any, tmp_path: Any):
    def stream():
        rows = spark.readStream.schema("jobId string, data int").json(str(tmp_path / "in"))
        writing = rows.writeStream.format("glidemq").option("checkpointLocation", str(tmp_path / "state"))
        options = {"url": url, "queue": queue_name, "jobName": "n"}
        writing.options(**options).trigger(availableNow=True).start().awaitTermination()

    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        await queue.count()
        for batch in range(2):
            rows = spark.range(10).selectExpr(f"concat('b{batch}-', id) as jobId", "cast(id as int) as data")
            rows.write.mode("append").json(str(tmp_path / "in"))
            stream()
        found = [split_partition_id(job.id) async for job in queue.iter_jobs("waiting")]
        assert len(found) == 20
        assert all(partition == partition_of_key(own, PARTITIONS) for partition, own in found)


async def test_partitioned_queues_among_others(url: str, queue_name: str, spark: Any):
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue, Queue(f"{queue_name}-p", url) as plain:
        await queue.count()
        frame = spark.range(40).selectExpr(
            "concat('x', id) as jobId", "cast(id as int) as data", f"if(id < 30, '{queue_name}', null) as queue"
        )
        options = {"url": url, "queue": plain.name, "jobName": "n", "guarantee": "atomic"}
        frame.write.format("glidemq").mode("append").options(**options).save()
        assert (await queue.count(), await plain.count()) == (30, 10)
        report = last_report(plain.name, url=url)
        assert report is not None
        assert dict(report.queues) == {queue_name: (30, 0), plain.name: (10, 0)}


async def test_layouts_of_many_queues_are_read_together(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    """Two round trips, and a layout that a partition has not taken over is repaired."""
    options = WriteOptions.parse({"url": url, "queue": queue_name, "jobName": "n"}, streaming=False)
    names = [f"{queue_name}-{n}" for n in range(30)]
    wanted: list[int | None] = [n % 5 + 2 if n < 7 else None for n in range(30)]
    for name, count in zip(names[:7], wanted, strict=False):
        async with Queue(name, url, partitions=count) as queue:
            await queue.count()
    transport = transport_of(options.place)
    keys = [QueueKeys(options.keys.prefix, name) for name in names]
    late = partition_names(names[2], 4)[3]
    await asyncio.to_thread(transport.command, "HDEL", QueueKeys(options.keys.prefix, late).meta, "layoutNumber")
    sent: list[int] = []
    kind = type(transport.transport)
    send = kind.send_reads

    def watched(self: Any, key: Any, commands: Any) -> Any:
        sent.append(len(commands))
        return send(self, key, commands)

    monkeypatch.setattr(kind, "send_reads", watched)
    found = await asyncio.to_thread(agreed_layouts_of, transport, keys)
    assert [layout and layout.partitions for layout in found] == wanted
    assert sent[:2] == [30, sum(count - 1 for count in wanted if count)]
    assert len(sent) > 2  # the repair of one queue
    sent.clear()
    assert await asyncio.to_thread(agreed_layouts_of, transport, keys) == found
    assert len(sent) == 2


@pytest.fixture
def writer_of(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that makes the writer of a save, whose tasks run in this process."""
    monkeypatch.setattr(writer, "task_context", lambda: TaskFacts(0, 0, "", -1))
    schema = StructType([StructField(name, StringType()) for name in ("data", "jobId")])

    def make(**given: Any) -> FrameWriter:
        """Spark says itself whether a save overwrites."""
        options = WriteOptions.parse({"url": url, "queue": queue_name, "jobName": "n"} | given, streaming=False)
        made = FrameWriter(options, plan_write(schema, options))
        made._overwrite = "overwrite" in given
        return made

    return make


def rows(first: int, count: int = 20, *, keyed: bool = True) -> Any:
    numbers = range(first, first + count)
    ids = [f"id-{n}" if keyed else None for n in numbers]
    return pa.RecordBatch.from_pydict({"data": [str(n) for n in numbers], "jobId": pa.array(ids, pa.string())})


async def create_again(queue: Queue, url: str, jobs: int):
    """Let another client obliterate a queue once it has this many jobs, and create it with four partitions."""
    async with Queue(queue.name, url) as other:
        while await other.count() < jobs:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)
        await other.obliterate(force=True)
    async with Queue(queue.name, url, partitions=4) as other:
        await other.connect()


@pytest.mark.parametrize("before", [None, 2])
async def test_a_queue_that_is_created_again_during_the_save_is_found(
    url: str, queue_name: str, writer_of: Callable[..., Any], before: int | None
):
    loop = asyncio.get_running_loop()
    async with Queue(queue_name, url, partitions=before) as queue:
        await queue.count()
        save = writer_of(guarantee="append", batchSize="20")

        def batches() -> Iterator[Any]:
            yield rows(0)
            asyncio.run_coroutine_threadsafe(create_again(queue, url, 0 if before else 20), loop).result(30)
            yield rows(20)

        def run():
            save.commit([save.write(batches())])

        with pytest.raises(GlideMQError, match="were created or obliterated meanwhile"):
            await asyncio.to_thread(run)
        await asyncio.to_thread(save.abort, [None])
        async with Queue(queue_name, url) as other:
            assert await other.count() == 0


async def test_an_overwrite_of_a_queue_that_is_created_again_deletes_nothing(
    url: str, queue_name: str, writer_of: Callable[..., Any]
):
    async with Queue(queue_name, url, partitions=2) as queue:
        await queue.add_bulk([("old", at) for at in range(10)])
        save = writer_of(overwrite="drain")
        message = await asyncio.to_thread(save.write, iter([rows(0)]))
        await create_again(queue, url, 10)
        async with Queue(queue_name, url) as other:
            await other.add_bulk([("new", at) for at in range(10)])
            with pytest.raises(StagedWriteError):
                await asyncio.to_thread(save.commit, [message])
            await asyncio.to_thread(save.abort, [message])
            assert await other.count() == 10


async def test_an_overwrite_without_rows_deletes_the_jobs_of_partitions_that_are_created_meanwhile(
    url: str, queue_name: str, writer_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    loop, drain_queue = asyncio.get_running_loop(), staged_writes.drain_queue
    async with Queue(queue_name, url) as queue:
        await queue.count()
        save = writer_of(overwrite="drain")

        async def create():
            async with Queue(queue_name, url, partitions=4):
                await queue.add_bulk([("old", at, {"job_id": f"old-{at}"}) for at in range(40)])

        def change(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(staged_writes, "drain_queue", drain_queue)
            asyncio.run_coroutine_threadsafe(create(), loop).result(30)
            return drain_queue(*args, **options)

        monkeypatch.setattr(staged_writes, "drain_queue", change)
        await asyncio.to_thread(save.commit, [None])
        assert await queue.count() == 0


async def test_a_queue_that_gets_partitions_before_the_commit_is_found(
    url: str, queue_name: str, writer_of: Callable[..., Any]
):
    async with Queue(queue_name, url) as queue:
        save = writer_of(guarantee="atomic")
        message = await asyncio.to_thread(save.write, iter([rows(0)]))
        async with Queue(queue_name, url, partitions=4) as creator:
            await creator.connect()
        with pytest.raises(StagedWriteError, match="its partitions were created"):
            await asyncio.to_thread(save.commit, [message])
        await asyncio.to_thread(save.abort, [message])
        assert await queue.count() == 0


async def test_a_report_counts_all_partitions(url: str, queue_name: str, writer_of: Callable[..., Any]):
    async with Queue(queue_name, url, partitions=120) as queue:
        await queue.count()
        save = writer_of(guarantee="atomic")
        message = await asyncio.to_thread(save.write, iter([rows(0, 2_000)]))
        await asyncio.to_thread(save.commit, [message])
        assert await queue.count() == 2_000
    report = await asyncio.to_thread(last_report, queue_name, url=url)
    assert report is not None
    assert (report.jobs, dict(report.queues)) == (2_000, {queue_name: (2_000, 0)})


async def test_partitions_count_as_queues_of_a_save(url: str, queue_name: str, writer_of: Callable[..., Any]):
    options = WriteOptions.parse({"url": url, "queue": queue_name, "jobName": "n"}, streaming=False)
    async with Queue(queue_name, url, partitions=3) as queue:
        await queue.count()
        save = writer_of(guarantee="atomic", writeId="w")
        registered = f"glide:{{{queue_name}}}:write:w:queues"
        transport = transport_of(options.place)
        await asyncio.to_thread(transport.command, "SADD", registered, *(f"other-{n}" for n in range(999)))
        problem = "write 'w' in queue .* writes to more than 1,000 queues, of which each partition is one; divide"
        with pytest.raises(StagedWriteError, match=problem):
            await asyncio.to_thread(save.write, iter([rows(0)]))
        transport = transport_of(options.place)  # a task that fails closes its connection
        await asyncio.to_thread(transport.command, "DEL", registered)
        await asyncio.to_thread(save.abort, [None])
        assert await queue.count() == 0


async def test_saves_without_keys_use_all_partitions(url: str, queue_name: str, writer_of: Callable[..., Any]):
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        await queue.count()
        for number in range(30):
            save = writer_of(guarantee="append")
            message = await asyncio.to_thread(save.write, iter([rows(20 * number, keyed=False)]))
            await asyncio.to_thread(save.commit, [message])
        places = Counter((await places_of(queue)).values())
    assert sum(places.values()) == 600
    assert min(places[number] for number in range(PARTITIONS)) >= 20


async def test_overwrite_deletes_the_waiting_jobs_of_all_partitions(url: str, queue_name: str, spark: Any):
    """Those of partitions that get no rows, and of other queues that get rows, too; delayed jobs stay."""
    other = f"{queue_name}-b"
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue, Queue(other, url, partitions=2) as beside:
        for each in (queue, beside):
            await each.add_bulk([("old", at, {"job_id": f"old-{at}"}) for at in range(30)])
        later = (await queue.add("later", delay=3_600_000)).id
        rows = spark.range(2).selectExpr("'7' as data", "'x' as orderingKey", f"if(id = 0, '{other}', null) as queue")
        options = {"url": url, "queue": queue_name, "jobName": "n", "overwrite": "drain", "writeId": "once"}
        for _ in range(2):
            rows.write.format("glidemq").mode("overwrite").options(**options).save()
            assert [job.data async for job in queue.iter_jobs("waiting")] == [7]
            assert [job.data async for job in beside.iter_jobs("waiting")] == [7]
        assert await ids_of(queue, "delayed") == {later}
        rows.limit(0).write.format("glidemq").mode("overwrite").options(**options | {"writeId": "none"}).save()
        assert not await ids_of(queue, "waiting")
        assert len(await ids_of(beside, "waiting")) == 1


@pytest.mark.parametrize("guarantee", ["append", "atomic"])
async def test_a_partition_is_a_queue_by_itself(url: str, queue_name: str, spark: Any, guarantee: str):
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        await queue.count()
        saver(spark, url, queue_name)(queue=partition_names(queue_name, PARTITIONS)[1], guarantee=guarantee)
        assert await queue.count() == 60
