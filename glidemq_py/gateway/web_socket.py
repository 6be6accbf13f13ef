"""One WebSocket of the HTTP API: commands as JSON texts, and the events of a queue or of all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQError
from glidemq_py.gateway.connection import MAX_RUNNING
from glidemq_py.gateway.event_stream import EVENT_NAMES, EventStream, named
from glidemq_py.gateway.events import Event
from glidemq_py.gateway.execution import execute
from glidemq_py.gateway.http_session import HttpSession, json_text, json_value
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.table import Answer, CommandError, is_list, is_map

__all__ = ["MAX_MESSAGE", "PING_S", "WebSocketSession"]

_log = get_logger(__name__)

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
                for task in (reading, closing):
                    task.cancel()
                await asyncio.gather(reading, closing, return_exceptions=True)
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
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
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
