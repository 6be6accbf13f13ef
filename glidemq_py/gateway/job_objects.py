"""The job object of the protocol."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.job_states import JobState
from glidemq_py._core.payload import PackedValue
from glidemq_py._core.tags import read_tags
from glidemq_py._features.consistency.calls import check_scope
from glidemq_py._job.job import Job
from glidemq_py.gateway.job_ids import is_uuid7
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.table import CommandError
from glidemq_py.gateway.values import UNDEFINED
from glidemq_py.gateway.wire_states import wire_state

__all__ = ["LIMIT", "UNSTARTED", "check_readers", "full_job_object", "job_object", "json_value", "stored_value"]

_STACK_TRACE_LIMIT: Final = 10
"""What bunqueue shows for jobs without this option."""
UNSTARTED: Final = tuple(state for state in JobState if not state.is_finished and state is not JobState.ACTIVE)
"""The states of jobs that are neither active nor finished."""


def job_object(job: Job[Any, Any], job_id: str) -> dict[str, Any]:
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


def full_job_object(job: Job[Any, Any], job_id: str, due: int = 0) -> dict[str, Any]:
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


def _run_at(job: Job[Any, Any]) -> int:
    """Return when the job could start: at the latest when it did, since it may have been promoted."""
    delay = job.opts.get("delay")
    due = job.timestamp + (delay if isinstance(delay, int) else 0)
    return due if job.processed_on is None else max(job.timestamp, min(due, job.processed_on))


def _is_chosen(job: Job[Any, Any], job_id: str) -> bool:
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
_PEERS_KNOWN_S: Final = 5.0
_UNCHANGED: Final[frozenset[Any]] = frozenset((str, int, bool, type(None)))
"""Types whose values JSON has as they are."""

_peers: WeakKeyDictionary[Queue[Any, Any], tuple[float, bool]] = WeakKeyDictionary()
"""Until when it is known whether workers of another library are registered at a queue."""


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


async def check_readers(field: str, value: Any, queue: Queue[Any, Any]) -> None:
    """Check that all workers of a queue can read a value of `stored_value`.

    Raises:
        CommandError: If it is a `PackedValue`, and workers of glide-mq for Node are registered, which read only JSON.
        GlideMQConnectionError: If the server cannot be reached.
    """
    if value.__class__ is not PackedValue:
        return
    until, has_peers = _peers.get(queue, (0.0, False))
    if time.monotonic() >= until:
        link = await queue._first_connected()
        _, peers = await link.call(check_scope)
        has_peers = bool(peers)
        _peers[queue] = time.monotonic() + _PEERS_KNOWN_S, has_peers
    if has_peers:
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
