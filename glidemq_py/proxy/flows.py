"""Endpoints to add trees and graphs of jobs, read them, and revoke their unfinished jobs."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from typing import Any, Final

from starlette.responses import Response

from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._core.job_states import JobState
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.flows.parent_option import JobRef
from glidemq_py._features.flows.reading import JobNode, read_flow, read_jobs
from glidemq_py._features.usage.queue_api import sum_usage
from glidemq_py._job import Job
from glidemq_py._job.control import revoke
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.proxy.answering import answer, encode
from glidemq_py.proxy.camel import camel
from glidemq_py.proxy.endpoint import Endpoint, Exchange
from glidemq_py.proxy.flow_record import (
    FlowKind,
    FlowRecord,
    check_flow_id,
    forget_flow,
    keep_flow,
    read_flow_record,
)  # fmt: skip
from glidemq_py.proxy.flow_shapes import DEEPEST, budget_of, dag_of, node_shape, ref_shape, tree_of, tree_shape
from glidemq_py.proxy.listing import PAGE, check_limit, fill_page, open_cursor, page_answer, seal_cursor
from glidemq_py.proxy.refusals import NothingThereError, ResponseTooLargeError
from glidemq_py.proxy.schemas import (
    BUDGET,
    COUNT,
    FLOW_MEMBER,
    FLOW_NODE,
    FLOW_REF,
    FLOW_SUMMARY,
    NEXT,
    TEXT,
    listed,
    record,
    schema_of,
)  # fmt: skip

__all__ = ["FLOWS"]

_AT_A_TIME: Final = 100
_LEAST_READ: Final = 10_000
_ENDED: Final = (JobState.COMPLETED, JobState.FAILED, None)


def _producer(exchange: Exchange) -> FlowProducer:
    # One per request: a producer keeps a link to every queue it was used with.
    options = exchange.state.options
    return FlowProducer(
        exchange.state.client, prefix=options.prefix, compression=options.compression, events=options.events
    )


# -- adding ----------------------------------------------------------------------------------------------------


async def _add_flow(exchange: Exchange) -> Response:
    body = exchange.body
    if ("flow" in body) == ("dag" in body):
        raise GlideMQValidationError("flow", sorted(body), "must have exactly one of 'flow' and 'dag'")
    check = exchange.state.check_allowed
    flow_id = secrets.token_hex(12)
    async with _producer(exchange) as producer:
        producer._flow_id = flow_id
        if "flow" in body:
            budget = budget_of(body["budget"]) if "budget" in body else None
            top = await producer.add(tree_of(body["flow"], check), budget=budget)
            jobs = [node.job for node in top.walk()]
            shape = await _kept(exchange, producer, flow_id, "tree", jobs, [top.job])
            shape["root"] = shape["roots"][0]
        else:
            if "budget" in body:
                raise GlideMQValidationError("budget", body["budget"], "requires 'flow'")
            nodes = dag_of(body["dag"], check)
            added = await producer.add_dag(nodes)
            waited_for = {dep for node in nodes for dep in node.deps}
            roots = [job for name, job in added.items() if name not in waited_for]
            shape = await _kept(exchange, producer, flow_id, "dag", list(added.values()), roots)
            shape["jobs"] = {name: ref_shape(_ref(job)) for name, job in added.items()}
    return answer(shape, 201)


async def _kept(
    exchange: Exchange, producer: FlowProducer, flow_id: str, kind: FlowKind, jobs: list[Job[Any, Any]],
    roots: list[Job[Any, Any]],
) -> dict[str, Any]:  # fmt: skip
    made = FlowRecord(
        flow_id=flow_id, kind=kind, created_at=jobs[0].timestamp, roots=[_ref(job) for job in roots],
        jobs=[_ref(job) for job in jobs],
    )  # fmt: skip
    await keep_flow(await producer._connected(), exchange.state.options.prefix, made)
    return {
        "flowId": flow_id, "kind": kind, "nodeCount": len(jobs),
        "roots": [{**ref_shape(_ref(job)), "name": job.name} for job in roots],
    }  # fmt: skip


def _ref(job: Job[Any, Any]) -> JobRef:
    return JobRef(job.queue_name, job.id)


# -- reading ---------------------------------------------------------------------------------------------------


async def _record(exchange: Exchange, producer: FlowProducer) -> FlowRecord:
    flow_id = check_flow_id(exchange.path["flow"])
    found = await read_flow_record(await producer._connected(), exchange.state.options.prefix, flow_id)
    if found is None:
        raise NothingThereError(f"flow {flow_id!r} not found")
    for queue in {ref.queue for ref in found.jobs}:
        exchange.state.check_allowed(queue)
    return found


async def _summary(
    exchange: Exchange, producer: FlowProducer, found: FlowRecord, nodes: dict[JobRef, JobNode]
) -> dict[str, Any]:
    by_meta: dict[str, list[str]] = {}
    for ref in found.jobs:
        by_meta.setdefault(QueueKeys(exchange.state.options.prefix, ref.queue).meta, []).append(ref.id)
    budget = None
    if found.roots:
        root = found.roots[0]
        budget = await exchange.state.queue(root.queue).get_flow_budget(root.id)
    counts = Counter(str(nodes[ref].state or "gone") for ref in found.jobs)
    return {
        "flowId": found.flow_id, "kind": found.kind, "createdAt": found.created_at, "counts": dict(counts),
        "roots": [{**ref_shape(ref), "name": nodes[ref].job.name if ref in nodes else None} for ref in found.roots],
        "usage": camel(await sum_usage(await producer._connected(), by_meta)),
        "budget": camel(budget),
    }  # fmt: skip


async def _flow(exchange: Exchange) -> Response:
    async with _producer(exchange) as producer:
        found = await _record(exchange, producer)
        nodes = await read_jobs(found.jobs, producer._link)
        summary = await _summary(exchange, producer, found, nodes)
    # A record never changes, so that a position in it is a cursor.
    place = f"flow {found.flow_id}"
    position = int(open_cursor(place, exchange.query.get("cursor")) or "0")
    refs = found.jobs[position : position + check_limit(exchange)]
    texts = fill_page((encode(node_shape(nodes[ref])) for ref in refs), exchange.state.options.max_response)
    position += len(texts)
    cursor = seal_cursor(place, str(position)) if position < len(found.jobs) else ""
    return page_answer("nodes", texts, cursor, **summary)


async def _flow_tree(exchange: Exchange) -> Response:
    allowed = exchange.state.options.queues
    async with _producer(exchange) as producer:
        found = await _record(exchange, producer)
        nodes = await read_jobs(found.jobs, producer._link)
        summary = await _summary(exchange, producer, found, nodes)
        trees: list[Any] = []
        for root in found.roots:
            top = await read_flow(root, producer._link, DEEPEST, max(_LEAST_READ, len(found.jobs)))
            shown = top or nodes.get(root)
            if shown is not None:
                trees.append(tree_shape(shown, lambda queue: allowed is None or queue in allowed))
    text, most = encode({**summary, "tree": trees}), exchange.state.options.max_response
    if len(text) > most:
        raise ResponseTooLargeError(f"tree of {len(text)} bytes: must be at most {most}; use GET /flows/{{id}}")
    return Response(text, media_type="application/json")


# -- revoking --------------------------------------------------------------------------------------------------


async def _revoke_flow(exchange: Exchange) -> Response:
    async with _producer(exchange) as producer:
        found = await _record(exchange, producer)
        outcomes = dict.fromkeys(found.jobs, "skipped")
        nodes = await read_jobs(found.jobs, producer._link)
        running = [ref for ref in found.jobs if nodes[ref].state not in _ENDED]
        # Parents first, one by one: revoking a child fails its parents, which should be revoked instead.
        roots = set(found.roots)
        parents = [ref for ref in running if nodes[ref].state is JobState.WAITING_CHILDREN]
        for ref in sorted(parents, key=lambda ref: ref not in roots):
            now = (await read_jobs([ref], producer._link))[ref].state
            if now not in _ENDED:
                outcomes[ref] = await revoke(producer._link(ref.queue), ref.id)
        others = [ref for ref in running if nodes[ref].state is not JobState.WAITING_CHILDREN]
        for i in range(0, len(others), _AT_A_TIME):
            some = others[i : i + _AT_A_TIME]
            statuses = await asyncio.gather(*(revoke(producer._link(ref.queue), ref.id) for ref in some))
            outcomes.update(zip(some, statuses, strict=True))
        await forget_flow(await producer._connected(), exchange.state.options.prefix, found.flow_id)
    counts = Counter("skipped" if outcome == "not_found" else outcome for outcome in outcomes.values())
    return answer({
        "flowId": found.flow_id, "revoked": counts["revoked"], "flagged": counts["flagged"],
        "skipped": counts["skipped"],
        "jobs": [{**ref_shape(ref), "status": outcome.replace("not_found", "skipped")}
                 for ref, outcome in outcomes.items()],
    })  # fmt: skip


_STATUS: Final = record(id=TEXT, queueName=TEXT, status={"enum": ["revoked", "flagged", "skipped"]})
_ONE: Final = "/flows/{flow}"

FLOWS: Final = (
    Endpoint(
        method="POST", path="/flows", summary="Add a flow: a tree or a graph of jobs", run=_add_flow,
        body={
            **record(None, flow=schema_of("FlowJob"), dag=record(["nodes"], nodes={**listed(FLOW_NODE), "minItems": 1}),
                     budget=BUDGET),
            "oneOf": [{"required": ["flow"]}, {"required": ["dag"]}],
            "description": "Exactly one of flow and dag; budget requires flow.",
        },
        example={
            "flow": {"name": "report", "queueName": "reports", "children": [
                {"name": "rows", "queueName": "extract", "data": {"day": 20}, "opts": {"attempts": 3}},
            ]},
            "budget": {"maxTotalTokens": 100_000},
        },
        answers={201: record(
            ["flowId", "kind", "nodeCount", "roots"], flowId=TEXT, kind={"enum": ["tree", "dag"]}, nodeCount=COUNT,
            root=FLOW_REF, roots=listed(FLOW_REF), jobs={"type": "object", "additionalProperties": FLOW_REF},
        )},
    ),
    Endpoint(method="GET", path=_ONE, summary="Return a flow with all its jobs", run=_flow, query=PAGE,
             answers={200: record([*FLOW_SUMMARY, "nodes", "cursor"], **FLOW_SUMMARY, nodes=listed(FLOW_MEMBER),
                                  cursor=NEXT)}),
    Endpoint(method="GET", path=f"{_ONE}/tree", summary="Return a flow as a tree", run=_flow_tree,
             answers={200: record([*FLOW_SUMMARY, "tree"], **FLOW_SUMMARY, tree=listed(schema_of("FlowTree")))}),
    Endpoint(method="DELETE", path=_ONE, summary="Revoke the unfinished jobs of a flow and delete its record",
             run=_revoke_flow,
             answers={200: record(flowId=TEXT, revoked=COUNT, flagged=COUNT, skipped=COUNT, jobs=listed(_STATUS))}),
)  # fmt: skip
