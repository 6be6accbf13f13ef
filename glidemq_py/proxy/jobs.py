"""Endpoints to add, wait for, read and manage jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, cast

from fastapi import Query
from starlette.responses import Response

from glidemq_py._core.queue_options import JobSpec
from glidemq_py._core.record import ADDED_OUTCOMES
from glidemq_py._features.flows.references import shown_ref
from glidemq_py._features.suspend import Signal, SuspendInfo, send_signal
from glidemq_py._features.usage import JobUsage
from glidemq_py._job.job import Job
from glidemq_py._job.reading import listable
from glidemq_py.errors import BulkAddError, GlideMQError, JobStateError
from glidemq_py.proxy import models as given
from glidemq_py.proxy.models import AsText, Error, NextCursor, Payload, ResponseModel, like, model_of
from glidemq_py.proxy.responses import (
    JobsPage,
    NotFoundError,
    answer,
    camel,
    encode,
    listed_jobs,
    page_answer,
    status_of,
)
from glidemq_py.proxy.routing import endpoints, with_example
from glidemq_py.proxy.state import OpenQueue, State

__all__ = ["JobPage", "Skipped", "found_job", "job_view", "router"]

_WAIT_MS: Final = 30_000
_REFERENCES: Final = frozenset(("parent", "parents", "dependsOn"))
"""Options that refer to other jobs."""

router = endpoints("/queues/{name}/jobs")

ListState = Literal[
    "waiting", "active", "delayed", "prioritized", "completed", "failed", "group-waiting", "suspended",
    "waiting-children",
]  # fmt: skip


# -- models ----------------------------------------------------------------------------------------------------


class AddedJob(ResponseModel):
    """A job that was added."""

    id: str
    name: str
    timestamp: int


class Skipped(ResponseModel):
    """A job or message that was not added: it is a duplicate."""

    skipped: bool


class BulkOutcomes(ResponseModel):
    """One outcome per position."""

    jobs: list[AddedJob | Skipped | Error]


class WaitResult(ResponseModel):
    """The result of a job."""

    result: Payload
    asText: NotRequired[AsText]


_Usage = model_of(JobUsage, {"latency": "latencyMs"})
_Signal = model_of(Signal, asText=NotRequired[AsText])
_Suspended = model_of(SuspendInfo, signals=list[Annotated[Any, like(_Signal)]])


class JobView(ResponseModel):
    """A job."""

    id: str
    name: str
    data: NotRequired[Payload]
    opts: dict[str, Any]
    timestamp: int
    attemptsMade: int
    state: str | None
    progress: Payload
    returnvalue: NotRequired[Payload]
    failedReason: str | None
    finishedOn: int | None
    processedOn: int | None
    parentId: str | None
    parentQueue: str | None
    usage: Annotated[Any, like(_Usage | None)]
    suspend: NotRequired[Annotated[Any, like(_Suspended | None)]]
    asText: NotRequired[AsText]


class JobPage(ResponseModel):
    """A page of jobs."""

    jobs: list[JobView]
    cursor: NextCursor


class UpdatedPriority(ResponseModel):
    """The new priority of a job."""

    priority: int
    updated: bool


class UpdatedDelay(ResponseModel):
    """The new delay of a job, ms."""

    delay: int
    updated: bool


class Promoted(ResponseModel):
    """A delayed job is due now."""

    promoted: bool


class RevokeStatus(ResponseModel):
    """Whether a job was revoked, or flagged because it is active."""

    status: Literal["revoked", "flagged"]


class SignalOutcome(ResponseModel):
    """Whether the job was waiting for the signal."""

    resumed: bool


# -- adding ----------------------------------------------------------------------------------------------------


def _outcome(job: Job[Any, Any]) -> AddedJob | Skipped:
    if job.outcome in ADDED_OUTCOMES:
        return {"id": job.id, "name": job.name, "timestamp": job.timestamp}
    return {"skipped": True}


@router.post(
    "", summary="Add a job", status_code=201, response_model=AddedJob, responses={200: {"model": Skipped}},
    openapi_extra=with_example(
        name="welcome", data={"to": "a@example.org"}, opts={"attempts": 3, "backoff": 1_000}
    ),
)  # fmt: skip
async def add(queue: OpenQueue, body: given.AddJob) -> Response:
    job = await queue.add(body["name"], body.get("data"), **body.get("opts", {}))
    found = _outcome(job)
    return answer(found, 200 if "skipped" in found else 201)


@router.post(
    "/bulk", summary="Add up to 1000 jobs; return one outcome per position", status_code=201,
    response_model=BulkOutcomes, responses={200: {"model": BulkOutcomes}},
    openapi_extra=with_example(
        jobs=[{"name": "resize", "data": {"file": 1}}, {"name": "resize", "opts": {"priority": 1}}]
    ),
)  # fmt: skip
async def add_bulk(queue: OpenQueue, body: given.AddBulk) -> Response:
    specs = [JobSpec(job["name"], job.get("data"), job.get("opts")) for job in body["jobs"]]
    try:
        results: list[Any] = list(await queue.add_bulk(specs))
    except BulkAddError as error:
        if all(isinstance(result, BaseException) for result in error.results):
            raise
        results = list(error.results)
    found = [
        {"error": str(each), "code": status_of(each)[1]} if isinstance(each, BaseException) else _outcome(each)
        for each in results
    ]
    return answer({"jobs": found}, 201 if any("id" in each for each in found) else 200)


@router.post(
    "/wait", summary="Add a job and wait for its result", response_model=WaitResult,
    openapi_extra=with_example(name="add", data=[2, 3], opts={"waitTimeout": 5_000}),
)  # fmt: skip
async def wait(queue: OpenQueue, body: given.AddJobAndWait) -> Response:
    options: dict[str, Any] = {"wait_timeout": _WAIT_MS, **body.get("opts", {})}
    result = await queue.add_and_wait(body["name"], body.get("data"), **options)
    return answer({"result": result})


# -- reading ---------------------------------------------------------------------------------------------------


@router.get("", summary="List the jobs in a state", response_model=JobPage)
async def list_jobs(queue: OpenQueue, proxy: State, page: JobsPage, state: Annotated[ListState, Query()]) -> Response:
    async def show(jobs: Sequence[Job[Any, Any]]) -> list[bytes | None]:
        return [encode(await job_view(job, with_data=not page.exclude_data)) for job in jobs]

    links, most = await queue._links(), proxy.options.max_response
    return page_answer("jobs", *await listed_jobs(links, listable(state), page, show, max_bytes=most))


@router.get("/{id}", summary="Return a job", response_model=JobView)
async def get(queue: OpenQueue, id: given.JobId) -> Response:  # the name in the path
    return answer(await job_view(await found_job(queue, id)))


async def found_job(queue: OpenQueue, job_id: str) -> Job[Any, Any]:
    """Return a job. Raises NotFoundError."""
    job = await queue.get_job(job_id)
    if job is None:
        raise NotFoundError(f"job {job_id!r} not found")
    return job


async def job_view(job: Job[Any, Any], *, with_data: bool = True) -> dict[str, Any]:
    """Return a job as JSON. Values that cannot be decoded are their stored text, and listed in ``asText``."""
    parents = await job.get_parents()
    parent = parents[0] if len(parents) == 1 else None
    view: dict[str, Any] = {
        "id": job.id, "name": job.name, "opts": await _whole_options(job), "timestamp": job.timestamp,
        "attemptsMade": job.attempts_made, "state": job.state, "progress": job.progress,
        "failedReason": job.failed_reason, "finishedOn": job.finished_on, "processedOn": job.processed_on,
        "parentId": parent and parent.id, "parentQueue": parent and parent.queue, "usage": _usage_view(job.usage),
    }  # fmt: skip
    if with_data:
        for name, stored in (("data", job._data_text), ("returnvalue", job._result_text)):
            try:
                view[name] = getattr(job, name)
            except GlideMQError:
                view[name] = stored
                view["asText"] = [*view.get("asText", ()), name]
    return view


async def _whole_options(job: Job[Any, Any]) -> Mapping[str, Any]:
    """Return the options of a job; references to other jobs name partitioned queues instead of their partitions."""
    found = dict(job.opts)
    for name in found.keys() & _REFERENCES:
        given, is_list = found[name], isinstance(found[name], list)
        shown = [await _whole_reference(job, each) for each in (given if is_list else [given])]
        found[name] = shown if is_list else shown[0]
    return found


async def _whole_reference(job: Job[Any, Any], given: Any) -> Any:
    if isinstance(given, str):  # of the same queue
        return job._link.shown_id(given)
    ref: dict[str, Any] = cast("Any", given) if isinstance(given, dict) else {}
    if not all(isinstance(ref.get(name), str) for name in ("queue", "id")):
        return cast("Any", given)
    shown = await shown_ref(job._link, ref["queue"], ref["id"])
    return {**ref, "queue": shown.queue, "id": shown.id}


def _usage_view(usage: JobUsage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    view: dict[str, Any] = camel(usage)
    view["latencyMs"] = view.pop("latency")
    return view


@router.get("/{id}/suspend", summary="Return the suspension of a suspended job", response_model=_Suspended)
async def suspend(queue: OpenQueue, id: given.JobId) -> Response:
    info = await queue.jobs.get_suspend_info(id)
    if info is None:
        raise NotFoundError(f"job {id!r} is not suspended")
    return answer(camel(info))


# -- managing --------------------------------------------------------------------------------------------------


@router.post(
    "/{id}/priority", summary="Change the priority of a waiting job", response_model=UpdatedPriority,
    openapi_extra=with_example(priority=1),
)  # fmt: skip
async def priority(queue: OpenQueue, id: given.JobId, body: given.NewPriority) -> Response:
    await queue.jobs.change_priority(id, body["priority"])
    return answer({"priority": body["priority"], "updated": True})


@router.post(
    "/{id}/delay", summary="Change the delay of a waiting job", response_model=UpdatedDelay,
    openapi_extra=with_example(delay=60_000),
)  # fmt: skip
async def delay(queue: OpenQueue, id: given.JobId, body: given.NewDelay) -> Response:
    await queue.jobs.change_delay(id, body["delay"])
    return answer({"delay": body["delay"], "updated": True})


@router.post("/{id}/promote", summary="Make a delayed job due now", response_model=Promoted)
async def promote(queue: OpenQueue, id: given.JobId) -> Response:
    await queue.promote(id)
    return answer({"promoted": True})


@router.post("/{id}/revoke", summary="Revoke a waiting job, or cancel an active one", response_model=RevokeStatus)
async def revoke(queue: OpenQueue, id: given.JobId) -> Response:
    status = await queue.revoke(id)
    if status == "not_found":
        raise NotFoundError(f"job {id!r} not found")
    return answer({"status": status})


@router.post(
    "/{id}/signal", summary="Send a signal to a job", response_model=SignalOutcome,
    openapi_extra=with_example(name="approved", data={"by": "ann"}),
)  # fmt: skip
async def signal(queue: OpenQueue, id: given.JobId, body: given.SendSignal) -> Response:
    outcome = await send_signal(queue, id, body["name"], body.get("data"))
    if outcome not in ("resumed", "kept"):
        job = await found_job(queue, id)
        raise JobStateError(id, str(job.state), "signal")
    return answer({"resumed": outcome == "resumed"})
