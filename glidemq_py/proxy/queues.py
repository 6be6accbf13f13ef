"""Endpoints for whole queues: state, rate limit, cleaning, schedulers; usage and budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypedDict

from starlette.responses import Response

from glidemq_py._api.queue_names import get_usage_summary
from glidemq_py._core.record import JobCounts, JobState
from glidemq_py._features import usage
from glidemq_py._features.metrics import Metrics
from glidemq_py._features.schedulers.area import iter_schedulers
from glidemq_py._features.schedulers.entry import JobScheduler
from glidemq_py._job.job import Job
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.proxy import models as given
from glidemq_py.proxy.jobs import JobPage, job_view
from glidemq_py.proxy.models import Count, NextCursor, Removed
from glidemq_py.proxy.responses import (
    JOBS_PAGE,
    ONE_PAGE,
    NotFoundError,
    PageQuery,
    camel,
    encode,
    fill_page,
    listed_jobs,
    open_cursor,
    page_answer,
    seal_cursor,
    view_of,
)
from glidemq_py.proxy.routing import Endpoints
from glidemq_py.proxy.schemas import Schema, model_of, schema_of
from glidemq_py.proxy.state import OpenQueue, ProxyState

endpoints = Endpoints("/queues/{name}")

Finished = Literal["completed", "failed"]
_FINISHED: Final = schema_of(Finished)
_PLACE: Final[Schema] = {"type": "integer", "minimum": -(2**53), "maximum": 2**53}


class MetricsMeta(TypedDict):
    """The unit of the metrics."""

    resolution: str


_Metrics = model_of(Metrics, meta=MetricsMeta)


class WorkerView(TypedDict):
    """A live worker."""

    id: str
    addr: str
    pid: int
    startedAt: int
    age: int
    activeJobs: int


class Workers(TypedDict):
    """The live workers."""

    workers: list[WorkerView]


class Drained(TypedDict):
    """The waiting jobs were deleted."""

    delayed: bool
    drained: bool


class Requeued(TypedDict):
    """The number of requeued jobs."""

    retried: Count


class Cleaned(TypedDict):
    """The ids of the deleted jobs."""

    removed: list[str]


class RateLimitView(TypedDict):
    """At most `max` jobs per `duration` ms."""

    max: int
    duration: int


class RateLimitState(TypedDict):
    """The rate limit of a queue."""

    rateLimit: RateLimitView | None


class RateLimitRemoved(TypedDict):
    """The rate limit was removed."""

    removed: bool
    rateLimit: None


# -- state -----------------------------------------------------------------------------------------------------


@endpoints("GET", "/counts", JobCounts)
async def counts(queue: OpenQueue) -> Any:
    """Count the jobs in each state."""
    return camel(await queue.get_job_counts())


@endpoints(
    "GET", "/metrics", _Metrics,
    query={"type": _FINISHED, "start": {**_PLACE, "default": 0}, "end": {**_PLACE, "default": -1}},
)  # fmt: skip
async def metrics(queue: OpenQueue, type: Finished, start: int, end: int) -> Any:
    """Return completed or failed jobs per minute."""
    found = await queue.get_metrics(type, start, end)
    return {**camel(found), "meta": {"resolution": "minute"}}


@endpoints("GET", "/workers")
async def workers(queue: OpenQueue) -> Workers:
    """List the live workers."""
    return {"workers": [view_of(WorkerView, each, addr=each.host) for each in await queue.get_workers()]}


@endpoints("GET", "/suspended", JobPage, query=JOBS_PAGE)
async def suspended(queue: OpenQueue, proxy: ProxyState, page: PageQuery) -> Response:
    """List the suspended jobs."""

    async def show(jobs: Sequence[Job]) -> list[bytes | None]:
        infos = await asyncio.gather(*(queue.jobs.get_suspend_info(job.id) for job in jobs))
        views = [await job_view(job, with_data=not page.exclude_data) for job in jobs]
        return [encode({**view, "suspend": camel(info)}) for view, info in zip(views, infos, strict=True)]

    links, most = await queue._links(), proxy.options.max_response
    return page_answer("jobs", *await listed_jobs(links, JobState.SUSPENDED, page, show, max_bytes=most))


# -- cleaning --------------------------------------------------------------------------------------------------


@endpoints("POST", "/drain", delayed=True)
async def drain(queue: OpenQueue, body: given.Drain) -> Drained:
    """Delete the waiting jobs."""
    delayed = body.get("delayed", False)
    await queue.drain(delayed=delayed)
    return {"delayed": delayed, "drained": True}


@endpoints("POST", "/retry", count=100)
async def retry(queue: OpenQueue, body: given.RetryJobs) -> Requeued:
    """Requeue failed jobs."""
    return {"retried": await queue.retry_jobs(body["count"] or None)}


@endpoints(
    "DELETE", "/clean",
    query={
        "state": _FINISHED, "age": {"type": "integer", "minimum": 0, "maximum": 315_360_000},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100_000, "default": 1_000},
    },
)  # fmt: skip
async def clean(queue: OpenQueue, state: Finished, age: int, limit: int) -> Cleaned:
    """Delete finished jobs older than age (seconds)."""
    return {"removed": await queue.clean(age * 1_000, limit, state)}


# -- rate limit ------------------------------------------------------------------------------------------------


@endpoints("GET", "/rate-limit")
async def rate_limit(queue: OpenQueue) -> RateLimitState:
    """Return the queue's rate limit."""
    return {"rateLimit": camel((await queue.limits.get()).rate_limit)}


@endpoints("PUT", "/rate-limit", body=given.NewRateLimit, max=100, duration=1_000)
async def set_rate_limit(queue: OpenQueue, body: RateLimitView) -> RateLimitState:
    """Set the queue's rate limit."""
    await queue.limits.set_rate_limit(body["max"], body["duration"])
    return {"rateLimit": body}


@endpoints("DELETE", "/rate-limit")
async def no_rate_limit(queue: OpenQueue) -> RateLimitRemoved:
    """Remove the queue's rate limit."""
    await queue.limits.remove_rate_limit()
    return {"removed": True, "rateLimit": None}


# -- schedulers ------------------------------------------------------------------------------------------------


class StoredSchedule(TypedDict, total=False):
    """A scheduler as stored."""

    every: int
    pattern: str
    repeatAfterComplete: int
    tz: str
    startDate: int
    endDate: int
    limit: int
    misfire: str
    dayMatch: str
    overlap: str
    skipWithoutWorker: bool
    template: dict[str, Any]
    nextRun: int
    lastRun: int
    iterationCount: Count
    lastJobId: str
    skippedCount: Count
    lastSkipped: int
    buffered: bool
    paused: bool
    pausedAt: int


class SchedulerView(TypedDict):
    """A scheduler."""

    name: str
    entry: StoredSchedule


class SchedulerPage(TypedDict):
    """A page of schedulers."""

    schedulers: list[SchedulerView]
    cursor: NextCursor


class Upserted(TypedDict):
    """The scheduler was created or updated."""

    upserted: bool


@endpoints("GET", "/schedulers", SchedulerPage, query=ONE_PAGE)
async def schedulers(queue: OpenQueue, proxy: ProxyState, page: PageQuery) -> Response:
    """List the queue's schedulers."""
    place = f"schedulers {queue.name}"
    after = open_cursor(place, page.cursor)
    # They are stored without an order: keep only those of this page, and one more.
    found: dict[str, bytes] = {}
    for link in await queue._links():
        async for each in iter_schedulers(link):
            if each.name > after:
                found[each.name] = encode(_scheduler_view(each))
            if len(found) > 2 * page.limit:
                found = _first(found, page.limit + 1)
    found = _first(found, page.limit + 1)
    texts = fill_page(list(found.values())[: page.limit], proxy.options.max_response)
    cursor = seal_cursor(place, list(found)[len(texts) - 1]) if len(texts) < len(found) else ""
    return page_answer("schedulers", texts, cursor)


def _first(found: dict[str, bytes], count: int) -> dict[str, bytes]:
    return {name: found[name] for name in sorted(found)[:count]}


def _scheduler_view(scheduler: JobScheduler) -> Any:
    entry: Any = {
        **scheduler.schedule.to_wire(),
        "template": {"name": scheduler.job_name, "data": scheduler.data, "opts": scheduler.options.to_wire()},
        "nextRun": scheduler.next_run, "lastRun": scheduler.last_run, "iterationCount": scheduler.iteration_count,
        "lastJobId": scheduler.last_job_id, "skippedCount": scheduler.skipped_count or None,
        "lastSkipped": scheduler.last_skipped, "buffered": scheduler.buffered or None,
        "paused": scheduler.paused or None, "pausedAt": scheduler.paused_since,
    }  # fmt: skip
    return {"name": scheduler.name, "entry": {key: value for key, value in entry.items() if value is not None}}


def _shown(found: JobScheduler | None, name: str) -> Any:
    if found is None:
        raise _no_scheduler(name)
    return _scheduler_view(found)


@endpoints("GET", "/schedulers/{scheduler}", SchedulerView)
async def scheduler(queue: OpenQueue, scheduler: str) -> Any:
    """Return a scheduler."""
    return _shown(await queue.schedulers.get(scheduler), scheduler)


@endpoints(
    "PUT", "/schedulers/{scheduler}",
    schedule={"pattern": "0 3 * * *", "tz": "Europe/Paris"},
    template={"name": "report", "data": {"kind": "daily"}, "opts": {"attempts": 3}},
)  # fmt: skip
async def put_scheduler(queue: OpenQueue, scheduler: str, body: given.PutScheduler) -> Upserted:
    """Create or update a scheduler."""
    template: dict[str, Any] | None = None
    if "template" in body:
        template = {"options" if name == "opts" else name: value for name, value in body["template"].items()}
    await queue.schedulers.upsert(scheduler, **body["schedule"], template=template)
    return {"upserted": True}


@endpoints("POST", "/schedulers/{scheduler}/pause", SchedulerView)
async def pause_scheduler(queue: OpenQueue, scheduler: str) -> Any:
    """Pause a scheduler: it adds no jobs until it is resumed."""
    return _shown(await queue.schedulers.pause(scheduler), scheduler)


@endpoints("POST", "/schedulers/{scheduler}/resume", SchedulerView)
async def resume_scheduler(queue: OpenQueue, scheduler: str) -> Any:
    """Resume a scheduler; it is deleted if no due time is left."""
    return _shown(await queue.schedulers.resume(scheduler), scheduler)


@endpoints("DELETE", "/schedulers/{scheduler}")
async def remove_scheduler(queue: OpenQueue, scheduler: str) -> Removed:
    """Remove a scheduler; its jobs are kept."""
    if not await queue.schedulers.remove(scheduler):
        raise _no_scheduler(scheduler)
    return {"removed": True}


def _no_scheduler(name: str) -> NotFoundError:
    return NotFoundError(f"scheduler {name!r} not found")


# -- usage -----------------------------------------------------------------------------------------------------

_UsageSummary = model_of(usage.UsageSummary, {"bucketSize": "bucketSizeMs"})

usage_endpoints = Endpoints()


@usage_endpoints("GET", "/queues/{name}/flows/{id}/usage", usage.FlowUsage)
async def flow_usage(queue: OpenQueue, id: str) -> Any:
    """Return the usage of a job and its children."""
    used = await queue.usage.get_flow(id)
    if not used.job_count and await queue.get_job(id, exclude_data=True) is None:
        raise NotFoundError(f"flow {id!r} not found")
    return camel(used)


@usage_endpoints("GET", "/queues/{name}/flows/{id}/budget", usage.FlowBudget)
async def flow_budget(queue: OpenQueue, id: str) -> Any:
    """Return a flow's budget."""
    budget = await queue.usage.get_budget(id)
    if budget is None:
        raise NotFoundError(f"flow {id!r} has no budget")
    return camel(budget)


_EPOCH: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 253_402_300_799_000, "default": None}
_WINDOW: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 315_360_000_000, "default": None}


@usage_endpoints(
    "GET", "/usage/summary", _UsageSummary,
    query={
        "queues": {"type": "string", "description": "Comma-separated names.", "default": None},
        "start": _EPOCH, "end": _EPOCH, "window": _WINDOW, "windowMs": _WINDOW,
    },
)  # fmt: skip
async def usage_summary(
    proxy: ProxyState, queues: str | None, start: int | None, end: int | None, window: int | None,
    window_ms: int | None,
) -> Any:  # fmt: skip
    """Return the usage of queues in a period."""
    if window is not None and window_ms is not None:
        raise GlideMQValidationError("window", window, "must be given once")
    names = None if queues is None else [name for name in queues.split(",") if name]
    for name in names or ():
        proxy.check_allowed(name)
    if names is None and proxy.options.queues is not None:
        names = sorted(proxy.options.queues)
    found = await get_usage_summary(
        proxy.connection, prefix=proxy.options.prefix, queues=names, start=_moment(start), end=_moment(end),
        window=window or window_ms or None,
    )  # fmt: skip
    view = camel(found)
    view["bucketSizeMs"] = view.pop("bucketSize")
    return view


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1_000, UTC)
