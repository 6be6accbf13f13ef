"""PUSHF and the commands about the children of a job."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from glidemq_py._core.calls import pieces
from glidemq_py._core.logs import get_logger
from glidemq_py._core.option_values import JobRef
from glidemq_py._core.payload import PackedValue
from glidemq_py._features.dependencies import add_dependency
from glidemq_py._features.flows.adding import UnfinishedFlowError
from glidemq_py._features.flows.children import children_of, ref_of_member
from glidemq_py._features.flows.definition import DagNode
from glidemq_py._features.flows.plan import Planned, plan_dag
from glidemq_py._job.job import Job
from glidemq_py._partitions.layout import split_partition_id
from glidemq_py.errors import (
    AmbiguousResultError,
    DuplicateJobError,
    DurabilityError,
    GlideMQError,
    GlideMQValidationError,
    JobNotFoundError,
    JobStateError,
)
from glidemq_py.gateway.chosen_ids import chosen_of, engine_id
from glidemq_py.gateway.job_objects import UNSTARTED, job_object
from glidemq_py.gateway.listing import find_job, job_at
from glidemq_py.gateway.names import MARK, QueueNameError, check_wire_name, engine_name, queue_of_part, wire_name
from glidemq_py.gateway.push_options import CHILD_POLICIES, FLOW_FIELDS, Push, child_policy, push_of, reject_keys
from glidemq_py.gateway.session import Commands, Session
from glidemq_py.gateway.table import (
    JOB,
    Answer,
    CommandError,
    Field,
    Given,
    Kind,
    check_all,
    check_field,
    is_list,
    is_map,
)

COMMANDS: Final = Commands()

_log = get_logger(__name__)

_MOST_JOBS: Final = 10_000
_MOST_CHILDREN: Final = 1_000
_READ_TOGETHER: Final = 500


class _FlowJob(NamedTuple):
    """A job of PUSHF."""

    id: str
    """On the wire."""
    queue: str
    """In this package."""
    push: Push
    needs: tuple[str, ...]
    """Ids on the wire of the jobs of the flow that it waits for."""
    family: dict[str, Any]
    """The fields of its object about parents and children."""
    policy: str
    """Effect on the jobs that wait for it if it fails."""
    is_durable: bool


# -- adding ----------------------------------------------------------------------------------------------------


@COMMANDS("PUSHF", "core", "", Kind.LIST("jobs", required=True))
async def _push_flow(session: Session, given: Given) -> Answer:
    """Add the jobs of a flow, all or none.

    Each has `id`, `queue`, and `input` with the fields of `PUSH`, `childrenIds`, `parentId` and what its
    failure does to jobs that wait for it.
    """
    jobs = await _checked(session, given["jobs"])
    if not jobs:
        return {"data": {"jobs": []}}
    plan = await _planned(session, jobs)
    queues = list(dict.fromkeys(job.queue for job in jobs))
    claimed: dict[str, str] = {}
    for queue in queues:
        opened = await session.state.queue(queue)
        session.state.maintain(opened)
        known = await session.state.ids.claim(queue, [job.id for job in jobs if job.queue == queue], claimed, opened)
        if known:
            raise CommandError(f"flow job already exists: {min(known)}")
    try:
        is_complete = await _add(session, jobs, plan)
    except DuplicateJobError as error:
        own = split_partition_id(error.job_id)[1]
        raise CommandError(f"flow job already exists: {chosen_of(own) or own}") from None
    if is_complete:
        session.state.ids.chosen.added(claimed)
    snapshots: list[dict[str, Any]] = []
    for some in pieces(jobs, _READ_TOGETHER):
        snapshots += await asyncio.gather(*(_snapshot(session, job) for job in some))
    for queue in queues:
        session.state.changed({"queue": queue})
    return {"data": {"jobs": snapshots}}


async def _add(session: Session, jobs: Sequence[_FlowJob], plan: list[Planned]) -> bool:
    """Add the jobs of a flow; return False if it is committed, and some are not added yet.

    Raises:
        DuplicateJobError: If the id of one of them is that of another job. Nothing was added.
        AmbiguousResultError: If the flow may have been added, or is not durable yet.
        GlideMQError: If a call failed. Nothing was added.
    """
    flows, durable = session.state.flows, any(job.is_durable for job in jobs) or None
    try:
        await flows._add_one(plan, None, durable, "add_dag")
    except (UnfinishedFlowError, DurabilityError) as error:
        return _accept(error, durable)
    except AmbiguousResultError as ambiguous:
        if ambiguous.timed_out:
            raise
        # The ids make it safe to add the flow again: a part of it cannot exist.
        try:
            await flows._add_one(await _planned(session, jobs), None, durable, "add_dag")
        except DuplicateJobError:
            return _accept(ambiguous, durable)
        except UnfinishedFlowError as error:
            return _accept(error, durable)
        except GlideMQError:
            raise ambiguous from None
    return True


def _accept(error: AmbiguousResultError, durable: bool | None) -> bool:
    """Return False if the error is none for a client, as the flow is stored: it would let it add the flow again."""
    if durable:
        raise error
    if isinstance(error, UnfinishedFlowError):
        _log.warning("gateway: some jobs of a PUSHF are not added yet: %s", error)
    return False


async def _checked(session: Session, given: Sequence[Any]) -> list[_FlowJob]:
    if len(given) > _MOST_JOBS:
        raise CommandError(f"a flow must have at most {_MOST_JOBS} jobs")
    ids = [each.get("id") if is_map(each) else None for each in given]
    known = {each for each in ids if isinstance(each, str)}
    found: list[_FlowJob] = []
    seen: set[str] = set()
    for number, each in enumerate(given):
        job_id = ids[number]
        if not is_map(each) or not isinstance(job_id, str) or not job_id:
            raise CommandError("flow job id must be a string")
        if job_id in seen:
            raise CommandError(f"duplicate flow job id: {job_id}")
        seen.add(job_id)
        try:
            queue = engine_name(check_wire_name(each.get("queue")))
        except QueueNameError:
            raise CommandError(f"invalid flow queue: {each.get('queue')}") from None
        try:
            found.append(await _flow_job(session, job_id, queue, each.get("input"), known))
        except CommandError as error:
            raise CommandError(f"jobs[{number}]: {error}") from None
    return found


async def _flow_job(session: Session, job_id: str, queue: str, given: Any, known: set[str]) -> _FlowJob:
    fields = check_all(FLOW_FIELDS, check_field(Kind.MAP("input", required=True), given))
    if not is_map(fields["data"]):
        raise CommandError("flow job data must be an object")
    needs = tuple(dict.fromkeys(fields["dependsOn"] or ()))
    children = fields["childrenIds"] or ()
    if len(needs) > _MOST_CHILDREN:
        raise CommandError(f"dependsOn must have at most {_MOST_CHILDREN} ids")
    for each in needs:
        if each not in known:
            raise CommandError(f"flow dependency is not a job of the flow: {each}")
    for each in children:
        if each not in needs:
            raise CommandError(f"flow child is missing from dependencies: {each}")
    policy = child_policy(fields)
    without = dict.fromkeys(("customId", "dependsOn", "parentId", *CHILD_POLICIES))
    own = {**fields, **without, "jobId": job_id}
    family = {
        "parentId": fields["parentId"], "dependsOn": list(needs), "childrenIds": list(children), "childrenCompleted": 0,
    }  # fmt: skip
    push = await push_of(session.state.ids, queue, own)
    await reject_keys(await session.state.queue(queue), push[2], "PUSHF")
    return _FlowJob(
        id=job_id, queue=queue, push=push, needs=needs, family=family,
        policy=policy, is_durable=fields["durable"],
    )  # fmt: skip


async def _planned(session: Session, jobs: Sequence[_FlowJob]) -> list[Planned]:
    """Return the plan of a flow, whose nodes are named by ids.

    Raises:
        CommandError: If the jobs wait for one another in a cycle, or an option is invalid.
    """
    needed = {each for job in jobs for each in job.needs}
    nodes: list[DagNode] = []
    for number, job in enumerate(jobs):
        _, data, options = job.push
        if job.id in needed:
            options = {**options, "on_failure": job.policy}
        try:
            nodes.append(
                DagNode(name=engine_id(job.id), queue=job.queue, data=data, options=options, deps=[
                    engine_id(each) for each in job.needs
                ])
            )  # fmt: skip
        except GlideMQValidationError as error:
            raise CommandError(f"jobs[{number}]: {error}") from None
    flows = session.state.flows
    await flows.connect()
    try:
        plan = plan_dag(nodes, flows._link)
    except GlideMQValidationError as error:
        raise CommandError(f"the jobs of a flow {error.problem}") from None
    names = {engine_id(job.id): job.push[0] for job in jobs}
    for planned in plan:
        planned.rename(names[planned.name])
    return plan


async def _snapshot(session: Session, job: _FlowJob) -> dict[str, Any]:
    """Return the object of a job that was added."""
    found: Job | None = None
    with contextlib.suppress(GlideMQError):  # the flow is stored all the same
        found = await (await session.state.queue(job.queue)).get_job(engine_id(job.id))
    if found is None:  # it has ended already, and is not kept; or it is not added yet
        name, data, _ = job.push
        data = data.value if isinstance(data, PackedValue) else data
        return {"id": job.id, "queue": wire_name(job.queue), "name": name, "data": data}
    return {**job_object(found, job.id), **job.family}


# -- reading ---------------------------------------------------------------------------------------------------


async def family_of(session: Session, job: Job) -> dict[str, Any]:
    """Return the fields of the job object about parents and children."""
    ids = session.state.ids
    members = [pair async for pair in children_of(job._link, job._stored_id)]
    wire = [await ids.on_wire(*ref_of_member(member)) for member, _ in members]
    parents = await job.get_parents()
    data: Any = job.data
    named = data.get("__childrenIds") if is_map(data) else None
    return {
        "parentId": await ids.on_wire(parents[0].queue, parents[0].id) if parents else None,
        "dependsOn": [each for each, (_, outcome) in zip(wire, members, strict=True) if not outcome],
        "childrenIds": [*named, *(each for each in wire if each not in named)] if isinstance(named, list) else wire,
        "childrenCompleted": sum(outcome[:1] == "v" for _, outcome in members),
    }  # fmt: skip


async def _key_of(session: Session, ref: JobRef) -> str:
    """Return the key of a child in the answers: queue and id."""
    queue, job_id = wire_name(queue_of_part(ref.queue)), await session.state.ids.on_wire(ref.queue, ref.id)
    is_own = job_id == f"{queue}:{ref.id}" or (job_id.startswith(f"{queue}:") and job_id.endswith(f"{MARK}{ref.id}"))
    return job_id if is_own else f"{queue}:{job_id}"


@COMMANDS("GetChildrenValues", "query", "GET /jobs/{id}/children", JOB)
async def _values(session: Session, given: Given) -> Answer:
    """Return the results of the completed children."""
    job = await find_job(session, given["id"])
    found = {} if job is None else await job.get_children_values()
    return {"data": {"values": {await _key_of(session, ref_of_member(each)): value for each, value in found.items()}}}


async def _failures(session: Session, given: Given, *, ignored: bool) -> Answer:
    job = await find_job(session, given["id"])
    found = {} if job is None else await job.get_children_failures()
    values: dict[str, str] = {}
    for member, reason in found.items():
        ref = ref_of_member(member)
        child = await job_at(session, ref.queue, ref.id)
        is_ignored = child is not None and child.opts.get("onFailure") == "ignore"
        if is_ignored is ignored:
            values[await _key_of(session, ref)] = reason
    return {"values": values}


@COMMANDS("UpdateParent", "control", "", Field("childId", required=True), Field("parentId", required=True))
async def _update_parent(session: Session, given: Given) -> None:
    """Let a job that has not started wait for `childId`, a job that exists; its parent is `parentId`."""
    child_id, parent_id = given["childId"], given["parentId"]
    if child_id == parent_id:
        raise CommandError("A flow job cannot be its own parent")
    child = await find_job(session, child_id)
    if child is None:
        raise CommandError(f"Child job not found: {child_id}")
    parent = await find_job(session, parent_id)
    if parent is None:
        raise CommandError(f"Parent job not found: {parent_id}")
    ref, above = JobRef(child.queue_name, child.id), JobRef(parent.queue_name, parent.id)
    current = await _parents_of(session, child)
    if above in current:
        return
    for each in current:
        wire_id = await session.state.ids.on_wire(each.queue, each.id)
        raise CommandError(f"Child job {child_id} already belongs to parent {wire_id}")
    if await _is_above(session, ref, parent):
        raise CommandError(f"Child job {child_id} is a parent of {parent_id}")
    try:
        await add_dependency(parent._link, parent._stored_id, ref)
    except JobNotFoundError as error:
        missing = "Parent" if error.job_id == parent.id else "Child"
        raise CommandError(f"{missing} job not found: {parent_id if missing == 'Parent' else child_id}") from None
    except JobStateError:
        raise CommandError(f"Parent job {parent_id} is not linkable") from None
    session.state.changed({"queue": parent.queue_name})  # the child may have ended


async def _parents_of(session: Session, job: Job) -> list[JobRef]:
    """Return the parents of a job, without the jobs that were added with it in their `dependsOn`."""
    found: list[JobRef] = []
    for ref in await job.get_parents():
        parent = await job_at(session, ref.queue, ref.id)
        if parent is not None and not _depends_on(parent, job):
            found.append(ref)
    return found


def _depends_on(job: Job, other: Job) -> bool:
    found: Any = job.opts.get("dependsOn")
    given = found if is_list(found) else []
    name, own = other._link.keys.name, other._stored_id  # of the partition
    stored = (own,) if job._link.keys.name == name else ()
    named = ({"queue": name, "id": own}, *stored)
    return any(each in named for each in given)


async def _is_above(session: Session, ref: JobRef, job: Job) -> bool:
    """Return whether a job waits for another one, directly or not.

    Raises:
        CommandError: If more than `_MOST_CHILDREN` jobs wait for it.
    """
    waiting, seen = [JobRef(job.queue_name, job.id)], set[JobRef]()
    while waiting:
        queue, job_id = waiting.pop()
        above = await job_at(session, queue, job_id)
        for each in [] if above is None else await above.get_parents():
            if each == ref:
                return True
            if each not in seen:
                seen.add(each)
                waiting.append(each)
        if len(seen) > _MOST_CHILDREN:
            raise CommandError(f"more than {_MOST_CHILDREN} jobs wait for the parent")
    return False


@COMMANDS("RemoveChildDependency", "control", "", JOB)
async def _remove_dependency(session: Session, given: Given) -> Answer:
    """Let no parent wait for a job any more."""
    child = await find_job(session, given["id"])
    if child is None:
        raise CommandError(f"Job not found: {given['id']}")
    removed = False
    for ref in await child.get_parents():
        parent = await job_at(session, ref.queue, ref.id)
        if parent is not None:
            with contextlib.suppress(JobStateError, JobNotFoundError):  # it does not wait for the child any more
                removed = await parent.remove_dependency(child) or removed
                session.state.changed({"queue": ref.queue})
    if not removed:
        raise CommandError(f"Job {given['id']} has no parent")
    return {"removed": True}


@COMMANDS("RemoveUnprocessedChildren", "control", "", JOB)
async def _remove_unprocessed(session: Session, given: Given) -> None:
    """Delete the children of a job that have not started; it no longer waits for them."""
    parent = await find_job(session, given["id"])
    for ref in [] if parent is None else await parent.get_open_children():
        child = await job_at(session, ref.queue, ref.id)
        if parent is None or child is None or child.state not in UNSTARTED:
            continue
        await parent.remove_dependency(child)  # first: the removal of a child may fail its parent
        with contextlib.suppress(JobStateError):
            await child.remove(states=UNSTARTED)


COMMANDS("GetFailedChildrenValues", "query", "", JOB, summary="Return why children have failed.")(
    partial(_failures, ignored=False)
)
COMMANDS(
    "GetIgnoredChildrenFailures",
    "query",
    "",
    JOB,
    summary="Return why children have failed that were added with `ignoreDependencyOnFailure`.",
)(partial(_failures, ignored=True))
