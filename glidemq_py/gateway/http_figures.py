"""Answers of `/stats`, `/heapstats`, `/gc`, `/dashboard` and `/dashboard/queues`, for which there are no commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from glidemq_py.gateway.commands.monitoring import overview, summed
from glidemq_py.gateway.memory import memory_mb
from glidemq_py.gateway.table import Answer

if TYPE_CHECKING:
    from glidemq_py.gateway.session import Session

__all__ = ["compact", "dashboard", "dashboard_queues", "heap_stats", "stats"]

_MOST_LISTED: Final = 1_000
"""Workers and cron jobs of `/dashboard`."""
_PAGE, _MOST_PAGE = 100, 500
_MOST_DIGITS: Final = 9
_KINDS: Final = (("push", "pushed"), ("pull", "pulled"), ("complete", "completed"), ("fail", "failed"))


async def stats(session: Session, query: Mapping[str, str]) -> Answer:
    """Return the jobs of all queues by state, and the figures of this process."""
    state, figures = session.state, session.state.figures
    sums, schedulers = summed(await state.counts.get()), await state.schedulers.get()
    states = ("waiting", "prioritized", "delayed", "active", "completed", "waiting-children")
    return {
        "ok": True,
        "stats": {
            **{name: sums[name] for name in states}, "dlq": sums["failed"],
            **{f"total{kind.capitalize()}": figures.totals[kind] for _, kind in _KINDS},
            "uptime": figures.uptime_ms, "cronJobs": len(schedulers),
            "cronPending": sum(scheduler.next_run is not None for _, scheduler in schedulers),
            **{f"{name}PerSec": figures.rate(kind) for name, kind in _KINDS},
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
    found = await overview(session)
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
    found = await session.state.counts.get()
    limit = max(1, min(_number(query.get("limit"), _PAGE), _MOST_PAGE))
    offset = _number(query.get("offset"), 0)
    queues = [
        {
            "name": name, "waiting": counts["waiting"] + counts["paused"], "delayed": counts["delayed"],
            "active": counts["active"], "dlq": counts["failed"], "paused": counts["paused"] > 0,
        }
        for name, counts in list(found.items())[offset : offset + limit]
    ]  # fmt: skip
    return {
        "ok": True, "queues": queues, "total": len(found), "limit": limit, "offset": offset,
        "timestamp": time.time_ns() // 1_000_000,
    }  # fmt: skip


def _number(text: str | None, default: int) -> int:
    """Return the number of a text; the default if it is none."""
    if text is None or len(text) > _MOST_DIGITS or not (text.isascii() and text.isdigit()):
        return default
    return int(text)
