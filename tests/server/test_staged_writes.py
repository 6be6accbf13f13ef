"""A staged write that was decided and left by its writer is published by a worker, wherever its home is."""

import re
import sys
from contextlib import closing
from typing import Any

import pytest

from glidemq_py import Job, Worker
from glidemq_py.errors import GlideMQConnectionError, ServerOutOfMemoryError, StagedWriteError
from glidemq_py.testing import RespClient, ServerProcess
from tests.inside import BlockingTransport, Call, QueueKeys, request
from tests.inside import maintenance_outbox as outbox_task
from tests.inside import staged_writes as staging
from tests.server.worker_support import EventRecorder, StartServer


def leave_after(transport: BlockingTransport, steps: staging.Steps[object], calls: int):
    """Run the first calls of a protocol, and die."""
    reply = None
    for _ in range(calls):
        step = steps.send(reply)
        assert isinstance(step, Call)
        reply = transport.call(step)


def decide_and_publish(write: staging.WriteId, winners: dict[str, list[staging.Winner]]) -> staging.Steps[object]:
    yield from staging.decide_write(write, winners)
    return (yield from staging.publish_write(write))


@pytest.mark.parametrize("worked_on", ["home", "beside"])
async def test_worker_publishes_an_abandoned_write(
    core_url: str, core_resp: RespClient, queue_name: str, worked_on: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outbox_task, "LEFT_ALONE_MS", 0)
    home, beside = QueueKeys("glide", queue_name), QueueKeys("glide", queue_name + "-b")
    write = staging.WriteId(id="w", home=home)
    transport = BlockingTransport(core_url)
    transport.call(staging.open_write(write, create=True, queue=beside.name))
    for keys in (home, beside):
        for seq in range(5):
            blob = request([["n", str(seq), "{}"]] * 10, True)
            transport.call(staging.stage(write, keys, "a", seq, blob, False))
    # A ballot, prepared in the other queue, committed at home, one piece published.
    leave_after(transport, decide_and_publish(write, {home.name: [("a", 5)], beside.name: [("a", 5)]}), 4)

    async def handle(job: Job):
        pass

    keys = home if worked_on == "home" else beside
    async with Worker(keys.name, handle, core_url, concurrency=10) as worker:
        await EventRecorder(worker).wait("completed", 50)
    other = beside if worked_on == "home" else home
    # At home everything is published; in the other queue, the pieces stored there.
    expected = 50 if worked_on == "home" else 10
    assert core_resp.execute("XLEN", other.stream) == expected
    transport.close()


# -- the writer of Spark, without Spark ----------------------------------------------------------------------


@pytest.fixture
def full_server(private_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> ServerProcess:
    """Return a server of this test; tasks of Spark are replaced by plain calls."""
    pytest.importorskip("pyspark")
    from glidemq_py.spark import writer
    from glidemq_py.spark.api import TaskFacts

    monkeypatch.setattr(writer, "task_context", lambda: TaskFacts(0, 0, "", -1))
    return private_server("valkey-9.1")


def frame_writer(url: str, queue: str, *, schema: Any = None, streaming: bool = False, **options: str):
    from pyspark.sql.types import StringType, StructField, StructType

    from glidemq_py.spark.options import WriteOptions
    from glidemq_py.spark.write_schema import plan_write
    from glidemq_py.spark.writer import FrameWriter, StreamWriter

    given = {"url": url, "queue": queue, "jobName": "n", "batchSize": "10"} | options
    chosen = WriteOptions.parse(given, streaming=streaming)
    plan = plan_write(schema or StructType([StructField("data", StringType())]), chosen)
    return StreamWriter(chosen, plan) if streaming else FrameWriter(chosen, plan)


def write_rows(writer: Any, rows: int) -> list[Any]:
    from glidemq_py.spark.api import pa

    batch = pa.RecordBatch.from_pydict({"data": [*map(str, range(rows - 1)), None]})
    return [writer.write(iter([batch]))]


def test_save_retries_publishing_on_a_full_server(full_server: ServerProcess, queue_name: str, monkeypatch: Any):
    from glidemq_py.spark import last_report

    writer = frame_writer(full_server.url, queue_name)
    messages = write_rows(writer, 100)
    with full_server.client() as resp:
        resp.execute("CONFIG", "SET", "maxmemory", 1)
        pauses: list[float] = []

        def pause(seconds: float):
            pauses.append(seconds)
            if len(pauses) == 3:
                resp.execute("CONFIG", "SET", "maxmemory", 0)

        monkeypatch.setattr(staging, "_sleep", pause)
        writer.commit(messages)
        assert len(pauses) == 3
        assert resp.execute("XLEN", QueueKeys("glide", queue_name).stream) == 100
    report = last_report(queue_name, url=full_server.url)
    assert report is not None
    assert (report.jobs, report.skipped, report.rows, report.null_rows, report.repeated) == (100, 0, 100, 1, False)
    assert report.bytes > 100
    assert report.queues == {queue_name: (100, 0)}


def test_error_after_the_decision_says_so(full_server: ServerProcess, queue_name: str):
    writer = frame_writer(full_server.url, queue_name, publishTimeout="0")
    messages = write_rows(writer, 100)
    keys = QueueKeys("glide", queue_name)
    with full_server.client() as resp:
        resp.execute("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StagedWriteError, match=r"write '\w{32}' .*decided.*do not save again") as error:
            writer.commit(messages)
        assert error.value.state == "decided"
        writer.abort(messages)  # Spark calls it after a failed commit
        assert resp.execute("XLEN", keys.stream) == 0
        resp.execute("CONFIG", "SET", "maxmemory", 0)
        transport = BlockingTransport(full_server.url)
        staging.run_blocking(transport, staging.finish_writes(keys, 0))
        transport.close()
        assert resp.execute("XLEN", keys.stream) == 100


def test_error_before_the_decision_names_the_write(full_server: ServerProcess, queue_name: str):
    writer = frame_writer(full_server.url, queue_name, writeId="monday")
    with full_server.client() as resp:
        resp.execute("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(ServerOutOfMemoryError) as error:
            write_rows(writer, 100)
    assert "write 'monday': not committed" in "".join(error.value.__notes__)


def test_error_of_a_write_without_staging_names_it(full_server: ServerProcess, queue_name: str):
    writer = frame_writer(full_server.url, queue_name, guarantee="append")
    with full_server.client() as resp:
        resp.execute("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(ServerOutOfMemoryError) as error:
            write_rows(writer, 100)
    (note,) = error.value.__notes__
    assert note.startswith("write '")
    assert "may be jobs" in note
    assert "adds these twice" in note
    assert "nothing" not in str(error.value)


@pytest.mark.parametrize(
    ("guarantee", "outcome"),
    [
        ("atomic", "was aborted; none of its rows becomes a job"),
        ("append", "a part of its rows may be jobs; another save adds these twice"),
    ],
)
def test_abort_logs_the_random_id(
    full_server: ServerProcess, queue_name: str, guarantee: str, outcome: str, caplog: pytest.LogCaptureFixture
):
    """Spark's error contains no id if a process was killed, or if the rows cannot be evaluated."""
    writer = frame_writer(full_server.url, queue_name, guarantee=guarantee)
    write_rows(writer, 100)
    caplog.clear()
    writer.abort([None])
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert re.fullmatch(rf"write '\w{{32}}' in queue '{queue_name}': failed[;,] .*{outcome}", record.getMessage())


def test_abort_of_a_decided_write_logs_that_it_is_complete(
    full_server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The process that commits may be killed after the decision."""
    from glidemq_py.spark import writer as module

    writer = frame_writer(full_server.url, queue_name)
    messages = write_rows(writer, 100)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_publish", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            writer.commit(messages)
    caplog.clear()
    writer.abort(messages)
    assert re.search(r"write '\w{32}' in queue .* every row is a job now; do not save again", caplog.text)
    with full_server.client() as resp:
        assert resp.execute("XLEN", QueueKeys("glide", queue_name).stream) == 100


def test_error_of_a_write_that_cannot_start_names_it(full_server: ServerProcess, queue_name: str):
    with full_server.client() as resp:
        resp.execute("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(ServerOutOfMemoryError) as error:
            frame_writer(full_server.url, queue_name, writeId="monday")
    assert error.value.__notes__ == ["write 'monday': this save did not start, and added nothing"]


@pytest.mark.parametrize("guarantee", ["atomic", "append"])
def test_errors_of_an_unreachable_server_name_the_write(full_server: ServerProcess, queue_name: str, guarantee: str):
    """Before the first task, in a task, and in the abort; also a random id."""
    writer = frame_writer(f"{full_server.url}?request_timeout=500", queue_name, guarantee=guarantee, publishTimeout="0")
    full_server.kill()
    with pytest.raises(GlideMQConnectionError) as planning:
        frame_writer(f"{full_server.url}?request_timeout=501", queue_name, guarantee=guarantee)
    (note,) = planning.value.__notes__
    assert re.fullmatch(r"write '\w{32}': this save did not start, and added nothing", note)
    with pytest.raises(GlideMQConnectionError) as task:
        write_rows(writer, 100)
    (note,) = task.value.__notes__
    assert re.match(r"write '\w{32}': (not committed|if the save fails)", note)
    if guarantee == "atomic":
        with pytest.raises(GlideMQConnectionError) as abort:
            writer.abort([None])
        (note,) = abort.value.__notes__
        assert re.match(r"write '\w{32}': not aborted; unless it is already decided", note)


def test_repeated_save_on_a_full_server_tells_the_truth(full_server: ServerProcess, queue_name: str):
    """The write is decided: no message may state that nothing was added, whatever fails first."""
    writer = frame_writer(full_server.url, queue_name, writeId="monday", publishTimeout="0")
    late = frame_writer(full_server.url, queue_name, writeId="monday")
    messages = write_rows(writer, 100)
    with full_server.client() as resp:
        resp.execute("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StagedWriteError) as decided:
            writer.commit(messages)
        assert str(decided.value).endswith("(the server is at its maxmemory)")
        with pytest.raises(StagedWriteError, match=r"'monday'.*do not save again \(the server is at its maxmemory\)"):
            frame_writer(full_server.url, queue_name, writeId="monday")
        with pytest.raises(ServerOutOfMemoryError) as error:
            write_rows(late, 100)
        (note,) = error.value.__notes__
        assert "every row becomes a job; do not save again" in note
        resp.execute("CONFIG", "SET", "maxmemory", 0)
        again = frame_writer(full_server.url, queue_name, writeId="monday")
        again.commit(write_rows(again, 100))
        assert resp.execute("XLEN", QueueKeys("glide", queue_name).stream) == 100
        resp.execute("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StagedWriteError, match=r"'monday'.*was saved before"):
            frame_writer(full_server.url, queue_name, writeId="monday")


@pytest.mark.parametrize("on_repeat", ["skip", "warn", "fail"])
def test_repeated_write(full_server: ServerProcess, queue_name: str, on_repeat: str, caplog: pytest.LogCaptureFixture):
    from glidemq_py.spark import last_report

    for _ in range(2):
        writer = frame_writer(full_server.url, queue_name, writeId="monday")
        writer.commit(write_rows(writer, 10))
    caplog.clear()

    def repeat():
        writer = frame_writer(full_server.url, queue_name, writeId="monday", onRepeat=on_repeat)
        writer.commit(write_rows(writer, 10))

    if on_repeat == "fail":
        with pytest.raises(StagedWriteError, match=r"'monday'.*was saved before"):
            repeat()
    else:
        repeat()
        assert ("was saved before" in caplog.text) == (on_repeat == "warn")
    report = last_report(queue_name, url=full_server.url, write_id="monday")
    assert report is not None
    assert (report.jobs, report.repeated) == (0, True)
    with full_server.client() as resp:
        assert resp.execute("XLEN", QueueKeys("glide", queue_name).stream) == 10


ROWS = [("1", "a", None), ("2", "b", None), ("2", "b", None), (None, "c", None), ("3", "d", "-b"), ("3", "e", "-b")]
"""Data, job id and the end of the queue's name: a duplicate in the home queue, and null data."""


def write_report_rows(writer: Any, queue: str) -> list[Any]:
    from glidemq_py.spark.api import pa

    data, ids, ends = zip(*ROWS, strict=True)
    queues = [None if end is None else queue + end for end in ends]
    return [writer.write(iter([pa.RecordBatch.from_pydict({"data": data, "jobId": ids, "queue": queues})]))]


def report_schema():
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(name, StringType()) for name in ("data", "jobId", "queue")])


@pytest.mark.parametrize("guarantee", ["atomic", "append"])
def test_report_counts_every_row(full_server: ServerProcess, queue_name: str, guarantee: str):
    """Jobs, duplicates, null data and bytes, in all and per queue, with every guarantee."""
    from glidemq_py.spark import last_report

    writer = frame_writer(full_server.url, queue_name, guarantee=guarantee, schema=report_schema())
    (message,) = messages = write_report_rows(writer, queue_name)
    writer.commit(messages)
    report = last_report(queue_name, url=full_server.url)
    assert report is not None
    assert (report.jobs, report.skipped, report.rows, report.null_rows) == (5, 1, 6, 1)
    assert report.bytes == message.bytes > 0
    assert report.queues == {queue_name: (3, 1), queue_name + "-b": (2, 0)}
    assert (report.repeated, report.repetitions, report.query) == (False, 0, "")


@pytest.mark.parametrize("guarantee", ["atomic", "append"])
def test_report_of_a_micro_batch(
    full_server: ServerProcess, queue_name: str, guarantee: str, monkeypatch: pytest.MonkeyPatch
):
    """A batch that a restarted query repeats is reported as repeated, with the number of repetitions."""
    from glidemq_py.spark import last_report, writer
    from glidemq_py.spark.api import TaskFacts

    monkeypatch.setattr(writer, "task_context", lambda: TaskFacts(0, 0, "query", 7))

    def run():
        stream = frame_writer(full_server.url, queue_name, guarantee=guarantee, schema=report_schema(), streaming=True)
        stream.commit(write_report_rows(stream, queue_name), 7)
        report = last_report(queue_name, write_id="query.7", url=full_server.url)
        assert report is not None
        assert report.query == "query"
        return report

    first = run()
    assert (first.jobs, first.skipped, first.rows, first.null_rows, first.repetitions) == (5, 1, 6, 1, 0)
    assert first.queues == {queue_name: (3, 1), queue_name + "-b": (2, 0)}
    if guarantee == "append":
        return
    for repetitions in (1, 2, 3):
        again = run()
        assert (again.jobs, again.skipped, again.repeated, again.repetitions) == (0, 0, True, repetitions)
        assert (again.rows, again.null_rows, again.bytes) == (0, 0, 0)
    rows = [row for row in view_of_writes(full_server.url, queue_name) if row["writeId"] == "query.7"]
    assert [(row["state"], row["jobs"], row["repetitions"]) for row in rows] == [
        *(("repeated", 0, count) for count in (3, 2, 1)), ("done", 5, 0),
    ]  # fmt: skip


def view_of_writes(url: str, queue: str) -> list[dict[str, Any]]:
    from glidemq_py.spark.columns import WRITE_COLUMNS
    from glidemq_py.spark.read_options import ReadOptions
    from glidemq_py.spark.reports import WritesReader

    options = ReadOptions.parse({"url": url, "queue": queue, "view": "writes"}, streaming=False)
    reader = WritesReader(options, tuple((name, kinds[0]) for name, kinds in WRITE_COLUMNS.items()))
    (partition,) = reader.partitions()
    return [row for batch in reader.read(partition) for row in batch.to_pylist()]


def test_view_of_writes(full_server: ServerProcess, queue_name: str):
    for _ in range(2):
        writer = frame_writer(full_server.url, queue_name, writeId="monday")
        writer.commit(write_rows(writer, 10))
    frame_writer(full_server.url, queue_name, writeId="tuesday")
    rows = view_of_writes(full_server.url, queue_name)
    assert [(row["writeId"], row["state"], row["jobs"], row["rows"]) for row in rows] == [
        ("tuesday", "open", None, None),
        ("monday", "repeated", 0, 0),
        ("monday", "done", 10, 10),
    ]
    assert [row["queues"] for row in rows] == [[], [(queue_name, "0")], [(queue_name, "10")]]
    assert {row["home"] for row in rows} == {queue_name}
    assert rows[0]["idle"] is not None
    assert rows[0]["finishedAt"] is None
    assert rows[1]["finishedAt"] >= rows[2]["finishedAt"]


def test_jobs_of_the_home_count_beside_those_of_other_queues(core_url: str, queue_name: str):
    home = QueueKeys("glide", queue_name)
    write = staging.WriteId(id="w", home=home)
    other = f"{queue_name}-other"
    blob = request([["n", "a", "{}"]] * 3, True)
    with closing(BlockingTransport(core_url)) as transport:
        transport.call(staging.open_write(write, create=True))
        transport.call(staging.open_write(write, create=False, queue=other))
        for keys in (home, QueueKeys("glide", other)):
            transport.call(staging.stage(write, keys, "a", 0, blob, False))
        winners = {name: [("a", 1)] for name in (queue_name, other)}
        assert staging.run_blocking(transport, staging.decide_write(write, winners))

        counts = staging.run_blocking(transport, staging.publish_queues(write))

    assert counts == {queue_name: staging.Published(3, 0), other: staging.Published(3, 0)}
    assert staging.total(counts) == staging.Published(6, 0)


def test_two_connections_publish_many_queues_once(core_url: str, core_resp: RespClient, queue_name: str):
    home = QueueKeys("glide", queue_name)
    write = staging.WriteId(id="w", home=home)
    transports = [BlockingTransport(core_url) for _ in range(2)]
    names = [f"{queue_name}-{n}" for n in range(70)]
    transports[0].call(staging.open_write(write, create=True))
    for name in names:
        transports[0].call(staging.open_write(write, create=False, queue=name))
        for attempt in ("a", "b"):
            blob = request([["n", attempt, "{}"]] * 3, True)
            transports[0].call(staging.stage(write, QueueKeys("glide", name), attempt, 0, blob, False))
    winners = {name: [("a", 1), ("b", 1)] for name in names}
    assert staging.run_blocking(transports[0], staging.decide_write(write, winners, "facts"))

    counts: dict[str, staging.Published] = {}
    both = [staging.publish_queues(write, counts), staging.publish_queues(write, counts, backward=True)]
    together = alternate(transports, both)

    assert together > 0
    assert {name: counts[name] for name in names} == dict.fromkeys(names, (6, 0))
    assert {core_resp.execute("XLEN", f"glide:{{{name}}}:stream") for name in names} == {6}
    (report,) = transports[0].call(staging.write_reports(home))
    assert (report.jobs, report.others) == (420, 0)
    assert core_resp.execute("ZCARD", f"glide:{{{queue_name}}}:writes") == 0
    for transport in transports:
        transport.close()


def alternate(transports: list[BlockingTransport], processes: list[staging.Steps[Any]]) -> int:
    """Run several processes step by step in turns; return how many of their steps were several calls."""
    together = 0
    running: list[tuple[BlockingTransport, staging.Steps[Any], Any]] = [
        (transport, steps, None) for transport, steps in zip(transports, processes, strict=True)
    ]
    while running:
        transport, steps, reply = running.pop(0)
        try:
            step = steps.send(reply)
        except StopIteration:
            continue
        assert not isinstance(step, staging.Pause)
        if isinstance(step, staging.Together):
            together += 1
            running.append((transport, steps, transport.call_all(step.calls)))
        else:
            running.append((transport, steps, transport.call(step)))
    return together
