"""Revoking jobs: a job does not start, or its worker cancels it at the next heartbeat (_worker/heartbeat.py).

The server's side is in lua/features/revoke.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import administration
from glidemq_py._job.link import QueueLink

if TYPE_CHECKING:
    from glidemq_py._job.job import Job

__all__ = ["RevokeOutcome", "is_revoked", "revoke", "revoke_job"]

RevokeOutcome = Literal["revoked", "flagged", "not_found"]


async def revoke_job(link: QueueLink[JobTransport], job_id: str) -> RevokeOutcome:
    """Cancel a job."""
    return cast("RevokeOutcome", await link.transport.call(administration.revoke(link.keys.meta, job_id)))


async def revoke(self: Job[Any, Any, Any]) -> RevokeOutcome:
    """Cancel the job: it does not start, or stops running.

    Returns:
        - "revoked": the job had not started. It has failed with the reason ``revoked``.
        - "flagged": the job is active and its worker cancels it at the next heartbeat; see `Queue.revoke`.
        - "not_found": the job does not exist.
    """
    return await revoke_job(self._link, self.id)


async def is_revoked(self: Job[Any, Any, Any]) -> bool:
    """Return True if the job was revoked. A requeue (`Job.retry`) resets this."""
    reply: bytes | None = await self._link.transport.command("HGET", self._link.keys.job(self.id), "revoked")
    return reply == b"1"
