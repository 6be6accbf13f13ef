"""Connections for blocking reads: a few per process and server; further readers poll over the client that they share.

A blocking read needs a connection of its own, so readers of many queues would need many. One blocking read over many
streams would not help: its cost grows with the number of streams at every wake-up, one that is blocked cannot get
another stream, and in a cluster the streams are in different slots. So the first readers have a connection each, and
the others are polled together: one command reads all their streams, at intervals that grow while nothing arrives.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary

from glidemq_py._client.connect import is_glide_transport
from glidemq_py._client.loop_transport import LoopTransport
from glidemq_py._client.transport import Transport
from glidemq_py._core.forks import new_rlock
from glidemq_py.errors import ClosedError, GlideMQError

__all__ = [
    "BLOCKING_READS",
    "WORKER_READS",
    "ReadConnection",
    "Reservation",
    "claim_read",
    "open_reader",
    "reserve_read",
    "shares_client",
]

BLOCKING_READS: Final = 3
"""Number of connections for blocking reads per process and server. With the clients for calls, heartbeats and wake-up
channels, that makes six."""
WORKER_READS: Final = 2
"""How many of them workers may have."""
_SHORTEST_S: Final = 0.01
_LONGEST_S: Final = 0.1
_GROWTH: Final = 1.3
_STREAM_S: Final = 0.0002
"""Share of an interval per stream, so that a thousand streams are read five times a second at most."""
_STREAMS_PER_READ: Final = 500


class ReadConnection(Protocol):
    """A connection for the reads of one reader, one after the other."""

    @property
    def is_cluster(self) -> bool:
        """See `Transport.is_cluster`."""
        ...

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        ...

    async def close(self) -> None:
        """See `Transport.close`; a read that waits raises `ClosedError`."""
        ...

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        ...


_reserved: Counter[Hashable] = Counter()
_reservations: weakref.WeakSet[Reservation] = weakref.WeakSet()
_lock = new_rlock()
"""Reentrant: garbage collection inside may end a reservation."""


class Reservation:
    """One of the connections of a process and server, until `release` or the end of the object."""

    def __init__(self, server: Hashable) -> None:
        self._end = weakref.finalize(self, _give_back, server)
        self._loop = asyncio._get_running_loop()
        with _lock:
            _reservations.add(self)

    def release(self) -> None:
        """Give it back. Idempotent."""
        self._end()

    def detach(self) -> None:
        """Make `release` do nothing: in a forked child, the reservation is the parent's."""
        self._end.detach()

    @property
    def is_left(self) -> bool:
        """True if its event loop was closed: connections end with their loop."""
        return self._loop is not None and self._loop.is_closed()


def _give_back(server: Hashable) -> None:
    with _lock:
        _reserved[server] -= 1
        if _reserved[server] <= 0:
            del _reserved[server]


def reserve_read(server: Hashable, most: int = BLOCKING_READS) -> Reservation | None:
    """Reserve a connection for blocking reads from a server; None if ``most`` are reserved."""
    with _lock:
        for each in [each for each in list(_reservations) if each.is_left]:
            each.release()
        if _reserved[server] >= most:
            return None
        _reserved[server] += 1
    return Reservation(server)


def claim_read(server: Hashable) -> Reservation:
    """Reserve a connection for other blocking commands. If all are reserved, a reader is polled from now on."""
    with _lock:
        _reserved[server] += 1
        if _reserved[server] > BLOCKING_READS:
            reader = next((each for each in _readers if each.server == server and not each.is_polled), None)
            if reader is not None:
                reader.is_polled = True
    return Reservation(server)


def _forget_parent() -> None:
    for each in list(_reservations):
        each.detach()
    _reserved.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


def shares_client(transport: Transport) -> bool:
    """Return whether other transports of the loop use the same client."""
    return is_glide_transport(transport) and transport.server is not None


async def open_reader(transport: Transport) -> ReadConnection:
    """Return a connection for blocking reads.

    Args:
        transport: The reader's transport. If it shares its client, the reader may get a connection that polls over it.

    Raises:
        GlideMQConnectionError: If the server cannot be reached.
    """
    if isinstance(transport, LoopTransport):
        transport = await transport.here()
    server = transport.server if is_glide_transport(transport) else None
    if server is None:
        return await transport.dedicated()
    reservation = reserve_read(server)
    if reservation is None:
        return _PolledReads(transport)
    try:
        return _ReservedConnection(transport, await transport.dedicated(), reservation, server)
    except BaseException:
        reservation.release()
        raise


class _ReservedConnection:
    """A connection of one reader, until another use has claimed it."""

    def __init__(self, shared: Transport, transport: Transport, reservation: Reservation, server: Hashable) -> None:
        self._shared = shared
        self._transport: Transport | _PolledReads = transport
        self._reservation = reservation
        self.server = server
        self.is_polled = False
        """True if it must switch to polling."""
        with _lock:
            _readers.add(self)

    @property
    def is_cluster(self) -> bool:
        """See `Transport.is_cluster`."""
        return self._transport.is_cluster

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        if self.is_polled and not isinstance(self._transport, _PolledReads):
            transport, self._transport = self._transport, _PolledReads(self._shared)
            self._reservation.release()
            await transport.close()
        return await self._transport.command(*args)

    async def close(self) -> None:
        """See `Transport.close`."""
        self._reservation.release()
        await self._transport.close()

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        self._reservation.release()
        self._transport.abandon()


_readers: weakref.WeakSet[_ReservedConnection] = weakref.WeakSet()


class _Read:
    """A read of one stream that waits for entries."""

    __slots__ = ("count", "deadline", "done", "position", "stream", "transport")

    def __init__(self, transport: Transport, count: str, stream: str, position: str, deadline: float) -> None:
        self.transport = transport
        self.count = count
        self.stream = stream
        self.position = position
        self.deadline = deadline
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class _Poller:
    """Polls for the reads of all readers over one client."""

    def __init__(self) -> None:
        self._reads: dict[_Read, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._pause = _SHORTEST_S

    async def read(self, transport: Transport, count: str, stream: str, position: str, block: float) -> Any:
        """Return the reply of XREAD for one stream, as soon as it has entries, or None after ``block`` seconds."""
        read = _Read(transport, count, stream, position, time.monotonic() + block)
        self._reads[read] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll(), name="glidemq-polled-reads")
        try:
            return await read.done
        finally:
            self._reads.pop(read, None)

    async def _poll(self) -> None:
        try:
            await self._poll_all()
        except BaseException as error:
            for read in list(self._reads):
                _end(read, error=ClosedError(f"polling ended: {type(error).__name__}: {error}"))
            self._reads.clear()
            raise

    async def _poll_all(self) -> None:
        while self._reads:
            reads = list(self._reads)
            found = await self._read(reads)
            now = time.monotonic()
            for read in reads:
                if read in found:
                    _end(read, reply={read.stream.encode("utf-8", "surrogateescape"): found[read]})
                elif now >= read.deadline:
                    _end(read)
            for read in reads:
                if read.done.done():
                    self._reads.pop(read, None)
            self._pause = _SHORTEST_S if found else min(self._pause * _GROWTH, _LONGEST_S)
            await asyncio.sleep(max(self._pause, len(reads) * _STREAM_S))
        self._pause = _SHORTEST_S

    async def _read(self, reads: Sequence[_Read]) -> dict[_Read, Any]:
        """Return the entries of each read that has any. Errors end the reads."""
        transport = reads[0].transport  # all transports of this poller use the same client
        try:
            replies = await asyncio.gather(
                *(_read_some(transport, command) for command in _commands(reads, cluster=transport.is_cluster))
            )
        except GlideMQError as error:
            # A transport may be closed while others go on.
            closed = isinstance(error, ClosedError)
            for read in reads:
                if not closed or read.transport is transport:
                    _end(read, error=error)
            return {}
        return {read: entries for reply in replies for read, entries in reply.items()}


def _end(read: _Read, *, reply: Any = None, error: Exception | None = None) -> None:
    if read.done.done():
        return
    if error is None:
        read.done.set_result(reply)
    else:
        read.done.set_exception(error)


def _commands(reads: Sequence[_Read], *, cluster: bool) -> list[dict[str, _Read]]:
    """Return the reads of each command by their streams.

    A command has one position per stream and one count, and in a cluster one stream.
    """
    commands = list[dict[str, _Read]]()
    of_count: dict[str, list[dict[str, _Read]]] = {}
    most = 1 if cluster else _STREAMS_PER_READ
    for read in reads:
        begun = of_count.setdefault(read.count, [])
        fitting = next((each for each in begun if len(each) < most and read.stream not in each), None)
        if fitting is None:
            fitting = dict[str, _Read]()
            begun.append(fitting)
            commands.append(fitting)
        fitting[read.stream] = read
        if len(fitting) == most:
            begun.remove(fitting)
    return commands


async def _read_some(transport: Transport, reads: dict[str, _Read]) -> dict[_Read, Any]:
    count = next(iter(reads.values())).count
    positions = [read.position for read in reads.values()]
    reply = await transport.command("XREAD", "COUNT", count, "STREAMS", *reads, *positions)
    found = cast("dict[bytes, Any]", reply or {})
    return {reads[name.decode("utf-8", "surrogateescape")]: entries for name, entries in found.items() if entries}


_pollers: WeakKeyDictionary[Any, _Poller] = WeakKeyDictionary()


class _PolledReads:
    """Polls over a shared client in place of blocking reads."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._waiting: set[asyncio.Future[Any]] = set()
        self._ended: set[asyncio.Future[Any]] = set()
        self._closed = False
        client = transport.client_owner if is_glide_transport(transport) else transport
        self._poller = _pollers.setdefault(client, _Poller())

    @property
    def is_cluster(self) -> bool:
        """See `Transport.is_cluster`."""
        return self._transport.is_cluster

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`. A blocking read of streams polls."""
        if self._closed:
            raise ClosedError("the connection was closed")
        if "BLOCK" not in args:
            return await self._transport.command(*args)
        at = args.index("BLOCK")
        block = int(args[at + 1]) / 1000
        plain = args[:at] + args[at + 2 :]
        if args[0] == "XREAD" and len(args) == _ONE_STREAM:
            work = self._poller.read(self._transport, str(args[2]), str(args[-2]), str(args[-1]), block)
        else:
            work = self._repeat(plain, block)
        waiting = asyncio.ensure_future(work)
        self._waiting.add(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            waiting.cancel()
            task = asyncio.current_task()
            if waiting in self._ended and not (task and task.cancelling()):
                raise ClosedError("the connection was closed") from None
            raise
        finally:
            self._waiting.discard(waiting)

    async def _repeat(self, command: Sequence[str | bytes], block: float) -> Any:
        pause, deadline = _SHORTEST_S, time.monotonic() + block
        while True:
            reply = await self._transport.command(*command)
            left = deadline - time.monotonic()
            if reply or left <= 0:
                return reply
            await asyncio.sleep(min(pause, left))
            pause = min(pause * _GROWTH, _LONGEST_S)

    async def close(self) -> None:
        """See `ReadConnection.close`. The shared client stays open."""
        self._closed = True
        self._ended |= self._waiting
        for each in tuple(self._waiting):
            each.cancel()

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        self._closed = True


_ONE_STREAM: Final = 8
"""Arguments of ``XREAD COUNT n BLOCK ms STREAMS key position``."""
