"""Tests that a restarted query writes each row once after its driver was killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glidemq_py.testing import RespClient
from tests.spark.conftest import LIMIT_S, ROOT, Written, environment, missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]

FILES, ROWS, KILLS = 8, 60, 2

PROGRAM = """
import sys
from pyspark.sql import SparkSession
folder, url, queue = sys.argv[1:]
builder = SparkSession.builder.master("local[2]")
for name, value in {
    "ui.enabled": "false", "ui.showConsoleProgress": "false", "log.level": "OFF", "driver.memory": "512m"
}.items():
    builder = builder.config("spark." + name, value)
rows = builder.getOrCreate().readStream.schema("data string, queue string").option("maxFilesPerTrigger", 1)
writer = rows.json(folder + "/in").repartition(2).writeStream.format("glidemq").trigger(availableNow=True)
options = {"url": url, "queue": queue, "jobName": "n", "batchSize": 10, "checkpointLocation": folder + "/checkpoint"}
writer.options(**options).start().awaitTermination()
"""

KILLED = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.spark.faults import FaultySource
folder, url, queue, calls = sys.argv[1:]
Path(folder, "driver").write_text(str(os.getpid()))
builder = SparkSession.builder.master("local[2]")
for name, value in {
    "ui.enabled": "false", "ui.showConsoleProgress": "false", "log.level": "OFF", "driver.memory": "512m"
}.items():
    builder = builder.config("spark." + name, value)
spark = builder.getOrCreate()
spark.dataSource.register(FaultySource)
rows = spark.readStream.schema("data string, queue string").option("maxFilesPerTrigger", 1)
source = "faulty" if calls else "glidemq"
writer = rows.json(folder + "/in").repartition(2).writeStream.format(source).trigger(availableNow=True)
options = {"url": url, "queue": queue, "jobName": "n", "batchSize": 10, "checkpointLocation": folder + "/checkpoint"}
if calls:
    options |= {"commit": calls, "how": "kill", "folder": folder}
writer.options(**options).start().awaitTermination()
"""


def test_restarted_query_writes_each_row_once(url: str, resp: RespClient, queue_name: str, tmp_path: Path) -> None:
    if problem := missing():
        pytest.skip(problem)
    queues = [queue_name, f"{queue_name}-b"]
    (tmp_path / "in").mkdir()
    for n in range(FILES):
        rows = [{"data": str(i), "queue": queues[i % 2]} for i in range(n * ROWS, n * ROWS + ROWS)]
        (tmp_path / "in" / f"{n:05}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), url, queue_name]
        return subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment(), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def jobs() -> int:
        return sum(int(Written(resp, queue).run("XLEN", "stream")) for queue in queues)

    for _ in range(KILLS):
        before, driver = jobs(), start()
        deadline = time.monotonic() + LIMIT_S
        while jobs() == before:
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(random.random() / 2)  # wherever that is: while it stages, decides, publishes or notes its checkpoint
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert start().wait(LIMIT_S) == 0
    found = [data for queue in queues for data in Written(resp, queue).data]
    assert sorted(found, key=int) == [str(i) for i in range(FILES * ROWS)]
    assert list(Written(resp, queue_name).staged.values()) == ["string"]  # the query's last batch
    assert set(Written(resp, queues[1]).staged.values()) <= {"done"}
    for queue in queues:
        assert not Written(resp, queue).run("ZCARD", "writes"), queue
        for name in Written(resp, queue).staged:
            assert Written(resp, queue).run("PTTL", name) > 0


def test_driver_killed_between_prepare_and_decision(
    url: str, resp: RespClient, queue_name: str, tmp_path: Path
) -> None:
    """Kill driver, JVM and Python when one queue is prepared; when all are; and when the write is just decided."""
    if problem := missing():
        pytest.skip(problem)
    queues = [queue_name, f"{queue_name}-b", f"{queue_name}-c"]
    (tmp_path / "in").mkdir()
    for n in range(3):
        rows = [{"data": str(i), "queue": queues[i % 3]} for i in range(n * ROWS, n * ROWS + ROWS)]
        (tmp_path / "in" / f"{n:05}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(calls: str) -> int:
        for note in [*tmp_path.glob("crashed-*"), *tmp_path.glob("killed-*")]:
            note.unlink()
        command = [sys.executable, "-c", KILLED, str(tmp_path), url, queue_name, calls]
        log = (tmp_path / "log").open("ab")
        return subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment(), start_new_session=True, stdout=log, stderr=log
        ).wait(LIMIT_S)

    def states() -> list[str]:
        found = [Written(resp, queue).staged for queue in queues]
        return [next((s for name, s in each.items() if name.count(":") == 1 and "." in name), "") for each in found]

    # A ballot, two queues prepared, the decision.
    for calls, expected in (("2", ["open", "prepared", "open"]), ("3", ["open", "prepared", "prepared"])):
        assert run(calls) == -signal.SIGKILL, (tmp_path / "log").read_text()
        assert states() == expected
        assert [Written(resp, queue).data for queue in queues] == [[], [], []]
    assert run("4") == -signal.SIGKILL
    assert states() == ["committed", "prepared", "prepared"]
    assert run("") == 0, (tmp_path / "log").read_text()
    for n, queue in enumerate(queues):
        assert sorted(map(int, Written(resp, queue).data)) == list(range(n, 3 * ROWS, 3))
        assert not Written(resp, queue).run("ZCARD", "writes")
