"""What operators do to a queue: stop it, empty it, clean it, give its jobs another turn or none.

Whatever touches many jobs goes in pieces that are short for the server. A piece is atomic and leaves everything in
order, so an operation that was cut off is gone on with by calling it again.
"""

from __future__ import annotations

from typing import Final, Literal

from glidemq_py._core.calls import control, steering
from glidemq_py._core.checks import check_bool, check_choice, check_int
from glidemq_py._core.keys import usage_registry_key
from glidemq_py._core.names import parse_job_id
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._job import QueueLink
from glidemq_py._job import control as of_job
from glidemq_py._job.control import RevokeOutcome
from glidemq_py.errors import JobStateError

__all__ = [
    "QueueControl",
    "obliterate",
]

_EVENTS_KEPT: Final = 1_000
_MOST_EVENTS: Final = 100_000_000
_PIECE: Final = 100
"""Jobs a call: one or two milliseconds of the server's time."""


class QueueControl:
    """The part of `Queue` that steers it."""

    async def _connected(self) -> QueueLink:
        raise NotImplementedError

    # -- the queue as a whole -----------------------------------------------------------------------------

    async def pause(self) -> None:
        """Hand out no more jobs, at once and to nobody; what is running runs on. Idempotent."""
        link = await self._connected()
        await link.transport.call(control.pause(link.keys.meta))

    async def resume(self) -> None:
        """Hand out jobs again. Idempotent."""
        link = await self._connected()
        await link.transport.call(control.resume(link.keys.meta))

    async def is_paused(self) -> bool:
        """True if the queue hands out no jobs."""
        link = await self._connected()
        return bool(await link.transport.command("HGET", link.keys.meta, "paused") == b"1")

    async def set_event_retention(self, count: int) -> None:
        """Keep about that many events (some 100 bytes each), for readers that fall further behind than a thousand.

        It holds for what this library writes; a Node peer that writes an event cuts them to a thousand.

        Args:
            count: 1 to 100,000,000; 0 = about a thousand again.
        """
        number = check_int("count", count, 0, _MOST_EVENTS)
        link = await self._connected()
        await link.transport.call(control.keep_events(link.keys.meta, number))

    async def get_event_retention(self) -> int:
        """How many events the queue keeps, about: 1000 where nothing else was set."""
        link = await self._connected()
        found = await link.transport.command("HGET", link.keys.meta, "maxLenEvents")
        return int(found) if found and found.isdigit() else _EVENTS_KEPT

    async def drain(self, *, delayed: bool = False) -> int:
        """Delete the jobs that are ready to run: waiting, prioritized, parked in groups. Active ones stay.

        Jobs that are added meanwhile may stay or go. Pause the queue first if none shall start meanwhile.

        Args:
            delayed: delete those that are due later too, retries that wait for their backoff among them.

        Returns:
            How many were deleted.
        """
        check_bool("delayed", delayed)
        link = await self._connected()
        deleted, cursor = 0, ""
        while True:
            piece = await link.transport.call(steering.drain(link.keys.meta, delayed, cursor, _PIECE, deleted))
            deleted, cursor = deleted + piece.deleted, piece.cursor
            if not cursor:
                return deleted

    async def clean(
        self, grace: Milliseconds, limit: int = 1_000, state: Literal["completed", "failed"] = "completed"
    ) -> list[str]:
        """Delete jobs that ended at least ``grace`` ago, with everything that belongs to them, oldest first.

        Args:
            grace: ms or timedelta; 0 = whenever they ended.
            limit: delete at most that many.
            state: "completed" or "failed".

        Returns:
            The ids of the jobs deleted.
        """
        ms = to_ms("grace", grace)
        most = check_int("limit", limit, 0, 2**53)
        check_choice("state", state, ("completed", "failed"))
        link = await self._connected()
        ids: list[str] = []
        cutoff, more = -1, most > 0
        while more:
            call = steering.clean(link.keys.meta, state, ms, cutoff, _PIECE, most - len(ids), len(ids))
            cutoff, found, more = await link.transport.call(call)
            ids += found
        return ids

    async def retry_jobs(self, count: int = 0) -> int:
        """Run failed jobs again, with all their attempts, those that failed first first.

        Args:
            count: how many at most; 0 = all that have failed by now.

        Returns:
            How many were retried.

        Raises:
            ServerOutOfMemoryError: the server is at maxmemory; those that were not yet retried stay failed.
        """
        want = check_int("count", count, 0, 2**53)
        link = await self._connected()
        retried, left = 0, -1
        while left:
            call = steering.retry_jobs(link.keys.meta, _PIECE, want and want - retried, left, retried)
            done, left = await link.transport.call(call)
            retried += done
        return retried

    async def obliterate(self, *, force: bool = False) -> int:
        """Delete the queue: every job and every key. Returns the number of jobs deleted.

        Raises:
            JobStateError: jobs are being worked on, and ``force`` is off; nothing was deleted.
        """
        return await obliterate(await self._connected(), force=force)

    # -- one job of it ------------------------------------------------------------------------------------

    async def remove(self, job_id: str) -> bool:
        """Delete a job with everything that belongs to it, whatever its state; False if there was none."""
        link = await self._connected()
        return await link.transport.call(control.remove(link.keys.meta, _id(job_id)))

    async def revoke(self, job_id: str) -> RevokeOutcome:
        """Have a job not run, or stop running.

        Returns:
            "revoked": it had not begun, and has failed with the reason ``revoked``.
            "flagged": it runs, and its worker is told by its next heartbeat, which cancels the handler (or sets
            ``job.cancelled`` for one in a thread), and the job fails without another attempt. Or it waits where
            it is not found at once (far down a list, or put there by a peer): it fails when it is taken. For a job
            that has ended it means nothing.
            "not_found": there is no such job.
        """
        return await of_job.revoke(await self._connected(), _id(job_id))

    async def change_priority(self, job_id: str, priority: int) -> None:
        """Give a job that has not begun another priority: 1 is most urgent, 2047 least, 0 none.

        Raises:
            JobStateError: it is active, has ended, or waits in its group. JobNotFoundError: it is gone.
        """
        await of_job.change_priority(await self._connected(), _id(job_id), priority)

    async def change_delay(self, job_id: str, delay: Milliseconds) -> None:
        """Have a job that has not begun become due ``delay`` (ms or timedelta) from now; 0 = at once.

        Raises:
            JobStateError: it is active, has ended, or waits in its group. JobNotFoundError: it is gone.
        """
        await of_job.change_delay(await self._connected(), _id(job_id), delay)

    async def promote(self, job_id: str) -> None:
        """Have a delayed job become due at once.

        Raises:
            JobStateError: it is not delayed. JobNotFoundError: it is gone.
        """
        await of_job.promote(await self._connected(), _id(job_id))


def _id(job_id: str) -> str:
    return parse_job_id(job_id)


_BATCH = 250


async def obliterate(link: QueueLink, *, force: bool) -> int:
    """Delete every key of the queue; returns the number of jobs deleted.

    The library empties what the queue's own indexes name. Jobs that only a Node peer's structures name (parents
    that wait, groups) are then found by their keys.

    Raises:
        GlideMQValidationError: ``force`` is neither True nor False.
        JobStateError: jobs are active and ``force`` is off.
    """
    check_bool("force", force)
    deleted, status = 0, "more"
    while status == "more":
        status, step = await link.transport.call(control.obliterate(link.keys.meta, force or deleted > 0, _BATCH))
        if status == "active":
            raise _refusal(link.keys.name, step)
        deleted += step
    deleted += await _sweep(link)
    await link.transport.command("SREM", usage_registry_key(link.keys.prefix), link.keys.name)
    link.has_usage = False
    return deleted


def _refusal(name: str, active: int) -> JobStateError:
    jobs = "1 job is" if active == 1 else f"{active} jobs are"
    return JobStateError(
        "*", "active", "obliterate",
        f"cannot obliterate queue {name!r}: {jobs} active. Close or pause its workers and wait until their jobs have "
        "ended; or use force=True, which deletes the jobs under their handlers",
    )  # fmt: skip


async def _sweep(link: QueueLink) -> int:
    deleted, prefix = 0, link.keys.job_prefix.encode()
    async for keys in link.transport.scan(f"{link.keys.stem}*"):
        for i in range(0, len(keys), _BATCH):
            batch = keys[i : i + _BATCH]
            # Beside a record may stand what subscriptions made of it: `job:<id>:sub:<name>`.
            deleted += sum(key.startswith(prefix) and b":" not in key[len(prefix) :] for key in batch)
            await link.transport.command("UNLINK", *batch)
    return deleted
