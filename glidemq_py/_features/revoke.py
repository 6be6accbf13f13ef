"""Canceling jobs: `revoke` before or during an attempt, `discard` of the attempts that are left.

The worker of an active job cancels it at the next heartbeat (_worker/heartbeat.py).

The server's side is in lua/features/revoke.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import administration
from glidemq_py._core.job_states import check_states
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import JobStateError

if TYPE_CHECKING:
    from glidemq_py._job.job import Job

RevokeOutcome = Literal["revoked", "flagged", "not_found"]
_OUTCOMES: Final[dict[str, RevokeOutcome]] = {
    "revoked": "revoked", "flagged": "flagged", "not_found": "not_found",
}  # fmt: skip
_PIECE: Final = 100


async def revoke_job(
    link: QueueLink[JobTransport], job_id: str, states: str | Iterable[str] | None = None
) -> RevokeOutcome:
    """Cancel a job if it is in one of the states."""
    reply = await link.call(administration.revoke, job_id, check_states(states))
    outcome = _OUTCOMES.get(reply)
    if outcome is None:
        raise JobStateError(link.shown_id(job_id), reply, "revoke", queue=link.queue_name)
    return outcome


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


async def revoke(self: Job[Any, Any, Any], *, states: str | Iterable[str] | None = None) -> RevokeOutcome:
    """Cancel the job: it does not start, or stops running.

    Args:
        states: A state or several, as in `JobState`: cancel the job only in one of these. None allows all.

    Returns:
        - "revoked": the job had not started. It has failed with the reason ``revoked``.
        - "flagged": the job is active and its worker cancels it at the next heartbeat; see `Queue.revoke`.
        - "not_found": the job does not exist.

    Raises:
        GlideMQValidationError: If a state is unknown.
        JobStateError: If the job is in none of ``states``. Nothing was changed.
    """
    return await revoke_job(self._link, self._stored_id, states)


async def is_revoked(self: Job[Any, Any, Any]) -> bool:
    """Return True if the job was revoked. A requeue (`Job.retry`) resets this."""
    reply: bytes | None = await self._link.command("HGET", self._link.keys.job(self._stored_id), "revoked")
    return reply == b"1"
