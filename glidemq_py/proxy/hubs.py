"""Hubs share one source of events among the clients that follow it: events of a queue, messages of a subscription.

A client of a queue is only notified; it reads the events itself, from its own position. So a slow client delays no
other and needs no buffer, and a client that resumes with the id of its last event misses no event that is still kept.

A subscription has one worker in the proxy, however many clients it has, and none without clients: its messages then
stay on the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.blocking_reads import ReadConnection, open_reader
from glidemq_py._client.event_reader import EventReader, QueueEvent
from glidemq_py._client.transport import Transport
from glidemq_py._core.logs import get_logger
from glidemq_py._features.broadcast.message import Message
from glidemq_py._features.broadcast.worker import BroadcastWorker
from glidemq_py.errors import ClosedError, GlideMQConnectionError, GlideMQError
from glidemq_py.proxy.responses import frame

__all__ = ["EventHub", "SubscriptionHub"]

_log = get_logger("glidemq_py.proxy")

_PAGE: Final = 200
_REDELIVERY_MS: Final = 1
_PAUSE_S: Final = 1.0
_POLL_S: Final = 5.0


class EventHub:
    """Notifies the listeners of one queue of new events.

    Args:
        queue: the queue to watch.
        gone: called when the last listener has left.
    """

    def __init__(self, queue: Queue[Any, Any], gone: Callable[[], object]) -> None:
        self._queue = queue
        self._gone = gone
        self._news: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._dedicated: ReadConnection | None = None

    async def follow(self, last_id: str | None) -> AsyncIterator[QueueEvent]:
        """Yield the events after ``last_id``, or new events if it is None, until the hub is closed."""
        news = asyncio.Event()
        self._news.add(news)
        try:
            link = await self._queue._connected()
            if self._task is None or self._task.done():
                self._ready.clear()
                self._task = asyncio.create_task(self._watch(link.transport, link.keys.events))
            await self._ready.wait()
            reader = EventReader(link.transport, link.keys.events)
            if last_id is None:
                await reader.resolve()
            else:
                reader.position = last_id
            while True:
                news.clear()
                while events := await self._page(reader):
                    for event in events:
                        yield event
                if self._task.done():
                    return
                try:
                    async with asyncio.timeout(_POLL_S):
                        await news.wait()
                except TimeoutError:
                    continue
        finally:
            self._news.discard(news)
            if not self._news:
                await self.close()

    async def _page(self, reader: EventReader) -> list[QueueEvent]:
        """Return the next events; retry while the server is unreachable, which `_watch` logs."""
        while True:
            try:
                return await reader.page(_PAGE)
            except GlideMQConnectionError:
                if self._task is None or self._task.done():
                    raise
                await asyncio.sleep(_PAUSE_S)

    async def past(self, last_id: str) -> AsyncIterator[QueueEvent]:
        """Yield the existing events after ``last_id``."""
        link = await self._queue._connected()
        reader = EventReader(link.transport, link.keys.events)
        reader.position = last_id
        while events := await reader.page(_PAGE):
            for event in events:
                yield event

    async def _watch(self, transport: Transport, key: str) -> None:
        try:
            self._dedicated = await open_reader(transport)
            reader = EventReader(self._dedicated, key)
            await reader.resolve()
            self._ready.set()
            while True:
                try:
                    if await reader.read():
                        self._notify()
                except ClosedError:
                    return
                except GlideMQError as error:
                    _log.warning("queue %r: reading events failed: %s", self._queue.name, error)
                    await asyncio.sleep(_PAUSE_S)
        except GlideMQError as error:
            _log.warning("queue %r: watching events failed: %s", self._queue.name, error)
        finally:
            self._ready.set()
            self._notify()

    def _notify(self) -> None:
        for news in self._news:
            news.set()

    async def close(self) -> None:
        """Stop watching."""
        self._gone()
        if self._dedicated is not None:
            await self._dedicated.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._notify()


class _Listener:
    """One client; buffers one message, so that at most one is lost with it."""

    def __init__(self, matches: Callable[[str], bool] | None) -> None:
        self.matches = matches
        self.waiting: asyncio.Queue[str] = asyncio.Queue(1)
        self.gone = asyncio.Event()

    async def take(self, text: str) -> bool:
        """Buffer a message as soon as there is room; return False if the client has left."""
        putting = asyncio.ensure_future(self.waiting.put(text))
        leaving = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait((putting, leaving), return_when=asyncio.FIRST_COMPLETED)
            return not leaving.done()
        finally:
            putting.cancel()
            leaving.cancel()


class SubscriptionHub:
    """The clients of one subscription, and its worker while it has clients.

    Args:
        worker_of: creates the worker for a handler.
        gone: called when the last client has left.
    """

    def __init__(self, worker_of: Callable[[Any], BroadcastWorker], gone: Callable[[], object]) -> None:
        self._worker = worker_of(self._deliver)
        self._gone = gone
        self._listeners: set[_Listener] = set()
        self._starting = asyncio.Lock()
        self._started = False

    async def _deliver(self, message: Message[Any, Any]) -> None:
        listeners = [each for each in self._listeners if each.matches is None or each.matches(message.subject)]
        text = frame("message", _shape(message))
        taken = await asyncio.gather(*(listener.take(text) for listener in listeners))
        if not any(taken) and (listeners or not self._listeners):
            # All clients left after it was fetched: keep it for the next client.
            message.move_to_delayed(_REDELIVERY_MS)

    async def follow(self, matches: Callable[[str], bool] | None) -> AsyncIterator[str]:
        """Yield the matching messages as server-sent events, from now on."""
        listener = _Listener(matches)
        self._listeners.add(listener)
        try:
            async with self._starting:
                if not self._started:
                    await self._worker.start()
                    self._started = True
            while True:
                yield await listener.waiting.get()
        finally:
            listener.gone.set()
            self._listeners.discard(listener)
            if not self._listeners:
                await self.close()

    async def close(self) -> None:
        """Stop the worker; idempotent."""
        self._gone()
        await self._worker.close()


def _shape(message: Message[Any, Any]) -> dict[str, Any]:
    try:
        data = message.data
    except GlideMQError:
        data = None
    return {"id": message.id, "subject": message.subject, "data": data, "timestamp": message.timestamp}
