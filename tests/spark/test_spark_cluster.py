"""A Spark standalone cluster of two workers on this machine: real executors, retries, speculation.

The short form (`local[2,4]`) is in test_guarantees.py; this one takes a minute, and runs where GLIDEMQ_SPARK_CLUSTER is
set: `python3 noxfile.py spark`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glidemq_py.client.child_server import free_port
from glidemq_py.testing import RespClient, ServerProcess
from tests.spark.conftest import ROOT, Written, environment, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("GLIDEMQ_SPARK_CLUSTER" not in os.environ, reason="takes a minute: python3 noxfile.py spark"),
]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from tests.spark.faults import FaultySource
master, url, queue, folder, fault, row = sys.argv[1:]
builder = SparkSession.builder.master(master).appName("cluster")
for name, value in {
    "ui.enabled": "false", "ui.showConsoleProgress": "false", "log.level": "OFF", "executor.cores": "1",
    "executor.memory": "512m", "cores.max": "2", "speculation": "true", "speculation.interval": "100ms",
    "speculation.multiplier": "1.2", "speculation.quantile": "0.25", "speculation.minTaskRuntime": "100ms",
    "sql.execution.arrow.maxRecordsPerBatch": "100",
}.items():
    builder = builder.config("spark." + name, value)
spark = builder.getOrCreate()
spark.dataSource.register(FaultySource)
frame = spark.range(1000, numPartitions=4).selectExpr("cast(id as string) as data")
options = {"url": url, "queue": queue, "jobName": "n", "fault": fault, "folder": folder, "faultrow": row}
frame.write.format("faulty").mode("append").options(**options).save()
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
    port = free_port()
    env = os.environ | environment() | {"SPARK_WORKER_DIR": str(folder / "work"), "SPARK_NO_DAEMONIZE": "1"}

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [str(home / "bin" / "spark-class"), *arguments]
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=(folder / "log").open("ab"))

    deploy = "org.apache.spark.deploy"
    running = [start(f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
    url = f"spark://127.0.0.1:{port}"
    sizes = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
    running += [start(f"{deploy}.worker.Worker", "--host", host, *sizes, url) for host in ("127.0.0.1", "127.0.0.2")]
    deadline = time.monotonic() + 90
    while (folder / "log").read_text(errors="replace").count("Successfully registered with master") < 2:
        assert time.monotonic() < deadline, (folder / "log").read_text(errors="replace")
        time.sleep(0.2)
    yield url
    for process in running:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(("fault", "row"), [("kill", 150), ("hang", 150)])
def test_retries_and_speculation(
    master: str, fault: str, row: int, private_server: Callable[..., ServerProcess], queue_name: str, tmp_path: Path
) -> None:
    place = private_server()
    began = time.monotonic()
    command = [sys.executable, "-c", PROGRAM, master, place.url, queue_name, str(tmp_path), fault, str(row)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment(), capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("failed-*")), "nothing went wrong: this has tested nothing"
    if fault == "hang":
        assert time.monotonic() - began < 60, "the copy should have ended it, not the attempt that hung"
    with place.client() as client:
        assert isinstance(client, RespClient)
        Written(client, queue_name).check([str(n) for n in range(1_000)])
