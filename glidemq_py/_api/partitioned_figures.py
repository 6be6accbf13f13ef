"""The figures of a partitioned queue, which are sums over its partitions, and its consistency check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from glidemq_py._api.partitions_protocol import Partitions
from glidemq_py._features.consistency.checking import CheckReport, Finding
from glidemq_py._features.failures import FailureStats
from glidemq_py._features.metrics import Metrics, MetricsPoint, bounds
from glidemq_py._features.metrics_by_name import MetricsByName, get_metrics_of_partitions

KeyT = TypeVar("KeyT")


async def get_features(self: Partitions) -> dict[str, str]:
    """See `Queue.get_features`; those of all partitions."""
    found: list[dict[str, str]] = await self.each("get_features")
    return {name: version for each in found for name, version in each.items()}


async def get_rank_counts(self: Partitions) -> dict[int, int]:
    """See `Queue.get_rank_counts`."""
    found: list[dict[int, int]] = await self.each("get_rank_counts")
    return dict(sorted(_added(found).items(), reverse=True))


async def get_metrics(self: Partitions, kind: Any, start: int = 0, end: int = -1) -> Metrics:
    """See `Queue.get_metrics`; the sums over the partitions."""
    await self.queues[0].get_metrics(kind, start, end)  # checks the arguments
    found: list[Metrics] = await self.each("get_metrics", kind)
    minutes: dict[int, list[MetricsPoint]] = {}
    for metrics in found:
        for point in metrics.data:
            minutes.setdefault(point.timestamp, []).append(point)
    data: list[MetricsPoint] = []
    for minute, points in sorted(minutes.items()):
        count = sum(point.count for point in points)
        duration = sum(point.avg_duration * point.count for point in points)
        data.append(MetricsPoint(timestamp=minute, count=count, avg_duration=round(duration / count)))
    first, stop = bounds(start, end, len(data))
    return Metrics(count=sum(metrics.count for metrics in found), data=tuple(data[first:stop]))


async def get_metrics_by_name(self: Partitions, *arguments: Any, **options: Any) -> list[MetricsByName]:
    """See `Queue.get_metrics_by_name`; the sums over the partitions."""
    return await get_metrics_of_partitions(self.queues, *arguments, **options)


async def get_failure_stats(self: Partitions) -> FailureStats:
    """See `Queue.get_failure_stats`; the sums over the partitions."""
    found: list[FailureStats] = await self.each("get_failure_stats")
    return FailureStats(
        kept=sum(each.kept for each in found), oldest=min(_known(each.oldest for each in found), default=None),
        newest=max(_known(each.newest for each in found), default=None),
        awaiting_retry=sum(each.awaiting_retry for each in found),
        since=min(_known(each.since for each in found), default=None), total=sum(each.total for each in found),
        by_reason=_added(each.by_reason for each in found), by_name=_added(each.by_name for each in found),
        counts=_added(each.counts for each in found),
    )  # fmt: skip


async def check(self: Partitions, **options: Any) -> CheckReport:
    """See `Queue.check`; details of a finding name the partition."""
    findings: list[Finding] = []
    jobs = groups = looks = 0
    for queue in self.queues:
        found = await queue.check(**options)
        findings += (replace(each, detail=f"{each.detail} (partition {found.queue!r})") for each in found.findings)
        jobs, groups, looks = jobs + found.jobs, groups + found.groups, max(looks, found.looks)
    return CheckReport(queue=self.home.name, findings=tuple(findings), jobs=jobs, groups=groups, looks=looks)


def _known(times: Iterable[int | None]) -> list[int]:
    return [time for time in times if time is not None]


def _added(counts: Iterable[Mapping[KeyT, int]]) -> dict[KeyT, int]:
    """Return the sums of counts by key."""
    sums: dict[KeyT, int] = {}
    for each in counts:
        for key, count in each.items():
            sums[key] = sums.get(key, 0) + count
    return sums
