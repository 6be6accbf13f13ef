"""Calls that a worker lives on: exchange, heartbeat, recovery, leaving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack

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
    "exchange",
    "failed",
    "group_limited",
    "heartbeat",
    "idle_exchange",
    "leave",
    "reattach",
    "recover_stalled",
    "released",
    "retire",
    "waiting_children",
]

FOREIGN_CONSUMER_PREFIX = "worker-"
"""How the consumer names of Node peers begin (data-model.md section 3)."""

FetchedJob = list[Any]
"""id, stream entry or '', fence, name, data, opts, timestamp, attemptsMade, progress, stalledCount, priority,
stacktrace; absent fields are False (``lua/core/fetch.lua``). Of a job that has run before also
signals, fallbackIndex, failedReason, failedType and suspectLimit."""

Held = tuple[int, int, int]
"""What a worker has in hand: jobs, suspects among them, smallest limit of these (0 = none)."""

Finished = list[object]
Keep = int | tuple[int, int]
"""0 = keep the job, 1 = remove it, (count, age in seconds) = retention."""


class AttemptStatus(IntEnum):
    """Answer to a call that carries a fencing token (``lua/core/fencing.lua``)."""

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
    """What an exchange says beside the jobs."""

    PAUSED = 1
    EXHAUSTED = 2
    LIMITED = 4
    OUTBOX_PENDING = 8
    """The outbox has entries: this call or another one put them there."""


SCHEDULES = 65536
"""Flags from this one on are the revision of the queue's schedulers, where it has any."""


class ExchangeReply(NamedTuple):
    """Reply of `exchange`."""

    now: int
    """Server time, epoch ms: ``processedOn`` of every job in it."""
    statuses: list[int]
    jobs: list[FetchedJob]
    next_due: int
    """Milliseconds until the next scheduled job is due; -1 = none is scheduled."""
    flags: int
    dropped: list[list[str]]
    """Stream entry, job id and reason of what was set aside."""
    budgets: list[Any] | None = None
    """Only where a flow's budget is concerned: verdicts by job id (budget key; '' may begin, 'fail', 'pause', 'ask'),
    and the rows of ``finished`` (from 1) that passed a limit."""


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
    """A finished row: the attempt succeeded with ``result`` (serialized text)."""
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
    """A finished row: the attempt failed. ``limit`` = total attempts allowed, 0 = no retry; ``backoff`` in ms.
    ``next_fallback``: where it is retried, the job's next fallback is current."""
    head: Finished = [2, job_id, entry, fence, processed_on, reason, failed_type, stacktrace, limit, backoff]
    if keep or next_fallback:
        head.append(keep)
    if next_fallback:
        head.append(1)
    return head


def released(job_id: str, entry: str, fence: int, processed_on: int) -> Finished:
    """A finished row: the job is handed back, no attempt is spent."""
    return [3, job_id, entry, fence, processed_on]


def delayed(
    job_id: str, entry: str, fence: int, processed_on: int, delay: int, until: int, data: str | None
) -> Finished:
    """A finished row: the job goes on after ``delay`` ms, or at ``until`` (epoch ms, 0 = not given), with new data."""
    head: Finished = [4, job_id, entry, fence, processed_on, delay, until]
    if data is not None:
        head.append(data)
    return head


def group_limited(
    job_id: str, entry: str, fence: int, processed_on: int, ms: int, replace: bool, how: str, keep: Keep = 0
) -> Finished:
    """A finished row: the job's group rests for ``ms``; ``how`` is what becomes of the job: front, back or fail."""
    head: Finished = [5, job_id, entry, fence, processed_on, ms, int(replace), how]
    if keep:
        head.append(keep)
    return head


def waiting_children(
    job_id: str, entry: str, fence: int, processed_on: int, keep: Keep = 0, data: str | None = None
) -> Finished:
    """A finished row: the job goes on when its children have ended, with new data; ``keep`` is for its failure."""
    head: Finished = [6, job_id, entry, fence, processed_on, keep]
    if data is not None:
        head.append(data)
    return head


Tokens = tuple[int, int, Sequence[int]]
"""Limit, window in ms, and what each finished row has reported."""


BudgetCharge = tuple[int, str, "tuple[Mapping[str, float], Mapping[str, float], float, float] | bool"]
"""Row of ``finished`` (from 1), key of the budget, what the attempt has used: tokens and costs by category, total
tokens, total cost; False for nothing."""


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
    """Hand in ``finished``, take up to ``want`` jobs within ``limiter`` (jobs, ms), ``tokens`` and the queue's limits.

    Repeatable for the finished rows (fencing makes a second hand-in answer `ALREADY`); the jobs of a lost reply come
    back through `reattach`. ``held``: what the worker has in hand, if this call may bring suspects.
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
    """An exchange that is sent ahead, behind a blocking read on the same connection; see `retire`."""
    request: tuple[Any, ...] = (consumer, want, (), quiet, no_metrics, False, False, token)
    if held is not None:
        request = (*request, False, held)
    return Call("exchange", meta, (pack(request),), _exchanged)


def retire(meta: str, token: str) -> Call[bool]:
    """From now on no `idle_exchange` that bears the token and is still under way takes anything."""
    return Call("retire", meta, (token,), bool, repeatable=True)


def _exchanged(reply: bytes) -> ExchangeReply:
    return ExchangeReply(*unpack(reply))


def heartbeat(
    meta: str, consumer: str, info: str, ttl: int, jobs: Sequence[tuple[str, str, int, int]]
) -> Call[HeartbeatReply]:
    """Say that this worker lives: ``info`` is its registration JSON ('' = leave as it is), kept for ``ttl`` ms;
    ``jobs`` are (id, entry, fence, processed_on) of what it works on."""
    return Call("heartbeat", meta, (pack((consumer, info, ttl, jobs)),), _beaten, repeatable=True)


def _beaten(reply: bytes) -> HeartbeatReply:
    return HeartbeatReply(*unpack(reply))


def recover_stalled(
    meta: str, holder: str, hold: int, lock_duration: int, max_stalled: int, quiet: bool, cursor: str
) -> Call[RecoverStalledReply]:
    """Recover jobs whose worker died; ``hold`` ms during which only ``holder`` may do it."""
    arg = pack((holder, hold, lock_duration, max_stalled, quiet, cursor, FOREIGN_CONSUMER_PREFIX))
    return Call("recover_stalled", meta, (arg,), _recovered_jobs, repeatable=True)


def _recovered_jobs(reply: bytes) -> RecoverStalledReply:
    return RecoverStalledReply(*unpack(reply))


def reattach(
    meta: str, consumer: str, known: Sequence[str], want: int, quiet: bool, cursor: str, known_ids: Sequence[str]
) -> Call[ReattachReply]:
    """Ask for jobs that are this consumer's beside those it knows: ``known`` are stream entries, ``known_ids`` the
    ids of jobs that came without one."""
    return Call("reattach", meta, (pack((consumer, known, want, quiet, cursor, known_ids)),), _reattached)


def _reattached(reply: bytes) -> ReattachReply:
    return ReattachReply(*unpack(reply))


def leave(meta: str, consumer: str) -> Call[bool]:
    """Take a worker's registration and its consumer away; False if jobs still pend for it."""
    return Call("leave", meta, (consumer,), bool, repeatable=True)
