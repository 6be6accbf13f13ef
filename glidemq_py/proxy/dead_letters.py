"""Endpoints for the dead-letter entries of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NotRequired, TypedDict, cast

from starlette.responses import Response

from glidemq_py._api.dead_letters import envelope_of, shown_entry
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.record import JobState
from glidemq_py._features.dead_letters import open_dead_letters
from glidemq_py._job.job import Job
from glidemq_py._job.reading import read_page
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.proxy import models as given
from glidemq_py.proxy.models import AsText, Count, NextCursor, Payload, Removed
from glidemq_py.proxy.responses import (
    ONE_PAGE,
    RANGE,
    NotFoundError,
    PageQuery,
    encode,
    listed_jobs,
    open_cursor,
    page_answer,
    seal_cursor,
)
from glidemq_py.proxy.routing import Endpoints
from glidemq_py.proxy.state import OpenQueue, ProxyState

_DEFAULT_REPLAYED: Final = 100
_ENTRIES_PER_CALL: Final = 25
_MAX_PAGES: Final = 100
"""A request reads at most this many pages of the dead letter queue, which may hold entries of other queues."""

endpoints = Endpoints("/queues/{name}/dlq")


class DeadLetter(TypedDict):
    """A dead-letter entry."""

    id: str
    name: str
    data: Payload
    originalQueue: str
    originalJobId: str
    failedReason: str | None
    attemptsMade: int
    timestamp: int
    asText: NotRequired[AsText]


class DeadLetterPage(TypedDict):
    """A page of dead-letter entries."""

    count: Count
    jobs: list[DeadLetter]
    cursor: NextCursor


class Replayed(TypedDict):
    """The job of a replayed entry."""

    name: str
    newJobId: str


class ReplayedJob(TypedDict):
    """The job of a replayed entry, and the entry."""

    id: str
    name: str
    sourceId: str


class ReplayedPage(TypedDict):
    """The jobs of replayed entries."""

    jobs: list[ReplayedJob]
    replayed: Count
    cursor: NextCursor


@endpoints("GET", "", DeadLetterPage, query=RANGE)
async def dead_letters(queue: OpenQueue, proxy: ProxyState, page: PageQuery) -> Response:
    """List the queue's dead-letter entries."""
    dead_queue, parts = await _opened(queue)
    if dead_queue is None:
        return page_answer("jobs", [], "", count=0)

    async def show(jobs: Sequence[Job]) -> list[bytes | None]:
        return [_shown(parts, job) for job in jobs]

    most = proxy.options.max_response
    texts, cursor = await listed_jobs([dead_queue], JobState.WAITING, page, show, max_bytes=most, by_shown=True)
    return page_answer("jobs", texts, cursor, count=len(texts))


async def _opened(queue: Queue) -> tuple[QueueLink | None, dict[str, QueueLink]]:
    """Return the dead letter queue with the pending entries of all parts, and the parts by name."""
    links = await queue._links()
    opened = await asyncio.gather(*map(open_dead_letters, links))
    return next((each for each in opened if each is not None), None), {link.keys.name: link for link in links}


def _shown(parts: Mapping[str, QueueLink], entry: Job) -> bytes | None:
    """Return an entry as JSON, with the name and the id in the whole queue; None if it is not one of this queue."""
    envelope = envelope_of(entry)
    part = None if envelope is None else parts.get(envelope["originalQueue"])
    if part is None:
        return None
    return encode(_entry_view(shown_entry(entry, part)))


def _entry_view(entry: Job) -> DeadLetter:
    envelope = cast("dict[str, Any]", entry.data)
    return {
        "id": entry.id, "name": entry.name, "data": envelope.get("data"),
        "originalQueue": str(envelope.get("originalQueue", "")),
        "originalJobId": str(envelope.get("originalJobId", "")),
        "failedReason": envelope.get("failedReason"), "attemptsMade": envelope.get("attemptsMade") or 0,
        "timestamp": entry.timestamp,
    }  # fmt: skip


@endpoints(
    "POST", "/replay-all",
    query={
        "count": {"type": "integer", "minimum": 1, "maximum": given.MAX_REPLAYED, "default": None},
        "cursor": ONE_PAGE["cursor"],
    }, count=10,
)  # fmt: skip
async def replay_all(queue: OpenQueue, count: int | None, cursor: str | None, body: given.ReplayAll) -> ReplayedPage:
    """Replay dead-letter entries, oldest first."""
    if "count" in body and count is not None:
        raise GlideMQValidationError("count", body["count"], "must be given once")
    left = body.get("count", count or _DEFAULT_REPLAYED)
    replayed: list[ReplayedJob] = []
    dead_queue, parts = await _opened(queue)
    place = f"{dead_queue.keys.meta} {JobState.WAITING}" if dead_queue else ""
    inner = open_cursor(place, cursor)
    if dead_queue is None:
        return {"jobs": [], "replayed": 0, "cursor": None}
    for _ in range(_MAX_PAGES):
        jobs, inner = await read_page(dead_queue, JobState.WAITING, inner, min(left, _ENTRIES_PER_CALL))
        for entry in jobs:
            job = await queue.dead_letters.replay(entry.id) if _origin(entry) in parts else None
            if job is not None:
                replayed.append({"id": job.id, "name": job.name, "sourceId": entry.id})
                left -= 1
        if not (left and inner):
            break
    return {"jobs": replayed, "replayed": len(replayed), "cursor": seal_cursor(place, inner) or None}


def _origin(entry: Job) -> str:
    """Return the queue of an entry; '' if it is one of a subscription, or no entry."""
    envelope = envelope_of(entry)
    return "" if envelope is None or "subscription" in envelope else envelope["originalQueue"]


@endpoints("GET", "/{id}")
async def dead_letter(queue: OpenQueue, id: str) -> DeadLetter:
    """Return a dead-letter entry."""
    entry = await queue.dead_letters.get(id)
    if entry is None:
        raise _no_entry(id)
    return _entry_view(entry)


@endpoints("DELETE", "/{id}")
async def remove_dead_letter(queue: OpenQueue, id: str) -> Removed:
    """Delete a dead-letter entry."""
    if not await queue.dead_letters.remove(id):
        raise _no_entry(id)
    return {"removed": True}


@endpoints("POST", "/{id}/replay")
async def replay(queue: OpenQueue, id: str) -> Replayed:
    """Replay a dead-letter entry."""
    job = await queue.dead_letters.replay(id)
    if job is None:
        raise _no_entry(id)
    return {"name": job.name, "newJobId": job.id}


def _no_entry(job_id: str) -> NotFoundError:
    return NotFoundError(f"dead-letter entry {job_id!r} not found")
