"""Endpoints to add trees and graphs of jobs, read them, and revoke their unfinished jobs.

The record of a flow has its jobs and roots (docs/reference/data-model.md). It is written after the flow was added. The
key that makes it visible is written last. All its keys are in one slot.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict, cast

from starlette.responses import Response

from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._api.flow_reading import JobNode, read_flow, read_jobs
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import pieces
from glidemq_py._core.calls.administration import registry_add, registry_set
from glidemq_py._core.keys import flow_key
from glidemq_py._core.option_values import JobRef
from glidemq_py._core.record import JobState
from glidemq_py._features.flows.definition import DagNode, FlowJob
from glidemq_py._features.queue_list import scan_members
from glidemq_py._features.usage import FlowBudget, FlowUsage
from glidemq_py._features.usage_summaries import sum_usage
from glidemq_py._job.job import Job
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.proxy import models as given
from glidemq_py.proxy.models import AsText, Count, NextCursor, Payload
from glidemq_py.proxy.responses import (
    ONE_PAGE,
    NotFoundError,
    PageQuery,
    RequestError,
    camel,
    encode,
    fill_page,
    open_cursor,
    page_answer,
    seal_cursor,
    view_of,
)
from glidemq_py.proxy.routing import Endpoints
from glidemq_py.proxy.state import ProxyState

_MEMBERS_PER_CALL: Final = 1_000
_ID: Final = re.compile(r"[^{}\x00-\x1f\x7f]{1,256}")

FlowKind = Literal["tree", "dag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRecord:
    """The record of a flow.

    Attributes:
        flow_id: random, unique across queues.
        kind: tree or graph.
        created_at: epoch ms by the server's clock.
        roots: jobs without a parent in the flow.
        jobs: all jobs, roots included; by queue, older ids first.
    """

    flow_id: str
    kind: FlowKind
    created_at: int
    roots: list[JobRef]
    jobs: list[JobRef]


def check_flow_id(flow_id: str) -> str:
    """Return `flow_id` if it is a valid id.

    Raises:
        GlideMQValidationError: if it is not.
    """
    if _ID.fullmatch(flow_id) is None:
        raise GlideMQValidationError("flowId", flow_id, "must be 1 to 256 characters, no braces or control characters")
    return flow_id


async def keep_flow(transport: Transport, prefix: str, record: FlowRecord) -> None:
    """Write a record. Raises the errors of `Transport.command`."""
    for part, refs in (("jobs", record.jobs), ("roots", record.roots)):
        members = [f"{ref.queue}:{ref.id}" for ref in refs]
        key = flow_key(prefix, record.flow_id, cast("Literal['jobs', 'roots']", part))
        for piece in pieces(members, _MEMBERS_PER_CALL):
            await transport.call(registry_add(key, piece))
    meta = flow_key(prefix, record.flow_id, "meta")
    await transport.call(registry_set(meta, {"createdAt": str(record.created_at), "kind": record.kind}))


async def read_record(transport: Transport, prefix: str, flow_id: str) -> FlowRecord | None:
    """Return a record, or None if it does not exist."""
    created, kind = await transport.command("HMGET", flow_key(prefix, flow_id, "meta"), "createdAt", "kind")
    if created is None and kind is None:
        return None
    return FlowRecord(
        flow_id=flow_id,
        kind="dag" if kind == b"dag" else "tree",
        created_at=int(created) if created and created.isdigit() else 0,
        roots=await _refs(transport, flow_key(prefix, flow_id, "roots")),
        jobs=await _refs(transport, flow_key(prefix, flow_id, "jobs")),
    )


async def forget_flow(transport: Transport, prefix: str, flow_id: str) -> None:
    """Delete a record; its jobs are kept."""
    await transport.command(
        "UNLINK", flow_key(prefix, flow_id, "meta"), flow_key(prefix, flow_id, "jobs"),
        flow_key(prefix, flow_id, "roots"),
    )  # fmt: skip


async def _refs(transport: Transport, key: str) -> list[JobRef]:
    found: list[JobRef] = []
    async for page in scan_members(transport, key):
        for queue, _, job_id in (member.partition(":") for member in page):
            if queue and job_id:
                found.append(JobRef(queue, job_id))
    return sorted(found, key=lambda ref: (ref.queue, len(ref.id), ref.id))


_AT_A_TIME: Final = 100
_LEAST_READ: Final = 10_000
_DEEPEST: Final = 100
"""Maximum levels of a tree in one request or response: other JSON parsers limit nesting."""
_ENDED: Final = (JobState.COMPLETED, JobState.FAILED, None)

endpoints = Endpoints("/flows")


def _producer(proxy: ProxyState) -> FlowProducer:
    # One per request: a producer keeps a link to every queue it was used with.
    options = proxy.options
    return FlowProducer(proxy.connection, prefix=options.prefix, compression=options.compression, events=options.events)


# -- models ----------------------------------------------------------------------------------------------------


class FlowRef(TypedDict):
    """A job of a flow."""

    id: str
    queueName: str
    name: NotRequired[str | None]


class AddedFlow(TypedDict):
    """A flow that was added: the root of a tree, or the jobs of a graph by name."""

    flowId: str
    kind: Literal["tree", "dag"]
    nodeCount: Count
    roots: list[FlowRef]
    root: NotRequired[FlowRef]
    jobs: NotRequired[dict[str, FlowRef]]


class FlowMember(TypedDict):
    """A job of a flow and its state, which is null if the job no longer exists."""

    id: str
    queueName: str
    name: str | None
    state: str | None
    timestamp: int
    attemptsMade: int
    progress: Payload
    failedReason: str | None
    processedOn: int | None
    finishedOn: int | None
    asText: NotRequired[AsText]


class FlowTree(FlowMember):
    """A job of a flow with its children; `more` if they are not shown here."""

    children: NotRequired[list[FlowTree | FlowRef]]
    more: NotRequired[Literal[True]]


class _FlowSummary(TypedDict):
    flowId: str
    kind: Literal["tree", "dag"]
    createdAt: int
    counts: dict[str, Count]
    roots: list[FlowRef]
    usage: FlowUsage
    budget: FlowBudget | None


class FlowPage(_FlowSummary):
    """A flow with a page of its jobs."""

    nodes: list[FlowMember]
    cursor: NextCursor


class FlowTrees(_FlowSummary):
    """A flow with a tree for each root."""

    tree: list[FlowTree | FlowRef]


class RevokedFlowJob(TypedDict):
    """A job of a revoked flow."""

    id: str
    queueName: str
    status: Literal["revoked", "flagged", "skipped"]


class RevokedFlow(TypedDict):
    """The outcomes of revoking a flow."""

    flowId: str
    revoked: Count
    flagged: Count
    skipped: Count
    jobs: list[RevokedFlowJob]


# -- adding ----------------------------------------------------------------------------------------------------


@endpoints(
    "POST", "", {201: AddedFlow}, role="producer",
    flow={"name": "report", "queueName": "reports", "children": [
        {"name": "rows", "queueName": "extract", "data": {"day": 20}, "opts": {"attempts": 3}},
    ]},
    budget={"maxTotalTokens": 100_000},
)  # fmt: skip
async def add_flow(proxy: ProxyState, body: given.OneFlow) -> AddedFlow:
    """Add a flow: a tree or a graph of jobs."""
    flow_id = secrets.token_hex(12)
    async with _producer(proxy) as producer:
        producer._flow_id = flow_id
        if "flow" in body and "dag" not in body:
            top = await producer.add(_tree(body["flow"], proxy.check_allowed), budget=body.get("budget"))
            jobs = [node.job for node in top.walk()]
            added = await _kept(proxy, producer, flow_id, "tree", jobs, [top.job])
            added["root"] = added["roots"][0]
        elif "dag" in body and "flow" not in body:
            if "budget" in body:
                raise GlideMQValidationError("budget", body["budget"], "requires 'flow'")
            nodes = _graph(body["dag"], proxy.check_allowed)
            by_name = await producer.add_dag(nodes)
            waited_for = {dep for node in nodes for dep in node.deps}
            roots = [job for name, job in by_name.items() if name not in waited_for]
            added = await _kept(proxy, producer, flow_id, "dag", list(by_name.values()), roots)
            added["jobs"] = {name: _ref_view(_ref(job)) for name, job in by_name.items()}
        else:
            raise GlideMQValidationError("flow", sorted(body), "must have exactly one of 'flow' and 'dag'")
    return added


def _tree(
    job: given.FlowJobBody, check: Callable[[str, str], None], where: str = "flow", level: int = 1
) -> FlowJob:  # fmt: skip
    """Return the tree of a request; ``check`` raises if a queue may not be used."""
    if level > _DEEPEST:
        raise GlideMQValidationError("flow", where, f"must be at most {_DEEPEST} levels deep over HTTP")
    check(job["queue_name"], f"{where}.queueName")
    below = enumerate(job.get("children", ()))
    children = [_tree(child, check, f"{where}.children[{i}]", level + 1) for i, child in below]
    return FlowJob(job["name"], job["queue_name"], job.get("data"), job.get("opts"), children)


def _graph(dag: given.Dag, check: Callable[[str, str], None]) -> list[DagNode]:
    """Return the graph of a request; see `_tree`."""
    for i, node in enumerate(dag["nodes"]):
        check(node["queue_name"], f"dag.nodes[{i}].queueName")
    return [
        DagNode(node["name"], node["queue_name"], node.get("data"), node.get("opts"), node.get("deps", []))
        for node in dag["nodes"]
    ]


async def _kept(
    proxy: ProxyState, producer: FlowProducer, flow_id: str, kind: FlowKind, jobs: list[Job],
    roots: list[Job],
) -> AddedFlow:  # fmt: skip
    made = FlowRecord(
        flow_id=flow_id, kind=kind, created_at=jobs[0].timestamp, roots=[_ref(job) for job in roots],
        jobs=[_ref(job) for job in jobs],
    )  # fmt: skip
    await keep_flow(await producer._connected(), proxy.options.prefix, made)
    return {
        "flowId": flow_id, "kind": kind, "nodeCount": len(jobs),
        "roots": [{"id": job.id, "queueName": job.queue_name, "name": job.name} for job in roots],
    }  # fmt: skip


def _ref(job: Job) -> JobRef:
    return JobRef(job.queue_name, job.id)


def _ref_view(ref: JobRef) -> FlowRef:
    return {"id": ref.id, "queueName": ref.queue}


# -- reading ---------------------------------------------------------------------------------------------------


async def _allowed(proxy: ProxyState, producer: FlowProducer, flow: str) -> tuple[FlowRecord, dict[JobRef, JobNode]]:
    """Return a flow that clients may use, and its jobs."""
    flow_id = check_flow_id(flow)
    found = await read_record(await producer._connected(), proxy.options.prefix, flow_id)
    if found is None:
        raise NotFoundError(f"flow {flow_id!r} not found")
    for queue in {ref.queue for ref in found.jobs}:
        proxy.check_allowed(queue)
    return found, await read_jobs(found.jobs, producer._link)


async def _summary(
    proxy: ProxyState, producer: FlowProducer, found: FlowRecord, nodes: dict[JobRef, JobNode]
) -> dict[str, Any]:
    by_meta: dict[str, list[str]] = {}
    for ref in found.jobs:
        job = nodes[ref].job
        by_meta.setdefault(job._link.keys.meta, []).append(job._stored_id)
    budget = None
    if found.roots:
        root = found.roots[0]
        budget = await proxy.queue(root.queue).usage.get_budget(root.id)
    counts = Counter(str(nodes[ref].state or "gone") for ref in found.jobs)
    return {
        "flowId": found.flow_id, "kind": found.kind, "createdAt": found.created_at, "counts": dict(counts),
        "roots": [{**_ref_view(ref), "name": nodes[ref].job.name if ref in nodes else None} for ref in found.roots],
        "usage": camel(await sum_usage(await producer._connected(), by_meta)),
        "budget": camel(budget),
    }  # fmt: skip


@endpoints("GET", "/{flow}", FlowPage, query=ONE_PAGE)
async def flow(proxy: ProxyState, flow: str, page: PageQuery) -> Response:
    """Return a flow with a page of its jobs."""
    async with _producer(proxy) as producer:
        found, nodes = await _allowed(proxy, producer, flow)
        summary = await _summary(proxy, producer, found, nodes)
    # A record never changes, so that a position in it is a cursor.
    place = f"flow {found.flow_id}"
    position = int(open_cursor(place, page.cursor) or "0")
    refs = found.jobs[position : position + page.limit]
    texts = fill_page((encode(_node_view(nodes[ref])) for ref in refs), proxy.options.max_response)
    position += len(texts)
    cursor = seal_cursor(place, str(position)) if position < len(found.jobs) else ""
    return page_answer("nodes", texts, cursor, **summary)


@endpoints("GET", "/{flow}/tree", FlowTrees)
async def flow_tree(proxy: ProxyState, flow: str) -> Response:
    """Return a flow as a tree."""
    allowed = proxy.options.queues
    async with _producer(proxy) as producer:
        found, nodes = await _allowed(proxy, producer, flow)
        summary = await _summary(proxy, producer, found, nodes)
        trees: list[Any] = []
        for root in found.roots:
            top = await read_flow(root, producer._link, _DEEPEST, max(_LEAST_READ, len(found.jobs)))
            start = top or nodes.get(root)
            if start is not None:
                trees.append(_tree_view(start, lambda queue: allowed is None or queue in allowed))
    text, most = encode({**summary, "tree": trees}), proxy.options.max_response
    if len(text) > most:
        raise RequestError(
            413, "too_large", f"tree of {len(text)} bytes: must be at most {most}; use GET /flows/{{id}}"
        )
    return Response(text, media_type="application/json")


def _node_view(node: JobNode) -> Any:
    """Return a job of a flow as JSON; ``state`` is null if the job no longer exists."""
    job = node.job
    return view_of(FlowMember, job, name=job.name or None, state=node.state)


def _tree_view(root: JobNode, may_show: Callable[[str], bool]) -> dict[str, Any]:
    """Return a job of a flow with its children as JSON.

    A job with several parents has its children at its first occurrence and ``more`` at the others. A job at the
    maximum depth has ``more`` as well. A job in a queue that may not be used is reduced to its reference.
    """
    top: dict[str, Any] = {}
    seen: set[int] = set()
    waiting: list[tuple[JobNode, dict[str, Any], int]] = [(root, top, 1)]
    for node, view, level in waiting:  # grows during iteration
        if not may_show(node.job.queue_name):
            view.update(_ref_view(_ref(node.job)))
            continue
        view.update(_node_view(node))
        if not node.children:
            continue
        if id(node) in seen or level >= _DEEPEST:
            view["more"] = True
            continue
        seen.add(id(node))
        below: list[dict[str, Any]] = [{} for _ in node.children]
        view["children"] = below
        waiting += [(child, inside, level + 1) for child, inside in zip(node.children, below, strict=True)]
    return top


# -- revoking --------------------------------------------------------------------------------------------------


@endpoints("DELETE", "/{flow}", RevokedFlow)
async def revoke_flow(proxy: ProxyState, flow: str) -> Any:
    """Revoke the unfinished jobs of a flow and delete its record."""
    async with _producer(proxy) as producer:
        found, nodes = await _allowed(proxy, producer, flow)
        outcomes = dict.fromkeys(found.jobs, "skipped")
        running = [ref for ref in found.jobs if nodes[ref].state not in _ENDED]
        # Parents first, one by one: revoking a child fails its parents, which should be revoked instead.
        roots = set(found.roots)
        parents = [ref for ref in running if nodes[ref].state is JobState.WAITING_CHILDREN]
        for ref in sorted(parents, key=lambda ref: ref not in roots):
            now = (await read_jobs([ref], producer._link))[ref].state
            if now not in _ENDED:
                outcomes[ref] = await nodes[ref].job.revoke()
        others = [ref for ref in running if nodes[ref].state is not JobState.WAITING_CHILDREN]
        for some in pieces(others, _AT_A_TIME):
            statuses = await asyncio.gather(*(nodes[ref].job.revoke() for ref in some))
            outcomes.update(zip(some, statuses, strict=True))
        await forget_flow(await producer._connected(), proxy.options.prefix, found.flow_id)
    counts = Counter("skipped" if outcome == "not_found" else outcome for outcome in outcomes.values())
    return {
        "flowId": found.flow_id, "revoked": counts["revoked"], "flagged": counts["flagged"],
        "skipped": counts["skipped"],
        "jobs": [{**_ref_view(ref), "status": outcome.replace("not_found", "skipped")}
                 for ref, outcome in outcomes.items()],
    }  # fmt: skip
