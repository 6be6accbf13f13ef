"""Add a planned flow.

A flow is added in one call, or in several steps recorded on the server before the first one runs. Once the record is
committed, all steps will be executed: by this client, or else by a worker of the root's queue (`finish_flow`). A record
that was never committed has no effect and expires.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Sequence
from typing import Final

from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import pieces
from glidemq_py._core.job_options import cost_error
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._features.budgets import Budget
from glidemq_py._features.flows import calls as flows
from glidemq_py._features.flows.plan import NextMark, Planned, Step, chunks, is_small, steps_of, whole_request
from glidemq_py._features.flows.references import shown_ref
from glidemq_py.errors import (
    AmbiguousResultError,
    DuplicateJobError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
)

_log = get_logger(__name__)

_STEPS_PER_STAGE: Final = 10
_IDS_PER_CALL: Final = 1_000


class UnfinishedFlowError(AmbiguousResultError):
    """A flow was committed, and a worker of its root's queue will add the jobs that are missing."""


async def add_planned(
    transport: Transport,
    plan: Sequence[Planned],
    quiet: bool,
    budget: Budget | None,
    flow_id: str | None = None,
    next_mark: NextMark | None = None,
) -> int:
    """Add the jobs of a plan and set their ids.

    Args:
        transport: the connection.
        plan: the jobs, the root first.
        quiet: do not publish `added` events.
        budget: the shared budget of the jobs, if any.
        flow_id: stored in every job, if given.
        next_mark: returns the mark of each call, if the flow is durable.

    Returns:
        The server's time, epoch ms.

    Raises:
        DuplicateJobError: a job id is already used; nothing was added.
        GlideMQValidationError: a job costs more than its group's bucket holds; nothing was added.
        LayoutChangedError: a queue has other partitions than those that were chosen; nothing was added.
        UnfinishedFlowError: a step failed after the flow was committed; the workers of the root's queue finish it.
        AmbiguousResultError: the connection was lost, and the flow may have been added.
    """
    _check_ids(plan)
    if not is_small(plan):
        token = secrets.token_hex(12)
        await _reserve(transport, plan, token)
        return await _by_steps(transport, plan, token, quiet, budget, flow_id, next_mark)
    meta = plan[0].link.keys.meta
    mark = None if next_mark is None else next_mark(meta)
    reply = await transport.call(flows.flow_add(meta, whole_request(plan, quiet, budget, flow_id, mark)))
    if not isinstance(reply.refused, bool):
        number, reason = reply.refused
        raise _rejected(plan[number - 1], reason)
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
        return DuplicateJobError(job.shown_id, job.link.queue_name)
    return cost_error(job.options.cost, job.options.ordering)


async def _reserve(transport: Transport, plan: Sequence[Planned], token: str) -> None:
    """Reserve an id for every job.

    Raises:
        DuplicateJobError: a custom id is already used.
        GlideMQValidationError: a job costs more than its group's bucket holds.
    """
    by_queue: dict[str, list[Planned]] = {}
    for job in plan:
        by_queue.setdefault(job.link.keys.meta, []).append(job)
    issued: list[tuple[list[Planned], list[str]]] = []
    for meta, of_queue in by_queue.items():
        for jobs in pieces(of_queue, _IDS_PER_CALL):
            without_id = [job for job in jobs if not job.id]
            ordered = [job for job in jobs if job.ordering]
            custom = [job.id for job in jobs if job.id]
            orderings = [job.ordering for job in ordered]
            call = flows.flow_reserve(meta, len(without_id), custom, orderings, token, jobs[0].layout)
            reply = await transport.call(call)
            if reply.costly:
                raise _rejected(ordered[reply.costly - 1], "cost")
            if isinstance(reply.taken, str):
                raise _rejected(next(job for job in jobs if job.id == reply.taken), "duplicate")
            issued.append((without_id, reply.ids))
    for without_id, ids in issued:
        for job, job_id in zip(without_id, ids, strict=True):
            job.id = job_id


async def _by_steps(
    transport: Transport,
    plan: Sequence[Planned],
    token: str,
    quiet: bool,
    budget: Budget | None,
    flow_id: str | None,
    next_mark: NextMark | None,
) -> int:
    root, queue = plan[0].link.keys, plan[0].link.queue_name
    steps = list(steps_of(plan, token, quiet, budget, flow_id, next_mark))
    await _stage(transport, root.meta, token, steps)
    executed: list[Step] = []
    try:
        now, refused = await _execute(transport, steps, executed)
    except GlideMQError as error:
        if not executed and not isinstance(error, GlideMQConnectionError):
            is_withdrawn = False
            with contextlib.suppress(GlideMQError):
                is_withdrawn = await _withdraw(transport, root.meta, token, steps)
            if is_withdrawn:
                raise
        text = f"the flow was accepted and a worker of queue {queue!r} will finish adding it: {error}"
        raise UnfinishedFlowError(text) from error
    with contextlib.suppress(GlideMQError):  # all steps are done; otherwise a worker deletes the record
        await _close(transport, root.meta, token, steps)
    if refused is not None:
        shown = await shown_ref(plan[0].link, root.name, refused)
        raise DuplicateJobError(shown.id, shown.queue)
    return now


async def _stage(transport: Transport, root: str, token: str, steps: Sequence[Step]) -> None:
    """Record the steps and commit the flow.

    Raises:
        AmbiguousResultError: The flow may have been committed.
        GlideMQError: A call failed. The flow was not committed, and will not be.
    """
    at = 0
    for piece in chunks(steps, _STEPS_PER_STAGE, lambda step: len(step.request)):
        flat = [part for step in piece for part in (step.meta, step.request)]
        is_last = at + len(piece) == len(steps)
        try:
            if not await transport.call(flows.flow_stage(root, token, is_last, at, flat)):
                raise GlideMQError("the staged steps of the flow are lost; nothing was added")
        except GlideMQError as error:
            try:
                is_withdrawn = await _withdraw(transport, root, token, steps)
            except GlideMQError:
                if is_last or not isinstance(error, AmbiguousResultError):
                    raise error from None
                is_withdrawn = True  # the staged rows expire
            if not is_withdrawn:  # it is committed, and a worker has begun to add it
                return
            if isinstance(error, AmbiguousResultError):
                raise GlideMQConnectionError(f"nothing was added: {error}") from error
            raise
        at += len(piece)


async def _withdraw(transport: Transport, root: str, token: str, steps: Sequence[Step]) -> bool:
    """Prevent that a flow is added, and delete its record; return False if its first step was executed."""
    for meta in dict.fromkeys((steps[0].meta, root)):
        if not await transport.call(flows.flow_withdraw(meta, token)):
            return False
    with contextlib.suppress(GlideMQError):  # the marks of the other queues expire
        await _close(transport, root, token, steps)
    return True


async def _execute(
    transport: Transport, steps: Iterable[Step], executed: list[Step]
) -> tuple[int, str | None]:  # fmt: skip
    """Execute the steps and return the server's time and the id that made the first step reject the flow, if any.

    Args:
        transport: the connection.
        steps: the steps.
        executed: gets the steps that were executed.
    """
    now = 0
    for step in steps:
        reply = await transport.call(flows.flow_step(step.meta, step.request))
        if not isinstance(reply.refused, bool):
            number, _ = reply.refused
            return reply.now, step.ids[number - 1]
        executed.append(step)
        now = reply.now
    return now, None


async def _close(transport: Transport, root: str, token: str, steps: Iterable[Step]) -> None:
    """Delete the record of a finished flow, and the markers of its executed steps in every queue."""
    await transport.call(flows.flow_done(root, token))
    for meta in dict.fromkeys(step.meta for step in steps if step.meta != root):
        await transport.call(flows.flow_done(meta, token))


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
        meta, packed = found
        done.append(Step(meta.decode(), b""))
        reply = await transport.call(flows.flow_step(done[-1].meta, packed))
        if not isinstance(reply.refused, bool):
            _log.warning(
                "queue %r: deleted half-added flow %s of a producer that stopped (%s)",
                root.name,
                token,
                "its job ids are taken" if reply.refused[1] == "duplicate" else "it was withdrawn",
            )
            break
    await _close(transport, root.meta, token, done)
    return len(done)
