"""Wake-ups of the queues of one process through one Pub/Sub subscription (docs/reference/functions.md, "Waking").

A blocking read needs a connection per queue. Instead, an exchange that leaves a queue idle registers a channel with it,
and the next push publishes a message there (lua/features/many_queues). The process subscribes to the channels of all
its queues with one pattern.

A message may be lost, and Node peers send none. So every queue is also polled: on one server, one command reads the
streams of hundreds of queues; in a cluster, a queue costs two commands, so the queues take turns.

`IdleQueues` makes the calls for queues whose worker sends no heartbeats: registrations, and looking for changes of the
queue. All workers of an event loop that share a client share these calls, so their number per second does not depend on
the number of queues or workers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from glidemq_py._client.event_reader import Subscription, subscribe
from glidemq_py._client.failures import repeated_level
from glidemq_py._client.loop_transport import ForwardingTransport
from glidemq_py._client.runtime import stop_task, wait_for_event
from glidemq_py._client.shared_reads import glide_of
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import pieces
from glidemq_py._core.calls.working import WakeChannel
from glidemq_py._core.keys import OWED, QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQError

_log = get_logger(__name__)

POLL_S: Final = 1.0
STREAMS_PER_READ: Final = 500
VISITS_PER_POLL: Final = 10
"""Number of queues polled per second in a cluster."""
PLACES_PER_CALL: Final = 25
"""Number of queues whose keys one EXISTS checks."""
ROUND_S: Final = 30.0
"""Time between checks of all keys of a queue on one server."""
BUSY_POLL_S: Final = 5.0
"""Time between exchanges of a queue that has jobs, delayed ones for example, but none that is ready."""
_COMMAND: Final = "c"
"""Before the number of a queue in the name of a channel: a command for the worker, not a push."""
_SUBSCRIBED_S: Final = 2.0
_RETRY_S: Final = 5.0
_LAST_RETRY_S: Final = 300.0
_SHOWN: Final = 5


_READY: Final = ("lifo", "priority", "suspects", "fair-keys", "ranked-above", "ranked-below")
"""Ends of the keys with jobs that an exchange fetches."""

PLACES: Final = (*OWED, *_READY, "scheduled", "delayed-own", "fair-delayed", "schedulers", "schedulers-due")
"""Ends of the keys of which at least one exists if a queue needs maintenance tasks; its stream is not among them."""

_READY_S: Final = 1.0
"""How long `with_ready_jobs` waits for a node of a cluster."""

SleeperT = TypeVar("SleeperT", bound="Sleeper")


class Sleeper(Protocol):
    """A queue of this process, as `WakeChannels` wakes it."""

    number: int
    keys: QueueKeys
    transport: Transport

    @property
    def position(self) -> str:
        """Stream entries up to this id were there when the queue was last found empty."""
        ...

    def woken(self) -> None:
        """Process a message: jobs were pushed."""
        ...

    def called(self) -> None:
        """Process a message: there is a command for the worker."""
        ...

    def found(self) -> None:
        """Process a poll that has found jobs."""
        ...

    def checked(self, exists: bool) -> None:
        """Process a check of all keys; ``exists`` is True if the queue has any."""
        ...


class WakeChannels:
    """The subscription and the poll of all queues that one event loop serves on one server.

    Queues that are only listened for are not polled.
    """

    def __init__(self) -> None:
        self._prefix = f"glidemq_py:wake:{secrets.token_hex(8)}:"
        self._numbers = itertools.count(1)
        self._sleepers: dict[int, Sleeper] = {}
        self._listeners: dict[int, tuple[Transport, Callable[[], None]]] = {}
        """What to call for a message on the control channel of a number."""
        self._subscription: Subscription | None = None
        self._opening = asyncio.Lock()
        self._heard = asyncio.Event()
        self._is_heard = False
        self._task: asyncio.Task[None] | None = None
        self._turn: Iterator[int] = iter(())
        self._next_round = 0.0
        self._unchecked: set[int] = set()
        """Numbers of the queues that were added after the last check of all keys."""
        self.idle = IdleQueues()
        """The queues of the workers that these channels wake."""

    @property
    def hears(self) -> bool:
        """Whether messages arrive; if not, queues are only polled."""
        return self._is_heard

    def channel(self, number: int, *, cluster: bool) -> WakeChannel:
        """Return the channel of a queue."""
        return WakeChannel(f"{self._prefix}{number}", cluster)

    def control_channel(self, number: int) -> str:
        """Return the channel on which a command for the worker of an idle queue is announced."""
        return f"{self._prefix}{_COMMAND}{number}"

    def next_number(self) -> int:
        """Return the number of another queue."""
        return next(self._numbers)

    async def add(self, sleeper: Sleeper) -> None:
        """Wake and poll a queue from now on."""
        self._sleepers[sleeper.number] = sleeper
        self._unchecked.add(sleeper.number)
        await self.listen(sleeper.number, sleeper.transport, sleeper.called)

    async def remove(self, sleeper: Sleeper) -> None:
        """Stop waking a queue."""
        self._sleepers.pop(sleeper.number, None)
        self._unchecked.discard(sleeper.number)
        await self.ignore(sleeper.number)

    async def listen(self, number: int, transport: Transport, called: Callable[[], None]) -> None:
        """Call ``called`` for each message on a control channel from now on; subscribe if it is the first one."""
        self._listeners[number] = transport, called
        async with self._opening:
            if self._task is None:
                await self._subscribe(transport)
                self._task = asyncio.create_task(self._run(), name="glidemq-wake-channels")

    async def ignore(self, number: int) -> None:
        """Listen to a control channel no longer; unsubscribe if it was the last one."""
        self._listeners.pop(number, None)
        async with self._opening:
            if self._listeners:
                return
            self._is_heard = False
            task, self._task = self._task, None
            if task is not None:
                await stop_task(task)
            subscription, self._subscription = self._subscription, None
            if subscription is not None:
                await subscription.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poll_on())
            if not self._is_heard:
                tasks.create_task(self._subscribe_again())

    async def _subscribe_again(self) -> None:
        """Try a failed subscription again, with growing pauses."""
        pause = _RETRY_S
        while not self._is_heard:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_RETRY_S)
            for transport, _ in list(self._listeners.values())[:1]:
                await self._subscribe(transport, again=True)
        _log.warning("messages arrive on wake-up channels %s* now", self._prefix)

    async def _subscribe(self, transport: Transport, *, again: bool = False) -> None:
        def level(error: Exception) -> int:
            return logging.DEBUG if again else repeated_level(transport, error)

        try:
            if hasattr(transport, "config"):
                # Without the permission GLIDE would log thousands of errors until it gives up.
                await transport.command("PUBLISH", f"{self._prefix}0", "")
            if self._subscription is None:
                self._subscription = await subscribe(transport, self._prefix, self._on_message)
        except GlideMQError as error:
            _log.log(level(error), "subscribing to wake-up channels failed; queues are polled instead: %s", error)
            return
        if self._subscription is None or not hasattr(transport, "config"):
            self._is_heard = self._subscription is not None
            return
        # GLIDE subscribes in the background.
        self._heard.clear()
        try:
            async with asyncio.timeout(_SUBSCRIBED_S):
                while not self._heard.is_set():
                    await transport.command("PUBLISH", f"{self._prefix}0", "")
                    await asyncio.sleep(0.01)
            self._is_heard = True
        except (GlideMQError, TimeoutError) as error:
            _log.log(
                level(error),
                "no message arrives on wake-up channels %s*; queues are polled instead: %r (permissions: +publish, "
                "+psubscribe and allchannels)", self._prefix, error,
            )  # fmt: skip

    def _on_message(self, channel: str) -> None:
        name = channel.rpartition(":")[2]
        number = int(name.removeprefix(_COMMAND))
        if number == 0:
            self._heard.set()
            return
        if name.startswith(_COMMAND):
            if number in self._listeners:
                self._listeners[number][1]()
        elif number in self._sleepers:
            self._sleepers[number].woken()

    # -- polling ------------------------------------------------------------------------------------------

    async def _poll_on(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_round = loop.time() + ROUND_S
        failing = False
        while True:
            await asyncio.sleep(POLL_S * random.uniform(0.9, 1.1))
            sleepers = list(self._sleepers.values())
            if not sleepers:
                continue
            try:
                if sleepers[0].transport.is_cluster:
                    await self._visit_some()
                else:
                    await self._read_streams(sleepers)
                    is_round = loop.time() >= self._next_round
                    if is_round:
                        self._next_round = loop.time() + ROUND_S
                    due = sleepers if is_round else [each for each in sleepers if each.number in self._unchecked]
                    await self._check_all(due)
                    self._unchecked.difference_update(each.number for each in due)
                failing = False
            except GlideMQError as error:
                if any(each.number not in self._sleepers for each in sleepers):
                    continue  # a worker was closed meanwhile, perhaps with the connection of this poll
                _log.log(
                    logging.DEBUG if failing else repeated_level(sleepers[0].transport, error),
                    "polling %d queues (%s) failed; until it succeeds again, jobs that arrive without a wake-up "
                    "message are not found, nor stalled jobs of idle queues: %s",
                    len(sleepers), _shown(sleepers), error,
                )  # fmt: skip
                failing = True
                await asyncio.sleep(_RETRY_S)
            except Exception as error:
                # A bug of ours must not end the poll.
                _log.error("polling %d queues failed", len(sleepers), exc_info=error)
                await asyncio.sleep(_RETRY_S)

    async def _read_streams(self, sleepers: Sequence[Sleeper]) -> None:
        """Find new entries of the streams: jobs of Node peers, or of lost messages."""
        for some in pieces(sleepers, STREAMS_PER_READ):
            for each in await _with_new_entries(some):
                each.found()

    async def _check_all(self, sleepers: Sequence[Sleeper]) -> None:
        """Find the queues that need maintenance tasks."""
        for some in pieces(sleepers, STREAMS_PER_READ):
            found = await _read(some[0].transport, [(each.keys.stream, "0") for each in some])
            numbers = {each.number for each in await _with_places(some, PLACES)}
            for each in some:
                each.checked(each.number in numbers or each.keys.stream in found)

    async def _visit_some(self) -> None:
        visited: list[Sleeper] = []
        for _ in range(min(VISITS_PER_POLL, len(self._sleepers))):
            number = next(self._turn, None)
            if number is None:
                self._turn = iter(list(self._sleepers))
                number = next(self._turn, 0)
            if number in self._sleepers:
                visited.append(self._sleepers[number])
        await asyncio.gather(*map(self._visit, visited))

    async def _visit(self, sleeper: Sleeper) -> None:
        found = await _read(sleeper.transport, [(sleeper.keys.stream, "0")])
        exists = await _exist([sleeper], PLACES)
        if found:
            sleeper.found()
        sleeper.checked(exists or bool(found))


def _shown(sleepers: Sequence[Sleeper]) -> str:
    names = sorted({each.keys.name for each in sleepers})
    return ", ".join(map(repr, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")


async def _read(transport: Transport, streams: Sequence[tuple[str, str]]) -> set[str]:
    """Return the streams that have an entry behind the position given for each."""
    names, positions = zip(*streams, strict=True)
    reply = await transport.command("XREAD", "COUNT", "1", "STREAMS", *names, *positions)
    return {name.decode("utf-8", "surrogateescape") for name in reply or ()}


async def with_ready_jobs(queues: Sequence[SleeperT]) -> list[SleeperT]:
    """Return the queues that may have ready jobs which the last exchange did not find. Raises GlideMQError.

    On one server, a command per hundreds of queues; in a cluster, two commands per queue, and queues whose node is down
    are left out.
    """
    if queues and queues[0].transport.is_cluster:
        ready = await asyncio.gather(*map(_has_ready_jobs, queues))
        return [each for each, is_ready in zip(queues, ready, strict=True) if is_ready]
    found: list[SleeperT] = []
    for some in pieces(queues, STREAMS_PER_READ):
        found += await _with_new_entries(some)
    return found + await _with_places([each for each in queues if each not in found], _READY)


async def _has_ready_jobs(queue: Sleeper) -> bool:
    try:
        async with asyncio.timeout(_READY_S):
            return bool(await _with_new_entries([queue])) or await _exist([queue], _READY)
    except (GlideMQError, TimeoutError) as error:
        _log.debug("queue %r: looking for jobs failed: %r", queue.keys.name, error)
        return False


async def _with_new_entries(queues: Sequence[SleeperT]) -> list[SleeperT]:
    """Return the queues whose streams have entries behind their positions, at most `STREAMS_PER_READ`."""
    found = await _read(queues[0].transport, [(each.keys.stream, each.position) for each in queues])
    return [each for each in queues if each.keys.stream in found]


async def _with_places(queues: Sequence[SleeperT], places: Sequence[str]) -> list[SleeperT]:
    """Return the queues that have one of these keys."""
    found: list[SleeperT] = []
    for some in pieces(queues, PLACES_PER_CALL):
        if await _exist(some, places):
            found += [each for each in some if await _exist([each], places)]
    return found


async def _exist(queues: Sequence[Sleeper], places: Sequence[str]) -> bool:
    names = [each.keys.stem + place for each in queues for place in places]
    return bool(await queues[0].transport.command("EXISTS", *names))


_by_client: WeakKeyDictionary[Any, WakeChannels] = WeakKeyDictionary()


def wake_channels_of(transport: Transport) -> WakeChannels:
    """Return the wake-up channels of the client that this transport uses."""
    glide = glide_of(transport)
    if not glide:
        return WakeChannels()
    owner = glide.client_owner
    return _by_client.setdefault(glide.client if owner is glide else owner, WakeChannels())


class HolderChannel:
    """The channel of a process that holds a lock of a queue: under the channel's name, so that it can be called.

    It is called when schedulers of the queue change (lua/features/schedulers/schedulers.lua).

    Args:
        transport: Connection to the queue.
        called: Called in the event loop. A call may be lost.
    """

    def __init__(self, transport: Transport, called: Callable[[], None]) -> None:
        self._transport, self._called = transport, called
        self._channels: WakeChannels | None = None
        self._number = 0

    @property
    def hears(self) -> bool:
        """Whether calls arrive."""
        return self._channels is not None and self._channels.hears

    async def open(self) -> str:
        """Listen from now on, and return the name. Idempotent. Raises GlideMQError if it could not connect."""
        if self._channels is None:
            transport = self._transport
            if isinstance(transport, ForwardingTransport):
                transport = await transport.here()
            self._channels = wake_channels_of(transport)
            self._number = self._channels.next_number()
            await self._channels.listen(self._number, transport, self._called)
        return self._channels.control_channel(self._number)

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._channels is not None:
            await self._channels.ignore(self._number)


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
