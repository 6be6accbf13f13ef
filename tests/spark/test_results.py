"""Finished jobs as a stream: each once, whoever finished it and whatever its clock says; losses are reported."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, Queue, Worker
from glidemq_py.errors import DataLostError
from glidemq_py.testing import RespClient
from tests.inside import look_at
from tests.server.worker_support import EventRecorder
from tests.spark.queries import Driver, Query

AT = 1_800_000_000_000
INSTEAD = {
    "endingOffsets": "trigger", "includeHeaders": r"get_json_object\(opts", "minPartitions": "numPartitions",
    "topic": '"queue"', "subscribe": '"queue"', "kafka.bootstrap.servers": '"url"', "kafka.group.id": "remove it",
}  # fmt: skip
"""Options of Kafka's source, and what their errors name."""


class Finished:
    """Finishes jobs as the library of another client does: with its own clock, and without a number."""

    def __init__(self, resp: RespClient, queue: str):
        self._resp = resp
        self.queue = queue
        self.base = f"glide:{{{queue}}}:"
        self.jobs: list[str] = []

    def finish(self, count: int, at: int = AT, state: str = "completed") -> list[str]:
        new = [f"j{len(self.jobs) + n:05}" for n in range(count)]
        for job in new:
            self.run("ZADD", state, at, job)
            result = json.dumps({"job": job})
            fields = ("id", job, "name", "n", "state", state, "finishedOn", at, "returnvalue", result)
            self.run("HSET", f"job:{job}", *fields)
        self.jobs += new
        return new

    def remove(self, job: str):
        for index in ("completed", "failed"):
            self._resp.execute("ZREM", self.base + index, job)
        self._resp.execute("UNLINK", f"{self.base}job:{job}")

    def run(self, command: str, suffix: str, *arguments: Any) -> Any:
        return self._resp.execute(command, self.base + suffix, *arguments)


@pytest.fixture
def finished(resp: RespClient, queue_name: str) -> Finished:
    return Finished(resp, queue_name)


@pytest.fixture
def driver(url: str, queue_name: str) -> Driver:
    return Driver(url, queue_name)


def test_existing_and_later_results_are_read_once(driver: Driver, finished: Finished):
    assert driver.batch() == []
    first = finished.finish(50)
    reader = driver.reader()
    reader.prepareForTriggerAvailableNow()
    assert driver.batch(reader) == first
    before = finished.finish(20, AT - 60_000)
    same = finished.finish(20, AT)
    reader.prepareForTriggerAvailableNow()
    assert sorted(driver.batch(reader)) == [*before, *same]
    assert driver.batch() == []


def test_batches_and_partitions_are_bounded(driver: Driver, finished: Finished):
    jobs = finished.finish(100)
    reader = driver.reader(maxOffsetsPerTrigger="30", numPartitions="3")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    parts = reader.partitions(start, end)
    assert [(part.after, part.until) for part in parts] == [(0, 10), (10, 20), (20, 30)]
    batches = [driver.batch(reader) for _ in range(5)]
    assert [len(batch) for batch in batches] == [30, 30, 30, 10, 0]
    assert sorted(job for batch in batches for job in batch) == jobs


def test_batch_is_repeated_exactly(driver: Driver, finished: Finished):
    finished.finish(30)
    reader = driver.reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    first = driver.read(reader, start, end)
    finished.finish(30, AT - 5)
    assert driver.read(driver.reader(), start, end) == first


@pytest.mark.parametrize(("starting", "count"), [("latest", 0), ("earliest", 10), ("0", 10), ("4", 6), ("10", 0)])
def test_starting_offsets(driver: Driver, finished: Finished, starting: str, count: int):
    finished.finish(10)
    reader = driver.reader(startingOffsets=starting)
    assert len(driver.batch(reader)) == count
    assert reader.initialOffset() == reader.initialOffset()
    assert driver.batch() == []
    later = finished.finish(1)
    assert driver.batch() == later


def test_starting_timestamp(driver: Driver, finished: Finished):
    for n in range(10):
        finished.finish(1, AT + n)
    assert driver.batch(startingTimestamp=str(AT + 6)) == finished.jobs[6:]
    driver.offset = None
    assert driver.batch(startingTimestamp="2027-01-15T08:00:00.008Z") == finished.jobs[8:]
    driver.offset = None
    assert driver.batch(startingTimestamp=str(AT + 60_000)) == []


def test_states(driver: Driver, finished: Finished):
    done, failed = finished.finish(5), finished.finish(5, state="failed")
    assert driver.batch(state="failed") == failed
    driver.offset = None
    assert driver.batch(state="completed") == done
    driver.offset = None
    assert driver.batch() == [*done, *failed]


@pytest.mark.parametrize("fail", [True, False])
def test_removed_results_are_reported(driver: Driver, finished: Finished, fail: bool):
    driver.batch()
    jobs = finished.finish(10)
    reader = driver.reader(failOnDataLoss=str(fail).lower())
    start, end = driver.offset, reader.latestOffset(driver.offset)
    for job in jobs[2:5]:
        finished.remove(job)
    if fail:
        with pytest.raises(DataLostError, match="3 results were deleted before they were read"):
            driver.read(reader, start, end)
    else:
        assert driver.read(reader, start, end) == [*jobs[:2], *jobs[5:]]


def test_trimmed_results_are_counted_exactly(driver: Driver, finished: Finished):
    driver.batch()
    jobs = finished.finish(20)
    driver.reader().prepareForTriggerAvailableNow()
    finished.run("XTRIM", "results", "MAXLEN", "=", 8)
    with pytest.raises(DataLostError) as caught:
        driver.batch()
    assert caught.value.count == 12
    assert driver.batch(failOnDataLoss="false") == jobs[12:]
    finished.run("XTRIM", "results", "MAXLEN", "=", 0)
    assert driver.batch() == []  # what was trimmed had been read


def test_deleted_sequence_is_reported(driver: Driver, finished: Finished, resp: RespClient):
    finished.finish(10)
    driver.batch()
    for suffix in ("completed", "results", "meta"):
        resp.execute("UNLINK", finished.base + suffix)
    later = finished.finish(30)
    with pytest.raises(DataLostError, match="the results were deleted, or a failover"):
        driver.batch()
    assert driver.batch(failOnDataLoss="false") == later
    assert driver.batch() == []


def lose_the_last_five(finished: Finished, resp: RespClient):
    """Put the queue into the state after a failover to a server without them."""
    entries = finished.run("XRANGE", "results", "-", "+")[:-5]
    resp.execute("UNLINK", finished.base + "results")
    for entry, fields in entries:
        finished.run("XADD", "results", entry, *fields)


@pytest.mark.parametrize("more", [0, 4, 5, 20])
def test_failover_before_a_run_is_reported(driver: Driver, finished: Finished, resp: RespClient, more: int):
    """Though the end of the run is before its start, also if other jobs have got the numbers meanwhile."""
    lost = finished.finish(10)[5:]
    driver.batch()
    lose_the_last_five(finished, resp)
    for job in lost:
        finished.remove(job)
    reader = driver.reader()
    reader.prepareForTriggerAvailableNow()
    assert reader._targets[finished.queue]["number"] == 5
    finished.finish(more)
    with pytest.raises(DataLostError):
        driver.batch(reader)


@pytest.mark.parametrize("more", [4, 5, 20])
def test_failover_that_lost_numbers_is_reported(driver: Driver, finished: Finished, resp: RespClient, more: int):
    """The new primary lacks the last five entries, and has given their numbers to other jobs."""
    finished.finish(10)
    driver.batch()
    lose_the_last_five(finished, resp)
    finished.finish(more)
    with pytest.raises(DataLostError) as caught:
        driver.batch()
    assert caught.value.count is None
    driver.batch(failOnDataLoss="false")
    later = finished.finish(3)
    assert driver.batch() == later


def test_clock_that_steps_back_loses_nothing(driver: Driver, finished: Finished):
    first = finished.finish(5)
    assert driver.batch() == first
    second = finished.finish(5, AT - 3_600_000)
    assert driver.batch() == second
    third = finished.finish(5, AT - 3_600_000)
    assert driver.batch() == third


def test_result_deep_in_the_index_is_found(driver: Driver, finished: Finished):
    """Behind more new results than a call searches; the next parts of the search find it."""
    driver.batch()
    reader = driver.reader()
    reader.latestOffset(driver.offset)
    finished.finish(1_500)
    late = finished.finish(1, 5)
    found: list[str] = []
    for _ in range(8):
        look_at(reader, 0.0)
        found += driver.batch(reader)
    assert late[0] in found
    assert sorted(found) == sorted(finished.jobs)


def calls_of(resp: RespClient, command: str) -> int:
    """Return how often the server has run a command since the last reset."""
    found = re.search(rf"cmdstat_{command}:calls=(\d+)", str(resp.execute("INFO", "commandstats")))
    return int(found[1]) if found else 0


def test_idle_query_asks_the_server_rarely(driver: Driver, finished: Finished, resp: RespClient):
    """Spark asks the reader a hundred times a second."""
    finished.finish(300)
    reader = driver.reader()
    driver.batch(reader)
    while reader._pause < 0.25:
        look_at(reader, 0.0)
        assert driver.batch(reader) == []
    resp.execute("CONFIG", "RESETSTAT")
    look_at(reader, float("inf"))
    for _ in range(100):
        assert driver.batch(reader) == []
    assert reader.reportLatestOffset() == driver.offset
    assert calls_of(resp, "fcall") + calls_of(resp, "fcall_ro") == 0
    look_at(reader, 0.0)
    assert driver.batch(reader) == []
    assert calls_of(resp, "hmget") <= 20  # not of each kept result
    later = finished.finish(3)
    look_at(reader, 0.0)
    assert driver.batch(reader) == later


async def test_restarted_query_does_not_search_results_of_our_workers(
    driver: Driver, url: str, queue_name: str, resp: RespClient
):
    """All have a number, also if others were deleted, removed or requeued meanwhile: one read shows it."""

    async def handle(job: Job):
        if job.data % 10 == 0:
            raise RuntimeError

    async with Queue(queue_name, url) as queue:
        assert await asyncio.to_thread(driver.batch) == []
        keep: list[Any] = [{"remove_on_complete": {"count": 100}}, {"remove_on_complete": True}, {}]
        await queue.add_bulk([("n", i, keep[i % 3]) for i in range(600)])
        async with Worker(queue_name, handle, url, concurrency=20) as worker:
            recorded = EventRecorder(worker)
            await recorded.until(lambda seen: seen.count["completed"] + seen.count["failed"] == 600)
            removed = (await queue.get_jobs("failed", 0, 0))[0]
            await removed.remove()
            assert await queue.retry_jobs(20) == 20
            await recorded.wait("failed", 80)
        await queue.clean(0, 10, "failed")
        for expected in (True, False):
            reader = driver.reader(failOnDataLoss="false")
            await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
            resp.execute("CONFIG", "RESETSTAT")
            reader = driver.reader(failOnDataLoss="false")
            await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
            assert calls_of(resp, "hmget") <= 20
            assert bool(await asyncio.to_thread(driver.batch, reader)) == expected


def test_results_of_clients_that_delete_as_many_are_found(driver: Driver, finished: Finished):
    """The number of kept results stays the same."""
    first = finished.finish(300)
    assert sorted(driver.batch()) == first
    new: list[str] = []
    for gone in first[:250]:
        finished.remove(gone)
        new += finished.finish(1, AT - 1_000)
        if len(new) in (1, 125, 250):  # the newest result, which has a number, stays
            reader = driver.reader(failOnDataLoss="false")
            reader.prepareForTriggerAvailableNow()
            expected, new = new, []
            assert sorted(driver.batch(reader)) == expected


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("state", "waiting", "must be one of 'completed', 'failed'"),
        ("startingOffsets", "1-2", "must be earliest, latest or a number from 0 to 0"),
        ("startingOffsets", "7", "must be earliest, latest or a number from 0 to 0"),
        ("startingTimestamp", "today", "must be milliseconds since 1970"),
        ("view", "writes", "cannot be read as a stream"),
        *((name, "x", f"is not supported: .*{instead}") for name, instead in INSTEAD.items()),
    ],
)
def test_invalid_options_are_rejected(driver: Driver, option: str, text: str, problem: str):
    with pytest.raises(GlideMQValidationError, match=f"'{option}' = '{text}': {problem}"):
        driver.reader(**{option: text}).initialOffset()


# -- with Spark ----------------------------------------------------------------------------------------------


@pytest.fixture
def stream(spark: Any, url: str, queue_name: str, tmp_path: Path) -> Iterator[Query]:
    schema = "id string, state string, returnvalue string"
    yield Query(spark, tmp_path, schema, url=url, queue=queue_name, view="jobs")
    for query in spark.streams.active:
        query.stop()


def test_restarted_query_reads_each_result_once(stream: Query, finished: Finished, bounded: None):
    finished.finish(500)
    assert stream.run(maxOffsetsPerTrigger=200, state="completed") == [200, 200, 100]
    stream.forget_commit()
    finished.finish(50, AT - 1)
    assert stream.run(state="completed") == [50]  # the sink skips the repeated batch, whose files it has
    assert stream.run(state="completed") == []
    rows = stream.rows()
    assert sorted(row.id for row in rows) == finished.jobs
    assert {row.state for row in rows} == {"completed"}
    assert all(json.loads(row.returnvalue) == {"job": row.id} for row in rows)


def test_lost_results_fail_the_query(stream: Query, finished: Finished):
    finished.finish(10)
    stream.run()
    finished.finish(10)
    finished.run("XADD", "results", "0-15", "job", "gone", "at", "1", "state", "c")
    with pytest.raises(Exception, match="results were deleted before they were read"):
        stream.run()
    assert stream.run(failOnDataLoss="false") == [10]


async def test_results_of_running_workers_are_streamed(
    stream: Query, spark: Any, url: str, queue_name: str, finished: Finished, sink: Callable[..., Any]
):
    """Spark writes jobs, workers and another client finish them while the query runs, and Spark reads the results."""

    async def handle(job: Job) -> Any:
        return job.data["n"] * 2

    query = stream.start(available_now=False)
    sink(spark.range(1_000).selectExpr("struct(id as n) as data")).save()
    async with Queue(queue_name, url) as queue:
        worker = Worker(queue_name, handle, url, concurrency=20)
        recorded = EventRecorder(worker)
        async with worker:
            finished.finish(100, 1_000)
            await recorded.wait("completed", 1_000)
            finished.finish(100)
        counts = await queue.get_job_counts()
    assert counts.completed == 1_200
    query.stop()
    while stream.run():  # what the query had not read yet; with PySpark 4.1, a run ends after a repeated batch
        pass
    rows = stream.rows()
    assert len({row.id for row in rows}) == len(rows) == 1_200
    assert sorted(int(row.returnvalue) for row in rows if row.id.isdigit()) == [n * 2 for n in range(1_000)]
