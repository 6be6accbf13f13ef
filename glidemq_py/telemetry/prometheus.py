"""Prometheus metrics (extra ``prometheus``): of queues, read at each scrape, and of this process.

docs/operate/prometheus.md describes names and labels.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from glidemq_py._client.counting import FIGURES, complete_counts
from glidemq_py._client.portal import BlockingTransport, drive
from glidemq_py._client.transport import BlockingConnection, ConnectionSource, Transport
from glidemq_py._core import __version__
from glidemq_py._core.calls.administration import Gauges, gauges
from glidemq_py._core.checks import check_int, check_iterable
from glidemq_py._core.forks import new_lock
from glidemq_py._core.keys import DEFAULT_PREFIX, QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.stored import read_layout
from glidemq_py.errors import GlideMQError, GlideMQValidationError
from glidemq_py.telemetry.names import Meter, Start
from glidemq_py.telemetry.state import TELEMETRY

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover
    raise ImportError('Prometheus metrics require prometheus-client: pip install "glidemq-py[prometheus]"') from error

__all__ = ["ProcessMetrics", "QueueCollector"]

_log = get_logger(__name__)

_PAUSED: Final = FIGURES.index("paused")
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class QueueCollector(Collector):
    """Collects the metrics of queues from the server.

    A scrape makes one call per queue, whose cost does not depend on the size of the queue, one short read of its number
    of partitions, and one more call per 500 ordering groups if there are more than 500. A partitioned queue has one
    call per partition, and the metrics of the whole queue. Register the collector in one scraped process per server:
    ``REGISTRY.register(QueueCollector(["mails"]))``. It connects at the first scrape, blocking the thread of the
    scrape.

    Args:
        queues: names of the queues.
        connection: as for `Queue`: a URL, `ConnectionOptions`, or None.
        prefix: first part of every key.

    Raises:
        GlideMQValidationError: a name is invalid.
    """

    def __init__(
        self,
        queues: Iterable[str],
        connection: BlockingConnection | ConnectionSource = None,
        *,
        prefix: str = DEFAULT_PREFIX,
    ) -> None:
        names = dict.fromkeys(check_iterable("queues", queues, "names"))
        self._keys = [QueueKeys(prefix, name) for name in names]
        self._connection = connection
        self._transport: BlockingTransport | None = None
        self._lock = new_lock()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics without samples, so that registration does not connect to the server."""
        return _families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the metrics of all queues. Server errors are logged and reported as ``glidemq_up`` 0, never raised."""
        up, jobs, paused, oldest, workers, outbox = families = _families()
        with self._lock:
            for keys in self._keys:
                labels = [keys.name]
                found = self._read(keys)
                up.add_metric(labels, float(found is not None))
                if found is None:
                    continue
                for state, number in zip(FIGURES, found.counts, strict=True):
                    if state != "paused":
                        jobs.add_metric([keys.name, state], number)
                paused.add_metric(labels, found.counts[_PAUSED])
                oldest.add_metric(labels, found.oldest / 1000)
                workers.add_metric(labels, found.workers)
                outbox.add_metric(labels, found.outbox)
        yield from families

    def _read(self, keys: QueueKeys) -> Gauges | None:
        try:
            if self._transport is None:
                self._transport = BlockingTransport(self._connection)
            return drive(_read_gauges(self._transport.transport, keys))
        except GlideMQError as error:
            _log.warning("queue %r: reading metrics failed: %s", keys.name, error)
            return None

    def close(self) -> None:
        """Close the connection if the collector opened it. A later scrape connects again."""
        with self._lock:
            transport, self._transport = self._transport, None
            if transport is not None:
                transport.close()


async def _read_gauges(transport: Transport, keys: QueueKeys) -> Gauges:
    layout = await read_layout(transport, keys)
    names = (keys.name,) if layout is None else layout.names
    found: list[Gauges] = []
    for name in names:
        meta = QueueKeys(keys.prefix, name).meta
        part = await transport.call(gauges(meta))
        found.append(part._replace(counts=await complete_counts(transport, meta, part.counts)))
    return found[0] if layout is None else _of_whole_queue(found)


def _of_whole_queue(parts: Sequence[Gauges]) -> Gauges:
    """Return the metrics of a partitioned queue: sums, the greatest age, and paused if a partition is."""
    numbers = [sum(column) for column in zip(*(part.counts for part in parts), strict=True)]
    numbers[_PAUSED] = max(part.counts[_PAUSED] for part in parts)
    return parts[0]._replace(
        counts=numbers, oldest=max(part.oldest for part in parts), outbox=sum(part.outbox for part in parts),
        workers=max(part.workers for part in parts),  # a worker is registered in every partition
    )  # fmt: skip


def _families() -> tuple[GaugeMetricFamily, ...]:
    return (
        GaugeMetricFamily("glidemq_up", "1 if the queue's server could be read, else 0.", labels=["queue"]),
        GaugeMetricFamily("glidemq_jobs", "Jobs by state.", labels=["queue", "state"]),
        GaugeMetricFamily("glidemq_paused", "1 if the queue is paused, else 0.", labels=["queue"]),
        GaugeMetricFamily(
            "glidemq_oldest_waiting_age_seconds",
            "Time since the oldest waiting job became ready.",
            labels=["queue"],
        ),
        GaugeMetricFamily("glidemq_workers", "Workers with a heartbeat in the last minute.", labels=["queue"]),
        GaugeMetricFamily("glidemq_outbox_entries", "Pending outbox entries.", labels=["queue"]),
    )


def _bounds(buckets: Iterable[float]) -> tuple[float, ...]:
    bounds: tuple[Any, ...] = tuple(check_iterable("buckets", buckets, "numbers"))
    numbers = all(isinstance(bound, (int, float)) and not isinstance(bound, bool) for bound in bounds)
    if not (numbers and bounds and all(low < high for low, high in pairwise(bounds)) and bounds[0] > 0):
        raise GlideMQValidationError("buckets", bounds, "must be positive numbers in ascending order")
    return bounds


OTHER: Final = "_other"
"""Value of a label that has too many values."""
_MAX_NAMES: Final = 10_000
_SCHEDULES: Final = 1_000


class _Labels:
    """The values of a label per queue, up to a maximum; further ones are counted together."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._known: dict[str, set[str]] = {}

    def of(self, queue: str, value: str) -> str:
        """Return the value of the label."""
        known = self._known.setdefault(queue, set())
        if value not in known:
            if len(known) >= self._maximum:
                return OTHER
            known.add(value)
        return value


class ProcessMetrics(Meter):
    """Records the operations of the queues and workers of this process until `close`.

    Args:
        registry: registry of the metrics.
        buckets: upper bounds of the histograms in seconds, in ascending order.
        names: maximum number of job names per queue that become a label ``name`` of the metrics of jobs; further names
            are counted together as "_other". 0, the default, omits the label.

    Raises:
        GlideMQValidationError: an option is invalid, or the registry already contains these metrics.
    """

    def __init__(
        self, registry: CollectorRegistry = REGISTRY, *, buckets: Iterable[float] = _SECONDS, names: int = 0
    ) -> None:
        bounds = _bounds(buckets)
        check_int("names", names, 0, _MAX_NAMES)
        if not isinstance(registry, CollectorRegistry):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("registry", registry, "must be a prometheus_client.CollectorRegistry")
        self._registry = registry
        self._names = _Labels(names)
        self._by_name = names > 0
        self._schedules = _Labels(_SCHEDULES)
        labels = ["queue", "name"] if names else ["queue"]
        given: Any = {"registry": registry}
        try:
            self._added = Counter("glidemq_jobs_added", "Jobs that were added.", labels, **given)
        except ValueError:
            raise GlideMQValidationError("registry", registry, "already contains these metrics") from None
        self._add_errors = Counter("glidemq_add_errors", "Adds that failed.", ["queue", "error"], **given)
        self._wait = Histogram(
            "glidemq_job_wait_seconds", "Time from ready to the start of the first attempt.", labels,
            buckets=bounds, **given,
        )  # fmt: skip
        self._late = Histogram(
            "glidemq_job_lateness_seconds", "Time from the due time of a delayed job to its start.",
            labels, buckets=bounds, **given,
        )  # fmt: skip
        self._run = Histogram("glidemq_job_run_seconds", "Run time of handlers.", labels, buckets=bounds, **given)
        self._attempts = Counter("glidemq_attempts", "Attempts by outcome.", [*labels, "outcome"], **given)
        self._steps = Counter("glidemq_steps", "Steps of handlers by new state.", [*labels, "state"], **given)
        self._redelivered = Counter(
            "glidemq_redeliveries", "Stalled jobs that were returned to waiting.", ["queue"], **given
        )
        self._lost = Counter(
            "glidemq_stalled_failures", "Jobs that failed because they stalled too often.", ["queue"], **given
        )
        self._stale = Counter(
            "glidemq_stale_attempts", "Attempts whose result was rejected: another worker had locked the job.",
            ["queue"], **given,
        )  # fmt: skip
        self._fires = Counter(
            "glidemq_schedule_jobs", "Jobs that schedulers have added.", ["queue", "schedule"], **given
        )
        self._fire_late = Histogram(
            "glidemq_schedule_lateness_seconds", "Time from the due time of a scheduler to the add of its job.",
            ["queue"], buckets=bounds, **given,
        )  # fmt: skip
        self._interruptions = Counter(
            "glidemq_connection_interruptions", "Interruptions of connections to the server.", ["reason"], **given
        )
        self._build = Gauge(
            "glidemq_build_info", "1, with the versions of this process.", ["version", "python", "glide"], **given
        )
        self._build.labels(__version__, platform.python_version(), _glide_version()).set(1)
        TELEMETRY.add_meter(self)

    def close(self) -> None:
        """Stop recording and unregister the metrics."""
        TELEMETRY.remove_meter(self)
        for each in (self._added, self._add_errors, self._wait, self._late, self._run, self._attempts,
                     self._steps, self._redelivered, self._lost, self._stale, self._fires, self._fire_late,
                     self._interruptions, self._build):  # fmt: skip
            with contextlib.suppress(KeyError):
                self._registry.unregister(each)

    def _labels(self, queue: str, name: str) -> tuple[str, ...]:
        return (queue, self._names.of(queue, name)) if self._by_name else (queue,)

    def sent(
        self, queue: str, operation: str, jobs: Sequence[str], seconds: float, error: str | None,
        server: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """See `Meter`."""
        if error is not None:
            self._add_errors.labels(queue, error).inc()
            return
        for labels, number in Tally(self._labels(queue, name) for name in jobs).items():
            self._added.labels(*labels).inc(number)

    def began(self, queue: str, jobs: Sequence[Start], server: Mapping[str, Any]) -> None:
        """See `Meter`."""
        for job in jobs:
            labels = self._labels(queue, job.name)
            if job.wait is not None:
                self._wait.labels(*labels).observe(job.wait)
            if job.late is not None:
                self._late.labels(*labels).observe(job.late)

    def ran(
        self, queue: str, jobs: Sequence[Start], seconds: float, error: str | None, server: Mapping[str, Any]
    ) -> None:
        """See `Meter`. A batch of several names is counted for the first."""
        self._run.labels(*self._labels(queue, jobs[0].name)).observe(seconds)

    def job_reported(self, queue: str, name: str, outcome: str) -> None:
        """See `Meter`."""
        if outcome == "stale":
            self._stale.labels(queue).inc()
        else:
            self._attempts.labels(*self._labels(queue, name), outcome).inc()

    def step_stored(self, queue: str, name: str, state: str) -> None:
        """See `Meter`."""
        self._steps.labels(*self._labels(queue, name), state).inc()

    def fired(self, queue: str, schedule: str, jobs: int, late: float) -> None:
        """See `Meter`."""
        self._fires.labels(queue, self._schedules.of(queue, schedule)).inc(jobs)
        self._fire_late.labels(queue).observe(late)

    def interrupted(self, reason: str) -> None:
        """See `Meter`."""
        self._interruptions.labels(reason).inc()

    def stalled(self, queue: str, recovered: int, failed: int) -> None:
        """See `Meter`."""
        self._redelivered.labels(queue).inc(recovered)
        self._lost.labels(queue).inc(failed)


def _glide_version() -> str:
    try:
        return importlib.metadata.version("valkey-glide")
    except importlib.metadata.PackageNotFoundError:
        return ""
