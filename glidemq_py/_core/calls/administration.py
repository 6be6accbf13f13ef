"""Calls that manage a queue, one of its jobs, or many jobs in batches, and calls that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from glidemq_py._core.calls import Argument, Call, Flag, Packed, call, declared
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py.errors import JobStateError

NO_TOKEN = (0, 0)
"""Used instead of (fence, processed_on) if the caller is not the worker that runs the job."""


@call("pause", repeatable=True)
def pause() -> bool:
    """Pause the queue; return True if it was not paused before."""
    ...


@call("resume", repeatable=True)
def resume() -> bool:
    """Resume the queue; return True if it was paused before."""
    ...


@call("set_settings", repeatable=True)
def _set_settings(settings: Packed[Sequence[str | bool]]) -> int:
    """Set options of the queue: names of fields in its meta, and texts or False, flat."""
    ...


def set_settings(meta: str, /, **settings: str | None) -> Call[int]:
    """Set options of the queue, by the names of their fields in its meta; None deletes one."""
    flat = [part for name, text in settings.items() for part in (name, text if text is not None else False)]
    return _set_settings(meta, flat)


@call("registry_add", repeatable=True, has_queue=False)
def registry_add(members: Packed[Sequence[str]]) -> int:
    """Add members to a set that belongs to no queue; return how many are new."""
    ...


@call("registry_set", repeatable=True, has_queue=False)
def _registry_set(fields: Packed[Sequence[str]]) -> int:
    """Set fields of a hash that belongs to no queue: names and values, flat."""
    ...


def registry_set(key: str, fields: Mapping[str, str]) -> Call[int]:
    """Set fields of a hash that belongs to no queue; return how many are new."""
    return _registry_set(key, [text for pair in fields.items() for text in pair])


@call("registry_touch", repeatable=True, has_queue=False)
def registry_touch(member: str, score: int, mode: Literal["GT", "NX"], ttl: int = 0) -> int:
    """Write a time to a sorted set that belongs to no queue, and set its TTL to ``ttl`` ms (0: unchanged)."""
    ...


@call("remove", repeatable=True)
def _remove(id: Argument[str], states: Argument[str]) -> bool:
    """Delete a job and all its keys."""
    ...


def remove(meta: str, job_id: str, states: str = "") -> Call[bool]:
    """Delete a job and all its keys; return False if it did not exist.

    ``states``: allowed states, separated by spaces; '' = all. The call raises `JobStateError` for a job in another.
    """

    def read(reply: int | bytes) -> bool:
        if isinstance(reply, bytes):
            raise JobStateError(job_id, reply.decode(), "remove")
        return bool(reply)

    made = _remove(meta, job_id, states)
    made.decode = read
    return made


@call("requeue_job")
def requeue_job(id: Argument[str], completed: Argument[bool] = False) -> str:
    """Requeue a failed job; return 'ok', 'gone', or the state that does not allow it."""
    ...


@call("obliterate", repeatable=True)
def obliterate(force: bool, batch: int, cursor: str = "", has_usage: Flag = False, layout: int = 0) -> Obliterated:
    """Delete up to ``batch`` jobs of the queue.

    The status is "more" (call again), "done", "partitioned" (partition 0 has another layout, or another
    partition a later one), or "active": jobs are active and ``force`` is False; their number is returned instead of
    that of the deleted jobs.

    Args:
        force: Delete active jobs, too.
        batch: Number of jobs.
        cursor: Of the reply before.
        has_usage: Whether the queue may have usage that a Node peer reported.
        layout: Number of the layout of a partitioned queue, which is deleted with it; 0 = another queue.
    """
    ...


@call("update_job", repeatable=True)
def _update_job(
    kind: int, id: str, text: str, fence: int, processed_on: int, keep: int, message: str | bool | None,
    number: Argument[str],
) -> AttemptStatus:  # fmt: skip
    """Change a job; see the functions below."""
    ...


def _update(
    meta: str, kind: int, job_id: str, text: str, token: tuple[int, int], keep: int = 0,
    message: str | bool | None = None, number: str = "",
) -> Call[AttemptStatus]:  # fmt: skip
    return _update_job(meta, kind, job_id, text, *token, keep, message, number)


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


@call("lock", has_queue=False)
def lock(token: Argument[str], ttl: Argument[int]) -> bool:
    """Acquire a lock for ``ttl`` ms; return False if another client holds it."""
    ...


@call("unlock", repeatable=True, has_queue=False)
def unlock(token: Argument[str]) -> bool:
    """Release a lock; return False if this client no longer holds it."""
    ...


@call("renew", repeatable=True, has_queue=False)
def renew(token: Argument[str], ttl: Argument[int]) -> bool:
    """Renew a lock for ``ttl`` ms; return False if this client no longer holds it."""
    ...


class Obliterated(NamedTuple):
    """Reply of one step of obliterate."""

    status: str
    """"more", "done", "active" or "partitioned"."""
    deleted: int
    """Number of deleted jobs, or of active jobs if the status is "active"."""
    cursor: str
    removed: int
    """Approximate number of removed keys and places in indexes; 0 = there was no progress."""


class Drained(NamedTuple):
    """Reply of one batch of a drain."""

    deleted: int
    cursor: str
    """'' = the end."""


class Cleaned(NamedTuple):
    """Reply of one batch of a clean."""

    cutoff: int
    """Jobs that ended at or before this time (epoch ms) are deleted."""
    ids: list[str]
    more: bool


class Promoted(NamedTuple):
    """Reply of one batch of promoted jobs."""

    promoted: int
    cursor: str
    """'' = the end."""


class Retried(NamedTuple):
    """Reply of one batch of requeued jobs."""

    retried: int
    left: int
    """Number of ids not yet processed; 0 = the end."""
    kept: int
    """Number of jobs that are not requeued: another job has their deduplication id."""


@call("drain")
def drain(delayed: bool, cursor: str, batch: int, total: int) -> Drained:
    """Delete waiting jobs, and delayed ones if ``delayed``; ``total`` = number deleted by the previous calls."""
    ...


@call("clean")
def clean(state: str, grace: int, cutoff: int, batch: int, want: int, total: int) -> Cleaned:
    """Delete jobs that ended at least ``grace`` ms ago; ``cutoff``: -1, then that of the previous reply."""
    ...


@call("clean_jobs")
def clean_jobs(ids: Sequence[str], states: str, before: int, total: int, is_last: bool) -> list[str]:
    """Delete those of the jobs that are still in one of the states (separated by spaces) and not added after `before`.

    Returns:
        The ids of the deleted jobs.
    """
    ...


@call("promote_jobs")
def promote_jobs(batch: int, want: int, cursor: str, name: str) -> Promoted:
    """Make delayed jobs ready; ``want`` 0 = all, ``name`` '' = any."""
    ...


@call("requeue_jobs")
def requeue_jobs(batch: int, want: int, left: int, total: int, completed: bool = False, kept: int = 0) -> Retried:
    """Requeue failed jobs; ``want`` 0 = all, ``left``: -1, and ``kept``: 0, then those of the previous reply."""
    ...


@call("revoke", repeatable=True)
def revoke(id: Argument[str], states: Argument[str] = "") -> str:
    """Revoke a job; return 'revoked', 'flagged', 'not_found', or the state if it is none of ``states`` ('' = all)."""
    ...


@call("revoke_jobs", repeatable=True)
def revoke_jobs(ids: Sequence[str], states: str = "") -> list[str]:
    """Revoke at most a hundred jobs; return the outcomes of the first ones, as `revoke` does, or 'error'."""
    ...


@call("discard", repeatable=True)
def discard(id: Argument[str]) -> str:
    """Give up the remaining attempts of an active job; return 'ok', 'gone', or the state that does not allow it."""
    ...


@call("change_priority", repeatable=True)
def change_priority(id: Argument[str], priority: Argument[int]) -> str:
    """Change a job's priority (0 to 2047).

    Returns 'ok', 'no_op', 'gone', 'held', 'lost', or the state that does not allow it.
    """
    ...


@call("change_rank", repeatable=True)
def change_rank(id: Argument[str], rank: Argument[int], *, lifo: Argument[bool] = False) -> str:
    """Change a job's rank (-1,000,000 to 1,000,000); ``lifo`` also makes it a LIFO job.

    Returns the same results as `change_priority`, 'keyed' or 'ordered'.
    """
    ...


@call("change_delay", repeatable=True)
def change_delay(id: Argument[str], delay: Argument[int]) -> str:
    """Make a job due ``delay`` ms from now, 0 = immediately. Returns the same results as `change_priority`."""
    ...


@call("promote")
def promote(id: Argument[str]) -> str:
    """Make a delayed job due immediately; return 'ok', 'gone', 'lost', or the state that does not allow it."""
    ...


class Page(NamedTuple):
    """One page of the jobs in a state."""

    rows: list[tuple[str, str, list[str | bool]]]
    """Id, position (score or entry id, '' in a list), values of the requested fields (False = absent). If no fields
    were requested, only the number of rows is meaningful."""
    cursor: str
    """'' = the end."""


@call("counts", read=list, raw=True, repeatable=True)
def counts() -> list[int]:
    """Return the counts of the jobs by state.

    The reply is: waiting, active, delayed, prioritized, completed, failed, paused, suspended, waiting children, group
    waiting (-1: too many groups for one call, use `count_parked`), 0 or the priority at which `count_delayed`
    continues, and how many of the prioritized jobs have a rank below 0.
    """
    ...


class Parked(NamedTuple):
    """Waiting jobs in one page of the ordering groups."""

    cursor: str
    """'' = the end."""
    groups: dict[str, int]
    """Number of waiting jobs by group key; groups without waiting jobs are omitted."""


@call("count_parked", repeatable=True)
def count_parked(cursor: Argument[str]) -> Parked:
    """Count the waiting jobs in one page of the ordering groups; ``cursor``: '', then that of the previous reply."""
    ...


class Late(NamedTuple):
    """Reply of `count_delayed`."""

    late: int
    band: int
    """The priority at which to continue; 0 = the end."""


@call("count_delayed", raw=True, repeatable=True)
def count_delayed(band: Argument[int]) -> Late:
    """Count delayed jobs from priority ``band``."""
    ...


@declared("condition")
class Condition(NamedTuple):
    """A condition on a field of a job's record; a job without the field does not meet it."""

    field: str
    texts: list[str] | Literal[False]
    """Allowed values; False = any."""
    low: int | Literal[False]
    """Least number, inclusive; False = any."""
    high: int | Literal[False]
    """Greatest number, inclusive; False = any."""
    contains: list[str] | Literal[False] = False
    """Texts that the value contains; False = any."""


@call("page", repeatable=True)
def page(
    state: str, cursor: str, count: int, fields: Sequence[str], name: str | None = None,
    where: Sequence[Condition] | None = None, newest: bool = False,
) -> Page:  # fmt: skip
    """Return one page of jobs, optionally only those with this ``name``, or those that may meet all conditions.

    With ``newest``, jobs of the stream, finished, suspended and parent jobs are in reverse order.

    A number in an unusual form, such as a fraction, meets every condition on numbers.
    ``lua/core/functions/page.lua`` describes the guarantees of a cursor.
    """
    ...


@call("records", repeatable=True)
def records(ids: Sequence[str], fields: Sequence[str]) -> list[tuple[str, list[str | bool]]]:
    """Return id and values of the requested fields (False = absent) of the existing jobs among these ids."""
    ...


class EventSlice(NamedTuple):
    """Reply of `event_slice`."""

    added: int
    """Number of events ever written."""
    kept: int
    """Number of events that are kept, the newest."""
    last: str
    """Id of the newest event."""
    entries: list[tuple[str, list[str]]]
    """Id and flat list of fields per event."""


@call("event_slice", repeatable=True)
def event_slice(after: str, count: int, ids_only: Flag = False) -> EventSlice:
    """Return up to ``count`` events after the id ``after``."""
    ...


def _workers(reply: list[bytes]) -> list[tuple[str, str]]:
    texts = [item.decode() for item in reply]
    return list(zip(texts[::2], texts[1::2], strict=True))


@call("workers", read=_workers, raw=True, repeatable=True)
def workers() -> list[tuple[str, str]]:
    """Return consumer name and registration JSON of each live worker."""
    ...


@call("version", repeatable=True, has_queue=False)
def version() -> str:
    """Return the name of the loaded library; ``key`` only selects the node."""
    ...


class Gauges(NamedTuple):
    """Metrics of one queue."""

    counts: list[int]
    """Counts in the format of `counts`."""
    oldest: int
    """Milliseconds since the oldest waiting job became ready."""
    workers: int
    outbox: int
    """Number of outbox entries."""
    subscriptions: int
    """Number of subscriptions of a broadcast; 0 = a queue."""
    unread: int
    """Stream entries that the slowest subscription has not read; -1 = more than 1,000."""


@call("gauges", repeatable=True)
def gauges() -> Gauges:
    """Return the metrics of one queue."""
    ...
