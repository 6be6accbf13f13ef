"""Endpoints that stream server-sent events, resumed by Last-Event-ID and kept alive by comments."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from glidemq_py._api.queue import Queue
from glidemq_py._client.event_reader import QueueEvent
from glidemq_py._core import json_text as json
from glidemq_py._core.job_states import JobState
from glidemq_py.errors import GlideMQValidationError, SerializationError
from glidemq_py.proxy.answering import frame
from glidemq_py.proxy.endpoint import Endpoint, Exchange
from glidemq_py.proxy.refusals import NothingThereError, complaint
from glidemq_py.proxy.schemas import ENTRY_ID
from glidemq_py.proxy.shapes import job_shape

__all__ = ["STREAMS", "stream"]

_ENTRY: Final = re.compile(r"[0-9]{1,19}(-[0-9]{1,19})?")
_ENDS: Final = frozenset(("completed", "failed", "expired", "revoked", "removed"))
_ENDED: Final = (JobState.COMPLETED, JobState.FAILED)
_DECODED: Final = frozenset(("returnvalue", "data"))
_NUMBERS: Final = frozenset(("delay", "attemptsMade"))


def _position(exchange: Exchange) -> str | None:
    """Return the last event id of the client: the header of a reconnecting browser, else the query."""
    found = exchange.request.headers.get("last-event-id") or exchange.query.get("lastId")
    if found is not None and not _ENTRY.fullmatch(found):
        raise GlideMQValidationError("lastId", found, "must be an event id such as '1795240398325-0'")
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


async def _alive(frames: AsyncIterator[str], exchange: Exchange) -> AsyncIterator[str]:
    """Yield the frames, a comment after each idle period, and stop when the proxy closes.

    The status was sent before, so an error becomes an event ``error`` and ends the stream; the client may reconnect.
    """
    closing = asyncio.ensure_future(exchange.state.closing.wait())
    coming: asyncio.Future[str | None] | None = None
    try:
        yield ": connected\n\n"
        while True:
            if coming is None:
                coming = asyncio.ensure_future(_next(frames))
            seconds = exchange.state.options.keep_alive / 1_000
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
                exchange.state.report(error, exchange.request)
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


def stream(frames: AsyncIterator[str], exchange: Exchange) -> Response:
    """Return the response that sends events until they end or the proxy closes."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_alive(frames, exchange), media_type="text/event-stream", headers=headers)


# -- events ----------------------------------------------------------------------------------------------------


async def _queue_events(exchange: Exchange) -> Response:
    name = exchange.path["name"]
    position = _position(exchange)
    await exchange.queue.connect()

    async def frames() -> AsyncIterator[str]:
        async for event in exchange.state.hub(name).follow(position):
            yield _event_frame(event)

    return stream(frames(), exchange)


async def _there(queue: Queue[Any, Any], job_id: str) -> None:
    if await queue.get_job(job_id) is None:
        raise NothingThereError(f"job {job_id!r} not found")


async def _job_events(exchange: Exchange) -> Response:
    queue, job_id = exchange.queue, exchange.job_id
    # From the first kept event on, unless the client resumes: the job may have finished before this request.
    position = _position(exchange) or "0-0"
    await _there(queue, job_id)

    async def frames() -> AsyncIterator[str]:
        ended = await _ended(queue, job_id)
        if ended is None:
            async for event in exchange.state.hub(queue.name).follow(position):
                if event.job_id == job_id:
                    yield _event_frame(event)
                    if event.event in _ENDS:
                        return
            return
        # The queue keeps about a thousand events: the final event of the job may have been trimmed.
        async for event in exchange.state.hub(queue.name).past(position):
            if event.job_id == job_id:
                yield _event_frame(event)
                if event.event in _ENDS:
                    return
        yield frame(*ended)

    return stream(frames(), exchange)


async def _ended(queue: Queue[Any, Any], job_id: str) -> tuple[str, dict[str, Any]] | None:
    job = await queue.get_job(job_id)
    if job is None:
        return "removed", {"jobId": job_id}
    if job.state not in _ENDED:
        return None
    shape = job_shape(job)
    return str(job.state), {"jobId": job_id, "returnvalue": shape["returnvalue"], "failedReason": job.failed_reason}


async def _job_stream(exchange: Exchange) -> Response:
    queue, job_id, position = exchange.queue, exchange.job_id, _position(exchange)
    await _there(queue, job_id)

    async def frames() -> AsyncIterator[str]:
        async for chunk in queue.stream(job_id, last_id=position):
            yield frame(None, chunk.fields, chunk.id)

    return stream(frames(), exchange)


_QUERY: Final = {"lastId": ENTRY_ID}

STREAMS: Final = (
    Endpoint(method="GET", path="/queues/{name}/events", summary="Stream a queue's events, from now on or after lastId",
             run=_queue_events, query=_QUERY, answers={200: None}),
    Endpoint(method="GET", path="/queues/{name}/jobs/{id}/events", summary="Stream a job's events until it finishes",
             run=_job_events, query=_QUERY, answers={200: None}),
    Endpoint(method="GET", path="/queues/{name}/jobs/{id}/stream", summary="Read the stream of a job until it finishes",
             run=_job_stream, query=_QUERY, answers={200: None}),
)  # fmt: skip
