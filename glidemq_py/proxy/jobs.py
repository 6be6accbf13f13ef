"""Endpoints to add, wait for, read and manage jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from starlette.responses import Response

from glidemq_py._core.checks import check_int
from glidemq_py._core.job_states import JobOutcome
from glidemq_py._core.queue_options import JobSpec
from glidemq_py._job import Job
from glidemq_py._job.reading import listable, listed_states
from glidemq_py.errors import BulkAddError, GlideMQValidationError, JobStateError
from glidemq_py.proxy.answering import answer, encode
from glidemq_py.proxy.camel import camel
from glidemq_py.proxy.endpoint import Endpoint, Exchange
from glidemq_py.proxy.listing import RANGE, listed_jobs, page_answer, shown_in
from glidemq_py.proxy.refusals import NothingThereError, status_of
from glidemq_py.proxy.schemas import (
    AS_TEXT,
    BOOLEAN,
    DATA,
    INTEGER,
    JOB,
    JOB_NAME,
    JOB_OPTIONS,
    NEXT,
    SUSPENDED,
    TEXT,
    WAIT_OPTIONS,
    listed,
    record,
)  # fmt: skip
from glidemq_py.proxy.shapes import job_options, job_shape, name_and_data

__all__ = ["JOBS"]

_MOST: Final = 1_000
_LONGEST_WAIT_MS: Final = 600_000
_STATES: Final = [str(state) for state in listed_states()]


def _added(job: Job[Any, Any]) -> dict[str, Any]:
    if job.outcome in (JobOutcome.ADDED, JobOutcome.REPLACED):
        return {"id": job.id, "name": job.name, "timestamp": job.timestamp}
    return {"skipped": True}


async def _add(exchange: Exchange) -> Response:
    name, data = name_and_data(exchange.body)
    job = await exchange.queue.add(name, data, **job_options(exchange.body))
    found = _added(job)
    return answer(found, 200 if "skipped" in found else 201)


async def _add_bulk(exchange: Exchange) -> Response:
    given: object = exchange.needed("jobs")
    if not isinstance(given, list):
        raise GlideMQValidationError("jobs", given, "must be an array")
    jobs: list[Any] = list(given)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if len(jobs) > _MOST:
        raise GlideMQValidationError("jobs", len(jobs), f"must hold at most {_MOST} jobs")
    specs: list[JobSpec] = []
    for i, job in enumerate(jobs):
        if not isinstance(job, dict):
            raise GlideMQValidationError(f"jobs[{i}]", job, "must be an object")
        members = cast("dict[str, Any]", job)
        _ADD.check_body(members)
        name, data = name_and_data(members, f"jobs[{i}].")
        specs.append(JobSpec(name, data, job_options(members, f"jobs[{i}].")))
    try:
        results: list[Any] = list(await exchange.queue.add_bulk(specs))
    except BulkAddError as error:
        if all(isinstance(result, BaseException) for result in error.results):
            raise
        results = list(error.results)
    found = [
        {"error": str(each), "code": status_of(each)[1]} if isinstance(each, BaseException) else _added(each)
        for each in results
    ]
    return answer({"jobs": found}, 201 if any("id" in each for each in found) else 200)


async def _wait(exchange: Exchange) -> Response:
    name, data = name_and_data(exchange.body)
    body, wait = dict(exchange.body), 30_000
    given: object = body.get("opts")
    if isinstance(given, dict) and "waitTimeout" in given:
        body["opts"] = given = dict(cast("dict[str, Any]", given))
        wait = check_int("opts.waitTimeout", given.pop("waitTimeout"), 1, _LONGEST_WAIT_MS)
    options = job_options(body)
    result = await exchange.queue.add_and_wait(name, data, wait_timeout=wait, **options)
    return answer({"result": result})


async def _list(exchange: Exchange) -> Response:
    async def show(jobs: Sequence[Job[Any, Any]]) -> list[bytes | None]:
        return [encode(shown_in(exchange, job)) for job in jobs]

    state = listable(exchange.word("state"))
    return page_answer("jobs", *await listed_jobs(exchange, await exchange.queue._connected(), state, show))


async def _job(exchange: Exchange) -> Job[Any, Any]:
    job = await exchange.queue.get_job(exchange.job_id)
    if job is None:
        raise NothingThereError(f"job {exchange.job_id!r} not found")
    return job


async def _get(exchange: Exchange) -> Response:
    return answer(job_shape(await _job(exchange)))


async def _priority(exchange: Exchange) -> Response:
    priority = exchange.needed("priority")
    await exchange.queue.change_priority(exchange.job_id, priority)
    return answer({"priority": priority, "updated": True})


async def _delay(exchange: Exchange) -> Response:
    delay = exchange.needed("delay")
    await exchange.queue.change_delay(exchange.job_id, delay)
    return answer({"delay": delay, "updated": True})


async def _promote(exchange: Exchange) -> Response:
    await exchange.queue.promote(exchange.job_id)
    return answer({"promoted": True})


async def _revoke(exchange: Exchange) -> Response:
    status = await exchange.queue.revoke(exchange.job_id)
    if status == "not_found":
        raise NothingThereError(f"job {exchange.job_id!r} not found")
    return answer({"status": status})


async def _suspend(exchange: Exchange) -> Response:
    info = await exchange.queue.get_suspend_info(exchange.job_id)
    if info is None:
        raise NothingThereError(f"job {exchange.job_id!r} is not suspended")
    return answer(camel(info))


async def _signal(exchange: Exchange) -> Response:
    job_id = exchange.job_id
    outcome = await exchange.queue._signal(job_id, exchange.needed("name"), exchange.body.get("data"))
    if outcome not in ("resumed", "kept"):
        job = await _job(exchange)
        raise JobStateError(job_id, str(job.state), "signal")
    return answer({"resumed": outcome == "resumed"})


_ADD: Final = Endpoint(
    method="POST", path="/queues/{name}/jobs", summary="Add a job", run=_add,
    body=record(["name"], name=JOB_NAME, data=DATA, opts=JOB_OPTIONS),
    example={"name": "welcome", "data": {"to": "a@example.org"}, "opts": {"attempts": 3, "backoff": 1_000}},
    answers={
        201: record(["id", "name", "timestamp"], id=TEXT, name=TEXT, timestamp=INTEGER),
        200: record(["skipped"], skipped=BOOLEAN),
    },
)  # fmt: skip

_BULK: Final = {
    "type": "array",
    "items": {
        "anyOf": [_ADD.answers[201], _ADD.answers[200], record(["error", "code"], error=TEXT, code=TEXT)],
    },
}

JOBS: Final = (
    _ADD,
    Endpoint(
        method="POST", path="/queues/{name}/jobs/bulk", summary="Add up to 1000 jobs; return one outcome per position",
        run=_add_bulk, body=record(["jobs"], jobs=listed(_ADD.body or {}, _MOST)),
        example={"jobs": [{"name": "resize", "data": {"file": 1}}, {"name": "resize", "opts": {"priority": 1}}]},
        answers={201: record(["jobs"], jobs=_BULK), 200: record(["jobs"], jobs=_BULK)},
    ),
    Endpoint(
        method="GET", path="/queues/{name}/jobs", summary="List the jobs in a state", run=_list,
        query={"state": {"enum": _STATES}, **RANGE}, needed=("state",),
        answers={200: record(["jobs", "cursor"], jobs=listed(JOB), cursor=NEXT)},
    ),
    Endpoint(
        method="POST", path="/queues/{name}/jobs/wait", summary="Add a job and wait for its result", run=_wait,
        body=record(["name"], name=JOB_NAME, data=DATA, opts=WAIT_OPTIONS),
        example={"name": "add", "data": [2, 3], "opts": {"waitTimeout": 5_000}},
        answers={200: record(["result"], result=DATA, asText=AS_TEXT)},
    ),
    Endpoint(
        method="GET", path="/queues/{name}/jobs/{id}", summary="Return a job", run=_get, answers={200: JOB},
    ),
    Endpoint(
        method="POST", path="/queues/{name}/jobs/{id}/priority", summary="Change the priority of a waiting job",
        run=_priority, body=record(["priority"], priority=JOB_OPTIONS["properties"]["priority"]),
        example={"priority": 1},
        answers={200: record(priority=INTEGER, updated=BOOLEAN)},
    ),
    Endpoint(
        method="POST", path="/queues/{name}/jobs/{id}/delay", summary="Change the delay of a waiting job",
        run=_delay, body=record(["delay"], delay=JOB_OPTIONS["properties"]["delay"]),
        example={"delay": 60_000},
        answers={200: record(delay=INTEGER, updated=BOOLEAN)},
    ),
    Endpoint(
        method="POST", path="/queues/{name}/jobs/{id}/promote", summary="Make a delayed job due now",
        run=_promote, answers={200: record(promoted=BOOLEAN)},
    ),
    Endpoint(
        method="POST", path="/queues/{name}/jobs/{id}/revoke", summary="Revoke a waiting job, or cancel an active one",
        run=_revoke, answers={200: record(status={"enum": ["revoked", "flagged"]})},
    ),
    Endpoint(
        method="GET", path="/queues/{name}/jobs/{id}/suspend", summary="Return the suspension of a suspended job",
        run=_suspend, answers={200: SUSPENDED},
    ),
    Endpoint(
        method="POST", path="/queues/{name}/jobs/{id}/signal", summary="Send a signal to a job",
        run=_signal, body=record(["name"], name={"type": "string", "minLength": 1, "maxLength": 256}, data=DATA),
        example={"name": "approved", "data": {"by": "ann"}}, answers={200: record(["resumed"], resumed=BOOLEAN)},
    ),
)  # fmt: skip
