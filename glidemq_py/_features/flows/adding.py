"""Adding a planned flow: in one call, or by steps that are written down before the first is done.

What is written down and committed will be done: by us, else by a worker of the root's queue (`finish_flow`). What is
not committed has not happened, and goes by itself.
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

_STAGED_AT_A_TIME: Final = 10
_RESERVED_AT_A_TIME: Final = 1_000


async def add_planned(
    transport: Transport, plan: Sequence[Planned], quiet: bool, budget: Budget | None, flow_id: str | None = None
) -> int:
    """Add the jobs; each has its id afterwards, and ``flow_id`` is written in each. The server's time, epoch ms.

    Raises:
        DuplicateJobError, JobCostError: nothing was added.
        AmbiguousResultError: the connection was lost. A flow of several steps is finished by the workers of the
            root's queue if it was begun; one of a single call may have been added.
    """
    _check_ids(plan)
    if not is_small(plan):
        await _reserve(transport, plan)
        return await _by_steps(transport, plan, quiet, budget, flow_id)
    reply = await transport.call(flows.flow_add(plan[0].link.keys.meta, whole_request(plan, quiet, budget, flow_id)))
    if not isinstance(reply.refused, bool):
        raise _refusal(plan[reply.refused[0] - 1], reply.refused[1])
    for job, job_id in zip(plan, reply.ids, strict=True):
        job.id = job_id
    return reply.now


def _check_ids(plan: Sequence[Planned]) -> None:
    seen: set[tuple[str, str]] = set()
    for job in plan:
        if job.id:
            if (job.link.keys.name, job.id) in seen:
                raise GlideMQValidationError("job_id", job.id, "is given to two jobs of one queue")
            seen.add((job.link.keys.name, job.id))


def _refusal(job: Planned, why: str) -> Exception:
    if why == "duplicate":
        return DuplicateJobError(job.id, job.link.keys.name)
    return JobCostError(job.options.cost, job.options.ordering.key if job.options.ordering else None)


async def _reserve(transport: Transport, plan: Sequence[Planned]) -> None:
    """Give every job an id. Raises DuplicateJobError, JobCostError."""
    by_queue: dict[str, list[Planned]] = {}
    for job in plan:
        by_queue.setdefault(job.link.keys.meta, []).append(job)
    issued: list[tuple[list[Planned], list[str]]] = []
    for meta, of_queue in by_queue.items():
        for i in range(0, len(of_queue), _RESERVED_AT_A_TIME):
            jobs = of_queue[i : i + _RESERVED_AT_A_TIME]
            nameless = [job for job in jobs if not job.id]
            ordered = [job for job in jobs if job.ordering]
            custom = [job.id for job in jobs if job.id]
            call = flows.flow_reserve(meta, len(nameless), custom, [job.ordering for job in ordered])
            reply = await transport.call(call)
            if reply.costly:
                raise _refusal(ordered[reply.costly - 1], "cost")
            if isinstance(reply.taken, str):
                raise DuplicateJobError(reply.taken, jobs[0].link.keys.name)
            issued.append((nameless, reply.ids))
    for nameless, ids in issued:
        for job, job_id in zip(nameless, ids, strict=True):
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
        now, refused = await _do(transport, steps)
    except GlideMQError as error:
        text = f"the flow was accepted, and is finished by a worker of queue {root.name!r} if it is not yet: {error}"
        raise AmbiguousResultError(text) from error
    with contextlib.suppress(GlideMQError):  # all is done; a worker finds nothing to do and says so
        await _close(transport, root.meta, token, steps)
    if refused is not None:
        raise DuplicateJobError(refused, root.name)
    return now


async def _do(transport: Transport, steps: Iterable[Step]) -> tuple[int, str | None]:
    """Do the steps: the server's time, and the id because of which the first one refused them all."""
    now = 0
    for step in steps:
        reply = await transport.call(flows.flow_step(step.meta, step.request))
        if not isinstance(reply.refused, bool):
            return reply.now, step.ids[reply.refused[0] - 1]
        now = reply.now
    return now, None


async def _close(transport: Transport, root: str, token: str, steps: Iterable[Step]) -> None:
    """Nothing of the flow is left to do: its record goes, and what marks the steps that are done, in every queue."""
    await transport.call(flows.flow_done(root, token))
    for meta in dict.fromkeys(step.meta for step in steps if step.meta != root):
        await transport.call(flows.flow_done(meta, token))


def _pieces(steps: Sequence[Step]) -> list[list[Step]]:
    pieces: list[list[Step]] = [[]]
    size = 0
    for step in steps:
        if pieces[-1] and (len(pieces[-1]) >= _STAGED_AT_A_TIME or size + len(step.request) > CHARS):
            pieces.append([])
            size = 0
        pieces[-1].append(step)
        size += len(step.request)
    return pieces


async def finish_flow(transport: Transport, root: QueueKeys, token: str) -> int:
    """Do the steps of a committed flow that nobody has done; how many there are. Raises GlideMQError."""
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
