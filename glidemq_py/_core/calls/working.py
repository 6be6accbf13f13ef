"""Calls of workers: exchange, heartbeat, recovery of stalled jobs, reattaching, leaving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

from glidemq_py._core.calls import Call, pack, unpack

__all__ = [
    "FOREIGN_CONSUMER_PREFIX",
    "SCHEDULES",
    "AttemptStatus",
    "BudgetCharge",
    "ExchangeFlags",
    "ExchangeReply",
    "FetchedJob",
    "HeartbeatReply",
    "Held",
    "ReattachReply",
    "RecoverStalledReply",
    "completed",
    "delayed",
    "delete_side_keys",
    "exchange",
    "failed",
    "group_limited",
    "heartbeat",
    "idle_exchange",
    "invalidate",
    "leave",
    "reattach",
    "recover_stalled",
    "released",
    "waiting_children",
]

FOREIGN_CONSUMER_PREFIX = "worker-"
"""Prefix of the consumer names of Node peers."""

FetchedJob = list[Any]
"""id, stream entry or '', fence, name, data, opts, timestamp, attemptsMade, progress, stalledCount, priority,
stacktrace; absent fields are False (``lua/core/fetch.lua``). Jobs that ran before also have
signals, fallbackIndex, failedReason, failedType and suspectLimit."""

Held = tuple[int, int, int]
"""Active jobs of a worker: number of jobs, number of suspects, smallest suspect limit (0 = none)."""

Finished = list[object]
Keep = int | tuple[int, int]
"""0 = keep the job, 1 = remove it, 2 = remove it and no peer can have written its keys, (count, age in seconds) =
retention."""


class AttemptStatus(IntEnum):
    """Reply to a call with a fencing token (``lua/core/fencing.lua``)."""

    OK = 0
    ALREADY = 1
    GONE = 2
    STALE = 3
    RETRYING = 4
    FAILED = 5
    RELEASED = 6
    REVOKED = 7
    DELAYED = 8
    LIMITED = 9
    SUSPENDED = 11
    WAITING_CHILDREN = 10


class ExchangeFlags(IntFlag):
    """Flags in the reply of `exchange`."""

    PAUSED = 1
    EXHAUSTED = 2
    LIMITED = 4
    OUTBOX_PENDING = 8
    """The outbox has entries, of this or another call."""


SCHEDULES = 65536
"""The bits from this one on are the revision of the queue's schedulers, if it has any."""


class ExchangeReply(NamedTuple):
    """Reply of `exchange`."""

    now: int
    """Server time in epoch ms: ``processedOn`` of each fetched job."""
    statuses: list[int]
    jobs: list[FetchedJob]
    next_due: int
    """Milliseconds until the next scheduled job is due; -1 = none is scheduled."""
    flags: int
    dropped: list[list[str]]
    """Stream entry, job id and reason of each invalid entry that was removed."""
    budgets: list[Any] | None = None
    """Only for jobs of flows with a budget: decisions by job id (budget key; '' may start, 'fail', 'pause', 'ask'), and
    the rows of ``finished`` (from 1) that exceeded a limit."""


class HeartbeatReply(NamedTuple):
    """Reply of `heartbeat`."""

    now: int
    statuses: list[int]


class RecoverStalledReply(NamedTuple):
    """Reply of `recover_stalled`."""

    recovered: list[str]
    failed: list[str]
    cursor: str
    held: int


class ReattachReply(NamedTuple):
    """Reply of `reattach`."""

    now: int
    jobs: list[FetchedJob]
    dropped: list[list[str]]
    cursor: str
    budgets: list[Any] | None = None
    """As in `ExchangeReply`."""


def completed(job_id: str, entry: str, fence: int, processed_on: int, result: str, keep: Keep = 0) -> Finished:
    """Return the row of an attempt that completed with ``result`` (serialized text)."""
    head: Finished = [1, job_id, entry, fence, processed_on, result]
    if keep:
        head.append(keep)
    return head


def failed(
    job_id: str,
    entry: str,
    fence: int,
    processed_on: int,
    reason: str,
    failed_type: str,
    stacktrace: str,
    limit: int,
    backoff: int,
    keep: Keep = 0,
    next_fallback: bool = False,
) -> Finished:
    """Return the row of an attempt that failed.

    ``limit`` is the maximum number of attempts (0 = no retry), ``backoff`` is in ms. With ``next_fallback``, a retry
    uses the job's next fallback.
    """
    head: Finished = [2, job_id, entry, fence, processed_on, reason, failed_type, stacktrace, limit, backoff]
    if keep or next_fallback:
        head.append(keep)
    if next_fallback:
        head.append(1)
    return head


def released(job_id: str, entry: str, fence: int, processed_on: int) -> Finished:
    """Return the row of a released job; the attempt is not counted."""
    return [3, job_id, entry, fence, processed_on]


def delayed(
    job_id: str, entry: str, fence: int, processed_on: int, delay: int, until: int, data: str | None
) -> Finished:
    """Return the row of a job delayed by ``delay`` ms or until ``until`` (epoch ms, 0 = not given), with new data."""
    head: Finished = [4, job_id, entry, fence, processed_on, delay, until]
    if data is not None:
        head.append(data)
    return head


def group_limited(
    job_id: str, entry: str, fence: int, processed_on: int, ms: int, replace: bool, how: str, keep: Keep = 0
) -> Finished:
    """Return the row of a job whose group is rate limited for ``ms``; ``how`` is front, back or fail."""
    head: Finished = [5, job_id, entry, fence, processed_on, ms, int(replace), how]
    if keep:
        head.append(keep)
    return head


def waiting_children(
    job_id: str, entry: str, fence: int, processed_on: int, keep: Keep = 0, data: str | None = None
) -> Finished:
    """Return the row of a job that waits for its children, with new data; ``keep`` applies if the job fails."""
    head: Finished = [6, job_id, entry, fence, processed_on, keep]
    if data is not None:
        head.append(data)
    return head


Tokens = tuple[int, int, Sequence[int]]
"""Limit, window in ms, and the tokens that each finished row reported."""


BudgetCharge = tuple[int, str, "tuple[Mapping[str, float], Mapping[str, float], float, float] | bool"]
"""Row of ``finished`` (from 1), key of the budget, usage of the attempt: tokens and costs by category, total tokens,
total cost; False if there is none."""


def exchange(
    meta: str,
    consumer: str,
    want: int,
    finished: Sequence[Finished],
    quiet: bool,
    no_metrics: bool,
    limiter: tuple[int, int] | None = None,
    tokens: Tokens | None = None,
    charges: Sequence[BudgetCharge] | None = None,
    held: Held | None = None,
) -> Call[ExchangeReply]:
    """Report ``finished`` and fetch up to ``want`` jobs within ``limiter`` (jobs, ms), ``tokens`` and queue limits.

    The report is idempotent: fencing tokens make a second report return `ALREADY`. The jobs of a lost reply are found
    by `reattach`. ``held`` is given if this call may fetch suspects.
    """
    request: tuple[Any, ...] = (consumer, want, finished, quiet, no_metrics, limiter or False)
    if held is not None:
        request = (*request, tokens or False, False, charges or False, held)
    elif charges:
        request = (*request, tokens or False, False, charges)
    elif tokens is not None:
        request = (*request, tokens)
    return Call("exchange", meta, (pack(request),), _exchanged)


def idle_exchange(
    meta: str, consumer: str, want: int, quiet: bool, no_metrics: bool, token: str, held: Held | None = None
) -> Call[ExchangeReply]:
    """Return an exchange that is pipelined after a blocking read on the same connection; see `retire`."""
    request: tuple[Any, ...] = (consumer, want, (), quiet, no_metrics, False, False, token)
    if held is not None:
        request = (*request, False, held)
    return Call("exchange", meta, (pack(request),), _exchanged)


def invalidate(meta: str, token: str) -> Call[bool]:
    """Invalidate pending calls of `idle_exchange` with this token: they fetch nothing."""
    return Call("invalidate", meta, (token,), bool, repeatable=True)


def _exchanged(reply: bytes) -> ExchangeReply:
    return ExchangeReply(*unpack(reply))


def heartbeat(
    meta: str, consumer: str, info: str, ttl: int, jobs: Sequence[tuple[str, str, int, int]]
) -> Call[HeartbeatReply]:
    """Renew the worker's registration and the locks of its jobs.

    ``info`` is the registration JSON ('' = unchanged), for ``ttl`` ms; ``jobs`` are (id, entry, fence, processed_on)
    of its active jobs.
    """
    return Call("heartbeat", meta, (pack((consumer, info, ttl, jobs)),), _beaten, repeatable=True)


def _beaten(reply: bytes) -> HeartbeatReply:
    return HeartbeatReply(*unpack(reply))


def recover_stalled(
    meta: str, holder: str, hold: int, lock_duration: int, max_stalled: int, quiet: bool, cursor: str
) -> Call[RecoverStalledReply]:
    """Recover stalled jobs; for ``hold`` ms only ``holder`` may do this."""
    arg = pack((holder, hold, lock_duration, max_stalled, quiet, cursor, FOREIGN_CONSUMER_PREFIX))
    return Call("recover_stalled", meta, (arg,), _recovered_jobs, repeatable=True)


def _recovered_jobs(reply: bytes) -> RecoverStalledReply:
    return RecoverStalledReply(*unpack(reply))


def reattach(
    meta: str, consumer: str, known: Sequence[str], want: int, quiet: bool, cursor: str, known_ids: Sequence[str]
) -> Call[ReattachReply]:
    """Return jobs that are assigned to this consumer but unknown to it.

    ``known`` are the stream entries of its known jobs, ``known_ids`` the ids of known jobs without a stream entry.
    """
    return Call("reattach", meta, (pack((consumer, known, want, quiet, cursor, known_ids)),), _reattached)


def _reattached(reply: bytes) -> ReattachReply:
    return ReattachReply(*unpack(reply))


def delete_side_keys(meta: str, ids: Sequence[str]) -> Call[list[str]]:
    """Delete the logs, chunks, signals and relatives of jobs that no longer exist; return the ids of the others."""
    return Call("delete_side_keys", meta, (pack(ids),), unpack, repeatable=True)


def leave(meta: str, consumer: str) -> Call[bool]:
    """Delete a worker's registration and consumer; return False if it still has pending jobs."""
    return Call("leave", meta, (consumer,), bool, repeatable=True)
