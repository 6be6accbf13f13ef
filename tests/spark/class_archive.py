"""Options of the JVMs that tests start, with an archive of Spark's loaded classes.

Tests start about thirty JVMs, and each would load and verify the same 10,000 classes from Spark's jars: half of the
processor time until its first query has ended. The first use writes an archive (class data sharing) into the cache
folder of pytest, and later ones map it. A JVM whose class path differs ignores it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["START", "jvm_options"]

ROOT: Final = Path(__file__).resolve().parents[2]
START: Final = Path(__file__).resolve().parent / "start"
"""On the path of Spark's Python processes: it contains the module that they run at their start."""
SHORT_RUNS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests run each plan a few times: optimizing the code takes the JVM longer than it saves."""
DUMP_S: Final = 600
"""Longest time in which the archive must be written, on a slow machine too."""

PROGRAM: Final = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource, DataSourceReader, DataSourceStreamWriter, DataSourceWriter, InputPartition, WriterCommitMessage
)
folder = sys.argv[1]

class Writer(DataSourceWriter, DataSourceStreamWriter):
    def write(self, iterator):
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages, batch=0):
        pass

class Reader(DataSourceReader):
    def partitions(self):
        return [InputPartition(0)]

    def read(self, partition):
        yield ("1", "a")

class Source(DataSource):
    @classmethod
    def name(cls):
        return "nothing"

    def schema(self):
        return "data string, queue string"

    def reader(self, schema):
        return Reader()

    def writer(self, schema, overwrite):
        return Writer()

    def streamWriter(self, schema, overwrite):
        return Writer()

builder = SparkSession.builder.master("local[2,4]")
for name, value in {
    "ui.enabled": "false", "ui.showConsoleProgress": "false", "log.level": "OFF", "driver.memory": "512m",
    "sql.warehouse.dir": folder + "/warehouse",
}.items():
    builder = builder.config("spark." + name, value)
spark = builder.getOrCreate()
spark.dataSource.register(Source)
frame = spark.range(10).selectExpr("cast(id as string) as data", "concat('q', id % 3) as queue").repartition(2)
frame.write.mode("overwrite").json(folder + "/in")
frame.write.format("nothing").mode("append").save()
spark.read.format("nothing").load().where("data = '1'").groupBy("queue").count().collect()
frame.createOrReplaceTempView("rows")
spark.sql("SELECT data, count(*) FROM rows GROUP BY data ORDER BY 2").toPandas()
rows = spark.readStream.schema("data string, queue string").option("maxFilesPerTrigger", 1).json(folder + "/in")
stream = rows.repartition(2).writeStream.format("nothing").trigger(availableNow=True)
stream.option("checkpointLocation", folder + "/checkpoint").start().awaitTermination()
gateway = spark.sparkContext._gateway
spark.stop()
# The JVM ends at the end of its input, writes the archive, and is waited for.
gateway.proc.stdin.close()
gateway.proc.wait()
"""


@functools.cache
def jvm_options() -> str:
    """Return the options; write the archive first if there is none for this Java, this PySpark and these options."""
    archive = _path()
    if archive is None:
        return SHORT_RUNS
    try:
        _write_once(archive)
    except OSError:
        return SHORT_RUNS  # a checkout that may not be written
    # Without the logging, a JVM writes to its standard output that the archive does not fit.
    return (
        f"{SHORT_RUNS} -Xshare:auto -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else SHORT_RUNS
    )


def _path() -> Path | None:
    """Return the file of the archive, or None on a system whose files cannot be locked."""
    if sys.platform == "win32":
        return None
    import pyspark

    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else "java"
    version = subprocess.run([java, "-version"], capture_output=True, check=False).stderr
    known = hashlib.sha256(version + f"{pyspark.__version__}{pyspark.__file__}{SHORT_RUNS}{PROGRAM}".encode())
    return ROOT / ".pytest_cache" / "spark" / f"{known.hexdigest()[:16]}.jsa"


def _write_once(archive: Path):
    """Write the archive; other processes wait until it is there. One attempt: a failed one leaves a file `failed`."""
    import fcntl

    archive.parent.mkdir(parents=True, exist_ok=True)
    new, failed = archive.with_suffix(".new"), archive.with_suffix(".failed")
    with archive.with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory() as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists() or failed.exists():
            return
        new.unlink(missing_ok=True)
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONWARNINGS": "ignore",
            "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(START),
            "SPARK_SUBMIT_OPTS": f"{SHORT_RUNS} -XX:ArchiveClassesAtExit={new} -Xlog:disable",
        }  # fmt: skip
        command = [sys.executable, "-c", PROGRAM, folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DUMP_S, check=False)
        if done.returncode == 0 and new.exists():
            new.replace(archive)
        else:
            failed.write_text(done.stdout + done.stderr)
