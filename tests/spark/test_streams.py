"""Streams: each micro-batch is written once, across crashes and restarts; events are read by exact offsets."""

import json
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError
from glidemq_py.testing import RespClient
from tests.spark.conftest import ROOT, Written
from tests.spark.queries import Driver, Query, forget_commit


class Stream:
    """Files in a folder, read two a micro-batch of 100 rows each, and written to a queue."""

    def __init__(self, spark: Any, folder: Path, url: str, queue: str):
        from tests.spark.faults import FaultySource

        spark.dataSource.register(FaultySource)
        self._spark, self.folder, self.notes, self.queue = spark, folder, folder / "notes", queue
        self._options = {"url": url, "queue": queue, "jobName": "n"}
        for name in ("in", "notes"):
            (folder / name).mkdir()
        self.rows = 0

    def add(self, files: int, queues: int = 0):
        """Add files of rows, for so many other queues; 0 = for the queue of the option."""
        for _ in range(files):
            numbers = range(self.rows, self.rows + 100)
            rows = [{"data": str(n)} | ({"queue": f"{self.queue}-{n % queues}"} if queues else {}) for n in numbers]
            self.rows += 100
            (self.folder / "in" / f"{self.rows:05}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self, **options: Any):
        """Wait until all present rows are written."""
        source = self._spark.readStream.schema("data string, queue string").option("maxFilesPerTrigger", 2)
        writer = source.json(str(self.folder / "in")).repartition(2).writeStream
        writer = (
            writer.format("faulty").trigger(availableNow=True).options(folder=self.notes, **self._options, **options)
        )
        writer.option("checkpointLocation", str(self.folder / "checkpoint")).start().awaitTermination()

    def forget_commit(self):
        """As if the driver had died after the queue's commit and before Spark's."""
        forget_commit(self.folder / "checkpoint")

    @property
    def expected(self) -> list[str]:
        return [str(n) for n in range(self.rows)]

    def check(self, written: Written):
        """Each row is one job, and nothing is left but the number of the last micro-batch."""
        written.check(self.expected, {"string"})
        assert [name.split(":")[0] for name in written.staged] == ["write-stream"]


@pytest.fixture
def stream(spark: Any, tmp_path: Path, url: str, queue_name: str) -> Stream:
    return Stream(spark, tmp_path, url, queue_name)


def test_stream_is_written_once(stream: Stream, written: Written):
    stream.add(4)
    stream.run()
    stream.check(written)
    stream.add(2)
    stream.run()
    stream.check(written)


@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_failed_stream_task_is_retried(stream: Stream, written: Written, fault: str):
    stream.add(2)
    stream.run(fault=fault, faultrow=50)
    stream.check(written)


def test_failed_micro_batch_is_repeated(stream: Stream, written: Written):
    stream.add(4)
    with pytest.raises(Exception, match="on purpose"):
        stream.run(fault="raise", faultrow=50, faultattempts=9)
    stream.run()
    stream.check(written)


@pytest.mark.parametrize("calls", ["before", "2", "after"])
def test_a_stream_whose_commit_crashes(stream: Stream, written: Written, calls: str):
    stream.add(4)
    with pytest.raises(Exception, match="Writing job failed"):
        stream.run(commit=calls, abort="never", batchSize=30)
    stream.run()
    stream.check(written)


def test_published_micro_batch_without_spark_commit(stream: Stream, written: Written):
    stream.add(4)
    stream.run()
    stream.forget_commit()
    stream.add(2)
    stream.run()
    stream.check(written)


def test_a_stream_to_several_queues(stream: Stream, queue_name: str, resp: RespClient):
    stream.add(2, queues=2)
    stream.run()
    stream.forget_commit()
    stream.run()
    for i in range(2):
        Written(resp, f"{queue_name}-{i}").check([n for n in stream.expected if int(n) % 2 == i])


@pytest.mark.parametrize("guarantee", ["atomic", "append"])
def test_frames_of_a_stream(spark: Any, tmp_path: Path, url: str, queue_name: str, written: Written, guarantee: str):
    """`foreachBatch`: frames as any others, several of them in one micro-batch, each with its own name."""
    stream = Stream(spark, tmp_path, url, queue_name)
    stream.add(2)

    def save(frame: Any, batch: int):
        for part in (0, 1):
            options = {"url": url, "queue": queue_name, "jobName": "n", "guarantee": guarantee}
            if guarantee != "append":
                options["writeId"] = f"{queue_name}.{batch}.{part}"
            chosen = frame.where(f"cast(data as int) % 2 = {part}")
            chosen.write.format("glidemq").mode("append").options(**options).save()

    source = spark.readStream.schema("data string").json(str(tmp_path / "in")).repartition(2)
    for again in (False, True):
        if again:
            stream.forget_commit()
        writer = source.writeStream.foreachBatch(save).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        if guarantee == "append":
            break
    assert sorted(written.data) == sorted(stream.expected)


def test_documented_frames_survive_a_new_checkpoint(
    spark: Any, tmp_path: Path, url: str, queue_name: str, written: Written
):
    """Run the example of docs/learn/spark.md: a repeated batch adds nothing, the same number of another query does."""
    page = (ROOT / "docs" / "learn" / "spark.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    (code,) = (block for block in blocks if "foreachBatch" in block)
    code = code.replace('queue="orders"', f'url="{url}", queue="{queue_name}"')
    code = code.replace("orders.writeStream", "query = orders.writeStream")

    def run(number: int, checkpoint: str):
        rows = [{"data": str(n), "paid": True} for n in range(number * 100, number * 100 + 100)]
        folder = tmp_path / f"in-{number}"
        folder.mkdir(exist_ok=True)
        (folder / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        orders = spark.readStream.schema("data string, paid boolean").json(str(folder))
        names: dict[str, Any] = {"orders": orders}
        exec(code.replace("/data/checkpoints/ship", str(tmp_path / checkpoint)), names)
        query = names["query"]
        query.processAllAvailable()
        query.stop()

    run(0, "first")
    forget_commit(tmp_path / "first")
    run(0, "first")
    assert sorted(written.data, key=int) == [str(n) for n in range(100)]
    run(1, "second")
    assert sorted(written.data, key=int) == [str(n) for n in range(200)]


def test_reports_of_micro_batches(spark: Any, stream: Stream, url: str, queue_name: str):
    """The documented listener reads the report of each batch; Spark's progress has the number of rows only."""
    from pyspark.sql import functions

    from glidemq_py.spark import last_report

    stream.add(4)
    source = spark.readStream.schema("data string").option("maxFilesPerTrigger", 2).json(str(stream.folder / "in"))
    rows = source.observe("seen", functions.count("*").alias("rows"))
    writer = rows.writeStream.format("glidemq").trigger(availableNow=True)
    writer = writer.options(url=url, queue=queue_name, jobName="n")
    query = writer.option("checkpointLocation", str(stream.folder / "checkpoint")).start()
    query.awaitTermination()
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    reports = [last_report(queue_name, write_id=f"{query.id}.{each['batchId']}", url=url) for each in progress]
    assert [(report.jobs, report.rows, report.query) for report in reports if report] == [(200, 200, str(query.id))] * 2
    assert [each["observedMetrics"]["seen"]["rows"] for each in progress] == [200, 200]
    assert [each["sink"].get("metrics") or {} for each in progress] == [{}, {}]
    read = spark.read.format("glidemq").options(url=url, queue=queue_name, view="writes").load()
    assert [(row.state, row.jobs, row.repetitions) for row in read.collect()] == [("done", 200, 0)] * 2


def test_complete_output_mode_is_rejected(spark: Any, url: str, queue_name: str, tmp_path: Path):
    counts = spark.readStream.format("rate").load().groupBy("value").count()
    writer = counts.writeStream.format("glidemq").outputMode("complete").options(url=url, queue=queue_name, jobName="n")
    with pytest.raises(Exception, match="'outputMode' = 'complete'"):
        writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(600)


# -- reading events ------------------------------------------------------------------------------------------


class Events:
    """The events of a queue."""

    def __init__(self, resp: RespClient, queue: str):
        self._resp, self._key = resp, f"glide:{{{queue}}}:events"
        self.written = 0

    def emit(self, count: int) -> list[str]:
        """Add events, and return the ids of their jobs: consecutive numbers."""
        new = [str(self.written + n) for n in range(count)]
        for job in new:
            self._resp.execute("XADD", self._key, "*", "event", "added", "jobId", job, "name", "n")
        self.written += count
        return new

    def trim(self, keep: int):
        self._resp.execute("XTRIM", self._key, "MAXLEN", "=", keep)

    def delete(self):
        self._resp.execute("DEL", self._key)

    def ids(self) -> list[str]:
        return [entry for entry, _ in self._resp.execute("XRANGE", self._key, "-", "+")]


@pytest.fixture
def events(resp: RespClient, queue_name: str) -> Events:
    return Events(resp, queue_name)


@pytest.fixture
def query(spark: Any, url: str, queue_name: str, tmp_path: Path) -> Query:
    return Query(spark, tmp_path, "jobId string", url=url, queue=queue_name, view="events")


@pytest.fixture
def driver(url: str, queue_name: str) -> Driver:
    return Driver(url, queue_name, "events")


def jobs_in(query: Query) -> list[int]:
    return sorted(int(row.jobId) for row in query.rows())


def test_events_are_read_once_in_bounded_batches(events: Events, query: Query, bounded: None):
    events.emit(500)
    assert query.run(maxOffsetsPerTrigger=200) == [200, 200, 100]
    events.emit(750)
    assert query.run() == [750]
    assert query.run() == []
    assert jobs_in(query) == list(range(1_250))


def test_lost_events_fail_the_query(events: Events, query: Query):
    events.emit(200)
    assert query.run() == [200]
    events.emit(300)
    events.trim(299)
    with pytest.raises(Exception, match="1 events were deleted before they were read"):
        query.run()
    query.run(failOnDataLoss="false")
    assert jobs_in(query) == [*range(200), *range(201, 500)]


def test_unsupported_batch_limit_is_rejected(monkeypatch: pytest.MonkeyPatch, driver: Driver):
    from glidemq_py.spark import api

    monkeypatch.setattr(api, "ADMISSION", False)
    with pytest.raises(GlideMQValidationError, match=r"'maxOffsetsPerTrigger' = 5: requires PySpark 4\.2"):
        driver.reader(maxOffsetsPerTrigger="5")


def test_event_columns(spark: Any, url: str, queue_name: str, tmp_path: Path, resp: RespClient):
    fields = ("event", "completed", "jobId", "7", "x", "y")
    resp.execute("XADD", f"glide:{{{queue_name}}}:events", "1700000000123-4", *fields)
    schema = "eventId string, timestamp long, event string, jobId string, fields map<string,string>"
    query = Query(spark, tmp_path, schema, url=url, queue=queue_name, view="events")
    assert query.run() == [1]
    (row,) = query.rows()
    assert (row.eventId, row.timestamp, row.event, row.jobId) == (
        "1700000000123-4", 1_700_000_000_123, "completed", "7"
    )  # fmt: skip
    assert row.fields == {"x": "y"}
    default = spark.readStream.format("glidemq").options(url=url, queue=queue_name, view="events").load()
    kinds = [field.simpleString().partition(":")[2] for field in default.schema.fields]
    assert kinds == ["string", "timestamp", "string", "string", "map<string,string>"]


def test_events_are_read_once(events: Events, driver: Driver):
    for count in (700, 0, 50):
        new = events.emit(count)
        assert driver.batch() == new


@pytest.mark.parametrize("lost", [0, 1])
def test_lost_events_are_counted_exactly(events: Events, driver: Driver, lost: int):
    events.emit(200)
    driver.batch()
    new = events.emit(300)
    events.trim(300 - lost)
    if lost:
        with pytest.raises(Exception, match=rf"{lost} events were deleted before they were read"):
            driver.batch()
    assert driver.batch(failOnDataLoss=str(not lost).lower()) == new[lost:]


def test_trimming_read_events_is_not_a_loss(events: Events, driver: Driver):
    events.emit(300)
    driver.batch()
    events.trim(0)
    assert driver.batch() == []
    new = events.emit(10)
    assert driver.batch() == new


@pytest.mark.parametrize("more", [30, 99, 100, 900])
def test_a_queue_that_was_deleted(events: Events, driver: Driver, more: int):
    """And has had as many events since, or more, or fewer."""
    events.emit(100)
    driver.batch()
    events.delete()
    new = events.emit(more)
    with pytest.raises(Exception, match="the events were deleted, or a failover"):
        driver.batch()
    assert [*driver.batch(failOnDataLoss="false"), *driver.batch(failOnDataLoss="false")] == new
    new = events.emit(5)
    assert driver.batch() == new


@pytest.mark.parametrize("starting", ["latest", "id"])
def test_starting_offsets(events: Events, driver: Driver, starting: str):
    new = events.emit(40)
    if starting == "id":
        assert driver.batch(startingOffsets=events.ids()[29]) == new[30:]
    else:
        assert driver.batch(startingOffsets="latest") == []
    new = events.emit(7)
    assert driver.batch() == new
