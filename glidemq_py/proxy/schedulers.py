"""Endpoints for the schedulers of a queue."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from typing_extensions import TypedDict

from glidemq_py._features.schedulers.area import iter_schedulers
from glidemq_py._features.schedulers.entry import JobScheduler
from glidemq_py.proxy import models as given
from glidemq_py.proxy.models import Count, NextCursor, Removed, ResponseModel
from glidemq_py.proxy.responses import (
    NotFoundError,
    Page,
    answer,
    encode,
    fill_page,
    open_cursor,
    page_answer,
    seal_cursor,
)
from glidemq_py.proxy.routing import endpoints, with_example
from glidemq_py.proxy.state import OpenQueue, State

__all__ = ["router"]

router = endpoints("/queues/{name}/schedulers")


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


class SchedulerView(ResponseModel):
    """A scheduler."""

    name: str
    entry: StoredSchedule


class SchedulerPage(ResponseModel):
    """A page of schedulers."""

    schedulers: list[SchedulerView]
    cursor: NextCursor


class Upserted(ResponseModel):
    """The scheduler was created or updated."""

    upserted: bool


@router.get("", summary="List the queue's schedulers", response_model=SchedulerPage)
async def schedulers(queue: OpenQueue, proxy: State, page: Page) -> Response:
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


def _scheduler_view(scheduler: JobScheduler) -> dict[str, Any]:
    entry: dict[str, Any] = {
        **scheduler.schedule.to_wire(),
        "template": {"name": scheduler.job_name, "data": scheduler.data, "opts": scheduler.options.to_wire()},
        "nextRun": scheduler.next_run, "lastRun": scheduler.last_run, "iterationCount": scheduler.iteration_count,
        "lastJobId": scheduler.last_job_id, "skippedCount": scheduler.skipped_count or None,
        "lastSkipped": scheduler.last_skipped, "buffered": scheduler.buffered or None,
        "paused": scheduler.paused or None, "pausedAt": scheduler.paused_since,
    }  # fmt: skip
    return {"name": scheduler.name, "entry": {key: value for key, value in entry.items() if value is not None}}


def _shown(found: JobScheduler | None, name: str) -> Response:
    if found is None:
        raise _no_scheduler(name)
    return answer(_scheduler_view(found))


@router.get("/{scheduler}", summary="Return a scheduler", response_model=SchedulerView)
async def scheduler(queue: OpenQueue, scheduler: given.SchedulerName) -> Response:
    return _shown(await queue.schedulers.get(scheduler), scheduler)


@router.put(
    "/{scheduler}", summary="Create or update a scheduler", response_model=Upserted,
    openapi_extra=with_example(
        schedule={"pattern": "0 3 * * *", "tz": "Europe/Paris"},
        template={"name": "report", "data": {"kind": "daily"}, "opts": {"attempts": 3}},
    ),
)  # fmt: skip
async def put_scheduler(queue: OpenQueue, scheduler: given.SchedulerName, body: given.PutScheduler) -> Response:
    template: dict[str, Any] | None = None
    if "template" in body:
        template = {"options" if name == "opts" else name: value for name, value in body["template"].items()}
    await queue.schedulers.upsert(scheduler, **body["schedule"], template=template)
    return answer({"upserted": True})


@router.post(
    "/{scheduler}/pause", summary="Pause a scheduler: it adds no jobs until it is resumed", response_model=SchedulerView
)  # fmt: skip
async def pause_scheduler(queue: OpenQueue, scheduler: given.SchedulerName) -> Response:
    return _shown(await queue.schedulers.pause(scheduler), scheduler)


@router.post(
    "/{scheduler}/resume", summary="Resume a scheduler; it is deleted if no due time is left",
    response_model=SchedulerView,
)  # fmt: skip
async def resume_scheduler(queue: OpenQueue, scheduler: given.SchedulerName) -> Response:
    return _shown(await queue.schedulers.resume(scheduler), scheduler)


@router.delete(
    "/{scheduler}", summary="Remove a scheduler; its jobs are kept", response_model=Removed
)  # fmt: skip
async def remove_scheduler(queue: OpenQueue, scheduler: given.SchedulerName) -> Response:
    if not await queue.schedulers.remove(scheduler):
        raise _no_scheduler(scheduler)
    return answer({"removed": True})


def _no_scheduler(name: str) -> NotFoundError:
    return NotFoundError(f"scheduler {name!r} not found")
