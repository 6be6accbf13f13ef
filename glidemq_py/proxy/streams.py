"""Endpoints that stream: server-sent events, resumed by Last-Event-ID, kept alive by comments."""

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
    """Where the client left off: the header of a browser that reconnects, else the query."""
    found = exchange.request.headers.get("last-event-id") or exchange.query.get("lastId")
    if found is not None and not _ENTRY.fullmatch(found):
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


async def _alive(frames: AsyncIterator[str], exchange: Exchange) -> AsyncIterator[str]:
    """The frames, a comment where none has come for a while, and an end where the proxy closes.

    What goes wrong when the status is out already is an event ``error``, and the end: the client may come back.
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
                exchange.state.tell(error, exchange.request)
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
    """The response that sends events until they or the proxy end."""
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
        raise NothingThereError(f"there is no job {job_id!r}")


async def _job_events(exchange: Exchange) -> Response:
    queue, job_id = exchange.queue, exchange.job_id
    # All that is known of the job, unless the client has had some of it: it may have ended before this request.
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
        # The stream keeps about the last thousand events of the queue: the end may not be among them any more.
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
    Endpoint(method="GET", path="/queues/{name}/events", summary="What happens in a queue, from now on or after lastId",
             run=_queue_events, query=_QUERY, answers={200: None}),
    Endpoint(method="GET", path="/queues/{name}/jobs/{id}/events", summary="What happens to a job, until it ends",
             run=_job_events, query=_QUERY, answers={200: None}),
    Endpoint(method="GET", path="/queues/{name}/jobs/{id}/stream", summary="What a job streams, until it ends",
             run=_job_stream, query=_QUERY, answers={200: None}),
)  # fmt: skip
