"""Streams: each micro-batch is written once, across crashes and restarts; events are read by exact offsets."""

import json
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import UnsupportedOptionError
from glidemq_py.testing import RespClient
from tests.spark.conftest import ROOT, Written


def forget_commit(checkpoint: Path) -> None:
    """Delete Spark's record of the last batch: as if the driver had died after the queue's commit."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


class Stream:
    """Files in a folder, read two a micro-batch of 100 rows each, and written to a queue."""

    def __init__(self, spark: Any, folder: Path, url: str, queue: str) -> None:
        from tests.spark.faults import FaultySource

        spark.dataSource.register(FaultySource)
        self._spark, self.folder, self.notes = spark, folder, folder / "notes"
        self._options = {"url": url, "queue": queue, "jobName": "n"}
        for name in ("in", "notes"):
            (folder / name).mkdir()
        self.rows = 0

    def add(self, files: int) -> None:
        for _ in range(files):
            text = "".join(json.dumps({"data": str(n)}) + "\n" for n in range(self.rows, self.rows + 100))
            self.rows += 100
            (self.folder / "in" / f"{self.rows:05}.json").write_text(text)

    def run(self, **options: Any) -> None:
        """Wait until all present rows are written."""
        source = self._spark.readStream.schema("data string").option("maxFilesPerTrigger", 2)
        writer = source.json(str(self.folder / "in")).repartition(2).writeStream
        writer = (
            writer.format("faulty").trigger(availableNow=True).options(folder=self.notes, **self._options, **options)
        )
        writer.option("checkpointLocation", str(self.folder / "checkpoint")).start().awaitTermination()

    def forget_commit(self) -> None:
        """As if the driver had died after the queue's commit and before Spark's."""
        forget_commit(self.folder / "checkpoint")

    @property
    def expected(self) -> list[str]:
        return [str(n) for n in range(self.rows)]


@pytest.fixture
def stream(spark: Any, tmp_path: Path, url: str, queue_name: str) -> Stream:
    return Stream(spark, tmp_path, url, queue_name)


def ledger_only(written: Written) -> None:
    assert [(name.split(":")[0], kind) for name, kind in written.staged.items()] == [("write-stream", "string")]


def test_stream_is_written_once(stream: Stream, written: Written):
    stream.add(4)
    stream.run()
    written.check(stream.expected, {"string"})
    stream.add(2)
    stream.run()
    written.check(stream.expected, {"string"})
    ledger_only(written)


@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_failed_stream_task_is_retried(stream: Stream, written: Written, fault: str):
    stream.add(2)
    stream.run(fault=fault, faultrow=50)
    written.check(stream.expected, {"string"})


def test_failed_micro_batch_is_repeated(stream: Stream, written: Written):
    stream.add(4)
    with pytest.raises(Exception, match="on purpose"):
        stream.run(fault="raise", faultrow=50, faultattempts=9)
    stream.run()
    written.check(stream.expected, {"string"})
    ledger_only(written)


@pytest.mark.parametrize("calls", ["before", "2", "after"])
def test_a_stream_whose_commit_crashes(stream: Stream, written: Written, calls: str):
    stream.add(4)
    with pytest.raises(Exception, match="Writing job failed"):
        stream.run(commit=calls, abort="never", batchSize=30)
    stream.run()
    written.check(stream.expected, {"string"})
    ledger_only(written)


def test_published_micro_batch_without_spark_commit(stream: Stream, written: Written):
    stream.add(4)
    stream.run()
    stream.forget_commit()
    stream.add(2)
    stream.run()
    written.check(stream.expected, {"string"})
    ledger_only(written)


def test_the_guarantee_task_of_a_stream(stream: Stream, written: Written):
    stream.add(2)
    stream.run(guarantee="task")
    stream.forget_commit()
    stream.run(guarantee="task")
    assert sorted(written.data) == sorted(stream.expected)


def test_a_stream_to_several_queues(spark: Any, tmp_path: Path, url: str, queue_name: str, resp: RespClient):
    class Spread(Stream):
        def add(self, files: int) -> None:
            for _ in range(files):
                rows = [{"data": str(n), "queue": f"{queue_name}-{n % 2}"} for n in range(self.rows, self.rows + 100)]
                self.rows += 100
                (tmp_path / "in" / f"{self.rows:05}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    stream = Spread(spark, tmp_path, url, queue_name)
    stream.add(2)
    source = spark.readStream.schema("data string, queue string").json(str(tmp_path / "in"))
    for again in (False, True):
        writer = source.writeStream.format("glidemq").trigger(availableNow=True)
        writer = writer.options(url=url, queue=queue_name, jobName="n", checkpointLocation=str(tmp_path / "checkpoint"))
        writer.start().awaitTermination()
        if not again:
            stream.forget_commit()
    for i in range(2):
        Written(resp, f"{queue_name}-{i}").check([n for n in stream.expected if int(n) % 2 == i])


@pytest.mark.parametrize("guarantee", ["atomic", "task", "append"])
def test_frames_of_a_stream(spark: Any, tmp_path: Path, url: str, queue_name: str, written: Written, guarantee: str):
    """`foreachBatch`: frames as any others, several of them in one micro-batch, each with its own name."""
    stream = Stream(spark, tmp_path, url, queue_name)
    stream.add(2)

    def save(frame: Any, batch: int) -> None:
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

    def run(number: int, checkpoint: str) -> None:
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
    """The events of a queue, and a reader of them that is called as Spark calls it, a restarted query at a time."""

    def __init__(self, url: str, queue: str, resp: RespClient) -> None:
        self._resp = resp
        self.options = {"url": url, "queue": queue, "view": "events", "startingOffsets": "earliest"}
        self._key = f"glide:{{{queue}}}:events"
        self._batch: tuple[Any, Any] | None = None
        self._offset: Any = None
        self._found: list[int] = []
        self.written = 0

    def emit(self, count: int, *trim: Any) -> None:
        for _ in range(count):
            self._resp.execute("XADD", self._key, *trim, "*", "event", "added", "jobId", self.written, "name", "n")
            self.written += 1

    def trim(self, keep: int) -> None:
        self._resp.execute("XTRIM", self._key, "MAXLEN", "=", keep)

    def delete(self) -> None:
        self._resp.execute("DEL", self._key)

    def ids(self) -> list[str]:
        return [entry for entry, _ in self._resp.execute("XRANGE", self._key, "-", "+")]

    def run(self, **options: str) -> list[int]:
        """Repeat the micro-batch that failed, if there is one, then read what is new; return the rows of each."""
        from glidemq_py.spark.events_reader import EventsReader
        from glidemq_py.spark.read_options import ReadOptions

        given = {name.lower(): text for name, text in (self.options | options).items()}
        reader = EventsReader(ReadOptions.parse(given, streaming=True), (("jobId", "string"),))
        self._offset = self._offset or json.loads(json.dumps(reader.initialOffset()))
        found: list[int] = []
        for _ in range(2):
            if self._batch is None:
                end = reader.latestOffset(self._offset, reader.getDefaultReadLimit())
                self._batch = self._offset, json.loads(json.dumps(end))
            parts = reader.partitions(*self._batch)
            jobs = [job for part in parts for rows in reader.read(part) for job in rows.column(0).to_pylist()]
            self._found += map(int, jobs)
            found += [len(jobs)] if jobs else []
            (_, self._offset), self._batch = self._batch, None
        return found

    def read(self) -> list[int]:
        """Numbers of the events that were read, sorted."""
        return sorted(self._found)


class EventsInSpark(Events):
    """The same, by a real query with a checkpoint, which writes the events into files."""

    def __init__(self, spark: Any, url: str, queue: str, folder: Path, resp: RespClient) -> None:
        super().__init__(url, queue, resp)
        self._spark, self._folder = spark, folder

    def run(self, **options: Any) -> list[int]:
        """Rows of each micro-batch of this run."""
        reader = self._spark.readStream.format("glidemq").options(**self.options | options).load()
        writer = reader.writeStream.format("json").option("checkpointLocation", str(self._folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(self._folder / "out"))
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def read(self) -> list[int]:
        """Numbers of the events that were read, sorted."""
        found = self._spark.read.schema("jobId string").json(str(self._folder / "out"))
        return sorted(int(row.jobId) for row in found.collect())


@pytest.fixture
def events(url: str, queue_name: str, resp: RespClient) -> Events:
    for module in ("pyarrow", "pyspark"):
        pytest.importorskip(module)
    return Events(url, queue_name, resp)


@pytest.fixture
def events_in_spark(spark: Any, url: str, queue_name: str, tmp_path: Path, resp: RespClient) -> EventsInSpark:
    return EventsInSpark(spark, url, queue_name, tmp_path, resp)


@pytest.fixture
def bounded(spark: Any) -> None:
    """Micro-batches of streams can be bounded since PySpark 4.2."""
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 2):
        pytest.skip(f"PySpark {spark.version} does not bound micro-batches")


def test_events_are_read_once_in_bounded_batches(events_in_spark: EventsInSpark, bounded: None):
    events_in_spark.emit(500)
    assert events_in_spark.run(maxOffsetsPerTrigger=200) == [200, 200, 100]
    events_in_spark.emit(750)
    assert events_in_spark.run() == [750]
    assert events_in_spark.run() == []
    assert events_in_spark.read() == list(range(1_250))


def test_lost_events_fail_the_query(events_in_spark: EventsInSpark):
    events_in_spark.emit(200)
    assert events_in_spark.run() == [200]
    events_in_spark.emit(300)
    events_in_spark.trim(299)
    with pytest.raises(Exception, match="1 events were trimmed"):
        events_in_spark.run()
    events_in_spark.run(failOnDataLoss="false")
    assert events_in_spark.read() == [*range(200), *range(201, 500)]


def test_events_are_read_once(events: Events):
    events.emit(700)
    assert events.run() == [700]
    assert events.run() == []
    events.emit(50)
    assert events.run() == [50]
    assert events.read() == list(range(750))


def test_unsupported_batch_limit_is_rejected(monkeypatch: pytest.MonkeyPatch, url: str, queue_name: str):
    for module in ("pyarrow", "pyspark"):
        pytest.importorskip(module)
    from glidemq_py.spark import api, source

    monkeypatch.setattr(api, "ADMISSION", False)
    options = {"url": url, "queue": queue_name, "view": "events", "maxoffsetspertrigger": "5"}
    with pytest.raises(UnsupportedOptionError, match=r"'maxOffsetsPerTrigger' = 5: requires PySpark 4\.2"):
        source.make_stream_reader(options, None)


def test_event_columns(spark: Any, url: str, queue_name: str, tmp_path: Path, resp: RespClient):
    resp.execute(
        "XADD", f"glide:{{{queue_name}}}:events", "1700000000123-4", "event", "completed", "jobId", "7", "x", "y"
    )
    reader = spark.readStream.format("glidemq").options(
        url=url, queue=queue_name, view="events", startingOffsets="earliest"
    )
    query = reader.load().writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    query.awaitTermination()
    (row,) = spark.sql("select *, unix_millis(timestamp) as ms from seen").collect()
    assert (row.eventId, row.ms, row.event, row.jobId) == ("1700000000123-4", 1_700_000_000_123, "completed", "7")
    assert row.fields == {"x": "y"}


@pytest.mark.parametrize("lost", [0, 1])
def test_lost_events_are_counted_exactly(events: Events, lost: int):
    events.emit(200)
    events.run()
    events.emit(300)
    events.trim(300 - lost)
    if lost:
        with pytest.raises(Exception, match=rf"{lost} events were trimmed"):
            events.run()
        events.run(failOnDataLoss="false")
    else:
        assert events.run() == [300]
    assert events.read() == [*range(200), *range(200 + lost, 500)]


def test_trimming_read_events_is_not_a_loss(events: Events):
    events.emit(300)
    events.run()
    events.trim(0)
    assert events.run() == []
    events.emit(10)
    assert events.run() == [10]


def test_a_queue_that_was_deleted(events: Events):
    events.emit(100)
    events.run()
    events.delete()
    events.emit(30)
    with pytest.raises(Exception, match="the queue was deleted"):
        events.run()
    events.run(failOnDataLoss="false")
    events.emit(5)
    assert events.run() == [5]


@pytest.mark.parametrize("more", [99, 100, 900])
def test_a_queue_that_was_deleted_and_has_had_as_many_events_since(events: Events, more: int):
    events.emit(100)
    events.run()
    events.delete()
    events.emit(more)
    with pytest.raises(Exception, match="the queue was deleted"):
        events.run()
    events.run(failOnDataLoss="false")
    assert events.read() == list(range(100 + more))


def test_starting_offsets(events: Events):
    events.emit(40)
    after = events.ids()[29]
    assert events.run(startingOffsets=after) == [10]
    assert events.read() == list(range(30, 40))


def test_the_latest_offset_is_that_of_the_start(events: Events):
    events.emit(40)
    assert events.run(startingOffsets="latest") == []
    events.emit(7)
    assert events.run(startingOffsets="latest") == [7]
