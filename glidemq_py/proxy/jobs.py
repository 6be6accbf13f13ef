"""Endpoints to add, wait for, read and manage jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict, cast

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
from glidemq_py.proxy.models import AsText, Error, NextCursor, Payload
from glidemq_py.proxy.responses import (
    JOBS_PAGE,
    NotFoundError,
    PageQuery,
    answer,
    camel,
    encode,
    listed_jobs,
    page_answer,
    status_of,
    view_of,
)
from glidemq_py.proxy.routing import Endpoints
from glidemq_py.proxy.schemas import model_of, schema_of
from glidemq_py.proxy.state import OpenQueue, ProxyState

_WAIT_MS: Final = 30_000
_REFERENCES: Final = frozenset(("parent", "parents", "dependsOn"))
"""Options that refer to other jobs."""

endpoints = Endpoints("/queues/{name}/jobs")

ListState = Literal[
    "waiting", "active", "delayed", "prioritized", "completed", "failed", "group-waiting", "suspended",
    "waiting-children",
]  # fmt: skip


# -- models ----------------------------------------------------------------------------------------------------


class AddedJob(TypedDict):
    """A job that was added."""

    id: str
    name: str
    timestamp: int


class Skipped(TypedDict):
    """A job or message that was not added: it is a duplicate."""

    skipped: bool


class BulkOutcomes(TypedDict):
    """One outcome per position."""

    jobs: list[AddedJob | Skipped | Error]


class WaitResult(TypedDict):
    """The result of a job."""

    result: Payload
    asText: NotRequired[AsText]


_Usage = model_of(JobUsage, {"latency": "latencyMs"})
_Signal = model_of(Signal, asText=NotRequired[AsText])
_Suspended = model_of(SuspendInfo, signals=list[Annotated[Any, _Signal]])


class JobView(TypedDict):
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
    usage: Annotated[Any, _Usage | None]
    suspend: NotRequired[Annotated[Any, _Suspended | None]]
    asText: NotRequired[AsText]


class JobPage(TypedDict):
    """A page of jobs."""

    jobs: list[JobView]
    cursor: NextCursor


class UpdatedPriority(TypedDict):
    """The new priority of a job."""

    priority: int
    updated: bool


class UpdatedDelay(TypedDict):
    """The new delay of a job, ms."""

    delay: int
    updated: bool


class Promoted(TypedDict):
    """A delayed job is due now."""

    promoted: bool


class RevokeStatus(TypedDict):
    """Whether a job was revoked, or flagged because it is active."""

    status: Literal["revoked", "flagged"]


class SignalOutcome(TypedDict):
    """Whether the job was waiting for the signal."""

    resumed: bool


# -- adding ----------------------------------------------------------------------------------------------------


def _outcome(job: Job) -> AddedJob | Skipped:
    if job.outcome in ADDED_OUTCOMES:
        return {"id": job.id, "name": job.name, "timestamp": job.timestamp}
    return {"skipped": True}


@endpoints(
    "POST", "", {201: AddedJob, 200: Skipped}, role="producer",
    name="welcome", data={"to": "a@example.org"}, opts={"attempts": 3, "backoff": 1_000},
)  # fmt: skip
async def add(queue: OpenQueue, body: given.AddJob) -> Response:
    """Add a job."""
    job = await queue.add(body["name"], body.get("data"), **body.get("opts", {}))
    found = _outcome(job)
    return answer(found, 200 if "skipped" in found else 201)


@endpoints(
    "POST", "/bulk", {201: BulkOutcomes, 200: BulkOutcomes}, role="producer",
    jobs=[{"name": "resize", "data": {"file": 1}}, {"name": "resize", "opts": {"priority": 1}}],
)  # fmt: skip
async def add_bulk(queue: OpenQueue, body: given.AddBulk) -> Response:
    """Add up to 1000 jobs; return one outcome per position."""
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


@endpoints("POST", "/wait", role="producer", name="add", data=[2, 3], opts={"waitTimeout": 5_000})
async def wait(queue: OpenQueue, body: given.AddJobAndWait) -> WaitResult:
    """Add a job and wait for its result."""
    options: dict[str, Any] = {"wait_timeout": _WAIT_MS, **body.get("opts", {})}
    return {"result": await queue.add_and_wait(body["name"], body.get("data"), **options)}


# -- reading ---------------------------------------------------------------------------------------------------


@endpoints("GET", "", JobPage, query={"state": schema_of(ListState), **JOBS_PAGE})
async def list_jobs(queue: OpenQueue, proxy: ProxyState, page: PageQuery, state: str) -> Response:
    """List the jobs in a state."""

    async def show(jobs: Sequence[Job]) -> list[bytes | None]:
        return [encode(await job_view(job, with_data=not page.exclude_data)) for job in jobs]

    links, most = await queue._links(), proxy.options.max_response
    return page_answer("jobs", *await listed_jobs(links, listable(state), page, show, max_bytes=most))


@endpoints("GET", "/{id}", JobView)
async def get(queue: OpenQueue, id: str) -> Any:  # the name in the path
    """Return a job."""
    return await job_view(await found_job(queue, id))


async def found_job(queue: OpenQueue, job_id: str) -> Job:
    """Return a job. Raises NotFoundError."""
    job = await queue.get_job(job_id)
    if job is None:
        raise NotFoundError(f"job {job_id!r} not found")
    return job


async def job_view(job: Job, *, with_data: bool = True) -> dict[str, Any]:
    """Return a job as JSON. Values that cannot be decoded are their stored text, and listed in ``asText``."""
    parents = await job.get_parents()
    parent = parents[0] if len(parents) == 1 else None
    view: dict[str, Any] = view_of(
        JobView, job, opts=await _whole_options(job), parentId=parent and parent.id,
        parentQueue=parent and parent.queue, usage=_usage_view(job.usage),
    )  # fmt: skip
    if with_data:
        for name, stored in (("data", job._data_text), ("returnvalue", job._result_text)):
            try:
                view[name] = getattr(job, name)
            except GlideMQError:
                view[name] = stored
                view["asText"] = [*view.get("asText", ()), name]
    return view


async def _whole_options(job: Job) -> Mapping[str, Any]:
    """Return the options of a job; references to other jobs name partitioned queues instead of their partitions."""
    found = dict(job.opts)
    for name in found.keys() & _REFERENCES:
        given, is_list = found[name], isinstance(found[name], list)
        shown = [await _whole_reference(job, each) for each in (given if is_list else [given])]
        found[name] = shown if is_list else shown[0]
    return found


async def _whole_reference(job: Job, given: Any) -> Any:
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


@endpoints("GET", "/{id}/suspend", _Suspended)
async def suspend(queue: OpenQueue, id: str) -> Any:
    """Return the suspension of a suspended job."""
    info = await queue.jobs.get_suspend_info(id)
    if info is None:
        raise NotFoundError(f"job {id!r} is not suspended")
    return camel(info)


# -- managing --------------------------------------------------------------------------------------------------


@endpoints("POST", "/{id}/priority", priority=1)
async def priority(queue: OpenQueue, id: str, body: given.NewPriority) -> UpdatedPriority:
    """Change the priority of a waiting job."""
    await queue.jobs.change_priority(id, body["priority"])
    return {"priority": body["priority"], "updated": True}


@endpoints("POST", "/{id}/delay", delay=60_000)
async def delay(queue: OpenQueue, id: str, body: given.NewDelay) -> UpdatedDelay:
    """Change the delay of a waiting job."""
    await queue.jobs.change_delay(id, body["delay"])
    return {"delay": body["delay"], "updated": True}


@endpoints("POST", "/{id}/promote")
async def promote(queue: OpenQueue, id: str) -> Promoted:
    """Make a delayed job due now."""
    await queue.promote(id)
    return {"promoted": True}


@endpoints("POST", "/{id}/revoke")
async def revoke(queue: OpenQueue, id: str) -> RevokeStatus:
    """Revoke a waiting job, or cancel an active one."""
    status = await queue.revoke(id)
    if status == "not_found":
        raise NotFoundError(f"job {id!r} not found")
    return {"status": status}


@endpoints("POST", "/{id}/signal", name="approved", data={"by": "ann"})
async def signal(queue: OpenQueue, id: str, body: given.SendSignal) -> SignalOutcome:
    """Send a signal to a job."""
    outcome = await send_signal(queue, id, body["name"], body.get("data"))
    if outcome not in ("resumed", "kept"):
        job = await found_job(queue, id)
        raise JobStateError(id, str(job.state), "signal")
    return {"resumed": outcome == "resumed"}
