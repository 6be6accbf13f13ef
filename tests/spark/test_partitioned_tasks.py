"""With `guarantee=task`, each row of a partitioned queue becomes one job: with attempts that are killed at any call,
attempts side by side, and other numbers of partitions between them.

Most attempts run in this process, as those of one task; `test_spark_cluster.py` has tasks of Spark on a cluster.
"""

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from glidemq_py._client.blocking_transport import ThreadTransport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.partitions.changing import replace_layout
from glidemq_py._features.partitions.layout import Layout, partition_of_key, split_partition_id
from glidemq_py.errors import GlideMQError, StagedWriteError
from glidemq_py.spark import last_report, sinks, writer
from glidemq_py.spark.api import TaskFacts, pa
from glidemq_py.spark.options import WriteOptions, transport_of
from glidemq_py.spark.partitioned import layout_of
from glidemq_py.spark.write_schema import plan_write
from glidemq_py.spark.writer import FrameWriter, StreamWriter, Written
from glidemq_py.sync import Queue

ROWS = 1_000
COLUMNS = ("data", "jobId", "orderingKey", "fairKey", "queue")
SCHEMA = StructType([StructField(name, StringType()) for name in COLUMNS])
SEEDS = int(os.environ.get("GLIDEMQ_FUZZ_RUNS", "5"))


class Killed(Exception):  # noqa: N818  # not an error
    """The attempt ended at this point."""


def table(*, keyed: bool, queues: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Return rows whose data are different numbers. Fair keys are keys that move at once."""
    found: list[dict[str, str]] = []
    for n in range(ROWS):
        row = {"data": str(n)}
        if n % 5 == 0:
            row["fairKey"] = f"f{n % 9}"
        elif keyed and n % 5 < 3:
            row |= {"orderingKey": f"o{n % 60}"} if n % 5 == 1 else {"jobId": f"id-{n}"}
        if queues:
            row["queue"] = queues[n % 7 % len(queues)]
        found.append(row)
    return found


def batches(rows: list[dict[str, str]], size: int, stop_at: int = ROWS) -> Iterator[Any]:
    """Yield the rows in Arrow batches; the task is killed when it has read so many."""
    for first in range(0, len(rows), size):
        if first >= stop_at:
            raise Killed
        part = rows[first : first + size]
        columns = [pa.array([row.get(name) for row in part], pa.string()) for name in COLUMNS]
        yield pa.RecordBatch.from_arrays(columns, list(COLUMNS))


class Calls:
    """Kills an attempt after some calls. Of calls that are sent together, the first ones may be made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self._lock = threading.Lock()
        self._call_all = ThreadTransport.call_all
        monkeypatch.setattr(ThreadTransport, "call_all", lambda transport, calls: self._made(transport, calls))

    def _made(self, transport: ThreadTransport, calls: Any) -> list[Any]:
        with self._lock:
            allowed = len(calls) if self.left is None else min(len(calls), self.left)
            if self.left is not None:
                self.left -= allowed
        replies = self._call_all(transport, calls[:allowed]) if allowed else []
        if allowed < len(calls):
            raise Killed
        return replies


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture(autouse=True)
def facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All attempts are of one task, and share the connection of this process."""
    monkeypatch.setattr(writer, "task_context", lambda: TaskFacts(3, 0, "", -1))
    monkeypatch.setattr(writer, "forget", lambda _: None)


@dataclass
class Scene:
    """The queues of a save, and what became of its rows."""

    url: str
    names: tuple[str, ...]
    gone: Counter[str] = field(default_factory=Counter[str])
    """Data of jobs that were deleted."""

    def options(self, *, streaming: bool = False, **given: Any) -> WriteOptions:
        options = {"url": self.url, "queue": self.names[0], "jobName": "n", "guarantee": "task"} | given
        return WriteOptions.parse({name: str(value) for name, value in options.items()}, streaming=streaming)

    def writer(self, **given: Any) -> FrameWriter:
        options = self.options(**{"writeId": "w"} | given)
        return FrameWriter(options, plan_write(SCHEMA, options))

    def attempt(self, rows: list[dict[str, str]], stop_at: int = ROWS, **given: Any) -> Written | None:
        """Return the message of an attempt; None if it was killed."""
        try:
            return self.writer(**{"batchSize": 50} | given).write(batches(rows, 50, stop_at))
        except Killed:
            return None

    def queue(self, name: str = "", **given: Any) -> Queue[Any, Any]:
        return Queue(name or self.names[0], self.url, **given)

    def jobs(self) -> Counter[str]:
        """Return the data of all jobs, also of those that were deleted."""
        found = Counter(self.gone)
        for name in self.names:
            with self.queue(name) as queue:
                found.update(str(job.data) for job in queue.iter_jobs("waiting"))
        return found

    def change(self, name: str, count: int, *, settle: bool) -> None:
        """Change the number of partitions; delete the jobs first if the change has to be settled."""
        with self.queue(name) as queue:
            if settle:
                self.gone.update(str(job.data) for job in queue.iter_jobs("waiting"))
                queue.drain()
            while not queue.set_partitions(count).is_settled and settle:
                pass

    def check(self, *, complete: bool) -> None:
        found = self.jobs()
        assert not [data for data, count in found.items() if count > 1]
        assert not complete or len(found) == ROWS


@pytest.fixture(params=["server", "cluster"])
def scene(request: pytest.FixtureRequest, queue_name: str) -> Scene:
    url = request.getfixturevalue("url" if request.param == "server" else "cluster_url")
    return Scene(url, (queue_name,))


class Attempts:
    """Random attempts of a task, and changes between and during them."""

    def __init__(self, scene: Scene, calls: Calls, seed: int) -> None:
        self.scene, self.calls = scene, calls
        self.rng = rng = random.Random(seed)
        self.keyed = rng.random() < 0.5
        if rng.random() < 0.3:
            scene.names = (scene.names[0], f"{scene.names[0]}-b")
        self.rows = table(keyed=self.keyed, queues=scene.names if len(scene.names) > 1 else ())
        for name in scene.names:
            if rng.random() < 0.7:
                with scene.queue(name, partitions=rng.randint(2, 5)) as queue:
                    queue.count()

    def run(self, attempts: int, depth: int = 0) -> None:
        rng = self.rng
        for _ in range(attempts):
            if rng.random() < 0.5:
                settle = self.keyed or rng.random() < 0.5
                self.scene.change(rng.choice(self.scene.names), rng.randint(1, 6), settle=settle)
            kind = rng.choice(("rows", "calls", "beside", "beside") if depth < 2 else ("rows", "calls"))
            if kind == "rows":
                self.attempt(rng.randint(0, ROWS))
            elif kind == "calls":
                self.calls.left = rng.randint(0, 25)
                self.attempt()
                self.calls.left = None
            else:  # others run while this one reads its rows
                others = partial(self.run, rng.randint(1, 2), depth + 1)
                self.attempt(rng.choice((ROWS, rng.randint(0, ROWS))), others)
            self.scene.check(complete=False)

    def attempt(self, stop_at: int = ROWS, pause: Callable[[], None] | None = None) -> Written | None:
        """Return the message of the task; None if it failed."""
        rng = self.rng
        save = self.scene.writer(batchSize=rng.choice((1, 40, 250, 900)), maxBatchBytes=rng.choice((2_000, 200_000)))
        try:
            message = save.write(self.batches(rng.choice((30, 120, 400)), stop_at, pause))
        except Killed:
            return None
        except GlideMQError as error:
            if "was changed during the save" not in str(error):
                raise
            return None
        self.scene.check(complete=True)
        return message

    def batches(self, size: int, stop_at: int, pause: Callable[[], None] | None) -> Iterator[Any]:
        pause_at = self.rng.randint(0, ROWS // size // 2)
        for n, batch in enumerate(batches(self.rows, size, stop_at)):
            if n == pause_at and pause is not None:
                pause()
            yield batch


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_become_one_job_each_whatever_happens(scene: Scene, calls: Calls, seed: int):
    """`GLIDEMQ_FUZZ_SEED` selects the first seed, `GLIDEMQ_FUZZ_RUNS` how many there are."""
    attempts = Attempts(scene, calls, int(os.environ.get("GLIDEMQ_FUZZ_SEED", "0")) + seed)
    attempts.run(4)
    assert attempts.attempt() is not None
    again = attempts.attempt()
    assert again is not None
    assert again.rows == ROWS
    assert sum(jobs for jobs, _ in again.counts.values()) == 0


@pytest.fixture
def standalone(url: str, queue_name: str) -> Scene:
    return Scene(url, (queue_name,))


def test_rows_of_a_plain_queue_are_not_added_again_to_its_partitions(standalone: Scene):
    """Nor are they rejected for keys that a partitioned queue does not allow; the others are."""
    rows = table(keyed=False)
    rows[3] |= {"jobId": "17"}
    assert standalone.attempt(rows, 500) is None
    standalone.change(standalone.names[0], 3, settle=False)
    with pytest.raises(GlideMQError, match=r"row 701 .* = '18': must not be a number"):
        standalone.attempt([*rows[:700], rows[700] | {"jobId": "18"}, *rows[701:]])
    message = standalone.attempt(rows)
    assert message is not None
    assert message.rows == ROWS
    standalone.check(complete=True)


def test_a_save_continues_when_a_change_is_settled(standalone: Scene):
    rows = table(keyed=True)
    with standalone.queue(partitions=2) as queue:
        queue.count()
        assert standalone.attempt(rows, 500) is None
        assert not queue.set_partitions(5).is_settled
        with pytest.raises(
            GlideMQError, match=r"is being changed, .* call Queue.set_partitions\(5\) until .*, then save"
        ):
            standalone.attempt(rows)
        standalone.check(complete=False)
    standalone.change(standalone.names[0], 5, settle=True)
    assert standalone.attempt(rows) is not None
    standalone.check(complete=True)


def test_unique_rows_become_one_job_each(standalone: Scene):
    rows = [{"data": f"{n}", "opts": f'{{"deduplication": {{"id": "u{n % 40}"}}}}'} for n in range(ROWS)]
    columns = ("data", "opts")
    schema = StructType([StructField(name, StringType()) for name in columns])
    batch = pa.RecordBatch.from_arrays([pa.array([row[name] for row in rows]) for name in columns], list(columns))
    with standalone.queue(partitions=3) as queue:
        queue.count()
        for end in (330, ROWS, ROWS):
            options = standalone.options(writeId="w", batchSize=50)
            message = FrameWriter(options, plan_write(schema, options)).write(iter([batch.slice(0, end)]))
            jobs, others = (sum(each) for each in zip(*message.counts.values(), strict=True))
        assert (jobs, others) == (0, 0)
        assert queue.count() == 40
        assert all(
            split_partition_id(job.id)[0] == partition_of_key(f"u{int(job.data) % 40}", 3)
            for job in queue.iter_jobs("waiting")
        )


def test_an_interrupted_change_rejects_former_attempts(standalone: Scene):
    """The operator died when the layout was replaced: the other partitions did not know it."""
    rows = table(keyed=False)

    def interrupted() -> Iterator[Any]:
        for n, batch in enumerate(batches(rows, 50)):
            if n == 8:
                layout = _layout(standalone)
                call = replace_layout(queue_keys(standalone).meta, layout, layout.changed(4))
                transport_of(standalone.options().place).call(call)
                assert standalone.attempt(rows, 600) is None
            yield batch

    with standalone.queue(partitions=2) as queue:
        queue.count()
    with pytest.raises(GlideMQError, match="was changed during the save"):
        standalone.writer(batchSize=50).write(interrupted())
    assert standalone.attempt(rows) is not None
    standalone.check(complete=True)


def queue_keys(scene: Scene, number: int = 0) -> QueueKeys:
    """Return the keys of a partition."""
    keys = scene.options().keys
    return QueueKeys(keys.prefix, _layout(scene).names[number]) if number else keys


def _layout(scene: Scene) -> Layout:
    options = scene.options()
    layout = layout_of(transport_of(options.place), options.keys)
    assert layout is not None
    return layout


@pytest.mark.parametrize("changes", [1, 2])
def test_a_lost_ledger_is_found(standalone: Scene, changes: int):
    """The rows that a former layout has added decide which ones the next layouts have added, so none may be missing."""
    rows, name = table(keyed=False), standalone.names[0]
    with standalone.queue(partitions=2) as queue:
        queue.count()
    for n in range(changes):
        assert standalone.attempt(rows, 300 * (n + 1)) is None
        standalone.change(name, 3 + n, settle=False)
    if changes == 1:
        assert standalone.attempt(rows, 600) is None
    ledger = f"glide:{{{queue_keys(standalone, 1).name}}}:write-once:w"
    transport = transport_of(standalone.options().place)
    assert transport.command("HGET", ledger, "r3")
    transport.command("DEL", ledger)
    for _ in range(2):
        with pytest.raises(StagedWriteError, match="its rows that are jobs already has expired or was lost"):
            standalone.attempt(rows)
    standalone.check(complete=False)


def test_a_damaged_ledger_is_an_error(standalone: Scene):
    rows = table(keyed=False)
    with standalone.queue(partitions=2) as queue:
        queue.count()
    assert standalone.attempt(rows, 300) is None
    ledger = f"glide:{{{queue_keys(standalone, 1).name}}}:write-once:w"
    transport = transport_of(standalone.options().place)
    transport.command("HSET", ledger, "r3", "7:x")
    with pytest.raises(GlideMQError, match="the counts of a write are damaged: '7:x'"):
        standalone.attempt(rows)


def test_ledgers_are_kept_while_a_task_runs(standalone: Scene, monkeypatch: pytest.MonkeyPatch):
    rows, now = table(keyed=False), 0.0
    monkeypatch.setattr(sinks, "_monotonic", lambda: now)
    with standalone.queue(partitions=2) as queue:
        queue.count()
    assert standalone.attempt(rows, 600) is None
    standalone.change(standalone.names[0], 1, settle=True)
    ledger = f"glide:{{{queue_keys(standalone, 1).name}}}:write-once:w"
    transport = transport_of(standalone.options().place)

    def slowly() -> Iterator[Any]:
        nonlocal now
        for batch in batches(rows, 50):
            transport.command("PEXPIRE", ledger, "50000")
            now += 20
            yield batch

    standalone.writer(batchSize=50, rememberWrites=60_000).write(slowly())
    assert int(transport.command("PTTL", ledger)) > 50_000
    standalone.check(complete=True)


def test_a_micro_batch_is_written_once(standalone: Scene, monkeypatch: pytest.MonkeyPatch):
    """Also if the number of partitions changes between two attempts, and if a late attempt begins after its batch."""
    rows = table(keyed=False)

    def attempt(batch: int, stop_at: int = ROWS) -> Written | None:
        monkeypatch.setattr(writer, "task_context", lambda: TaskFacts(3, 0, "query", batch))
        options = standalone.options(streaming=True, batchSize=50)
        try:
            return StreamWriter(options, plan_write(SCHEMA, options)).write(batches(rows, 50, stop_at))
        except Killed:
            return None

    for batch, count in enumerate((2, 4, 3)):
        assert attempt(batch, 400) is None
        standalone.change(standalone.names[0], count, settle=False)
        assert attempt(batch) is not None
        assert standalone.jobs() == dict.fromkeys(map(str, range(ROWS)), batch + 1)
    standalone.change(standalone.names[0], 5, settle=False)
    late = attempt(1)
    assert late is not None
    assert late.over
    assert standalone.jobs() == dict.fromkeys(map(str, range(ROWS)), 3)


# -- tasks of Spark ------------------------------------------------------------------------------------------------


@pytest.fixture
def frame(spark: Any) -> Any:
    """1,000 rows in two partitions; a part has fair keys."""
    from tests.spark.faults import FaultySource

    spark.dataSource.register(FaultySource)
    columns = ("cast(id as string) as data", "if(id % 3 = 0, concat('f', id % 7), null) as fairKey")
    return spark.range(ROWS, numPartitions=2).selectExpr(*columns)


@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_a_failed_task_is_retried(sink: Callable[..., Any], frame: Any, standalone: Scene, tmp_path: Path, fault: str):
    with standalone.queue(partitions=4) as queue:
        queue.count()
    options = {"guarantee": "task", "writeId": "mine", "batchSize": 20}
    sink(frame, "faulty", fault=fault, faultattempts=2, folder=tmp_path, **options).save()
    assert len(list(tmp_path.glob("failed-*"))) == 2
    standalone.check(complete=True)
    sink(frame, onRepeat="skip", **options | {"batchSize": 70}).save()
    standalone.check(complete=True)
    report = last_report(standalone.names[0], url=standalone.url)
    assert report is not None
    assert (report.jobs, report.repeated) == (0, True)


@pytest.mark.parametrize("before", [1, 2])
def test_tasks_continue_after_a_change(
    sink: Callable[..., Any], frame: Any, standalone: Scene, tmp_path: Path, before: int
):
    """One task has failed when the number of partitions changes, and the other one fails since it does."""
    from tests.spark import faults

    if before > 1:
        with standalone.queue(partitions=before) as queue:
            queue.count()

    def change() -> None:
        for event in ("failed", "waiting"):
            faults.wait_for(tmp_path, event)
        standalone.change(standalone.names[0], 5, settle=False)
        faults.note(tmp_path, "changed")

    with ThreadPoolExecutor(1) as pool:
        changed = pool.submit(change)
        given = {"fault": "raise", "wait": "changed", "folder": tmp_path, "guarantee": "task", "batchSize": 20}
        sink(frame, "faulty", **given).save()
        changed.result()
    ended = sorted(path.read_text() for path in tmp_path.glob("ended-*"))
    assert ended == ["GlideMQError", "RuntimeError"]
    standalone.check(complete=True)
    with standalone.queue() as queue:
        assert len({split_partition_id(job.id)[0] for job in queue.iter_jobs("waiting")}) == 5
