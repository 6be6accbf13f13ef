"""Tests of the data source through a Spark Connect server: it runs there, and the client does not register it."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from glidemq_py.testing import RespClient
from tests.inside import embedded
from tests.spark.conftest import CONNECTED_TOO_LATE, LIMIT_S, ROOT, Written, environment, missing

RUNS = 6
pytestmark = [pytest.mark.slow, pytest.mark.timeout(RUNS * LIMIT_S)]

PROGRAM = """
import sys, tempfile
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from glidemq_py.spark import save
remote, url, queue = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()

def write(**options):
    options = {"url": url, "queue": queue, "jobName": "n", "writeId": "once", "events": "each"} | options
    spark.range(500).selectExpr("cast(id as string) as data").write.format("glidemq").mode("append").options(
        **options).save()

def read():
    return spark.read.format("glidemq").option("url", url).load(queue)

write()
again = spark.range(500).selectExpr("cast(id as string) as data")
print(save(again, queue, url=url, jobName="n", writeId="once").state)
print(read().count(), "jobs")
try:
    write(atempts=3)
except AnalysisException as error:
    print("unknown option; did you mean 'attempts'?" in str(error), "that it is refused")
spark.sql(f"CREATE TEMPORARY VIEW jobs (name STRING, data STRING) USING glidemq OPTIONS (url '{url}', queue '{queue}')")
spark.sql("INSERT INTO jobs VALUES ('sql', '500')").collect()
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
print(read().where("id in ('1', '2')").count(), "found by id")
from glidemq_py.spark import GlideMQDataSource
spark.dataSource.register(GlideMQDataSource)
events = spark.readStream.format("glidemq").options(url=url, queue=queue, view="events", startingOffsets="earliest")
stream = events.load().writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
stream.awaitTermination(600)
print(spark.table("seen").count(), "events")
"""


@dataclass
class Server:
    """A Spark Connect server.

    Attributes:
        address: `sc://...`.
        log: file of its output.
    """

    address: str
    log: Path


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Server]:
    """Return a running server."""
    problem = missing()
    absent = [name for name in ("grpc", "grpc_status", "zstandard") if importlib.util.find_spec(name) is None]
    if problem or absent:
        pytest.skip(problem or f"{', '.join(absent)}: not installed; they come with pyspark[connect]")
    import pyspark

    port, log = embedded.free_port(), tmp_path / "log"
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]",
        "--conf", "spark.ui.enabled=false", "--conf", f"spark.connect.grpc.binding.port={port}",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--name", "connect", "spark-internal",
    ]  # fmt: skip
    with log.open("wb") as file:
        server = subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | environment(), stdout=file, stderr=file, start_new_session=True
        )
    deadline = time.monotonic() + LIMIT_S
    while "Spark Connect server started" not in log.read_text(errors="replace"):
        assert server.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.2)
    yield Server(f"sc://127.0.0.1:{port}", log)
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def run_program(remote: Server, url: str, queue: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, remote.address, url, queue], cwd=ROOT, env=os.environ | environment(),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_connect(remote: Server, url: str, resp: RespClient, queue_name: str):
    for run in range(RUNS):
        queue, before = f"{queue_name}-{run}", remote.log.stat().st_size
        done = run_program(remote, url, queue)
        failure = done.stderr + remote.log.read_bytes()[before:].decode(errors="replace")
        if done.returncode == 0 or CONNECTED_TOO_LATE not in failure:
            break
        print(f"run {run + 1} of {RUNS}: a Python process needed more than Spark's ten seconds to connect; repeating")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "repeated",
        "500 jobs",
        "True that it is refused",
        "2 found by id",
        "500 events",
    ]
    Written(resp, queue).check([str(n) for n in range(501)])
