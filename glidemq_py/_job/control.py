"""Changes to a job that has not ended: priority, delay, promotion, cancellation. Shared by `Job` and `Queue`."""

from __future__ import annotations

from typing import Final, Literal, cast

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import Call, control
from glidemq_py._core.checks import check_int
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import JobNotFoundError, JobStateError

__all__ = ["JobControl", "RevokeOutcome", "change_delay", "change_priority", "promote", "revoke"]

RevokeOutcome = Literal["revoked", "flagged", "not_found"]

MAX_PRIORITY: Final = 2_047

_REJECT_REASONS: Final = {
    "held": "being fetched by a worker",
    "lost": "missing from the structure of its state",
}


async def _change(link: QueueLink[JobTransport], job_id: str, call: Call[str], action: str) -> None:
    answer = await link.transport.call(call)
    if answer == "gone":
        raise JobNotFoundError(job_id)
    if answer not in ("ok", "no_op"):
        raise JobStateError(job_id, _REJECT_REASONS.get(answer, answer), action)


async def change_priority(link: QueueLink[JobTransport], job_id: str, priority: int) -> int:
    """Change the priority of a job that has not started, and return the validated value."""
    value = check_int("priority", priority, 0, MAX_PRIORITY)
    await _change(link, job_id, control.change_priority(link.keys.meta, job_id, value), "change the priority of")
    return value


async def change_delay(link: QueueLink[JobTransport], job_id: str, delay: Milliseconds) -> int:
    """Change the delay of a job that has not started, and return it in ms."""
    value = to_ms("delay", delay)
    await _change(link, job_id, control.change_delay(link.keys.meta, job_id, value), "change the delay of")
    return value


async def promote(link: QueueLink[JobTransport], job_id: str) -> None:
    """Make a delayed job ready to run."""
    await _change(link, job_id, control.promote(link.keys.meta, job_id), "promote")


async def revoke(link: QueueLink[JobTransport], job_id: str) -> RevokeOutcome:
    """Cancel a job."""
    return cast("RevokeOutcome", await link.transport.call(control.revoke(link.keys.meta, job_id)))


class JobControl:
    """The methods of `Job` that change its priority or delay, or cancel it."""

    id: str
    priority: int
    _delay: int | None
    _link: QueueLink[JobTransport]

    async def change_priority(self, priority: int) -> None:
        """Change the priority of the job, if it has not started.

        Args:
            priority: 1 (most urgent) to 2047 (least urgent); 0 removes the priority.

        Raises:
            GlideMQValidationError: If ``priority`` is invalid.
            JobStateError: If the job is active, has ended, or waits in its ordering group.
            JobNotFoundError: If the job does not exist.
        """
        self.priority = await change_priority(self._link, self.id, priority)

    async def change_delay(self, delay: Milliseconds) -> None:
        """Change when the job becomes due, if it has not started.

        Args:
            delay: Time from now, in ms or as a timedelta; 0 makes the job ready to run.

        Raises:
            GlideMQValidationError: If ``delay`` is invalid.
            JobStateError: If the job is active, has ended, or waits in its ordering group.
            JobNotFoundError: If the job does not exist.
        """
        self._delay = await change_delay(self._link, self.id, delay)

    async def promote(self) -> None:
        """Make the job ready to run now.

        Raises:
            JobStateError: If the job is not delayed.
            JobNotFoundError: If the job does not exist.
        """
        await promote(self._link, self.id)
        self._delay = 0

    async def revoke(self) -> RevokeOutcome:
        """Cancel the job: it does not start, or stops running.

        Returns:
            - "revoked": the job had not started. It has failed with the reason ``revoked``.
            - "flagged": the job is active and its worker cancels it at the next heartbeat; see `Queue.revoke`.
            - "not_found": the job does not exist.
        """
        return await revoke(self._link, self.id)

    async def is_revoked(self) -> bool:
        """Return True if the job was revoked. A requeue (`Job.retry`) resets this."""
        reply: bytes | None = await self._link.transport.command("HGET", self._link.keys.job(self.id), "revoked")
        return reply == b"1"
