"""Events of one queue or of all for a client of the HTTP API, and their form as server-sent events.

The id of an event is its place in the event stream of its queue, with the partition of a partitioned queue, so any
gateway resumes what another one sent. A client reads the events from its own position and is only notified of new ones:
a slow client needs no buffer.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.event_reader import EventReader, QueueEvent
from glidemq_py._client.reachability import repeated_level
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQError
from glidemq_py.gateway.events import Event, News, WireEvents
from glidemq_py.gateway.names import listed_queues
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.values import plain

__all__ = ["EVENT_NAMES", "MOST_QUEUES", "EventStream", "named", "sent_events"]

_log = get_logger(__name__)

MOST_QUEUES: Final = 1_000
"""Queues whose events one stream has."""
_ID: Final = re.compile(r"([0-9]{1,16})-([0-9]{1,16})(?::(.{1,1024}))?", re.ASCII)
_HEARTBEAT_S: Final = 30.0
_LIST_S: Final = 5.0
"""Interval of the search for new queues."""
_PAUSE_S: Final = 1.0
_PAGE: Final = 200
_REPEATED_MS: Final = 5_000
"""How far before the last event a stream of several queues or partitions is resumed: they have no common order."""
_NAMES: Final = {"pulled": "active"}
_SHOWN: Final = ("progress", "error", "delay", "prev", "terminal")
EVENT_NAMES: Final = frozenset((
    *(f"job:{kind}" for kind in (
        "pushed", "active", "progress", "completed", "failed", "retried", "delayed", "removed", "stalled", "duplicated",
        "waiting-children", "paused", "resumed",
    )), "queue:paused", "queue:resumed",
))  # fmt: skip
"""Names of the events, as `named` returns them."""


class EventStream:
    """The events of a queue, or of all queues, for one client.

    Args:
        state: The gateway.
        queue: Name of the queue in this package; None for all queues.
        last_id: Id of the last event that the client has received. If it is None, not one of ours, or later than all
            events, the stream starts now.
    """

    def __init__(self, state: GatewayState, queue: str | None, last_id: str | None) -> None:
        self._state, self._queue = state, queue
        found = None if last_id is None else _ID.fullmatch(last_id)
        self._last = None if found is None else (int(found[1]), int(found[2]), found[3] or queue)
        self._news = News()
        self._readers: dict[str, _Readers] = {}
        self._is_ended = False
        self._is_omitting = False

    async def start(self) -> None:
        """Set the position: all later events will be sent.

        Raises:
            GlideMQError: If the server of the queues does not answer.
        """
        for name in [self._queue] if self._queue is not None else await self._listed():
            await self._follow(name, is_new=False)

    async def batches(self) -> AsyncIterator[tuple[str, list[Event]] | None]:
        """Yield the events that one event of a queue has become, and its id, until `end`; None every few seconds."""
        loop = asyncio.get_running_loop()
        listed = loop.time()
        while not self._is_ended:
            for name in await self._news.take(_LIST_S):
                async for batch in self._read(name):
                    yield batch
            yield None
            if loop.time() - listed >= _LIST_S:
                await self._follow_new()
                listed = loop.time()

    def end(self) -> None:
        """Let `batches` end."""
        self._is_ended = True
        self._news.wake()

    def close(self) -> None:
        """Release the resources of the stream."""
        for name in self._readers:
            self._state.unfollow(name, self._news)
        self._readers.clear()

    async def _listed(self) -> Iterable[str]:
        names = await listed_queues(self._state.transport, self._state.options.prefix)
        if len(names) > MOST_QUEUES and not self._is_omitting:
            self._is_omitting = True
            _log.warning("gateway: /events has the first %d queues of %d", MOST_QUEUES, len(names))
        return names[:MOST_QUEUES]

    async def _follow_new(self) -> None:
        try:
            for name in self._readers:
                await self._follow_parts(name)
            for name in await self._listed() if self._queue is None else ():
                if name not in self._readers and len(self._readers) < MOST_QUEUES:
                    await self._follow(name, is_new=True)
        except GlideMQError as error:
            level = repeated_level(self._state.transport, error)
            _log.log(level, "gateway: /events: listing the queues failed: %s", error)

    async def _follow(self, name: str, *, is_new: bool) -> None:
        await self._state.follow(name, self._news)  # notified from here on
        try:
            queue = await self._state.queue(name)
            await queue._plain_link()
            found = _Readers(queue, queue._partitions)
            for part in queue._parts:
                await self._add_reader(found, part, "0-0" if is_new else None)
        except BaseException:
            self._state.unfollow(name, self._news)
            raise
        self._readers[name] = found
        self._news.add(name)  # it may have events already

    async def _follow_parts(self, name: str) -> None:
        """Read the events of new partitions of a queue from the time when they were added."""
        found = self._readers[name]
        partitions = found.queue._partitions
        if partitions is None or partitions is found.partitions:
            return
        since = f"{max(0, partitions.layout.number - _REPEATED_MS)}-0"
        for part in found.queue._parts:
            if part.name not in found.readers:
                await self._add_reader(found, part, since)
        found.partitions = partitions
        self._news.add(name)

    async def _add_reader(self, readers: _Readers, part: Queue[Any, Any], since: str | None) -> None:
        """Read the events of a queue or partition after the last one of the client, or else after ``since`` or now."""
        link = await part._connected()
        reader = EventReader(link.transport, link.keys.events)
        if self._last is not None:
            ms, number, of_part = self._last
            await reader.resume(f"{ms}-{number}" if of_part == part.name else f"{max(0, ms - _REPEATED_MS)}-0")
        elif since is not None:
            reader.position = since
        else:
            await reader.resolve()
        readers.readers[part.name] = reader, WireEvents(part, self._state.ids)

    async def _read(self, name: str) -> AsyncIterator[tuple[str, list[Event]]]:
        for part, (reader, wire) in tuple(self._readers[name].readers.items()):
            async for batch in self._read_part(name, part, reader, wire):
                yield batch

    async def _read_part(
        self, name: str, part: str, reader: EventReader, wire: WireEvents
    ) -> AsyncIterator[tuple[str, list[Event]]]:
        while not self._is_ended:
            try:
                events = await reader.page(_PAGE)
            except GlideMQError as error:
                level = repeated_level(self._state.transport, error)
                _log.log(level, "gateway: queue %r: reading events failed: %s", name, error)
                self._news.add(name)
                await asyncio.sleep(_PAUSE_S)
                return
            if not events:
                return
            for event in events:
                event_id = event.id if part == self._queue else f"{event.id}:{part}"
                yield event_id, await _converted(wire, event)


_Reader = tuple[EventReader, WireEvents]


@dataclass
class _Readers:
    """The readers of a queue, by the names of its partitions."""

    queue: Queue[Any, Any]
    partitions: object
    readers: dict[str, tuple[EventReader, WireEvents]] = field(
        default_factory=dict[str, tuple[EventReader, WireEvents]]
    )


async def _converted(wire: WireEvents, event: QueueEvent) -> list[Event]:
    try:
        return await wire.of(event)
    except GlideMQError as error:
        _log.warning("gateway: queue %r: an event was not sent: %s", wire.queue, error)
        return []


async def sent_events(stream: EventStream) -> AsyncIterator[str]:
    """Yield the events of a stream as text; comments while there are none."""
    yield f"retry: 3000\ndata: {_json({'connected': True, 'clientId': str(uuid.uuid4())})}\n\n"
    loop = asyncio.get_running_loop()
    spoke = loop.time()
    async for batch in stream.batches():
        text = "" if batch is None else "".join(_texts(*batch))
        if not text and loop.time() - spoke >= _HEARTBEAT_S:
            text = ":heartbeat\n\n"
        if text:
            yield text
            spoke = loop.time()


def named(event: Event) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the data of an event; pausing a queue has two."""
    kind = str(event["eventType"])
    data = {name: event[name] for name in ("queue", "jobId", "timestamp")}
    data |= {name: event[name] for name in _SHOWN if event.get(name) is not None}
    found = [(f"job:{_NAMES.get(kind, kind)}", data)]
    if kind in ("paused", "resumed"):
        found.insert(0, (f"queue:{kind}", {"queue": event["queue"]}))
    return found


def _texts(event_id: str, events: list[Event]) -> Iterable[str]:
    """Return the events that one of a queue has become; only the last has the id, so that none is lost on resuming."""
    found = [each for event in events for each in named(event)]
    for number, (kind, data) in enumerate(found, 1):
        yield f"id: {event_id}\n" if number == len(found) else ""
        yield f"event: {kind}\ndata: {_json(data)}\n\n"


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(plain(value), separators=(",", ":"))
