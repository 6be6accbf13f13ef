"""Calls of workers: exchange, heartbeat, recovery of stalled jobs, reattaching, leaving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum, IntFlag
from functools import partial
from typing import Any, Final, NamedTuple

from glidemq_py._core.calls import Argument, Packed, call, declared, fields_of
from glidemq_py._core.keys import CONSUMER_GROUP, OWED

FETCHED_JOB: Final = fields_of(
    "fetched_job",
    "id entry fence name data opts timestamp attempts_made progress stalled_count priority stacktrace",
)
FetchedJob = list[Any]
"""The row ``fetched_job``; absent fields are False (``lua/core/fetch.lua``). The row of a plain job that has never run
ends after the timestamp (``lua/core/fetch_plain.lua``). After that of a job that has run before, the fields of
`EarlierRun` follow."""


@declared("earlier_run")
class EarlierRun(NamedTuple):
    """Fields at the end of a `FetchedJob` that only a job that has run before has; False = absent."""

    signals: str | bool
    fallback_index: str | bool
    failed_reason: str | bool
    failed_type: str | bool
    suspect_limit: str | bool = False
    """Absent for messages."""
    own_keys: str | bool = False
    """JSON array of the names in the data that are no arguments of the job's task."""
    steps: Sequence[str | bool] | bool = False
    """The field ``steps`` of the record, then the text of each step, False for one that was deleted."""
    requeues: str | bool = False


@declared("stored_step")
class StoredStep(NamedTuple):
    """A step of a handler, to be stored (``lua/features/steps/steps.lua``)."""

    number: int
    """Position among the steps of the job, from 1."""
    version: int
    """How often it was stored, this time included: a late copy of an earlier call changes nothing."""
    text: str
    """State, facts and result of the step."""


@declared("attempt_step")
class AttemptStep(NamedTuple):
    """A step of the attempt with this token."""

    id: str
    fence: int
    processed_on: int
    step: StoredStep


class Expiry(IntEnum):
    """Meaning of the end of a lease's lock."""

    STALL = 0
    """The job has stalled."""
    FAILED_ATTEMPT = 1
    STALLED_ATTEMPT = 2
    """The job has stalled, and an attempt is counted; it fails after its last attempt, or its third stall."""


@declared("leasing")
class Leasing(NamedTuple):
    """Field ``leasing`` of an exchange: the jobs that it fetches and reports are leases."""

    owner: str
    lock: int
    """Lock duration, ms."""
    expiry: Expiry
    limits: Sequence[int]
    """When the timeout of each reported attempt ends, epoch ms; 0 = none. May be shorter than ``finished``."""


@declared("preferred")
class Preferred(NamedTuple):
    """Field ``preferred`` of an exchange: fair keys that may be served before their turn."""

    turns: int
    """By how many turns."""
    keys: Sequence[str]


@declared("wake_channel")
class WakeChannel(NamedTuple):
    """Field ``channel`` of an exchange: wakes the process up when jobs are pushed."""

    name: str
    cluster: bool
    """True if the server is a cluster."""


Held = tuple[int, int, int]
"""Active jobs of a worker: number of jobs, number of suspects, smallest suspect limit (0 = none)."""

REPORT_KINDS: Final = {
    "completed": 1, "failed": 2, "released": 3, "delayed": 4, "group_limited": 5, "waiting_children": 6, "suspended": 7,
    "completed_plain": 8, "returned": 9,
}  # fmt: skip
"""The first field of each report of an attempt."""
COMPLETED: Final = REPORT_KINDS["completed"]
COMPLETED_PLAIN: Final = REPORT_KINDS["completed_plain"]
"""The kind of report of a job whose `FetchedJob` ended after the timestamp: the server reads fewer fields."""
Keep = int | tuple[int, int]
"""0 = keep the job, 1 = remove it, 2 = remove it and no peer can have written its keys, (count, age in seconds) =
retention, -count = the same without an age (shorter, and decoded by the server without a table)."""


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
    FEWER = 7
    """Any of those above: the call found fewer jobs than requested."""
    OUTBOX_PENDING = 8
    """The outbox has entries, of this or another call."""
    BY_NAME = 16
    """The worker should send figures per job name."""
    HAS_RATE = 64
    """The queue limits the number of jobs leased per time; workers do not get this flag."""


SCHEDULER_REVISION = 65536
"""The bits from this one on are the revision of the queue's schedulers, if it has any."""


@declared("name_metrics")
class NameMetrics(NamedTuple):
    """Figures of the jobs with one name that ended within one minute."""

    minute: int
    """Start of the minute, epoch ms."""
    name: str | bool
    """False: of all further names."""
    completed: int
    failed: int
    retried: int
    wait: list[int]
    """Number of durations, sum in ms, then bucket and number by turns."""
    run: list[int]


@declared("name_metrics_report")
class NameMetricsReport(NamedTuple):
    """Field ``by_name`` of an exchange. The server counts a report with the same or a lower number only once."""

    number: int
    rows: list[NameMetrics]


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
    commands: Sequence[str] = ()
    """Commands for the worker (glidemq_py/_features/remote_control.py)."""
    layout: int = 0
    """Number of the layout of the queue's partitions; 0 = it has none."""


class RecoverStalledReply(NamedTuple):
    """Reply of `recover_stalled`."""

    recovered: list[str]
    failed: list[str]
    cursor: str
    held: int
    interval: int = 0
    """Time between checks by the policy of the queue, ms; 0 = not set."""
    policy: int = 0
    """1 = the queue has a failure policy, and failed jobs."""


class ReattachReply(NamedTuple):
    """Reply of `reattach`."""

    now: int
    jobs: list[FetchedJob]
    dropped: list[list[str]]
    cursor: str
    budgets: list[Any] | None = None
    """As in `ExchangeReply`."""


@declared("budget_verdicts")
class BudgetVerdicts(NamedTuple):
    """The field ``budgets`` of a reply."""

    verdicts: Any
    """Budget key and decision by job id; False if there is none."""
    exceeding: list[int]
    """Rows of ``finished`` (from 1) that exceeded a limit."""


@declared("completed")
class Completed(NamedTuple):
    """Report of an attempt that completed."""

    kind: int
    id: str
    entry: str
    fence: int
    processed_on: int
    returnvalue: str
    """Serialized."""
    keep: Keep = 0


@declared("failed")
class Failed(NamedTuple):
    """Report of an attempt that failed."""

    kind: int
    id: str
    entry: str
    fence: int
    processed_on: int
    reason: str
    failed_type: str
    stacktrace: str
    limit: int
    """Maximum number of attempts; 0 = no retry."""
    backoff: int
    """Delay of the next attempt, ms."""
    keep: Keep = 0
    next_fallback: int = 0
    """1 = a retry uses the job's next fallback."""
    permanent: int = 0
    """1 = not retried, even if attempts are left."""


@declared("released")
class Released(NamedTuple):
    """Report of a released job; the attempt is not counted."""

    kind: int
    id: str
    entry: str
    fence: int
    processed_on: int


@declared("delayed")
class Delayed(NamedTuple):
    """Report of an attempt that delays its job."""

    kind: int
    id: str
    entry: str
    fence: int
    processed_on: int
    delay: int
    """Milliseconds; used if ``due`` is 0."""
    due: int = 0
    """Epoch ms; 0 = not given."""
    data: str | bool = False
    """New data; False = unchanged."""
    own_keys: str | bool = False
    """As in `EarlierRun`, of the new data."""
    step: StoredStep | bool = False
    """Step that is stored; False = none."""


@declared("group_limited")
class GroupLimited(NamedTuple):
    """Report of an attempt that rate limits the job's ordering group."""

    kind: int
    id: str
    entry: str
    fence: int
    processed_on: int
    ms: int
    replace: int
    """1 = even if the group is limited until a later time."""
    how: str
    """front, back or fail."""
    keep: Keep = 0


@declared("waiting_children")
class WaitingChildren(NamedTuple):
    """Report of an attempt that waits for the job's children."""

    kind: int
    id: str
    entry: str
    fence: int
    processed_on: int
    keep: Keep = 0
    """Applies if the job fails."""
    data: str | bool = False
    """New data; False = unchanged."""
    own_keys: str | bool = False
    """As in `EarlierRun`, of the new data."""
    step: StoredStep | bool = False
    """Step that is stored; False = none."""


@declared("suspended")
class Suspended(NamedTuple):
    """Report of an attempt that suspends its job until a signal."""

    kind: int
    id: str
    entry: str
    fence: int
    processed_on: int
    reason: str
    timeout: int
    """Milliseconds; 0 = no limit."""
    keep: Keep = 0
    awaited: str = ""
    """Name of the signal that makes the job ready, which is delayed until the timeout; "" = it is suspended."""
    returned: int = 0
    """Number of signals of this name that the handler has got."""
    step: StoredStep | bool = False
    """Step that is stored; False = none."""


Finished = Completed | Failed | Released | Delayed | GroupLimited | WaitingChildren | Suspended
"""A row of ``finished`` in an exchange."""


completed: Final = partial(Completed, COMPLETED)
failed: Final = partial(Failed, REPORT_KINDS["failed"])
released: Final = partial(Released, REPORT_KINDS["released"])
returned: Final = partial(Released, REPORT_KINDS["returned"])
"""Of a job that returns to the front of its queue: no client has got it."""
delayed: Final = partial(Delayed, REPORT_KINDS["delayed"])
group_limited: Final = partial(GroupLimited, REPORT_KINDS["group_limited"])
waiting_children: Final = partial(WaitingChildren, REPORT_KINDS["waiting_children"])
suspended: Final = partial(Suspended, REPORT_KINDS["suspended"])


_SIGNALLED: Final = (Delayed, GroupLimited, WaitingChildren, Suspended)
"""Reports of attempts that ended with a signal."""


def status_after_lost_reply(row: Finished, attempts_made: int, status: int) -> int:
    """Return the most likely status of a lost reply, derived from the ``status`` of the repeated report.

    ALREADY: the first report was accepted. GONE: it was accepted if the job was to be removed at its end or by
    retention. STALE: it was accepted if the job was to be retried, and has been fetched again since.
    """
    if status not in (AttemptStatus.ALREADY, AttemptStatus.GONE, AttemptStatus.STALE):
        return status
    is_retried = isinstance(row, Failed) and attempts_made + 1 < row.limit
    if status == AttemptStatus.GONE and not (isinstance(row, (Completed, Failed)) and row.keep):
        return status
    if status == AttemptStatus.STALE and not (is_retried or isinstance(row, _SIGNALLED)):
        return status
    if isinstance(row, Suspended):
        return AttemptStatus.SUSPENDED
    if isinstance(row, WaitingChildren):
        return AttemptStatus.WAITING_CHILDREN
    if isinstance(row, _SIGNALLED):
        fails = isinstance(row, GroupLimited) and row.how == "fail"
        return AttemptStatus.FAILED if fails else AttemptStatus.DELAYED
    if isinstance(row, Completed):
        return AttemptStatus.OK
    if not isinstance(row, Failed):
        return AttemptStatus.RELEASED
    return AttemptStatus.RETRYING if is_retried else AttemptStatus.FAILED


Tokens = tuple[int, int, Sequence[int]]
"""Limit, window in ms, and the tokens that each finished row reported."""


BudgetCharge = tuple[int, str, "tuple[Mapping[str, float], Mapping[str, float], float, float] | bool"]
"""Row of ``finished`` (from 1), key of the budget, usage of the attempt: tokens and costs by category, total tokens,
total cost; False if there is none."""


@call("exchange", hot=True)
def exchange(
    consumer: str, want: int, finished: Sequence[Finished], quiet: bool, no_metrics: bool, held: Held | None = None,
    leasing: Leasing | None = None, channel: WakeChannel | None = None, idle: str | None = None,
    limiter: tuple[int, int] | None = None, tokens: Tokens | None = None,
    charges: Sequence[BudgetCharge] | None = None, by_name: NameMetricsReport | None = None,
    preferred: Preferred | None = None,
) -> ExchangeReply:  # fmt: skip
    """Report ``finished`` and fetch up to ``want`` jobs within ``limiter`` (jobs, ms), ``tokens`` and queue limits.

    The report is idempotent: fencing tokens make a second report return `ALREADY`. The jobs of a lost reply are found
    by `reattach`. ``held`` is given if this call may fetch suspects, ``leasing`` if its jobs are leases, ``channel`` if
    the worker waits for wake-ups there, ``by_name`` if it has figures of ended jobs, ``preferred`` if it prefers fair
    keys, ``idle`` if the call is pipelined after a blocking read on the same connection (see `invalidate`).
    """
    ...


@call("store_steps", repeatable=True)
def store_steps(steps: Packed[Sequence[AttemptStep]]) -> list[AttemptStatus]:
    """Store steps of running attempts, or their new states."""
    ...


@call("invalidate", repeatable=True)
def invalidate(token: Argument[str]) -> bool:
    """Invalidate pending exchanges with this ``idle`` token: they fetch nothing."""
    ...


@call("pass_wake_up", repeatable=True)
def pass_wake_up() -> int:
    """Wake up another worker."""
    ...


@call("heartbeat", repeatable=True)
def heartbeat(consumer: str, info: str, ttl: int, jobs: Sequence[tuple[str, str, int, int]]) -> HeartbeatReply:
    """Renew the worker's registration and the locks of its jobs.

    ``info`` is the registration JSON ('' = unchanged), for ``ttl`` ms; ``jobs`` are (id, entry, fence, processed_on)
    of its active jobs.
    """
    ...


@call("recover_stalled", repeatable=True)
def recover_stalled(
    holder: str, hold: int, lock_duration: int, max_stalled: int, quiet: bool, cursor: str, grace: int = 0
) -> RecoverStalledReply:
    """Recover stalled jobs; for ``hold`` ms only ``holder`` may do this.

    ``max_stalled`` and ``grace`` are for jobs without a policy of their worker or of the queue.
    """
    ...


@call("reattach")
def reattach(
    consumer: str, known: Sequence[str], want: int, quiet: bool, cursor: str, known_ids: Sequence[str]
) -> ReattachReply:
    """Return jobs that are assigned to this consumer but unknown to it.

    ``known`` are the stream entries of its known jobs, ``known_ids`` the ids of known jobs without a stream entry.
    """
    ...


@call("delete_side_keys", repeatable=True)
def delete_side_keys(ids: Packed[Sequence[str]]) -> list[str]:
    """Delete the logs, chunks, signals and relatives of jobs that no longer exist; return the ids of the others."""
    ...


@call("leave", repeatable=True)
def leave(consumer: Argument[str], group: Argument[str] = CONSUMER_GROUP) -> bool:
    """Delete a worker's registration and its consumer in a group; return False if it still has pending entries."""
    ...


class MaintenanceDue(NamedTuple):
    """Whether a queue has work for maintenance tasks."""

    held: int
    """1 = this holder maintains the queue."""
    busy: int
    wait: int
    """Milliseconds until the next scheduler is due, or late if it is not held; -1 = none."""
    layout: int
    """Number of the layout of its partitions; 0 = it has none."""


@call("maintenance_due", repeatable=True)
def maintenance_due(holder: str, hold: int, owed: Sequence[str] = OWED) -> MaintenanceDue:
    """Hold the maintenance of a queue for ``hold`` ms and return whether it has work."""
    ...
