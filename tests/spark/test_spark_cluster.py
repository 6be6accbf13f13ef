"""A Spark standalone cluster of two workers on this machine: real executors, retries, speculation. A Valkey cluster.

The short form of the failures (`local[2,4]`) is in test_guarantees.py.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glidemq_py.spark import last_report
from glidemq_py.sync import Queue
from glidemq_py.testing import RespClient, ServerProcess
from tests.inside import embedded, split_partition_id
from tests.spark.conftest import LIMIT_S, ROOT, Written, environment, missing

pytestmark = pytest.mark.slow

WITHOUT_PARTITIONS = 3
"""Runs whose queues have no partitions, the first ones."""

PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
from tests.spark.faults import FaultySource
master, runs = sys.argv[1], json.loads(sys.argv[2])
builder = SparkSession.builder.master(master).appName("cluster")
for name, value in {
    "ui.enabled": "false", "ui.showConsoleProgress": "false", "log.level": "OFF", "executor.cores": "1",
    "executor.memory": "512m", "cores.max": "2", "speculation": "true", "speculation.interval": "100ms",
    "speculation.multiplier": "1.2", "speculation.quantile": "0.25", "speculation.minTaskRuntime": "100ms",
    # A copy of the task that hangs, whatever rate it had until then.
    "speculation.efficiency.enabled": "false",
    "sql.execution.arrow.maxRecordsPerBatch": "100", "executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
}.items():
    builder = builder.config("spark." + name, value)
spark = builder.getOrCreate()
spark.dataSource.register(FaultySource)
frame = spark.range(1000, numPartitions=4)
for options in runs:
    queue = options["queue"]
    rows = frame.selectExpr("cast(id as string) as data", f"concat('{queue}-', id % 3) as queue")
    rows.write.format("faulty").mode("append").options(jobName="n", faultrow=150, **options).save()
for options in runs:
    read = spark.read.format("glidemq").option("url", options["url"]).schema("data string")
    print("read", sum(read.load(f"{options['queue']}-{n}").count() for n in range(3)))
spark.stop()
"""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`spark://...` of a master with two workers, which have two addresses: speculation wants another host."""
    problem = missing()
    if problem:
        pytest.skip(problem)
    import pyspark

    home = Path(pyspark.__file__).parent
    folder = tmp_path_factory.mktemp("cluster")
    port = embedded.free_port()
    env = os.environ | environment() | {"SPARK_WORKER_DIR": str(folder / "work"), "SPARK_NO_DAEMONIZE": "1"}

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [str(home / "bin" / "spark-class"), *arguments]
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=(folder / "log").open("ab"))

    deploy = "org.apache.spark.deploy"
    running = [start(f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
    url = f"spark://127.0.0.1:{port}"
    sizes = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
    running += [start(f"{deploy}.worker.Worker", "--host", host, *sizes, url) for host in ("127.0.0.1", "127.0.0.2")]
    deadline = time.monotonic() + LIMIT_S
    while (folder / "log").read_text(errors="replace").count("Successfully registered with master") < 2:
        assert time.monotonic() < deadline, (folder / "log").read_text(errors="replace")
        time.sleep(0.2)
    yield url
    for process in running:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(LIMIT_S)
def test_retries_and_speculation(
    master: str, private_server: Callable[..., ServerProcess], cluster_url: str, cluster_resp: RespClient,
    queue_name: str, tmp_path: Path,
):  # fmt: skip
    """A worker process that is killed and a task that hangs; on one server, and on a cluster of them.

    The last queues have partitions, and their attempts that fail add a part of their rows.
    """
    place = private_server()
    faults = (
        ("kill", place.url), ("hang", place.url), ("kill", cluster_url), ("hang", place.url), ("kill", cluster_url),
        ("hang", cluster_url),
    )  # fmt: skip
    runs = [
        {
            "url": url, "fault": fault, "folder": str(tmp_path / str(n)), "queue": f"{queue_name}-{n}",
            "batchSize": str(250 if n < WITHOUT_PARTITIONS else 10),
        }
        for n, (fault, url) in enumerate(faults)
    ]  # fmt: skip
    for run in runs:
        Path(run["folder"]).mkdir()
    for run in runs[WITHOUT_PARTITIONS:]:
        for n in range(3):
            with Queue(f"{run['queue']}-{n}", run["url"], partitions=4) as queue:
                queue.count()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, master, json.dumps(runs)], cwd=ROOT, env=os.environ | environment(),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("read 1000\n") == len(runs), done.stdout
    for run in runs:
        assert list(Path(run["folder"]).glob("failed-*")), "nothing went wrong: this has tested nothing"
    for folder in (Path(run["folder"]) for run in runs if run["fault"] == "hang"):
        assert list(folder.glob("copied-*")), "no copy of the attempt that hung"
        assert not list(folder.glob("uncopied-*")), "the copy should have ended it, not the attempt that hung"
    with place.client() as client:
        assert isinstance(client, RespClient)
        for run, resp in zip(runs, (client, client, cluster_resp), strict=False):
            for n in range(3):
                Written(resp, f"{run['queue']}-{n}").check([str(i) for i in range(1_000) if i % 3 == n])
            report = last_report(run["queue"], url=run["url"])
            assert report is not None
            assert (report.jobs, report.skipped, report.repeated) == (1_000, 0, False)
            assert {report.queues[f"{run['queue']}-{n}"] for n in range(3)} == {(334, 0), (333, 0)}
    for run in runs[WITHOUT_PARTITIONS:]:
        for n in range(3):
            with Queue(f"{run['queue']}-{n}", run["url"]) as queue:
                jobs = list(queue.iter_jobs("waiting"))
            assert sorted(str(job.data) for job in jobs) == sorted(str(i) for i in range(1_000) if i % 3 == n)
            assert len({split_partition_id(job.id)[0] for job in jobs}) > 1
