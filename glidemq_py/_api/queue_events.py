"""`QueueEvents`: reads the event stream of a queue without gaps.

Events are notifications, not state: the stream keeps about the last 1000 (see `Queue.settings.set_event_retention`).
To get a job's result, read the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar, cast

from glidemq_py._client.event_reader import QUEUE_EVENTS, EventEntry, EventReader, QueueEvent
from glidemq_py._client.failures import repeated_level
from glidemq_py._client.runtime import ASYNC_RUNTIME, Background, Runtime, call_apart
from glidemq_py._client.shared_reads import ReadConnection, open_reader, shares_client
from glidemq_py._client.transport import Connection, Transport, check_connection, open_transport
from glidemq_py._core.checks import check_callable, check_choice
from glidemq_py._core.keys import DEFAULT_PREFIX, QueueKeys, validate_prefix, validate_queue_name
from glidemq_py._core.logs import ForeignFailures, RepeatedFailure, get_logger
from glidemq_py._core.misuse import AsyncOnly, known_arguments
from glidemq_py._core.times import monotonic
from glidemq_py._partitions.layout import Partition, split_partition_id
from glidemq_py._partitions.stored import read_layout
from glidemq_py.errors import (
    ClosedError,
    EventLoopError,
    GlideMQError,
    GlideMQValidationError,
)

__all__ = ["QueueEvent", "QueueEvents"]

_log = get_logger(__name__)

T = TypeVar("T")
_BLOCK_MS = 1_000
_PAGE = 200
_MAX_PAUSE_S = 5.0
_FIRST = "0-0"
_LAYOUT_S = 10.0
_ENTRY_ID = re.compile(r"[0-9]+(-[0-9]+)?")
_REMEDY = "make another QueueEvents for another reader"
_REMEDY_CLOSED = "make another QueueEvents in each event loop"

Listener = Callable[[QueueEvent], Awaitable[None] | None]


class QueueEvents(AsyncOnly):
    """Receive the events of a queue, by iteration or with listeners.

    ``async for event in QueueEvents("emails"): ...`` yields `QueueEvent` objects from the start of the iteration.
    Alternatively, register listeners with `on` and use the object in an ``async with`` block. No event after the start
    is missed: after a lost connection, reading continues where it stopped.

    Use one object per reader: either listeners or one iteration. Leaving the iteration closes the object. It is bound
    to the event loop of its first use; use in another loop raises `EventLoopError`.

    Args:
        name: Name of the queue.
        connection: A URL, `ConnectionOptions`, an existing GLIDE client, or None. None means ``GLIDEMQ_URL`` if set,
            otherwise the server of `glidemq dev`, or a private one. A client is only the template for a separate
            connection.
        prefix: First part of every key.
        last_event_id: Start after this event: the id of an event, or the property of this name; None or "$" starts now.

    Raises:
        GlideMQValidationError: If a name or id is invalid.
    """

    name: str
    """Name of the queue."""

    @known_arguments("queue")
    def __init__(
        self,
        name: str,
        connection: Connection = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        last_event_id: str | None = None,
    ) -> None:
        self._keys = QueueKeys(validate_prefix(prefix), validate_queue_name(name))
        if connection is not None:
            check_connection(connection, blocking=self._runtime.is_blocking)
        self.name = name
        self._connection = connection
        self._start = _checked_ids(last_event_id)
        self._positions: list[str] = []
        """Id of the last event of each partition that was returned."""
        self._listeners: dict[str, list[Listener]] = {}
        self._reader: EventReader | PartitionEvents | None = None
        self._connections: list[ReadConnection] = []
        """Closed in reverse: readers before the transport whose client they share."""
        self._next_look = 0.0
        """When the layout of a queue without partitions is read again."""
        self._failures = RepeatedFailure(_log, f"queue {name!r}: reading events")
        self._of_listeners = ForeignFailures(_log)
        self._task: Background | None = None
        self._loop: object = None
        self._entered = False
        self._iterating = False
        self._closed = False

    @property
    def last_event_id(self) -> str | None:
        """Where to continue after the last event that was returned: the ``last_event_id`` of another `QueueEvents`.

        It is the id of that event; in a partitioned queue, the ids of the last event of each partition. None before the
        start.
        """
        return ",".join(self._positions or self._start or ()) or None

    def on(self, event: str, listener: Listener) -> Listener:
        """Register a listener for an event.

        Args:
            event: Name of the event, such as "completed"; "*" is every event.
            listener: Function or coroutine function, called with the `QueueEvent`. Its errors are logged.

        Returns:
            The listener.

        Raises:
            GlideMQValidationError: If the event does not exist, or the listener is not callable.
            GlideMQError: If the object is being iterated over.
        """
        check_choice("event", event, (*QUEUE_EVENTS, "*"))
        check_callable("listener", listener, "event")
        self._reject_while_iterating()
        self._listeners.setdefault(event, []).append(listener)
        if self._entered:
            self._listen()
        return listener

    def off(self, event: str, listener: Listener) -> None:
        """Remove a listener; no effect if it is not registered."""
        with contextlib.suppress(ValueError):
            self._listeners.get(event, []).remove(listener)

    async def wait_until_ready(self) -> None:
        """Connect and set the start position: all later events will be received.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
            ClosedError: If the object is closed.
            EventLoopError: If another event loop uses or used the object.
        """
        if self._closed:
            self._check_loop()
            raise ClosedError(f"events of queue {self.name!r}: closed; create another QueueEvents")
        if self._reader is not None:
            self._check_loop()
            return
        self._loop = self._runtime.current_loop()
        try:
            reader = await self._runtime.there(self._connect())
            if self._closed:
                raise ClosedError(f"events of queue {self.name!r}: closed while they connected")
        except BaseException:
            await self._runtime.there(self._disconnect())
            raise
        self._reader = reader

    async def _connect(self) -> EventReader | PartitionEvents:
        opened = await open_transport(self._connection)
        self._connections.append(opened)
        layout = await read_layout(opened, self._keys) if self._reads_layout else None
        self._next_look = monotonic() + _LAYOUT_S
        if layout is not None:
            return await self._partition_events(opened, layout.names)
        # A shared client is used for other commands too, which a blocking read must not delay.
        shared = shares_client(opened) or hasattr(self._connection, "fcall")
        reader = EventReader(await self._reader_over(opened) if shared else opened, self._keys.events)
        await self._set_positions([reader])
        return reader

    async def _find_partitions(self, reader: EventReader) -> None:
        """Read the partitions too, from their first event on, if the queue has been created with some meanwhile."""
        self._next_look = monotonic() + _LAYOUT_S
        with contextlib.suppress(GlideMQError):  # it is read again later
            opened = cast("Transport", self._connections[0])
            layout = await read_layout(opened, self._keys)
            if layout is not None:
                self._start = (reader.position, _FIRST)
                self._reader = await self._partition_events(opened, layout.names)

    async def _partition_events(self, opened: Transport, names: Sequence[str]) -> PartitionEvents:
        readers = [
            EventReader(await self._reader_over(opened), QueueKeys(self._keys.prefix, name).events) for name in names
        ]
        await self._set_positions(readers)
        return PartitionEvents(self.name, readers)

    async def _set_positions(self, readers: Sequence[EventReader]) -> None:
        """Let the readers start where `last_event_id` says."""
        start = self._start
        for number, reader in enumerate(readers):
            if start is None:
                await reader.resolve()
            elif len(start) == 1:
                reader.position = start[0]  # ids are times, so one is good for all partitions
            else:
                reader.position = start[number] if number < len(start) else _FIRST
        self._positions = [reader.position for reader in readers]

    def _returned(self, event: QueueEvent) -> None:
        number, entry = split_partition_id(event.id)
        self._positions[number] = entry

    async def _reader_over(self, shared: Transport) -> ReadConnection:
        connection = await open_reader(shared)
        self._connections.append(connection)
        return connection

    async def _disconnect(self) -> None:
        here = self._loop is asyncio.get_running_loop()
        try:
            while here and self._connections:
                await self._connections.pop().close()
        finally:  # in another event loop, or if closing was cancelled
            while self._connections:
                self._connections.pop().abandon()

    def _check_loop(self) -> None:
        """Raise EventLoopError if another event loop reads or read these events."""
        if self._reader is None or self._loop is self._runtime.current_loop():
            return
        subject = f"events of queue {self.name!r}"
        if self._closed:
            # Leaving the iteration closed them, possibly at the end of their event loop.
            raise EventLoopError(subject, "they were read in another event loop and are closed", _REMEDY_CLOSED)
        raise EventLoopError(subject, "another event loop reads them", _REMEDY)

    _runtime: Runtime = ASYNC_RUNTIME
    _reads_layout = True
    """False to read only the events of the partition that has the name."""

    async def __aiter__(self) -> AsyncIterator[QueueEvent]:
        if self._task is not None and not self._closed:
            raise GlideMQError(f"events of queue {self.name!r}: already read by listeners; {_REMEDY}")
        self._reject_while_iterating()
        self._iterating = True
        try:
            await self.wait_until_ready()
        except BaseException:
            self._iterating = False
            raise
        try:
            while not self._closed:
                for event in await self._read():
                    self._returned(event)
                    yield event
        finally:
            await self.close()

    async def _read(self) -> list[QueueEvent]:
        """Read once; if the connection is down, retry with growing pauses."""
        return await self._runtime.there(self._read_here())

    async def _read_here(self) -> list[QueueEvent]:
        assert self._reader is not None
        if self._reads_layout and isinstance(self._reader, EventReader) and monotonic() >= self._next_look:
            await self._find_partitions(self._reader)
        return await self._retried(self._reader, self._reader.read)

    async def _read_entries(self) -> list[EventEntry]:
        """Read once, as `_read` does, of a queue without partitions, or of one partition."""
        assert isinstance(self._reader, EventReader)
        return await self._retried(self._reader, self._reader.entries)

    async def _retried(
        self, reader: EventReader | PartitionEvents, read: Callable[[], Awaitable[list[T]]]
    ) -> list[T]:  # fmt: skip
        pause = 0.05
        while not self._closed:
            try:
                found = await read()
            except ClosedError:
                break
            except EventLoopError:
                raise
            except GlideMQError as error:
                self._failures.failed(error, repeated_level(next(iter(self._connections), None), error))
            else:
                self._failures.succeeded()
                return found
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, _MAX_PAUSE_S)
            with contextlib.suppress(GlideMQError):
                await reader.check_rewound()
        return []

    async def __aenter__(self) -> Self:
        await self.wait_until_ready()
        self._entered = True
        if self._listeners:
            self._listen()
        return self

    def _reject_while_iterating(self) -> None:
        if self._iterating and not self._closed:
            raise GlideMQError(f"events of queue {self.name!r}: already read by an iteration; {_REMEDY}")

    def _listen(self) -> None:
        self._reject_while_iterating()
        self._check_loop()
        if self._task is None and not self._closed:
            self._task = self._runtime.spawn(self._dispatch(), f"glidemq-events-{self.name}")

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<QueueEvents {self.name!r}>"

    async def _dispatch(self) -> None:
        while not self._closed:
            for event in await self._read():
                self._returned(event)
                for listener in [*self._listeners.get(event.event, ()), *self._listeners.get("*", ())]:
                    await self._notify(listener, event)

    async def _notify(self, listener: Listener, event: QueueEvent) -> None:
        try:
            answer: Any = call_apart(listener, event)
            if inspect.isawaitable(answer):  # in a task of its own, which it may cancel
                await (answer if self._runtime.is_blocking else asyncio.ensure_future(answer))
        except BaseException as error:
            if self._task is not None and self._task.is_cancelled():
                raise
            text = "queue %r: listener for %r events failed"
            self._of_listeners.log(event.event, error, text, self.name, event.event)

    async def close(self) -> None:
        """Stop reading and close the connection. Idempotent; may be called from any event loop."""
        self._closed = True
        await self._runtime.there(self._close_here())
        task = self._task
        if task is not None and not task.is_current():
            await task.stop()

    async def _close_here(self) -> None:
        if isinstance(self._reader, PartitionEvents) and self._loop is asyncio.get_running_loop():
            await self._reader.close()
        await self._disconnect()


def _checked_ids(value: object) -> tuple[str, ...] | None:
    """Return the ids of ``last_event_id``, one or one per partition; None to start now."""
    if value is None or value == "$":
        return None
    ids = str(value).split(",")
    if not all(map(_ENTRY_ID.fullmatch, ids)):
        problem = "must be a stream entry id such as '1795240398325-0'"
        if "||" in str(value):
            problem += "; in a partitioned queue, use `QueueEvents.last_event_id` instead of the id of an event"
        raise GlideMQValidationError("last_event_id", value, problem)
    return tuple(ids)


# -- readers of the events of partitions, merged ------------------------------------------------------------


class PartitionEvents:
    """Reads the events of all partitions; it has the interface of `EventReader`.

    Events of one partition keep their order. Those that are returned together are in the order of their times.

    Args:
        queue_name: Name of the whole queue.
        readers: One reader per partition.
    """

    def __init__(self, queue_name: str, readers: Sequence[EventReader]) -> None:
        self._parts = [Partition(number, queue_name) for number in range(len(readers))]
        self._readers = readers
        self._reading: dict[int, asyncio.Task[list[QueueEvent]]] = {}

    async def read(self) -> list[QueueEvent]:
        """Return new events, waiting up to a second for one. Raises the errors of `EventReader.read`."""
        for number, reader in enumerate(self._readers):
            if number not in self._reading:
                self._reading[number] = asyncio.create_task(reader.read(), name=f"glidemq-events-{number}")
        await asyncio.wait(self._reading.values(), return_when=asyncio.FIRST_COMPLETED)
        ended = [number for number, task in self._reading.items() if task.done()]
        found: list[QueueEvent] = []
        for number in ended:
            if self._reading[number].exception() is None:
                found += (self._shown(number, event) for event in self._reading.pop(number).result())
        if not found:
            for number in ended:
                if number in self._reading:
                    self._reading.pop(number).result()  # raises its error; the others are raised later
        return sorted(found, key=lambda event: event.timestamp)

    def _shown(self, number: int, event: QueueEvent) -> QueueEvent:
        """Return the event with ids of the whole queue."""
        part = self._parts[number]
        return replace(event, id=part.id_of(event.id), job_id=part.id_in_event(event.event, event.job_id))

    async def check_rewound(self) -> None:
        """See `EventReader.check_rewound`."""
        for reader in self._readers:
            await reader.check_rewound()

    async def close(self) -> None:
        """Stop the reads that wait."""
        reading = list(self._reading.values())
        self._reading.clear()
        for task in reading:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*reading, return_exceptions=True)
