"""Add a planned flow: in one call, or in several steps recorded on the server before the first one runs.

Once the record is committed, all steps will be executed: by this client, or else by a worker of the root's queue
(`finish_flow`). A record that was never committed has no effect and expires.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Sequence
from typing import Final

from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._features.budgets.options import Budget
from glidemq_py._features.flows import calls as flows
from glidemq_py._features.flows.plan import CHARS, Planned, Step, is_small, steps_of, whole_request
from glidemq_py.errors import (
    AmbiguousResultError,
    DuplicateJobError,
    GlideMQError,
    GlideMQValidationError,
    JobCostError,
)

__all__ = ["add_planned", "finish_flow"]

_log = get_logger(__name__)

_STEPS_PER_STAGE: Final = 10
_IDS_PER_CALL: Final = 1_000


async def add_planned(
    transport: Transport, plan: Sequence[Planned], quiet: bool, budget: Budget | None, flow_id: str | None = None
) -> int:
    """Add the jobs of a plan and set their ids.

    Args:
        transport: the connection.
        plan: the jobs, the root first.
        quiet: do not publish `added` events.
        budget: the shared budget of the jobs, if any.
        flow_id: stored in every job, if given.

    Returns:
        The server's time, epoch ms.

    Raises:
        DuplicateJobError: a job id is already used; nothing was added.
        JobCostError: a job costs more than its group's bucket holds; nothing was added.
        AmbiguousResultError: the connection was lost. A flow of several steps is finished by the workers of the
            root's queue if it was committed; a flow that takes one call may have been added.
    """
    _check_ids(plan)
    if not is_small(plan):
        await _reserve(transport, plan)
        return await _by_steps(transport, plan, quiet, budget, flow_id)
    reply = await transport.call(flows.flow_add(plan[0].link.keys.meta, whole_request(plan, quiet, budget, flow_id)))
    if not isinstance(reply.refused, bool):
        raise _rejected(plan[reply.refused[0] - 1], reply.refused[1])
    for job, job_id in zip(plan, reply.ids, strict=True):
        job.id = job_id
    return reply.now


def _check_ids(plan: Sequence[Planned]) -> None:
    seen: set[tuple[str, str]] = set()
    for job in plan:
        if job.id:
            if (job.link.keys.name, job.id) in seen:
                raise GlideMQValidationError("job_id", job.id, "is used by two jobs of one queue; ids must be unique")
            seen.add((job.link.keys.name, job.id))


def _rejected(job: Planned, why: str) -> Exception:
    if why == "duplicate":
        return DuplicateJobError(job.id, job.link.keys.name)
    return JobCostError(job.options.cost, job.options.ordering.key if job.options.ordering else None)


async def _reserve(transport: Transport, plan: Sequence[Planned]) -> None:
    """Reserve an id for every job.

    Raises:
        DuplicateJobError: a custom id is already used.
        JobCostError: a job costs more than its group's bucket holds.
    """
    by_queue: dict[str, list[Planned]] = {}
    for job in plan:
        by_queue.setdefault(job.link.keys.meta, []).append(job)
    issued: list[tuple[list[Planned], list[str]]] = []
    for meta, of_queue in by_queue.items():
        for i in range(0, len(of_queue), _IDS_PER_CALL):
            jobs = of_queue[i : i + _IDS_PER_CALL]
            without_id = [job for job in jobs if not job.id]
            ordered = [job for job in jobs if job.ordering]
            custom = [job.id for job in jobs if job.id]
            call = flows.flow_reserve(meta, len(without_id), custom, [job.ordering for job in ordered])
            reply = await transport.call(call)
            if reply.costly:
                raise _rejected(ordered[reply.costly - 1], "cost")
            if isinstance(reply.taken, str):
                raise DuplicateJobError(reply.taken, jobs[0].link.keys.name)
            issued.append((without_id, reply.ids))
    for without_id, ids in issued:
        for job, job_id in zip(without_id, ids, strict=True):
            job.id = job_id


async def _by_steps(
    transport: Transport, plan: Sequence[Planned], quiet: bool, budget: Budget | None, flow_id: str | None
) -> int:
    root = plan[0].link.keys
    token = secrets.token_hex(12)
    steps = list(steps_of(plan, token, quiet, budget, flow_id))
    pieces = list(_pieces(steps))
    for i, piece in enumerate(pieces):
        flat = [part for step in piece for part in (step.meta, step.request)]
        await transport.call(flows.flow_stage(root.meta, token, i == len(pieces) - 1, flat))
    try:
        now, refused = await _execute(transport, steps)
    except GlideMQError as error:
        text = f"the flow was accepted and a worker of queue {root.name!r} will finish adding it: {error}"
        raise AmbiguousResultError(text) from error
    with contextlib.suppress(GlideMQError):  # all steps are done; otherwise a worker deletes the record
        await _close(transport, root.meta, token, steps)
    if refused is not None:
        raise DuplicateJobError(refused, root.name)
    return now


async def _execute(transport: Transport, steps: Iterable[Step]) -> tuple[int, str | None]:
    """Execute the steps and return the server's time and the id that made the first step reject the flow, if any."""
    now = 0
    for step in steps:
        reply = await transport.call(flows.flow_step(step.meta, step.request))
        if not isinstance(reply.refused, bool):
            return reply.now, step.ids[reply.refused[0] - 1]
        now = reply.now
    return now, None


async def _close(transport: Transport, root: str, token: str, steps: Iterable[Step]) -> None:
    """Delete the record of a finished flow, and the markers of its executed steps in every queue."""
    await transport.call(flows.flow_done(root, token))
    for meta in dict.fromkeys(step.meta for step in steps if step.meta != root):
        await transport.call(flows.flow_done(meta, token))


def _pieces(steps: Sequence[Step]) -> list[list[Step]]:
    pieces: list[list[Step]] = [[]]
    size = 0
    for step in steps:
        if pieces[-1] and (len(pieces[-1]) >= _STEPS_PER_STAGE or size + len(step.request) > CHARS):
            pieces.append([])
            size = 0
        pieces[-1].append(step)
        size += len(step.request)
    return pieces


async def finish_flow(transport: Transport, root: QueueKeys, token: str) -> int:
    """Execute the remaining steps of a committed flow and return the number of steps.

    Raises:
        GlideMQError: a call failed; a later run continues.
    """
    done: list[Step] = []
    while True:
        at = 2 * len(done)
        found = await transport.command("LRANGE", f"{root.stem}flow:{token}", str(at), str(at + 1))
        if len(found) < 2:
            break
        done.append(Step(found[0].decode(), b""))
        reply = await transport.call(flows.flow_step(done[-1].meta, found[1]))
        if not isinstance(reply.refused, bool):
            _log.warning(
                "queue %r: deleted a half-added flow of a producer that stopped (its job ids are taken)", root.name
            )
            break
    await _close(transport, root.meta, token, done)
    return len(done)
