"""The figures of a gateway in Prometheus' text format, under the names that bunqueue gives them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from glidemq_py.gateway.commands.connection import list_workers
from glidemq_py.gateway.commands.cron import all_crons
from glidemq_py.gateway.config import MOST_QUEUES_VARIABLE, most_queues
from glidemq_py.gateway.figures import BUCKETS_S, Histogram, process_memory
from glidemq_py.gateway.listing import read_counts
from glidemq_py.gateway.session import Session
from glidemq_py.gateway.state import GatewayState

_SERIES: Final = {
    "waiting": "waiting", "prioritized": "prioritized", "delayed": "delayed", "active": "active", "dlq": "failed",
}  # fmt: skip
_DEFAULT_MOST: Final = 100


class _Fixed(Collector):
    """Returns metrics that were read before."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._metrics


async def exposition(session: Session) -> str:
    """Return the figures of this process and of all queues.

    `METRICS_MAX_QUEUES` in the environment limits the queues with series of their own (100).

    Raises:
        GlideMQConnectionError: If the server of the queues cannot be reached.
    """
    state, figures = session.state, session.state.figures
    queues = await session.state.shared(read_counts)
    _, workers = await list_workers(session)
    found: list[Metric] = []

    def gauge(name: str, text: str, value: float) -> None:
        found.append(GaugeMetricFamily(f"bunqueue_{name}", text, value=value))

    def counter(name: str, text: str, value: float) -> None:
        found.append(CounterMetricFamily(f"bunqueue_{name}", text, value=value))

    for name, column in (*_SERIES.items(), ("completed", "completed")):
        number = sum(counts[column] + (counts["paused"] if column == "waiting" else 0) for counts in queues.values())
        gauge(f"jobs_{name}", f"Jobs of all queues: {name}", number)
    for kind, total in figures.totals.items():
        counter(f"jobs_{kind}", f"Jobs {kind} through this process", total)
    gauge("uptime_seconds", "Time since the start of this process", figures.uptime_ms / 1_000)
    gauge("cron_jobs_registered", "Cron jobs of all queues", len(await all_crons(session)))
    gauge("workers_registered", "Workers of clients", workers["total"])
    gauge("workers_active", "Workers of clients that were heard of lately", workers["active"])
    gauge("worker_active_jobs", "Jobs that workers of clients run", workers["activeJobs"])
    gauge("worker_concurrency_slots", "Jobs that workers of clients can run at a time", workers["concurrencySlots"])
    counter("workers_processed", "Jobs processed by workers of clients", workers["totalProcessed"])
    counter("workers_failed", "Jobs failed by workers of clients", workers["totalFailed"])
    webhooks = await state.webhooks.registry.all()
    gauge("webhooks_registered", "Webhooks", len(webhooks))
    gauge("webhooks_enabled", "Webhooks that are enabled", sum(each.enabled for each, _ in webhooks.values()))
    connections = GaugeMetricFamily("bunqueue_connections", "Connections of clients", labels=["transport"])
    connections.add_metric(["tcp"], state.connections)
    for transport in ("websocket", "sse"):
        connections.add_metric([transport], state.http_clients[transport])
    found.append(connections)
    for problem in ("degraded", "disk_full"):
        gauge(f"storage_{problem}", "Always 0: without the server of the queues there are no figures", 0)
    for name, histogram in figures.durations.items():
        found.append(_histogram(f"bunqueue_{name}_duration_seconds", histogram))
    found += _of_queues(queues)
    found += [*_of_backups(state), *_of_memory()]
    build = GaugeMetricFamily("bunqueue_build_info", "Version of the gateway", labels=["version"])
    build.add_metric([state.version], 1)
    found.append(build)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(found))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


def _of_queues(queues: dict[str, dict[str, int]]) -> Iterable[Metric]:
    text = os.environ.get(MOST_QUEUES_VARIABLE)
    shown = list(queues)[: most_queues(text) if text else _DEFAULT_MOST]
    for name, column in _SERIES.items():
        family = GaugeMetricFamily(f"bunqueue_queue_jobs_{name}", f"Jobs of a queue: {name}", labels=["queue"])
        for queue in shown:
            family.add_metric([queue], queues[queue][column])
        yield family
    yield GaugeMetricFamily("bunqueue_queue_metrics_exported", "Queues with series of their own", value=len(shown))
    yield GaugeMetricFamily(
        "bunqueue_queue_metrics_omitted", "Queues without series of their own", value=len(queues) - len(shown)
    )


def _of_backups(state: GatewayState) -> Iterable[Metric]:
    options, figures = state.options, state.backup_figures
    is_enabled = options.backup is not None
    gauges = (
        ("enabled", "Whether this process backs up the queues", is_enabled),
        ("scheduler_running", "Whether this process looks for backups that are due", is_enabled),
        ("in_progress", "Backups that this process is making", figures.in_progress),
        ("interval_seconds", "Time between the backups of a queue", options.backup_every / 1_000 if is_enabled else 0),
        ("retention", "Backups of a queue that are kept", options.backup_keep if is_enabled else 0),
        ("consecutive_failures", "Failures in sequence, of the queue with most", figures.consecutive_failures),
        ("last_success_timestamp_seconds", "Time of the last complete backup, or 0", figures.last_success),
        ("last_failure_timestamp_seconds", "Time of the last failed backup, or 0", figures.last_failure),
        ("last_duration_seconds", "Duration of the last backup", figures.last_duration_s),
        ("last_size_bytes", "Compressed size of the last complete backup", figures.last_size),
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily(f"bunqueue_backup_{name}", text, value=value)
    counters = (
        ("attempts", "Backups that this process has started", figures.attempts),
        ("successes", "Backups that this process has completed", figures.successes),
        ("failures", "Backups that have failed in this process", figures.failures),
        ("overlap_rejections", "Always 0: a backup that another process is making is not due", 0),
    )
    for name, text, value in counters:
        yield CounterMetricFamily(f"bunqueue_backup_{name}", text, value=value)


def _of_memory() -> Iterable[Metric]:
    memory = process_memory()
    series = (
        ("bunqueue_process_heap_used_bytes", "Physical memory of the data of this process", memory.heap_used),
        ("bunqueue_process_heap_total_bytes", "Memory of the data of this process, with swap", memory.heap_total),
        ("bunqueue_process_resident_memory_bytes", "Physical memory of this process", memory.resident),
        ("process_heap_bytes", "Memory of the data of this process, with swap", memory.heap_total),
    )
    for name, text, value in series:
        if value is not None:
            yield GaugeMetricFamily(name, text, value=value)


def _histogram(name: str, histogram: Histogram) -> Metric:
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    sums = [sum(histogram.counts[: i + 1]) for i in range(len(bounds))]
    text = "Duration of the commands, without waiting for jobs"
    return HistogramMetricFamily(name, text, buckets=list(zip(bounds, sums, strict=True)), sum_value=histogram.total_s)
