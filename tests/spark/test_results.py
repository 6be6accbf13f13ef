"""Finished jobs as a stream: each once, whoever finished it and whatever its clock says; losses are reported."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, Queue, ResultsLostError, UnsupportedOptionError, Worker
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder

AT = 1_800_000_000_000


class Finished:
    """Finishes jobs as the library of another client does: with its own clock, and without a number."""

    def __init__(self, resp: RespClient, queue: str) -> None:
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

    def remove(self, job: str) -> None:
        for index in ("completed", "failed"):
            self._resp.execute("ZREM", self.base + index, job)
        self._resp.execute("UNLINK", f"{self.base}job:{job}")

    def run(self, command: str, suffix: str, *arguments: Any) -> Any:
        return self._resp.execute(command, self.base + suffix, *arguments)


@pytest.fixture
def finished(resp: RespClient, queue_name: str) -> Finished:
    return Finished(resp, queue_name)


class Driver:
    """Calls a reader as Spark does, without Spark."""

    def __init__(self, url: str, queue: str) -> None:
        self._options = {"url": url, "queue": queue, "startingoffsets": "earliest", "fetchsize": "7"}
        self.offset: dict[str, Any] | None = None

    def reader(self, **options: str) -> Any:
        for module in ("pyarrow", "pyspark"):
            pytest.importorskip(module)
        from glidemq_py.spark.read_options import ReadOptions
        from glidemq_py.spark.results_reader import ResultsReader

        chosen = self._options | {name.lower(): text for name, text in options.items()}
        if "startingtimestamp" in chosen:
            del chosen["startingoffsets"]
        return ResultsReader(ReadOptions.parse(chosen, streaming=True), (("id", "string"),))

    def batch(self, reader: Any = None, **options: str) -> list[str]:
        """Read one micro-batch with a restarted query, or with this reader; return the ids of its jobs."""
        reader = reader or self.reader(**options)
        start = self.offset or json.loads(json.dumps(reader.initialOffset()))
        end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
        found = self.read(reader, start, end)
        self.offset = end
        return found

    def read(self, reader: Any, start: Any, end: Any) -> list[str]:
        parts = reader.partitions(start, end)
        return [job for part in parts for batch in reader.read(part) for job in batch.column(0).to_pylist()]


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
        with pytest.raises(ResultsLostError, match="3 results were deleted before they were read"):
            driver.read(reader, start, end)
    else:
        assert driver.read(reader, start, end) == [*jobs[:2], *jobs[5:]]


def test_trimmed_results_are_counted_exactly(driver: Driver, finished: Finished):
    driver.batch()
    jobs = finished.finish(20)
    driver.reader().prepareForTriggerAvailableNow()
    finished.run("XTRIM", "results", "MAXLEN", "=", 8)
    with pytest.raises(ResultsLostError) as caught:
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
    with pytest.raises(ResultsLostError, match="the result sequence was deleted"):
        driver.batch()
    assert driver.batch(failOnDataLoss="false") == later
    assert driver.batch() == []


def lose_the_last_five(finished: Finished, resp: RespClient) -> None:
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
    with pytest.raises(ResultsLostError):
        driver.batch(reader)


@pytest.mark.parametrize("more", [4, 5, 20])
def test_failover_that_lost_numbers_is_reported(driver: Driver, finished: Finished, resp: RespClient, more: int):
    """The new primary lacks the last five entries, and has given their numbers to other jobs."""
    finished.finish(10)
    driver.batch()
    lose_the_last_five(finished, resp)
    finished.finish(more)
    with pytest.raises(ResultsLostError) as caught:
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
        reader._next_look = 0.0
        found += driver.batch(reader)
    assert late[0] in found
    assert sorted(found) == sorted(finished.jobs)


def test_waiting_query_rarely_searches(driver: Driver, finished: Finished, resp: RespClient):
    finished.finish(3)
    reader = driver.reader()
    driver.batch(reader)
    resp.execute("CONFIG", "RESETSTAT")
    reader._next_look = float("inf")
    assert driver.batch(reader) == []
    stats = str(resp.execute("INFO", "commandstats"))
    assert "cmdstat_zrange" not in stats
    assert "cmdstat_fcall" in stats


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"state": "waiting"}, "'state' = 'waiting': must be completed, failed, or both"),
        ({"startingOffsets": "1-2"}, "'startingOffsets' = '1-2': must be earliest, latest or a number from 0 to 0"),
        ({"startingOffsets": "7"}, "'startingOffsets' = '7': must be earliest, latest or a number from 0 to 0"),
        ({"startingTimestamp": "today"}, "'startingTimestamp' = 'today': must be milliseconds since 1970"),
        ({"view": "writes"}, "'view' = 'writes': cannot be read as a stream"),
    ],
)
def test_invalid_options_are_rejected(driver: Driver, options: dict[str, str], problem: str):
    with pytest.raises(GlideMQValidationError, match=problem):
        driver.reader(**options).initialOffset()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("endingOffsets", "trigger"), ("includeHeaders", r"get_json_object\(opts"), ("minPartitions", "numPartitions"),
        ("topic", '"queue"'), ("subscribe", '"queue"'), ("kafka.bootstrap.servers", '"url"'),
        ("kafka.group.id", "remove it"),
    ],
)  # fmt: skip
def test_options_of_kafka_are_rejected_with_what_to_use(driver: Driver, name: str, instead: str):
    with pytest.raises(UnsupportedOptionError, match=f"'{name}' = 'x': is not supported: .*{instead}"):
        driver.reader(**{name: "x"})


# -- with Spark ----------------------------------------------------------------------------------------------


class Stream:
    """A query that reads results into files, a run at a time."""

    def __init__(self, spark: Any, url: str, queue: str, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._options = {"url": url, "queue": queue, "view": "jobs", "startingOffsets": "earliest"}

    def start(self, available_now: bool = True, **options: Any) -> Any:
        reader = self._spark.readStream.format("glidemq").options(**self._options | options)
        reader = reader.schema("id string, state string, returnvalue string").load()
        writer = reader.writeStream.format("parquet").option("checkpointLocation", str(self._folder / "checkpoint"))
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start(str(self._folder / "out"))

    def run(self, **options: Any) -> list[int]:
        """Rows of each micro-batch of this run."""
        query = self.start(**options)
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def forget_commit(self) -> None:
        """As if the driver had died after the rows were written and before Spark's commit."""
        newest = max((self._folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)

    def rows(self) -> list[Any]:
        return list(self._spark.read.parquet(str(self._folder / "out")).collect())


@pytest.fixture
def stream(spark: Any, url: str, queue_name: str, tmp_path: Path) -> Iterator[Stream]:
    yield Stream(spark, url, queue_name, tmp_path)
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def bounded(spark: Any) -> None:
    """Micro-batches of streams can be bounded since PySpark 4.2."""
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 2):
        pytest.skip(f"PySpark {spark.version} does not bound micro-batches")


def test_restarted_query_reads_each_result_once(stream: Stream, finished: Finished, bounded: None):
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


def test_lost_results_fail_the_query(stream: Stream, finished: Finished):
    finished.finish(10)
    stream.run()
    finished.finish(10)
    finished.run("XADD", "results", "0-15", "job", "gone", "at", "1", "state", "c")
    with pytest.raises(Exception, match="results were deleted before they were read"):
        stream.run()
    assert stream.run(failOnDataLoss="false") == [10]


async def test_results_of_running_workers_are_streamed(
    stream: Stream, spark: Any, url: str, queue_name: str, finished: Finished, sink: Callable[..., Any]
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
