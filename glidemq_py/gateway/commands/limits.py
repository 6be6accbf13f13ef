"""Commands about limits of a queue, groups of jobs (fair keys of this package), and unique keys of jobs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.limits import MAX_COUNT, FairKeyInfo, RateLimit, validate_fair_key
from glidemq_py._features.fair_keys import set_fair_limits
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.listing import find_job, part_of_key
from glidemq_py.gateway.session import Commands, Session
from glidemq_py.gateway.table import JOB, QUEUE, Answer, CommandError, Field, Given, Kind

COMMANDS: Final = Commands()

_MAX_MS: Final = 31_536_000_000
_LIMIT: Final = Kind.INTEGER("limit", 1, MAX_COUNT, required=True)
_DURATION: Final = Kind.INTEGER("duration", 1, _MAX_MS, default=1_000)
_TTL: Final = Kind.INTEGER("ttl", 1, _MAX_MS)


@contextmanager
def _field_named() -> Generator[None]:
    """Name the field of the command in errors of its limit: each partition needs a part of it."""
    try:
        yield
    except GlideMQValidationError as error:
        raise CommandError(f"limit {error.problem}") from None


@COMMANDS.on_queue("RateLimit", "limits", "PUT /queues/{queue}/rate-limit", _LIMIT, _DURATION, _TTL)
async def _rate_limit(queue: Queue, given: Given) -> None:
    """Limit how many jobs all workers start per `duration` ms."""
    with _field_named():
        await queue.limits.set_rate_limit(given["limit"], given["duration"], ttl=given["ttl"])


@COMMANDS.on_queue(
    "SetConcurrency", "limits", "PUT /queues/{queue}/concurrency", _LIMIT, renamed={"concurrency": "limit"}
)
async def _concurrency(queue: Queue, given: Given) -> None:
    """Limit the active jobs of all workers."""
    with _field_named():
        await queue.limits.set_concurrency(given["limit"])


@COMMANDS.on_queue("GetQueueLimits", "limits", "", Kind.ANY("maxJobs"))
async def _limits(queue: Queue, given: Given) -> Answer:
    """Return the limits; `rateLimitTtl` is the rest of a `ttl` in ms, 0 without one, -2 without a limit."""
    found = await queue.limits.get()
    rate, most = found.rate_limit, found.concurrency
    is_maxed = most is not None and (await queue.get_job_counts()).active >= most
    return {
        "data": {
            "limits": {
                "rateLimit": _shown_rate(rate),
                "rateLimitTtl": -2 if rate is None else found.rate_limit_ttl or 0,
                "concurrencyLimit": most, "maxed": is_maxed,
            }
        }
    }  # fmt: skip


OfGroup = Callable[[Queue, str, Given], Awaitable[Any]]


def _on_group(name: str, *fields: Field, answer: str = "", **more: Any) -> Callable[[OfGroup], OfGroup]:
    """Declare a command that is executed with its queue and its group; the result is a member of the data."""

    def declare(execute: OfGroup) -> OfGroup:
        async def handle(queue: Queue, given: Given) -> Answer | None:
            group: str = given["groupId"]
            if "\0" in group:
                raise CommandError("groupId must not contain NUL")
            found = await execute(queue, group, given)
            return {"data": {answer: found}} if answer else None

        handle.__doc__ = execute.__doc__
        group = Field("groupId", required=True, minimum=1, maximum=256)
        COMMANDS.on_queue(name, "groups", "", group, *fields, **more)(handle)
        return execute

    return declare


def _shows(name: str, answer: str, summary: str, value_of: Callable[[FairKeyInfo], Any]) -> None:
    """Declare the command that returns one value of a group."""

    async def show(queue: Queue, group: str, given: Given) -> Any:
        return value_of(await queue.fair_keys.get(group))

    _on_group(name, answer=answer, summary=summary)(show)


def _removes(name: str, summary: str, limit: str) -> None:
    """Declare the command that removes a limit of a group."""

    async def remove(queue: Queue, group: str, given: Given) -> int:
        removed: dict[str, Any] = {limit: False}
        had_limit = getattr(await queue.fair_keys.get(group), limit) is not None
        await queue.fair_keys.set_limits(group, **removed)
        return int(had_limit)

    _on_group(name, answer="removed", summary=summary)(remove)


@COMMANDS.on_queue("GetGroupsJobsCount", "groups", "")
async def _all_backlogs(queue: Queue, given: Given) -> Answer:
    """Count the ready jobs of all groups."""
    return {"data": {"count": sum([each.backlog async for each in queue.fair_keys.iter()])}}


@_on_group(
    "SetGroupRateLimit",
    Kind.POSITIVE("max", 1, MAX_COUNT, required=True),
    Kind.POSITIVE("duration", 1, _MAX_MS, required=True),
)
async def _set_rate_limit(queue: Queue, group: str, given: Given) -> None:
    """Limit how many jobs of a group start per `duration` ms."""
    await queue.fair_keys.set_limits(group, rate_limit=RateLimit(given["max"], given["duration"]))


def _shown_rate(limit: RateLimit | None) -> dict[str, int] | None:
    return None if limit is None else {"max": limit.max, "duration": limit.duration}


def _rate_limit_ttl(info: FairKeyInfo) -> int:
    left = 0 if info.limited_until is None else info.limited_until - round(time.time() * 1_000)
    return left if left > 0 else -2


@_on_group("RateLimitGroup", Kind.POSITIVE("duration", 1, _MAX_MS, required=True))
async def _hold(queue: Queue, group: str, given: Given) -> None:
    """Start no job of a group for `duration` ms from now."""
    link = await (await part_of_key(queue, group))._connected()
    call = set_fair_limits(link.keys.meta, validate_fair_key("groupId", group), hold=given["duration"])
    await link.transport.call(call)


@_on_group("SetGroupConcurrency", Kind.POSITIVE("concurrency", 1, MAX_COUNT, required=True))
async def _set_concurrency(queue: Queue, group: str, given: Given) -> None:
    """Limit the active jobs of a group."""
    await queue.fair_keys.set_limits(group, concurrency=given["concurrency"])


def _pauses(name: str, summary: str, *, paused: bool) -> None:
    """Declare the command that pauses a group, or resumes it."""

    async def change(queue: Queue, group: str, given: Given) -> bool:
        was_paused = (await queue.fair_keys.get(group)).paused
        await (queue.fair_keys.pause if paused else queue.fair_keys.resume)(group)
        return was_paused is not paused

    _on_group(name, answer="changed", summary=summary)(change)


_KEY: Final = (QUEUE, Field("deduplicationId", required=True, minimum=1, maximum=256))


@COMMANDS("GetDeduplicationJobId", "deduplication", "", *_KEY)
async def _get(session: Session, given: Given) -> Answer:
    """Return the unfinished job that has a unique key."""
    queue = await session.queue(given)
    job = await queue.jobs.get_deduplicated(given["deduplicationId"])
    if job is None or job.state is None or job.state.is_finished:
        return {"data": {"jobId": None}}
    return {"data": {"jobId": await session.state.ids.on_wire(queue.name, job.id)}}


@COMMANDS("RemoveDeduplicationKey", "deduplication", "", *_KEY)
async def _remove(session: Session, given: Given) -> Answer:
    """Remove a unique key; no job is changed."""
    queue = await session.queue(given)
    return {"data": {"count": int(await queue.jobs.remove_deduplication(given["deduplicationId"]))}}


@COMMANDS("RemoveJobDeduplicationKey", "deduplication", "", JOB)
async def _remove_of_job(session: Session, given: Given) -> Answer:
    """Remove the unique key of a job."""
    job = await find_job(session, given["id"])
    option = None if job is None else job.opts.get("deduplication")
    key = cast("Mapping[str, Any]", option).get("id") if isinstance(option, dict) else None
    if job is None or not isinstance(key, str):
        return {"data": {"removed": False}}
    queue = await session.state.queue(job.queue_name)
    owner = await queue.jobs.get_deduplicated(key)
    # Another job may have the key by now.
    is_owner = owner is not None and owner.id == job.id
    return {"data": {"removed": is_owner and await queue.jobs.remove_deduplication(key)}}


COMMANDS.on_queue("RateLimitClear", "limits", "DELETE /queues/{queue}/rate-limit", summary="Remove the rate limit.")(
    lambda queue, given: queue.limits.remove_rate_limit()
)
COMMANDS.on_queue(
    "ClearConcurrency", "limits", "DELETE /queues/{queue}/concurrency", summary="Remove the limit of active jobs."
)(lambda queue, given: queue.limits.set_concurrency(0))
_shows("GetGroupJobsCount", "count", "Count the ready jobs of a group.", lambda info: info.backlog)
_shows("GetGroupActiveCount", "count", "Count the active jobs of a group.", lambda info: info.active)
_shows("GetGroupRateLimit", "limit", "Return the rate limit of a group.", lambda info: _shown_rate(info.rate_limit))
_removes("RemoveGroupRateLimit", "Remove the rate limit of a group.", "rate_limit")
_shows(
    "GetGroupRateLimitTtl",
    "ttl",
    "Return for how many ms the rate limit holds back the group; -2 = it does not.",
    _rate_limit_ttl,
)
_shows(
    "GetGroupConcurrency", "concurrency", "Return the limit of active jobs of a group.", lambda info: info.concurrency
)
_removes("RemoveGroupConcurrency", "Remove the limit of active jobs.", "concurrency")
_pauses("PauseGroup", "Start no more jobs of a group.", paused=True)
_pauses("ResumeGroup", "Start jobs of a paused group again.", paused=False)
_shows("IsGroupPaused", "paused", "Return whether a group is paused.", lambda info: info.paused)
