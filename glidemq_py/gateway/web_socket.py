"""WebSockets of the HTTP API, and the events of one queue or of all, also as server-sent events.

The id of an event is its place in the event stream of its queue, with the partition of a partitioned queue, so any
gateway resumes what another one sent. A client reads the events from its own position and is only notified of new ones:
a slow client needs no buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from glidemq_py._client.event_reader import EventReader, News, QueueEvent
from glidemq_py._client.failures import repeated_level
from glidemq_py._client.runtime import stop_task
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQError
from glidemq_py.gateway.commands import execute
from glidemq_py.gateway.connection import MAX_RUNNING
from glidemq_py.gateway.events import Event, WireEvents
from glidemq_py.gateway.http_routes import HttpSession, json_text, json_value
from glidemq_py.gateway.names import listed_queues
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.table import Answer, CommandError, is_list, is_map
from glidemq_py.gateway.values import plain

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
        self._readers: dict[str, dict[str, _Reader]] = {}
        """By queue and partition."""
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
                await self._read_parts(name, "0-0")
            for name in await self._listed() if self._queue is None else ():
                if name not in self._readers and len(self._readers) < MOST_QUEUES:
                    await self._follow(name, is_new=True)
        except GlideMQError as error:
            level = repeated_level(self._state.transport, error)
            _log.log(level, "gateway: /events: listing the queues failed: %s", error)

    async def _follow(self, name: str, *, is_new: bool) -> None:
        await self._state.follow(name, self._news)  # notified from here on
        self._readers[name] = {}
        try:
            await (await self._state.queue(name))._plain_link()
            await self._read_parts(name, "0-0" if is_new else None)
        except BaseException:
            del self._readers[name]
            self._state.unfollow(name, self._news)
            raise

    async def _read_parts(self, name: str, since: str | None) -> None:
        """Read the new partitions of a queue after the last event of the client, or else after ``since`` or now."""
        readers = self._readers[name]
        for part in (await self._state.queue(name))._parts:
            if part.name in readers:
                continue
            link = await part._connected()
            reader = EventReader(link.transport, link.keys.events)
            if self._last is not None:
                ms, number, of_part = self._last
                await reader.resume(f"{ms}-{number}" if of_part == part.name else f"{max(0, ms - _REPEATED_MS)}-0")
            elif since is not None:
                reader.position = since
            else:
                await reader.resolve()
            readers[part.name] = reader, WireEvents(part, self._state.ids)
            self._news.add(name)  # it may have events already

    async def _read(self, name: str) -> AsyncIterator[tuple[str, list[Event]]]:
        for part, (reader, wire) in tuple(self._readers[name].items()):
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


MAX_MESSAGE: Final = 1_048_576
"""Largest message of a client, in bytes or characters; a larger one closes the connection with the code 1009."""
PING_S: Final = 30.0
"""Interval of pings, and maximum time for their answers."""
_GOING_AWAY: Final = 1001
_CATEGORIES: Final = frozenset(name.partition(":")[0] for name in EVENT_NAMES)
_OF_TCP: Final = ("SubscribeEvents", "UnsubscribeEvents")


class WebSocketSession(HttpSession):
    """Runs the commands of a client, and sends it events.

    At first the events have the form of the TCP protocol. Once the client has named events with `Subscribe`, it gets
    only those, in the form of the HTTP API.

    Args:
        state: The gateway.
        queue: Name of the queue in this package whose events are sent; None for all queues.
        socket: The connection.
    """

    def __init__(self, state: GatewayState, queue: str | None, socket: WebSocket) -> None:
        super().__init__(state)
        self._queue, self._socket = queue, socket
        self._named: list[str] | None = None
        self._stream: EventStream | None = None
        self._pump: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        self._free = asyncio.Semaphore(MAX_RUNNING)
        self._closing = asyncio.Event()

    async def serve(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Accept the connection, and serve the client until it leaves, or `end`.

        Args:
            headers: Those of the answer.

        Raises:
            GlideMQError: If the server of the queues does not answer; the connection was not accepted.
        """
        try:
            await self._start_events()  # before the client can know that it is connected
            try:
                await self._socket.accept(headers=headers)
            except OSError:
                return  # the client has left
            reading = asyncio.create_task(self._read_messages())
            closing = asyncio.create_task(self._closing.wait())
            try:
                await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    await self._drain()
            finally:
                await stop_task(reading, closing)
        finally:
            await self._stop_events()
            for running in self._running:
                running.cancel()
            self.release()

    def end(self) -> None:
        """Let `serve` return after the running commands."""
        self._closing.set()

    async def _drain(self) -> None:
        """Answer the running commands, and close the connection."""
        self.end_polls()
        await self._stop_events()
        if self._running:
            await asyncio.wait(self._running, timeout=self.state.options.shutdown_timeout / 1_000)
        async with self._sending:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await self._socket.close(_GOING_AWAY, "The gateway is closing")

    # -- commands --------------------------------------------------------------------------------------------

    async def _read_messages(self) -> None:
        """Start the commands of the client until it leaves."""
        while True:
            message = await self._socket.receive()
            if message["type"] != "websocket.receive":
                return
            text = message.get("text")
            await self._command(message["bytes"] if text is None else text)

    async def _command(self, content: bytes | str) -> None:
        is_allowed = self._limit is None or self._limit.allows()
        try:
            value = json_value(content)
        except ValueError:
            value = None
        if value is None:
            await self._reply({}, {"ok": False, "error": "Invalid JSON"})
            return
        given: Mapping[str, Any] = value if is_map(value) else {}
        name = given.get("cmd")
        if not is_allowed:
            await self._reply(given, {"ok": False, "error": "Rate limit exceeded"})
        elif not isinstance(name, str) or not name:
            await self._reply(given, {"ok": False, "error": "Invalid command"})
        elif name in ("Subscribe", "Unsubscribe"):
            await self._reply(given, await self._changed_names(name, given))
        else:
            await self._free.acquire()  # the client is not read while so many commands run
            task = asyncio.create_task(self._run_one(name, given))
            self._running.add(task)
            task.add_done_callback(self._finished)

    async def _run_one(self, name: str, given: Mapping[str, Any]) -> None:
        if name in _OF_TCP:
            answer: Answer = {"ok": False, "error": f"Unknown command: {name}"}
        else:
            answer = await execute(self, name, given)
        await self._reply(given, answer)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._free.release()

    async def _until_read(self) -> None:
        async with self._sending:
            pass

    async def _reply(self, given: Mapping[str, Any], answer: Answer) -> None:
        if "reqId" in given:
            answer["reqId"] = given["reqId"]
        await self._say(answer)

    async def _say(self, value: Any) -> None:
        text = json_text(value)
        async with self._sending:  # one text at a time waits for a client that does not read
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it has left, or the socket was closed
                await self._socket.send_text(text)

    # -- events ----------------------------------------------------------------------------------------------

    async def _changed_names(self, command: str, given: Mapping[str, Any]) -> Answer:
        events = given.get("events")
        before = self._named or []
        try:
            if command == "Subscribe":
                checked = _names(events)
                names = [*before, *(name for name in checked if name not in before)]
            else:
                names = [name for name in before if name not in events] if is_list(events) and events else []
            if names:
                await self._start_events()
            else:
                await self._stop_events()
        except (CommandError, GlideMQError) as error:
            return {"ok": False, "error": str(error)}
        self._named = names
        return {"ok": True, "subscribed": names}

    async def _start_events(self) -> None:
        if self._stream is not None:
            return
        stream = self._stream = EventStream(self.state, self._queue, None)
        try:
            await stream.start()
        except BaseException:
            await self._stop_events()
            raise
        self._pump = asyncio.create_task(self._send_events(stream))

    async def _stop_events(self) -> None:
        stream, pump, self._stream, self._pump = self._stream, self._pump, None, None
        if stream is not None:
            stream.end()
        if pump is not None:
            await stop_task(pump)
        if stream is not None:
            stream.close()

    async def _send_events(self, stream: EventStream) -> None:
        """Send the events until the end of the stream. While the client does not read, no event is read."""
        try:
            async for batch in stream.batches():
                for event in () if batch is None else batch[1]:
                    await self._send_event(event)
        except Exception:
            _log.exception("gateway: the events of a WebSocket ended")
            self.end()

    async def _send_event(self, event: Event) -> None:
        if self._named is None:
            await self._say(event)
            return
        for name, data in named(event):
            if any(name == each or each in ("*", f"{name.partition(':')[0]}:*") for each in self._named):
                members = {member: value for member, value in data.items() if member != "timestamp"}
                await self._say({"event": name, "ts": event["timestamp"], "data": members})


def _names(given: Any) -> list[str]:
    if not is_list(given) or not given:
        raise CommandError("events must be a non-empty array")
    invalid = [each for each in given if not _is_name(each)]
    if invalid:
        raise CommandError(f"Invalid: {', '.join(map(str, invalid))}")
    return list(dict.fromkeys(given))


def _is_name(name: Any) -> bool:
    if not isinstance(name, str):
        return False
    category, _, kind = name.partition(":")
    return name == "*" or name in EVENT_NAMES or (kind == "*" and category in _CATEGORIES)
