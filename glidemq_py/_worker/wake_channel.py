"""Wake-ups of the queues of one process through one Pub/Sub subscription (docs/reference/functions.md, "Waking").

A blocking read needs a connection per queue. Instead, an exchange that leaves a queue idle registers a channel with it,
and the next push publishes a message there (lua/features/many_queues). The process subscribes to the channels of all
its queues with one pattern.

A message may be lost, and Node peers send none. So every queue is also polled: on one server, one command reads the
streams of hundreds of queues; in a cluster, a queue costs two commands, so the queues take turns.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from glidemq_py._client.event_reader import Subscription, subscribe
from glidemq_py._client.failures import repeated_level
from glidemq_py._client.loop_transport import ForwardingTransport
from glidemq_py._client.runtime import stop_task
from glidemq_py._client.shared_reads import glide_of
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import pieces, working
from glidemq_py._core.calls.working import WakeChannel
from glidemq_py._core.keys import OWED, QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.slot_pool import PooledFetchLoop
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
_SLOT_WAIT_S: Final = 0.02
"""How long a wake-up waits for a slot that a call in flight may leave free, before it is passed on."""
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


class ChannelWake:
    """Wakes one queue of a worker; it takes the place of a `WakeReader`.

    Args:
        link: The queue.
        fetching: Fetches its jobs.
        channels: The channels of the event loop.
        number: Number of the queue among them.
        on_activity: Called when the queue may need maintenance tasks (True) or was found without any key (False).
        called: Called when there is a command for the worker.
    """

    def __init__(
        self, link: QueueLink, fetching: PooledFetchLoop, channels: WakeChannels, number: int,
        on_activity: Callable[[bool], None], called: Callable[[], None],
    ) -> None:  # fmt: skip
        self._link = link
        self._fetching = fetching
        self._channels = channels
        self._on_activity = on_activity
        self.called = called
        self._passing: set[asyncio.Task[None]] = set()
        self._polled_at = 0.0
        self._loop = asyncio.get_running_loop()
        self.number = number
        self.keys = link.keys
        self.transport: Transport = link.transport

    @property
    def position(self) -> str:
        """See `Sleeper.position`. Entries of the same millisecond may be newer than the last exchange."""
        now = self._fetching.server_now
        return "0" if now == 0 else f"{now - 1}-18446744073709551615"

    async def open(self) -> None:
        """Start waking the queue."""
        await self._channels.add(self)

    def woken(self) -> None:
        """See `Sleeper.woken`."""
        pool = self._fetching.pool
        if pool.is_full or not self._fetching.engine.may_fetch:
            self._begin_passing_on()
        elif pool.free <= 0:
            self._loop.call_later(_SLOT_WAIT_S, self._pass_on_if_full)
        self._fetching.request_jobs()

    def _pass_on_if_full(self) -> None:
        if self._fetching.engine.jobs_may_be_ready and self._fetching.pool.free <= 0:
            self._begin_passing_on()

    def _begin_passing_on(self) -> None:
        passing = asyncio.create_task(self._pass_on())
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)

    async def _pass_on(self) -> None:
        """Wake up another worker: this one has no free slot, or is paused."""
        try:
            await self._link.call(working.pass_wake_up)
        except GlideMQError as error:
            _log.debug("queue %s: waking up another worker failed: %s", self._link.label, error)

    def found(self) -> None:
        """See `Sleeper.found`."""
        if not self._fetching.engine.jobs_may_be_ready:
            self._fetching.request_jobs()

    def checked(self, exists: bool) -> None:
        """See `Sleeper.checked`."""
        engine = self._fetching.engine
        self._on_activity(exists or bool(engine.running) or bool(engine.finished))
        now = self._loop.time()
        if exists and not engine.jobs_may_be_ready and now - self._polled_at >= BUSY_POLL_S:
            self._polled_at = now
            self._fetching.request_jobs()

    async def stop_accepting(self) -> bool:
        """Stop waking the queue. Returns False if the server did not reply within two seconds."""
        await self._channels.remove(self)
        channel = self._channels.channel(self.number, cluster=False).name
        try:
            async with asyncio.timeout(2.0):
                await self._link.command("ZREM", self._link.keys.wake_channels, channel)
        except (GlideMQError, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Stop waking the queue. Idempotent."""
        await self._channels.remove(self)
        for each in tuple(self._passing):
            each.cancel()
