"""Tests of reading jobs: states, partitions, columns, filters, and concurrent changes."""

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from glidemq_py import FlowJob, FlowProducer, GlideMQValidationError, Job, Queue, UnrecoverableError, Worker
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.server.worker_support import EventRecorder

DONE, FAILED = 700, 30


async def fill(name: str, url: str):
    """Add and work on 700 completed, 30 failed, 20 waiting, 15 delayed and 10 prioritized jobs."""

    async def handle(job: Job) -> Any:
        if job.name == "fails":
            raise UnrecoverableError("on purpose")
        return {"twice": job.data * 2}

    async with Queue(name, url) as queue:
        await queue.add_bulk([("n", i) for i in range(DONE)])
        await queue.add_bulk([("fails", i, {"attempts": 3}) for i in range(FAILED)])
        worker = Worker(name, handle, url, concurrency=50)
        recorded = EventRecorder(worker)
        async with worker:
            await recorded.wait("completed", DONE)
            await recorded.wait("failed", FAILED)
        await queue.add_bulk([("w", i) for i in range(20)])
        await queue.add_bulk([("d", i, {"delay": 3_600_000}) for i in range(15)])
        await queue.add_bulk([("p", i, {"priority": 3}) for i in range(10)])


@pytest.fixture(scope="module")
def filled(server: GlideMQServer) -> str:
    """Return the name of a queue with jobs in five states, which the tests of this module only read."""
    name = f"spark-{uuid.uuid4().hex[:12]}"
    asyncio.run(fill(name, server.url))
    return name


@pytest.fixture
def queue_name(request: pytest.FixtureRequest) -> str:
    """Return the name of the filled queue if the test reads it, else a unique one."""
    if "filled" in request.fixturenames:
        name: str = request.getfixturevalue("filled")
        return name
    return f"spark-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    """A queue with the same jobs, which the test may change."""
    await fill(queue_name, url)
    async with Queue(queue_name, url) as queue:
        yield queue


COUNTS = {"completed": DONE, "failed": FAILED, "waiting": 20, "delayed": 15, "prioritized": 10}


def test_every_state_is_read(filled: str, source: Callable[..., Any]):
    frame = source(fetchSize=50, numPartitions=5).load()
    rows = frame.collect()
    assert Counter(row.state for row in rows) == COUNTS
    assert len({row.id for row in rows}) == len(rows)
    assert source(fetchSize=50, numPartitions=5, state="completed").load().rdd.getNumPartitions() == 5


def reader_of(url: str, queue: str, *columns: str, **options: str) -> Any:
    """Return a reader of the id, or of these columns, to be called as Spark calls it."""
    from glidemq_py.spark.columns import JOB_COLUMNS
    from glidemq_py.spark.read_options import ReadOptions
    from glidemq_py.spark.reader import JobsReader

    given = ReadOptions.parse({"url": url, "queue": queue} | options, streaming=False)
    return JobsReader(given, tuple((name, JOB_COLUMNS[name][0]) for name in columns or ("id",)))


def rows_of(reader: Any, partitions: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    """Plan on the driver, and read in one task per partition."""
    parts = reader.partitions() if partitions is None else partitions
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("partitions", [1, 3, 64])
@pytest.mark.parametrize("fetch", [7, 500])
def test_partitions_read_each_job_once(filled: str, url: str, partitions: int, fetch: int):
    reader = reader_of(url, filled, state="completed,delayed", fetchSize=str(fetch), numPartitions=str(partitions))
    ids = [row["id"] for row in rows_of(reader)]
    assert len(ids) == len(set(ids)) == DONE + 15


def test_columns(filled: str, source: Callable[..., Any]):
    done = source(state="completed").load().where("data = '21'").collect()[0]
    assert (done.name, done.state, done.returnvalue, done.attemptsMade) == ("n", "completed", '{"twice":42}', 0)
    assert done.timestamp <= done.processedOn <= done.finishedOn
    failed = source(state="failed").load().collect()
    assert {(row.failedReason, row.opts) for row in failed} == {("on purpose", '{"attempts":3}')}
    some = source(state="completed").schema("finishedOn long, ID string, attemptsMade long").load()
    row = some.where(f"id = '{done.id}'").collect()[0]
    assert row.finishedOn == int(done.finishedOn.replace(tzinfo=UTC).timestamp() * 1000)
    assert source(state="completed").schema("id string, state string").load().count() == DONE


@pytest.mark.parametrize(
    ("schema", "options", "problem"),
    [
        ("id string, result string", {}, "column 'result' does not exist: jobs have id, name"),
        ("id long", {}, "column 'id' must be string, not bigint"),
        (None, {"state": "complete"}, "'state' = 'complete': must be one of"),
        (None, {"view": "events"}, "'view' = 'events': is read as a stream"),
        (None, {"fetchSize": "0"}, "'fetchSize' = 0: must be an integer from 1 to"),
        (None, {"columns": "id,result"}, "'columns' = 'result': must be a comma-separated list of columns of jobs: id"),
        (None, {"columns": "id, ID"}, "'columns' = 'id, ID': contains 'id' twice"),
        ("id string, name string", {"columns": "id"}, "'columns' = 'id': cannot be given together with a schema of"),
    ],
)
def test_invalid_options_fail_on_the_driver(
    source: Callable[..., Any], schema: str | None, options: dict[str, str], problem: str
):
    reader = source(**options)
    with pytest.raises(Exception, match=problem):
        (reader if schema is None else reader.schema(schema)).load().collect()


def held(*filters: Any) -> Callable[[dict[str, Any]], bool]:
    """Return the meaning of PySpark's filters, on a row whose times are microseconds."""

    def holds(each: Any, row: dict[str, Any]) -> bool:
        kind, value = type(each).__name__, row[each.attribute[0]]
        given = getattr(each, "value", None)
        given = [us(part) for part in given] if isinstance(given, (list, tuple)) else us(given)
        if kind in ("IsNull", "IsNotNull"):
            return (value is None) == (kind == "IsNull")
        if value is None:
            return False
        return {
            "EqualTo": lambda: value == given, "EqualNullSafe": lambda: value == given, "In": lambda: value in given,
            "GreaterThan": lambda: value > given, "GreaterThanOrEqual": lambda: value >= given,
            "LessThan": lambda: value < given, "LessThanOrEqual": lambda: value <= given,
        }[kind]()  # fmt: skip

    return lambda row: all(holds(each, row) for each in filters)


def us(value: Any) -> Any:
    return (
        (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        if isinstance(value, datetime)
        else value
    )


async def test_accepted_filters_are_exact(queue: Queue, url: str, queue_name: str, resp: Any):
    """Each filter gives the rows that it gives on everything, also of records that a foreign client wrote."""
    from pyspark.sql import datasource

    ds: Any = datasource  # the types of its annotations are narrower than what Spark passes

    from glidemq_py.spark.columns import JOB_COLUMNS

    await queue.add_bulk([("grouped", i, {"ordering": f"g{i % 2}"}) for i in range(6)])
    base = f"glide:{{{queue_name}}}:"
    resp.execute("ZADD", base + "completed", 1, "a", 2, "b")
    resp.execute("HSET", base + "job:a", "name", b"\xff", "state", "completed", "finishedOn", "1.5", "timestamp", "x")
    resp.execute("HSET", base + "job:b", "name", "n", "state", "completed", "finishedOn", "", "processedOn", "-5")
    times = ("timestamp", "processedOn", "finishedOn")

    def read(*filters: Any) -> list[dict[str, Any]]:
        reader = reader_of(url, queue_name, *JOB_COLUMNS, fetchSize="50")
        assert list(reader.pushFilters(list(filters))) == []
        return [row | {name: us(row[name]) for name in times} for row in rows_of(reader)]

    everything = read()
    done = sorted(
        (row for row in everything if row["state"] == "completed" and row["returnvalue"]),
        key=lambda row: row["finishedOn"],
    )
    middle, early = (
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=done[n]["finishedOn"]) for n in (DONE // 2, 5)
    )
    tick = timedelta(microseconds=1)
    name, state, group, job_id = ("name",), ("state",), ("groupKey",), ("id",)
    comparisons = [
        [kind((column,), at)]
        for kind in (ds.EqualTo, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual)
        for column in times
        for at in (middle, middle + tick, middle - tick)
    ]  # fmt: skip
    for filters in (
        *comparisons,
        [ds.EqualTo(state, "failed")],
        [ds.In(state, ("failed", "waiting", None))],
        [ds.EqualTo(state, "failed"), ds.EqualTo(state, "waiting")],
        [ds.EqualTo(name, "fails")],
        [ds.In(name, ("w", "d", "nothing"))],
        [ds.EqualTo(name, "w"), ds.EqualTo(state, "waiting")],
        [ds.EqualTo(name, "?")],
        [ds.EqualTo(name, "")],
        [ds.EqualNullSafe(group, "g1")],
        [ds.IsNull(group), ds.EqualTo(state, "waiting")],
        [ds.IsNotNull(group), ds.EqualTo(name, "grouped")],
        [ds.In(("finishedOn",), (middle, early))],
        [ds.IsNull(("finishedOn",))],
        [ds.GreaterThan(("finishedOn",), early), ds.LessThan(("finishedOn",), middle)],
        [ds.LessThan(("processedOn",), middle), ds.IsNotNull(("processedOn",)), ds.EqualTo(state, "completed")],
        [ds.EqualTo(("attemptsMade",), 1), ds.EqualTo(name, "fails")],
        [ds.GreaterThanOrEqual(("priority",), 3)],
        [ds.In(job_id, (done[0]["id"], done[9]["id"], "nobody"))],
        [ds.EqualTo(job_id, done[0]["id"]), ds.EqualTo(state, "failed")],
    ):
        expected = [row["id"] for row in everything if held(*filters)(row)]
        assert sorted(row["id"] for row in read(*filters)) == sorted(expected), filters


def test_other_filters_stay_with_spark():
    from pyspark.sql import datasource

    ds: Any = datasource  # the types of its annotations are narrower than what Spark passes

    from glidemq_py.spark.filters import accept

    columns = (("ID", "string"), ("name", "string"), ("finishedOn", "timestamp"), ("data", "string"))
    for each in (
        ds.StringStartsWith(("name",), "f"),
        ds.Not(ds.EqualTo(("name",), "f")),
        ds.EqualTo(("name",), "\ufffd"),
        ds.EqualNullSafe(("name",), None),
        ds.GreaterThan(("name",), "f"),
        ds.EqualTo(("data",), "21"),
        ds.EqualTo(("timestamp",), 5),  # not a column of this read
        ds.EqualTo(("finishedOn",), datetime(2026, 1, 1)),  # noqa: DTZ001  # without a zone
        ds.EqualTo(("name", "first"), "f"),
    ):
        assert accept(each, columns) is None, each
    assert accept(ds.EqualTo(("id",), "7"), columns) is not None


def test_pushed_filters_give_the_same_rows(filled: str, spark: Any, source: Callable[..., Any]):
    """With and without pushdown: the same rows, and Spark filters only what the read does not."""
    rows = source(state="completed", columns="id,finishedOn").load().orderBy("finishedOn").collect()
    filters = {
        f"finishedOn > timestamp'{rows[DONE // 2].finishedOn}' and name in ('n', 'x')": False,
        f"finishedOn = timestamp'{rows[DONE // 2].finishedOn}' and id <> 'x'": True,
        "state in ('failed', 'waiting') and groupKey is null": False,
        "name = 'w' or name = 'd'": True,
    }
    found: dict[bool, list[Any]] = {}
    for pushdown in (False, True):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", str(pushdown).lower())
        try:
            frames = {each: source(columns="id,name,state,finishedOn,groupKey").load().where(each) for each in filters}
            found[pushdown] = [Counter(frame.collect()) for frame in frames.values()]
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found[True] == found[False]
    assert all(found[True])
    for frame, stays in zip(frames.values(), filters.values(), strict=True):
        plan = frame._jdf.queryExecution().executedPlan().toString().replace("RuntimeFilters", "")
        assert ("Filter" in plan) == stays, plan


def test_pushed_filters_reduce_what_the_server_reads(filled: str, spark: Any, source: Callable[..., Any], resp: Any):
    ids = [row.id for row in source(state="completed", columns="id").load().collect()]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        before = calls(resp)
        assert source(fetchSize=50).load().where("state = 'failed'").count() == FAILED
        assert calls(resp) - before < 8
        before = calls(resp)
        assert source(fetchSize=50).load().where(f"id in ('{ids[0]}', '{ids[5]}', 'nobody')").count() == 2
        assert calls(resp) - before == 1
        before = sent_bytes(resp)
        source(state="completed").load().where("name = 'n'").write.format("noop").mode("overwrite").save()
        everything = sent_bytes(resp) - before
        before = sent_bytes(resp)
        source(state="completed").load().where("name = 'other'").write.format("noop").mode("overwrite").save()
        assert sent_bytes(resp) - before < everything / 10
        assert source(state="failed,waiting").load().where(f"id = '{ids[3]}'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def sent_bytes(resp: Any) -> int:
    """Return the bytes that the server has sent, without the replies to this question."""
    line = next(
        part for part in resp.execute("INFO", "stats").splitlines() if part.startswith("total_net_output_bytes:")
    )
    return int(line.partition(":")[2])


def calls(resp: Any) -> int:
    line = resp.execute("INFO", "commandstats")
    found = [part for part in line.splitlines() if part.startswith("cmdstat_fcall:")]
    return int(found[0].split("calls=")[1].split(",")[0])


def test_session_time_zone_does_not_affect_filters(filled: str, spark: Any, source: Callable[..., Any]):
    rows = source(state="completed").load().selectExpr("unix_millis(finishedOn) as ms").collect()
    middle = sorted(row.ms for row in rows)[DONE // 2]
    expected = sum(row.ms >= middle for row in rows)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        frame = source(state="completed").load()
        assert frame.where(f"finishedOn >= timestamp_millis({middle})").count() == expected
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        spark.conf.set("spark.sql.session.timeZone", "UTC")


async def test_jobs_removed_during_a_read_are_skipped(queue: Queue, url: str, queue_name: str):
    """Whole partitions are planned, jobs at their boundaries are removed, and all others are read."""
    reader = reader_of(url, queue_name, state="completed", fetchSize="20", numPartitions="8")
    ranges: list[Any] = reader.partitions()
    assert len(ranges) == 8
    gone = {each.until[1] for each in ranges if each.until}
    for job_id in gone:
        assert await queue.remove(job_id)
    ids = [row["id"] for row in rows_of(reader, ranges)]
    assert len(ids) == len(set(ids)) == DONE - len(gone)


def test_invalid_records_are_read_as_far_as_possible(source: Callable[..., Any], resp: Any, queue_name: str):
    base = f"glide:{{{queue_name}}}:"
    resp.execute("ZADD", base + "completed", 1, "a", 2, "b")
    resp.execute(
        "HSET", base + "job:a", "name", b"\xff\xfe", "finishedOn", "12.5", "attemptsMade", "junk", "data", "gz:!"
    )
    rows = source(state="completed").load().collect()
    assert [(row.id, row.name, row.attemptsMade, row.data) for row in rows] == [
        ("a", "\ufffd\ufffd", None, "gz:!"), ("b", None, None, None),
    ]  # fmt: skip
    assert rows[0].finishedOn == datetime(1970, 1, 1, 0, 0, 0, 12_000)  # noqa: DTZ001  # as Spark gives it


async def test_waiting_jobs_are_read_in_partitions(source: Callable[..., Any], url: str, queue_name: str):
    """Jobs in entries of many milliseconds, some deleted, and jobs in a list."""
    async with Queue(queue_name, url) as queue:
        ids = [(await queue.add("n", i)).id for i in range(300)]
        await queue.add_bulk([("lifo", i, {"lifo": True}) for i in range(30)])
        for job_id in ids[::7]:
            assert await queue.remove(job_id)
    for partitions in (1, 2, 7, 50):
        frame = source(state="waiting", fetchSize=20, numPartitions=partitions).schema("id string, name string").load()
        rows = frame.collect()
        assert len({row.id for row in rows}) == len(rows) == 300 - 43 + 30
        assert sum(row.name == "lifo" for row in rows) == 30
        assert frame.rdd.getNumPartitions() == min(partitions, 13)
    sizes = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    assert sum(size > 0 for size in sizes) >= 3, sizes  # cut by time, so a pause of the machine makes them uneven


async def test_waiting_parents_are_read(source: Callable[..., Any], url: str, queue_name: str):
    async with FlowProducer(url) as flows:
        parts = [FlowJob("part", queue_name, n) for n in range(3)]
        await flows.add(FlowJob("whole", queue_name, 1, children=parts))
    assert Counter(row.state for row in source().load().collect()) == {"waiting-children": 1, "waiting": 3}
    (parent,) = source(state="waiting-children").load().collect()
    assert (parent.name, parent.data) == ("whole", "1")


async def test_headers_are_read_from_opts(source: Callable[..., Any], url: str, queue_name: str):
    """As the error for Kafka's option `includeHeaders` says."""
    async with Queue(queue_name, url) as queue:
        await queue.add("n", 1, headers={"tenant": "acme"})
    (row,) = source().load().selectExpr("get_json_object(opts, '$.headers.tenant') as tenant").collect()
    assert row.tenant == "acme"


def test_empty_queue_is_read(source: Callable[..., Any]):
    assert source().load().count() == 0


def test_option_columns_reads_only_these(filled: str, source: Callable[..., Any], spark: Any, resp: Any):
    frame = source(state="completed", columns="finishedOn, ID").load()
    assert frame.schema.simpleString() == "struct<finishedOn:timestamp,id:string>"
    assert frame.where("finishedOn is not null").count() == DONE
    before = sent_bytes(resp)
    source(state="completed", columns="id").load().write.format("noop").mode("overwrite").save()
    few = sent_bytes(resp) - before
    source(state="completed").load().write.format("noop").mode("overwrite").save()
    assert few < (sent_bytes(resp) - before - few) / 2
    assert source(view="counts", columns="jobs").load().columns == ["jobs"]
    assert source(columns="id").schema("ID string").load().columns == ["ID"]


def test_counts_take_one_call(filled: str, source: Callable[..., Any], resp: Any, queue_name: str):
    from glidemq_py.spark.read_options import ReadOptions

    before = calls(resp)
    rows = source(view="counts").load().collect()
    assert calls(resp) - before == 1
    assert {row.state: row.jobs for row in rows if row.jobs} == COUNTS
    assert len(rows) == 9
    assert {row.queue for row in rows} == {queue_name}
    assert source(view="counts", state="failed").load().collect()[0].jobs == FAILED
    with pytest.raises(GlideMQValidationError, match="'view' = 'counts': cannot be read as a stream"):
        ReadOptions.parse({"queue": "q", "view": "counts"}, streaming=True)


async def test_counts_of_many_groups(source: Callable[..., Any], url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        for n in range(2):
            await queue.add_bulk([("n", n, {"ordering": {"key": f"g{i}", "concurrency": 1}}) for i in range(600)])
    rows = source(view="counts").load().where("jobs > 0").collect()
    assert sum(row.jobs for row in rows) == 1_200


async def test_all_states_are_read_while_workers_run(source: Callable[..., Any], url: str, queue_name: str):
    """Each job once, though all jobs move through several states between the plan and the last task."""
    total = 3_000

    async def handle(job: Job):
        if job.data % 5 == 0 and job.attempts_made == 0:
            raise RuntimeError("retried")

    def read(**options: str) -> list[str]:
        return [row["id"] for row in rows_of(reader_of(url, queue_name, "id", "state", fetchSize="100", **options))]

    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("n", i, {"attempts": 2, "backoff": 20}) for i in range(total)])
        worker = Worker(queue_name, handle, url, concurrency=20)
        recorded = EventRecorder(worker)
        seen: list[int] = []
        async with worker:
            done = asyncio.ensure_future(recorded.wait("completed", total))
            while not done.done():
                found = await asyncio.to_thread(read)
                assert len(found) == len(set(found)) == total
                seen.append((await queue.get_job_counts()).completed)
            await done
        assert len(seen) > 1
        found = read(state="waiting,completed")
        assert len(found) == len(set(found)) == total


@pytest.mark.parametrize("state", [None, "waiting"])
async def test_first_rows_do_not_read_the_queue(
    spark: Any, source: Callable[..., Any], url: str, queue_name: str, resp: Any, state: str | None
):
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("n", {"text": "x" * 1_000}) for _ in range(20_000)])
    resp.execute("CONFIG", "RESETSTAT")
    frame = source(fetchSize=100, **({"state": state} if state else {})).load()
    assert len(frame.limit(5).collect()) == 5
    read = re.search(r"cmdstat_hmget:calls=(\d+)", str(resp.execute("INFO", "commandstats")))
    assert read is not None
    assert int(read[1]) < 5_000


def test_old_finished_jobs_are_read_by_ranges(source: Callable[..., Any], resp: Any, queue_name: str):
    """Of several states, only jobs that can move, or have finished in the last minute, are read by one task."""
    base = f"glide:{{{queue_name}}}:"
    now = int(resp.execute("TIME")[0]) * 1_000
    times = [5, *range(now - 200_000, now, 1_000), now]
    for n, at in enumerate(times):
        resp.execute("ZADD", base + "completed", at, str(n))
        resp.execute("HSET", base + f"job:{n}", "state", "completed", "finishedOn", at, "name", "n")
    for size in (1, 50):
        ids = [row.id for row in source(fetchSize=size, columns="id,finishedOn").load().collect()]
        assert Counter(ids) == Counter(str(n) for n in range(len(times)))
