"""Tests of reading jobs: states, partitions, columns, filters, and concurrent changes."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from glidemq_py import FlowJob, FlowProducer, Job, Queue, UnrecoverableError, Worker
from tests.server.worker_support import EventRecorder

DONE, FAILED = 700, 30


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue[Any, Any]]:
    """700 completed, 30 failed, 20 waiting, 15 delayed, 10 prioritized jobs, and one parked behind its group."""

    async def handle(job: Job) -> Any:
        if job.name == "fails":
            raise UnrecoverableError("on purpose")
        return {"twice": job.data * 2}

    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("n", i) for i in range(DONE)])
        await queue.add_bulk([("fails", i, {"attempts": 3}) for i in range(FAILED)])
        worker = Worker(queue_name, handle, url, concurrency=50)
        recorded = EventRecorder(worker)
        async with worker:
            await recorded.wait("completed", DONE)
            await recorded.wait("failed", FAILED)
        await queue.add_bulk([("w", i) for i in range(20)])
        await queue.add_bulk([("d", i, {"delay": 3_600_000}) for i in range(15)])
        await queue.add_bulk([("p", i, {"priority": 3}) for i in range(10)])
        yield queue


COUNTS = {"completed": DONE, "failed": FAILED, "waiting": 20, "delayed": 15, "prioritized": 10}


def test_every_state_is_read(queue: Queue[Any, Any], source: Callable[..., Any]):
    frame = source(fetchSize=50, numPartitions=5).load()
    rows = frame.collect()
    assert Counter(row.state for row in rows) == COUNTS
    assert len({row.id for row in rows}) == len(rows)
    assert frame.rdd.getNumPartitions() == 5 + 1 + 1 + 1 + 1 + 4  # completed in five, the rest in one each


@pytest.mark.parametrize("partitions", [1, 3, 64])
@pytest.mark.parametrize("fetch", [7, 500])
def test_partitions_read_each_job_once(queue: Queue[Any, Any], source: Callable[..., Any], partitions: int, fetch: int):
    frame = source(state="completed,delayed", fetchSize=fetch, numPartitions=partitions).schema("id string").load()
    ids = [row.id for row in frame.collect()]
    assert len(ids) == len(set(ids)) == DONE + 15


def test_columns(queue: Queue[Any, Any], source: Callable[..., Any]):
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
        ("id string", {"state": "complete"}, "'state' = 'complete': must be one of"),
        ("id string", {"view": "events"}, "'view' = 'events': is read as a stream"),
        ("id string", {"fetchSize": "0"}, "'fetchSize' = 0: must be an integer from 1 to"),
    ],
)
def test_invalid_options_fail_on_the_driver(
    source: Callable[..., Any], schema: str, options: dict[str, str], problem: str
):
    with pytest.raises(Exception, match=problem):
        source(**options).schema(schema).load().collect()


@pytest.mark.parametrize("pushdown", [False, True])
def test_filters(queue: Queue[Any, Any], spark: Any, source: Callable[..., Any], pushdown: bool, url: str, resp: Any):
    rows = source(state="completed").load().select("id", "finishedOn").orderBy("finishedOn").collect()
    middle = rows[DONE // 2].finishedOn
    later = sum(row.finishedOn > middle for row in rows)
    at = sum(row.finishedOn == middle for row in rows)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", str(pushdown).lower())
    try:
        frame = source(fetchSize=50).load()
        before = calls(resp)
        assert frame.where("state = 'failed'").count() == FAILED
        assert (calls(resp) - before < 8) == pushdown
        assert frame.where("state in ('failed', 'waiting')").count() == FAILED + 20
        assert frame.where("state = 'failed' and state = 'waiting'").count() == 0
        assert frame.where(frame.finishedOn > middle).where("state = 'completed'").count() == later
        assert frame.where(frame.finishedOn <= middle).where("state = 'completed'").count() == DONE - later
        assert frame.where(frame.finishedOn == middle).where("state = 'completed'").count() == at
        wanted = [rows[0].id, rows[5].id, "nobody"]
        before = calls(resp)
        assert {row.id for row in frame.where(frame.id.isin(wanted)).collect()} == set(wanted[:2])
        assert (calls(resp) - before == 1) == pushdown
        assert frame.where(f"id = '{rows[3].id}' and state = 'failed'").count() == 0
        assert frame.where("name like 'f%'").count() == FAILED
        done = source(state="completed").load()
        assert done.where(f"id = '{rows[3].id}'").count() == 1
        assert source(state="failed,waiting").load().where(f"id = '{rows[3].id}'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def calls(resp: Any) -> int:
    line = resp.execute("INFO", "commandstats")
    found = [part for part in line.splitlines() if part.startswith("cmdstat_fcall:")]
    return int(found[0].split("calls=")[1].split(",")[0])


def test_session_time_zone_does_not_affect_filters(queue: Queue[Any, Any], spark: Any, source: Callable[..., Any]):
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


async def test_jobs_removed_during_a_read_are_skipped(queue: Queue[Any, Any], url: str, queue_name: str):
    """Whole partitions are planned, jobs at their boundaries are removed, and all others are read."""
    for module in ("pyarrow", "pyspark"):
        pytest.importorskip(module)
    from glidemq_py.spark.read_options import ReadOptions
    from glidemq_py.spark.reader import JobsReader

    options = ReadOptions.parse(
        {"url": url, "queue": queue_name, "state": "completed", "fetchsize": "20", "numpartitions": "8"},
        streaming=False,
    )
    reader = JobsReader(options, (("id", "string"),))
    ranges: list[Any] = reader.partitions()
    assert len(ranges) == 8
    gone = {each.until[1] for each in ranges if each.until}
    for job_id in gone:
        assert await queue.remove(job_id)
    ids = [job_id for each in ranges for batch in reader.read(each) for job_id in batch.column(0).to_pylist()]
    assert len(ids) == len(set(ids)) == DONE - len(gone)


def test_invalid_records_are_read_as_far_as_possible(source: Callable[..., Any], resp: Any, queue_name: str):
    base = f"glide:{{{queue_name}}}:"
    resp.execute("ZADD", base + "completed", 1, "a", 2, "b")
    resp.execute(
        "HSET", base + "job:a", "name", b"\xff\xfe", "finishedOn", "12.5", "attemptsMade", "junk", "data", "gz:!"
    )
    rows = source(state="completed").load().collect()
    assert [(row.id, row.name, row.attemptsMade, row.data) for row in rows] == [
        ("a", "??", None, "gz:!"), ("b", None, None, None),
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
    assert max(sizes) < 200


async def test_waiting_parents_are_read(source: Callable[..., Any], url: str, queue_name: str):
    async with FlowProducer(url) as flows:
        parts = [FlowJob("part", queue_name, n) for n in range(3)]
        await flows.add(FlowJob("whole", queue_name, 1, children=parts))
    assert Counter(row.state for row in source().load().collect()) == {"waiting-children": 1, "waiting": 3}
    (parent,) = source(state="waiting-children").load().collect()
    assert (parent.name, parent.data) == ("whole", "1")


def test_empty_queue_is_read(source: Callable[..., Any]):
    assert source().load().count() == 0
