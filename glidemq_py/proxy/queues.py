"""Endpoints for whole queues: state, limits, cleaning, dead-letter entries, schedulers, usage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, cast

from fastapi import Query
from pydantic import WithJsonSchema
from starlette.responses import Response

from glidemq_py._core.job_states import JobState
from glidemq_py._features.dead_letters.queue_api import envelope_of
from glidemq_py._features.schedulers.entry import JobScheduler, schedule_keys
from glidemq_py._features.schedulers.queue_api import iter_schedulers
from glidemq_py._features.usage.summaries import get_usage_summary
from glidemq_py._job import Job
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.proxy import request_models as given
from glidemq_py.proxy import response_models as shown
from glidemq_py.proxy.jobs import job_view
from glidemq_py.proxy.pages import (
    JobsPage,
    Page,
    RangePage,
    Whole,
    fill_page,
    listed_jobs,
    open_cursor,
    page_answer,
    seal_cursor,
)  # fmt: skip
from glidemq_py.proxy.responses import NotFoundError, answer, camel, encode
from glidemq_py.proxy.routing import endpoints, with_example
from glidemq_py.proxy.state import OpenQueue, State

__all__ = ["router", "usage_router"]

_MOST_REPLAYED_SHOWN: Final = 1_000
_LETTERS_PER_CALL: Final = 25
_MAX_INT32: Final = 2**31 - 1

router = endpoints("/queues/{name}")

_Finished = Annotated[Literal["completed", "failed"], Query()]
_Place = Annotated[int, Query(ge=-(2**53), le=2**53), Whole]


# -- state -----------------------------------------------------------------------------------------------------


@router.post("/pause", summary="Pause the queue; active jobs keep running", response_model=shown.PauseState)
async def pause(queue: OpenQueue) -> Response:
    await queue.pause()
    return answer({"paused": True})


@router.post("/resume", summary="Resume the queue", response_model=shown.PauseState)
async def resume(queue: OpenQueue) -> Response:
    await queue.resume()
    return answer({"paused": False})


@router.get("/counts", summary="Count the jobs in each state", response_model=shown.Counts)
async def counts(queue: OpenQueue) -> Response:
    return answer(camel(await queue.get_job_counts()))


@router.get("/metrics", summary="Return completed or failed jobs per minute", response_model=shown.Metrics)
async def metrics(queue: OpenQueue, type: _Finished, start: _Place = 0, end: _Place = -1) -> Response:
    found = await queue.get_metrics(type, start, end)
    return answer({**camel(found), "meta": {"resolution": "minute"}})


@router.get("/workers", summary="List the live workers", response_model=shown.Workers)
async def workers(queue: OpenQueue) -> Response:
    found: list[shown.WorkerView] = [
        {
            "id": each.id, "addr": each.host, "pid": each.pid, "startedAt": each.started_at, "age": each.age,
            "activeJobs": each.active_jobs,
        }
        for each in await queue.get_workers()
    ]  # fmt: skip
    return answer({"workers": found})


@router.get("/suspended", summary="List the suspended jobs", response_model=shown.JobPage)
async def suspended(queue: OpenQueue, proxy: State, page: JobsPage) -> Response:
    async def show(jobs: Sequence[Job[Any, Any]]) -> list[bytes | None]:
        infos = await asyncio.gather(*(queue.get_suspend_info(job.id) for job in jobs))
        views = [job_view(job, with_data=not page.exclude_data) for job in jobs]
        return [encode({**view, "suspend": camel(info)}) for view, info in zip(views, infos, strict=True)]

    link, most = await queue._connected(), proxy.options.max_response
    return page_answer("jobs", *await listed_jobs(link, JobState.SUSPENDED, page, show, max_bytes=most))


# -- cleaning --------------------------------------------------------------------------------------------------


@router.post(
    "/drain", summary="Delete the waiting jobs", response_model=shown.Drained, openapi_extra=with_example(delayed=True)
)
async def drain(queue: OpenQueue, body: given.Drain = {}) -> Response:  # noqa: B006  # never changed
    delayed = body.get("delayed", False)
    await queue.drain(delayed=delayed)
    return answer({"delayed": delayed, "drained": True})


@router.post(
    "/retry", summary="Requeue failed jobs", response_model=shown.Requeued, openapi_extra=with_example(count=100)
)
async def retry(queue: OpenQueue, body: given.RetryJobs = {}) -> Response:  # noqa: B006
    return answer({"retried": await queue.retry_jobs(body.get("count", 0))})


@router.delete(
    "/clean", summary="Delete finished jobs older than age (seconds)", response_model=shown.Cleaned
)  # fmt: skip
async def clean(
    queue: OpenQueue, state: _Finished, age: Annotated[int, Query(ge=0, le=315_360_000), Whole],
    limit: Annotated[int, Query(ge=0, le=100_000), Whole] = 1_000,
) -> Response:  # fmt: skip
    return answer({"removed": await queue.clean(age * 1_000, limit, state)})


# -- rate limit ------------------------------------------------------------------------------------------------


@router.get("/rate-limit", summary="Return the queue's rate limit", response_model=shown.RateLimitState)
async def rate_limit(queue: OpenQueue) -> Response:
    return answer({"rateLimit": camel(await queue.get_global_rate_limit())})


@router.put(
    "/rate-limit", summary="Set the queue's rate limit", response_model=shown.RateLimitState,
    openapi_extra=with_example(max=100, duration=1_000),
)  # fmt: skip
async def set_rate_limit(queue: OpenQueue, body: given.RateLimit) -> Response:
    await queue.set_global_rate_limit(body["max"], body["duration"])
    return answer({"rateLimit": body})


@router.delete("/rate-limit", summary="Remove the queue's rate limit", response_model=shown.RateLimitRemoved)
async def no_rate_limit(queue: OpenQueue) -> Response:
    await queue.remove_global_rate_limit()
    return answer({"removed": True, "rateLimit": None})


# -- dead-letter entries ---------------------------------------------------------------------------------------


@router.get("/dlq", summary="List the queue's dead-letter entries", response_model=shown.DeadLetterPage)
async def dead_letters(queue: OpenQueue, proxy: State, page: RangePage) -> Response:
    letters = await queue._dead_letter_queue.open(await queue._connected())
    if letters is None:
        return page_answer("jobs", [], "", count=0)

    async def show(jobs: Sequence[Job[Any, Any]]) -> list[bytes | None]:
        return [encode(_letter_view(job)) if envelope_of(job, queue.name) else None for job in jobs]

    most = proxy.options.max_response
    texts, cursor = await listed_jobs(letters, JobState.WAITING, page, show, max_bytes=most, by_shown=True)
    return page_answer("jobs", texts, cursor, count=len(texts))


def _letter_view(letter: Job[Any, Any]) -> shown.DeadLetter:
    envelope = cast("dict[str, Any]", letter.data)
    return {
        "id": letter.id, "name": letter.name, "data": envelope.get("data"),
        "originalQueue": str(envelope.get("originalQueue", "")),
        "originalJobId": str(envelope.get("originalJobId", "")),
        "failedReason": envelope.get("failedReason"), "attemptsMade": envelope.get("attemptsMade") or 0,
        "timestamp": letter.timestamp,
    }  # fmt: skip


@router.post(
    "/dlq/replay-all", summary="Replay all dead-letter entries", response_model=shown.ReplayedAll,
    openapi_extra=with_example(count=10),
)  # fmt: skip
async def replay_all(
    queue: OpenQueue, count: Annotated[int | None, Query(ge=1, le=_MAX_INT32), Whole, WithJsonSchema(
        {"type": "integer", "minimum": 1, "maximum": _MAX_INT32}
    )] = None,
    body: given.ReplayAll = {},  # noqa: B006
) -> Response:  # fmt: skip
    if "count" in body and count is not None:
        raise GlideMQValidationError("count", body["count"], "must be given once")
    left, replayed = body.get("count", count or _MAX_INT32), 0
    done: list[shown.ReplayedJob] = []
    async for letter in queue.iter_dead_letter_jobs(_LETTERS_PER_CALL):
        job = await queue.replay_dead_letter_job(letter.id)
        if job is not None:
            replayed += 1
            if len(done) < _MOST_REPLAYED_SHOWN:
                done.append({"id": job.id, "name": job.name, "sourceId": letter.id})
        left -= 1
        if not left:
            break
    return answer({"jobs": done, "replayed": replayed})


@router.get("/dlq/{id}", summary="Return a dead-letter entry", response_model=shown.DeadLetter)
async def dead_letter(queue: OpenQueue, id: given.JobId) -> Response:
    letter = await queue.get_dead_letter_job(id)
    if letter is None:
        raise _no_letter(id)
    return answer(_letter_view(letter))


@router.delete("/dlq/{id}", summary="Delete a dead-letter entry", response_model=shown.Removed)
async def remove_dead_letter(queue: OpenQueue, id: given.JobId) -> Response:
    if not await queue.remove_dead_letter_job(id):
        raise _no_letter(id)
    return answer({"removed": True})


@router.post("/dlq/{id}/replay", summary="Replay a dead-letter entry", response_model=shown.Replayed)
async def replay(queue: OpenQueue, id: given.JobId) -> Response:
    job = await queue.replay_dead_letter_job(id)
    if job is None:
        raise _no_letter(id)
    return answer({"name": job.name, "newJobId": job.id})


def _no_letter(job_id: str) -> NotFoundError:
    return NotFoundError(f"dead-letter entry {job_id!r} not found")


# -- schedulers ------------------------------------------------------------------------------------------------


@router.get("/schedulers", summary="List the queue's schedulers", response_model=shown.SchedulerPage)
async def schedulers(queue: OpenQueue, proxy: State, page: Page) -> Response:
    place = f"schedulers {queue.name}"
    after = open_cursor(place, page.cursor)
    # They are stored without an order: keep only those of this page, and one more.
    found: dict[str, bytes] = {}
    async for each in iter_schedulers(await queue._connected()):
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


def _scheduler_view(scheduler: JobScheduler) -> dict[str, Any]:
    entry: dict[str, Any] = {
        **schedule_keys(scheduler.schedule),
        "template": {"name": scheduler.job_name, "data": scheduler.data, "opts": scheduler.options.to_wire()},
        "nextRun": scheduler.next_run, "lastRun": scheduler.last_run, "iterationCount": scheduler.iteration_count,
        "lastJobId": scheduler.last_job_id,
    }  # fmt: skip
    return {"name": scheduler.name, "entry": {key: value for key, value in entry.items() if value is not None}}


@router.get("/schedulers/{scheduler}", summary="Return a scheduler", response_model=shown.SchedulerView)
async def scheduler(queue: OpenQueue, scheduler: given.SchedulerName) -> Response:
    found = await queue.get_job_scheduler(scheduler)
    if found is None:
        raise _no_scheduler(scheduler)
    return answer(_scheduler_view(found))


@router.put(
    "/schedulers/{scheduler}", summary="Create or update a scheduler", response_model=shown.Upserted,
    openapi_extra=with_example(
        schedule={"pattern": "0 3 * * *", "tz": "Europe/Paris"},
        template={"name": "report", "data": {"kind": "daily"}, "opts": {"attempts": 3}},
    ),
)  # fmt: skip
async def put_scheduler(queue: OpenQueue, scheduler: given.SchedulerName, body: given.PutScheduler) -> Response:
    template: dict[str, Any] | None = None
    if "template" in body:
        template = {"options" if name == "opts" else name: value for name, value in body["template"].items()}
    schedule = cast("dict[str, Any]", body["schedule"])
    await queue.upsert_job_scheduler(scheduler, **schedule, template=template)
    return answer({"upserted": True})


@router.delete(
    "/schedulers/{scheduler}", summary="Remove a scheduler; its jobs are kept", response_model=shown.Removed
)  # fmt: skip
async def remove_scheduler(queue: OpenQueue, scheduler: given.SchedulerName) -> Response:
    if not await queue.remove_job_scheduler(scheduler):
        raise _no_scheduler(scheduler)
    return answer({"removed": True})


def _no_scheduler(name: str) -> NotFoundError:
    return NotFoundError(f"scheduler {name!r} not found")


# -- usage -----------------------------------------------------------------------------------------------------


@router.get("/flows/{id}/usage", summary="Return the usage of a job and its children", response_model=shown.FlowUsage)
async def flow_usage(queue: OpenQueue, id: given.JobId) -> Response:
    used = await queue.get_flow_usage(id)
    if not used.job_count and await queue.get_job(id, exclude_data=True) is None:
        raise NotFoundError(f"flow {id!r} not found")
    return answer(camel(used))


@router.get("/flows/{id}/budget", summary="Return a flow's budget", response_model=shown.FlowBudget)
async def flow_budget(queue: OpenQueue, id: given.JobId) -> Response:
    budget = await queue.get_flow_budget(id)
    if budget is None:
        raise NotFoundError(f"flow {id!r} has no budget")
    return answer(camel(budget))


usage_router = endpoints()

_Epoch = Annotated[int | None, Query(ge=0, le=253_402_300_799_000), Whole, WithJsonSchema(
    {"type": "integer", "minimum": 0, "maximum": 253_402_300_799_000}
)]  # fmt: skip
_Window = Annotated[int | None, Query(ge=0, le=315_360_000_000), Whole, WithJsonSchema(
    {"type": "integer", "minimum": 0, "maximum": 315_360_000_000}
)]  # fmt: skip


@usage_router.get("/usage/summary", summary="Return the usage of queues in a period", response_model=shown.UsageSummary)
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
