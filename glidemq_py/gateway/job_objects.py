"""The job object of the protocol, and its states: of a job, and where the jobs in each of them are listed and counted.

A ready job with a negative rank is waiting in the protocol and prioritized in this package.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.keys import is_uuid7
from glidemq_py._core.option_values import read_tags
from glidemq_py._core.payload import PackedValue
from glidemq_py._core.record import JobCounts, JobState
from glidemq_py._features.consistency.calls import has_peers
from glidemq_py._job.job import Job
from glidemq_py._job.reading import counts_by_rank
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.table import CommandError
from glidemq_py.gateway.values import UNDEFINED

_STATES: Final[Mapping[JobState, str]] = {JobState.GROUP_WAITING: "waiting", JobState.SUSPENDED: "delayed"}
READY: Final = ("waiting", "prioritized")
"""The states of the protocol that are paused in a paused queue."""


class Source(NamedTuple):
    """Jobs in one state of the protocol that are listed together.

    Attributes:
        state: Their state in this package.
        listed: The state by which pages list them (``lua/core/functions/page.lua``).
    """

    state: JobState
    listed: str

    def number(self, counts: JobCounts, below: int) -> int:
        """Return the number of these jobs; ``below`` of the prioritized ones have a negative rank."""
        if self.listed == "below-normal":
            return below
        found: int = getattr(counts, self.state.name.lower())
        return max(0, found - below) if self.listed == "above-normal" else found


def _source(state: JobState) -> Source:
    return Source(state, str(state))


SOURCES: Final[Mapping[str, tuple[Source, ...]]] = {
    "waiting": (
        _source(JobState.WAITING), _source(JobState.GROUP_WAITING), Source(JobState.PRIORITIZED, "below-normal"),
    ),
    "prioritized": (Source(JobState.PRIORITIZED, "above-normal"),),
    "delayed": (_source(JobState.DELAYED), _source(JobState.SUSPENDED)),
    "active": (_source(JobState.ACTIVE),),
    "completed": (_source(JobState.COMPLETED),),
    "failed": (_source(JobState.FAILED),),
    "waiting-children": (_source(JobState.WAITING_CHILDREN),),
}  # fmt: skip
"""Where jobs are listed, by state of the protocol."""


def sources_of(states: Iterable[str]) -> list[Source]:
    """Return where the jobs in these states of the protocol are listed; unknown states have none."""
    return [source for state in states for source in SOURCES.get(state, ())]


def wire_state(job: Job | None) -> str:
    """Return the state of a job for clients."""
    state = None if job is None else job.state
    if job is None or state is None:
        return "unknown"
    if state is JobState.PRIORITIZED and job.rank < 0:
        return "waiting"
    return _STATES.get(state, str(state))


async def read_wire_counts(queue: Queue) -> dict[str, int]:
    """Return the number of jobs by state of the protocol; ready jobs of a paused queue are paused.

    Raises:
        GlideMQError: If the server cannot be reached or rejects a call.
    """
    await queue._plain_link()
    parts = await asyncio.gather(*(_counts_of(part) for part in queue._parts))
    return {state: sum(part[state] for part in parts) for state in parts[0]}


async def read_priority_counts(queue: Queue) -> dict[str, int]:
    """Return the number of ready jobs by priority; those of groups count as 0, as they have no rank.

    Raises:
        GlideMQError: If the server cannot be reached or rejects a call.
    """
    counts, ranks = await asyncio.gather(queue.get_job_counts(), queue.jobs.get_rank_counts())
    unranked = counts.waiting + counts.group_waiting + counts.prioritized - sum(ranks.values())
    if unranked > 0:  # the reads are not one step
        ranks[0] = ranks.get(0, 0) + unranked
    return {str(rank): number for rank, number in ranks.items()}


async def _counts_of(part: Queue) -> dict[str, int]:
    counts, below = await counts_by_rank(await part._connected())
    found = {state: sum(each.number(counts, below) for each in sources) for state, sources in SOURCES.items()}
    paused = sum(found[state] for state in READY) if counts.paused else 0
    if counts.paused:
        found.update(dict.fromkeys(READY, 0))
    return {**found, "paused": paused}


_STACK_TRACE_LIMIT: Final = 10
"""What bunqueue shows for jobs without this option."""
UNSTARTED: Final = tuple(state for state in JobState if not state.is_finished and state is not JobState.ACTIVE)
"""The states of jobs that are neither active nor finished."""


def job_object(job: Job, job_id: str) -> dict[str, Any]:
    """Return the object of a job.

    Raises:
        JobDataError: If the serializer cannot decode the stored data.
    """
    opts = job.opts
    backoff, group, key = opts.get("backoff"), opts.get("fairKey"), opts.get("deduplication")
    backoff = cast("Mapping[str, Any]", backoff) if isinstance(backoff, dict) else None
    dedup: Mapping[str, Any] = cast("Mapping[str, Any]", key) if isinstance(key, dict) else {}
    return {
        "id": job_id, "queue": wire_name(job.queue_name), "name": job.name, "data": job.data,
        "priority": max(0, job.priority - 1) if group is not None else job.rank,
        "createdAt": job.timestamp, "runAt": _run_at(job),
        "startedAt": job.processed_on, "completedAt": job.finished_on,
        "attempts": job.attempts_made, "maxAttempts": opts.get("attempts") or 1,
        "backoff": 0 if backoff is None else backoff.get("delay", 0),
        "backoffConfig": None if backoff is None else {"type": backoff.get("type"), "delay": backoff.get("delay", 0)},
        "ttl": opts.get("ttl"), "timeout": opts.get("timeout"),
        "uniqueKey": dedup.get("id"), "deduplicationTtl": dedup.get("ttl"),
        "deduplicationExtend": dedup.get("extend", False), "deduplicationReplace": dedup.get("replace", False),
        "customId": job_id if _is_chosen(job, job_id) else None,
        "dependsOn": [], "parentId": None, "childrenIds": [], "childrenCompleted": 0,
        "tags": list(read_tags(opts.get("tags"))), "lifo": opts.get("lifo", False), "groupId": group,
        "progress": job.progress if isinstance(job.progress, int | float) else 0, "progressMessage": None,
        "removeOnComplete": _removal(opts.get("removeOnComplete")), "removeOnFail": _removal(opts.get("removeOnFail")),
        "repeat": None, "durable": False, "lastHeartbeat": job.processed_on, "stallCount": job.stalled_count,
        "stallTimeout": opts.get("lockDuration"),
        "stackTraceLimit": opts.get("stackTraceLimit", _STACK_TRACE_LIMIT), "keepLogs": None, "sizeLimit": None,
        "failParentOnFailure": False, "removeDependencyOnFailure": False, "continueParentOnFailure": False,
        "ignoreDependencyOnFailure": False, "debounceId": None, "debounceTtl": None,
        "stacktrace": _lines_of(job.stacktrace), "timeline": [],
    }  # fmt: skip


def full_job_object(job: Job, job_id: str, due: int = 0) -> dict[str, Any]:
    """Return the object of a job whose record was read, with its state and its result.

    Args:
        job: The job.
        job_id: Its id on the wire.
        due: When it is due if it is delayed, epoch ms; 0 = unknown.

    Raises:
        JobDataError: If the serializer cannot decode the stored data.
        SerializationError: If it cannot decode the result.
    """
    found = job_object(job, job_id)
    is_completed = job.state is JobState.COMPLETED
    found["state"] = wire_state(job)
    if due:
        found["runAt"] = due
    elif job.delay == 0 and job.state is not JobState.DELAYED:
        found["runAt"] = job.timestamp  # also of a job that was promoted
    found["returnvalue"] = job.returnvalue if is_completed else UNDEFINED
    found["failedReason"] = UNDEFINED if job.failed_reason is None else job.failed_reason
    if is_completed:
        found["progress"] = 100
    found["progressMessage"] = job.progress_message
    return found


def _run_at(job: Job) -> int:
    """Return when the job could start: at the latest when it did, since it may have been promoted."""
    delay = job.opts.get("delay")
    due = job.timestamp + (delay if isinstance(delay, int) else 0)
    return due if job.processed_on is None else max(job.timestamp, min(due, job.processed_on))


def _is_chosen(job: Job, job_id: str) -> bool:
    """Return whether a user has chosen the id on the wire; clients make UUIDs for the jobs of flows."""
    return not is_uuid7(job_id) and job_id != f"{wire_name(job.queue_name)}:{job.id}"


def _lines_of(stacks: Sequence[str]) -> list[str] | None:
    """Return the lines of the stack of the last failure."""
    return [line.strip() for line in stacks[-1].split("\n")] if stacks else None


def _removal(value: Any) -> Any:
    return False if value is None else value


LIMIT: Final = 10 * 1_048_576
"""Maximum size of data and results that clients of a gateway store, bytes."""
_SAFE: Final = 2**53
_UNCHANGED: Final[frozenset[Any]] = frozenset((str, int, bool, type(None)))
"""Types whose values JSON has as they are."""


class _NotJsonError(Exception):
    """JSON cannot represent a value; the text says which part."""


def json_value(field: str, value: Any) -> Any:
    """Return the value as JSON has it, converted in place.

    Whole numbers of float type become integers: JavaScript has one type for both.

    Raises:
        CommandError: If JSON cannot represent a part of the value.
    """
    try:
        return _plain(value)
    except _NotJsonError as error:
        raise CommandError(f"{field} contains {error}, which JSON cannot represent") from None


def stored_value(value: Any) -> Any:
    """Return the value as JSON has it, converted in place, or a `PackedValue` if JSON cannot represent a part of it."""
    try:
        return _plain(value)
    except _NotJsonError:
        return PackedValue(_packable(value))


async def check_readers(field: str, value: Any, queue: Queue) -> None:
    """Check that all workers of a queue can read a value of `stored_value`.

    Raises:
        CommandError: If it is a `PackedValue`, and workers of glide-mq for Node are registered, which read only JSON.
        GlideMQConnectionError: If the server cannot be reached.
    """
    if value.__class__ is not PackedValue:
        return
    if await has_peers(await queue._first_connected()):
        try:
            _plain(value.value)
        except _NotJsonError as error:
            problem = f"which the Node workers of queue {wire_name(queue.name)!r} cannot read"
            raise CommandError(f"{field} contains {error}, {problem}") from None


def _plain(value: Any) -> Any:
    """Convert a decoded value in place: a copy of many lists and maps would take as long as decoding them."""
    kind: Any = value.__class__
    if value is None or kind is str or kind is bool or kind is int:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise _NotJsonError(str(value))
        return _number(value)
    if kind is list:
        for at, each in enumerate(value):
            if each.__class__ not in _UNCHANGED:
                value[at] = _plain(each)
        return value
    if kind is dict:
        pairs = cast("dict[Any, Any]", value)
        for key, each in pairs.items():
            if key.__class__ is not str:
                raise _NotJsonError(f"a key of type {key.__class__.__name__}")
            if each.__class__ not in _UNCHANGED:
                pairs[key] = _plain(each)
        return pairs
    raise _NotJsonError({"bytes": "bytes", "datetime": "a date"}.get(kind.__name__, f"a value of type {kind.__name__}"))


def _number(value: float) -> int | float:
    if value == int(value) and abs(value) < _SAFE and (value or math.copysign(1.0, value) > 0):
        return int(value)
    return value


def _packable(value: Any) -> Any:
    """Return the value with whole numbers as integers, as JSON has them."""
    kind: Any = value.__class__
    if kind is float:
        return _number(value) if math.isfinite(value) else value
    if kind is list:
        return [_packable(each) for each in value]
    if kind is dict:
        return {_packable(key): _packable(each) for key, each in cast("dict[Any, Any]", value).items()}
    return value
