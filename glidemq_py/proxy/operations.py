"""Endpoints for whole queues: state, limits, cleaning, dead-letter entries, usage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from glidemq_py._core.checks import check_int
from glidemq_py._core.job_states import JobState
from glidemq_py._features.dead_letters.queue_api import envelope_of
from glidemq_py._features.usage.queue_api import get_usage_summary
from glidemq_py._job import Job
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.proxy.answering import answer, encode
from glidemq_py.proxy.camel import camel
from glidemq_py.proxy.endpoint import Endpoint, Exchange
from glidemq_py.proxy.listing import PAGE, RANGE, check_limit, listed_jobs, page_answer, shown_in
from glidemq_py.proxy.refusals import NothingThereError
from glidemq_py.proxy.schemas import (
    BOOLEAN,
    COUNT,
    COUNTS,
    END,
    FLAG,
    FLOW_BUDGET,
    FLOW_USAGE,
    JOB,
    LETTER,
    METRICS,
    NEXT,
    PLACE,
    RATE_LIMIT,
    TEXT,
    USAGE_SUMMARY,
    WORKER,
    listed,
    record,
)  # fmt: skip
from glidemq_py.proxy.shapes import dead_letter_shape

__all__ = ["OPERATIONS"]

_MOST_REPLAYED_SHOWN: Final = 1_000
_LETTERS_PER_CALL: Final = 25
_MOST_CLEANED: Final = 100_000
_SECONDS_MAX: Final = 315_360_000
_RATED: Final = {"anyOf": [RATE_LIMIT, {"type": "null"}]}


async def _pause(exchange: Exchange) -> Response:
    await exchange.queue.pause()
    return answer({"paused": True})


async def _resume(exchange: Exchange) -> Response:
    await exchange.queue.resume()
    return answer({"paused": False})


async def _counts(exchange: Exchange) -> Response:
    return answer(camel(await exchange.queue.get_job_counts()))


async def _metrics(exchange: Exchange) -> Response:
    kind: Any = exchange.word("type")
    found = await exchange.queue.get_metrics(kind, exchange.integer("start", 0), exchange.integer("end", -1))
    return answer({**camel(found), "meta": {"resolution": "minute"}})


async def _workers(exchange: Exchange) -> Response:
    workers = [
        {
            "id": each.id, "addr": each.host, "pid": each.pid, "startedAt": each.started_at, "age": each.age,
            "activeJobs": each.active_jobs,
        }
        for each in await exchange.queue.get_workers()
    ]  # fmt: skip
    return answer({"workers": workers})


async def _drain(exchange: Exchange) -> Response:
    delayed = exchange.body.get("delayed", False)
    await exchange.queue.drain(delayed=delayed)
    return answer({"delayed": delayed, "drained": True})


async def _retry(exchange: Exchange) -> Response:
    return answer({"retried": await exchange.queue.retry_jobs(exchange.body.get("count", 0))})


async def _clean(exchange: Exchange) -> Response:
    age = check_int("age", exchange.integer("age"), 0, _SECONDS_MAX)
    state: Any = exchange.word("state")
    limit = check_int("limit", exchange.integer("limit", 1_000), 0, _MOST_CLEANED)
    return answer({"removed": await exchange.queue.clean(age * 1_000, limit, state)})


async def _rate_limit(exchange: Exchange) -> Response:
    return answer({"rateLimit": camel(await exchange.queue.get_global_rate_limit())})


async def _set_rate_limit(exchange: Exchange) -> Response:
    most, duration = exchange.needed("max"), exchange.needed("duration")
    await exchange.queue.set_global_rate_limit(most, duration)
    return answer({"rateLimit": {"max": most, "duration": duration}})


async def _no_rate_limit(exchange: Exchange) -> Response:
    await exchange.queue.remove_global_rate_limit()
    return answer({"removed": True, "rateLimit": None})


async def _suspended(exchange: Exchange) -> Response:
    queue = exchange.queue

    async def show(jobs: Sequence[Job[Any, Any]]) -> list[bytes | None]:
        infos = await asyncio.gather(*(queue.get_suspend_info(job.id) for job in jobs))
        return [
            encode({**shown_in(exchange, job), "suspend": camel(info)}) for job, info in zip(jobs, infos, strict=True)
        ]

    return page_answer("jobs", *await listed_jobs(exchange, await queue._connected(), JobState.SUSPENDED, show))


# -- dead letters ----------------------------------------------------------------------------------------------


async def _dead_letters(exchange: Exchange) -> Response:
    queue = exchange.queue
    letters = await queue._dead_letters()
    if letters is None:
        check_limit(exchange)
        return page_answer("jobs", [], "", count=0)

    async def show(jobs: Sequence[Job[Any, Any]]) -> list[bytes | None]:
        return [encode(dead_letter_shape(job)) if envelope_of(job, queue.name) else None for job in jobs]

    texts, cursor = await listed_jobs(exchange, letters, JobState.WAITING, show, by_shown=True)
    return page_answer("jobs", texts, cursor, count=len(texts))


async def _letter(exchange: Exchange) -> Response:
    return answer(dead_letter_shape(_there(exchange, await exchange.queue.get_dead_letter_job(exchange.job_id))))


async def _remove_letter(exchange: Exchange) -> Response:
    if not await exchange.queue.remove_dead_letter_job(exchange.job_id):
        _there(exchange, None)
    return answer({"removed": True})


async def _replay(exchange: Exchange) -> Response:
    job = _there(exchange, await exchange.queue.replay_dead_letter_job(exchange.job_id))
    return answer({"name": job.name, "newJobId": job.id})


async def _replay_all(exchange: Exchange) -> Response:
    if "count" in exchange.body and "count" in exchange.query:
        raise GlideMQValidationError("count", exchange.body["count"], "must be given once")
    given = exchange.body.get("count", exchange.integer("count", 2**31 - 1))
    count = check_int("count", given, 1, 2**31 - 1)
    queue, replayed = exchange.queue, 0
    done: list[dict[str, Any]] = []
    async for letter in queue.iter_dead_letter_jobs(_LETTERS_PER_CALL):
        job = await queue.replay_dead_letter_job(letter.id)
        if job is not None:
            replayed += 1
            if len(done) < _MOST_REPLAYED_SHOWN:
                done.append({"id": job.id, "name": job.name, "sourceId": letter.id})
        count -= 1
        if not count:
            break
    return answer({"jobs": done, "replayed": replayed})


def _there(exchange: Exchange, job: Job[Any, Any] | None) -> Job[Any, Any]:
    if job is None:
        raise NothingThereError(f"dead-letter entry {exchange.job_id!r} not found")
    return job


# -- usage -----------------------------------------------------------------------------------------------------


async def _flow_usage(exchange: Exchange) -> Response:
    used = await exchange.queue.get_flow_usage(exchange.job_id)
    if not used.job_count and await exchange.queue.get_job(exchange.job_id, exclude_data=True) is None:
        raise NothingThereError(f"flow {exchange.job_id!r} not found")
    return answer(camel(used))


async def _flow_budget(exchange: Exchange) -> Response:
    budget = await exchange.queue.get_flow_budget(exchange.job_id)
    if budget is None:
        raise NothingThereError(f"flow {exchange.job_id!r} has no budget")
    return answer(camel(budget))


async def _usage_summary(exchange: Exchange) -> Response:
    if "window" in exchange.query and "windowMs" in exchange.query:
        raise GlideMQValidationError("window", exchange.query["window"], "must be given once")
    names = exchange.query.get("queues")
    allowed = exchange.state.options.queues
    queues = None if names is None else [name for name in names.split(",") if name]
    for name in queues or ():
        exchange.state.check_allowed(name)
    if queues is None and allowed is not None:
        queues = sorted(allowed)
    window = exchange.integer("window", exchange.integer("windowMs", 0)) or None
    state = exchange.state
    found = await get_usage_summary(
        state.client, prefix=state.options.prefix, queues=queues, start=_moment(exchange, "start"),
        end=_moment(exchange, "end"), window=window,
    )  # fmt: skip
    shape = camel(found)
    shape["bucketSizeMs"] = shape.pop("bucketSize")
    return answer(shape)


def _moment(exchange: Exchange, name: str) -> datetime | None:
    if name not in exchange.query:
        return None
    ms = check_int(name, exchange.integer(name), 0, 253_402_300_799_000)
    return datetime.fromtimestamp(ms / 1_000, UTC)


_QUEUE: Final = "/queues/{name}"
_EPOCH: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": 253_402_300_799_000}
_WINDOW: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": 315_360_000_000}

OPERATIONS: Final = (
    Endpoint(method="POST", path=f"{_QUEUE}/pause", summary="Pause the queue; active jobs keep running", run=_pause,
             answers={200: record(paused=BOOLEAN)}),
    Endpoint(method="POST", path=f"{_QUEUE}/resume", summary="Resume the queue", run=_resume,
             answers={200: record(paused=BOOLEAN)}),
    Endpoint(method="GET", path=f"{_QUEUE}/counts", summary="Count the jobs in each state", run=_counts,
             answers={200: COUNTS}),
    Endpoint(method="GET", path=f"{_QUEUE}/metrics", summary="Return completed or failed jobs per minute", run=_metrics,
             query={"type": {"enum": ["completed", "failed"]},
                    "start": {"type": "integer", "minimum": -(2**53), "maximum": 2**53},
                    "end": {"type": "integer", "minimum": -(2**53), "maximum": 2**53}},
             needed=("type",), answers={200: METRICS}),
    Endpoint(method="GET", path=f"{_QUEUE}/workers", summary="List the live workers", run=_workers,
             answers={200: record(["workers"], workers=listed(WORKER))}),
    Endpoint(method="POST", path=f"{_QUEUE}/drain", summary="Delete the waiting jobs", run=_drain,
             body=record(delayed=FLAG), body_needed=False, example={"delayed": True},
             answers={200: record(delayed=BOOLEAN, drained=BOOLEAN)}),
    Endpoint(method="POST", path=f"{_QUEUE}/retry", summary="Requeue failed jobs", run=_retry,
             body=record(count=PLACE), body_needed=False, example={"count": 100}, answers={200: record(retried=COUNT)}),
    Endpoint(method="DELETE", path=f"{_QUEUE}/clean", summary="Delete finished jobs older than age (seconds)",
             run=_clean, needed=("state", "age"),
             query={"state": {"enum": ["completed", "failed"]},
                    "limit": {"type": "integer", "minimum": 0, "maximum": _MOST_CLEANED},
                    "age": {"type": "integer", "minimum": 0, "maximum": _SECONDS_MAX}},
             answers={200: record(removed=listed(TEXT))}),
    Endpoint(method="GET", path=f"{_QUEUE}/rate-limit", summary="Return the queue's rate limit", run=_rate_limit,
             answers={200: record(rateLimit=_RATED)}),
    Endpoint(method="PUT", path=f"{_QUEUE}/rate-limit", summary="Set the queue's rate limit", run=_set_rate_limit,
             body=RATE_LIMIT, example={"max": 100, "duration": 1_000}, answers={200: record(rateLimit=_RATED)}),
    Endpoint(method="DELETE", path=f"{_QUEUE}/rate-limit", summary="Remove the queue's rate limit",
             run=_no_rate_limit, answers={200: record(removed=BOOLEAN, rateLimit=_RATED)}),
    Endpoint(method="GET", path=f"{_QUEUE}/suspended", summary="List the suspended jobs", run=_suspended,
             query=RANGE, answers={200: record(["jobs", "cursor"], jobs=listed(JOB), cursor=NEXT)}),
    Endpoint(method="GET", path=f"{_QUEUE}/dlq", summary="List the queue's dead-letter entries", run=_dead_letters,
             query={"start": PLACE, "end": END, **PAGE},
             answers={200: record(count=COUNT, jobs=listed(LETTER), cursor=NEXT)}),
    Endpoint(method="POST", path=f"{_QUEUE}/dlq/replay-all", summary="Replay all dead-letter entries",
             run=_replay_all, body=record(count={"type": "integer", "minimum": 1, "maximum": 2**31 - 1}),
             body_needed=False, example={"count": 10},
             query={"count": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}},
             answers={200: record(jobs=listed(record(id=TEXT, name=TEXT, sourceId=TEXT)), replayed=COUNT)}),
    Endpoint(method="GET", path=f"{_QUEUE}/dlq/{{id}}", summary="Return a dead-letter entry", run=_letter,
             answers={200: LETTER}),
    Endpoint(method="DELETE", path=f"{_QUEUE}/dlq/{{id}}", summary="Delete a dead-letter entry", run=_remove_letter,
             answers={200: record(removed=BOOLEAN)}),
    Endpoint(method="POST", path=f"{_QUEUE}/dlq/{{id}}/replay", summary="Replay a dead-letter entry",
             run=_replay, answers={200: record(name=TEXT, newJobId=TEXT)}),
    Endpoint(method="GET", path=f"{_QUEUE}/flows/{{id}}/usage", summary="Return the usage of a job and its children",
             run=_flow_usage, answers={200: FLOW_USAGE}),
    Endpoint(method="GET", path=f"{_QUEUE}/flows/{{id}}/budget", summary="Return a flow's budget", run=_flow_budget,
             answers={200: FLOW_BUDGET}),
    Endpoint(method="GET", path="/usage/summary", summary="Return the usage of queues in a period",
             run=_usage_summary,
             query={"queues": {"type": "string", "description": "Comma-separated names."}, "start": _EPOCH,
                    "end": _EPOCH, "window": _WINDOW, "windowMs": _WINDOW},
             answers={200: USAGE_SUMMARY}),
)  # fmt: skip
