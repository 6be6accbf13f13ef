"""Endpoints for whole queues: state, rate limit, cleaning; usage and budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Body, Query
from pydantic import WithJsonSchema
from starlette.responses import Response

from glidemq_py._api.queue_names import get_usage_summary
from glidemq_py._core.record import JobCounts, JobState
from glidemq_py._features import usage
from glidemq_py._features.metrics import Metrics, MetricsPoint
from glidemq_py._job.job import Job
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.proxy import models as given
from glidemq_py.proxy.jobs import JobPage, job_view
from glidemq_py.proxy.models import Count, ResponseModel, like, model_of
from glidemq_py.proxy.responses import JobsPage, NotFoundError, Whole, answer, camel, encode, listed_jobs, page_answer
from glidemq_py.proxy.routing import endpoints, with_example
from glidemq_py.proxy.state import OpenQueue, State

__all__ = ["FlowBudget", "FlowUsage", "router", "usage_router"]

router = endpoints("/queues/{name}")

_Finished = Annotated[Literal["completed", "failed"], Query()]
_Place = Annotated[int, Query(ge=-(2**53), le=2**53), Whole]


class PauseState(ResponseModel):
    """Whether the queue is paused."""

    paused: bool


_Counts = model_of(JobCounts)


class MetricsMeta(ResponseModel):
    """The unit of the metrics."""

    resolution: str


_Metrics = model_of(Metrics, data=list[Annotated[Any, like(model_of(MetricsPoint))]], meta=MetricsMeta)


class WorkerView(ResponseModel):
    """A live worker."""

    id: str
    addr: str
    pid: int
    startedAt: int
    age: int
    activeJobs: int


class Workers(ResponseModel):
    """The live workers."""

    workers: list[WorkerView]


class Drained(ResponseModel):
    """The waiting jobs were deleted."""

    delayed: bool
    drained: bool


class Requeued(ResponseModel):
    """The number of requeued jobs."""

    retried: Count


class Cleaned(ResponseModel):
    """The ids of the deleted jobs."""

    removed: list[str]


class RateLimitView(ResponseModel):
    """At most `max` jobs per `duration` ms."""

    max: int
    duration: int


class RateLimitState(ResponseModel):
    """The rate limit of a queue."""

    rateLimit: RateLimitView | None


class RateLimitRemoved(ResponseModel):
    """The rate limit was removed."""

    removed: bool
    rateLimit: None


# -- state -----------------------------------------------------------------------------------------------------


@router.post("/pause", summary="Pause the queue; active jobs keep running", response_model=PauseState)
async def pause(queue: OpenQueue) -> Response:
    await queue.pause()
    return answer({"paused": True})


@router.post("/resume", summary="Resume the queue", response_model=PauseState)
async def resume(queue: OpenQueue) -> Response:
    await queue.resume()
    return answer({"paused": False})


@router.get("/counts", summary="Count the jobs in each state", response_model=_Counts)
async def counts(queue: OpenQueue) -> Response:
    return answer(camel(await queue.get_job_counts()))


@router.get("/metrics", summary="Return completed or failed jobs per minute", response_model=_Metrics)
async def metrics(queue: OpenQueue, type: _Finished, start: _Place = 0, end: _Place = -1) -> Response:
    found = await queue.get_metrics(type, start, end)
    return answer({**camel(found), "meta": {"resolution": "minute"}})


@router.get("/workers", summary="List the live workers", response_model=Workers)
async def workers(queue: OpenQueue) -> Response:
    found: list[WorkerView] = [
        {
            "id": each.id, "addr": each.host, "pid": each.pid, "startedAt": each.started_at, "age": each.age,
            "activeJobs": each.active_jobs,
        }
        for each in await queue.get_workers()
    ]  # fmt: skip
    return answer({"workers": found})


@router.get("/suspended", summary="List the suspended jobs", response_model=JobPage)
async def suspended(queue: OpenQueue, proxy: State, page: JobsPage) -> Response:
    async def show(jobs: Sequence[Job[Any, Any]]) -> list[bytes | None]:
        infos = await asyncio.gather(*(queue.jobs.get_suspend_info(job.id) for job in jobs))
        views = [await job_view(job, with_data=not page.exclude_data) for job in jobs]
        return [encode({**view, "suspend": camel(info)}) for view, info in zip(views, infos, strict=True)]

    links, most = await queue._links(), proxy.options.max_response
    return page_answer("jobs", *await listed_jobs(links, JobState.SUSPENDED, page, show, max_bytes=most))


# -- cleaning --------------------------------------------------------------------------------------------------


@router.post(
    "/drain", summary="Delete the waiting jobs", response_model=Drained, openapi_extra=with_example(delayed=True)
)
async def drain(queue: OpenQueue, body: given.Drain = {}) -> Response:  # noqa: B006  # never changed
    delayed = body.get("delayed", False)
    await queue.drain(delayed=delayed)
    return answer({"delayed": delayed, "drained": True})


@router.post("/retry", summary="Requeue failed jobs", response_model=Requeued, openapi_extra=with_example(count=100))
async def retry(queue: OpenQueue, body: given.RetryJobs) -> Response:
    return answer({"retried": await queue.retry_jobs(body["count"] or None)})


@router.delete(
    "/clean", summary="Delete finished jobs older than age (seconds)", response_model=Cleaned
)  # fmt: skip
async def clean(
    queue: OpenQueue, state: _Finished, age: Annotated[int, Query(ge=0, le=315_360_000), Whole],
    limit: Annotated[int, Query(ge=1, le=100_000), Whole] = 1_000,
) -> Response:  # fmt: skip
    return answer({"removed": await queue.clean(age * 1_000, limit, state)})


# -- rate limit ------------------------------------------------------------------------------------------------


@router.get("/rate-limit", summary="Return the queue's rate limit", response_model=RateLimitState)
async def rate_limit(queue: OpenQueue) -> Response:
    return answer({"rateLimit": camel((await queue.limits.get()).rate_limit)})


@router.put(
    "/rate-limit", summary="Set the queue's rate limit", response_model=RateLimitState,
    openapi_extra=with_example(max=100, duration=1_000),
)  # fmt: skip
async def set_rate_limit(queue: OpenQueue, body: Annotated[Any, Body(), like(given.NewRateLimit)]) -> Response:
    await queue.limits.set_rate_limit(body["max"], body["duration"])
    return answer({"rateLimit": body})


@router.delete("/rate-limit", summary="Remove the queue's rate limit", response_model=RateLimitRemoved)
async def no_rate_limit(queue: OpenQueue) -> Response:
    await queue.limits.remove_rate_limit()
    return answer({"removed": True, "rateLimit": None})


FlowUsage = model_of(usage.FlowUsage)
FlowBudget = model_of(usage.FlowBudget)
_QueueUsage = model_of(usage.QueueUsage)
_UsageSummary = model_of(
    usage.UsageSummary, {"bucketSize": "bucketSizeMs"}, perQueue=dict[str, Annotated[Any, like(_QueueUsage)]]
)

usage_router = endpoints()


@usage_router.get(
    "/queues/{name}/flows/{id}/usage", summary="Return the usage of a job and its children", response_model=FlowUsage
)
async def flow_usage(queue: OpenQueue, id: given.JobId) -> Response:
    used = await queue.usage.get_flow(id)
    if not used.job_count and await queue.get_job(id, exclude_data=True) is None:
        raise NotFoundError(f"flow {id!r} not found")
    return answer(camel(used))


@usage_router.get("/queues/{name}/flows/{id}/budget", summary="Return a flow's budget", response_model=FlowBudget)
async def flow_budget(queue: OpenQueue, id: given.JobId) -> Response:
    budget = await queue.usage.get_budget(id)
    if budget is None:
        raise NotFoundError(f"flow {id!r} has no budget")
    return answer(camel(budget))


_Epoch = Annotated[int | None, Query(ge=0, le=253_402_300_799_000), Whole, WithJsonSchema(
    {"type": "integer", "minimum": 0, "maximum": 253_402_300_799_000}
)]  # fmt: skip
_Window = Annotated[int | None, Query(ge=0, le=315_360_000_000), Whole, WithJsonSchema(
    {"type": "integer", "minimum": 0, "maximum": 315_360_000_000}
)]  # fmt: skip


@usage_router.get("/usage/summary", summary="Return the usage of queues in a period", response_model=_UsageSummary)
async def usage_summary(
    proxy: State,
    queues: Annotated[
        str | None, Query(description="Comma-separated names."), WithJsonSchema({"type": "string"})
    ] = None,
    start: _Epoch = None, end: _Epoch = None, window: _Window = None,
    window_ms: Annotated[_Window, Query(alias="windowMs")] = None,
) -> Response:  # fmt: skip
    if window is not None and window_ms is not None:
        raise GlideMQValidationError("window", window, "must be given once")
    names = None if queues is None else [name for name in queues.split(",") if name]
    for name in names or ():
        proxy.check_allowed(name)
    if names is None and proxy.options.queues is not None:
        names = sorted(proxy.options.queues)
    found = await get_usage_summary(
        proxy.client, prefix=proxy.options.prefix, queues=names, start=_moment(start), end=_moment(end),
        window=window or window_ms or None,
    )  # fmt: skip
    view = camel(found)
    view["bucketSizeMs"] = view.pop("bucketSize")
    return answer(view)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1_000, UTC)
