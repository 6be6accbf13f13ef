"""The calls for queues whose worker sends no heartbeats: registrations, and looking for changes of the queue.

All workers of an event loop that share a client share these calls, so their number per second does not depend on the
number of queues or workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from glidemq_py._client.runtime import stop_task
from glidemq_py._core.logs import get_logger
from glidemq_py._worker.wake_channel import WakeChannels

REGISTERED_S: Final = 60.0
"""Time between two registrations with a queue; longer for many queues."""
_REGISTRATIONS_PER_S: Final = 1.5
"""Maximum number of registrations of a process per second, except for the first with each queue."""
_FIRST_PER_S: Final = 50
EXAMINED_S: Final = 8.0
"""Time between two reads of a queue's partitions and failure policy, which may be new; longer for many queues."""
_EXAMINED_PER_S: Final = 5
"""Maximum number of queues that a process examines per second."""
_PATIENCE_S: Final = 3.0
"""Longest wait for the reply to a call: a node that is down must not delay the calls for queues of other nodes."""

_log = get_logger(__name__)


class IdleQueue(Protocol):
    """One queue of a worker."""

    @property
    def queue_name(self) -> str:
        """Name of the queue, for the log."""
        ...

    async def register(self, interval_s: float) -> None:
        """Renew the worker's registration if no heartbeats do it; the next time is in ``interval_s``."""
        ...

    async def examine(self) -> None:
        """Report the layout of the queue, and start its tasks if it has a failure policy, unless they run already."""
        ...


class IdleQueues:
    """The queues of all workers of an event loop that share a client."""

    def __init__(self) -> None:
        self._queues: dict[IdleQueue, None] = {}
        self._new: deque[IdleQueue] = deque()
        self._added = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, queues: Iterable[IdleQueue]) -> None:
        """Register the worker with these queues now, and then as long as they are here."""
        for queue in queues:
            self._queues[queue] = None
            self._new.append(queue)
        self._added.set()
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._register(), name="glidemq-register-workers"),
                asyncio.create_task(self._examine(), name="glidemq-examine-queues"),
            ]

    async def remove(self, queues: Sequence[IdleQueue]) -> None:
        """Stop the calls for these queues."""
        for queue in queues:
            self._queues.pop(queue, None)
        self._new = deque(queue for queue in self._new if queue in self._queues)
        if not self._queues:
            tasks, self._tasks = self._tasks, []
            await asyncio.gather(*map(stop_task, tasks))

    async def _register(self) -> None:
        turn = iter(tuple[IdleQueue, ...]())
        while True:
            queue = self._new.popleft() if self._new else next(turn, None)
            if queue is None:
                turn = iter(tuple(self._queues))
                queue = next(turn, None)
            interval = max(REGISTERED_S, len(self._queues) / _REGISTRATIONS_PER_S)
            if queue in self._queues:
                await self._guarded(queue, queue.register(interval))
            await self._pause(interval / max(1, len(self._queues)))

    @staticmethod
    async def _guarded(queue: IdleQueue, call: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await call
        except TimeoutError:
            _log.debug("queue %r: no reply to a call for the idle queue within %.0f s", queue.queue_name, _PATIENCE_S)
        except Exception as error:
            # A bug of ours must not end the calls for all queues.
            _log.error("queue %r: a call for the idle queue failed", queue.queue_name, exc_info=error)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not as long if there are queues whose worker is not registered yet."""
        self._added.clear()
        if self._new:
            await asyncio.sleep(min(seconds, 1 / _FIRST_PER_S))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds * random.uniform(0.9, 1.1)):
                await self._added.wait()

    async def _examine(self) -> None:
        while True:
            queues = tuple(self._queues)
            pause = max(EXAMINED_S / max(1, len(queues)), 1 / _EXAMINED_PER_S)
            await asyncio.sleep(pause * random.uniform(0.9, 1.1))
            for queue in queues:
                if queue in self._queues:
                    await self._guarded(queue, queue.examine())
                    await asyncio.sleep(pause * random.uniform(0.9, 1.1))


_by_channels: WeakKeyDictionary[WakeChannels, IdleQueues] = WeakKeyDictionary()


def idle_queues_of(channels: WakeChannels) -> IdleQueues:
    """Return the idle queues of the workers that these channels wake."""
    found = _by_channels.get(channels)
    if found is None:
        found = _by_channels[channels] = IdleQueues()
    return found
