"""The events of a partitioned queue: one reader per partition, merged as they come."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from glidemq_py._client.event_reader import EventReader, QueueEvent
from glidemq_py._client.runtime import BLOCKING_RUNTIME, Background, Signal
from glidemq_py._features.partitions.layout import Partition
from glidemq_py.errors import GlideMQError

__all__ = ["BlockingPartitionEvents", "PartitionEvents"]


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


_READ_S: Final = 1.0
_Found = tuple[int, list[QueueEvent] | BaseException]


class BlockingPartitionEvents(PartitionEvents):
    """Reads the events of all partitions for blocking code: a thread per partition waits for them.

    A thread reads again when its events have been returned.

    Args:
        queue_name: Name of the whole queue.
        readers: One reader per partition. Each is closed by its thread: a connection cannot be closed during a read.
    """

    def __init__(self, queue_name: str, readers: Sequence[EventReader]) -> None:
        super().__init__(queue_name, readers)
        self._found: queue.SimpleQueue[_Found | None] = queue.SimpleQueue()
        self._proceed: list[Signal] = [BLOCKING_RUNTIME.signal() for _ in readers]
        self._returned: list[int] = []
        """The partitions whose threads wait until their events have been processed."""
        self._threads: list[Background] = []
        self._closed = False

    async def read(self) -> list[QueueEvent]:
        """See `PartitionEvents.read`. Returns an empty list if it is closed meanwhile."""
        if not self._threads:
            self._threads = [
                BLOCKING_RUNTIME.spawn(self._follow(number), f"glidemq-events-{number}")
                for number in range(len(self._readers))
            ]
        for number in self._returned:
            self._proceed[number].set()
        self._returned.clear()
        found: list[QueueEvent] = []
        failure: BaseException | None = None
        with contextlib.suppress(queue.Empty):
            each = self._found.get(timeout=_READ_S)
            while each is not None:
                number, result = each
                self._returned.append(number)
                if isinstance(result, BaseException):
                    failure = result
                else:
                    found += (self._shown(number, event) for event in result)
                each = self._found.get_nowait()
        if failure is not None and not found and not self._closed:
            raise failure  # one beside events is that of the next read, if it lasts
        return sorted(found, key=lambda event: event.timestamp)

    async def _follow(self, number: int) -> None:
        while not self._closed:
            result: list[QueueEvent] | BaseException
            try:
                result = await self._readers[number].read()
            except Exception as error:
                result = error
            if not result:
                continue
            self._found.put((number, result))
            await self._proceed[number].wait()
            self._proceed[number].clear()
        with contextlib.suppress(GlideMQError):
            await self._readers[number].close()

    async def close(self) -> None:
        """End the threads, which takes a second if they wait for events; do not wait for that. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._found.put(None)
        for each in self._proceed:
            each.set()
        if not self._threads:
            for reader in self._readers:
                await reader.close()
