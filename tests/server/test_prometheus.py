"""The Prometheus collector: metrics of queues and of this process, and the dashboard."""

import asyncio
import importlib.metadata
import json
import logging
import os
import platform
import re
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import glidemq_py
from glidemq_py import Broadcast, BroadcastWorker, GlideMQValidationError, Job, Queue, Worker
from glidemq_py._client.counting import FIGURES
from glidemq_py._features.suspend import SuspendTimeoutsTask
from glidemq_py.errors import JobRevokedError
from glidemq_py.telemetry.names import Start
from glidemq_py.telemetry.prometheus import ProcessMetrics, QueueCollector
from glidemq_py.telemetry.state import TELEMETRY
from glidemq_py.testing import RespClient
from glidemq_py.testing.pytest_plugin import GlideMQServer
from tests.inside import administration, connected, failures, parts_of, working
from tests.lua.own_support import OwnQueue
from tests.server.command import Command
from tests.server.lossy_proxy import LossyProxy
from tests.server.worker_support import EventRecorder, WorkerFor

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    metrics = ProcessMetrics(registry)
    yield registry
    metrics.close()
    assert not TELEMETRY.on


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


async def test_read_messages_of_a_broadcast_are_not_late(core_url: str, queue_name: str):
    """Messages are kept after all subscriptions have read them; the age is that of the slowest subscription."""
    read = asyncio.Event()

    async def handle(_: Any):
        read.set()

    async with Broadcast(queue_name, core_url) as broadcast, Queue(queue_name, core_url) as queue:
        link = await connected(queue)

        async def age() -> int:
            return (await link.transport.call(administration.gauges(link.keys.meta))).oldest

        async with BroadcastWorker(queue_name, handle, core_url, subscription="a"):
            await broadcast.publish("news", 1)
            await read.wait()
            assert await age() == 0
            await broadcast.subscribe("slow", start_from="0-0")
            await asyncio.sleep(0.01)
            assert await age() > 0


async def test_of_a_queue(core_url: str, queue_name: str):
    registry = CollectorRegistry()
    collector = QueueCollector([queue_name], core_url)
    registry.register(collector)
    async with Queue(queue_name, core_url) as queue:
        await queue.add_bulk([("a",), ("b", None, {"delay": 60_000}), ("c", None, {"priority": 2})])
        await queue.pause()
        states = {
            state: value(registry, "glidemq_jobs", queue=queue_name, state=state)
            for state in FIGURES
            if state != "paused"
        }
        assert states == {
            "waiting": 1, "active": 0, "delayed": 1, "prioritized": 1, "completed": 0, "failed": 0, "suspended": 0,
            "waiting-children": 0, "group-waiting": 0,
        }  # fmt: skip
        of_queue = {"queue": queue_name}
        assert (value(registry, "glidemq_up", **of_queue), value(registry, "glidemq_paused", **of_queue)) == (1, 1)
        assert (value(registry, "glidemq_workers", **of_queue), value(registry, "glidemq_outbox_entries", **of_queue)) == (0, 0)  # fmt: skip # noqa: E501
        assert await queue.obliterate(force=True) == 3
    collector.close()


async def test_of_a_partitioned_queue(core_url: str, queue_name: str):
    """The metrics are those of all partitions, with the name of the queue."""
    registry = CollectorRegistry()
    collector = QueueCollector([queue_name], core_url)
    registry.register(collector)

    def found(metric: str, **labels: str) -> float | None:
        return value(registry, f"glidemq_{metric}", queue=queue_name, **labels)

    async def handle(job: Job):
        if job.name == "bad":
            raise ValueError

    async with Queue(queue_name, core_url, partitions=3, dead_letter_queue=f"{queue_name}-dead") as queue:
        await queue.add_bulk([("a", None, {"fair_key": str(n)}) for n in range(30)])
        await queue.add_bulk([("bad", None, {"fair_key": str(n)}) for n in range(9)])
        assert found("jobs", state="waiting") is not None
        waiting = [found("jobs", state=state) for state in ("waiting", "group-waiting")]
        assert sum(filter(None, waiting)) == 39
        links = [await connected(part) for part in parts_of(queue)]
        before = max([(await link.transport.call(administration.gauges(link.keys.meta))).oldest for link in links])
        age = found("oldest_waiting_age_seconds")
        assert age is not None
        assert before / 1000 <= age
        async with Worker(queue_name, handle, core_url, concurrency=10, log_failures=False) as worker:
            recorder = EventRecorder(worker)
            await recorder.until(lambda seen: len(seen.of("completed")) + len(seen.of("failed")) == 39)
            assert found("workers") == 1
        await queue.add_bulk([("b", None, {"delay": 60_000, "fair_key": str(n)}) for n in range(30)])
        states = {state: found("jobs", state=state) for state in FIGURES if state != "paused"}
        assert {state: number for state, number in states.items() if number} == {
            "completed": 30, "failed": 9, "delayed": 30,
        }  # fmt: skip
        assert (found("up"), found("paused"), found("workers")) == (1, 0, 0)
        await parts_of(queue)[2].pause()
        assert found("paused") == 1
        text = generate_latest(registry).decode()
        assert set(re.findall(r'queue="([^"]+)"', text)) == {queue_name}
        await queue.obliterate(force=True)
    collector.close()


async def test_metrics_and_logs_of_a_worker_name_the_partitioned_queue(
    core_url: str, queue_name: str, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, "glidemq_py")
    blocked, fired = threading.Event(), asyncio.Semaphore(0)

    def handle(job: Job):
        if job.name == "bad":
            raise ValueError
        if job.name == "slow":
            blocked.wait(20)

    async with (
        Queue(queue_name, core_url, partitions=3) as queue,
        Worker(queue_name, handle, core_url, concurrency=30) as worker,
    ):
        worker.on("completed", lambda job, _: fired.release() if job.name == "tick" else None)
        recorder = EventRecorder(worker)
        jobs = await queue.add_bulk([("a", None, {"fair_key": str(n)}) for n in range(12)])
        await queue.add_bulk([("bad", None, {"fair_key": str(n)}) for n in range(6)])
        slow = [await queue.add("slow", timeout=1, fair_key=str(n)) for n in range(12)]
        assert {job_id.rpartition("|")[0] for job_id in (job.id for job in jobs)} == {"", "1|", "2|"}
        for name in ("one", "two", "three", "four"):
            await queue.schedulers.upsert(name, every=3_600_000, immediately=True, template={"name": "tick"})
        for _ in range(4):
            await asyncio.wait_for(fired.acquire(), 20)
        await recorder.until(lambda seen: seen.count["failed"] == 18)
        blocked.set()
    found = {
        label
        for metric in registry.collect()
        for sample in metric.samples
        if (label := sample.labels.get("queue")) is not None
    }
    assert found == {queue_name}
    messages = [record.getMessage() for record in caplog.records]
    assert sum("its handler is a plain function" in message for message in messages) == len(slow)
    assert [message for message in messages if "~p~" in message] == []


async def test_log_of_a_suspended_job_names_the_partitioned_queue(
    core_url: str, queue_name: str, caplog: pytest.LogCaptureFixture
):
    async def handle(job: Job):
        await job.suspend(timeout=1)

    async with Queue(queue_name, core_url, partitions=3) as queue:
        async with Worker(queue_name, handle, core_url) as worker:
            recorder = EventRecorder(worker)
            job = await queue.add("a", job_id="order-7")
            await recorder.wait("suspended")
        while (found := await queue.get_job(job.id)) is not None and found.state != "failed":
            for part in parts_of(queue):
                await SuspendTimeoutsTask(await connected(part)).run_once()
    lines = [record.getMessage() for record in caplog.records if "suspended without a signal" in record.getMessage()]
    assert len(lines) == 1
    assert f"queue {queue_name!r}: job {job.id!r} failed" in lines[0]


async def test_unreachable_server_is_reported_without_an_error(queue_name: str):
    registry = CollectorRegistry()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        registry.register(QueueCollector([queue_name], f"valkey://127.0.0.1:{nobody.getsockname()[1]}"))
        assert value(registry, "glidemq_up", queue=queue_name) == 0
        assert value(registry, "glidemq_paused", queue=queue_name) is None


def test_invalid_names_are_rejected():
    with pytest.raises(GlideMQValidationError):
        QueueCollector("mails")
    with pytest.raises(GlideMQValidationError):
        QueueCollector(["a{b"])


@pytest.fixture
def q(resp: RespClient, queue_name: str) -> Iterator[OwnQueue]:
    q = OwnQueue(resp, queue_name)
    yield q
    q.delete_everything()


def oldest(q: OwnQueue) -> int:
    return int(q.run(administration.gauges(q.meta)).oldest)


def test_the_age_of_the_oldest_ready_job(q: OwnQueue):
    assert oldest(q) == 0
    q.add_job(priority=5)
    q.advance(1_000)
    q.add_job(priority=1)
    assert oldest(q) == 1_000
    q.advance(500)
    q.add_job(lifo=True)
    q.add_job(delay=100)
    assert oldest(q) == 1_500
    q.fetch(2)
    q.advance(10)
    assert oldest(q) == 10
    assert q.run(administration.gauges(q.meta)).workers == 0


@pytest.mark.parametrize(
    "place",
    [
        {"fair_key": "a"}, {"fair_key": "a", "priority": 9}, {"fair_key": "a", "delay": 300}, {"priority": 7},
        {"rank": 5_000}, {"rank": -5}, {"rank": -5, "delay": 300}, {"rank": 5_000, "lifo": True}, {"lifo": True},
        {"rank": 100, "lifo": True},
    ],
    ids=str,
)  # fmt: skip
def test_the_oldest_ready_job_of_each_place(q: OwnQueue, place: Any):
    """Also behind later jobs of the same place that run earlier."""
    q.add_job(**place)
    q.advance(1_000)
    earlier: Any = {**place, "delay": 0}
    if "rank" in place:
        earlier["rank"] += 1
    else:
        earlier["priority"] = 0 if place.get("lifo") else 1
    q.add_job(**earlier)
    q.exchange(0)  # promotes
    assert oldest(q) == 1_000 - place.get("delay", 0)
    q.advance(500)
    if "fair_key" in place:
        q.add_job(**{**earlier, "fair_key": "b"})
    assert oldest(q) == 1_500 - place.get("delay", 0)
    q.fetch(5)
    assert oldest(q) == 0


def test_the_oldest_parked_job(q: OwnQueue):
    ordering: list[object] = ["g", 1, 0, 0, 0, 0, 0]
    q.add_job(ordering=ordering)
    q.take_one()
    q.advance(1_000)
    q.add_job(ordering=ordering)
    assert q.fetch(1) == []  # parked, as the first one holds the slot
    q.advance(700)
    q.add_job(lifo=True)
    assert oldest(q) == 700


def test_a_retried_job_became_ready_after_its_last_start(q: OwnQueue):
    q.add_job(fair_key="a", attempts=2)
    q.advance(5_000)
    job = q.take_one()
    q.finish(working.failed(*job.token, "bad", "Error", "[]", 2, 0, 0))
    q.advance(100)
    assert oldest(q) == 100


@pytest.mark.parametrize("place", [{"fair_key": "a"}, {"lifo": True}, {"priority": 7}, {"rank": 5_000}], ids=str)
@pytest.mark.parametrize("reason", ["dependency", "promotion", "requeue"])
def test_a_job_counts_from_the_moment_when_it_became_ready(q: OwnQueue, place: Any, reason: str):
    if reason == "dependency":
        q.add_job()
        first = q.take_one()
        q.add_job(dependencies=["wait", [q.base[7:-1], first.id]], **place)
        q.advance(3_600_000)
        q.finish(first.completed())
    elif reason == "promotion":
        job_id = q.add_job(delay=7_200_000, **place)
        q.advance(3_600_000)
        q.run(administration.promote(q.meta, job_id))
    else:
        q.add_job(**place)
        job = q.take_one()
        q.finish(job.failed())
        q.advance(3_600_000)
        q.run(administration.requeue_job(q.meta, job.id))
    q.advance(100)
    assert oldest(q) == 100


def test_the_oldest_of_many_keys_is_estimated(q: OwnQueue):
    for n in range(300):
        q.add_job(fair_key=f"k{n}")
        q.advance(10)
    assert 1_500 < oldest(q) <= 3_000


def test_a_worker_counts_while_its_registration_lasts(q: OwnQueue, resp: RespClient):
    """Workers of idle queues register seldom."""
    for name in ("py-1", "py-2", "py-3"):
        q.run(working.heartbeat(q.meta, name, "{}", 3_600_000, []))
    q.advance(120_000)
    assert q.run(administration.gauges(q.meta)).workers == 3
    resp.execute("DEL", f"{q.base}:w:py-2")
    assert q.run(administration.gauges(q.meta)).workers == 2
    q.run(working.heartbeat(q.meta, "py-3", "{}", 3_600_000, []))
    assert q.run(administration.gauges(q.meta)).workers == 2


def test_the_age_of_the_first_unread_entry(q: OwnQueue, resp: RespClient):
    # Entries bear the server's own time.
    seconds, microseconds = resp.execute("TIME")
    q.set_time(int(seconds) * 1000 + int(microseconds) // 1000)
    q.add_job()
    q.advance(60_000)
    q.add_job()
    assert 30_000 <= oldest(q) <= 60_000  # a slow machine adds the job later
    job = q.take_one()
    q.advance(60_000)
    assert 90_000 <= oldest(q) <= 120_000  # of the second one, whose entry is as old
    q.take_one()
    assert oldest(q) == 0
    q.exchange(0, [working.completed(*job.token, "null")])
    assert oldest(q) == 0


async def test_of_this_process(worker_for: WorkerFor, queue: Queue, queue_name: str, registry: CollectorRegistry):
    async def handler(job: Job):
        if job.name == "fail":
            raise ValueError("no")

    worker = worker_for(handler)
    recorded = EventRecorder(worker)
    async with worker:
        await queue.add("task")
        await queue.add_bulk([("fail", None, {"attempts": 2}), ("task",)])
        with pytest.raises(GlideMQValidationError):
            await queue.add("")
        await recorded.until(lambda recorded: recorded.count["completed"] == 2 and recorded.count["failed"] == 1)

    def of(name: str, **labels: str) -> float | None:
        return value(registry, name, queue=queue_name, **labels)

    assert of("glidemq_jobs_added_total") == 3
    outcomes = {
        outcome: of("glidemq_attempts_total", outcome=outcome) for outcome in ("completed", "failed", "retrying")
    }
    assert outcomes == {"completed": 2, "failed": 1, "retrying": 1}
    assert of("glidemq_job_run_seconds_count") == 4
    assert of("glidemq_job_wait_seconds_count") == 3  # the second attempt was not waiting to begin
    assert of("glidemq_stale_attempts_total") is None


async def test_a_cancelled_attempt_is_no_failure(
    worker_for: WorkerFor, queue: Queue, queue_name: str, registry: CollectorRegistry
):
    async def handler(job: Job):
        raise JobRevokedError("revoked")

    worker = worker_for(handler)
    recorded = EventRecorder(worker)
    await queue.add("leased")
    await (await queue.fetch())[0].fail(JobRevokedError("revoked"))
    async with worker:
        await queue.add("task")
        await recorded.wait("failed")
    outcomes = ("cancelled", "failed")
    found = [value(registry, "glidemq_attempts_total", queue=queue_name, outcome=outcome) for outcome in outcomes]
    assert found == [2, None]


async def test_lost_workers_and_stale_attempts(registry: CollectorRegistry):
    for meter in TELEMETRY.meters:
        meter.stalled("q", 2, 1)
        meter.job_reported("q", "task", "stale")
        meter.sent("q", "add", ["task"], 0.1, "ServerOutOfMemoryError", {})
    assert value(registry, "glidemq_redeliveries_total", queue="q") == 2
    assert value(registry, "glidemq_stalled_failures_total", queue="q") == 1
    assert value(registry, "glidemq_stale_attempts_total", queue="q") == 1
    assert value(registry, "glidemq_add_errors_total", queue="q", error="ServerOutOfMemoryError") == 1


async def test_lateness_of_delayed_jobs_and_schedulers(
    worker_for: WorkerFor, queue: Queue, queue_name: str, registry: CollectorRegistry
):
    async def handler(job: Job): ...

    worker = worker_for(handler)
    recorded = EventRecorder(worker)
    async with worker:
        await queue.add("plain")
        await queue.add("delayed", delay=1)
        await queue.schedulers.upsert("often", every=50, limit=3, template=("scheduled", None))
        await recorded.until(lambda recorded: recorded.count["completed"] == 5)
    assert value(registry, "glidemq_job_wait_seconds_count", queue=queue_name) == 5
    assert value(registry, "glidemq_job_lateness_seconds_count", queue=queue_name) == 1
    assert value(registry, "glidemq_schedule_jobs_total", queue=queue_name, schedule="often") == 3
    assert value(registry, "glidemq_schedule_lateness_seconds_count", queue=queue_name) == 3


@pytest.fixture
def by_name() -> Iterator[tuple[CollectorRegistry, ProcessMetrics]]:
    registry = CollectorRegistry()
    metrics = ProcessMetrics(registry, names=2)
    yield registry, metrics
    metrics.close()


async def test_names_are_labels_up_to_a_maximum(
    worker_for: WorkerFor, queue: Queue, queue_name: str, by_name: tuple[CollectorRegistry, ProcessMetrics]
):
    registry, _ = by_name

    async def handler(job: Job): ...

    worker = worker_for(handler)
    recorded = EventRecorder(worker)
    async with worker:
        await queue.add("a")
        await queue.add_bulk([("a",), ("b",), ("c",), ("d",)])
        await recorded.until(lambda recorded: recorded.count["completed"] == 5)
    for name, number in (("a", 2), ("b", 1), ("_other", 2), ("c", None)):
        labels = {"queue": queue_name, "name": name}
        ended = {**labels, "outcome": "completed"}
        assert registry.get_sample_value("glidemq_jobs_added_total", labels) == number
        assert registry.get_sample_value("glidemq_job_run_seconds_count", labels) == number
        assert registry.get_sample_value("glidemq_attempts_total", ended) == number
    with pytest.raises(GlideMQValidationError, match="names"):
        ProcessMetrics(CollectorRegistry(), names=-1)


def test_interruptions_are_counted_once_per_second_and_reason(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
):
    interruptions = failures.Interruptions()
    clock = iter((10.0, 10.9, 10.9, 11.0))
    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=clock.__next__))
    for reason in ("disconnected", "disconnected", "loading", "disconnected"):
        interruptions.count(reason)
    assert value(registry, "glidemq_connection_interruptions_total", reason="disconnected") == 2
    assert value(registry, "glidemq_connection_interruptions_total", reason="loading") == 1


async def test_lost_connections_are_counted(registry: CollectorRegistry, server: GlideMQServer, queue_name: str):
    with LossyProxy(server.url) as proxy:
        async with Queue(queue_name, proxy.url) as queue:
            await queue.add("a")
            assert value(registry, "glidemq_connection_interruptions_total", reason="disconnected") is None
            proxy.lose("glidemq")
            assert (await queue.get_job_counts()).waiting == 1
    assert (value(registry, "glidemq_connection_interruptions_total", reason="disconnected") or 0) >= 1


def test_build_info(registry: CollectorRegistry):
    labels = {
        "version": glidemq_py.__version__, "python": platform.python_version(),
        "glide": importlib.metadata.version("valkey-glide"),
    }  # fmt: skip
    assert value(registry, "glidemq_build_info", **labels) == 1


def test_dashboard_uses_exported_metrics(url: str, by_name: tuple[CollectorRegistry, ProcessMetrics]):
    registry, metrics = by_name
    registry.register(QueueCollector(["q"], url))
    metrics.sent("q", "add", ["task"], 0.1, None, {})
    metrics.sent("q", "add", ["task"], 0.1, "E", {})
    metrics.began("q", [Start("task", 0.1, 0.1)], {})
    metrics.ran("q", [Start("task", 0.1, 0.1)], 0.1, None, {})
    metrics.job_reported("q", "task", "completed")
    metrics.job_reported("q", "task", "stale")
    metrics.step_stored("q", "task", "done")
    metrics.fired("q", "often", 1, 0.1)
    metrics.interrupted("disconnected")
    metrics.stalled("q", 1, 1)
    text = generate_latest(registry).decode()
    samples = dict(re.findall(r"(?m)^(glidemq_\w+)\{([^}]*)\}", text))
    dashboard: Any = json.loads((ROOT / "docs/operate/grafana/queues.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) >= 12
    for expression in expressions:
        for name, labels in re.findall(r"(glidemq_\w+)\{([^}]*)\}", expression):
            assert name in samples, expression
            for label in re.findall(r"(\w+)=", labels):
                assert f'{label}="' in samples[name], expression
    # And nothing that is exported is missing from the page.
    page = (ROOT / "docs/operate/prometheus.md").read_text(encoding="utf-8")
    exported = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in samples}
    assert {name for name in exported if name not in page and f"{name}_total" not in page} == set()


def test_dashboard_is_valid():
    """Properties are those of Grafana, ids are unique, and no panel covers another."""
    jsonschema_rs = pytest.importorskip("jsonschema_rs", reason="needs the extra `test`")
    dashboard: Any = json.loads((ROOT / "docs/operate/grafana/queues.json").read_text(encoding="utf-8"))
    schema = json.loads((ROOT / "tests/server/grafana_dashboard.schema.json").read_text(encoding="utf-8"))
    jsonschema_rs.validate(schema, dashboard)
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & covered, panel["title"]
        covered |= cells
    variables = {each["name"] for each in dashboard["templating"]["list"]} | {"__rate_interval", "__interval"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(panels))) <= variables
    for each in (True, {**panels[0], "typo": 1}, {**panels[0], "gridPos": {}}):
        with pytest.raises(jsonschema_rs.ValidationError):
            jsonschema_rs.validate(schema, {**dashboard, "panels": [each]})


@pytest.mark.slow
async def test_the_command_serves_them(url: str, queue_name: str, tmp_path: Path):
    (tmp_path / "application.py").write_text("async def handler(job): ...\n", encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ("application:handler", "--queue", queue_name, "--url", url, "--metrics-port", str(port))
    with Command(tmp_path, "glidemq_py.worker", *arguments) as command:
        await command.printed("working on")
        async with Queue(queue_name, url) as queue:
            await (await queue.add("task")).wait_until_finished()
        text = await asyncio.to_thread(scraped, port)
    assert f'glidemq_jobs{{queue="{queue_name}",state="completed"}} 1.0' in text
    assert f'glidemq_job_run_seconds_count{{queue="{queue_name}"}} 1.0' in text


@pytest.mark.slow
async def test_each_of_several_processes_serves_its_own(url: str, queue_name: str, tmp_path: Path):
    (tmp_path / "application.py").write_text("import os\ndef handler(job): return os.getpid()\n", encoding="utf-8")
    port = two_free_ports()
    arguments = ("application:handler", "--queue", queue_name, "--url", url, "--processes", "2")
    with Command(tmp_path, "glidemq_py.worker", *arguments, "--metrics-port", str(port)) as command:
        await command.printed("serving metrics on port", times=2)
        started = await command.printed(r"child (\d+) has started", times=2)
        async with Queue(queue_name, url) as queue:
            jobs = await queue.add_bulk([("task", None)] * 40)
            pids = [await job.wait_until_finished() for job in jobs]
        texts = [await asyncio.to_thread(scraped, port + slot) for slot in range(2)]
        # A process that is replaced serves on the port of the one before.
        os.kill(int(started[0][1]), signal.SIGKILL)
        await command.printed("serving metrics on port", times=3)
        served = [int(found[1]) for found in await command.printed(r"serving metrics on port (\d+)", times=3)]
        for slot in range(2):
            assert "glidemq_up" in await asyncio.to_thread(scraped, port + slot)
    assert sorted(served[:2]) == [port, port + 1]
    assert served[2] in served[:2]
    ran = [re.search(r"glidemq_job_run_seconds_count\{[^}]*\} (\S+)", text) for text in texts]
    # Those of the process are its own and come to the sum; those of the queue are the same everywhere.
    assert sorted(float(found[1]) if found else 0.0 for found in ran) == sorted(
        float(pids.count(int(child[1]))) for child in started
    )
    for text in texts:
        assert f'glidemq_jobs{{queue="{queue_name}",state="completed"}} 40.0' in text


def two_free_ports() -> int:
    """The first of two in a row."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("", 0))
            try:
                two.bind(("", one.getsockname()[1] + 1))
            except OSError:
                continue
            return int(one.getsockname()[1])


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())
