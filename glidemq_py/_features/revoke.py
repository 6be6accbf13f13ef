"""Canceling jobs: `revoke` before or during an attempt, `discard` of the attempts that are left.

The worker of an active job cancels it at the next heartbeat (_worker/heartbeat.py).

The server's side is in lua/features/revoke.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, cast, get_args

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import administration
from glidemq_py._core.record import check_states
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import JobStateError

RevokeOutcome = Literal["revoked", "flagged", "not_found"]
_PIECE: Final = 100


async def revoke_job(
    link: QueueLink[JobTransport], job_id: str, states: str | Iterable[str] | None = None
) -> RevokeOutcome:
    """Cancel a job if it is in one of the states."""
    reply = await link.call(administration.revoke, job_id, check_states(states))
    if reply not in get_args(RevokeOutcome):
        raise JobStateError(link.shown_id(job_id), reply, "revoke", queue=link.queue_name)
    return cast("RevokeOutcome", reply)


async def revoke_jobs(link: QueueLink, ids: Sequence[str], states: str | Iterable[str] | None = None) -> list[str]:
    """Cancel these jobs if they are in one of the states, a hundred per call.

    Args:
        link: the queue.
        ids: ids of the jobs.
        states: as in `revoke_job`.

    Returns:
        For each id "revoked", "flagged", "not_found", the state of the job if it is none of ``states``, or "error" if
        its keys are damaged.
    """
    allowed, outcomes = check_states(states), list[str]()
    while len(outcomes) < len(ids):
        piece = ids[len(outcomes) : len(outcomes) + _PIECE]
        outcomes += await link.call(administration.revoke_jobs, piece, allowed)
    return outcomes


async def discard_job(link: QueueLink[JobTransport], job_id: str) -> None:
    """Give up the remaining attempts of an active job."""
    reply = await link.call(administration.discard, job_id)
    if reply == "gone":
        raise link.not_found(link.shown_id(job_id))
    if reply != "ok":
        raise JobStateError(link.shown_id(job_id), reply, "discard the attempts of", queue=link.queue_name)


async def is_revoked(link: QueueLink[JobTransport], job_id: str) -> bool:
    """Return True if a job was revoked."""
    return bool(await link.command("HGET", link.keys.job(job_id), "revoked") == b"1")
