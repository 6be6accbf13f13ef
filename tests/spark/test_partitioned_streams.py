"""Streams that read partitioned queues: each entry once, also when the queue is created later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Queue, Worker
from glidemq_py.errors import DataLostError
from glidemq_py.spark import results_reader
from glidemq_py.spark.source import make_stream_reader
from glidemq_py.spark.stream_reader import divided
from glidemq_py.testing import RespClient
from tests.inside import look_at, losses_of, results, split_partition_id
from tests.spark.queries import Query

COLUMNS = {"jobs": "id string, returnvalue string", "events": "eventId string, event string, jobId string"}


class Driver:
    """Calls a reader as Spark does, without Spark: a restarted query for each micro-batch."""

    def __init__(self, url: str, queue: str, view: str):
        self._options = {"url": url, "queue": queue, "view": view, "startingOffsets": "earliest", "fetchSize": "7"}
        self._view = view
        self.offset: Any = None

    def reader(self, **options: str | None) -> Any:
        from pyspark.sql.types import StringType, StructField, StructType

        names = [column.split()[0] for column in COLUMNS[self._view].split(", ")]
        given = {name: text for name, text in (self._options | options).items() if text is not None}
        return make_stream_reader(given, StructType([StructField(name, StringType()) for name in names]))

    async def batch(self, **options: str | None) -> list[dict[str, str]]:
        """Read one micro-batch, and repeat it by another reader; return its rows."""

        def read() -> list[dict[str, str]]:
            reader = self.reader(**options)
            start = self.offset or json.loads(json.dumps(reader.initialOffset()))
            end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
            found, repeated = (rows_of(each, start, end) for each in (reader, self.reader(**options)))
            assert found == repeated
            self.offset = end
            return found

        return await asyncio.to_thread(read)

    async def ids(self, **options: str | None) -> list[str]:
        """Read one micro-batch; return the ids of its jobs, sorted; of events, those of the jobs that were added."""
        rows = await self.batch(**options)
        if self._view == "jobs":
            return sorted(row["id"] for row in rows)
        return sorted(row["jobId"] for row in rows if row["event"] == "added")


def rows_of(reader: Any, start: Any, end: Any) -> list[dict[str, str]]:
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


async def add(queue: Queue, count: int = 30, **options: Any) -> list[str]:
    """Add jobs without keys, and return their ids, sorted."""
    return sorted([(await queue.add("n", at, **options)).id for at in range(count)])


async def drain(queue: Queue, url: str):
    async def handle(job: Any) -> Any:
        await asyncio.sleep(0)
        return job.data

    async with Worker(queue.name, handle, url, concurrency=10) as worker:
        await worker.drain()


def partitions_of(ids: list[str]) -> set[int]:
    return {split_partition_id(job_id)[0] for job_id in ids}


def time_of(event_id: str) -> tuple[int, int]:
    ms, _, number = split_partition_id(event_id)[1].partition("-")
    return int(ms), int(number)


# -- with Spark ----------------------------------------------------------------------------------------------


async def test_events_are_read_once_if_the_queue_is_created_later(
    spark: Any, url: str, queue_name: str, tmp_path: Path
):
    stream = Query(spark, tmp_path, COLUMNS["events"], url=url, queue=queue_name, view="events")
    stream.run()
    async with Queue(queue_name, url, partitions=4) as queue:
        wanted = await add(queue)
        stream.run()
        wanted += await add(queue)
        stream.run()
        rows = stream.rows()
        assert sorted(row.jobId for row in rows if row.event == "added") == sorted(wanted)
        assert len({row.eventId for row in rows}) == len(rows)
        assert partitions_of([row.eventId for row in rows]) == set(range(4))
        assert stream.run() == []


async def test_results_are_read_once_if_the_queue_is_created_meanwhile(
    spark: Any, url: str, queue_name: str, tmp_path: Path
):
    stream = Query(spark, tmp_path, COLUMNS["jobs"], url=url, queue=queue_name, view="jobs")
    wanted: list[str] = []
    query = stream.start(available_now=False)
    async with Queue(queue_name, url, partitions=4) as queue:
        for _ in range(2):
            found = await add(queue)
            assert partitions_of(found) == set(range(4))
            wanted += found
            await drain(queue, url)
        query.stop()
        while stream.run():  # what the query had not read yet; with PySpark 4.1, a run ends after a repeated batch
            pass
    rows = stream.rows()
    assert sorted(row.id for row in rows) == sorted(wanted)
    assert sorted(int(row.returnvalue) for row in rows) == sorted([*range(30)] * 2)


# -- without Spark -------------------------------------------------------------------------------------------


@pytest.fixture
def driver(url: str, queue_name: str) -> Callable[[str], Driver]:
    return lambda view: Driver(url, queue_name, view)


Drivers = Callable[[str], Driver]
VIEWS = pytest.mark.parametrize("view", ["jobs", "events"])


async def filled(queue: Queue, url: str, view: str, **options: Any) -> list[str]:
    """Add entries to all partitions, and return the ids of their jobs, sorted."""
    found = await add(queue, **options)
    if view == "jobs":
        await drain(queue, url)
    return found


@VIEWS
async def test_starts(driver: Drivers, url: str, queue_name: str, view: str):
    latest = driver(view)
    async with Queue(queue_name, url, partitions=3) as queue:
        before = await filled(queue, url, view)
        assert await latest.ids(startingOffsets="latest") == []
        assert partitions_of([row[1] for row in latest.offset["partitions"]]) == {0}
        after = await filled(queue, url, view)
        assert await latest.ids() == after
        assert await driver(view).ids() == sorted(before + after)
        timed = driver(view).ids(startingOffsets=None, startingTimestamp="1000")
        assert await timed == sorted(before + after)


async def test_numbers_of_results_are_those_of_a_partition(driver: Drivers, url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        await queue.count()
        with pytest.raises(GlideMQValidationError, match="'0': must be earliest or latest in a partitioned queue"):
            await driver("jobs").batch(startingOffsets="0")


@VIEWS
@pytest.mark.parametrize("most", [2, 12])
async def test_batches_are_bounded(driver: Drivers, url: str, queue_name: str, view: str, most: int):
    """Also by fewer than there are partitions."""
    reading = driver(view)
    async with Queue(queue_name, url, partitions=3) as queue:
        assert await reading.ids() == []
        wanted = await filled(queue, url, view)
        found: list[str] = []
        while batch := await reading.ids(maxOffsetsPerTrigger=str(most)):
            assert len(batch) == min(most, len(wanted) - len(found))
            found += batch
        assert sorted(found) == wanted


async def test_tasks_are_bounded(driver: Drivers, url: str, queue_name: str):
    reading = driver("jobs")
    async with Queue(queue_name, url, partitions=2) as queue:
        assert await reading.ids() == []
        await filled(queue, url, "jobs", count=60)
        for most, tasks in ((1, 2), (4, 4), (100, 10)):
            reader = reading.reader(numPartitions=str(most))
            end = await asyncio.to_thread(reader.latestOffset, reading.offset)
            assert len(await asyncio.to_thread(reader.partitions, reading.offset, end)) == tasks


def test_a_limit_is_divided():
    assert divided({"a": 1, "b": 100, "c": 100}, 21) == {"a": 1, "b": 10, "c": 10}
    assert divided({"a": 100, "b": 0, "c": 3}, 2) == {"b": 0, "c": 1, "a": 1}
    assert divided({"a": 5, "b": 5}, 1) == {"a": 1, "b": 0}
    assert divided({"a": 1, "b": 0, "c": 9, "d": 8}, 2) == {"a": 0, "b": 0, "c": 1, "d": 1}


async def test_a_small_limit_starves_no_partition(driver: Drivers, url: str, queue_name: str):
    """Also while more events are added than are read."""
    reading = driver("events")
    async with Queue(queue_name, url, partitions=4) as queue:
        assert await reading.ids() == []
        full = split_partition_id((await queue.add("n", ordering={"key": "k"})).id)[0]
        for _ in range(10):
            await queue.add("n", ordering={"key": "k"})
        for _ in range(5):
            await add(queue, 8)
            rows = await reading.batch(maxOffsetsPerTrigger="2")
            assert len(rows) == 2
            assert full in partitions_of([row["eventId"] for row in rows])


async def test_searches_take_turns(driver: Drivers, url: str, queue_name: str, resp: RespClient):
    """Jobs that another client has finished, without a number, in one of more partitions than a search looks at."""
    reading = driver("jobs")
    async with Queue(queue_name, url, partitions=20) as queue:
        names = (await queue.settings.get_partitions()).names
        assert await reading.ids() == []
        for number, name in enumerate(names):
            resp.execute("ZADD", f"glide:{{{name}}}:completed", 5, "done")
            fields = ("id", "done", "name", "n", "state", "completed", "finishedOn", 5, "returnvalue", str(number))
            resp.execute("HSET", f"glide:{{{name}}}:job:done", *fields)
        reader, found = reading.reader(), list[str]()
        for count in (8, 8, 4):
            look_at(reader, 0.0)
            end = await asyncio.to_thread(reader.latestOffset, reading.offset)
            rows = await asyncio.to_thread(rows_of, reader, reading.offset, end)
            assert len(rows) == count
            found += [row["id"] for row in rows]
            reading.offset = end
        assert sorted(found) == sorted(["done", *(f"{number}||done" for number in range(1, 20))])


@pytest.mark.parametrize("partitions", [1, 4])
async def test_a_run_reads_nothing_of_a_partition_that_was_empty(
    driver: Drivers, url: str, queue_name: str, partitions: int
):
    reading = driver("jobs")
    async with Queue(queue_name, url, partitions=None if partitions == 1 else partitions) as queue:
        wanted = await filled(queue, url, "jobs", count=2) if partitions > 1 else []
        reader = reading.reader(maxOffsetsPerTrigger="100")
        start = await asyncio.to_thread(reader.initialOffset)
        await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
        found: list[str] = []
        for _ in range(3):
            wanted_later = await filled(queue, url, "jobs")
            assert partitions_of(wanted_later) == set(range(partitions))
            end = await asyncio.to_thread(reader.latestOffset, start, reader.getDefaultReadLimit())
            found += [row["id"] for row in await asyncio.to_thread(rows_of, reader, start, end)]
            start = end
        assert sorted(found) == wanted


@VIEWS
async def test_a_run_ends_with_what_exists_when_it_starts(driver: Drivers, url: str, queue_name: str, view: str):
    reading = driver(view)
    async with Queue(queue_name, url, partitions=2) as queue:
        before = await filled(queue, url, view)
        reader = reading.reader()
        start = await asyncio.to_thread(reader.initialOffset)
        await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
        after = await filled(queue, url, view)
        look_at(reader, 0.0)
        end = await asyncio.to_thread(reader.latestOffset, start, reader.getDefaultReadLimit())
        rows = await asyncio.to_thread(rows_of, reader, start, end)
        assert sorted(row["id"] if view == "jobs" else row["jobId"] for row in rows) == before
        reading.offset = end
        assert await reading.ids() == after


async def test_results_that_a_new_partition_has_deleted_are_counted(driver: Drivers, url: str, queue_name: str):
    """The sequence of a new partition is on from its beginning, also if no reader is running."""
    reading = driver("jobs")
    assert await reading.ids() == []
    async with Queue(queue_name, url, partitions=4) as queue:
        found = await filled(queue, url, "jobs", remove_on_complete=True)
        new = [job_id for job_id in found if split_partition_id(job_id)[0]]
        with pytest.raises(DataLostError):
            await reading.batch()
        reader = reading.reader(failOnDataLoss="false")
        lost = losses_of(reader)
        end = await asyncio.to_thread(reader.latestOffset, reading.offset)
        assert await asyncio.to_thread(rows_of, reader, reading.offset, end) == []
        assert sum(count or 0 for count in lost) == 30 > len(new) > 0


@VIEWS
async def test_a_layout_that_a_failover_has_lost(
    driver: Drivers, url: str, queue_name: str, view: str, resp: RespClient
):
    """The partitions that the query knows are read on, with their ids, and once."""
    reading = driver(view)
    async with Queue(queue_name, url, partitions=3) as queue:
        first = await filled(queue, url, view)
        assert await reading.ids() == first
        second = await filled(queue, url, view)
    meta = f"glide:{{{queue_name}}}:meta"
    layout = resp.execute("HGET", meta, "partitions")
    resp.execute("HDEL", meta, "partitions")
    assert await reading.ids() == second
    assert await reading.ids() == []
    resp.execute("HSET", meta, "partitions", layout)
    async with Queue(queue_name, url) as queue:
        assert await reading.ids() == []
        third = await filled(queue, url, view)
        assert partitions_of(third) == {0, 1, 2}
        assert await reading.ids() == third


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_batch_of_results_that_is_repeated_after_the_queue_was_deleted(
    driver: Drivers, url: str, queue_name: str, partitions: int
):
    """It reads none of the new results: the next batch reads all of them."""
    reading, other = driver("jobs"), driver("jobs")
    count = None if partitions == 1 else partitions
    async with Queue(queue_name, url, partitions=count) as queue:
        assert await reading.ids() == []
        start = reading.offset
        await filled(queue, url, "jobs", count=10)
        await reading.batch()
        await queue.obliterate(force=True)
    async with Queue(queue_name, url, partitions=count) as queue:
        assert await other.ids() == []
        wanted = await filled(queue, url, "jobs")
        reader = reading.reader(failOnDataLoss="false")
        lost = losses_of(reader)
        assert await asyncio.to_thread(rows_of, reader, start, reading.offset) == []
        assert lost == [None] * partitions
        with pytest.raises(DataLostError):
            await asyncio.to_thread(reading.reader().partitions, start, reading.offset)
        assert await reading.ids(failOnDataLoss="false") == wanted


@pytest.mark.parametrize("more", [0, 1, 5])
async def test_events_that_a_failover_has_lost(driver: Drivers, url: str, queue_name: str, resp: RespClient, more: int):
    """The events that are left were read, and are not read again."""
    reading = driver("events")
    async with Queue(queue_name, url, partitions=2) as queue:
        assert await reading.ids() == []
        await add(queue)
        await reading.batch()
        name = (await queue.settings.get_partitions()).names[1]
    key = f"glide:{{{name}}}:events"
    events = resp.execute("XRANGE", key, "-", "+")
    resp.execute("DEL", key)
    for entry, fields in events[:-2]:
        resp.execute("XADD", key, entry, *fields)
    run, start = reading.reader(), reading.offset
    await asyncio.to_thread(run.prepareForTriggerAvailableNow)
    for number in range(more):
        resp.execute("XADD", key, "*", "event", "added", "jobId", f"new-{number}")
    end = await asyncio.to_thread(run.latestOffset, start, run.getDefaultReadLimit())
    with pytest.raises(DataLostError):  # though the end of the run is before its start
        await asyncio.to_thread(rows_of, run, start, end)
    with pytest.raises(DataLostError, match="a failover has lost some of them"):
        await reading.batch()
    reader = reading.reader(failOnDataLoss="false")
    lost = losses_of(reader)
    end = await asyncio.to_thread(reader.latestOffset, start)
    rows = await asyncio.to_thread(rows_of, reader, start, end)
    assert [row["jobId"] for row in rows] == [f"1||new-{number}" for number in range(more)]
    assert lost == [-2 if more > 2 else None]  # a negative count is reported as none
    reading.offset = end
    resp.execute("XADD", key, "*", "event", "added", "jobId", "last")
    assert await reading.ids() == ["1||last"]


async def test_events_that_were_trimmed_beyond_the_end_of_a_run(
    driver: Drivers, url: str, queue_name: str, resp: RespClient
):
    """Those that came later are read by the next run, once."""
    reading, options = driver("events"), {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "80"}
    key = f"glide:{{{queue_name}}}:events"

    def emit(first: int, count: int):
        for number in range(first, first + count):
            resp.execute("XADD", key, "*", "event", "added", "jobId", number)

    async with Queue(queue_name, url) as queue:
        await queue.count()
        emit(0, 10)
        await reading.batch()
        emit(10, 150)
        reader, start = reading.reader(**options), reading.offset
        await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
        emit(160, 130)
        resp.execute("XTRIM", key, "MAXLEN", "=", 100)
        lost = losses_of(reader)
        while True:
            end = await asyncio.to_thread(reader.latestOffset, start, reader.getDefaultReadLimit())
            if end == start:
                break
            assert await asyncio.to_thread(rows_of, reader, start, end) == []
            start = end
        assert lost == [150]
        reading.offset = start
        with pytest.raises(DataLostError, match="30 events were deleted"):
            await reading.batch()
        assert sorted(map(int, await reading.ids(failOnDataLoss="false"))) == [*range(190, 290)]


async def test_a_queue_that_is_deleted_while_it_is_read_is_not_created_again(
    driver: Drivers, url: str, queue_name: str, resp: RespClient
):
    reading = driver("jobs")
    async with Queue(queue_name, url, partitions=4) as queue:
        await filled(queue, url, "jobs")
        reader = reading.reader()
        start = await asyncio.to_thread(reader.initialOffset)
        await asyncio.to_thread(reader.latestOffset, start)
        look_at(reader, float("inf"))
        await queue.obliterate(force=True)
        assert await asyncio.to_thread(reader.latestOffset, start) == start
        left = resp.keys(f"glide:{{{queue_name}*")
        assert [key for key in left if not key.endswith(":deleted-layout")] == []  # its marks are kept for a day


async def test_a_poll_without_a_start_asks_each_partition_once(
    driver: Drivers, url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """That of PySpark 4.1."""
    async with Queue(queue_name, url, partitions=3) as queue:
        await filled(queue, url, "jobs")
        reader = driver("jobs").reader()
        start = await asyncio.to_thread(reader.initialOffset)
        end = await asyncio.to_thread(reader.latestOffset, start)
        asked: list[str] = []

        def range_of(meta: str, *args: int) -> Any:
            asked.append(meta)
            return results.range_of(meta, *args)

        monkeypatch.setattr(results_reader, "results", SimpleNamespace(**vars(results) | {"range_of": range_of}))
        look_at(reader, float("inf"))
        assert await asyncio.to_thread(reader.latestOffset) == end
        assert len(asked) == len(set(asked)) == 3


async def test_events_start_after_an_id_with_its_partition(driver: Drivers, url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        await add(queue)
        ids = [row["eventId"] for row in await driver("events").batch()]
        times = sorted(time_of(event_id) for event_id in ids)
        at = "{}-{}".format(*times[9])
        found = await driver("events").batch(startingOffsets=f"1||{at}")
        assert {row["eventId"] for row in found} == {each for each in ids if time_of(each) > times[9]}


@VIEWS
@pytest.mark.parametrize("again", [1, 4])
async def test_a_queue_that_was_deleted(
    driver: Drivers, url: str, queue_name: str, view: str, again: int, resp: RespClient
):
    reading = driver(view)
    async with Queue(queue_name, url, partitions=3) as queue:
        await filled(queue, url, view)
        await reading.batch()
        await queue.obliterate(force=True)
    async with Queue(queue_name, url, partitions=None if again == 1 else again) as queue:
        wanted = await filled(queue, url, view)
        with pytest.raises(DataLostError, match=f"queue '{queue_name}': .* deleted"):
            await reading.batch()
        assert await reading.ids(failOnDataLoss="false") == wanted
        later = await filled(queue, url, view)
        assert await reading.ids(failOnDataLoss="false") == later
        assert len((await queue.settings.get_partitions()).names) == again
    keys = [key for key in resp.keys(f"glide:{{{queue_name}*") if not key.endswith(":deleted-layout")]
    names = {key.partition("}")[0] for key in keys}
    assert len(names) == again  # nothing is written to partitions that were deleted
