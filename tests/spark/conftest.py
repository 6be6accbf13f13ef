"""One Spark session per run, because it takes about ten seconds to start. Skipped with a reason if Spark cannot run."""

import os
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py.spark import environment as spark_environment
from glidemq_py.testing import RespClient
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.spark.class_archive import SHORT_RUNS, START, jvm_options

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1_800
"""A test that takes longer hangs: the longest needs 60 s on two cores, and fifteen times that with 0.3 of a core."""
CONNECTED_TOO_LATE = "Python worker failed to connect back"
"""Spark's error if the Python process of a streaming query has not connected within ten seconds.

The limit is a constant of Spark (`PythonWorkerFactory.createSimpleWorker`) without an option:
`spark.python.authenticate.socketTimeout` is another one. It is exceeded on a machine that is slow enough.
"""
SLOW_IMPORT_S = 2
"""The imports that such a process needs take 0.3 s on an idle machine."""


def missing() -> str:
    """Return why Spark cannot run here, or ''."""
    return "; ".join(spark_environment.missing(workers=False))


def environment() -> dict[str, str]:
    """For Spark's processes: this Python, this checkout, and `start/sitecustomize.py`."""
    path = os.pathsep.join(filter(None, (str(START), str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": path,
        "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONWARNINGS": "ignore", "SPARK_SUBMIT_OPTS": jvm_options(),
        "SPARK_DAEMON_JAVA_OPTS": jvm_options(), "SPARK_LAUNCHER_OPTS": SHORT_RUNS,
    }  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]):
    """Mark the tests of this folder, and run them first: they take longest.

    Each test that failed since Spark's ten seconds were too short is repeated.
    """
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.parent != here)
    for item in items:
        if item.path.parent == here:
            # PySpark and Py4J leave sockets and deprecations about; that is theirs.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LIMIT_S))
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.flaky(reruns=3, only_rerun=CONNECTED_TOO_LATE))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that failed by Spark's limit of ten seconds on a machine where the imports alone nearly take them."""
    report = yield
    if report.failed and call.excinfo is not None and CONNECTED_TOO_LATE in str(call.excinfo.value):
        took = import_time()
        if took > SLOW_IMPORT_S:
            reason = f"the imports of a Python process took {took:.0f} s here, and Spark gives it ten to connect"
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, reason)
    return report


def import_time() -> float:
    """Return how long a fresh process takes to import what Spark's process of a streaming query imports, in s."""
    start = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", "import pyspark.sql.streaming.python_streaming_source_runner"], check=True,
        env=os.environ | environment(),
    )  # fmt: skip
    return time.monotonic() - start


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session with two cores, three attempts for a task, and small Arrow batches, so that tasks have many."""
    problem = missing()
    if problem:
        pytest.skip(problem)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, text in environment().items():
            patch.setenv(name, text)
        patch.delenv("GLIDEMQ_URL", raising=False)
        from pyspark.sql import SparkSession

        folder = tmp_path_factory.mktemp("spark")
        builder = SparkSession.builder.master("local[2,3]").appName("glidemq tests")
        for name, value in {
            "spark.ui.enabled": False, "spark.ui.showConsoleProgress": False, "spark.log.level": "OFF",
            "spark.sql.shuffle.partitions": 2, "spark.sql.warehouse.dir": folder / "warehouse",
            "spark.driver.memory": "1g", "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
            "spark.sql.session.timeZone": "UTC", "spark.sql.execution.arrow.maxRecordsPerBatch": 100,
            # A task that outlives its job runs on, also if the machine needs longer than two seconds for the abort.
            "spark.python.task.killTimeout": f"{LIMIT_S}s",
        }.items():  # fmt: skip
            builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture
def queue_name() -> str:
    """Return a unique queue name."""
    return f"spark-{uuid.uuid4().hex[:12]}"


class Written:
    """The server-side state of one queue."""

    def __init__(self, resp: RespClient, queue: str):
        self._resp = resp
        self.queue = queue
        self.base = f"glide:{{{queue}}}:"

    def run(self, command: str, suffix: str, *arguments: Any) -> Any:
        return self._resp.execute(command, self.base + suffix, *arguments)

    def job(self, job_id: str) -> dict[str, str]:
        return self._resp.hash(f"{self.base}job:{job_id}")

    @property
    def ids(self) -> list[str]:
        """Of waiting jobs, in order."""
        entries = self.run("XRANGE", "stream", "-", "+")
        return [dict(zip(flat[::2], flat[1::2], strict=True))["jobId"] for _, flat in entries]

    @property
    def jobs(self) -> list[dict[str, str]]:
        """Waiting jobs, in order."""
        return [self.job(job_id) for job_id in self.ids]

    @property
    def data(self) -> list[str]:
        """Data of waiting jobs."""
        return [job["data"] for job in self.jobs]

    @property
    def staged(self) -> dict[str, str]:
        """Keys of staged writes, and the states of those that are manifests."""
        found: dict[str, str] = {}
        for key in self._resp.keys(f"{self.base}write*".replace("{", r"\{")):
            if key.endswith(":write-reports"):
                continue
            kind = self._resp.execute("TYPE", key)
            found[key.removeprefix(self.base)] = self._resp.execute("HGET", key, "state") if kind == "hash" else kind
        return found

    def check(self, expected: list[str], states: set[Any] | None = None):
        """Exactly these jobs, no orphans, nothing staged left but the final state that late tasks read."""
        data = self.data
        assert sorted(data) == sorted(expected)
        assert len(set(self.ids)) == len(expected)
        assert len(self._resp.keys(f"{self.base}job:*".replace("{", r"\{"))) == len(expected)
        staged = self.staged
        assert set(staged.values()) <= (states if states is not None else {"done"}), staged
        for name in staged:
            assert self.run("PTTL", name) > 0, name


@pytest.fixture
def written(resp: RespClient, queue_name: str) -> Written:
    """Return the state of `queue_name`."""
    return Written(resp, queue_name)


@pytest.fixture
def sink(spark: Any, url: str, queue_name: str) -> Callable[..., Any]:
    """`sink(frame, fmt="glidemq", **options)`: a writer in mode append to `queue_name`."""

    def make(frame: Any, fmt: str = "glidemq", **options: Any) -> Any:
        chosen = {"url": url, "queue": queue_name, "jobName": "n"} | options
        return frame.write.format(fmt).mode("append").options(**{k: v for k, v in chosen.items() if v is not None})

    return make


@pytest.fixture
def source(spark: Any, server: GlideMQServer, queue_name: str) -> Callable[..., Any]:
    """`source(**options)`: a reader of `queue_name`, not loaded yet."""

    def make(**options: Any) -> Any:
        return spark.read.format("glidemq").options(**{"url": server.url, "queue": queue_name} | options)

    return make


@pytest.fixture
def bounded(spark: Any):
    """Micro-batches of streams can be bounded since PySpark 4.2."""
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 2):
        pytest.skip(f"PySpark {spark.version} does not bound micro-batches")
