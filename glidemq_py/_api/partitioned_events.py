"""The events of a partitioned queue: one reader per partition, merged as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from glidemq_py._client.event_reader import EventReader, QueueEvent
from glidemq_py._partitions.layout import Partition


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
