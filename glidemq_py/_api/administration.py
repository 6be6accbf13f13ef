"""The administrative methods of `Queue`: pause, drain, clean, retry, obliterate, remove, revoke, promote.

An operation on many jobs makes several short server calls. Each call is atomic and leaves the queue consistent, so an
interrupted operation is continued by calling it again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Final

from glidemq_py._core.calls import administration, pieces
from glidemq_py._core.checks import check_bool, check_choice, check_int
from glidemq_py._core.record import JobState, check_states
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features import delays
from glidemq_py._features import revoke as revocation
from glidemq_py._features.cleaning import CLEANABLE, clean_unfinished
from glidemq_py._features.queue_list import unregister
from glidemq_py._features.revoke import RevokeOutcome
from glidemq_py._job.reading import get_counts
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import ConnectedQueue
from glidemq_py._partitions.stored import delete_keys, jobs_active_error
from glidemq_py.errors import GlideMQValidationError

_BATCH: Final = 250
_EVENTS_KEPT: Final = 1_000
_MOST_EVENTS: Final = 100_000_000
_MOST_RESULTS: Final = 1_000_000_000
_PIECE: Final = 100
"""Jobs per call: one or two milliseconds of server time."""


# -- the queue as a whole -----------------------------------------------------------------------------


async def pause(self: ConnectedQueue) -> None:
    """Pause the queue for all workers, immediately. Active jobs keep running. Idempotent."""
    await self._change(lambda link: link.call(administration.pause))


async def resume(self: ConnectedQueue) -> None:
    """Resume a paused queue. Idempotent."""
    await self._change(lambda link: link.call(administration.resume))


async def is_paused(self: ConnectedQueue) -> bool:
    """Return True if the queue is paused."""
    link = await self._first()
    return bool(await link.command("HGET", link.keys.meta, "paused") == b"1")


async def drain(self: ConnectedQueue, *, delayed: bool = False) -> int:
    """Delete the jobs that are ready to run: waiting, prioritized and group-waiting.

    Active jobs are kept. Jobs added during the call may be deleted or not. Pause the queue first to prevent
    workers from starting jobs during the call.

    Args:
        delayed: If True, delete delayed jobs too, including retries that wait for their backoff.

    Returns:
        The number of deleted jobs.
    """
    check_bool("delayed", delayed)
    return sum(await self._each(lambda link: _drain(link, delayed), fresh=True))


async def _drain(link: QueueLink, delayed: bool) -> int:
    return sum([number async for number, _ in drain_in_pieces(link, delayed)])


async def drain_in_pieces(link: QueueLink, delayed: bool, position: str = "") -> AsyncGenerator[tuple[int, str]]:
    """Delete the jobs that are ready to run, a hundred per call. Yield their number, and where to continue."""
    deleted, cursor = 0, position
    while True:
        piece = await link.call(administration.drain, delayed, cursor, _PIECE, deleted)
        deleted, cursor = deleted + piece.deleted, piece.cursor
        yield piece.deleted, cursor
        if not cursor:
            return


async def clean(self: ConnectedQueue, grace: Milliseconds, limit: int = 1_000, state: str = "completed") -> list[str]:
    """Delete jobs in a state that ended, or else were added, at least ``grace`` ago.

    Completed and failed jobs are deleted oldest first, others in the order of `Queue.iter_jobs`. Everything that
    belongs to a job, such as its logs, is deleted with it. A job that leaves the state meanwhile is kept.

    Args:
        grace: Minimum time since the end of a completed or failed job, and since the add of any other, in ms or
            as a timedelta; 0 selects all.
        limit: Maximum number of jobs to delete, >= 1.
        state: A state that `Queue.iter_jobs` accepts, except "active". The jobs of a paused queue are "waiting".

    Returns:
        The ids of the deleted jobs.

    Raises:
        GlideMQValidationError: If an argument is invalid.
    """
    ms = to_ms("grace", grace)
    most = check_int("limit", limit, 1, 2**53)
    chosen = JobState(check_choice("state", state, CLEANABLE))
    found = await self._up_to(most, lambda link, left: _clean(link, chosen, ms, left), len)
    return [job_id for ids in found for job_id in ids]


async def _clean(link: QueueLink, state: JobState, ms: int, most: int) -> list[str]:
    ids: list[str] = []
    if not state.is_finished:
        ids = await clean_unfinished(link, state, ms, most)
    else:
        cutoff, more = -1, True
        while more:
            cutoff, found, more = await link.call(
                administration.clean, str(state), ms, cutoff, _PIECE, most - len(ids), len(ids)
            )
            ids += found
    return [*map(link.shown_id, ids)]


def checked_count(count: object) -> int:
    """Return a maximum number of jobs as the server functions know it: 0 = all, which callers write as None.

    Raises:
        GlideMQValidationError: If it is neither None nor a positive number. 0 may be a mistake of the program.
    """
    if count == 0 and type(count) is int:
        raise GlideMQValidationError("count", 0, "must be at least 1; leave it out for all jobs")
    return 0 if count is None else check_int("count", count, 1, 2**53)


async def promote_up_to(link: QueueLink, name: str, want: int) -> int:
    """Promote delayed jobs of a part, at most ``want``; 0 = all. Return their number."""
    return sum([number async for number, _ in promote_in_pieces(link, name, want=want)])


async def promote_in_pieces(
    link: QueueLink, name: str, position: str = "", *, want: int = 0
) -> AsyncGenerator[tuple[int, str]]:
    """Promote delayed jobs, a hundred per call. Yield their number, and where to continue ('' = end)."""
    promoted, cursor = 0, position
    while True:
        piece = await link.call(administration.promote_jobs, _PIECE, want and want - promoted, cursor, name)
        promoted, cursor = promoted + piece.promoted, piece.cursor
        yield piece.promoted, cursor
        if not cursor:
            return


async def retry_jobs(self: ConnectedQueue, count: int | None = None) -> int:
    """Requeue failed jobs with all their attempts, oldest failure first.

    Cancelled jobs stay failed: `failures.retry` with their reason, or `Job.retry`, requeues them. A job stays
    failed while another job that has not ended has its deduplication id.

    Args:
        count: Maximum number of jobs, >= 1; None requeues all jobs that are failed at the time of the call.

    Returns:
        The number of requeued jobs.

    Raises:
        GlideMQValidationError: If ``count`` is invalid.
        ServerOutOfMemoryError: If the server has reached ``maxmemory``. The remaining jobs stay failed.
    """
    want = checked_count(count)
    return sum(await self._up_to(want, lambda link, left: requeue_up_to(link, left, completed=False), int))


async def requeue_up_to(link: QueueLink, want: int, *, completed: bool) -> int:
    """Requeue failed or completed jobs of a part, at most ``want``; 0 = all. Return their number."""
    requeued, left, kept = 0, -1, 0
    while left:
        wanted = want and want - requeued
        done, left, kept = await link.call(administration.requeue_jobs, _PIECE, wanted, left, requeued, completed, kept)
        requeued += done
    return requeued


async def obliterate(self: ConnectedQueue, *, force: bool = False, scan: bool = False) -> int:
    """Delete the queue with all its jobs and keys, at a cost that depends on the size of the queue.

    A partitioned queue is one without partitions afterwards. Its partitions are deleted one after the other, and
    refuse new jobs meanwhile. For a day, each keeps a number by which late calls are refused. If the call is
    interrupted, call it again.

    Args:
        force: If True, delete active jobs too. In a partitioned queue, jobs that start during the call are deleted
            without it too.
        scan: If True, also search all keys of the server, in steps of a thousand, for keys of the queue that
            nothing else in it names: those changed by hand, or left by a Node peer's library.

    Returns:
        The number of deleted jobs.

    Raises:
        JobStateError: If jobs are active and ``force`` is False. Nothing was deleted.
        LibraryError: If the user lacks a permission. Nothing was deleted.
    """
    check_bool("force", force)
    check_bool("scan", scan)

    async def run() -> int:
        links = await self._links()
        is_partitioned = len(links) > 1
        if is_partitioned and not force:
            active = sum([(await get_counts(link)).active for link in links])
            if active:
                raise jobs_active_error(self.name, active)
        deleted = 0
        for link in reversed(links):  # the first part, which has the layout, is the last
            deleted += await obliterate_queue(link, force=force or is_partitioned, scan=scan)
        if is_partitioned:
            await self._disconnect()
        self._adder = None  # the next add lists the queue again
        return deleted

    return await self._routed(run, fresh=True)


# -- single jobs --------------------------------------------------------------------------------------


async def remove(self: ConnectedQueue, job_id: str, *, states: str | Iterable[str] | None = None) -> bool:
    """Delete a job in any state, with its logs and other keys. Return False if it does not exist.

    If the job is active, its worker notices at the next heartbeat and discards the result.

    Args:
        job_id: Id of the job.
        states: A state or several, as in `JobState`: delete the job only in one of these. None allows all.

    Raises:
        GlideMQValidationError: If a state is unknown.
        JobStateError: If the job is in none of ``states``. Nothing was changed.
    """
    allowed = check_states(states)
    return await self._of(job_id, lambda link, own: link.call(administration.remove, own, allowed))


async def revoke(self: ConnectedQueue, job_id: str, *, states: str | Iterable[str] | None = None) -> RevokeOutcome:
    """Cancel a job: it does not start, or stops running.

    Args:
        job_id: Id of the job.
        states: A state or several, as in `JobState`: cancel the job only in one of these. None allows all.

    Returns:
        - "revoked": the job had not started. It has failed with the reason ``revoked``.
        - "flagged": the job is active. Its worker notices at the next heartbeat and cancels the handler (or sets
            ``job.cancelled`` for a handler in a thread), and the job fails without another attempt. Also
            returned for a waiting job that is not found quickly (far down a list, or added by a peer): it fails
            when a worker fetches it. A job that has ended is not affected.
        - "not_found": there is no such job.

    Raises:
        GlideMQValidationError: If a state is unknown.
        JobStateError: If the job is in none of ``states``. Nothing was changed.
    """
    return await self._of(job_id, lambda link, own: revocation.revoke_job(link, own, states))


async def promote(self: ConnectedQueue, job_id: str) -> None:
    """Make a delayed job ready to run now.

    Raises:
        JobStateError: If the job is not delayed.
        JobNotFoundError: If the job does not exist.
    """
    await self._of(job_id, delays.promote_job)


async def obliterate_queue(link: QueueLink, *, force: bool, scan: bool) -> int:
    """Delete every key of the queue and return the number of deleted jobs.

    Args:
        link: The queue, or a partition.
        force: As for `obliterate`.
        scan: As for `obliterate`.

    Raises:
        LayoutChangedError: If the queue has another layout, or the partition a later one.
        GlideMQValidationError: If ``force`` or ``scan`` is not a bool.
        JobStateError: If jobs are active and ``force`` is False.
        LibraryError: If the user lacks a permission. Nothing was deleted.
        GlideMQError: If a step deleted nothing although the queue is not empty.
    """
    check_bool("force", force)
    check_bool("scan", scan)
    deleted = await delete_keys(link.transport, link.keys, force=force, layout=link.layout)
    if scan:
        deleted += await _sweep(link)
    link.has_usage = False
    await unregister(link)
    return deleted


async def _sweep(link: QueueLink) -> int:
    deleted, prefix, kept = 0, link.keys.job_prefix.encode(), link.keys.deleted_layout.encode()
    async for keys in link.transport.scan(f"{link.keys.stem}*"):
        for piece in pieces(keys, _BATCH):
            batch = [key for key in piece if key != kept]
            # Keys of subscriptions (`job:<id>:sub:<name>`) are not jobs.
            deleted += sum(key.startswith(prefix) and b":" not in key[len(prefix) :] for key in batch)
            if batch:
                await link.command("UNLINK", *batch)
    return deleted
