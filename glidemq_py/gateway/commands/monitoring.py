"""Commands that return figures: of this gateway process, and of the queues; and routes for which there is none."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from glidemq_py._core.record import JobState
from glidemq_py.errors import JobDataError
from glidemq_py.gateway.commands.connection import list_workers
from glidemq_py.gateway.commands.cron import all_crons, read_schedulers
from glidemq_py.gateway.figures import Figures, memory_mb
from glidemq_py.gateway.job_objects import read_priority_counts, read_wire_counts
from glidemq_py.gateway.listing import read_counts
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.session import Commands, Session
from glidemq_py.gateway.table import QUEUE, Answer, CommandError, Field, Given, Kind, check_field

COMMANDS: Final = Commands()

_MOST: Final = 2**53
_MOST_QUEUES: Final = 1_000
_PREVIEWED: Final = 10
_KINDS: Final = (("push", "pushed"), ("pull", "pulled"), ("complete", "completed"), ("fail", "failed"))
STATES: Final = ("waiting", "prioritized", "delayed", "active", "completed", "failed", "waiting-children", "paused")
_STORAGE: Final = {"diskFull": False, "error": None, "since": None}


def summed(queues: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the jobs of all queues by state; `waiting` includes those of paused queues."""
    sums = {state: sum(counts[state] for counts in queues.values()) for state in STATES}
    sums["waiting"] += sums["paused"]
    return sums


def jobs_of(sums: Mapping[str, int]) -> dict[str, int]:
    """Return the jobs of all queues by the states that bunqueue counts."""
    return {
        "waiting": sums["waiting"] + sums["prioritized"], "active": sums["active"], "delayed": sums["delayed"],
        "completed": sums["completed"], "dlq": sums["failed"],
    }  # fmt: skip


def _listed(name: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the jobs of a queue for lists of queues."""
    return {
        "name": name, "waiting": counts["waiting"] + counts["paused"], "delayed": counts["delayed"],
        "active": counts["active"], "dlq": counts["failed"], "paused": counts["paused"] > 0,
    }  # fmt: skip


async def _sums(session: Session) -> dict[str, int]:
    return summed(await session.state.shared(read_counts))


def _totals(figures: Figures) -> dict[str, int]:
    return {f"total{kind.capitalize()}": figures.totals[kind] for _, kind in _KINDS}


def _rates(figures: Figures) -> dict[str, float]:
    return {f"{name}PerSec": figures.rate(kind) for name, kind in _KINDS}


def _now() -> int:
    return time.time_ns() // 1_000_000


@COMMANDS("Stats", "monitoring", "")
async def _stats(session: Session, given: Given) -> Answer:
    """Count the jobs of all queues, and those of this process per second."""
    figures, sums = session.state.figures, await _sums(session)
    return {
        "stats": {
            **jobs_of(sums), "failed": figures.totals["failed"],
            "uptime": figures.uptime_ms, "pushPerSec": figures.rate("pushed"), "pullPerSec": figures.rate("pulled"),
        }
    }  # fmt: skip


@COMMANDS(
    "Metrics",
    "monitoring",
    "GET /metrics",
    Kind.ANY("queue"),
    Field("type"),
    Kind.INTEGER("start", -_MOST, _MOST, default=0),
    Kind.INTEGER("end", -_MOST, _MOST, default=-1),
)
async def _metrics(session: Session, given: Given) -> Answer:
    """Return the figures of this process, or with `queue` the completed or failed jobs of a queue per minute."""
    if given["queue"] is not None:
        return await _metrics_of_queue(session, given)
    figures = session.state.figures
    return {
        "metrics": {
            **_totals(figures),
            "avgLatencyMs": figures.durations["push"].mean_ms, "avgProcessingMs": figures.durations["ack"].mean_ms,
            "memoryUsageMb": memory_mb().get("rss", 0), "sqliteSizeMb": 0,
            "activeConnections": session.state.connections,
        }
    }  # fmt: skip


async def _metrics_of_queue(session: Session, given: Given) -> Answer:
    kind = given["type"]
    if kind not in ("completed", "failed"):
        raise CommandError("Metrics type must be 'completed' or 'failed'")
    queue = await session.state.queue(check_field(QUEUE, given["queue"]))
    found = await queue.get_metrics(kind, given["start"], given["end"])
    points = [point.count for point in found.data]
    newest = found.data[-1] if found.data else None
    meta = {
        "count": found.count, "prevTS": 0 if newest is None else newest.timestamp,
        "prevCount": 0 if newest is None else newest.count,
    }  # fmt: skip
    return {"data": {"meta": meta, "data": points, "count": len(points)}}


@COMMANDS("Prometheus", "monitoring", "")
async def _prometheus(session: Session, given: Given) -> Answer:
    """Return the figures in Prometheus' text format."""
    try:
        from glidemq_py.gateway.commands.prometheus import exposition
    except ImportError:
        raise CommandError('Prometheus requires prometheus-client: pip install "glidemq-py[gateway]"') from None
    return {"data": {"metrics": await exposition(session)}}


@COMMANDS("StorageStatus", "monitoring", "GET /storage")
async def _storage(session: Session, given: Given) -> Answer:
    """Ask Valkey whether it answers."""
    await session.state.transport.command("EXISTS", f"{session.state.options.prefix}:gateway:queues")
    return {"data": _STORAGE}


@COMMANDS("CompactMemory", "monitoring", "")
async def _compact(session: Session, given: Given) -> None:
    """Do nothing: a gateway keeps no jobs."""


# -- dashboard -------------------------------------------------------------------------------------------------


@COMMANDS("DashboardOverview", "monitoring", "")
async def _overview(session: Session, given: Given) -> Answer:
    """Return jobs, rates, latencies, workers and cron jobs."""
    figures, sums = session.state.figures, await _sums(session)
    listed, stats = await list_workers(session)
    durations = figures.durations
    return {
        "data": {
            "stats": {
                **jobs_of(sums), **_totals(figures), "uptime": figures.uptime_ms,
            },
            "throughput": _rates(figures),
            "latency": {
                "averages": {f"{name}Ms": each.mean_ms for name, each in durations.items()},
                "percentiles": {
                    name: {f"p{share}": each.quantile_ms(share / 100) for share in (50, 95, 99)}
                    for name, each in durations.items()
                },
            },
            "memory": memory_mb(), "collections": {"clientJobsTotal": len(session.state.held)},
            "workers": {"total": stats["total"], "active": stats["active"], "list": listed},
            "crons": await all_crons(session), "storage": _STORAGE, "timestamp": _now(),
        }
    }  # fmt: skip


@COMMANDS("DashboardQueues", "monitoring", "")
async def _dashboard_queues(session: Session, given: Given) -> Answer:
    """Return the jobs of each queue by state."""
    found = await session.state.shared(read_counts)
    queues = [
        {**_listed(name, counts), "prioritized": counts["prioritized"]}
        for name, counts in list(found.items())[:_MOST_QUEUES]
    ]
    return {"data": {"queues": queues, "timestamp": _now()}}


@COMMANDS("DashboardQueue", "monitoring", "GET /dashboard/queues/{queue}", QUEUE, is_flat=True)
async def _dashboard_queue(session: Session, given: Given) -> Answer:
    """Return the figures of a queue, and its first failed jobs."""
    queue = await session.queue(given)
    counts, priorities, paused, failed = await asyncio.gather(
        read_wire_counts(queue), read_priority_counts(queue), queue.is_paused(),
        queue.get_jobs(JobState.FAILED, 0, _PREVIEWED - 1),
    )  # fmt: skip
    preview: list[dict[str, Any]] = []
    for job in failed:
        try:
            data = job.data
        except JobDataError:
            data = None
        preview.append(
            {
                "id": await session.state.ids.on_wire(queue.name, job.id), "data": data,
                "attempts": job.attempts_made, "createdAt": job.timestamp,
            }
        )  # fmt: skip
    return {
        "data": {
            "name": wire_name(queue.name), "counts": counts, "paused": paused,
            "priorityCounts": priorities, "dlqPreview": preview,
            "timestamp": _now(),
        }
    }  # fmt: skip


_MOST_LISTED: Final = 1_000
"""Workers and cron jobs of `/dashboard`."""
_PAGE, _MOST_PAGE = 100, 500
_MOST_DIGITS: Final = 9


async def stats(session: Session, query: Mapping[str, str]) -> Answer:
    """Return the jobs of all queues by state, and the figures of this process."""
    state, figures = session.state, session.state.figures
    sums, schedulers = await _sums(session), await state.shared(read_schedulers)
    states = ("waiting", "prioritized", "delayed", "active", "completed", "waiting-children")
    return {
        "ok": True,
        "stats": {
            **{name: sums[name] for name in states}, "dlq": sums["failed"],
            **_totals(figures), "uptime": figures.uptime_ms, "cronJobs": len(schedulers),
            "cronPending": sum(scheduler.next_run is not None for _, scheduler in schedulers),
            **_rates(figures),
        },
        "memory": memory_mb(), "collections": {"clientJobsTotal": len(state.held)},
    }  # fmt: skip


async def heap_stats(session: Session, query: Mapping[str, str]) -> Answer:
    """Return the memory of this process. Types are not counted, because that would stop all commands meanwhile."""
    return {
        "ok": True, "memory": memory_mb(), "heap": {"objectCount": sys.getallocatedblocks()},
        "collections": {"clientJobsTotal": len(session.state.held)}, "topObjectTypes": [],
    }  # fmt: skip


async def compact(session: Session, query: Mapping[str, str]) -> Answer:
    """Return the memory of this process. Nothing is freed: a gateway keeps no jobs."""
    memory = memory_mb()
    return {"ok": True, "before": memory, "after": memory}


async def dashboard(session: Session, query: Mapping[str, str]) -> Answer:
    """Return the answer of `DashboardOverview`, whose lists have limits here."""
    found = (await _overview(session, {}))["data"]
    crons: Sequence[Any] = found["crons"]
    workers: Sequence[Any] = found["workers"]["list"]
    return {
        "ok": True, **found,
        "workers": {
            **found["workers"], "list": workers[:_MOST_LISTED], "truncated": len(workers) > _MOST_LISTED,
        },
        "crons": {"total": len(crons), "list": crons[:_MOST_LISTED], "truncated": len(crons) > _MOST_LISTED},
    }  # fmt: skip


async def dashboard_queues(session: Session, query: Mapping[str, str]) -> Answer:
    """Return a page of the queues."""
    found = await session.state.shared(read_counts)
    limit = max(1, min(_number(query.get("limit"), _PAGE), _MOST_PAGE))
    offset = _number(query.get("offset"), 0)
    queues = [_listed(*each) for each in list(found.items())[offset : offset + limit]]
    return {
        "ok": True, "queues": queues, "total": len(found), "limit": limit, "offset": offset,
        "timestamp": _now(),
    }  # fmt: skip


def _number(text: str | None, default: int) -> int:
    """Return the number of a text; the default if it is none."""
    if text is None or len(text) > _MOST_DIGITS or not (text.isascii() and text.isdigit()):
        return default
    return int(text)
