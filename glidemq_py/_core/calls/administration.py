"""Calls that manage a queue, one of its jobs, or many jobs in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader, unpack
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py.errors import JobStateError

NO_TOKEN = (0, 0)
"""Used instead of (fence, processed_on) if the caller is not the worker that runs the job."""


def pause(meta: str) -> Call[bool]:
    """Pause the queue; return True if it was not paused before."""
    return Call("pause", meta, (), bool)


def resume(meta: str) -> Call[bool]:
    """Resume the queue; return True if it was paused before."""
    return Call("resume", meta, (), bool)


def set_settings(meta: str, /, **settings: str | None) -> Call[int]:
    """Set options of the queue, by the names of their fields in its meta; None deletes one."""
    flat = [part for name, text in settings.items() for part in (name, text if text is not None else False)]
    return Call("set_settings", meta, requests.set_settings(settings=flat), int)


def registry_add(key: str, members: Sequence[str]) -> Call[int]:
    """Add members to a set that belongs to no queue; return how many are new."""
    return Call("registry_add", key, requests.registry_add(members=members), int)


def registry_set(key: str, fields: Mapping[str, str]) -> Call[int]:
    """Set fields of a hash that belongs to no queue; return how many are new."""
    flat = [text for pair in fields.items() for text in pair]
    return Call("registry_set", key, requests.registry_set(fields=flat), int)


def registry_touch(key: str, member: str, score: int, mode: Literal["GT", "NX"], ttl: int = 0) -> Call[int]:
    """Write a time to a sorted set that belongs to no queue, and set its TTL to ``ttl`` ms (0: unchanged)."""
    return Call("registry_touch", key, requests.registry_touch(member=member, score=score, mode=mode, ttl=ttl), int)


def remove(meta: str, job_id: str, states: str = "") -> Call[bool]:
    """Delete a job and all its keys; return False if it did not exist.

    ``states``: allowed states, separated by spaces; '' = all. The call raises `JobStateError` for a job in another.
    """

    def read(reply: int | bytes) -> bool:
        if isinstance(reply, bytes):
            raise JobStateError(job_id, reply.decode(), "remove")
        return bool(reply)

    return Call("remove", meta, requests.remove(id=job_id, states=states), read)


def requeue_job(meta: str, job_id: str, completed: bool = False) -> Call[str]:
    """Requeue a failed job; return 'ok', 'gone', or the state that does not allow it."""
    return Call("requeue_job", meta, requests.requeue_job(id=job_id, completed="1" if completed else ""), bytes.decode)


def obliterate(
    meta: str, force: bool, batch: int, cursor: str = "", has_usage: bool = False, layout: int = 0
) -> Call[Obliterated]:
    """Delete up to ``batch`` jobs of the queue.

    The status is "more" (call again), "done", "partitioned" (partition 0 has another layout, or another
    partition a later one), or "active": jobs are active and ``force`` is False; their number is returned instead of
    that of the deleted jobs.

    Args:
        meta: Key of the queue.
        force: Delete active jobs, too.
        batch: Number of jobs.
        cursor: Of the reply before.
        has_usage: Whether the queue may have usage that a Node peer reported.
        layout: Number of the layout of a partitioned queue, which is deleted with it; 0 = another queue.
    """
    return Call(
        "obliterate",
        meta,
        requests.obliterate(force=force, batch=batch, cursor=cursor, has_usage=int(has_usage), layout=layout),
        _obliterated,
    )


def _obliterated(reply: bytes) -> Obliterated:
    status, number, cursor, removed = unpack(reply)
    return Obliterated(str(status), int(number), str(cursor), int(removed))


def _update(
    meta: str, kind: int, job_id: str, text: str, token: tuple[int, int], keep: int = 0,
    message: str | bool | None = None, number: str = "",
) -> Call[AttemptStatus]:  # fmt: skip
    fence, processed_on = token
    arguments = requests.update_job(
        kind=kind, id=job_id, text=text, fence=fence, processed_on=processed_on, keep=keep,
        message=False if message is None else message, number=number,
    )  # fmt: skip
    return Call("update_job", meta, arguments, AttemptStatus)


def update_job_progress(
    meta: str, job_id: str, text: str, token: tuple[int, int] = NO_TOKEN, message: str | None = None
) -> Call[AttemptStatus]:
    """Set a job's progress (number text or JSON) and its message, and emit its event."""
    return _update(meta, 1, job_id, text, token, message=message)


def append_job_log(
    meta: str, job_id: str, line: str, keep: int, token: tuple[int, int] = NO_TOKEN, number: str = ""
) -> Call[AttemptStatus]:
    """Append a line to a job's log and keep the newest ``keep`` lines (0 = all). number: see `JobContents._append`."""
    return _update(meta, 2, job_id, line, token, keep, number=number)


def update_job_data(
    meta: str, job_id: str, data: str, token: tuple[int, int] = NO_TOKEN, own_keys: str | bool = False
) -> Call[AttemptStatus]:
    """Replace a job's data (encoded text); for ``own_keys`` see `EarlierRun`."""
    return _update(meta, 3, job_id, data, token, message=own_keys)


def record_tokens(meta: str, job_id: str, tokens: int, token: tuple[int, int] = NO_TOKEN) -> Call[AttemptStatus]:
    """Record how many tokens a job has used."""
    return _update(meta, 4, job_id, str(tokens), token)


def update_job_cursor(meta: str, job_id: str, text: str, token: tuple[int, int]) -> Call[AttemptStatus]:
    """Store how far a job's handler is (`Job.iterate`)."""
    return _update(meta, 5, job_id, text, token)


def lock(key: str, token: str, ttl: int) -> Call[bool]:
    """Acquire a lock for ``ttl`` ms; return False if another client holds it."""
    return Call("lock", key, requests.lock(token=token, ttl=str(ttl)), bool)


def unlock(key: str, token: str) -> Call[bool]:
    """Release a lock; return False if this client no longer holds it."""
    return Call("unlock", key, requests.unlock(token=token), bool)


def renew(key: str, token: str, ttl: int) -> Call[bool]:
    """Renew a lock for ``ttl`` ms; return False if this client no longer holds it."""
    return Call("renew", key, requests.renew(token=token, ttl=str(ttl)), bool)


@declared("obliterate_reply")
class Obliterated(NamedTuple):
    """Reply of one step of obliterate."""

    status: str
    """"more", "done", "active" or "partitioned"."""
    deleted: int
    """Number of deleted jobs, or of active jobs if the status is "active"."""
    cursor: str
    removed: int
    """Approximate number of removed keys and places in indexes; 0 = there was no progress."""


@declared("drain_reply")
class Drained(NamedTuple):
    """Reply of one batch of a drain."""

    deleted: int
    cursor: str
    """'' = the end."""


@declared("clean_reply")
class Cleaned(NamedTuple):
    """Reply of one batch of a clean."""

    cutoff: int
    """Jobs that ended at or before this time (epoch ms) are deleted."""
    ids: list[str]
    more: bool


@declared("promote_jobs_reply")
class Promoted(NamedTuple):
    """Reply of one batch of promoted jobs."""

    promoted: int
    cursor: str
    """'' = the end."""


@declared("requeue_jobs_reply")
class Retried(NamedTuple):
    """Reply of one batch of requeued jobs."""

    retried: int
    left: int
    """Number of ids not yet processed; 0 = the end."""
    kept: int
    """Number of jobs that are not requeued: another job has their deduplication id."""


def drain(meta: str, delayed: bool, cursor: str, batch: int, total: int) -> Call[Drained]:
    """Delete waiting jobs, and delayed ones if ``delayed``; ``total`` = number deleted by the previous calls."""
    return Call(
        "drain", meta, requests.drain(delayed=delayed, cursor=cursor, batch=batch, total=total), reader(Drained)
    )


def clean(meta: str, state: str, grace: int, cutoff: int, batch: int, want: int, total: int) -> Call[Cleaned]:
    """Delete jobs that ended at least ``grace`` ms ago; ``cutoff``: -1, then that of the previous reply."""
    return Call(
        "clean",
        meta,
        requests.clean(state=state, grace=grace, cutoff=cutoff, batch=batch, want=want, total=total),
        reader(Cleaned),
    )


def clean_jobs(meta: str, ids: Sequence[str], states: str, before: int, total: int, is_last: bool) -> Call[list[str]]:
    """Delete those of the jobs that are still in one of the states (separated by spaces) and not added after `before`.

    Returns:
        The ids of the deleted jobs.
    """
    arguments = requests.clean_jobs(ids=ids, states=states, before=before, total=total, is_last=is_last)
    return Call("clean_jobs", meta, arguments, unpack)


def promote_jobs(meta: str, batch: int, want: int, cursor: str, name: str) -> Call[Promoted]:
    """Make delayed jobs ready; ``want`` 0 = all, ``name`` '' = any."""
    arguments = requests.promote_jobs(batch=batch, want=want, cursor=cursor, name=name)
    return Call("promote_jobs", meta, arguments, reader(Promoted))


def requeue_jobs(
    meta: str, batch: int, want: int, left: int, total: int, completed: bool = False, kept: int = 0
) -> Call[Retried]:
    """Requeue failed jobs; ``want`` 0 = all, ``left``: -1, and ``kept``: 0, then those of the previous reply."""
    return Call(
        "requeue_jobs",
        meta,
        requests.requeue_jobs(batch=batch, want=want, left=left, total=total, completed=completed, kept=kept),
        reader(Retried),
    )


def revoke(meta: str, job_id: str, states: str = "") -> Call[str]:
    """Revoke a job; return 'revoked', 'flagged', 'not_found', or the state if it is none of ``states`` ('' = all)."""
    return Call("revoke", meta, requests.revoke(id=job_id, states=states), bytes.decode)


def revoke_jobs(meta: str, ids: Sequence[str], states: str = "") -> Call[list[str]]:
    """Revoke at most a hundred jobs; return the outcomes of the first ones, as `revoke` does, or 'error'."""
    arguments = requests.revoke_jobs(ids=ids, states=states)
    return Call("revoke_jobs", meta, arguments, unpack)


def discard(meta: str, job_id: str) -> Call[str]:
    """Give up the remaining attempts of an active job; return 'ok', 'gone', or the state that does not allow it."""
    return Call("discard", meta, requests.discard(id=job_id), bytes.decode)


def change_priority(meta: str, job_id: str, priority: int) -> Call[str]:
    """Change a job's priority (0 to 2047).

    Returns 'ok', 'no_op', 'gone', 'held', 'lost', or the state that does not allow it.
    """
    return Call("change_priority", meta, requests.change_priority(id=job_id, priority=str(priority)), bytes.decode)


def change_rank(meta: str, job_id: str, rank: int, *, lifo: bool = False) -> Call[str]:
    """Change a job's rank (-1,000,000 to 1,000,000); ``lifo`` also makes it a LIFO job.

    Returns the same results as `change_priority`, 'keyed' or 'ordered'.
    """
    arguments = requests.change_rank(id=job_id, rank=str(rank), lifo="1" if lifo else "")
    return Call("change_rank", meta, arguments, bytes.decode)


def change_delay(meta: str, job_id: str, delay: int) -> Call[str]:
    """Make a job due ``delay`` ms from now, 0 = immediately. Returns the same results as `change_priority`."""
    return Call("change_delay", meta, requests.change_delay(id=job_id, delay=str(delay)), bytes.decode)


def promote(meta: str, job_id: str) -> Call[str]:
    """Make a delayed job due immediately; return 'ok', 'gone', 'lost', or the state that does not allow it."""
    return Call("promote", meta, requests.promote(id=job_id), bytes.decode)
