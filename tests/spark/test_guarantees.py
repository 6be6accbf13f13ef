"""With `atomic`, each row becomes one job or no row does, for every failure of a task: no duplicates, no orphans,
nothing staged is left.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Queue, Worker
from tests.spark.conftest import LIMIT_S, Written

ROWS = 1_000
EXPECTED = [str(n) for n in range(ROWS)]


@pytest.fixture
def frame(spark: Any) -> Any:
    """1000 rows in two partitions, ten Arrow batches and ten pieces."""
    from tests.spark.faults import FaultySource

    spark.dataSource.register(FaultySource)
    return spark.range(ROWS, numPartitions=2).selectExpr("cast(id as string) as data")


def wait_for(folder: Path, name: str, count: int = 1) -> list[str]:
    deadline = time.monotonic() + LIMIT_S
    while len(found := [path.read_text() for path in folder.glob(f"{name}-*")]) < count:
        assert time.monotonic() < deadline, name
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("fault", ["raise", "kill", "exit"])
def test_failed_task_is_retried(sink: Callable[..., Any], frame: Any, written: Written, tmp_path: Path, fault: str):
    sink(frame, "faulty", fault=fault, folder=tmp_path).save()
    assert len(wait_for(tmp_path, "failed")) == 1
    written.check(EXPECTED)


def test_atomic_prevents_duplicates(sink: Callable[..., Any], frame: Any, written: Written, tmp_path: Path):
    sink(frame, "faulty", fault="raise", guarantee="append").save()
    assert len(written.data) > ROWS
    assert set(written.data) == set(EXPECTED)
    assert written.staged == {}


def test_failed_write_leaves_nothing(sink: Callable[..., Any], frame: Any, written: Written, tmp_path: Path):
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"(?s)on purpose.*write '\w{32}': not committed"):
        sink(frame, "faulty", fault="raise", faultattempts=9, folder=tmp_path).save()
    wait_for(tmp_path, "aborted")
    written.check([], {"aborted"})


def test_task_that_continues_after_the_abort_adds_nothing(
    sink: Callable[..., Any], frame: Any, written: Written, tmp_path: Path
):
    options = {"fault": "raise", "faultattempts": 9, "folder": tmp_path, "wait": "aborted"}
    with pytest.raises(Exception, match="on purpose"):
        sink(frame, "faulty", **options).save()
    wait_for(tmp_path, "aborted")
    ended = wait_for(tmp_path, "ended", 4)  # three attempts, and the sibling
    assert ended.count("StagedWriteError") == 1
    written.check([], {"aborted"})


@pytest.mark.parametrize("calls", ["before", "1", "2", "5", "after"])
def test_commit_that_crashes(sink: Callable[..., Any], frame: Any, written: Written, tmp_path: Path, calls: str):
    with pytest.raises(Exception, match="commit crashed"):
        sink(frame, "faulty", commit=calls, folder=tmp_path, writeId="mine").save()
    wait_for(tmp_path, "aborted")
    if calls in ("before", "1"):  # the first call gets a ballot
        written.check([], {"aborted"})
    else:
        written.check(EXPECTED)
    sink(frame, writeId="mine").save()
    written.check(EXPECTED)


def test_repeated_write_adds_nothing(sink: Callable[..., Any], frame: Any, written: Written):
    for _ in range(2):
        sink(frame, writeId="monday").save()
    written.check(EXPECTED)
    sink(frame, writeId="tuesday").save()
    written.check(EXPECTED * 2)


def test_empty_frame_is_written(sink: Callable[..., Any], frame: Any, written: Written):
    sink(frame.limit(0), writeId="nothing").save()
    written.check([])


def test_many_partitions_are_written(sink: Callable[..., Any], spark: Any, written: Written):
    sink(spark.range(ROWS, numPartitions=20).selectExpr("cast(id as string) as data")).save()
    written.check(EXPECTED)


async def test_worker_completes_the_write_of_a_killed_driver(
    sink: Callable[..., Any], frame: Any, written: Written, tmp_path: Path, url: str, queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """A driver that was killed makes no abort either."""
    from glidemq_py._worker.maintenance import outbox as outbox_task

    monkeypatch.setattr(outbox_task, "LEFT_ALONE_MS", 0)
    done: set[str] = set()
    all_done = asyncio.Event()

    async def handle(job: Any):
        done.add(str(job.data))
        if len(done) == ROWS:
            all_done.set()

    with pytest.raises(Exception, match="on purpose"):  # stops after the decision: neither commit nor abort continues
        sink(frame, "faulty", commit="2", abort="never", folder=tmp_path).save()
    assert set(written.staged.values()) & {"committed"}
    async with Worker(queue_name, handle, url, concurrency=50):
        await asyncio.wait_for(all_done.wait(), 60)
    async with Queue(queue_name, url) as queue:
        counts = await queue.get_job_counts()
        assert (counts.completed, counts.unfinished) == (ROWS, 0)
        report = await queue.check(recheck_after=50)
        assert not report.findings, str(report)
    assert set(written.staged.values()) == {"done"}


# -- several queues ------------------------------------------------------------------------------------------


def test_write_to_several_queues_is_atomic(
    sink: Callable[..., Any], frame: Any, resp: Any, written: Written, queue_name: str, tmp_path: Path
):
    queues = [f"{queue_name}-{i}" for i in range(3)]
    spread = frame.selectExpr(
        "data", f"case data % 4 when 3 then null else concat('{queue_name}-', cast(data % 4 as int)) end as queue"
    )
    sink(spread, "faulty", fault="raise", folder=tmp_path).save()
    for i, queue in enumerate([*queues, queue_name]):
        Written(resp, queue).check([n for n in EXPECTED if int(n) % 4 == i])


@pytest.mark.parametrize("calls", ["2", "5", "8"])
def test_several_queues_and_a_commit_that_crashes(
    sink: Callable[..., Any], frame: Any, resp: Any, queue_name: str, tmp_path: Path, calls: str
):
    spread = frame.selectExpr("data", f"concat('{queue_name}-', cast(data % 3 as int)) as queue")
    with pytest.raises(Exception, match="commit crashed"):
        sink(spread, "faulty", commit=calls, folder=tmp_path).save()
    wait_for(tmp_path, "aborted")
    decided = int(calls) >= 5  # the first gets a ballot, three prepare, the fifth decides
    for i in range(3):
        Written(resp, f"{queue_name}-{i}").check([n for n in EXPECTED if int(n) % 3 == i and decided])
