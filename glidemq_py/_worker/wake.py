"""What a worker does for idle queues: it waits for wake-ups, registers itself, and looks for changes.

`WakeReader` waits with a blocking read in a second consumer group (docs/reference/functions.md, "Waking"). The read
fetches no jobs; only exchange calls do. It uses its own connection, because a blocking read delays every other command
on its connection, and closing the connection ends the read at once. If possible, an exchange call is sent right behind
the read, and the server runs it as soon as the read ends. This saves an idle worker one round trip per job.

`IdleQueues` makes the calls for queues whose worker sends no heartbeats: registrations, and looking for changes of the
queue. All workers of an event loop that share a client share these calls, so their number per second does not depend on
the number of queues or workers.

`DrainProbe` looks for jobs in all partitions of a queue before the event `drained` is emitted. Without it, the event
comes too early if the last running job ends before the wake-up message of another job arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from glidemq_py._client.runtime import stop_task, wait_for_event
from glidemq_py._client.transport import Transport
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.fetch_calls import BLOCK_MS, QueueSource
from glidemq_py._worker.fetch_loop import FetchLoop
from glidemq_py._worker.slot_pool import QueueOfEngines
from glidemq_py._worker.wake_channel import ChannelWake, WakeChannels, with_ready_jobs
from glidemq_py.errors import AmbiguousResultError, ClosedError, GlideMQError

_log = get_logger(__name__)

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 1.0
_INVALIDATE_S = 2.0
_PATIENCE_S = 2.5
"""Timeout of a read, which blocks for a second at most. The slots that its call reserves are unused meanwhile."""


class WakeReader:
    """Reads while the fetch loop is idle, and makes it fetch when jobs may be ready."""

    def __init__(self, link: QueueLink, fetching: FetchLoop, source: QueueSource) -> None:
        self._link = link
        self._source = source
        self._fetching = fetching
        self._transport: Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Start the reader task."""
        self._task = asyncio.create_task(self._watch(), name=f"glidemq-wake-{self._link.keys.name}")

    async def _watch(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            await self._fetching.idle.wait()
            try:
                await self._wait()
                pause = _FIRST_PAUSE_S
                await asyncio.sleep(0)  # lets the fetched jobs start before the next read is sent
                continue
            except ClosedError:
                if self._closed:
                    return
                self._transport = None
            except GlideMQError as error:
                # Usually a missing group (after FLUSHALL), which the next exchange creates.
                _log.debug("queue %s: waiting for a wake-up failed; retrying: %s", self._link.label, error)
                pause = await self._sleep(pause)
            except Exception as error:
                # A bug of ours must not end the wake-ups.
                _log.error("queue %s: waiting for a wake-up failed; retrying", self._link.label, exc_info=error)
                await self._disconnect()
                pause = await self._sleep(pause)
            self._fetching.request_jobs()

    @staticmethod
    async def _sleep(pause: float) -> float:
        """Sleep about ``pause`` seconds and return the next pause."""
        await asyncio.sleep(pause * (0.5 + random.random()))
        return min(pause * 2, _LAST_PAUSE_S)

    async def _disconnect(self) -> None:
        """Close the connection, whose state is unknown; the next read opens another one."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with contextlib.suppress(Exception):
                await transport.close()

    async def _wait(self) -> None:
        """Wait for a wake-up; if possible, send the exchange call right behind the read."""
        if self._transport is None:
            self._transport = await self._link.transport.dedicated()
        pipelined = self._fetching.next_pipelined()
        if pipelined is None:
            woken = bool(await self._transport.command(*self._source.wake_command()))
            engine = self._fetching.engine
            if woken and self._source.wakes_one and (engine.free <= 0 or not engine.may_fetch):
                await self._pass_on()
            self._fetching.request_jobs()
            return
        call, request = pipelined
        try:
            async with asyncio.timeout(_PATIENCE_S):
                reply, _ = await self._transport.call_with(request, (), BLOCK_MS, read=self._source.wake_command())
        except BaseException as error:
            if isinstance(error, TimeoutError):
                # The call may still be in flight; send nothing else on this connection.
                stuck, self._transport = self._transport, None
                await stuck.close()
                error = AmbiguousResultError(f"no reply to an exchange call behind a read within {_PATIENCE_S} s")
            self._fetching.pipelined_failed(call, error, closing=self._closed)
            raise error
        self._fetching.pipelined_replied(call, reply)

    async def _pass_on(self) -> None:
        """Wake up another worker: this one has no free slot any more, or is paused."""
        try:
            # NOMKSTREAM: a bare command of one key must not create the key at the target of a slot that moves.
            await self._link.command("XADD", self._link.keys.wake, "NOMKSTREAM", "MAXLEN", "~", "64", "*", "w", "1")
        except GlideMQError as error:
            _log.debug("queue %s: waking up another worker failed: %s", self._link.label, error)

    async def stop_accepting(self) -> bool:
        """Stop reading, and release the jobs that a pipelined call has fetched.

        If the server cannot be reached, those jobs stall and are recovered.

        Returns:
            False if the server did not reply within two seconds.
        """
        await self.close()
        with contextlib.suppress(GlideMQError):
            try:
                async with asyncio.timeout(_INVALIDATE_S):
                    await self._fetching.invalidate_pipelined()
            except TimeoutError:
                return False
        return True

    async def close(self) -> None:
        """End the read by closing its connection. Idempotent."""
        self._closed = True
        if self._transport is not None:
            await self._transport.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


REGISTERED_S: Final = 60.0
"""Time between two registrations with a queue; longer for many queues."""
_REGISTRATIONS_PER_S: Final = 1.5
"""Maximum number of registrations of a process per second, except for the first with each queue."""
_FIRST_PER_S: Final = 50
EXAMINED_S: Final = 8.0
"""Time between two reads of a queue's partitions and failure policy, which may be new; longer for many queues."""
_EXAMINED_PER_S: Final = 5
"""Maximum number of queues that a process examines per second."""
_REPLY_S: Final = 3.0
"""Longest wait for the reply to a call: a node that is down must not delay the calls for queues of other nodes."""


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
            async with asyncio.timeout(_REPLY_S):
                await call
        except TimeoutError:
            _log.debug("queue %r: no reply to a call for the idle queue within %.0f s", queue.queue_name, _REPLY_S)
        except Exception as error:
            # A bug of ours must not end the calls for all queues.
            _log.error("queue %r: a call for the idle queue failed", queue.queue_name, exc_info=error)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not as long if there are queues whose worker is not registered yet."""
        self._added.clear()
        if self._new:
            await asyncio.sleep(min(seconds, 1 / _FIRST_PER_S))
            return
        await wait_for_event(self._added, seconds * random.uniform(0.9, 1.1))

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


_PROBE_S: Final = 2.0
"""Longest wait for the replies: a server that is down must not delay the event for long."""


class DrainProbe:
    """Looks for jobs in the partitions of one queue. It occupies no slot of the worker.

    Args:
        queue: The engines of the partitions.
        name: Name of the queue, for the log.
        drained: Called when the queue has been drained.
    """

    def __init__(self, queue: QueueOfEngines, name: str, drained: Callable[[], None]) -> None:
        self._queue = queue
        self._name = name
        self._drained = drained
        self._wakes: list[ChannelWake] = []
        self._task: asyncio.Task[None] | None = None
        queue.probe = self._start

    def add(self, wake: ChannelWake) -> None:
        """Add a partition."""
        self._wakes.append(wake)

    def _start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"glidemq-drained-{self._name}")

    async def _run(self) -> None:
        rounds = self._queue.rounds
        for wake in await self._found():
            wake.found()
        self._end(rounds)

    def _end(self, rounds: int) -> None:
        if self._queue.probed(rounds):
            self._drained()

    async def _found(self) -> list[ChannelWake]:
        try:
            async with asyncio.timeout(_PROBE_S):
                return await with_ready_jobs(self._wakes)
        except (GlideMQError, TimeoutError) as error:
            _log.debug("queue %r: looking for jobs in its partitions failed: %r", self._name, error)
        except Exception as error:
            _log.error("queue %r: looking for jobs in its partitions failed", self._name, exc_info=error)
        return []

    async def close(self) -> None:
        """Stop the probe. Afterwards, the queue counts as drained when the last job of this worker has ended."""
        self._queue.probe = None
        if self._task is not None and not self._task.done():
            await stop_task(self._task)
            self._end(self._queue.rounds)
