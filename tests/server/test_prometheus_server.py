"""The dashboard and the alert rules on a Prometheus server (Debian: prometheus), which scrapes this process."""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry, start_http_server

from glidemq_py import Job, Queue
from glidemq_py.telemetry.prometheus import ProcessMetrics, QueueCollector
from tests.server.worker_support import EventRecorder, WorkerFor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="prometheus and promtool are not installed (Debian: prometheus)",
    ),
]

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "docs" / "operate" / "grafana"
PATIENCE_S = 100


def promtool(*arguments: str | Path, cwd: Path | None = None) -> str:
    ended = subprocess.run(
        ["promtool", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_alert_rules_fire_when_they_should(tmp_path: Path):
    rules = yaml.safe_load((GRAFANA / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    tests = (ROOT / "tests" / "server" / "alerts_test.yml").read_text(encoding="utf-8")
    for rule in rules:
        assert tests.count(rule["alert"]) >= 2, f"{rule['alert']} is not tested"
    shutil.copy(GRAFANA / "alerts.yml", tmp_path)
    # promtool does not know the anchors of YAML.
    (tmp_path / "alerts_test.yml").write_text(json.dumps(yaml.safe_load(tests)), encoding="utf-8")
    assert f"{len(rules)} rules found" in promtool("check", "rules", "alerts.yml", cwd=tmp_path)
    promtool("test", "rules", "alerts_test.yml", cwd=tmp_path)


class Prometheus:
    """A Prometheus server."""

    def __init__(self, port: int):
        self._base = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an expression; raises HTTPError if it is invalid."""
        path = f"{self._base}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(path, timeout=30) as answer:
            found: Any = json.loads(answer.read())
        assert found["status"] == "success"
        return list(found["data"]["result"])

    async def result_of(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an expression as soon as there is one."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(ConnectionError, urllib.error.URLError):
                    if found := await asyncio.to_thread(self.query, expression):
                        return found
                await asyncio.sleep(0.2)


def has_failed(number: int, recorded: EventRecorder) -> bool:
    return recorded.count["failed"] == number


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    metrics = ProcessMetrics(registry, names=10)
    yield registry
    metrics.close()


@pytest.fixture
def prometheus(registry: CollectorRegistry, tmp_path: Path) -> Iterator[Prometheus]:
    port = free_port()
    exporter, thread = start_http_server(0, "127.0.0.1", registry)
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "scrape_configs": [
            {"job_name": "workers", "static_configs": [{"targets": [f"127.0.0.1:{exporter.server_port}"]}]}
        ],
        "rule_files": [str(GRAFANA / "alerts.yml")],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    arguments = [
        "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(["prometheus", *arguments], cwd=tmp_path, stderr=subprocess.DEVNULL)
    yield Prometheus(port)
    process.terminate()
    process.wait(PATIENCE_S)
    exporter.shutdown()
    exporter.server_close()
    thread.join(PATIENCE_S)


async def test_every_query_of_the_dashboard_has_a_result(
    worker_for: WorkerFor, url: str, queue: Queue, queue_name: str, registry: CollectorRegistry, prometheus: Prometheus
):
    """With real jobs that complete, fail, are retried, delayed and scheduled; with recorded values for the rest."""
    attempts: set[str] = set()

    async def handler(job: Job):
        if job.name == "fail" or (job.name == "retry" and job.id not in attempts):
            attempts.add(job.id)
            raise ValueError("no")

    collector = QueueCollector([queue_name], url)
    registry.register(collector)
    worker = worker_for(handler, log_failures=False)
    recorded = EventRecorder(worker)
    async with worker:
        await prometheus.result_of("glidemq_up == 1")
        for name in ("glidemq_redeliveries", "glidemq_stale_attempts", "glidemq_stalled_failures"):
            _counter(registry, name).labels(queue_name).inc(0)
        _counter(registry, "glidemq_add_errors").labels(queue_name, "ServerOutOfMemoryError").inc(0)
        _counter(registry, "glidemq_connection_interruptions").labels("disconnected").inc(0)
        # A rate needs values that change between two scrapes.
        await queue.schedulers.upsert("often", every=200, template=("scheduled", None))
        for number in range(1, 6):
            await queue.add_bulk([("task",), ("retry", None, {"attempts": 2}), ("fail",), ("task", None, {"delay": 1})])
            await recorded.until(partial(has_failed, number))
            scraped = f'glidemq_attempts_total{{queue="{queue_name}",name="fail"}} == {number}'
            await prometheus.result_of(scraped)
        dashboard: Any = json.loads((GRAFANA / "queues.json").read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$queue", ".*").replace("$__rate_interval", "1m")
                assert "$" not in expression
                found = await prometheus.result_of(expression)
                legend = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
                for series in found:
                    assert set(legend) <= series["metric"].keys(), (panel["title"], series["metric"])
    collector.close()


def _counter(registry: CollectorRegistry, name: str):
    return registry._names_to_collectors[name]
