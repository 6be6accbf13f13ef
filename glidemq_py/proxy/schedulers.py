"""Endpoints to create, change, read and remove job schedulers."""

from __future__ import annotations

from typing import Any, Final, cast

from starlette.responses import Response

from glidemq_py._core.checks import reject_unknown
from glidemq_py._features.schedulers.entry import JobScheduler, schedule_keys
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.proxy.answering import answer, encode
from glidemq_py.proxy.endpoint import Endpoint, Exchange
from glidemq_py.proxy.listing import PAGE, check_limit, fill_page, open_cursor, page_answer, seal_cursor
from glidemq_py.proxy.refusals import NothingThereError
from glidemq_py.proxy.schemas import (
    BOOLEAN,
    DATA,
    ENTRY,
    JOB_NAME,
    JOB_OPTIONS,
    NEXT,
    SCHEDULE,
    TEXT,
    listed,
    record,
)  # fmt: skip
from glidemq_py.proxy.shapes import job_options, members_of, snake

__all__ = ["SCHEDULERS"]


def _entry(scheduler: JobScheduler) -> dict[str, Any]:
    entry: dict[str, Any] = {
        **schedule_keys(scheduler.schedule),
        "template": {"name": scheduler.job_name, "data": scheduler.data, "opts": scheduler.options.to_wire()},
        "nextRun": scheduler.next_run, "lastRun": scheduler.last_run, "iterationCount": scheduler.iteration_count,
        "lastJobId": scheduler.last_job_id,
    }  # fmt: skip
    return {"name": scheduler.name, "entry": {key: value for key, value in entry.items() if value is not None}}


async def _schedulers(exchange: Exchange) -> Response:
    place, limit = f"schedulers {exchange.path['name']}", check_limit(exchange)
    after = open_cursor(place, exchange.query.get("cursor"))
    # They are stored without an order: keep only those of this page, and one more.
    page: dict[str, bytes] = {}
    async for each in exchange.queue._schedulers():
        if each.name > after:
            page[each.name] = encode(_entry(each))
        if len(page) > 2 * limit:
            page = _first(page, limit + 1)
    page = _first(page, limit + 1)
    texts = fill_page(list(page.values())[:limit], exchange.state.options.max_response)
    cursor = seal_cursor(place, list(page)[len(texts) - 1]) if len(texts) < len(page) else ""
    return page_answer("schedulers", texts, cursor)


def _first(page: dict[str, bytes], count: int) -> dict[str, bytes]:
    return {name: page[name] for name in sorted(page)[:count]}


async def _scheduler(exchange: Exchange) -> Response:
    found = await exchange.queue.get_job_scheduler(exchange.path["scheduler"])
    if found is None:
        raise _missing(exchange)
    return answer(_entry(found))


async def _put_scheduler(exchange: Exchange) -> Response:
    given = members_of(exchange.needed("schedule"), "schedule", SCHEDULE["properties"])
    options = {snake(name): value for name, value in given.items()}
    template = _template(exchange.body["template"]) if "template" in exchange.body else None
    await exchange.queue.upsert_job_scheduler(exchange.path["scheduler"], **options, template=template)
    return answer({"upserted": True})


def _template(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise GlideMQValidationError("template", given, "must be an object")
    template = dict(cast("dict[str, Any]", given))
    for name, value in template.items():
        if name not in _TEMPLATE["properties"]:
            reject_unknown(f"template.{name}", value, list(_TEMPLATE["properties"]))
    if "opts" in template:
        template["options"] = job_options(template, "template.")
        del template["opts"]
    return template


async def _remove_scheduler(exchange: Exchange) -> Response:
    if not await exchange.queue.remove_job_scheduler(exchange.path["scheduler"]):
        raise _missing(exchange)
    return answer({"removed": True})


def _missing(exchange: Exchange) -> NothingThereError:
    return NothingThereError(f"scheduler {exchange.path['scheduler']!r} not found")


_TEMPLATE: Final = record(None, name=JOB_NAME, data=DATA, opts=JOB_OPTIONS)
_ALL: Final = "/queues/{name}/schedulers"
_ONE: Final = "/queues/{name}/schedulers/{scheduler}"
_FOUND: Final = record(["name", "entry"], name=TEXT, entry=ENTRY)

SCHEDULERS: Final = (
    Endpoint(method="GET", path=_ALL, summary="List the queue's schedulers", run=_schedulers, query=PAGE,
             answers={200: record(["schedulers", "cursor"], schedulers=listed(_FOUND), cursor=NEXT)}),
    Endpoint(method="GET", path=_ONE, summary="Return a scheduler", run=_scheduler, answers={200: _FOUND}),
    Endpoint(method="PUT", path=_ONE, summary="Create or update a scheduler", run=_put_scheduler,
             body=record(["schedule"], schedule=SCHEDULE, template=_TEMPLATE),
             example={"schedule": {"pattern": "0 3 * * *", "tz": "Europe/Paris"},
                      "template": {"name": "report", "data": {"kind": "daily"}, "opts": {"attempts": 3}}},
             answers={200: record(upserted=BOOLEAN)}),
    Endpoint(method="DELETE", path=_ONE, summary="Remove a scheduler; its jobs are kept",
             run=_remove_scheduler, answers={200: record(removed=BOOLEAN)}),
)  # fmt: skip
