"""Spark against plain processes, in one run on one server: `python -m tests.bench.spark [write options ...]`.

Rows are 200 bytes of JSON, from a frame that is cached in the JVM; Spark runs as `local[2]`. Every rate is a median of
interleaved rounds, and every ratio the median of the rounds' ratios, because the machine's speed drifts. All bars, and
whether they are met, are printed at the end.

What is counted of a save: the time from the start of its first task to the end of its last one, plus the time of its
commit, minus start-up. Start-up is the time that the first task to have rows waited for them: the writer has requested
them, and Spark's JVM evaluates the frame and serializes the first Arrow batch. Everything that the writer does itself
is counted, also before it requests rows (connect, load, open the write), and so is every later wait for rows. The plain
process is treated alike: its clock starts once its connection is open and its rows exist. Printed beside it: start-up;
planning (the rest of the save: Spark's plan, starting or reusing Python processes, sending them the writer); the rate
and the ratio with start-up; and the CPU time of the writers and the server, which depends less on what else the machine
does.
"""

import argparse
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from glidemq_py.spark.options import BATCH_ROWS
from glidemq_py.sync import Queue
from glidemq_py.testing import RespClient, ServerProcess, server_binary
from tests.bench import spark_times
from tests.bench.contention import Alone
from tests.inside import BlockingTransport, Layout, add, partition_names

ROOT = Path(__file__).resolve().parents[2]
BYTES = 200
PEER_BATCH = 500
START_UP = "start-up (wait for the first rows)"
WITH_START_UP = ", start-up included"
RAW, PEER = "raw calls, one plain process", "foreachPartition, redis-py pipeline"
SIZES = (10_000, 100_000)
"""Rows of frames that are measured besides those of the argument."""
SHORT = 5
"""Rounds of short measurements, at least."""
QUEUES = 500
MEMORY = (100_000, 1_000_000, 2_000_000, 3_000_000)
GROWTH_MIB = 32
"""Growth of a process that counts as none."""
DRIVER, WORKERS, PLANNERS = "this program", "a task's process", "a process of planning and commit"


def session() -> Any:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    warnings.simplefilter("ignore")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("glidemq bench")
    for name, value in {"ui.enabled": "false", "ui.showConsoleProgress": "false", "log.level": "OFF"}.items():
        builder = builder.config(f"spark.{name}", value)
    return builder.getOrCreate()


def frame_of(spark: Any, rows: int) -> Any:
    """Rows of a name and 200 bytes of JSON."""
    filler = BYTES - len('{"id":1000000,"text":""}')
    frame = spark.range(0, rows, numPartitions=2).selectExpr(
        "'n' as name", f"concat('{{\"id\":', 1000000 + id, ',\"text\":\"', repeat('x', {filler}), '\"}}') as data"
    )
    frame = frame.cache()
    assert frame.count() == rows
    return frame


class Bench:
    """A server, a session, and the measurements on them."""

    def __init__(self, rows: int, rounds: int, others: float, pinned: bool):
        self.rows, self.rounds = rows, rounds
        self.alone = Alone(others)
        self._seconds = 0.0
        self._beside: dict[str, float] = {}
        self.bars: list[tuple[bool, str]] = []
        self.times = Path(tempfile.mkdtemp()) / "times"
        os.environ[spark_times.FILE] = str(self.times)
        first, *rest = sorted(os.sched_getaffinity(0))
        if pinned:
            os.sched_setaffinity(0, {first})
        self.place = ServerProcess(server_binary("valkey-9.1")).start()
        if pinned:
            os.sched_setaffinity(0, rest)
        began = time.perf_counter()
        self.spark = session()
        self.spark.dataSource.register(spark_times.TimedSource)
        print(f"start of Spark: {time.perf_counter() - began:.1f} s")
        self.frame = frame_of(self.spark, rows)
        self.resp = RespClient.from_url(self.place.url, timeout=120)

    def close(self):
        self.resp.close()
        self.spark.stop()
        self.place.close()

    def save(self, frame: Any, queue: str, name: str = "glidemq", **options: Any):
        writer = frame.write.format(name).mode("append").options(url=self.place.url, queue=queue, **options)
        writer.save()

    def timed(self, frame: Any, **options: Any):
        """Save a frame; the time is that of tasks and commit, without start-up."""
        began, used = time.perf_counter(), self.server_seconds()
        self.save(frame, "q", "glidemq_timed", **options)
        whole = time.perf_counter() - began
        found: dict[str, float] = json.loads(self.times.read_text())
        self._seconds = found["tasks"] + found["commit"] - found["wait"]
        self._beside = {
            "commit": found["commit"], START_UP: found["wait"], "planning": whole - found["tasks"] - found["commit"],
            "CPU of Python": found["cpu"], "CPU of the server": self.server_seconds() - used,
        }  # fmt: skip

    def empty(self):
        self.resp.execute("FLUSHDB", "SYNC")  # so that it does not affect the next measurement

    def bar(self, what: str, found: float, limit: float, *, least: bool = True):
        """Print a bar, and remember it for the end."""
        met = found >= limit if least else found <= limit
        text = f"{what}: {found:.2f} ({'at least' if least else 'at most'} {limit:g}): {'met' if met else 'MISSED'}"
        print(f"  {text}")
        self.bars.append((met, text))

    # -- writing ------------------------------------------------------------------------------------------------

    def raw(self, rows: int):
        """One plain process, data ready: the same calls."""
        code = f"from tests.bench.spark import raw_adds; raw_adds({self.place.url!r}, {rows})"
        used = self.server_seconds()
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        self._seconds, cpu = map(float, done.stdout.split())
        self._beside = {"CPU of Python": cpu, "CPU of the server": self.server_seconds() - used}

    def foreach(self):
        """foreachPartition and a pipeline of redis-py: a hash and a stream entry a row, no ids, no events."""
        host, port = self.place.url.removeprefix("valkey://").split(":")

        def write(rows: Any):
            import redis

            client, batch = redis.Redis(host, int(port)), None
            for n, row in enumerate(rows, 1):
                if batch is None:
                    batch = client.pipeline(transaction=False)
                job_id = f"{id(rows)}-{n}"
                fields: dict[Any, Any] = {
                    "id": job_id, "name": row.name, "data": row.data, "opts": "{}", "timestamp": "0",
                    "attemptsMade": "0",
                    "delay": "0", "priority": "0", "maxAttempts": "0", "state": "waiting",
                }  # fmt: skip
                batch.hset("peer:{q}:job:" + job_id, mapping=fields)
                batch.xadd("peer:{q}:stream", {"jobId": job_id, "name": row.name})
                if n % PEER_BATCH == 0:
                    batch.execute()
                    batch = None
            if batch is not None:
                batch.execute()

        self.frame.foreachPartition(write)

    def write(self):
        """Rates of `append` and `atomic` against a plain process, from small frames on."""
        for rows in (*(size for size in SIZES if size < self.rows), self.rows):
            frame = self.frame if rows == self.rows else frame_of(self.spark, rows)
            ways: dict[str, Callable[[], None]] = {
                RAW: partial(self.raw, rows),
                "append": partial(self.timed, frame, guarantee="append"),
                "atomic": partial(self.timed, frame),
            }
            rates = self.in_turns(ways, rows, self.rounds if rows == self.rows else max(SHORT, self.rounds))
            self.ratio(rates, "append", RAW, 0.9, f"{rows:,} rows")
            self.ratio(rates, f"append{WITH_START_UP}", RAW, None, "")
            self.ratio(rates, "atomic", "append", 0.85, f"{rows:,} rows")
            self.ratio(rates, f"atomic{WITH_START_UP}", f"append{WITH_START_UP}", None, "")

    def peer(self):
        """Rates of `append` and foreachPartition with a pipeline, over whole saves."""
        ways: dict[str, Callable[[], None]] = {
            "append": lambda: self.save(self.frame, "q", guarantee="append"),
            PEER: self.foreach,
        }
        self.ratio(self.in_turns(ways, self.rows, self.rounds), "append", PEER, 2.0, "whole saves")

    def queues(self):
        """Rates with a column `queue` of many queues."""
        frame = self.frame.selectExpr("name", "data", f"concat('q', pmod(hash(data), {QUEUES})) as queue").cache()
        assert frame.count() == self.rows
        ways: dict[str, Callable[[], None]] = {
            "append": partial(self.timed, frame, guarantee="append"),
            "atomic": partial(self.timed, frame),
        }
        rates = self.in_turns(ways, self.rows, self.rounds)
        self.ratio(rates, "atomic", "append", 0.7, f"{QUEUES} queues")
        frame.unpersist()

    def partitions(self):
        """Rates of a queue with partitions."""

        def save(guarantee: str):
            with Queue("q", self.place.url, partitions=PARTITIONS) as queue:
                queue.count()
            self.timed(self.frame, guarantee=guarantee)

        ways: dict[str, Callable[[], None]] = {
            guarantee: partial(save, guarantee) for guarantee in ("append", "atomic")
        }
        rates = self.in_turns(ways, self.rows, self.rounds)
        self.ratio(rates, "atomic", "append", None, "")

    def data(self):
        """Rates of plain columns, and of the same columns converted by Spark's `to_json`."""
        plain = self.frame.selectExpr(
            "name", "monotonically_increasing_id() as id", "timestamp_micros(monotonically_increasing_id()) as at",
            "cast(monotonically_increasing_id() / 7 as decimal(20,4)) as price", "repeat('x', 60) as text",
            "named_struct('street', 'a street', 'number', 7) as address", "array('a', 'b') as tags", "0.5D as ratio",
        ).cache()  # fmt: skip
        assert plain.count() == self.rows
        texts = plain.selectExpr("name", "to_json(struct(id, at, price, text, address, tags, ratio)) as data")
        ways: dict[str, Callable[[], None]] = {
            "plain columns": partial(self.timed, plain, guarantee="append", **{"column.name": "name"}),
            "to_json": partial(self.timed, texts, guarantee="append"),
        }
        self.ratio(self.in_turns(ways, self.rows, self.rounds), "plain columns", "to_json", None, "")
        plain.unpersist()

    def in_turns(self, ways: dict[str, Callable[[], None]], rows: int, rounds: int) -> dict[str, list[float]]:
        """Print and return the rates of several ways, measured in turns."""
        rates: dict[str, list[float]] = {name: [] for name in ways}
        beside: dict[str, list[dict[str, float]]] = {name: [] for name in ways}

        def run() -> list[tuple[float, dict[str, float]]]:
            return [self.rate(way, rows) for way in ways.values()]

        run()  # the compilers of Java, the first imports, the function library
        for _ in range(rounds):
            for name, (rate, rest) in zip(ways, self.alone.measure(run), strict=True):
                rates[name].append(rate)
                beside[name].append(rest)
        for name, found in list(rates.items()):
            if START_UP in beside[name][0]:
                waits = [each[START_UP] for each in beside[name]]
                rates[name + WITH_START_UP] = [
                    rows / (rows / rate + wait) for rate, wait in zip(found, waits, strict=True)
                ]
            text = "".join(
                f"; {part} {statistics.median(each[part] for each in beside[name]):.3f} s" for part in beside[name][0]
            )
            print(
                f"  {rows:>9,} rows, {name:<36} {statistics.median(found):>9,.0f} rows/s of "
                f"{min(found):,.0f} to {max(found):,.0f}{text}"
            )
        return rates

    def ratio(self, rates: dict[str, list[float]], one: str, other: str, least: float | None, what: str):
        """Print the ratio of two ways."""
        ratios = [a / b for a, b in zip(rates[one], rates[other], strict=True)]
        text = " ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"  {one} / {other}: {statistics.median(ratios):.2f}; the rounds: {text}")
        if least is not None:
            self.bar(f"{one} / {other}, {what}", statistics.median(ratios), least)

    def options(self):
        """CPU time of a task to pack a row, by its columns of options, all of whose values differ."""
        plain = ("delay", "orderingKey", "jobId", "priority", "ttl")
        ways: list[tuple[tuple[str, ...], float, int]] = [((), 0.0, 0), *(((name,), 0.0, 0) for name in VARIED)]
        ways += [(plain, 0.0, 0), (plain, 0.5, 0)]
        ways += [
            (names, 0.0, PARTITIONS) for names in ((), *((name,) for name in KEYS), ("delay", "jobId", "priority"))
        ]
        for names, absent, partitions in ways:
            what = (", ".join(names) or "no options") + (", each absent in half of the rows" if absent else "")
            what += f", {partitions} partitions" if partitions else ""
            for rows in (10_000, self.rows):
                found = statistics.median(packing_cost(names, rows, absent, partitions) for _ in range(self.rounds))
                print(f"  {what:<46} {rows:>9,} rows {found:>7.2f} us a row")
                self.bar(f"packing {what}, {rows:,} rows, us", found, 5, least=False)

    def rate(self, way: Callable[[], None], rows: int) -> tuple[float, dict[str, float]]:
        """Rows a second of one way, into an empty server, and seconds of its parts and besides."""
        self.empty()
        began = time.perf_counter()
        self._seconds = 0.0
        self._beside = {}
        way()
        return rows / (self._seconds or time.perf_counter() - began), self._beside

    # -- other clients ------------------------------------------------------------------------------------------

    def latency(self):
        """What another client of the server waits for its replies meanwhile."""
        self.save(self.frame.limit(100), "warm")
        for guarantee in ("none", "append", "atomic"):
            runs = [self.alone.measure(partial(self.beside, guarantee)) for _ in range(self.rounds)]
            for name in ("p50", "p99", "max", "longest call"):
                ms = [run[name] for run in runs]
                text = " ".join(f"{each:.2f}" for each in ms)
                if name == "p99" and guarantee != "none":
                    self.bar(f"p99 of another client beside {guarantee}, ms", statistics.median(ms), 10, least=False)
                print(f"  beside {guarantee:<8} {name:<12} {statistics.median(ms):6.2f} ms; the rounds: {text}")

    def served(self):
        """What the options of rows cost the server, and other clients of it: time per row, rate, and p99.

        A key has 100 rows, which are far apart; a new one has one.
        """
        n = "pmod(monotonically_increasing_id(), 1000000)"
        key, new_key = f"pmod({n}, {self.rows // 100})", "monotonically_increasing_id()"
        columns = {
            "ttl": f"60000000 + {n} as ttl", "delay": f"60000000 + {n} as delay",
            "priority": f"1 + pmod({n}, 2047) as priority", "jobId": "concat('order-', uuid()) as jobId",
            "orderingKey": f"concat('customer-', {key}) as orderingKey",
            "new orderingKey": f"concat('customer-', {new_key}) as orderingKey",
            "fairKey": f"concat('tenant-', {key}) as fairKey",
            "new fairKey": f"concat('tenant-', {new_key}) as fairKey",
        }  # fmt: skip
        both = [("orderingKey", "delay"), ("new orderingKey", "delay")]
        plain = 0.0
        for names in ((), *((name,) for name in columns), *both):
            frame = self.frame.selectExpr("name", "data", *(columns[name] for name in names)).cache()
            assert frame.count() == self.rows
            runs = [self.alone.measure(partial(self.beside, "append", frame)) for _ in range(self.rounds)]
            found = {name: statistics.median(run[name] for run in runs) for name in ("server", "rate", "p99")}
            plain, what = plain or found["server"], ", ".join(names) or "no options"
            print(f"  {what:<20} server {found['server']:.1f} us a row, {found['rate']:,.0f} rows/s")
            self.bar(
                f"server time of {what} / no options",
                found["server"] / plain,
                2.0 if names in both else 1.5,
                least=False,
            )
            self.bar(f"p99 of another client beside {what}, ms", found["p99"], 10, least=False)
            frame.unpersist()

    def beside(self, guarantee: str, frame: Any = None) -> dict[str, float]:
        """Waiting times of another client, in ms, while frames are saved; server time (us) of a row, and rate."""
        self.empty()
        self.resp.execute("CONFIG", "RESETSTAT")
        code = f"from tests.bench.spark import watch; watch({self.place.url!r})"
        watcher = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        watcher.stdout.readline()
        began, used = time.perf_counter(), self.server_seconds()
        if guarantee == "none":
            time.sleep(3)
        else:
            self.save(self.frame if frame is None else frame, "q", guarantee=guarantee)
        took, used = time.perf_counter() - began, self.server_seconds() - used
        watcher.stdin.close()
        found: dict[str, float] = json.loads(watcher.stdout.read())
        watcher.wait()
        return found | {"longest call": self.longest(), "server": used / self.rows * 1e6, "rate": self.rows / took}

    def longest(self) -> float:
        """Milliseconds of the slowest FCALL that the server knows of."""
        stats = self.resp.execute("INFO", "latencystats")
        found = re.search(r"latency_percentiles_usec_fcall:.*p99.9=([\d.]+)", str(stats))
        return float(found[1]) / 1000 if found else 0.0

    # -- memory -------------------------------------------------------------------------------------------------

    def memory(self):
        """Memory of this program, the JVM, its Python processes and the server after frames of growing size."""
        for guarantee in ("append", "atomic"):
            found: list[dict[str, float]] = []
            for rows in MEMORY:
                self.empty()
                frame = self.spark.range(0, rows, numPartitions=2).selectExpr("'n' as name", "repeat('x', 200) as data")
                self.save(frame, "q", dataFormat="text", guarantee=guarantee)
                found.append(resident())
                text = ", ".join(f"{kind} {size:.0f} MiB" for kind, size in found[-1].items())
                memory = str(self.resp.execute("INFO", "memory"))
                server = int(dict(line.split(":", 1) for line in memory.split() if ":" in line)["used_memory"])
                print(
                    f"  {guarantee} {rows:>9,} rows: {text}; server {server / 2**20:.0f} MiB, {server / rows:.0f} a row"
                )
            for kind in (DRIVER, WORKERS, PLANNERS):
                growth = found[-1].get(kind, 0) - found[0].get(kind, 0)
                self.bar(f"{guarantee}: growth of {kind}, MiB", growth, GROWTH_MIB, least=False)
        self.empty()

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self):
        """Rates of reading finished jobs."""
        self.empty()
        code = f"from tests.bench.spark import fill; fill({self.place.url!r}, {self.rows})"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        for schema in (None, "id string, data string"):
            self.read_rate(schema)
            rates = [self.alone.measure(partial(self.read_rate, schema)) for _ in range(self.rounds)]
            name = "all fifteen columns" if schema is None else schema
            text = " ".join(f"{rate:,.0f}" for rate in rates)
            self.bar(f"read, {name}, jobs/s", statistics.median(rates), 80_000)
            print(f"  read, {name:<22} {statistics.median(rates):>9,.0f} jobs/s; the rounds: {text}")

    def read_rate(self, schema: str | None) -> float:
        """Jobs read a second."""
        reader = self.spark.read.format("glidemq").options(url=self.place.url, queue="q", state="completed")
        frame = (reader if schema is None else reader.schema(schema)).load()
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return self.rows / (time.perf_counter() - began)

    def results(self):
        """Rates of reading finished jobs as a stream, and what they cost the server, against a batch read."""
        self.empty()
        code = f"from tests.bench.spark import fill; fill({self.place.url!r}, {self.rows})"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        ways: dict[str, Callable[[], float]] = {"batch": partial(self.read_rate, None), "stream": self.stream_rate}
        self.stream_rate()  # numbers the jobs
        rates: dict[str, list[float]] = {name: [] for name in ways}
        costs: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(self.rounds):
            for name, way in ways.items():
                before = self.server_seconds()
                rates[name].append(self.alone.measure(way))
                costs[name].append((self.server_seconds() - before) / self.rows * 1e6)
        for name, found in rates.items():
            print(
                f"  {name:<8} {statistics.median(found):>9,.0f} jobs/s of {min(found):,.0f} to {max(found):,.0f}; "
                f"server {statistics.median(costs[name]):.1f} us a job"
            )
        self.bar("result stream, all fifteen columns, jobs/s", statistics.median(rates["stream"]), 50_000)

    def stream_rate(self) -> float:
        """Jobs that a stream with all columns reads a second, over the time of its micro-batches."""
        reader = self.spark.readStream.format("glidemq").options(url=self.place.url, queue="q", state="completed")
        frame = reader.option("startingOffsets", "earliest").load()
        query = frame.writeStream.format("noop").trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        assert sum(each["numInputRows"] for each in progress) == self.rows
        return self.rows / sum(each["durationMs"]["addBatch"] for each in progress) * 1_000

    def server_seconds(self) -> float:
        """CPU time of the server so far."""
        lines = [line.partition(":") for line in str(self.resp.execute("INFO", "cpu")).splitlines()]
        return sum(float(value) for name, _, value in lines if name in ("used_cpu_user", "used_cpu_sys"))


# -- code that runs in separate processes -----------------------------------------------------------------------------


VARIED: dict[str, Callable[[int], Any]] = {
    "delay": lambda n: n + 1,
    "orderingKey": lambda n: f"customer-{n % 50_000}",
    "jobId": lambda n: f"order-{n}",
    "priority": lambda n: n % 2_048,
    "ttl": lambda n: 60_000 + n,
    "deduplicationId": lambda n: f"order-{n}",
    "fairKey": lambda n: f"tenant-{n % 1_000}",
}
KEYS = ("jobId", "orderingKey", "fairKey", "deduplicationId")
PARTITIONS = 8


def packing_cost(names: Sequence[str], rows: int, absent: float = 0.0, partitions: int = 0) -> float:
    """CPU time to pack a row, microseconds.

    Args:
        names: The options that the rows have, of `VARIED`.
        rows: Number of rows.
        absent: The share of the options that are null, at random.
        partitions: Number of partitions of the queue; 0 = it has none.
    """
    from glidemq_py.spark.api import pa
    from glidemq_py.spark.encoding import RowEncoder
    from glidemq_py.spark.options import WriteOptions
    from glidemq_py.spark.placing import Placer
    from glidemq_py.spark.write_schema import WritePlan

    write = WriteOptions.parse({"queue": "q", "url": "valkey://localhost", "jobName": "n"}, streaming=False)
    data = pa.array([json.dumps({"text": "x" * (BYTES - 11)})] * rows)
    rng = random.Random(1)
    columns = [data]
    columns += [pa.array([None if rng.random() < absent else VARIED[name](n) for n in range(rows)]) for name in names]
    batch = pa.RecordBatch.from_arrays(columns, ["data", *names])
    plan = WritePlan(
        columns={name: n for n, name in enumerate(names, 1)}, data_kind="json", data_columns=((0, "data"),)
    )
    layout = Layout(1, partition_names("q", partitions)) if partitions else None
    encoder = RowEncoder(plan, write, Placer(lambda queues: dict.fromkeys(queues, layout), 0))
    began = time.process_time()
    packed = sum(len(part) for _, part in encoder.encode(batch))
    assert packed == rows
    return (time.process_time() - began) / rows * 1e6


def raw_adds(url: str, rows: int):
    """Add rows as the writer does, from existing texts; print the seconds, and those of CPU time."""
    transport = BlockingTransport(url)
    filler = "x" * (BYTES - len('{"id":1000000,"text":""}'))
    texts = [f'{{"id":{1_000_000 + n},"text":"{filler}"}}' for n in range(rows)]
    transport.call(add("glide:{raw}:meta", [["n", texts[0], "{}"]], True))
    began, used = time.perf_counter(), time.process_time()
    for i in range(0, rows, BATCH_ROWS):
        batch: list[list[object]] = [["n", text, "{}"] for text in texts[i : i + BATCH_ROWS]]
        transport.call(add("glide:{q}:meta", batch, True))
    print(time.perf_counter() - began, time.process_time() - used)


def watch(url: str):
    """Ask the server something small, again and again, until stdin ends; prints percentiles."""
    import threading

    ended = threading.Event()

    def wait():
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    times: list[float] = []
    with RespClient.from_url(url) as client:
        print("ready", flush=True)
        while not ended.is_set():
            began = time.perf_counter()
            client.execute("HGET", "glide:{other}:meta", "paused")
            times.append((time.perf_counter() - began) * 1000)
            time.sleep(0.001)
    times.sort()
    print(json.dumps({f"p{p}": times[int(len(times) * p / 100)] for p in (50, 99)} | {"max": times[-1]}))


def fill(url: str, rows: int):
    """Finished jobs."""
    with RespClient.from_url(url) as client:
        code = """
        for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do
          local i = string.format('%d', n)
          local at = string.format('%.0f', 1700000000000 + n)
          redis.call('HSET', 'glide:{q}:job:' .. i, 'id', i, 'name', 'n', 'data', ARGV[3], 'opts', '{}',
            'timestamp', '1700000000000', 'attemptsMade', '0', 'delay', '0', 'priority', '0', 'maxAttempts', '0',
            'state', 'completed', 'processedOn', '1700000000001', 'finishedOn', at, 'returnvalue', '{"ok":true}')
          redis.call('ZADD', 'glide:{q}:completed', at, i)
        end"""
        for i in range(0, rows, 1_000):
            client.execute("EVAL", code, 0, i + 1, i + 1_000, "x" * BYTES)


def resident() -> dict[str, float]:
    """Resident MiB of this process, of its JVM, and of the largest Python processes of tasks and of other steps."""
    import psutil

    this = psutil.Process()
    found = {DRIVER: this.memory_info().rss / 2**20}
    for child in this.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            name, words = child.name(), " ".join(child.cmdline())
            kind = "the JVM" if name.startswith("java") else WORKERS if words.endswith("pyspark.worker") else PLANNERS
            if name.startswith(("java", "python")):
                found[kind] = max(found.get(kind, 0.0), child.memory_info().rss / 2**20)
    return found


MEASURES = [
    "write",
    "peer",
    "queues",
    "partitions",
    "data",
    "options",
    "served",
    "latency",
    "memory",
    "read",
    "results",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=MEASURES)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--others", type=float, default=0.08, help="what others may take of a core; more: again")
    parser.add_argument(
        "--pinned", action="store_true", help="the server on the first CPU and all clients on the others, so that "
        "Spark's own work takes no CPU time from the server, as if each had its machine",
    )  # fmt: skip
    given = parser.parse_args()
    bench = Bench(given.rows, given.rounds, given.others, given.pinned)
    try:
        for what in given.what:
            print(f"{what} ({given.rows:,} rows)")
            getattr(bench, what)()
            print(f"  {bench.alone}", flush=True)
        print("bars")
        for _, text in bench.bars:
            print(f"  {text}")
    finally:
        bench.close()
    sys.exit(0 if all(met for met, _ in bench.bars) else 1)


if __name__ == "__main__":
    main()
