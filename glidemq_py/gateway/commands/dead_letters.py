"""Commands about failed jobs, which the protocol calls dead letters, and about the policies for them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, NamedTuple

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls import pieces
from glidemq_py._core.record import JobState
from glidemq_py._core.times import DAY_MS, MAX_DURATION_MS, SECOND_MS
from glidemq_py._features.failed_attempts import FailedAttempt, FailureReason
from glidemq_py._features.failure_policy import FailurePolicy
from glidemq_py._features.failures import Failure
from glidemq_py._features.stalled_jobs import MAX_STALLED_COUNT
from glidemq_py._job.job import Job
from glidemq_py.errors import JobDataError, JobNotFoundError, JobStateError
from glidemq_py.gateway.job_objects import job_object
from glidemq_py.gateway.listing import ROOM_CHARS, check_size, own_id, size_of
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.session import Commands, Session
from glidemq_py.gateway.slices import JOB_CHARS, LARGE_CHARS, Slices
from glidemq_py.gateway.table import QUEUE, Answer, CommandError, Field, Given, Kind, check_nested
from glidemq_py.gateway.values import Encoded, LargeAnswer

COMMANDS: Final = Commands()

_MOST: Final = 2**53
_PAGE: Final = 100
_MOST_ENTRIES: Final = 1_000
_READ_TOGETHER: Final = 50
_COUNTED: Final = 10_000
"""Failed jobs that `GetDlqStats` counts one by one; beyond it reports the counters of the queue."""
_AUTO_RETRY_MS: Final = 3_600_000
_AUTO_RETRIES: Final = 3
_STALLED_MS: Final = 30_000
_MOST_STALLS: Final = 3
"""Without a policy: the third expiry of a lock fails the job (``lua/features/leases/leases.lua``)."""
_TRANSLATED: Final = {
    FailureReason.CHILD_FAILED: FailureReason.UNKNOWN, FailureReason.CANCELLED: FailureReason.EXPLICIT_FAIL,
}  # fmt: skip
_REASONS: Final = tuple(str(each) for each in FailureReason if each not in _TRANSLATED)
"""Reasons that clients know."""

_COUNT: Final = Kind.INTEGER("count", 1, _MOST)
_TIME: Final[Mapping[str, Any]] = {"kind": Kind.NUMBER, "minimum": 0, "maximum": _MOST}
_FILTER: Final = (
    Field("reason"), Field("olderThan", **_TIME), Field("newerThan", **_TIME), Kind.FLAG("retriable"),
    Kind.FLAG("expired"), Kind.INTEGER("limit", 1, _MOST),
    Kind.INTEGER("offset", 0, _MOST, default=0),
)  # fmt: skip
_DLQ_CONFIG: Final = (
    Kind.FLAG("autoRetry"),
    Kind.INTEGER("autoRetryInterval", SECOND_MS, MAX_DURATION_MS),
    Kind.INTEGER("maxAutoRetries", 1, 1_000_000),
    Kind.INTEGER("maxAge", SECOND_MS, MAX_DURATION_MS),
    Kind.INTEGER("maxEntries", 1, 100_000_000),
)
_STALL_CONFIG: Final = (
    Kind.FLAG("enabled"),
    Kind.INTEGER("stallInterval", SECOND_MS, DAY_MS),
    Kind.INTEGER("maxStalls", 0, MAX_STALLED_COUNT),
    Kind.INTEGER("gracePeriod", 0, DAY_MS),
)


# -- the failed jobs -------------------------------------------------------------------------------------------


def _filter(given: Given) -> dict[str, Any]:
    found = check_nested("filter", _FILTER, given["filter"] or {})
    if found["reason"] is not None and found["reason"] not in _REASONS:
        raise CommandError(f"filter.reason must be one of {', '.join(_REASONS)}")
    return found


def _known(reason: FailureReason) -> str:
    """Return the reason that clients know."""
    return str(_TRANSLATED.get(reason, reason))


async def _failures(queue: Queue, wanted: Mapping[str, Any]) -> AsyncIterator[Failure]:
    """Iterate over the failed jobs that match a filter, without its `offset` and `limit`."""
    now = time.time() * 1_000
    since, until = (None if wanted[name] is None else int(wanted[name]) for name in ("newerThan", "olderThan"))
    reasons = None if wanted["reason"] is None else [each for each in FailureReason if _known(each) == wanted["reason"]]
    async for failure in queue.failures.iter(reason=reasons, since=since, until=until):
        if wanted["retriable"] is not None and wanted["retriable"] is (failure.next_retry_at is None):
            continue
        is_expired = failure.expires_at is not None and failure.expires_at <= now
        if wanted["expired"] is None or wanted["expired"] is is_expired:
            yield failure


async def _selected(queue: Queue, wanted: Mapping[str, Any], count: int) -> list[Failure]:
    """Return at most `count` failed jobs that match a filter."""
    skipped, found = 0, list[Failure]()
    async for failure in _failures(queue, wanted):
        if skipped < wanted["offset"]:
            skipped += 1
            continue
        found.append(failure)
        if len(found) == count:
            break
    return found


@COMMANDS("Dlq", "dead letters", "GET /queues/{queue}/dlq", QUEUE, _COUNT, Kind.MAP("filter"), shown=("entries",))
async def _list(session: Session, given: Given) -> Answer:
    """Return failed jobs with their failures, oldest first; at most 1,000.

    `filter` has `reason`, `olderThan`, `newerThan`, `retriable`, `expired`, `limit` and `offset`.
    """
    queue, wanted = await session.queue(given), _filter(given)
    count = min(given["count"] or wanted["limit"] or _PAGE, _MOST_ENTRIES)
    found = await _selected(queue, wanted, count)
    async with contextlib.AsyncExitStack() as stack:
        read: list[_Entry] = []
        size, has_room = 0, False
        for some in pieces(found, _READ_TOGETHER):
            for each in await asyncio.gather(*(_read(session, queue, failure) for failure in some)):
                if each is not None:
                    read.append(each)
                    size += size_of(each.job) + JOB_CHARS
            check_size(size)
            if size > ROOM_CHARS and not has_room:
                has_room = True
                await stack.enter_async_context(session.room())
        if size <= LARGE_CHARS:
            entries = [_described(each, described) for each, described in _objects(read)]
            return {"jobs": [entry["job"] for entry in entries], "entries": entries}
        jobs: list[Encoded] = []
        encoded: list[Encoded] = []
        async with Slices(session.parts) as slices:
            for each, described in _objects(read):
                jobs.append(await slices.encoded(described))
                encoded.append(await slices.encoded(_described(each, jobs[-1])))
        return LargeAnswer(jobs=jobs, entries=encoded)


class _Entry(NamedTuple):
    """A failed job that was read."""

    failure: Failure
    job: Job
    job_id: str
    """Its id for clients."""
    attempts: list[FailedAttempt]


async def _read(session: Session, queue: Queue, failure: Failure) -> _Entry | None:
    job, attempts = await asyncio.gather(queue.get_job(failure.job_id), queue.failures.get_attempts(failure.job_id))
    if job is None or job.state is not JobState.FAILED:
        return None
    return _Entry(failure, job, await session.state.ids.on_wire(queue.name, job.id), attempts)


def _objects(read: list[_Entry]) -> Iterator[tuple[_Entry, dict[str, Any]]]:
    """Yield the entries with the objects of their jobs; they are removed from the list, as their data may be large."""
    read.reverse()
    while read:
        each = read.pop()
        with contextlib.suppress(JobDataError):
            yield each, job_object(each.job, each.job_id)


def _described(entry: _Entry, described: Any) -> dict[str, Any]:
    failure, _, _, attempts = entry
    return {
        "job": described, "enteredAt": failure.failed_at, "reason": _known(failure.reason), "error": failure.error,
        "attempts": [
            {
                "attempt": each.number, "startedAt": each.started_at, "failedAt": each.failed_at,
                "reason": _known(each.reason), "error": each.error, "duration": each.duration,
            }
            for each in attempts
        ],
        "retryCount": failure.auto_retries, "lastRetryAt": None, "nextRetryAt": failure.next_retry_at,
        "expiresAt": failure.expires_at,
    }  # fmt: skip


@COMMANDS(
    "RetryDlq", "dead letters", "POST /queues/{queue}/dlq/retry", QUEUE, Field("jobId"), _COUNT, Kind.MAP("filter")
)
async def _retry(session: Session, given: Given) -> Answer:
    """Requeue failed jobs with all their attempts: one, or those that match."""
    queue = await session.queue(given)
    if given["jobId"] is not None:
        own = await own_id(session, queue.name, given["jobId"])
        return {"count": await _retry_one(queue, own, JobState.FAILED)}
    if not given["filter"]:
        return {"count": await queue.retry_jobs(given["count"])}
    wanted = _filter(given)
    most = min(each for each in (given["count"], wanted["limit"], _MOST) if each is not None)
    retried = 0
    while retried < most:
        found = await _selected(queue, wanted, min(most - retried, _PAGE))
        changed = sum(await asyncio.gather(*(_retry_one(queue, failure.job_id, JobState.FAILED) for failure in found)))
        retried += changed
        if not changed:
            break
    return {"count": retried}


async def _retry_one(queue: Queue, job_id: str | None, state: JobState) -> int:
    """Requeue a job that is in a state; return 1, or 0 if there is no such job."""
    job = None if job_id is None else await queue.get_job(job_id, exclude_data=True)
    if job is None or job.state is not state:
        return 0
    try:
        await (job.retry() if state is JobState.FAILED else job.requeue())
    except (JobNotFoundError, JobStateError):
        return 0
    return 1


@COMMANDS(
    "RetryCompleted",
    "dead letters",
    "POST /queues/{queue}/retry-completed",
    QUEUE,
    Field("id"),
    _COUNT,
    Kind.UNSUPPORTED("timestamp"),
)
async def _retry_completed(session: Session, given: Given) -> Answer:
    """Requeue one completed job, or the oldest `count`."""
    queue = await session.queue(given)
    if given["id"] is not None:
        own = await own_id(session, queue.name, given["id"])
        return {"count": await _retry_one(queue, own, JobState.COMPLETED)}
    return {"count": await queue.jobs.requeue_completed(given["count"])}


@COMMANDS("RemoveDlqJob", "dead letters", "", QUEUE, Field("jobId", required=True))
async def _remove(session: Session, given: Given) -> Answer:
    """Delete a failed job."""
    queue = await session.queue(given)
    own = await own_id(session, queue.name, given["jobId"])
    try:
        removed = own is not None and await queue.remove(own, states=(JobState.FAILED,))
    except JobStateError:
        removed = False
    return {"data": {"removed": removed}}


@COMMANDS.on_queue("GetDlqStats", "dead letters", "GET /queues/{queue}/dlq/stats", is_flat=True)
async def _stats(queue: Queue, given: Given) -> Answer:
    """Count the failed jobs by reason. More than 10,000 are not read: the counters include deleted ones."""
    stats = await queue.failures.get_stats()
    reasons = Counter[str]()
    expired, now = 0, time.time() * 1_000
    if stats.kept <= _COUNTED:
        found = [each async for each in queue.failures.iter()]
        reasons = Counter(_known(each.reason) for each in found)
        expired = sum(each.expires_at is not None and each.expires_at <= now for each in found)
    else:
        for reason, number in stats.by_reason.items():
            reasons[_known(reason)] += number
    return {
        "data": {
            "stats": {
                "total": stats.kept, "byReason": {reason: reasons[reason] for reason in _REASONS},
                "byQueue": {wire_name(queue.name): stats.kept}, "pendingRetry": stats.awaiting_retry,
                "expired": expired, "oldestEntry": stats.oldest, "newestEntry": stats.newest,
            }
        }
    }  # fmt: skip


# -- the policies ----------------------------------------------------------------------------------------------


@COMMANDS.on_queue("GetDlqConfig", "dead letters", "GET /queues/{queue}/dlq-config")
async def _get_config(queue: Queue, given: Given) -> Answer:
    """Return the policy for failed jobs."""
    return {"config": _dlq_config(await queue.failures.get_policy())}


def _dlq_config(policy: FailurePolicy | None) -> dict[str, Any]:
    retries = policy is not None and policy.retry_interval is not None
    return {
        "autoRetry": retries,
        "autoRetryInterval": policy.retry_interval if policy is not None and retries else _AUTO_RETRY_MS,
        "maxAutoRetries": _AUTO_RETRIES if policy is None else policy.max_auto_retries or _AUTO_RETRIES,
        "maxAge": None if policy is None else policy.max_age,
        "maxEntries": None if policy is None else policy.max_entries,
    }


@COMMANDS.on_queue(
    "SetDlqConfig",
    "dead letters",
    "PUT /queues/{queue}/dlq-config",
    Kind.MAP("config", required=True),
    wrapped="config",
)
async def _set_config(queue: Queue, given: Given) -> None:
    """Change the policy: `autoRetry`, `autoRetryInterval`, `maxAutoRetries`, `maxAge`, `maxEntries`."""
    changes = given["config"]
    checked = check_nested("config", _DLQ_CONFIG, changes)
    # null removes a limit.
    settings = _dlq_config(await queue.failures.get_policy()) | {name: checked[name] for name in changes}
    for name in ("autoRetry", "autoRetryInterval", "maxAutoRetries"):
        if settings[name] is None:
            raise CommandError(f"config.{name} must not be null")
    for name, default in (("autoRetryInterval", _AUTO_RETRY_MS), ("maxAutoRetries", _AUTO_RETRIES)):
        if name in changes and settings[name] != default and not settings["autoRetry"]:
            raise CommandError(f"config.{name} requires config.autoRetry")
    interval = settings["autoRetryInterval"] if settings["autoRetry"] else None
    if interval is not None and settings["maxAge"] is not None and settings["maxAge"] <= interval:
        raise CommandError(f"config.maxAge must be greater than config.autoRetryInterval ({interval} ms)")
    if interval is None and settings["maxAge"] is None and settings["maxEntries"] is None:
        await queue.failures.remove_policy()
        return
    await queue.failures.set_policy(
        retry_interval=interval, max_auto_retries=settings["maxAutoRetries"] if interval else None,
        max_age=settings["maxAge"], max_entries=settings["maxEntries"],
    )  # fmt: skip


@COMMANDS.on_queue("GetStallConfig", "dead letters", "GET /queues/{queue}/stall-config")
async def _get_stall_config(queue: Queue, given: Given) -> Answer:
    """Return the stalled-job policy."""
    interval, most, grace = await queue.settings.get_stalled_policy()
    return {
        "config": {
            "enabled": True, "stallInterval": _STALLED_MS if interval is None else interval,
            "maxStalls": _MOST_STALLS if most is None else most, "gracePeriod": grace or 0,
        }
    }  # fmt: skip


@COMMANDS(
    "SetStallConfig",
    "dead letters",
    "PUT /queues/{queue}/stall-config",
    QUEUE,
    Kind.MAP("config", required=True),
    wrapped="config",
)
async def _set_stall_config(session: Session, given: Given) -> None:
    """Change the stalled-job policy: `stallInterval`, `maxStalls`, `gracePeriod`."""
    changes = check_nested("config", _STALL_CONFIG, given["config"])
    if changes["enabled"] is False:
        raise CommandError("config.enabled must be true: stalled jobs are always recovered")
    interval, most, grace = changes["stallInterval"], changes["maxStalls"], changes["gracePeriod"]
    if (interval, most, grace) != (None, None, None):
        queue = await session.queue(given)
        await queue.settings.set_stalled_policy(stalled_interval=interval, max_stalled_count=most, stalled_grace=grace)


COMMANDS.on_queue(
    "PurgeDlq", "dead letters", "POST /queues/{queue}/dlq/purge", summary="Delete the failed jobs.", answer="count"
)(lambda queue, given: queue.failures.purge())
