"""Commands about a whole queue: pausing, deleting, listing and counting its jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.record import JobState
from glidemq_py._core.times import MAX_DURATION_MS, to_ms
from glidemq_py._features.cleaning import clean_unfinished
from glidemq_py.errors import JobDataError, SerializationError
from glidemq_py.gateway.job_objects import (
    READY,
    SOURCES,
    Source,
    full_job_object,
    read_priority_counts,
    read_wire_counts,
    sources_of,
)
from glidemq_py.gateway.listing import MOST_LISTED, Listed, jobs_in_order, size_of
from glidemq_py.gateway.names import listed_queues, wire_name
from glidemq_py.gateway.push_rows import forget_group_limits
from glidemq_py.gateway.session import Commands, Session
from glidemq_py.gateway.slices import JOB_CHARS, LARGE_CHARS, Slices
from glidemq_py.gateway.table import QUEUE, Answer, CommandError, Field, Given, Kind, check_field
from glidemq_py.gateway.values import LargeAnswer
from glidemq_py.gateway.webhooks import DELIVERIES

COMMANDS: Final = Commands()

_QUEUE: Final = (QUEUE,)
_CLEANED: Final = {name: sources for name, sources in SOURCES.items() if name != "active"}
_PAUSED: Final = "paused"
_READY_AND_DELAYED: Final = (*SOURCES["waiting"], *SOURCES["prioritized"], SOURCES["delayed"][0])
_COUNT: Final = Kind.INTEGER("count", 0, 2**53)


@COMMANDS("Pause", "control", "POST /queues/{queue}/pause", *_QUEUE)
async def _pause(session: Session, given: Given) -> None:
    """Pause the queue for all workers."""
    if given["queue"] == DELIVERIES:
        raise CommandError(f"queue {DELIVERIES} has the messages of all webhooks; use SetWebhookEnabled")
    await (await session.queue(given)).pause()


@COMMANDS.on_queue("PromoteJobs", "control", "POST /queues/{queue}/promote-jobs", _COUNT)
async def _promote(queue: Queue, given: Given) -> Answer:
    """Make delayed jobs ready; all without `count`, none if it is 0."""
    count = given["count"]
    return {"count": 0 if count == 0 else await queue.jobs.promote_delayed(count)}


@COMMANDS.on_queue("GetCountsPerPriority", "query", "GET /queues/{queue}/priority-counts")
async def _priorities(queue: Queue, given: Given) -> Answer:
    """Count the ready jobs by priority; those with a `groupId` as 0."""
    return {"queue": wire_name(queue.name), "counts": await read_priority_counts(queue)}


@COMMANDS.on_queue("Count", "query", "GET /queues/{queue}/count")
async def _count(queue: Queue, given: Given) -> Answer:
    """Count the jobs that are not finished."""
    found = await queue.get_job_counts()
    unfinished = (
        found.waiting, found.group_waiting, found.prioritized, found.delayed, found.suspended, found.active,
        found.waiting_children,
    )  # fmt: skip
    return {"count": sum(unfinished)}


@COMMANDS("Obliterate", "control", "POST /queues/{queue}/obliterate", *_QUEUE)
async def _obliterate(session: Session, given: Given) -> None:
    """Delete the queue with all its jobs and cron jobs."""
    queue = await session.queue(given)
    await queue._plain_link()
    is_partitioned = queue._partitions is not None
    await queue.obliterate(force=True)
    forget_group_limits(queue)
    if is_partitioned:
        await session.state.forget_parts(queue)


@COMMANDS(
    "Clean",
    "control",
    "POST /queues/{queue}/clean",
    *_QUEUE,
    Kind.INTEGER("grace", 0, MAX_DURATION_MS, default=0),
    Field("state"),
    Kind.INTEGER("limit", 0, 1_000_000, default=1_000),
)
async def _clean(session: Session, given: Given) -> Answer:
    """Delete jobs of a state that ended, or else were added, `grace` ms ago; by default ready and delayed ones."""
    queue = await session.queue(given)
    sources = await _cleaned_sources(queue, given["state"])
    deleted = await _delete_old(queue, sources, given["grace"], given["limit"])
    ids = [await session.state.ids.on_wire(queue.name, job_id) for job_id in deleted]
    return {"count": len(ids), "ids": ids}


async def _cleaned_sources(queue: Queue, state: str | None) -> Sequence[Source]:
    if not state:
        return _READY_AND_DELAYED
    if state == _PAUSED:
        return sources_of(READY) if await queue.is_paused() else ()
    return _CLEANED.get("waiting" if state == "wait" else state, ())


async def _delete_old(queue: Queue, sources: Sequence[Source], grace: int, limit: int) -> list[str]:
    """Delete at most ``limit`` jobs that are old enough; return their ids."""
    deleted: list[str] = []
    await queue._plain_link()
    for source in sources:
        parts = queue._parts if source.state is JobState.PRIORITIZED else ()
        for part in parts:
            left = limit - len(deleted)
            if left <= 0:
                return deleted
            link = await part._connected()
            found = await clean_unfinished(link, source.state, to_ms("grace", grace), left, source.listed)
            deleted += found if part._partition is None else map(part._partition.id_of, found)
        if not parts and len(deleted) < limit:
            deleted += await queue.clean(grace, limit - len(deleted), source.state)
    return deleted


@COMMANDS("ListQueues", "control", "GET /queues")
async def _list_queues(session: Session, given: Given) -> Answer:
    """Return the names of the queues."""
    found = await listed_queues(session.state.transport, session.state.options.prefix)
    return {"queues": [wire_name(name) for name in found]}


@COMMANDS.on_queue("TrimEvents", "control", "", Kind.INTEGER("maxLength", 0, 2**53, required=True))
async def _trim_events(queue: Queue, given: Given) -> Answer:
    """Delete the oldest events of the queue."""
    removed = 0
    link = await queue._first_connected()
    for part in queue._parts:
        trimmed = await link.command("XTRIM", part._keys.events, "MAXLEN", "=", str(given["maxLength"]))
        removed += int(trimmed)
    return {"data": {"removed": removed}}


@COMMANDS(
    "GetJobs",
    "query",
    "GET /queues/{queue}/jobs/list",
    *_QUEUE,
    Kind.ANY("state"),
    Kind.INTEGER("limit", 0, MOST_LISTED, default=100),
    Kind.INTEGER("offset", 0, MOST_LISTED, default=0),
    Kind.FLAG("asc", default=True),
    lists={"state": "state", "states": "state", "status": "state"},
)
async def _jobs(session: Session, given: Given) -> Answer:
    """Return jobs in one or several states, all without `state`, in the order in which they were added."""
    queue = await session.queue(given)
    offset, limit = given["offset"], given["limit"]
    if offset + limit > MOST_LISTED:
        raise CommandError(f"offset + limit must be at most {MOST_LISTED:,}")
    states, ids = await _listed_states(queue, given["state"]), session.state.ids
    async with contextlib.AsyncExitStack() as stack:

        async def take_room() -> None:
            await stack.enter_async_context(session.room())

        oldest = given["asc"]
        found = await jobs_in_order(queue, states, offset, limit, oldest=oldest, take_room=take_room) if limit else []
        named = [(await ids.on_wire(queue.name, each.job.id), each) for each in found]
        found.clear()
        objects = _objects(named, {"state": _PAUSED} if given["state"] == _PAUSED else {})
        if sum(size_of(each.job) + JOB_CHARS for _, each in named) <= LARGE_CHARS:
            return {"jobs": [*objects]}
        async with Slices(session.parts) as slices:
            return LargeAnswer(jobs=[await slices.encoded(each) for each in objects])


def _objects(named: list[tuple[str, Listed]], changes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of jobs with these ids; the jobs are removed from the list, as their data may be large."""
    named.reverse()
    while named:
        job_id, each = named.pop()
        with contextlib.suppress(JobDataError, SerializationError):
            yield {**full_job_object(each.job, job_id, each.due), **changes}


async def _listed_states(queue: Queue, given: Any) -> list[str]:
    """Return the states to list: all if none is given. The ready jobs of a paused queue are paused."""
    names = [given] if isinstance(given, str) else check_field(Kind.TEXTS("state"), given)
    if not given:
        return [*SOURCES]
    wanted = dict.fromkeys(name for name in names if name in SOURCES)
    if not {_PAUSED, *READY}.isdisjoint(names) and await queue.is_paused():
        if _PAUSED in names:
            wanted.update(dict.fromkeys(READY))
        else:
            wanted = {name: None for name in wanted if name not in READY}
    return [*wanted]


COMMANDS.on_queue("Resume", "control", "POST /queues/{queue}/resume", summary="Resume the queue.")(
    lambda queue, given: queue.resume()
)
COMMANDS.on_queue(
    "IsPaused", "control", "GET /queues/{queue}/paused", summary="Return whether the queue is paused.", answer="paused"
)(lambda queue, given: queue.is_paused())
COMMANDS.on_queue(
    "Drain",
    "control",
    "POST /queues/{queue}/drain",
    summary="Delete the waiting, prioritized and delayed jobs.",
    answer="count",
)(lambda queue, given: queue.drain(delayed=True))
COMMANDS.on_queue(
    "GetJobCounts", "query", "GET /queues/{queue}/counts", summary="Count the jobs by state.", answer="counts"
)(lambda queue, given: read_wire_counts(queue))
