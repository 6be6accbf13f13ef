"""Hubs share one source of events among the clients that follow it: events of a queue, messages of a subscription.

A client of a queue is only notified; it reads the events itself, from its own position. So a slow client delays no
other and needs no buffer, and a client that resumes with the id of its last event misses no event that is still kept.
A partitioned queue has a hub per partition; a client reads those of all partitions, or of the one that has its job.

A subscription has one worker in the proxy, however many clients it has, and none without clients: its messages then
stay on the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, NamedTuple

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.event_reader import EventReader, News, QueueEvent
from glidemq_py._client.failures import repeated_level
from glidemq_py._client.shared_reads import ReadConnection, open_reader
from glidemq_py._core.logs import get_logger
from glidemq_py._job.message import Message
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.broadcasts import BroadcastWorker
from glidemq_py.errors import ClosedError, GlideMQConnectionError, GlideMQError
from glidemq_py.proxy.responses import frame

_log = get_logger("glidemq_py.proxy")

_PAGE: Final = 200
_REDELIVERY_MS: Final = 1
_PAUSE_S: Final = 1.0
_POLL_S: Final = 5.0
_EARLIER_MS: Final = 5_000
"""How long before the layout was made the first event of a new partition may be, by the clocks of other machines."""


class EventHub:
    """Notifies the clients of one queue or partition of new events.

    Args:
        link: the queue or partition to watch.
        unused: called when the last client has left; it closes the hub.
    """

    def __init__(self, link: QueueLink, unused: Callable[[EventHub], object]) -> None:
        self._link = link
        self.name = link.keys.name
        self._unused = unused
        self._clients: set[News] = set()
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._dedicated: ReadConnection | None = None

    @property
    def is_watching(self) -> bool:
        """Whether clients are notified."""
        return self._task is not None and not self._task.done()

    def join(self, news: News) -> None:
        """Notify a client of all events after `ready`. Does not wait: a hub without clients is closed."""
        self._clients.add(news)
        if not self.is_watching:
            self._ready.clear()
            self._task = asyncio.create_task(self._watch())

    async def ready(self) -> None:
        """Wait until the clients are notified."""
        await self._ready.wait()

    def leave(self, news: News) -> None:
        """Stop notifying a client. Does not wait: the task of a request may be canceled several times."""
        self._clients.discard(news)
        if not self._clients:
            self._unused(self)

    async def _watch(self) -> None:
        try:
            self._dedicated = await open_reader(self._link.transport)
            reader = EventReader(self._dedicated, self._link.keys.events)
            await reader.resolve()
            self._ready.set()
            while True:
                try:
                    if await reader.read():
                        self._notify()
                except ClosedError:
                    return
                except GlideMQError as error:
                    level = repeated_level(self._link.transport, error)
                    _log.log(level, "queue %r: reading events failed: %s", self.name, error)
                    await asyncio.sleep(_PAUSE_S)
        except GlideMQError as error:
            _log.warning("queue %r: watching events failed: %s", self.name, error)
        finally:
            self._ready.set()
            self._notify()

    def _notify(self) -> None:
        for news in self._clients:
            news.add(self.name)

    async def close(self) -> None:
        """Stop watching."""
        if self._dedicated is not None:
            await self._dedicated.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._notify()


class _Followed(NamedTuple):
    """A queue or partition that a client follows."""

    number: int
    link: QueueLink
    hub: EventHub
    reader: EventReader


class EventFeed:
    """The events of a queue for one client: those of all partitions, merged as they come, or of one partition.

    The id of an event is its place: the id of the last event of each partition, separated by commas.

    Args:
        queue: the queue.
        hub_of: returns the hub of a queue or partition.
        partition: the partition whose events are followed; None = all.
    """

    def __init__(
        self, queue: Queue[Any, Any], hub_of: Callable[[QueueLink], EventHub], partition: int | None = None
    ) -> None:
        self._queue = queue
        self._hub_of = hub_of
        self._partition = partition
        self._news = News()
        self._followed: dict[str, _Followed] = {}
        self._positions: list[str] = []
        """Id of the last event of each partition that was returned."""
        self._parts: Sequence[Queue[Any, Any]] = ()
        """The partitions from which those to follow were chosen."""

    async def follow(self, last_id: str | None) -> AsyncGenerator[QueueEvent]:
        """Yield the events after ``last_id``, or new events if it is None, until the proxy closes."""
        try:
            await self._choose(None if last_id is None else last_id.split(","))
            names: set[str] = set()
            while True:
                async with aclosing(self._read(names)) as events:
                    async for event in events:
                        yield event
                if not all(each.hub.is_watching for each in self._followed.values()):
                    return
                names = await self._news.take(_POLL_S)
                if self._partition is None and await self._queue._current_parts() != self._parts:
                    await self._choose([])
        finally:
            for each in self._followed.values():
                each.hub.leave(self._news)

    async def past(self, last_id: str) -> AsyncGenerator[QueueEvent]:
        """Yield the existing events of one partition after ``last_id``."""
        parts, number = await self._queue._current_parts(), self._partition or 0
        link = await parts[number]._connected()
        reader = EventReader(link.transport, link.keys.events)
        reader.position = self._position(number, last_id.split(","))
        while events := await reader.page(_PAGE):
            for event in events:
                yield _shown(link, event)

    async def _choose(self, last: Sequence[str] | None) -> None:
        """Follow the present partitions; those that are new from ``last`` on, or from now on if it is None."""
        before, self._parts = self._followed, await self._queue._current_parts()
        numbers = range(len(self._parts)) if self._partition is None else (self._partition,)
        self._followed = {}
        for number in numbers:
            link = await self._parts[number]._connected()
            known = before.pop(link.keys.name, None)
            hub = self._hub_of(link) if known is None else known.hub
            reader = EventReader(link.transport, link.keys.events) if known is None else known.reader
            self._followed[link.keys.name] = _Followed(number, link, hub, reader)
            hub.join(self._news)
        added = [each for each in self._followed.values() if not each.reader.position]
        await asyncio.gather(*(each.hub.ready() for each in added))
        for each in before.values():
            each.hub.leave(self._news)
        for each in added:
            if last is None:
                await each.reader.resolve()
            else:
                each.reader.position = self._position(each.number, last)
        self._positions = [each.reader.position for each in self._followed.values()]

    def _position(self, number: int, last: Sequence[str]) -> str:
        """Return where to start in a partition; ids are times, so one is good for all partitions."""
        if len(last) == 1:
            return last[0]
        if number < len(last):
            return last[number]
        partitions = self._queue._partitions
        return "0-0" if partitions is None else f"{max(0, partitions.layout.number - _EARLIER_MS)}-0"

    async def _read(self, names: set[str]) -> AsyncGenerator[QueueEvent]:
        """Yield the events of these partitions, or of all if the set is empty, until there are no more."""
        asked: list[_Followed] = [each for name, each in self._followed.items() if not names or name in names]
        while asked:
            pages: list[list[QueueEvent]] = await asyncio.gather(*map(self._page, asked))
            found = [(each, event) for each, page in zip(asked, pages, strict=True) for event in page]
            for each, event in sorted(found, key=lambda pair: pair[1].timestamp):
                if self._partition is not None:
                    yield _shown(each.link, event)
                    continue
                self._positions[each.number] = event.id
                yield replace(_shown(each.link, event), id=",".join(self._positions))
            asked = [each for each, page in zip(asked, pages, strict=True) if page]

    async def _page(self, followed: _Followed) -> list[QueueEvent]:
        """Return the next events; none while the server is unreachable, which the hub logs."""
        try:
            return await followed.reader.page(_PAGE)
        except GlideMQConnectionError:
            if not followed.hub.is_watching:
                raise
            asyncio.get_running_loop().call_later(_PAUSE_S, self._news.add, followed.link.keys.name)
            return []


def _shown(link: QueueLink, event: QueueEvent) -> QueueEvent:
    """Return the event of a queue, or of a partition with the job id in the whole queue."""
    part = link.partition
    return event if part is None else replace(event, job_id=part.id_in_event(event.event, event.job_id))


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
