"""When a job has its turn, and whether at all: what anybody may do to one that has not ended.

The calls are the library's; what its answers mean is said here once, for jobs and queues.
"""

from __future__ import annotations

from typing import Final, Literal, cast

from glidemq_py._core.calls import steering
from glidemq_py._core.calls.packing import Call
from glidemq_py._core.checks import check_int
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import JobNotFoundError, JobStateError

__all__ = ["JobControl", "RevokeOutcome", "change_delay", "change_priority", "promote", "revoke"]

RevokeOutcome = Literal["revoked", "flagged", "not_found"]

MAX_PRIORITY: Final = 2_047

_WHY: Final = {
    "held": "being taken by a worker",
    "lost": "not found where its state says",
}


async def _change(link: QueueLink, job_id: str, call: Call[str], action: str) -> None:
    answer = await link.transport.call(call)
    if answer == "gone":
        raise JobNotFoundError(job_id)
    if answer not in ("ok", "no_op"):
        raise JobStateError(job_id, _WHY.get(answer, answer), action)


async def change_priority(link: QueueLink, job_id: str, priority: int) -> int:
    """Give a job that has not begun another priority; returns it as checked."""
    value = check_int("priority", priority, 0, MAX_PRIORITY)
    await _change(link, job_id, steering.reprioritize(link.keys.meta, job_id, value), "change the priority of")
    return value


async def change_delay(link: QueueLink, job_id: str, delay: Milliseconds) -> int:
    """Have a job that has not begun become due ``delay`` from now; returns it in ms."""
    value = to_ms("delay", delay)
    await _change(link, job_id, steering.redelay(link.keys.meta, job_id, value), "change the delay of")
    return value


async def promote(link: QueueLink, job_id: str) -> None:
    """Have a delayed job become due at once."""
    await _change(link, job_id, steering.promote(link.keys.meta, job_id), "promote")


async def revoke(link: QueueLink, job_id: str) -> RevokeOutcome:
    """Have a job not run, or stop running."""
    return cast("RevokeOutcome", await link.transport.call(steering.revoke(link.keys.meta, job_id)))


class JobControl:
    """The part of `Job` that steers it."""

    id: str
    priority: int
    _delay: int | None
    _link: QueueLink

    async def change_priority(self, priority: int) -> None:
        """Give it another priority: 1 is most urgent, 2047 least, 0 none. For jobs that have not begun.

        Raises:
            JobStateError: it is active, has ended, or waits in its group. JobNotFoundError: it is gone.
        """
        self.priority = await change_priority(self._link, self.id, priority)

    async def change_delay(self, delay: Milliseconds) -> None:
        """Have it become due ``delay`` (ms or timedelta) from now; 0 = at once. Raises as `change_priority`."""
        self._delay = await change_delay(self._link, self.id, delay)

    async def promote(self) -> None:
        """Have it become due at once. Raises JobStateError if it is not delayed, JobNotFoundError if it is gone."""
        await promote(self._link, self.id)
        self._delay = 0

    async def revoke(self) -> RevokeOutcome:
        """Have it not run, or stop running; see `Queue.revoke`."""
        return await revoke(self._link, self.id)

    async def is_revoked(self) -> bool:
        """True if it was revoked; a retry takes that back."""
        reply: bytes | None = await self._link.transport.command("HGET", self._link.keys.job(self.id), "revoked")
        return reply == b"1"
