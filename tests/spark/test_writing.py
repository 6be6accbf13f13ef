"""Tests of writing: columns, options, and errors before a task starts."""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import GlideMQError, Job, Queue, Worker
from glidemq_py.errors import ColumnError
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder
from tests.spark.conftest import ROOT, Written


def test_documented_example_is_written(
    spark: Any, url: str, written: Written, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """Run the first example of docs/learn/spark.md; the source is not registered explicitly."""
    page = (ROOT / "docs" / "learn" / "spark.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0].replace('"emails"', f'"{queue_name}"')
    names = {"frame": spark.createDataFrame([("ada", 1), ("grace", 2)], "to string, n int")}
    exec(code.replace(".save()", f'.option("url", "{url}").save()'), names)
    assert sorted(written.data) == ['{"to":"ada","n":1}', '{"to":"grace","n":2}']
    assert {(job["name"], job["opts"], job["state"]) for job in written.jobs} == {("welcome", "{}", "waiting")}


async def test_written_jobs_are_completed(spark: Any, sink: Callable[..., Any], url: str, queue_name: str):
    async def handle(job: Job) -> int:
        return job.data["id"] * 2

    sink(spark.range(500)).save()
    worker = Worker(queue_name, handle, url, concurrency=20)
    recorded = EventRecorder(worker)
    async with worker, Queue(queue_name, url) as queue:
        await recorded.wait("completed", 500)
        report = await queue.check(recheck_after=50)
        assert not report.findings, str(report)


def test_every_column(spark: Any, sink: Callable[..., Any], written: Written, queue_name: str, resp: RespClient):
    schema = (
        "queue string, NAME string, data string, jobId string, delay long, priority int, attempts short, ttl long, "
        "orderingKey string, lifo boolean, rank int, fairKey string, runAt timestamp, deduplicationId string, "
        "timeout int, backoff string, removeOnComplete boolean, removeOnFail int"
    )
    no = (None,) * 18
    due = datetime(2100, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    rows: list[tuple[Any, ...]] = [
        no,
        ("other-" + queue_name, "a", '{"x":1}', *no[3:]),
        (None, "b", "[1]", "mine", 60_000, *no[5:]),
        (None, "c", "1", None, None, 7, 3, 60_000, *no[8:]),
        (None, "d", "2", *no[3:8], "group", *no[9:13], "once", 9_000, None, True, 5),
        (None, "e", "3", *no[3:9], True, *no[10:15], '{"type": "fixed", "delay": 5}', None, None),
        (None, "f", "4", *no[3:10], -5, *no[11:]),
        (None, "g", "5", *no[3:11], "acme", *no[12:]),
        (None, "h", "6", *no[3:12], due, *no[13:]),
    ]
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    sink(frame, attempts=4, removeOnComplete='{"count": 10}', events="each").save()
    (other,) = Written(resp, "other-" + queue_name).jobs
    assert (other["name"], other["data"]) == ("a", '{"x":1}')
    base = {"attempts": 4, "removeOnComplete": {"count": 10}}
    jobs = {job["name"]: job for job in map(written.job, ["1", "mine", "2", "3", "4", "5", "6", "7"])}
    opts = {name: json.loads(job["opts"]) for name, job in jobs.items()}
    assert opts == {
        "n": base,
        "b": base | {"jobId": "mine", "delay": 60_000},
        "c": base | {"attempts": 3, "priority": 7, "ttl": 60_000},
        "d": base
        | {"ordering": {"key": "group"}, "deduplication": {"id": "once", "mode": "simple"}, "timeout": 9_000}
        | {"removeOnComplete": True, "removeOnFail": 5},
        "e": base | {"lifo": True, "backoff": {"type": "fixed", "delay": 5}},
        "f": base | {"rank": -5},
        "g": base | {"fairKey": "acme"},
        "h": base,
    }
    states = {
        name: (job["state"], job["maxAttempts"], job["groupKey"] if name == "d" else "") for name, job in jobs.items()
    }
    assert states == {
        "n": ("waiting", "4", ""), "b": ("delayed", "4", ""), "c": ("prioritized", "3", ""),
        "d": ("waiting", "4", "group"), "e": ("waiting", "4", ""), "f": ("prioritized", "4", ""),
        "g": ("waiting", "4", ""), "h": ("delayed", "4", ""),
    }  # fmt: skip
    assert int(jobs["h"]["timestamp"]) + int(jobs["h"]["delay"]) == due.timestamp() * 1_000
    assert (jobs["n"]["data"], jobs["c"]["expireAt"] > jobs["c"]["timestamp"]) == ("null", True)
    assert written.run("XLEN", "events") == 8
    assert written.run("ZRANGE", "fairq:acme", 0, -1) == [jobs["g"]["id"]]


def as_spark_passes(url: str, queue: str, options: dict[str, Any]) -> dict[str, str]:
    """Return options of a save as Spark passes them: strings, names in lower case."""
    chosen = {"url": url, "queue": queue, "jobName": "n"} | options
    return {name.lower(): str(value) for name, value in chosen.items() if value is not None}


@pytest.mark.parametrize(
    ("select", "options", "expected"),
    [
        (["'[1, 2]' as data"], {}, "[1, 2]"),
        (["'plain' as data"], {"dataFormat": "text"}, '"plain"'),
        (["named_struct('a', 1, 'b', array(1.5D)) as data"], {}, {"a": 1, "b": [1.5]}),
        (["7 as data"], {}, 7),
        (["cast(null as string) as data"], {}, None),
        (["'{\"own\":1}' as body"], {"dataColumn": "body"}, {"own": 1}),
        (["'x' as name"], {"jobName": None, "column.name": "NAME"}, None),
        (
            ["'x' as name", "1 as rank", "2 as priority", "3 as delay", "4 as ttl", "'q' as queue"],
            {},
            {"name": "x", "rank": 1, "priority": 2, "delay": 3, "ttl": 4, "queue": "q"},
        ),
        (["7 as n", "0 as wait_ms"], {"column.delay": "wait_ms"}, {"n": 7}),
        (["7 as data", "9 as level"], {"column.priority": "level"}, 7),
        (["'[1]' as data"], {"compression": "gzip"}, "gz"),
    ],
)
def test_data(
    spark: Any, sink: Callable[..., Any], written: Written, select: list[str], options: dict[str, str], expected: Any
):
    sink(spark.range(1).selectExpr(*select), **options).save()
    (job_id,) = written.ids or written.run("ZRANGE", "scheduled", 0, -1)
    data = written.job(job_id)["data"]
    if expected == "gz":
        assert data.startswith("gz:")
    else:
        assert (data if isinstance(expected, str) else json.loads(data)) == expected


@pytest.mark.parametrize(
    ("select", "options", "problem"),
    [
        (["1 as id"], {"jobName": None}, "'jobName' = None: is required"),
        ([], {}, "column 'data' is required: the DataFrame has no columns"),
        (["1 as id"], {"atempts": 5}, "'atempts'.*did you mean 'attempts'"),
        (["1 as id"], {"attempts": "many"}, "'attempts' = 'many': must be an integer"),
        (["1 as id"], {"priority": 5_000}, "'priority' = 5000: must be an integer from 0 to 2,047"),
        (["1 as id"], {"removeOnComplete": "all"}, "'removeOnComplete' = 'all': must be JSON"),
        (["1 as id"], {"guarantee": "exactly"}, "'guarantee' = 'exactly': must be one of 'atomic', 'append'"),
        (["1 as id"], {"queue": ""}, "'queue' = None: is required"),
        (["1 as id"], {"queue": "a:b"}, "'queue' = 'a:b': must not contain"),
        (
            ["1 as id"],
            {"lifo": "true", "orderingKey": "k"},
            "'lifo' = True: .* mutually exclusive",
        ),
        (["1 as id"], {"guarantee": "append", "writeId": "x"}, "'writeId' = 'x': has no effect"),
        (["1 as id"], {"duplicates": "fail", "guarantee": "append"}, "'duplicates' = 'fail': needs guarantee"),
        (["1 as id"], {"guarantee": "Task"}, "'guarantee' = 'task': is not supported: use 'atomic' .*'append'"),
        (["1 as id"], {"dataColumn": "body"}, "'dataColumn' = 'body': column does not exist; columns: 'id'"),
        (["1 as id"], {"batchSize": 0}, "'batchSize' = 0: must be an integer from 1 to"),
        (["1 as id"], {"host": "x"}, "'host' = .*: cannot be given together with 'url'"),
        (["1 as id"], {"url": "valkey://127.0.0.1:1"}, "cannot connect to 127.0.0.1:1"),
        (
            ["'x' as priority", "1 as data"],
            {},
            "column 'priority' must be byte or short or integer or long, not string",
        ),
        (["'x' as late", "1 as id"], {"column.runAt": "late"}, "column 'late' must be timestamp, not string"),
        (["1 as id"], {"column.delay": "late"}, "'column.delay' = 'late': column does not exist; columns: 'id'"),
        (["1 as id"], {"column.delai": "id"}, "'column.delai'.*did you mean 'column.delay'"),
        (["'x' as who"], {"column.name": "who"}, "'column.name' = 'who': cannot be given together with 'jobName'"),
        (["1 as a"], {"column.delay": "a", "delay": 5}, "'column.delay' = 'a': cannot be given together with 'delay'"),
        (["1 as a", "2 as delay", "3 as data"], {"column.delay": "a"}, "'column.delay' = 'a': is given twice"),
        (["1 as data", "'a' as job_id"], {}, "column 'job_id' is neither .*did you mean 'jobId'"),
        (["1 as data", "5 as remove_on_complete"], {}, "'remove_on_complete' is neither .*mean 'removeOnComplete'"),
        (
            ["1 as data", "'{}' as opts"],
            {},
            "column 'opts' is not supported: .*'deduplicationId', 'timeout', 'backoff'",
        ),
        (["'{}' as Opts"], {}, "column 'Opts' is not supported: .*'removeOnFail'; if it is data, rename it"),
        (["'{}' as data", "1 as prioriti"], {}, "column 'prioriti' is neither .*did you mean 'priority'"),
        (["make_dt_interval(1) as data"], {}, "column 'data' is interval day to second, which has no JSON"),
        (["named_struct('a', 1, 'a', 2) as x"], {}, "column 'x.a' is duplicated"),
        (["named_struct('a', array(map(1, 2))) as x"], {}, r"column 'x.a\[\]' has keys of type int"),
        (["1 as id", "2 as ID"], {}, "column 'ID' is duplicated"),
        (["1 as data"], {"dataFormat": "json"}, "'dataFormat' = 'json': requires a string column"),
    ],
)
def test_invalid_options_are_rejected(
    spark: Any, written: Written, url: str, select: list[str], options: dict[str, Any], problem: str
):
    """By the writer, which Spark creates in a process of its own before it starts a task."""
    from glidemq_py.spark.source import make_writer

    spark.conf.set("spark.sql.caseSensitive", "true" if "ID" in str(select) else "false")
    try:
        with pytest.raises(GlideMQError, match=problem):
            make_writer(as_spark_passes(url, written.queue, options), spark.range(1).selectExpr(*select).schema, False)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    written.check([])


@pytest.mark.parametrize(
    ("column", "way"),
    [
        *((name, "jobId") for name in ("jobId", "job_id", "JOB-ID")), ("ordering_key", "orderingKey"),
        ("fairKey", "fairKey"), ("run_at", "runAt"), ("jobName", "name"), ("lifo", "lifo"), ("backoff", "backoff"),
        ("deduplication", "deduplicationId"),
        ("deduplicationId", "deduplicationId"), ("removeOnComplete", "removeOnComplete"),
        ("remove_on_fail", "removeOnFail"),
    ],
)  # fmt: skip
def test_names_of_options_are_not_taken_for_data(spark: Any, url: str, column: str, way: str):
    """Without a column `data`: the error names both ways out."""
    from glidemq_py.spark.source import make_writer

    schema = spark.range(1).selectExpr("id", f"'x' as `{column}`").schema
    with pytest.raises(ColumnError, match=rf"column '{column}' .*\.option\(\"column\.{way}\".*else rename it"):
        make_writer(as_spark_passes(url, "q", {}), schema, False)


def test_assignment_of_columns_is_logged_once(spark: Any, url: str, queue_name: str, caplog: pytest.LogCaptureFixture):
    from glidemq_py.spark.source import make_writer

    caplog.set_level(logging.INFO, "glidemq_py")
    schema = spark.range(1).selectExpr("'ada' as name", "'a@b' as email", "5 as wait_ms").schema
    for _ in range(2):
        make_writer(as_spark_passes(url, queue_name, {"column.delay": "wait_ms"}), schema, False)
    lines = [record.getMessage() for record in caplog.records if "data:" in record.getMessage()]
    assert lines == [f"queue {queue_name!r}: options: delay from 'wait_ms'; data: 'name', 'email'"]


def test_assignment_of_columns_is_shown_by_the_driver(
    spark: Any, sink: Callable[..., Any], queue_name: str, tmp_path: Path
):
    """Spark plans in a Python process whose stderr becomes that of the driver at the start of the process."""
    java = spark._jvm.java
    system, shown = java.lang.System, tmp_path / "stderr"
    session, usual = spark.newSession(), system.err
    session.conf.set("spark.sql.planner.pythonExecution.memory", "8g")  # a process of its own
    system.setErr(java.io.PrintStream(str(shown)))
    try:
        for _ in range(2):
            sink(session.range(1).selectExpr("'ada' as name", "5 as wait_ms"), **{"column.delay": "wait_ms"}).save()
    finally:
        system.setErr(usual)
    line = f"queue {queue_name!r}: options: delay from 'wait_ms'; data: 'name'\n"
    assert shown.read_text().count(line) == 1


@pytest.mark.parametrize(
    ("select", "options", "problem"),
    [
        (
            ["cast(id as string) as data", "if(id = 7, 5000, 1) as priority"],
            {},
            "'priority', row 8 .* = 5000: must be an integer from 0 to 2,047",
        ),
        (["if(id = 7, '{\"a\":', '1') as data"], {}, "'data', row 8 of its partition = .*is not JSON"),
        (
            ["if(id = 7, null, 'a') as name", "1 as data"],
            {"jobName": None},
            "'name', row 8 of its partition = None: is null",
        ),
        (
            ["if(id = 7, '1s', null) as backoff", "1 as data"],
            {"attempts": 3},
            "'backoff', row 8 .*must be JSON: ms, or",
        ),
        (["if(id = 7, -1, null) as timeout", "1 as data"], {}, "'timeout', row 8 .* = -1: must be"),
        (["if(id = 7, 'a:b', null) as queue", "1 as data"], {}, "'queue', row 8 .*must not contain any of"),
        (["if(id = 7, repeat('x', 2000000), 'x') as data"], {"dataFormat": "text"}, "'data', row 8 .*exceed the limit"),
    ],
)
def test_invalid_value_fails_its_task(
    spark: Any, written: Written, url: str, monkeypatch: pytest.MonkeyPatch, select: list[str],
    options: dict[str, Any], problem: str,
):  # fmt: skip
    """By the writer, as Spark calls it in a task."""
    from glidemq_py.spark import writer
    from glidemq_py.spark.api import TaskFacts
    from glidemq_py.spark.source import make_writer

    monkeypatch.setattr(writer, "task_context", lambda: TaskFacts(0, 0, "", -1))
    rows = spark.range(0, 300, numPartitions=1).selectExpr(*select)
    saved = make_writer(as_spark_passes(url, written.queue, options), rows.schema, False)
    with pytest.raises(ColumnError, match=f"column {problem}") as error:
        saved.write(iter(rows.toArrow().to_batches(max_chunksize=100)))
    assert "not committed; if the save fails, none of its rows becomes a job" in "".join(error.value.__notes__)
    saved.abort([None])
    written.check([], {"aborted"})


def test_invalid_value_fails_the_write(spark: Any, sink: Callable[..., Any], written: Written):
    """The error names column, row and write, though its id is random."""
    from pyspark.errors import PySparkException

    rows = spark.range(0, 300, numPartitions=1).selectExpr("cast(id as string) as data", "if(id = 7, -1, 1) as delay")
    with pytest.raises(PySparkException, match=r"(?s)column 'delay', row 8 .* = -1: .*write '\w{32}': not committed"):
        sink(rows).save()
    written.check([], {"aborted"})


def test_errors_of_planning_are_raised_by_the_driver(spark: Any, sink: Callable[..., Any]):
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=r"(?s)cannot connect to .*write '\w{32}': this save did not start"):
        sink(spark.range(1), url="valkey://127.0.0.1:1").save()


def test_modes(spark: Any, url: str, queue_name: str):
    from pyspark.errors import AnalysisException

    frame = spark.range(1).write.format("glidemq").options(url=url, queue=queue_name, jobName="n")
    with pytest.raises(AnalysisException, match=r"'mode' = 'overwrite': is not supported.*append"):
        frame.mode("overwrite").save()
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        frame.mode("error").save()


def test_overwrite_deletes_waiting_jobs(
    spark: Any, sink: Callable[..., Any], written: Written, queue_name: str, resp: Any
):
    from pyspark.sql.functions import expr

    frame = spark.range(300).selectExpr("cast(id as string) as data")
    late = frame.limit(5).withColumn("delay", frame.data.cast("long") + 600_000)
    sink(frame.union(frame)).save()
    sink(late).save()
    new = frame.limit(7).withColumn("queue", expr(f"if(data < 3, '{queue_name}-b', null)"))
    sink(frame, queue=f"{queue_name}-b").save()
    for _ in range(2):
        sink(new, overwrite="drain", writeId="once").mode("overwrite").save()
        assert (len(written.data), written.run("ZCARD", "scheduled")) == (4, 5)
        assert len(Written(resp, f"{queue_name}-b").data) == 3
    sink(frame, overwrite="drain").save()
    assert len(written.data) == 304
    with pytest.raises(Exception, match="'overwrite' = 'drain': needs a frame and guarantee 'atomic'"):
        sink(frame, overwrite="drain", guarantee="append").mode("overwrite").save()
    bad = frame.coalesce(1).selectExpr("if(data = '7', '{', data) as data")
    with pytest.raises(Exception, match="row 8 of its partition"):
        sink(bad, overwrite="drain").mode("overwrite").save()
    assert len(written.data) == 304


def test_duplicates(spark: Any, sink: Callable[..., Any], written: Written):
    frame = spark.range(300).selectExpr("concat('job-', id) as jobId", "'1' as data")
    sink(frame.limit(10)).save()
    with pytest.raises(Exception, match=r"column 'jobId' is 'job-\d': queue .* already has a job with this id"):
        sink(frame, duplicates="fail").save()
    assert len(written.data) == 10
    sink(frame).save()
    written.check(["1"] * 300, {"done", "aborted"})


def test_path_is_the_queue(spark: Any, url: str, queue_name: str, written: Written):
    spark.range(3).write.format("GlideMQ").mode("append").options(url=url, jobName="n").save(queue_name)
    assert len(written.data) == 3
    assert spark.read.format("glidemq").option("url", url).load(queue_name).count() == 3


def test_source_can_be_registered_explicitly(spark: Any, sink: Callable[..., Any], written: Written):
    from glidemq_py.spark import GlideMQDataSource

    spark.dataSource.register(GlideMQDataSource)
    sink(spark.range(3)).save()
    assert len(written.data) == 3


def test_password_is_not_shown(spark: Any, sink: Callable[..., Any], url: str):
    host, port = url.rpartition("@")[2].removeprefix("valkey://").split(":")
    parts = {"url": None, "host": host, "port": port, "username": "nobody", "password": "s3cret"}
    with pytest.raises(Exception, match=r"(?i)cannot connect|WRONGPASS|auth") as failure:
        sink(spark.range(3), **parts).save()
    assert "s3cret" not in str(failure.value)


def test_password_from_the_environment(spark: Any, sink: Callable[..., Any], private_server: Callable[..., Any]):
    place = private_server(requirepass="s3cret")
    parts = {"url": place.url, "passwordEnv": "NOBODY_HAS_SET_THIS"}
    with pytest.raises(Exception, match="'passwordEnv' = 'NOBODY_HAS_SET_THIS': is not set"):
        sink(spark.range(3), **parts).save()


def test_a_valkey_cluster(
    spark: Any, sink: Callable[..., Any], cluster_url: str, cluster_resp: RespClient, queue_name: str
):
    frame = spark.range(600).selectExpr("cast(id as string) as data", f"concat('{queue_name}-', id % 6) as queue")
    sink(frame, url=cluster_url).save()
    for i in range(6):
        Written(cluster_resp, f"{queue_name}-{i}").check([str(n) for n in range(600) if n % 6 == i])
    addresses = cluster_url.removeprefix("valkey+cluster://")
    parts = {"addresses": addresses, "cluster": "true", "queue": f"{queue_name}-2"}
    found = spark.read.format("glidemq").options(**parts).schema("data string").load()
    assert sorted(int(row.data) for row in found.collect()) == list(range(2, 600, 6))
