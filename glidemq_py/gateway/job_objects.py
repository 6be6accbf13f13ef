"""The job object of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from glidemq_py._core.job_states import JobState
from glidemq_py._core.tags import read_tags
from glidemq_py._job.job import Job
from glidemq_py.gateway.ids import is_uuid7
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.values import UNDEFINED
from glidemq_py.gateway.wire_states import wire_state

__all__ = ["UNSTARTED", "full_job_object", "job_object"]

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
