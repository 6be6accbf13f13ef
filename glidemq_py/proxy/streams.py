"""Endpoints that stream server-sent events: of queues, jobs and subscriptions; and that publishes messages.

Streams are resumed by Last-Event-ID and kept alive by comments.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.queue_events import QueueEvents
from glidemq_py._client.event_reader import EventReader, QueueEvent
from glidemq_py._core import json_text as json
from glidemq_py._core.record import JobState
from glidemq_py._features.broadcast import compile_subject_matcher, parse_subjects, validate_subscription
from glidemq_py._partitions.layout import MAX_PARTITIONS
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQValidationError, SerializationError
from glidemq_py.proxy import models as given
from glidemq_py.proxy.jobs import Skipped, found_job, job_view
from glidemq_py.proxy.responses import answer, complaint, frame
from glidemq_py.proxy.routing import Endpoints, EventStream
from glidemq_py.proxy.schemas import Schema
from glidemq_py.proxy.state import OpenQueue, ProxyState

endpoints = Endpoints()

_ENTRY: Final = re.compile(r"[0-9]{1,19}(-[0-9]{1,19})?")
_ENTRIES: Final = re.compile(rf"{_ENTRY.pattern}(,{_ENTRY.pattern}){{0,{MAX_PARTITIONS - 1}}}")
_ENDS: Final = frozenset(("completed", "failed", "expired", "revoked", "removed"))
_ENDED: Final = (JobState.COMPLETED, JobState.FAILED)
_PAGE: Final = 200
_DECODED: Final = frozenset(("returnvalue", "data"))
_NUMBERS: Final = frozenset(("delay", "attemptsMade"))


def _position(form: re.Pattern[str]) -> dict[str, Schema]:
    """Return the query that names the last event that the client has received."""
    return {"lastId": {"type": "string", "pattern": f"^{form.pattern}$", "default": None}}


def _last_id(request: Request, last_id: str | None, form: re.Pattern[str]) -> str | None:
    """Return the last event id of the client: the header of a reconnecting browser, else the query."""
    found = request.headers.get("last-event-id") or last_id
    if found is not None and not form.fullmatch(found):
        raise GlideMQValidationError("lastId", found, "must be the id of an event, such as '1795240398325-0'")
    return found


def _decoded(name: str, text: str) -> Any:
    try:
        if name in _DECODED:
            return json.loads(text)
        return int(text) if name in _NUMBERS else text
    except (SerializationError, ValueError):
        return text


def _event_frame(event: QueueEvent) -> str:
    data = {"jobId": event.job_id, **{name: _decoded(name, text) for name, text in event.fields.items()}}
    return frame(event.event, data, event.id)


async def _alive(frames: AsyncIterator[str], request: Request) -> AsyncIterator[str]:
    """Yield the frames, a comment after each idle period, and stop when the proxy closes.

    The status was sent before, so an error becomes an event ``error`` and ends the stream; the client may reconnect.
    """
    proxy: ProxyState = request.app.state.proxy
    closing = asyncio.ensure_future(proxy.closing.wait())
    coming: asyncio.Future[str | None] | None = None
    try:
        yield ": connected\n\n"
        while True:
            if coming is None:
                coming = asyncio.ensure_future(_next(frames))
            seconds = proxy.options.keep_alive / 1_000
            await asyncio.wait((coming, closing), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if closing.done():
                return
            if not coming.done():
                yield ": keep-alive\n\n"
                continue
            try:
                text, coming = coming.result(), None
            except Exception as error:
                coming = None
                proxy.report(error, request)
                yield frame("error", complaint(error)[0])
                return
            if text is None:
                return
            yield text
    finally:
        closing.cancel()
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        close: Any = getattr(frames, "aclose", None)
        if close is not None:
            await close()


async def _next(frames: AsyncIterator[str]) -> str | None:
    return await anext(frames, None)


def _stream(frames: AsyncIterator[str], request: Request) -> Response:
    """Return the response that sends events until they end or the proxy closes."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return EventStream(_alive(frames, request), headers=headers)


async def _following(
    proxy: ProxyState, name: str, last_id: str | None, *, reads_layout: bool = True
) -> AsyncGenerator[QueueEvent]:  # fmt: skip
    """Yield the events of a queue, or of one partition, after ``last_id``; their ids are where to continue."""
    events = QueueEvents(name, proxy.connection, prefix=proxy.options.prefix, last_event_id=last_id)
    events._reads_layout = reads_layout
    async with events:
        async for event in events:
            yield replace(event, id=events.last_event_id or "")


async def _past(link: QueueLink[Any], last_id: str) -> AsyncGenerator[QueueEvent]:
    """Yield the existing events of a queue, or of one partition, after ``last_id``."""
    reader = EventReader(link.transport, link.keys.events)
    reader.position = last_id
    while events := await reader.page(_PAGE):
        for event in events:
            yield event


# -- queues and jobs -------------------------------------------------------------------------------------------


@endpoints(
    "GET", "/queues/{name}/events", EventStream,
    query=_position(_ENTRIES),
)  # fmt: skip
async def queue_events(queue: OpenQueue, proxy: ProxyState, last_id: str | None, request: Request) -> Response:
    """Stream a queue's events, from now on or after lastId."""
    position = _last_id(request, last_id, _ENTRIES)
    await queue.connect()

    async def frames() -> AsyncIterator[str]:
        async with aclosing(_following(proxy, queue.name, position)) as events:
            async for event in events:
                yield _event_frame(event)

    return _stream(frames(), request)


@endpoints(
    "GET", "/queues/{name}/jobs/{id}/events", EventStream,
    query=_position(_ENTRIES),
)  # fmt: skip
async def job_events(
    queue: OpenQueue, proxy: ProxyState, id: str, last_id: str | None, request: Request
) -> Response:  # fmt: skip
    # From the first kept event on, unless the client resumes: the job may have finished before this request.
    """Stream a job's events until it finishes."""
    ids = (_last_id(request, last_id, _ENTRIES) or "0-0").split(",")
    job = await found_job(queue, id)
    link, number = job._link, 0 if job._link.partition is None else job._link.partition.number
    after = ids[number if number < len(ids) else 0]

    async def frames() -> AsyncIterator[str]:
        ended = await _ended(queue, job.id)
        # The queue keeps about a thousand events: the final event of a job that has ended may have been trimmed.
        following = _following(proxy, link.keys.name, after, reads_layout=False)
        async with aclosing(following if ended is None else _past(link, after)) as events:
            async for event in events:
                if event.job_id == job._stored_id:
                    yield _event_frame(replace(event, job_id=job.id))
                    if event.event in _ENDS:
                        return
        if ended is not None:
            yield frame(*ended)

    return _stream(frames(), request)


async def _ended(queue: Queue, job_id: str) -> tuple[str, dict[str, Any]] | None:
    job = await queue.get_job(job_id)
    if job is None:
        return "removed", {"jobId": job_id}
    if job.state not in _ENDED:
        return None
    view = await job_view(job)
    return str(job.state), {"jobId": job_id, "returnvalue": view["returnvalue"], "failedReason": job.failed_reason}


@endpoints(
    "GET", "/queues/{name}/jobs/{id}/stream", EventStream,
    query=_position(_ENTRY),
)  # fmt: skip
async def job_stream(queue: OpenQueue, id: str, last_id: str | None, request: Request) -> Response:
    """Read the stream of a job until it finishes."""
    position = _last_id(request, last_id, _ENTRY)
    job = await found_job(queue, id)

    async def frames() -> AsyncIterator[str]:
        async for chunk in queue.jobs.iter_stream(job.id, last_id=position):
            yield frame(None, chunk.fields, chunk.id)

    return _stream(frames(), request)


# -- broadcasts ------------------------------------------------------------------------------------------------


class Published(TypedDict):
    """A message that was published."""

    id: str
    subject: str


@endpoints(
    "POST", "/broadcast/{name}", {201: Published, 200: Skipped}, role="producer",
    subject="orders.created", data={"order": 1},
)  # fmt: skip
async def publish(proxy: ProxyState, name: str, body: given.Publish) -> Response:
    """Publish a message to every subscription."""
    published = await proxy.broadcast(name).publish(body["subject"], body.get("data"), **body.get("opts", {}))
    if published is None:
        return answer({"skipped": True})
    return answer({"id": published, "subject": body["subject"]}, 201)


@endpoints(
    "GET", "/broadcast/{name}/events", EventStream, role="operator",
    query={
        "subscription": {"type": "string", "minLength": 1, "maxLength": 256},
        "subjects": {"type": "string", "description": "Patterns, separated by commas.", "default": None},
    },
)  # fmt: skip
async def messages(
    proxy: ProxyState, name: str, request: Request, subscription: str, subjects: str | None
) -> Response:  # fmt: skip
    """Stream the messages of a subscription."""
    validate_subscription(subscription)
    matches = compile_subject_matcher(parse_subjects("subjects", None if subjects is None else subjects.split(",")))
    # Create the subscription first: errors become a status, and later messages are delivered.
    await proxy.broadcast(name).subscribe(subscription)

    async def frames() -> AsyncIterator[str]:
        async for each in proxy.subscription(name, subscription).follow(matches):
            yield each

    return _stream(frames(), request)
