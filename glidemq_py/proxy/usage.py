"""Endpoints for usage and budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import WithJsonSchema
from starlette.responses import Response

from glidemq_py._api.queue_names import get_usage_summary
from glidemq_py._features import usage
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.proxy import request_models as given
from glidemq_py.proxy.pages import Whole
from glidemq_py.proxy.response_models import like, model_of
from glidemq_py.proxy.responses import NotFoundError, answer, camel
from glidemq_py.proxy.routing import endpoints
from glidemq_py.proxy.state import OpenQueue, State

__all__ = ["FlowBudget", "FlowUsage", "router"]

FlowUsage = model_of(usage.FlowUsage)
FlowBudget = model_of(usage.FlowBudget)
_QueueUsage = model_of(usage.QueueUsage)
_UsageSummary = model_of(
    usage.UsageSummary, {"bucketSize": "bucketSizeMs"}, perQueue=dict[str, Annotated[Any, like(_QueueUsage)]]
)

router = endpoints()


@router.get(
    "/queues/{name}/flows/{id}/usage", summary="Return the usage of a job and its children", response_model=FlowUsage
)
async def flow_usage(queue: OpenQueue, id: given.JobId) -> Response:
    used = await queue.usage.get_flow(id)
    if not used.job_count and await queue.get_job(id, exclude_data=True) is None:
        raise NotFoundError(f"flow {id!r} not found")
    return answer(camel(used))


@router.get("/queues/{name}/flows/{id}/budget", summary="Return a flow's budget", response_model=FlowBudget)
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


@router.get("/usage/summary", summary="Return the usage of queues in a period", response_model=_UsageSummary)
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
